//! What is stored once, however many views look at it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn_backend::tensor::{Device, FloatTensor};
use burn_backend::{Shape, TensorMetadata};

use super::recipe::{Derivation, Recipe};
use crate::residency::Residency;
use crate::store::PackedStore;

/// After so many evictions without a use in between, a tensor of another thread's stream is packed all the same.
const MOST_REFUSALS: u32 = 8;

/// One BF16 tensor under the residency's management: dense, at rest (packed, or to be derived from others), or at rest with
/// a dense copy beside it.
///
/// Shape and device stand outside of the lock, so that asking for them never waits. The lock is held only to look at
/// the state or to change it, never while the backend encodes or decodes: what a backend does then (Flex's codec runs on
/// the threads that the caller may be one of) can ask for this very tensor. A lazy backend, which only queues an encode,
/// does that under the lock.
pub(crate) struct Storage<B: PackedStore> {
    pub(crate) shape: Shape,
    pub(crate) device: Device<B>,
    pub(crate) residency: &'static Residency<B>,
    /// The place of this storage in the hot window: an entry with an older ticket is stale.
    pub(crate) ticket: Arc<AtomicU64>,
    /// The bytes that had entered the hot window when this storage last did.
    pub(crate) entered: Arc<AtomicU64>,
    /// How it was computed, if that is cheap to do again.
    recipe: Option<Recipe<B>>,
    /// How often it was to leave the window and another thread's stream was in the way, since its last use.
    refusals: AtomicU32,
    state: Mutex<State<B>>,
}

/// The forms a tensor can be in. Those with a dense tensor count into the hot window.
enum State<B: PackedStore> {
    Dense(FloatTensor<B>),
    /// Dense, and out of a lazy backend's stream.
    Lifted(Arc<B::Lifted>),
    Resting(Arc<Rest<B>>),
    /// At rest, and a clean copy that can be dropped at any time.
    Copied(Arc<Rest<B>>, FloatTensor<B::Eager>),
    /// Moved out by the last owner, who drops the storage next.
    Taken,
}

/// A state as it was found, without its lock.
enum Found<B: PackedStore> {
    Dense(FloatTensor<B>),
    Lifted(Arc<B::Lifted>),
    Copied(Arc<Rest<B>>, FloatTensor<B::Eager>),
    Resting(Arc<Rest<B>>),
}

/// How a tensor rests.
enum Rest<B: PackedStore> {
    Packed(B::Packed),
    /// Not stored at all: computed again from others, and laid out as it was.
    Derived(Derivation<B>, B::Layout),
}

impl<B: PackedStore> Rest<B> {
    /// Whether the dense tensor is there all the same, and only another handle is needed.
    fn is_dense(&self) -> bool {
        matches!(self, Self::Packed(packed) if B::is_dense(packed))
    }

    /// Panics if the values are known to be lost.
    fn check(&self) {
        match self {
            Self::Packed(packed) => B::check(packed),
            Self::Derived(..) => {}
        }
    }
}

/// A packed form that is kept alive.
pub(crate) struct PackedRest<B: PackedStore>(Arc<Rest<B>>);

impl<B: PackedStore> PackedRest<B> {
    pub(crate) fn get(&self) -> &B::Packed {
        match &*self.0 {
            Rest::Packed(packed) => packed,
            Rest::Derived(..) => unreachable!("only a packed form is kept in here"),
        }
    }
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

impl<B: PackedStore> Storage<B> {
    /// Takes a dense tensor under management and counts it; admitting it to the window is the caller's part.
    pub(crate) fn new(
        tensor: FloatTensor<B>,
        device: Device<B>,
        residency: &'static Residency<B>,
        recipe: Option<Recipe<B>>,
    ) -> Self {
        let storage = Self {
            shape: tensor.shape(),
            device,
            residency,
            ticket: Arc::default(),
            entered: Arc::default(),
            recipe,
            refusals: AtomicU32::new(0),
            state: Mutex::new(State::Dense(tensor)),
        };
        let stats = storage.residency.stats();
        stats.logical.add(storage.bytes());
        stats.on_enter(storage.bytes());
        stats.window_add(storage.bytes());
        storage
    }

