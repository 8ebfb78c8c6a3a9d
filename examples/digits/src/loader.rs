//! A loader of training batches whose order depends on the seed and the epoch alone.
//!
//! Burn's loader shuffles from a generator that goes on from epoch to epoch, so that a resumed run meets the first epoch's
//! order again; and with several workers its batches come in the order in which they happen to be ready. Neither matters for
//! learning. Both matter for comparing two runs bit by bit.

use crate::data::{Batch, Digit, DigitBatcher};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::tensor::backend::Backend;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};
use xxhash_rust::xxh3::xxh3_64;

/// Batches that each worker may have ready in advance.
const AHEAD: usize = 4;

/// A loader that shuffles by seed and epoch, and takes from its workers in turn.
#[derive(Debug)]
pub struct OrderedLoader<B: Backend> {
    digits: Arc<[Digit]>,
    batch: usize,
    workers: usize,
    seed: u64,
    epoch: Arc<AtomicUsize>,
    device: B::Device,
}

impl<B: Backend> OrderedLoader<B> {
    /// A loader whose first iterator is that of epoch `first`.
    #[must_use]
    pub fn new(
        digits: Vec<Digit>,
        batch: usize,
        workers: usize,
        seed: u64,
        first: usize,
        device: B::Device,
    ) -> Self {
        Self {
            digits: digits.into(),
            batch,
            workers,
            seed,
            epoch: Arc::new(AtomicUsize::new(first)),
            device,
        }
    }

    fn with(&self, digits: Arc<[Digit]>, device: B::Device) -> Self {
        Self {
            digits,
            device,
            epoch: self.epoch.clone(),
            ..*self
        }
    }
}

/// A number that depends on all of the numbers given.
fn mix(numbers: [u64; 3]) -> u64 {
    xxh3_64(&numbers.map(u64::to_le_bytes).concat())
}

impl<B: Backend> DataLoader<B, Batch<B>> for OrderedLoader<B> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Batch<B>> + 'a> {
        let epoch = self.epoch.fetch_add(1, Relaxed) as u64;
        // Checkpoints do not hold the device's random numbers. Seeded anew in each epoch, dropout draws after a resume what
        // it would have drawn without.
        B::seed(&self.device, mix([self.seed, epoch, u64::MAX]));

        let mut order: Vec<usize> = (0..self.digits.len()).collect();
        order.sort_by_cached_key(|&index| mix([self.seed, epoch, index as u64]));

        let batches: Vec<Vec<Digit>> = order
            .chunks(self.batch)
            .map(|chunk| chunk.iter().map(|&i| self.digits[i].clone()).collect())
            .collect();
        let count = batches.len();
        let mut shares = vec![Vec::new(); self.workers];
        for (index, batch) in batches.into_iter().enumerate() {
            shares[index % self.workers].push(batch);
        }
        let (receivers, workers) = shares
            .into_iter()
            .map(|share| {
                let (sender, receiver) = sync_channel(AHEAD);
                let device = self.device.clone();
                let worker = thread::spawn(move || {
                    for digits in share {
                        // The receiver is gone when the training was interrupted.
                        if sender.send(DigitBatcher.batch(digits, &device)).is_err() {
                            return;
                        }
                    }
                });
                (receiver, worker)
            })
            .unzip();
        Box::new(InTurn {
            receivers,
            workers,
            next: 0,
            count,
            batch: self.batch,
            items: self.digits.len(),
        })
    }

    fn num_items(&self) -> usize {
        self.digits.len()
    }

    fn to_device(&self, device: &B::Device) -> Arc<dyn DataLoader<B, Batch<B>>> {
        Arc::new(self.with(self.digits.clone(), device.clone()))
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<B, Batch<B>>> {
        Arc::new(self.with(self.digits[start..end].into(), self.device.clone()))
    }
}

struct InTurn<B: Backend> {
    receivers: Vec<Receiver<Batch<B>>>,
    workers: Vec<JoinHandle<()>>,
    next: usize,
    count: usize,
    batch: usize,
    items: usize,
}

impl<B: Backend> Iterator for InTurn<B> {
    type Item = Batch<B>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.count {
            return None;
        }
        let receiver = &self.receivers[self.next % self.receivers.len()];
        self.next += 1;
        let batch = receiver.recv();
        Some(batch.expect("a worker sends all of its batches unless it panics"))
    }
}

impl<B: Backend> DataLoaderIterator<Batch<B>> for InTurn<B> {
    fn progress(&self) -> Progress {
        Progress::new((self.next * self.batch).min(self.items), self.items)
    }
}

impl<B: Backend> Drop for InTurn<B> {
    fn drop(&mut self) {
        self.receivers.clear();
        for worker in self.workers.drain(..) {
            // A worker's panic has been printed, and `next` has met it.
            let _ = worker.join();
        }
    }
}
