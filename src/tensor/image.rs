//! What views are in a lazy backend's stream.

use std::sync::{Arc, Mutex};

use burn_backend::tensor::FloatTensor;

use crate::lock::lock;
use crate::store::PackedStore;

/// What a view is in a lazy backend's stream, until the tensor that it is a view of goes to rest.
pub(crate) struct Image<B: PackedStore>(Mutex<Seen<B>>);

enum Seen<B: PackedStore> {
    Here(FloatTensor<B>),
    /// Given up with the tensor that it is a view of.
    Leaving(B::Leaving),
    Gone,
}

impl<B: PackedStore> Image<B> {
    pub(super) fn new(tensor: FloatTensor<B>) -> Self {
        Self(Mutex::new(Seen::Here(tensor)))
    }

    /// A handle for a use by this thread, the only one if nobody else has the view. One that was given up and has not left the
    /// stream yet is had back: the view would else be done a second time there, which plain Burn does not.
    pub(crate) fn used(self: Arc<Self>) -> Option<FloatTensor<B>> {
        self.stay();
        let mut seen = lock(&self.0);
        match std::mem::replace(&mut *seen, Seen::Gone) {
            Seen::Here(tensor) if B::packs_here(&tensor) => {
                if Arc::strong_count(&self) > 1 {
                    *seen = Seen::Here(tensor.clone());
                }
                Some(tensor)
            }
            other => {
                *seen = other;
                None
            }
        }
    }

    /// Has it back if it was given up and has not left the stream yet. Returns whether it is there.
    pub(super) fn stay(&self) -> bool {
        let mut seen = lock(&self.0);
        if let Seen::Leaving(leaving) = &*seen {
            *seen = B::stay(leaving).map_or(Seen::Gone, Seen::Here);
        }
        matches!(*seen, Seen::Here(_))
    }

    /// Gives it up, if this thread's stream has it. Returns whether it can be had still, or again.
    pub(super) fn discard(&self, batch: &mut B::Batch) -> bool {
        let mut seen = lock(&self.0);
        *seen = match std::mem::replace(&mut *seen, Seen::Gone) {
            Seen::Here(tensor) if B::packs_here(&tensor) => {
                Seen::Leaving(B::discard(batch, tensor))
            }
            other => other,
        };
        !matches!(*seen, Seen::Gone)
    }
}