    /// A tensor that was made in packed form; it is not in the hot window.
    pub(crate) fn at_rest(
        packed: B::Packed,
        shape: Shape,
        device: Device<B>,
        residency: &'static Residency<B>,
    ) -> Self {
        let rest = Arc::new(Rest::Packed(packed));
        let storage = Self {
            shape,
            device,
            residency,
            ticket: Arc::default(),
            entered: Arc::default(),
            recipe: None,
            refusals: AtomicU32::new(0),
            state: Mutex::new(State::Resting(rest)),
        };
        let stats = storage.residency.stats();
        stats.logical.add(storage.bytes());
        stats.on_enter(storage.bytes());
        storage
    }

    /// The packed form, if there is one that is not held dense.
    pub(crate) fn packed(&self) -> Option<PackedRest<B>> {
        match &*self.lock() {
            State::Resting(rest) | State::Copied(rest, _) => match &**rest {
                Rest::Packed(packed) if !B::is_dense(packed) => Some(PackedRest(rest.clone())),
                Rest::Packed(_) | Rest::Derived(..) => None,
            },
            State::Dense(_) | State::Lifted(_) | State::Taken => None,
        }
    }

    /// Logical bytes.
    pub(crate) fn bytes(&self) -> u64 {
        2 * self.shape.num_elements() as u64
    }

    /// Whether a reshape to `shape` has to copy, because the backend leaves gaps between the rows of such a tensor.
    pub(crate) fn reshape_copies(&self, shape: &Shape) -> bool {
        let row_len = self.shape.as_slice().last().copied().unwrap_or(1);
        let dims = |shape: &Shape| -> Vec<usize> {
            let dims = shape.as_slice().iter().copied();
            dims.filter(|&dim| dim != 1).collect()
        };
        self.shape.num_elements() > row_len
            && dims(&self.shape) != dims(shape)
            && B::pads_rows(&self.device, row_len)
    }

    /// What is held now.
    pub(crate) fn held(&self) -> Held {
        self.lock().held()
    }

    /// The operations that have to be done again to get the values: none if they are stored.
    pub(crate) fn steps(&self) -> u32 {
        match &*self.lock() {
            State::Resting(rest) | State::Copied(rest, _) => match &**rest {
                Rest::Derived(derivation, _) => derivation.steps(),
                Rest::Packed(_) => 0,
            },
            State::Dense(_) | State::Lifted(_) | State::Taken => 0,
        }
    }

    /// Whether a recipe says how to get the values again, if the operands live.
    pub(crate) fn has_recipe(&self) -> bool {
        self.recipe.is_some()
    }

    /// What the values can be computed from now, if they may be.
    pub(crate) fn derivation(&self) -> Option<Derivation<B>> {
        self.recipe.as_ref()?.derivation(self.bytes())
    }

    /// The dense tensor, moved out: B may then work in place, as it would have without us.
    pub(crate) fn into_dense(self) -> FloatTensor<B> {
        let state = std::mem::replace(&mut *self.lock(), State::Taken);
        self.uncount(&state);
        match state {
            State::Dense(tensor) => tensor,
            State::Lifted(tensor) => B::from_eager(B::lifted(&tensor)),
            State::Copied(rest, copy) => {
                rest.check();
                B::from_eager(copy)
            }
            State::Resting(rest) => B::from_eager(self.wake(&rest)),
            State::Taken => unreachable!("only the last owner takes, and it drops the storage"),
        }
    }

    /// Takes the share of a state that ends out of the counters.
    fn uncount(&self, state: &State<B>) {
        let stats = self.residency.stats();
        if state.held() != Held::Nothing {
            stats.window_sub(self.bytes());
        }
        if state.is_derived() {
            stats.derived.sub(self.bytes());
        }
    }

