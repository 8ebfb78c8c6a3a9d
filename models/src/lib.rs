//! burn-lct's state machine of one tensor (`src/tensor/state.rs`), run by loom on every schedule of a few threads.
//!
//! The file is the one that burn-lct is built from; only its `sync` module is loom's. A tensor's value is a number here, and
//! each form of it holds another encoding of that number, so that a form taken for another gives a wrong value. After each
//! run the books must say what is there.
#![cfg(test)]

#[path = "../../src/tensor/state.rs"]
#[allow(dead_code, reason = "burn-lct uses all of it")]
mod state;

/// What the state machine needs of threads.
mod sync {
    pub(super) use loom::sync::{Arc, Mutex, MutexGuard};
    pub(super) use std::sync::PoisonError;
}

use loom::sync::atomic::{AtomicI32, Ordering::SeqCst};
use loom::sync::{Arc, Mutex};
use loom::thread;
use state::{Cell, Evicted, Forms, Held, State};

/// The value of every tensor.
const VALUE: u32 = 7;

/// The tensor's forms.
struct Numbers;

impl Forms for Numbers {
    type Dense = Dense;
    type Lifted = Lifted;
    type Rest = Rest;
    type Copy = Copied;
    type Books = Arc<Books>;
}

#[derive(Clone, Debug, PartialEq)]
struct Dense(u32);
struct Lifted(u32);
#[derive(Clone, Debug, PartialEq)]
struct Copied(u32);

enum Rest {
    Packed(u32),
    /// To be packed as soon as a lazy backend's stream has done with it.
    Gathered(Arc<Gathered>),
    /// Computed again from another tensor.
    Derived(Arc<Tensor>),
}

/// Where a tensor is that was gathered.
struct Gathered(Mutex<Place>);

#[derive(Clone, Copy)]
enum Place {
    Waiting(u32),
    Packed(u32),
    Reclaimed,
}

impl Gathered {
    /// The tensor leaves the stream, if it is still there.
    fn leave(&self) {
        let mut place = self.0.lock().unwrap();
        if let Place::Waiting(dense) = *place {
            *place = Place::Packed(!dense);
        }
    }

    fn reclaim(&self) -> Option<Dense> {
        let mut place = self.0.lock().unwrap();
        let Place::Waiting(dense) = *place else {
            return None;
        };
        *place = Place::Reclaimed;
        Some(Dense(dense))
    }
}

impl state::Rest for Rest {
    fn is_derived(&self) -> bool {
        matches!(self, Self::Derived(_))
    }
}

#[derive(Default)]
struct Books {
    window: AtomicI32,
    derived: AtomicI32,
}

impl state::Books for Arc<Books> {
    fn enter_window(&self) {
        let before = self.window.fetch_add(1, SeqCst);
        assert_eq!(before, 0, "a tensor is dense once");
    }

    fn leave_window(&self) {
        let before = self.window.fetch_sub(1, SeqCst);
        assert_eq!(before, 1, "only a dense tensor leaves");
    }

    fn enter_derived(&self) {
        self.derived.fetch_add(1, SeqCst);
    }

    fn leave_derived(&self) {
        self.derived.fetch_sub(1, SeqCst);
    }
}

/// A tensor, used as `Storage` uses it.
struct Tensor {
    cell: Cell<Numbers>,
    books: Arc<Books>,
}

impl Tensor {
    fn new() -> Arc<Self> {
        Self::in_form(State::Dense(Dense(VALUE)))
    }

    fn packed() -> Arc<Self> {
        Self::in_form(State::Resting(Arc::new(Rest::Packed(!VALUE))))
    }

    fn in_form(state: State<Numbers>) -> Arc<Self> {
        let books = Arc::new(Books::default());
        let cell = Cell::new(state, books.clone());
        Arc::new(Self { cell, books })
    }

