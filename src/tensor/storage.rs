//! What is stored once, however many views look at it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use burn_backend::tensor::{Device, FloatTensor};
use burn_backend::{Shape, TensorMetadata};

use crate::residency::Residency;
use crate::store::PackedStore;

/// One BF16 tensor under the residency's management: dense, packed, or packed with a decoded copy.
///
/// Shape and device stand outside of the lock, so that asking for them never waits for a decode.
pub(crate) struct Storage<B: PackedStore> {
    pub(crate) shape: Shape,
    pub(crate) device: Device<B>,
    pub(crate) residency: &'static Residency<B>,
    /// The place of this storage in the hot window: an entry with an older ticket is stale.
    pub(crate) ticket: AtomicU64,
    state: Mutex<State<B>>,
}

/// The forms a tensor can be in. Those with a dense tensor count into the hot window.
pub(crate) enum State<B: PackedStore> {
    Dense(FloatTensor<B>),
    Packed(B::Packed),
    /// The packed form, and a clean copy that can be dropped at any time.
    Copied(B::Packed, FloatTensor<B>),
    /// Moved out by the last owner, who drops the storage next.
    Taken,
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
            ticket: AtomicU64::new(0),
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

    /// The state's lock. A panic of the backend in another thread leaves a state that is still valid.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state's lock, if nobody holds it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, State<B>>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The dense tensor, moved out: B may then work in place, as it would have without us.
    pub(crate) fn into_dense(self) -> FloatTensor<B> {
        let state = std::mem::replace(&mut *self.lock(), State::Taken);
        if state.is_hot() {
            self.residency.stats().window_sub(self.bytes());
        }
        match state {
            State::Dense(tensor) | State::Copied(_, tensor) => tensor,
            State::Packed(packed) => self.decode(&packed),
            State::Taken => unreachable!("only the last owner takes, and it drops the storage"),
        }
    }

    /// A handle of the dense tensor, decoded if need be. A decoded copy stays in the hot window.
    pub(crate) fn to_dense(self: &Arc<Self>) -> FloatTensor<B> {
        let tensor = {
            let mut state = self.lock();
            if let State::Packed(packed) = &*state {
                // By reference: should the decode panic, the packed form is still there.
                let copy = self.decode(packed);
                state.keep_copy(copy);
                self.residency.stats().window_add(self.bytes());
            }
            match &*state {
                State::Dense(tensor) | State::Copied(_, tensor) => tensor.clone(),
                State::Packed(_) | State::Taken => {
                    unreachable!("a shared storage is never taken, and was just decoded")
                }
            }
        };
        // After the lock is released: admitting may evict, and eviction locks storages.
        self.residency.admit(self);
        tensor
    }

    fn decode(&self, packed: &B::Packed) -> FloatTensor<B> {
        let _span = tracing::trace_span!("lct_decode", bytes = self.bytes()).entered();
        self.residency.stats().on_decode(self.bytes());
        B::unpack(packed)
    }
}

impl<B: PackedStore> State<B> {
    /// Puts a decoded copy beside the packed form.
    fn keep_copy(&mut self, copy: FloatTensor<B>) {
        *self = match std::mem::replace(self, Self::Taken) {
            Self::Packed(packed) => Self::Copied(packed, copy),
            other => other,
        };
    }

    /// Whether a dense tensor is held.
    pub(crate) fn is_hot(&self) -> bool {
        matches!(self, Self::Dense(_) | Self::Copied(..))
    }
}

impl<B: PackedStore> Drop for Storage<B> {
    fn drop(&mut self) {
        let stats = self.residency.stats();
        stats.logical.sub(self.bytes());
        if self.lock().is_hot() {
            stats.window_sub(self.bytes());
        }
    }
}

impl<B: PackedStore> std::fmt::Debug for Storage<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let form = match self.try_lock().as_deref() {
            Some(State::Dense(_)) => "dense",
            Some(State::Packed(_)) => "packed",
            Some(State::Copied(..)) => "packed, with a decoded copy",
            Some(State::Taken) => "taken",
            None => "in work",
        };
        f.debug_struct("Storage")
            .field("shape", &self.shape)
            .field("device", &self.device)
            .field("form", &form)
            .field("ticket", &self.ticket.load(Relaxed))
            .finish()
    }
}
