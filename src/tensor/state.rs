//! The forms that one tensor can be in, and every change between them.
//!
//! The lock is held only to look at the form or to change it, never while a backend encodes or decodes: what a backend does
//! then can ask for this very tensor. Only a [`HandOver`] keeps it longer, for a lazy backend that queues an encode.
//!
//! Nothing here knows Burn. `models/` runs this file on all schedules of a few threads, with loom in place of
//! [`sync`](super::sync).

use super::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the forms are made of.
pub(crate) trait Forms {
    /// The tensor.
    type Dense: Clone;
    /// The tensor, out of a lazy backend's stream.
    type Lifted;
    /// What it is kept as at rest.
    type Rest: Rest;
    /// A dense copy beside that.
    type Copy: Clone;
    /// Who counts dense and derived tensors.
    type Books: Books;
}

/// How a tensor rests.
pub(crate) trait Rest {
    /// Whether it is not stored, but computed again from others.
    fn is_derived(&self) -> bool;
}

/// Counts the tensor. Told of each change while the state is locked.
pub(crate) trait Books {
    /// There is a dense tensor from now on.
    fn enter_window(&self);
    /// There is none any more.
    fn leave_window(&self);
    /// It is computed again from now on.
    fn enter_derived(&self);
    /// It is gone, or stored.
    fn leave_derived(&self);
}

/// The form that a tensor is in, and its lock.
pub(crate) struct Cell<F: Forms> {
    books: F::Books,
    state: Mutex<State<F>>,
}

/// The forms a tensor can be in. Those with a dense tensor count into the hot window.
pub(crate) enum State<F: Forms> {
    Dense(F::Dense),
    /// Dense, and out of a lazy backend's stream.
    Lifted(Arc<F::Lifted>),
    Resting(Arc<F::Rest>),
    /// At rest, and a clean copy that can be dropped at any time.
    Copied(Arc<F::Rest>, F::Copy),
    /// Moved out by the last owner, who drops the storage next, or handed over by a thread that panicked.
    Taken,
}

/// What a storage holds, for those who decide what to evict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// A dense tensor that has no packed form.
    Dense,
    /// A dense copy of one at rest.
    Copy,
    /// No dense tensor.
    Nothing,
}