    /// What somebody who uses the tensor gets.
    fn use_it(&self) -> u32 {
        let waiting = |rest: &Rest| match rest {
            Rest::Gathered(gathered) => gathered.reclaim(),
            Rest::Packed(_) | Rest::Derived(_) => None,
        };
        self.cell.reclaim(waiting, |_| None);
        match self.cell.look() {
            State::Dense(dense) => dense.0,
            State::Lifted(lifted) => lifted.0 - 1,
            State::Copied(_, copy) => copy.0 - 2,
            State::Resting(rest) => {
                let value = wake(&rest);
                self.cell.keep_copy(&Copied(value + 2));
                value
            }
            State::Taken => panic!("the value is gone"),
        }
    }

    /// What the last owner gets.
    fn into_value(self) -> u32 {
        match self.cell.take() {
            State::Dense(dense) => dense.0,
            State::Lifted(lifted) => lifted.0 - 1,
            State::Copied(_, copy) => copy.0 - 2,
            State::Resting(rest) => wake(&rest),
            State::Taken => panic!("the value is gone"),
        }
    }

    /// An eviction as an eager backend does it: the tensor is encoded while anybody may use it.
    fn evict_eagerly(&self) {
        let (hand_over, dense) = match self.cell.evict() {
            Evicted::Nothing => return,
            Evicted::Dense(hand_over, dense) => (hand_over, dense),
            Evicted::Lifted(hand_over, lifted) => (hand_over, Dense(lifted.0 - 1)),
        };
        let kept = hand_over.keep(dense.clone());
        thread::yield_now();
        kept.replace(Rest::Packed(!dense.0));
    }

    /// An eviction as a lazy backend does it: two tensors are locked until what was gathered is queued.
    fn evict_lazily(tensors: [&Self; 2]) {
        let mut locked = Vec::new();
        for tensor in tensors {
            let (mut hand_over, dense) = match tensor.cell.evict() {
                Evicted::Nothing => continue,
                Evicted::Dense(hand_over, dense) => (hand_over, dense),
                Evicted::Lifted(hand_over, lifted) => (hand_over, Dense(lifted.0 - 1)),
            };
            hand_over.finish(Rest::Packed(!dense.0));
            locked.push(hand_over);
        }
        thread::yield_now();
    }

    /// The same, but the tensor leaves only when the stream has done with it.
    fn gather(&self) {
        if let Evicted::Dense(mut hand_over, dense) = self.cell.evict() {
            let place = Mutex::new(Place::Waiting(dense.0));
            hand_over.finish(Rest::Gathered(Arc::new(Gathered(place))));
        }
    }

    /// The stream has done with the tensor, if it waits for that.
    fn leave(&self) {
        if let Some(Rest::Gathered(gathered)) = self.cell.look().rest().map(|rest| &**rest) {
            gathered.leave();
        }
    }

    /// Gives `self` up for a derivation from `operand`, which is lifted first.
    fn derive_from(&self, operand: &Arc<Self>) {
        operand.cell.lift(|dense| Lifted(dense.0 + 1));
        let operand = operand.clone();
        self.cell.derive(|_| true, |_| Rest::Derived(operand));
    }

    /// The books say what is there.
    fn check(&self) {
        let dense = self.cell.held() != Held::Nothing;
        let derived =
            (self.cell.look().rest()).is_some_and(|rest| state::Rest::is_derived(&**rest));
        assert_eq!(self.books.window.load(SeqCst), i32::from(dense));
        assert_eq!(self.books.derived.load(SeqCst), i32::from(derived));
        assert_eq!(self.use_it(), VALUE);
    }
}

/// Decodes, or computes again.
fn wake(rest: &Rest) -> u32 {
    match rest {
        Rest::Packed(packed) => !packed,
        Rest::Gathered(gathered) => {
            gathered.leave();
            match *gathered.0.lock().unwrap() {
                Place::Packed(packed) => !packed,
                Place::Waiting(_) | Place::Reclaimed => panic!("the value is gone"),
            }
        }
        Rest::Derived(operand) => operand.use_it(),
    }
}

