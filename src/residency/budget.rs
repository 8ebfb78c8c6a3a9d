//! How much may be dense.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::config::{HotWindow, LctConfig};
use crate::report::Stats;

/// One part of so many of the most bytes that ever lived may always be dense.
const FLOOR_PARTS: u64 = 16;
/// Tensors of less than one of so many parts of the most bytes that ever lived are not packed to keep a share.
const LEAST_PARTS: u64 = 8192;

/// The spill reserve is at most one of so many parts of the most bytes that ever lived, and at least so many bytes.
const RESERVE_PARTS: u64 = 8;
/// The same on a tight device.
const TIGHT_PARTS: u64 = 32;
const LEAST_RESERVE: u64 = 8 << 20;

/// A device is tight that cannot hold what the tensors took at most, and one of so many parts of it more: for what is not
/// managed, for pages of the sizes that are not needed just now, and for the pieces that the driver's pool comes to.
const SLACK_PARTS: u64 = 2;

/// A slab is about one of so many parts of the most bytes that ever lived, within these bounds.
const SLAB_PARTS: u64 = 64;
const LEAST_SLAB: u64 = 16 << 20;
const MOST_SLAB: u64 = 256 << 20;

/// A limit that was reached is lowered by one part of so many, to see whether a lower one can be reached by now.
const PROBE_PARTS: u64 = 64;

/// The limit of the hot window, by the [setting](HotWindow) of its device.
///
/// A share may be out of reach: what weights, gradients and state alone take, all of them packed, can be more. Then the least
/// that was reached is the limit, so that nothing is coded where that does not lower the peak. A single miss is an accident,
/// of a step that is still being learned, say; only what was missed twice in succession was out of reach.
#[derive(Debug)]
pub(super) struct Budget {
    window: HotWindow,
    /// What is in reach at the step's summit, in bytes in all forms; 0 if that is not known.
    reach: AtomicU64,
    /// The most by which the limit was missed since the last summit.
    missed: AtomicU64,
    /// What all forms took where the limit was missed most between the two summits before; 0 if it was kept.
    taken_before: AtomicU64,
    /// The most logical bytes that had ever lived when the last summit was met.
    most: AtomicU64,
    /// The dense bytes at the step's summit; 0 if that is not known.
    dense: AtomicU64,
    /// The logical bytes by which that summit is known.
    summit: AtomicU64,
    /// Whether the device is tight.
    tight: AtomicBool,
}

/// What has to leave the window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Excess {
    /// Bytes by which the limit is exceeded, or that the device lacks.
    pub(super) bytes: u64,
    /// Dense bytes that leave even if the limit is kept.
    pub(super) dense: u64,
    /// The share of a dense tensor's bytes by which packing it makes up for that.
    pub(super) freed: f64,
    /// The most dense bytes that may leave.
    pub(super) at_most: u64,
}

impl Budget {
    pub(super) fn new(window: HotWindow) -> Self {
        Self {
            window,
            reach: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            taken_before: AtomicU64::new(0),
            most: AtomicU64::new(0),
            dense: AtomicU64::new(0),
            summit: AtomicU64::new(0),
            tight: AtomicBool::new(false),
        }
    }

    /// The program can have `capacity` bytes of the device.
    pub(super) fn fit(&self, capacity: u64, stats: &Stats) {
        let most = stats.most_resident();
        self.tight
            .store(capacity < most + most / SLACK_PARTS, Relaxed);
    }

    /// Whether the device has hardly room for what the tensors take.
    pub(super) fn is_tight(&self) -> bool {
        self.tight.load(Relaxed)
    }

    /// The summit of so many `logical` bytes has left the window as it is, and `rise` bytes are going to be made there.
    pub(super) fn leave_summit(&self, logical: u64, stats: &Stats, rise: u64) {
        self.summit.store(logical, Relaxed);
        self.dense.store(stats.window_now() + rise, Relaxed);
    }

    /// The step's summit is known by so many logical bytes, if there is one. What was dense at another says nothing.
    pub(super) fn follow(&self, summit: Option<u64>) {
        if summit != Some(self.summit.load(Relaxed)) {
            self.dense.store(0, Relaxed);
        }
    }

