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
    /// Those that are lifted and released.
    pub(super) batch: B::Batch,
    /// Those that are lifted. They cannot be had before the batch is submitted.
    lifted: Vec<Arc<Storage<B>>>,
    /// Those to be packed, each once. They outlive the hand-overs that lock them.
    pub(super) storages: Vec<Arc<Storage<B>>>,
}

impl<B: PackedStore> Leaving<B> {
    pub(super) fn new(excess: Excess) -> Self {
        Self {
            excess,
            made_up: 0.0,
            dense: 0,
            batch: B::Batch::default(),
            lifted: Vec::new(),
            storages: Vec::new(),
        }
    }

    pub(super) fn goes_on(&self) -> bool {
        let more = self.made_up < self.excess.bytes as f64 || self.dense < self.excess.dense;
        more && self.dense < self.excess.at_most
    }

    /// The bytes of the excess that what leaves does not make up for.
    pub(super) fn short(&self) -> u64 {
        (self.excess.bytes as f64 - self.made_up).max(0.0) as u64
    }

    /// Lets a storage go that can be computed again. Returns whether it can.
    ///
    /// Dense operands are lifted: they will not be derived themselves, so that no chain grows longer than it is now; and with
    /// a lazy backend asking for them through the stream would cut its plans in another place than plain Burn does.
    pub(super) fn derive(&mut self, storage: &Arc<Storage<B>>) -> bool {
        if storage.held() != Held::Dense || !storage.is_here() {
            return false;
        }
        let Some(derivation) = storage.derivation() else {
            return false;
        };
        let dense = |operand: &&Arc<Storage<B>>| operand.held() == Held::Dense;
        if !derivation
            .operands()
            .filter(dense)
            .all(|operand| operand.is_here())
        {
            return false;
        }
        // Before the result goes, or another thread could ask for it in between.
        for operand in derivation.operands() {
            // One that is about to be packed will rest as well.
            if !holds(&self.storages, operand) && operand.lift(&mut self.batch) {
                self.lifted.push(operand.clone());
            }
        }
        if !storage.derive(&mut self.batch, derivation) {
            return false;
        }
        self.made_up += storage.bytes() as f64;
        self.dense += storage.bytes();
        true
    }

    /// Whether the storage was lifted just now.
    pub(super) fn has_lifted(&self, storage: &Arc<Storage<B>>) -> bool {
        holds(&self.lifted, storage)
    }

    /// Lets a storage be packed, or a copy be dropped.
    pub(super) fn pack(&mut self, storage: Arc<Storage<B>>) {
        if holds(&self.storages, &storage) {
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

fn holds<B: PackedStore>(storages: &[Arc<Storage<B>>], storage: &Arc<Storage<B>>) -> bool {
    storages.iter().any(|other| Arc::ptr_eq(other, storage))
}
