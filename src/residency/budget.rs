//! How much may be dense.

use crate::config::HotWindow;
use crate::report::Stats;

/// The ratio that is counted on before anything has been encoded.
const EXPECTED_RATIO: f64 = 1.4;

/// The limit of the hot window, by the [setting](HotWindow) of its device.
#[derive(Debug)]
pub(super) struct Budget(pub(super) HotWindow);

impl Budget {
    /// Bytes over the budget; with `slack`, over one and a half of the window that it allows.
    pub(super) fn excess(&self, stats: &Stats, slack: bool) -> u64 {
        match self.0 {
            HotWindow::Bytes(window) => {
                let limit = if slack { window + window / 2 } else { window };
                stats.window_now().saturating_sub(limit)
            }
            // At the peak, all tensors are packed but this fraction of them. Whenever fewer bytes are alive, more of them
            // may be dense without raising the peak: in most of the backward pass, nothing needs to be packed.
            HotWindow::Fraction(fraction) => {
                let peak = stats.logical.peak() as f64;
                let dense = if slack { 1.5 * fraction } else { fraction };
                let limit = peak * (dense + (1.0 - fraction) / ratio(stats));
                stats.resident_now().saturating_sub(limit as u64)
            }
        }
    }

    /// The share of a dense tensor's bytes that packing it takes off what the budget limits.
    pub(super) fn freed_by_packing(&self, stats: &Stats) -> f64 {
        match self.0 {
            HotWindow::Bytes(_) => 1.0,
            HotWindow::Fraction(_) => 1.0 - 1.0 / ratio(stats),
        }
    }
}

/// Logical over packed bytes so far, at least so much over one that packing is expected to help.
fn ratio(stats: &Stats) -> f64 {
    stats.ratio().unwrap_or(EXPECTED_RATIO).max(1.05)
}
