//! The hot window: who became dense, or was used, when.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use crate::store::PackedStore;
use crate::tensor::Storage;

/// The order in which storages leave the window: least recently used first.
///
/// A storage that is used again gets a new ticket and a new entry; its older entries are stale.
pub(crate) struct Window<B: PackedStore> {
    entries: VecDeque<Entry<B>>,
    next_ticket: u64,
    /// Entries after the last clean-up, which set how many more may gather before the next.
    kept: usize,
    /// The bytes that have entered so far.
    entered: u64,
    /// The storages that can be computed again, oldest first.
    cheap: VecDeque<CheapEntry<B>>,
}

struct Entry<B: PackedStore> {
    ticket: u64,
    /// The ticket that the storage has now.
    current: Arc<AtomicU64>,
    /// The bytes that had entered when the storage last did.
    entered: u64,
    storage: Weak<Storage<B>>,
}

struct CheapEntry<B: PackedStore> {
    /// The bytes that had entered when the storage last did.
    entered: Arc<AtomicU64>,
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
            entered: 0,
            cheap: VecDeque::new(),
        }
    }
}

impl<B: PackedStore> Window<B> {
    /// Puts a storage at the young end.
    pub(crate) fn push(&mut self, storage: &Arc<Storage<B>>) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        if storage.ticket.swap(ticket, Relaxed) == 0 && storage.has_recipe() {
            self.cheap.push_back(CheapEntry {
                entered: storage.entered.clone(),
                storage: Arc::downgrade(storage),
            });
        }
        self.entered += storage.bytes();
        storage.entered.store(self.entered, Relaxed);
        self.entries.push_back(Entry {
            ticket,
            current: storage.ticket.clone(),
            entered: self.entered,
            storage: Arc::downgrade(storage),
        });
        if self.entries.len() > 2 * self.kept + 1024 {
            self.entries.retain(Entry::is_valid);
            self.kept = self.entries.len();
            self.cheap.retain(|cheap| cheap.storage.strong_count() > 0);
        }
    }

    /// Puts a storage that was [popped](Self::pop) back where it was, at the old end.
    pub(crate) fn put_back(&mut self, storage: &Arc<Storage<B>>) {
        self.entries.push_front(Entry {
            ticket: storage.ticket.load(Relaxed),
            current: storage.ticket.clone(),
            entered: storage.entered.load(Relaxed),
            storage: Arc::downgrade(storage),
        });
    }

    /// Takes the oldest storage that can be computed again, but none that is among the last `young` bytes.
    pub(crate) fn pop_cheap(&mut self, young: u64) -> Option<Arc<Storage<B>>> {
        for _ in 0..self.cheap.len() {
            let cheap = self.cheap.pop_front()?;
            if cheap.storage.strong_count() == 0 {
                continue;
            }
            if self.entered - cheap.entered.load(Relaxed) < young {
                self.cheap.push_back(cheap);
            } else if let Some(storage) = cheap.storage.upgrade() {
                return Some(storage);
            }
        }
        None
    }

    /// Takes the least recently used storage out of the window, but none that is among the last `young` bytes.
    ///
    /// It is returned whatever it holds: its last owner may be the caller now, and a storage must not be dropped while the
    /// window is locked.
    pub(crate) fn pop(&mut self, young: u64) -> Option<Arc<Storage<B>>> {
        loop {
            let entry = self.entries.pop_front()?;
            if !entry.is_valid() {
                continue;
            }
            // They are in the order in which they entered: all others are younger still.
            if self.entered - entry.entered < young {
                self.entries.push_front(entry);
                return None;
            }
            if let Some(storage) = entry.storage.upgrade() {
                return Some(storage);
            }
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn_backend::{DType, TensorMetadata};
    use burn_flex::{Flex, FlexDevice, FlexTensor};

    use super::*;
    use crate::residency::Residency;
    use crate::store::Origin;

    #[test]
    fn uses_of_a_tensor_that_lives_long_do_not_gather() {
        let residency = Residency::<Flex>::of(&FlexDevice);
        let weight = FlexTensor::zeros([128, 256].into(), DType::BF16);
        assert_eq!(weight.shape().num_elements(), 32_768);
        let weight = Arc::new(Storage::new(
            weight,
            FlexDevice,
            residency,
            Origin::default(),
            None,
        ));
        let mut window = Window::default();
        for _ in 0..100_000 {
            window.push(&weight);
        }
        assert!(window.entries.len() <= 2048, "{}", window.entries.len());
        assert!(window.pop(0).is_some(), "it is there once");
        assert!(window.pop(0).is_none());
    }
}
