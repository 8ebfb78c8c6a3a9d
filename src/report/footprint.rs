//! What one tensor adds to a device's counters, and takes out again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Stats;

/// Why a tensor that was to be packed stayed dense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeptDense {
    /// The packed form would not be at least 5 % smaller.
    Incompressible,
    /// The memory layout overlaps or scatters.
    Layout,
    /// The encode failed, or its verification did.
    Failed,
}

/// The share of one packed (or given up) tensor in the counters. Dropping it takes the share out again,
/// so that the books stay right on every path.
#[derive(Debug)]
pub(crate) struct Footprint {
    stats: Arc<Stats>,
    logical: u64,
    packed: AtomicU64,
    spill: AtomicU64,
    reserved: AtomicU64,
    kept_dense: AtomicU64,
}

impl Footprint {
    /// Bytes that are in the counters already.
    fn new(stats: &Arc<Stats>, logical: u64, packed: u64, spill: u64, reserved: u64) -> Self {
        Self {
            stats: stats.clone(),
            logical,
            packed: AtomicU64::new(packed),
            spill: AtomicU64::new(spill),
            reserved: AtomicU64::new(reserved),
            kept_dense: AtomicU64::new(0),
        }
    }

    /// A tensor of `logical` bytes whose packed form takes `packed` bytes without its spill, for which `reserved` bytes are
    /// held until it is known.
    pub(crate) fn packed(stats: &Arc<Stats>, logical: u64, packed: u64, reserved: u64) -> Self {
        stats.encodes.fetch_add(1, Relaxed);
        stats.encoded.fetch_add(logical, Relaxed);
        stats.encoded_to.fetch_add(packed, Relaxed);
        stats.packed.add(packed);
        stats.reserved.add(reserved);
        stats.resident.add(packed + reserved);
        Self::new(stats, logical, packed, 0, reserved)
    }

    /// A tensor of `logical` bytes that came from another device in packed form.
    #[cfg(feature = "cube")]
    pub(crate) fn moved(stats: &Arc<Stats>, logical: u64, packed: u64, spill: u64) -> Self {
        stats.moves.fetch_add(1, Relaxed);
        stats.moved.fetch_add(logical, Relaxed);
        stats.moved_as.fetch_add(packed + spill, Relaxed);
        stats.packed.add(packed);
        stats.spill.add(spill);
        stats.resident.add(packed + spill);
        Self::new(stats, logical, packed, spill, 0)
    }

    /// A tensor of `logical` bytes that stays dense.
    pub(crate) fn kept_dense(stats: &Arc<Stats>, logical: u64, why: KeptDense) -> Self {
        let footprint = Self::new(stats, logical, 0, 0, 0);
        footprint.enter_dense(why);
        footprint
    }

    /// The counters that it is part of.
    #[cfg(feature = "cube")]
    pub(crate) fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Records what the encode spilled, once that is known.
    pub(crate) fn set_spill(&self, bytes: u64) {
        self.release_reserve();
        self.spill.store(bytes, Relaxed);
        self.stats.encoded_to.fetch_add(bytes, Relaxed);
        self.stats.spill.add(bytes);
        self.stats.resident.add(bytes);
    }

    /// The packed form was given up for the dense one.
    #[cfg(feature = "cube")]
    pub(crate) fn give_up(&self, why: KeptDense) {
        self.release_reserve();
        let packed = self.packed.swap(0, Relaxed);
        let spill = self.spill.swap(0, Relaxed);
        self.stats.packed.sub(packed);
        self.stats.spill.sub(spill);
        self.stats.resident.sub(packed + spill);
        self.stats.encodes.fetch_sub(1, Relaxed);
        self.stats.encoded.fetch_sub(self.logical, Relaxed);
        self.stats.encoded_to.fetch_sub(packed + spill, Relaxed);
        self.enter_dense(why);
    }

    /// The packed form never came to be.
    #[cfg(feature = "cube")]
    pub(crate) fn lose(&self) {
        self.release_reserve();
        let packed = self.packed.swap(0, Relaxed);
        self.stats.packed.sub(packed);
        self.stats.resident.sub(packed);
        self.stats.failed.fetch_add(1, Relaxed);
    }

    fn release_reserve(&self) {
        let reserved = self.reserved.swap(0, Relaxed);
        self.stats.reserved.sub(reserved);
        self.stats.resident.sub(reserved);
    }

    fn enter_dense(&self, why: KeptDense) {
        let counter = match why {
            KeptDense::Incompressible => &self.stats.incompressible,
            KeptDense::Layout => &self.stats.unpackable,
            KeptDense::Failed => &self.stats.failed,
        };
        counter.fetch_add(1, Relaxed);
        self.kept_dense.store(self.logical, Relaxed);
        self.stats.kept_dense.add(self.logical);
        self.stats.resident.add(self.logical);
    }
}

impl Drop for Footprint {
    fn drop(&mut self) {
        self.release_reserve();
        let packed = *self.packed.get_mut();
        let spill = *self.spill.get_mut();
        let dense = *self.kept_dense.get_mut();
        self.stats.packed.sub(packed);
        self.stats.spill.sub(spill);
        self.stats.kept_dense.sub(dense);
        self.stats.resident.sub(packed + spill + dense);
    }
}
