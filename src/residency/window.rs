//! The hot window: who became dense, or was used, when.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use crate::store::PackedStore;
use crate::tensor::{State, Storage};

/// The order in which storages leave the window: least recently used first.
///
/// A storage that is used again gets a new ticket and a new entry; its older entries are stale and skipped.
pub(crate) struct Window<B: PackedStore> {
    entries: VecDeque<Entry<B>>,
    next_ticket: u64,
    /// Entries after the last clean-up, which set how many more may gather before the next.
    kept: usize,
}

struct Entry<B: PackedStore> {
    ticket: u64,
    storage: Weak<Storage<B>>,
}

impl<B: PackedStore> Entry<B> {
    fn living(&self) -> Option<Arc<Storage<B>>> {
        let storage = self.storage.upgrade()?;
        (storage.ticket.load(Relaxed) == self.ticket).then_some(storage)
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
            storage: Arc::downgrade(storage),
        });
        if self.entries.len() > 2 * self.kept + 1024 {
            // `strong_count` instead of an upgrade: an upgraded storage could die here, under our lock.
            self.entries
                .retain(|entry| entry.storage.strong_count() > 0);
            self.kept = self.entries.len();
        }
    }

    /// Takes the least recently used storages with a dense tensor out of the window, until they make up for `bytes`: a
    /// decoded copy by all of its bytes, a tensor that has to be packed by a share `freed` of them.
    pub(crate) fn oldest(&mut self, bytes: u64, freed: f64) -> Vec<Arc<Storage<B>>> {
        let mut taken = Vec::new();
        let mut sum = 0.0;
        let mut looked_at = 0..self.entries.len();
        while sum < bytes as f64
            && looked_at.next().is_some()
            && let Some(entry) = self.entries.pop_front()
        {
            let Some(storage) = entry.living() else {
                continue;
            };
            let share = match storage.try_lock().as_deref() {
                Some(State::Dense(_)) => freed,
                Some(State::Copied(..)) => 1.0,
                Some(State::Packed(_) | State::Taken) => continue,
                // Being decoded or packed in another thread, so not old at all.
                None => {
                    self.entries.push_back(entry);
                    continue;
                }
            };
            sum += share * storage.bytes() as f64;
            taken.push(storage);
        }
        taken
    }
}