/// Runs both on threads of their own and the third on this one, on every schedule; then drops the last owner's tensors and
/// looks at the books.
fn on_every_schedule<const N: usize>(
    tensors: fn() -> [Arc<Tensor>; N],
    threads: [fn(&[Arc<Tensor>; N]); 3],
) {
    loom::model(move || {
        let all = tensors();
        let books = all.clone().map(|tensor| tensor.books.clone());
        let [first, second, own] = threads;
        let others = [first, second].map(|work| {
            let all = all.clone();
            thread::spawn(move || work(&all))
        });
        own(&all);
        for other in others {
            other.join().unwrap();
        }
        all.iter().for_each(|tensor| tensor.check());
        drop(all);
        for books in books {
            assert_eq!(
                (books.window.load(SeqCst), books.derived.load(SeqCst)),
                (0, 0)
            );
        }
    });
}

fn use_first<const N: usize>(all: &[Arc<Tensor>; N]) {
    assert_eq!(all[0].use_it(), VALUE);
}

#[test]
fn an_eager_encode_is_seen_by_nobody_who_uses_the_tensor() {
    on_every_schedule(
        || [Tensor::new()],
        [|all| all[0].evict_eagerly(), use_first, use_first],
    );
}

#[test]
fn two_encodes_of_one_tensor_leave_one_form() {
    on_every_schedule(
        || [Tensor::new()],
        [
            |all| all[0].evict_eagerly(),
            |all| all[0].evict_eagerly(),
            use_first,
        ],
    );
}

#[test]
fn copies_come_and_go() {
    on_every_schedule(
        || [Tensor::packed()],
        [use_first, use_first, |all| all[0].evict_eagerly()],
    );
}

#[test]
fn a_lazy_batch_is_not_asked_for_before_it_is_queued() {
    on_every_schedule(
        || [Tensor::new(), Tensor::new()],
        [
            |[a, b]| Tensor::evict_lazily([a, b]),
            |[a, b]| assert_eq!((b.use_it(), a.use_it()), (VALUE, VALUE)),
            use_first,
        ],
    );
}

#[test]
fn who_uses_a_tensor_that_waits_has_it_back_unless_it_has_left() {
    on_every_schedule(
        || [Tensor::new()],
        [
            |[tensor]| {
                tensor.gather();
                tensor.leave();
            },
            use_first,
            |_| (),
        ],
    );
}

#[test]
fn what_is_derived_finds_its_operand_whatever_becomes_of_it() {
    on_every_schedule(
        || [Tensor::new(), Tensor::new()],
        [
            |[result, operand]| result.derive_from(operand),
            |[_, operand]| operand.evict_eagerly(),
            use_first,
        ],
    );
}

#[test]
fn an_operand_may_be_packed_in_a_lazy_batch() {
    on_every_schedule(
        || [Tensor::new(), Tensor::new()],
        [
            |[result, operand]| {
                result.derive_from(operand);
                Tensor::evict_lazily([operand, result]);
            },
            use_first,
            |[_, operand]| assert_eq!(operand.use_it(), VALUE),
        ],
    );
}

#[test]
fn the_last_owner_takes_the_value_and_the_books_are_even() {
    loom::model(|| {
        let tensor = Tensor::new();
        let books = tensor.books.clone();
        let owners = [tensor.clone(), tensor].map(|owner| {
            thread::spawn(move || match Arc::try_unwrap(owner) {
                Ok(last) => assert_eq!(last.into_value(), VALUE),
                Err(shared) => {
                    shared.evict_eagerly();
                    assert_eq!(shared.use_it(), VALUE);
                }
            })
        });
        for owner in owners {
            owner.join().unwrap();
        }
        assert_eq!(books.window.load(SeqCst), 0);
    });
}

#[test]
#[should_panic(expected = "the value is gone")]
fn a_thread_that_panics_while_it_hands_over_leaves_no_wrong_value() {
    loom::model(|| {
        let tensor = Tensor::new();
        drop(tensor.cell.evict());
        tensor.use_it();
    });
}
