//! What is stored once, however many views look at it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn_backend::tensor::{Device, FloatTensor};
use burn_backend::{Shape, TensorMetadata};

use crate::residency::Residency;
use crate::store::PackedStore;

/// After so many evictions without a use in between, a tensor of another thread's stream is packed all the same.
const MOST_REFUSALS: u32 = 8;

/// One BF16 tensor under the residency's management: dense, packed, or packed with a decoded copy.
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
    /// How often it was to leave the window and another thread's stream was in the way, since its last use.
    refusals: AtomicU32,
    state: Mutex<State<B>>,
}

/// The forms a tensor can be in. Those with a dense tensor count into the hot window.
enum State<B: PackedStore> {
    Dense(FloatTensor<B>),
    Packed(Arc<B::Packed>),
    /// The packed form, and a clean copy that can be dropped at any time.
    Copied(Arc<B::Packed>, FloatTensor<B>),
    /// Moved out by the last owner, who drops the storage next.
    Taken,
}

/// What a storage holds, for those who decide what to evict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// A dense tensor that has no packed form.
    Dense,
    /// A decoded copy of a packed one.
    Copy,
    /// No dense tensor.
    Packed,
}

impl<B: PackedStore> Storage<B> {
    /// Takes a dense tensor under management and counts it; admitting it to the window is the caller's part.
    pub(crate) fn new(
        tensor: FloatTensor<B>,
        device: Device<B>,
        residency: &'static Residency<B>,
    ) -> Self {
        let storage = Self {
            shape: tensor.shape(),
            device,
            residency,
            ticket: Arc::default(),
            refusals: AtomicU32::new(0),
            state: Mutex::new(State::Dense(tensor)),
        };
        let stats = storage.residency.stats();
        stats.logical.add(storage.bytes());
        stats.window_add(storage.bytes());
        storage
    }

    /// Logical bytes.
    pub(crate) fn bytes(&self) -> u64 {
        2 * self.shape.num_elements() as u64
    }

    /// What is held now.
    pub(crate) fn held(&self) -> Held {
        self.lock().held()
    }

    /// The dense tensor, moved out: B may then work in place, as it would have without us.
    pub(crate) fn into_dense(self) -> FloatTensor<B> {
        let state = std::mem::replace(&mut *self.lock(), State::Taken);
        if state.held() != Held::Packed {
            self.residency.stats().window_sub(self.bytes());
        }
        match state {
            State::Dense(tensor) => tensor,
            State::Copied(packed, tensor) => {
                B::check(&packed);
                tensor
            }
            State::Packed(packed) => self.decode(&packed),
            State::Taken => unreachable!("only the last owner takes, and it drops the storage"),
        }
    }

    /// A handle of the dense tensor, decoded if need be. A decoded copy stays in the hot window.
    pub(crate) fn to_dense(self: &Arc<Self>) -> FloatTensor<B> {
        self.refusals.store(0, Relaxed);
        let packed = match &*self.lock() {
            State::Dense(tensor) => Ok(tensor.clone()),
            State::Copied(packed, tensor) => {
                B::check(packed);
                Ok(tensor.clone())
            }
            State::Packed(packed) => Err(packed.clone()),
            State::Taken => {
                panic!("queueing an encode panicked before, and the tensor went with it")
            }
        };
        let tensor = match packed {
            Ok(tensor) => tensor,
            // Held dense inside the packed form, and counted there.
            Err(packed) if B::is_dense(&packed) => return B::unpack(&packed),
            Err(packed) => {
                let tensor = self.decode(&packed);
                self.keep_copy(&tensor);
                tensor
            }
        };
        self.residency.admit(self);
        tensor
    }

    /// Whether this thread may make the storage give up what it holds dense. One that another thread's stream works on is
    /// let alone, unless it has been found unused so often that this thread seems to be gone.
    pub(crate) fn evictable(&self) -> bool {
        let here = match &*self.lock() {
            State::Dense(tensor) | State::Copied(_, tensor) => B::packs_here(tensor),
            State::Packed(_) | State::Taken => false,
        };
        here || self.refusals.fetch_add(1, Relaxed) >= MOST_REFUSALS
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
            State::Copied(packed, copy) => {
                *state = State::Packed(packed);
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

    /// Puts a decoded copy beside the packed form, if no other thread has done so meanwhile.
    fn keep_copy(&self, copy: &FloatTensor<B>) {
        let mut state = self.lock();
        if let State::Packed(packed) = &*state {
            *state = State::Copied(packed.clone(), copy.clone());
            self.residency.stats().window_add(self.bytes());
        }
    }

    fn decode(&self, packed: &B::Packed) -> FloatTensor<B> {
        let _span = tracing::trace_span!("lct_decode", bytes = self.bytes()).entered();
        if !B::is_dense(packed) {
            self.residency.stats().on_decode(self.bytes());
        }
        B::unpack(packed)
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
    pub(crate) fn finish(mut self, packed: B::Packed) {
        *self.state = State::Packed(Arc::new(packed));
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
            let dense = std::mem::replace(&mut *state, State::Packed(Arc::new(packed)));
            self.residency.stats().window_sub(self.bytes());
            drop(state);
            drop(dense);
        }
    }
}

impl<B: PackedStore> State<B> {
    fn held(&self) -> Held {
        match self {
            Self::Dense(_) => Held::Dense,
            Self::Copied(..) => Held::Copy,
            Self::Packed(_) | Self::Taken => Held::Packed,
        }
    }
}

impl<B: PackedStore> Drop for Storage<B> {
    fn drop(&mut self) {
        let stats = self.residency.stats();
        stats.logical.sub(self.bytes());
        if self.held() != Held::Packed {
            stats.window_sub(self.bytes());
        }
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