    /// All that may rest does, and still so many bytes are too much.
    pub(super) fn miss(&self, bytes: u64) {
        self.missed.fetch_max(bytes, Relaxed);
    }

    /// The most bytes of a step are about to be made: what was missed in both of the last two was out of reach. As long as a
    /// program grows, in its first steps, what it misses says nothing: a break may well be met again before it is a summit.
    pub(super) fn at_summit(&self, stats: &Stats) {
        let missed = self.missed.swap(0, Relaxed);
        let most = stats.logical.most();
        if self.most.swap(most, Relaxed) != most {
            self.taken_before.store(0, Relaxed);
            self.reach.store(0, Relaxed);
            return;
        }
        let taken = match missed {
            0 => 0,
            missed => self.limit(stats) + missed,
        };
        let before = self.taken_before.swap(taken, Relaxed);
        let reach = self.reach.load(Relaxed);
        let reach = match (taken, before) {
            (0, _) => reach - reach / PROBE_PARTS,
            (_, 0) => reach,
            (taken, before) => reach.max(taken.min(before)),
        };
        self.reach.store(reach, Relaxed);
    }

    /// The bytes in all forms that a share allows.
    fn limit(&self, stats: &Stats) -> u64 {
        share_of(self.window, stats).max(self.reach.load(Relaxed))
    }

    /// The dense bytes that may live where a share is out of reach, or where the device is tight.
    ///
    /// At the summit all rests that may. Elsewhere there is room for more dense tensors, but pages of packed forms serve no
    /// dense ones and the other way round: memory that changes hands between the two goes through the driver, twice a step.
    /// That takes time, and leaves the driver's pool in pieces, for which a tight device has no room.
    fn most_dense(&self, stats: &Stats) -> u64 {
        if self.is_tight() {
            return self.floor(stats);
        }
        let dense = self.dense.load(Relaxed);
        if dense > 0 && self.reach.load(Relaxed) > share_of(self.window, stats) {
            dense
        } else {
            u64::MAX
        }
    }

    /// Whether memory that is held for unread encode statuses is wanted, as `rise` bytes more are going to be made.
    pub(super) fn wants_reserves(&self, stats: &Stats, rise: u64) -> bool {
        match self.window {
            HotWindow::Bytes(_) => false,
            HotWindow::Share(_) => {
                stats.managed_now() + stats.reserved_now() + rise > self.limit(stats)
            }
        }
    }

    /// The bytes that unread encode statuses may reserve: as configured, but no large part of what a small program uses.
    pub(super) fn spill_reserve(&self, config: &LctConfig, stats: &Stats) -> u64 {
        let parts = if self.is_tight() {
            TIGHT_PARTS
        } else {
            RESERVE_PARTS
        };
        let share = (stats.logical.most() / parts).max(LEAST_RESERVE);
        config.spill_reserve.min(share)
    }

    /// The dense bytes that stay in the window, whatever the limit is: what dies young or is used at once.
    pub(super) fn floor(&self, stats: &Stats) -> u64 {
        match self.window {
            HotWindow::Bytes(limit) => limit,
            HotWindow::Share(_) => stats.logical.most() / FLOOR_PARTS,
        }
    }

    /// The bytes that entered last and are not packed, whatever else lies in the window. A fixed number of bytes is kept
    /// even if a single tensor is more.
    pub(super) fn spared(&self, stats: &Stats) -> u64 {
        match self.window {
            HotWindow::Bytes(_) => 0,
            HotWindow::Share(_) => self.floor(stats),
        }
    }

    /// The bytes of the smallest tensor that is worth a call of the codec: what a smaller one saves is too little.
    pub(super) fn least(&self, stats: &Stats) -> u64 {
        match self.window {
            HotWindow::Bytes(_) => 0,
            HotWindow::Share(_) => stats.logical.most() / LEAST_PARTS,
        }
    }

    /// The bytes of a slab for packed forms; 0 where they have buffers of their own.
    pub(super) fn slab_bytes(&self, stats: &Stats) -> u64 {
        if !self.is_tight() {
            return 0;
        }
        let part = stats.logical.most() / SLAB_PARTS;
        part.next_power_of_two().clamp(LEAST_SLAB, MOST_SLAB)
    }

