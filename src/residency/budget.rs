//! How much may be dense.

use crate::config::{HotWindow, LctConfig};
use crate::report::Stats;

/// The ratio that is counted on before anything has been encoded.
const EXPECTED_RATIO: f64 = 1.4;
/// One part of so many of the most bytes that ever lived may always be dense.
const FLOOR_PARTS: u64 = 16;

/// The spill reserve is at most one of so many parts of the most bytes that ever lived, and at least so many bytes.
const RESERVE_PARTS: u64 = 8;
const LEAST_RESERVE: u64 = 8 << 20;

/// The limit of the hot window, by the [setting](HotWindow) of its device.
#[derive(Debug)]
pub(super) struct Budget(pub(super) HotWindow);

/// What has to leave the window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Excess {
    /// Bytes by which the budget is exceeded.
    pub(super) bytes: u64,
    /// The share of a dense tensor's bytes by which packing it makes up for that.
    pub(super) freed: f64,
    /// The most dense bytes that may leave.
    pub(super) at_most: u64,
}

impl Budget {
    /// The bytes that unread encode statuses may reserve: as configured, but no large part of what a small program uses.
    pub(super) fn spill_reserve(&self, config: &LctConfig, stats: &Stats) -> u64 {
        let share = (stats.logical.peak() / RESERVE_PARTS).max(LEAST_RESERVE);
        config.spill_reserve.min(share)
    }

    /// The dense bytes that stay in the window, whatever the limit is: what dies young or is used at once.
    pub(super) fn floor(&self, stats: &Stats) -> u64 {
        match self.0 {
            HotWindow::Bytes(limit) => limit,
            HotWindow::Share(_) => stats.logical.peak() / FLOOR_PARTS,
        }
    }

    /// What is over the budget, if anything, or will be when `rise` bytes more are made. It is at least what the device
    /// lacks.
    pub(super) fn excess(&self, stats: &Stats, rise: u64, shortage: u64) -> Option<Excess> {
        let ratio = stats.ratio().unwrap_or(EXPECTED_RATIO).max(1.05);
        let at_most = stats.window_now().saturating_sub(self.floor(stats));
        let mut excess = match self.0 {
            HotWindow::Bytes(limit) => Excess {
                bytes: stats.window_now().saturating_sub(limit),
                freed: 1.0,
                at_most,
            },
            HotWindow::Share(share) => {
                let limit = (stats.logical.peak() as f64 * share) as u64;
                Excess {
                    bytes: (stats.managed_now() + rise).saturating_sub(limit),
                    freed: 1.0 - 1.0 / ratio,
                    at_most,
                }
            }
        };
        excess.bytes = excess.bytes.max(shortage);
        (excess.bytes > 0 && excess.at_most > 0).then_some(excess)
    }
}
