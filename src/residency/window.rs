//! The hot window: who became dense, or was used, when.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use crate::store::PackedStore;
use crate::tensor::{Held, Storage};

/// The order in which storages leave the window: least recently used first.
///
/// A storage that is used again gets a new ticket and a new entry; its older entries are stale.
pub(crate) struct Window<B: PackedStore> {
    entries: VecDeque<Entry<B>>,
    next_ticket: u64,
    /// Entries after the last clean-up, which set how many more may gather before the next.
    kept: usize,
}

struct Entry<B: PackedStore> {
    ticket: u64,
    /// The ticket that the storage has now.
    current: Arc<AtomicU64>,
    storage: Weak<Storage<B>>,
}

impl<B: PackedStore> Entry<B> {
    /// Whether this is the last entry of a storage that lives.
    fn is_valid(&self) -> bool {
        self.current.load(Relaxed) == self.ticket && self.storage.strong_count() > 0
    }
}

impl<B: PackedStore> Default for Window<B> {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            next_ticket: 1,
            kept: 0,
        }
    }
}

impl<B: PackedStore> Window<B> {
    /// Puts a storage at the young end.
    pub(crate) fn push(&mut self, storage: &Arc<Storage<B>>) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        storage.ticket.store(ticket, Relaxed);
        self.entries.push_back(Entry {
            ticket,
            current: storage.ticket.clone(),
            storage: Arc::downgrade(storage),
        });
        if self.entries.len() > 2 * self.kept + 1024 {
            self.entries.retain(Entry::is_valid);
            self.kept = self.entries.len();
        }
    }

    /// Takes the least recently used storages out of the window until they make up for `bytes`: a decoded copy by all of
    /// its bytes, a tensor that has to be packed by a share `freed` of them; but none beyond `at_most` dense bytes.
    ///
    /// All storages that were looked at are returned, also those that hold nothing dense: the last owner of one may be the
    /// list, and a storage must not be dropped while the window is locked.
    pub(crate) fn oldest(&mut self, bytes: u64, freed: f64, at_most: u64) -> Vec<Arc<Storage<B>>> {
        let mut taken = Vec::new();
        let (mut made_up, mut dense) = (0.0, 0);
        while made_up < bytes as f64
            && dense < at_most
            && let Some(entry) = self.entries.pop_front()
        {
            if !entry.is_valid() {
                continue;
            }
            let Some(storage) = entry.storage.upgrade() else {
                continue;
            };
            let share = match storage.held() {
                Held::Dense => freed,
                Held::Copy => 1.0,
                Held::Packed => 0.0,
            };
            if share > 0.0 {
                made_up += share * storage.bytes() as f64;
                dense += storage.bytes();
            }
            taken.push(storage);
        }
        taken
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn_backend::{DType, TensorMetadata};
    use burn_flex::{Flex, FlexDevice, FlexTensor};

    use super::*;
    use crate::residency::Residency;

    #[test]
    fn uses_of_a_tensor_that_lives_long_do_not_gather() {
        let residency = Residency::<Flex>::of(&FlexDevice);
        let weight = FlexTensor::zeros([128, 256].into(), DType::BF16);
        assert_eq!(weight.shape().num_elements(), 32_768);
        let weight = Arc::new(Storage::new(weight, FlexDevice, residency));
        let mut window = Window::default();
        for _ in 0..100_000 {
            window.push(&weight);
        }
        assert!(window.entries.len() <= 2048, "{}", window.entries.len());
        assert_eq!(window.oldest(1, 1.0, u64::MAX).len(), 1, "it is there once");
        assert!(window.oldest(1, 1.0, u64::MAX).is_empty());
    }
}