    /// What is over the budget, if anything, or will be when `rise` bytes more are made. It is at least what the device
    /// lacks.
    pub(super) fn excess(&self, stats: &Stats, rise: u64, shortage: u64) -> Option<Excess> {
        let at_most = stats.window_now().saturating_sub(self.floor(stats));
        let mut excess = match self.window {
            HotWindow::Bytes(limit) => Excess {
                bytes: stats.window_now().saturating_sub(limit),
                dense: 0,
                freed: 1.0,
                at_most,
            },
            HotWindow::Share(_) => Excess {
                bytes: (stats.managed_now() + rise).saturating_sub(self.limit(stats)),
                dense: (stats.window_now() + rise).saturating_sub(self.most_dense(stats)),
                freed: 1.0 - 1.0 / stats.expected_ratio(),
                at_most,
            },
        };
        excess.bytes = excess.bytes.max(shortage);
        (excess.bytes.max(excess.dense) > 0 && excess.at_most > 0).then_some(excess)
    }
}

/// The bytes that a share is; 0 without one.
fn share_of(window: HotWindow, stats: &Stats) -> u64 {
    match window {
        HotWindow::Bytes(_) => 0,
        HotWindow::Share(share) => (stats.logical.most() as f64 * share) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Books with so many MiB of living tensors, of which `dense` are in the window and the rest is not stored.
    fn stats(logical: u64, dense: u64) -> Stats {
        let stats = Stats::default();
        stats.logical.add(logical * MIB);
        stats.window_add(dense * MIB);
        stats
    }

    #[test]
    fn a_share_is_of_the_most_that_ever_lived() {
        let budget = Budget::new(HotWindow::Share(0.5));
        let stats = stats(1600, 1000);
        let excess = budget.excess(&stats, 0, 0).unwrap();
        assert_eq!((excess.bytes, excess.at_most), (200 * MIB, 900 * MIB));
        assert!((excess.freed - (1.0 - 1.0 / 1.4)).abs() < 1e-9);
        // With half of them gone the limit stays.
        stats.logical.sub(800 * MIB);
        stats.window_sub(300 * MIB);
        assert_eq!(budget.excess(&stats, 0, 0), None);
    }

    #[test]
    fn what_is_going_to_be_made_counts_before_it_is_there() {
        let budget = Budget::new(HotWindow::Share(0.5));
        let stats = stats(1600, 700);
        assert_eq!(budget.excess(&stats, 100 * MIB, 0), None);
        let excess = budget.excess(&stats, 300 * MIB, 0).unwrap();
        assert_eq!(excess.bytes, 200 * MIB);
    }

    #[test]
    fn what_is_out_of_reach_is_not_the_limit() {
        let budget = Budget::new(HotWindow::Share(0.5));
        let stats = stats(1600, 1000);
        let excess = || {
            let excess = budget.excess(&stats, 0, 0);
            excess.map_or(0, |excess| excess.bytes / MIB)
        };
        assert_eq!(excess(), 200);
        budget.miss(300 * MIB);
        budget.at_summit(&stats);
        assert_eq!(excess(), 200, "the program has grown");
        budget.miss(60 * MIB);
        budget.miss(100 * MIB);
        assert_eq!(excess(), 200, "the step goes on");
        budget.at_summit(&stats);
        assert_eq!(excess(), 200, "once may be an accident");
        budget.miss(170 * MIB);
        budget.at_summit(&stats);
        assert_eq!(excess(), 100, "900 MiB are in reach, as was seen twice");
        budget.miss(20 * MIB);
        budget.at_summit(&stats);
        assert_eq!(excess(), 80, "970 were taken before, 920 now");
        budget.reach.store(900 * MIB, Relaxed);
        // As long as that is so, a little less is tried in each step.
        budget.at_summit(&stats);
        assert_eq!(excess(), 114);
        for expected in [114, 100] {
            budget.miss(14 * MIB);
            budget.at_summit(&stats);
            assert_eq!(excess(), expected);
        }
        (0..200).for_each(|_| budget.at_summit(&stats));
        assert_eq!(excess(), 200, "never below the share");
        for _ in 0..2 {
            budget.miss(100 * MIB);
            budget.at_summit(&stats);
        }
        assert_eq!(excess(), 100);
        stats.logical.add(200 * MIB);
        budget.miss(100 * MIB);
        budget.at_summit(&stats);
        assert_eq!(excess(), 100, "half of the 200 that are new");
        budget.reach.store(1000 * MIB, Relaxed);
        stats.logical.add(100 * MIB);
        budget.at_summit(&stats);
        assert_eq!(excess(), 50, "what was in reach is forgotten");
    }

    #[test]
    fn where_a_share_is_out_of_reach_no_more_is_dense_than_at_the_summit() {
        let budget = Budget::new(HotWindow::Share(0.5));
        let elsewhere = stats(1600, 700);
        let dense = || {
            budget
                .excess(&elsewhere, 50 * MIB, 0)
                .map(|excess| (excess.bytes, excess.dense))
        };
        budget.follow(Some(1600 * MIB));
        budget.leave_summit(1600 * MIB, &stats(1600, 500), 100 * MIB);
        assert_eq!(dense(), None, "the share is in reach");
        budget.at_summit(&elsewhere);
        for _ in 0..2 {
            budget.miss(100 * MIB);
            budget.at_summit(&elsewhere);
        }
        assert_eq!(dense(), Some((0, 150 * MIB)));
        assert_eq!(budget.excess(&stats(1600, 550), 50 * MIB, 0), None);
        budget.follow(Some(1600 * MIB));
        assert_eq!(dense(), Some((0, 150 * MIB)));
        // Of a program that has grown since the old summit is none.
        assert_eq!(budget.excess(&stats(2000, 700), 50 * MIB, 0), None);
        budget.follow(Some(1700 * MIB));
        assert_eq!(dense(), None);
    }

    #[test]
    fn a_tight_device_has_room_for_little_that_is_dense() {
        let budget = Budget::new(HotWindow::Share(0.9));
        let books = stats(1600, 700);
        budget.fit(1050 * MIB, &books);
        assert_eq!(budget.excess(&books, 0, 0), None, "half as much again fits");
        let config = LctConfig::default();
        assert_eq!(budget.spill_reserve(&config, &books), 200 * MIB);
        assert_eq!(budget.slab_bytes(&books), 0);
        budget.fit(1049 * MIB, &books);
        let excess = budget.excess(&books, 0, 0).unwrap();
        assert_eq!((excess.bytes, excess.dense), (0, 600 * MIB));
        assert_eq!(budget.excess(&stats(1600, 100), 0, 0), None);
        assert_eq!(budget.spill_reserve(&config, &books), 50 * MIB);
        assert_eq!(budget.slab_bytes(&books), 32 * MIB);
    }

    #[test]
    fn what_was_dense_at_a_summit_is_forgotten_with_it() {
        let budget = Budget::new(HotWindow::Share(0.5));
        let stats = stats(1600, 700);
        budget.at_summit(&stats);
        for _ in 0..2 {
            budget.miss(100 * MIB);
            budget.at_summit(&stats);
        }
        budget.leave_summit(1600 * MIB, &stats, 0);
        assert_eq!(budget.most_dense(&stats), 700 * MIB);
        budget.follow(None);
        assert_eq!(budget.most_dense(&stats), u64::MAX);
    }

    #[test]
    fn reserves_are_wanted_where_the_limit_would_be_exceeded_with_them() {
        let budget = Budget::new(HotWindow::Share(0.5));
        let stats = stats(1600, 700);
        assert!(!budget.wants_reserves(&stats, 100 * MIB));
        assert!(budget.wants_reserves(&stats, 101 * MIB));
        assert!(!Budget::new(HotWindow::Bytes(0)).wants_reserves(&stats, 101 * MIB));
    }

    #[test]
    fn a_device_that_runs_short_has_its_way() {
        for budget in [HotWindow::Share(0.9), HotWindow::Bytes(600 * MIB)].map(Budget::new) {
            let stats = stats(1600, 700);
            let wanted = 400 * MIB;
            let excess = budget.excess(&stats, 0, wanted).unwrap();
            assert_eq!(excess.bytes, wanted);
            // But what is used at once stays.
            assert_eq!(excess.at_most, 700 * MIB - budget.floor(&stats));
        }
        let nothing_dense = stats(1600, 50);
        let budget = Budget::new(HotWindow::Share(0.9));
        assert_eq!(budget.excess(&nothing_dense, 0, 400 * MIB), None);
    }
}
