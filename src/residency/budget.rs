//! How much may be dense.

use crate::config::{HotWindow, LctConfig};
use crate::report::Stats;

/// The ratio that is counted on before anything has been encoded.
const EXPECTED_RATIO: f64 = 1.4;
/// How much of the window a lazy backend may use in excess until its next natural break.
const SLACK: f64 = 0.5;

/// The spill reserve is at most one of so many parts of the most bytes that ever lived, and at least so many bytes.
const RESERVE_PARTS: u64 = 16;
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

    /// What is over the budget, if anything; with `slack`, over the budget with half of the window more.
    pub(super) fn excess(&self, stats: &Stats, slack: bool) -> Option<Excess> {
        let more = if slack { 1.0 + SLACK } else { 1.0 };
        let window = stats.window_now();
        let excess = match self.0 {
            HotWindow::Bytes(limit) => {
                let bytes = window.saturating_sub((limit as f64 * more) as u64);
                Excess {
                    bytes,
                    freed: 1.0,
                    at_most: bytes,
                }
            }
            // At the peak, all tensors are packed but this fraction of them. Whenever fewer bytes are alive, more of them
            // may be dense without raising the peak: in most of the backward pass, nothing needs to be packed. The fraction
            // itself may always be dense, or what dies young would be packed where data does not compress.
            HotWindow::Fraction(fraction) => {
                let peak = stats.logical.peak() as f64;
                let ratio = stats.ratio().unwrap_or(EXPECTED_RATIO).max(1.05);
                let limit = peak * (fraction * more + (1.0 - fraction) / ratio);
                Excess {
                    bytes: stats.managed_now().saturating_sub(limit as u64),
                    freed: 1.0 - 1.0 / ratio,
                    at_most: window.saturating_sub((peak * fraction) as u64),
                }
            }
        };
        (excess.bytes > 0 && excess.at_most > 0).then_some(excess)
    }
}