    /// A handle of the dense tensor, decoded or computed again if need be. Such a copy stays in the hot window.
    pub(crate) fn to_dense(self: &Arc<Self>) -> FloatTensor<B> {
        self.look(FloatTensor::<B>::clone, B::from_eager)
    }

    /// The dense tensor as the backend's eager part has it: the same as [`to_dense`](Self::to_dense) but for one thing. A
    /// tensor that a lazy backend has not computed yet is computed now.
    pub(crate) fn to_eager(self: &Arc<Self>) -> FloatTensor<B::Eager> {
        self.look(|tensor| B::to_eager(tensor.clone()), |copy| copy)
    }

    fn look<T>(
        self: &Arc<Self>,
        dense: impl FnOnce(&FloatTensor<B>) -> T,
        copied: impl FnOnce(FloatTensor<B::Eager>) -> T,
    ) -> T {
        self.refusals.store(0, Relaxed);
        let found = match &*self.lock() {
            State::Dense(tensor) => Found::Dense(tensor.clone()),
            State::Lifted(tensor) => Found::Lifted(tensor.clone()),
            State::Copied(rest, copy) => Found::Copied(rest.clone(), copy.clone()),
            State::Resting(rest) => Found::Resting(rest.clone()),
            State::Taken => {
                panic!("queueing an encode panicked before, and the tensor went with it")
            }
        };
        // The lock is released: what the backend does now may ask for this very storage.
        let tensor = match found {
            Found::Dense(tensor) => dense(&tensor),
            Found::Lifted(tensor) => copied(B::lifted(&tensor)),
            Found::Copied(rest, copy) => {
                rest.check();
                copied(copy)
            }
            Found::Resting(rest) => {
                let copy = self.wake(&rest);
                // Held dense in the packed form, and counted there.
                if rest.is_dense() {
                    return copied(copy);
                }
                self.keep_copy(&copy);
                copied(copy)
            }
        };
        self.residency.admit(self);
        tensor
    }

    /// Whether the tensor is this thread's to put to rest: another thread's stream does not work on it.
    pub(crate) fn is_here(&self) -> bool {
        match &*self.lock() {
            State::Dense(tensor) => B::packs_here(tensor),
            State::Lifted(_) | State::Copied(..) => true,
            State::Resting(_) | State::Taken => false,
        }
    }

    /// Whether this thread may make the storage give up what it holds dense. One that another thread's stream works on is
    /// let alone, unless it has been found unused so often that this thread seems to be gone.
    pub(crate) fn evictable(&self) -> bool {
        self.is_here() || self.refusals.fetch_add(1, Relaxed) >= MOST_REFUSALS
    }

    /// Makes the storage give up its dense tensor: a decoded copy at once, one without a packed form by handing it over to be
    /// packed.
    pub(crate) fn evict(&self) -> Evicted<'_, B> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Dense(tensor) => {
                let storage = self;
                Evicted::HandedOver(HandOver { storage, state }, tensor)
            }
            State::Lifted(tensor) => {
                let tensor = B::from_eager(B::lifted(&tensor));
                let storage = self;
                Evicted::HandedOver(HandOver { storage, state }, tensor)
            }
            State::Copied(rest, copy) => {
                *state = State::Resting(rest);
                self.residency.stats().window_sub(self.bytes());
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

    /// Gives up the dense tensor, which can be computed again. Returns whether it did.
    pub(crate) fn derive(&self, batch: &mut B::Batch, derivation: Derivation<B>) -> bool {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            // One that was lifted is an operand itself.
            State::Dense(tensor) if B::derivable(&tensor) => {
                let layout = B::release(batch, tensor);
                *state = State::Resting(Arc::new(Rest::Derived(derivation, layout)));
                let stats = self.residency.stats();
                stats.window_sub(self.bytes());
                stats.derived.add(self.bytes());
                true
            }
            other => {
                *state = other;
                false
            }
        }
    }