/// What came of an [eviction](Cell::evict).
pub(crate) enum Evicted<'a, F: Forms> {
    /// There was nothing to pack; a decoded copy is gone.
    Nothing,
    /// The dense tensor, to be packed.
    Dense(HandOver<'a, F>, F::Dense),
    /// The same, lifted.
    Lifted(HandOver<'a, F>, Arc<F::Lifted>),
}

impl<F: Forms> Cell<F> {
    /// A tensor in this form.
    pub(crate) fn new(state: State<F>, books: F::Books) -> Self {
        if state.held() != Held::Nothing {
            books.enter_window();
        }
        let state = Mutex::new(state);
        Self { books, state }
    }

    /// The state, whole even if its lock is poisoned: it is changed in one assignment.
    fn lock(&self) -> MutexGuard<'_, State<F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the form. What is done with it must not ask for this tensor.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&State<F>) -> T) -> T {
        look(&self.lock())
    }

    /// What is held now.
    pub(crate) fn held(&self) -> Held {
        self.lock().held()
    }

    /// A handle of the form, without its lock.
    pub(crate) fn look(&self) -> State<F> {
        self.lock().clone()
    }

    /// The form, moved out by the last owner.
    pub(crate) fn take(&self) -> State<F> {
        let state = std::mem::replace(&mut *self.lock(), State::Taken);
        self.uncount(&state);
        state
    }

    /// Puts a dense copy beside the form at rest, if no other thread has done so meanwhile.
    pub(crate) fn keep_copy(&self, copy: &F::Copy) {
        let mut state = self.lock();
        if let State::Resting(rest) = &*state {
            *state = State::Copied(rest.clone(), copy.clone());
            self.books.enter_window();
        }
    }

    /// Gives up the dense tensor: a decoded copy at once, one without a form at rest by handing it over to be packed.
    pub(crate) fn evict(&self) -> Evicted<'_, F> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Dense(tensor) => Evicted::Dense(HandOver { cell: self, state }, tensor),
            State::Lifted(tensor) => Evicted::Lifted(HandOver { cell: self, state }, tensor),
            State::Copied(rest, copy) => {
                *state = State::Resting(rest);
                self.books.leave_window();
                // The copy is dropped after the lock is released: dropping calls the backend.
                drop(state);
                drop(copy);
                Evicted::Nothing
            }
            other => {
                *state = other;
                Evicted::Nothing
            }
        }
    }

    /// Gives up the dense tensor for what `rest` makes of it, if it is there, was not lifted, and is `derivable`. Returns
    /// whether it was.
    pub(crate) fn derive(
        &self,
        derivable: impl FnOnce(&F::Dense) -> bool,
        rest: impl FnOnce(F::Dense) -> F::Rest,
    ) -> bool {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            // One that was lifted is an operand itself.
            State::Dense(tensor) if derivable(&tensor) => {
                *state = State::Resting(Arc::new(rest(tensor)));
                self.books.leave_window();
                self.books.enter_derived();
                true
            }
            other => {
                *state = other;
                false
            }
        }
    }

    /// Takes the dense tensor out of a lazy backend's stream. Returns whether it was there.
    pub(crate) fn lift(&self, lift: impl FnOnce(F::Dense) -> F::Lifted) -> bool {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Dense(tensor) => {
                *state = State::Lifted(Arc::new(lift(tensor)));
                true
            }
            other => {
                *state = other;
                false
            }
        }
    }

    /// Makes a tensor dense again that was to rest, or to be lifted, and has not left a lazy backend's stream yet. Nobody else
    /// may be about to wait for it. Returns whether it did.
    pub(crate) fn reclaim(
        &self,
        rest: impl FnOnce(&F::Rest) -> Option<F::Dense>,
        lifted: impl FnOnce(&F::Lifted) -> Option<F::Dense>,
    ) -> bool {
        let mut state = self.lock();
        let tensor = match &*state {
            State::Resting(form) if Arc::strong_count(form) == 1 => rest(form),
            State::Lifted(tensor) if Arc::strong_count(tensor) == 1 => lifted(tensor),
            _ => None,
        };
        let Some(tensor) = tensor else {
            return false;
        };
        let was = std::mem::replace(&mut *state, State::Dense(tensor));
        if was.held() == Held::Nothing {
            self.books.enter_window();
        }
        if was.is_derived() {
            self.books.leave_derived();
        }
        drop(state);
        // Dropping what it was to be derived from calls the backend.
        drop(was);
        true
    }

    /// Replaces the dense tensor by its packed form, if it is still there.
    pub(crate) fn replace(&self, rest: F::Rest) {
        let mut state = self.lock();
        if state.held() == Held::Dense {
            let rest = State::Resting(Arc::new(rest));
            let dense = std::mem::replace(&mut *state, rest);
            self.books.leave_window();
            drop(state);
            drop(dense);
        }
    }

    /// Takes the share of a form that ends out of the books.
    fn uncount(&self, state: &State<F>) {
        if state.held() != Held::Nothing {
            self.books.leave_window();
        }
        if state.is_derived() {
            self.books.leave_derived();
        }
    }
}

/// A tensor that was handed over to be packed. It is locked until that is done.
pub(crate) struct HandOver<'a, F: Forms> {
    cell: &'a Cell<F>,
    state: MutexGuard<'a, State<F>>,
}

impl<'a, F: Forms> HandOver<'a, F> {
    /// The packed form is there.
    pub(crate) fn finish(&mut self, rest: F::Rest) {
        *self.state = State::Resting(Arc::new(rest));
        self.cell.books.leave_window();
    }

    /// Unlocks the tensor, of which a handle is kept until [`replace`](Cell::replace).
    pub(crate) fn keep(mut self, tensor: F::Dense) -> &'a Cell<F> {
        *self.state = State::Dense(tensor);
        self.cell
    }
}

impl<F: Forms> State<F> {
    fn held(&self) -> Held {
        match self {
            Self::Dense(_) | Self::Lifted(_) => Held::Dense,
            Self::Copied(..) => Held::Copy,
            Self::Resting(_) | Self::Taken => Held::Nothing,
        }
    }

    /// What it is kept as, if it rests.
    pub(crate) fn rest(&self) -> Option<&Arc<F::Rest>> {
        match self {
            Self::Resting(rest) | Self::Copied(rest, _) => Some(rest),
            Self::Dense(_) | Self::Lifted(_) | Self::Taken => None,
        }
    }

    fn is_derived(&self) -> bool {
        self.rest().is_some_and(|rest| rest.is_derived())
    }
}

impl<F: Forms> Clone for State<F> {
    fn clone(&self) -> Self {
        match self {
            Self::Dense(tensor) => Self::Dense(tensor.clone()),
            Self::Lifted(tensor) => Self::Lifted(tensor.clone()),
            Self::Resting(rest) => Self::Resting(rest.clone()),
            Self::Copied(rest, copy) => Self::Copied(rest.clone(), copy.clone()),
            Self::Taken => Self::Taken,
        }
    }
}

impl<F: Forms> Drop for Cell<F> {
    fn drop(&mut self) {
        self.uncount(&self.lock());
    }
}
