//! Which tensors go to rest, and how.

use std::sync::Arc;

use super::budget::Excess;
use crate::store::PackedStore;
use crate::tensor::{Held, Storage};

/// What leaves the window in one go.
pub(super) struct Leaving<B: PackedStore> {
    excess: Excess,
    /// The bytes that are made up for.
    made_up: f64,
    /// The dense bytes that leave.
    dense: u64,
    /// Those to be packed, each once. They outlive the hand-overs that lock them.
    pub(super) storages: Vec<Arc<Storage<B>>>,
}

impl<B: PackedStore> Leaving<B> {
    pub(super) fn new(excess: Excess) -> Self {
        Self {
            excess,
            made_up: 0.0,
            dense: 0,
            storages: Vec::new(),
        }
    }

    pub(super) fn goes_on(&self) -> bool {
        self.made_up < self.excess.bytes as f64 && self.dense < self.excess.at_most
    }

    /// Lets a storage go that can be computed again. Returns whether it can.
    ///
    /// With a lazy backend, dense operands are lifted out of the stream: asking for them through it would cut its plans in
    /// another place than plain Burn does.
    pub(super) fn derive(&mut self, storage: &Arc<Storage<B>>) -> bool {
        let Some(derivation) = storage.derivation() else {
            return false;
        };
        let dense = |operand: &&Arc<Storage<B>>| B::LAZY && operand.held() == Held::Dense;
        let operands: Vec<_> = derivation.operands().filter(dense).cloned().collect();
        if !operands.iter().all(|operand| operand.evictable()) || !storage.derive(derivation) {
            return false;
        }
        operands.iter().for_each(|operand| operand.lift());
        self.made_up += storage.bytes() as f64;
        self.dense += storage.bytes();
        true
    }

    pub(super) fn pack(&mut self, storage: Arc<Storage<B>>) {
        if self
            .storages
            .iter()
            .any(|known| Arc::ptr_eq(known, &storage))
        {
            return;
        }
        let share = match storage.held() {
            Held::Nothing => return,
            Held::Copy => 1.0,
            Held::Dense => self.excess.freed,
        };
        self.made_up += share * storage.bytes() as f64;
        self.dense += storage.bytes();
        self.storages.push(storage);
    }
}