    /// Takes the dense tensor out of a lazy backend's stream. Returns whether it was there.
    pub(crate) fn lift(&self, batch: &mut B::Batch) -> bool {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Dense(tensor) => {
                *state = State::Lifted(Arc::new(B::lift(batch, tensor)));
                true
            }
            other => {
                *state = other;
                false
            }
        }
    }

    /// Puts a dense copy beside the form at rest, if no other thread has done so meanwhile.
    fn keep_copy(&self, copy: &FloatTensor<B::Eager>) {
        let mut state = self.lock();
        if let State::Resting(rest) = &*state {
            *state = State::Copied(rest.clone(), copy.clone());
            self.residency.stats().window_add(self.bytes());
        }
    }

    /// The values of a tensor at rest.
    fn wake(&self, rest: &Rest<B>) -> FloatTensor<B::Eager> {
        match rest {
            Rest::Packed(packed) => {
                let _span = tracing::trace_span!("lct_decode", bytes = self.bytes()).entered();
                if !B::is_dense(packed) {
                    self.residency.stats().on_decode(self.bytes());
                }
                B::unpack(packed)
            }
            Rest::Derived(derivation, layout) => {
                let _span = tracing::trace_span!("lct_derive", bytes = self.bytes()).entered();
                self.residency.stats().on_derive(self.bytes());
                B::lay_out(derivation.run(), layout)
            }
        }
    }

    /// The state, whole even if its lock is poisoned: it is changed in one assignment.
    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What came of an [eviction](Storage::evict).
pub(crate) enum Evicted<'a, B: PackedStore> {
    /// There was nothing to pack; a decoded copy is gone.
    Nothing,
    /// The dense tensor, to be packed.
    HandedOver(HandOver<'a, B>, FloatTensor<B>),
}

/// A storage whose dense tensor was handed over, and that waits, locked, for the packed form.
pub(crate) struct HandOver<'a, B: PackedStore> {
    storage: &'a Storage<B>,
    state: MutexGuard<'a, State<B>>,
}

impl<'a, B: PackedStore> HandOver<'a, B> {
    /// The packed form is there.
    pub(crate) fn finish(&mut self, packed: B::Packed) {
        *self.state = State::Resting(Arc::new(Rest::Packed(packed)));
        let stats = self.storage.residency.stats();
        stats.window_sub(self.storage.bytes());
    }

    /// Unlocks the storage, which keeps a handle of the tensor until [`replace`](Storage::replace).
    pub(crate) fn keep(mut self, tensor: &FloatTensor<B>) -> &'a Storage<B> {
        *self.state = State::Dense(tensor.clone());
        self.storage
    }
}

impl<B: PackedStore> Storage<B> {
    /// Replaces the dense tensor by its packed form.
    pub(crate) fn replace(&self, packed: B::Packed) {
        let mut state = self.lock();
        if state.held() == Held::Dense {
            let rest = State::Resting(Arc::new(Rest::Packed(packed)));
            let dense = std::mem::replace(&mut *state, rest);
            self.residency.stats().window_sub(self.bytes());
            drop(state);
            drop(dense);
        }
    }
}

impl<B: PackedStore> State<B> {
    fn held(&self) -> Held {
        match self {
            Self::Dense(_) | Self::Lifted(_) => Held::Dense,
            Self::Copied(..) => Held::Copy,
            Self::Resting(_) | Self::Taken => Held::Nothing,
        }
    }

    fn is_derived(&self) -> bool {
        match self {
            Self::Resting(rest) | Self::Copied(rest, _) => matches!(**rest, Rest::Derived(..)),
            Self::Dense(_) | Self::Lifted(_) | Self::Taken => false,
        }
    }
}

impl<B: PackedStore> Drop for Storage<B> {
    fn drop(&mut self) {
        self.residency.stats().logical.sub(self.bytes());
        self.uncount(&self.lock());
    }
}

impl<B: PackedStore> std::fmt::Debug for Storage<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Storage")
            .field("shape", &self.shape)
            .field("device", &self.device)
            .field("held", &self.held())
            .field("ticket", &self.ticket.load(Relaxed))
            .finish()
    }
}
