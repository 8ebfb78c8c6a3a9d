//! The learning rate of each step.

use serde::{Deserialize, Serialize};

/// The shape of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// Stays at the peak.
    Constant,
    /// Falls along half a cosine to a tenth of the peak at the last step.
    Cosine,
}

/// The most steps that the warm-up takes; a short run warms up over a tenth of its steps.
const MAX_WARM_UP: usize = 100;

impl Schedule {
    /// The learning rate of `step` (from 0) in a run of `steps`, with the given peak.
    pub fn rate(self, peak: f64, step: usize, steps: usize) -> f64 {
        let warm_up = (steps / 10).min(MAX_WARM_UP);
        if step < warm_up {
            return peak * (step + 1) as f64 / (warm_up + 1) as f64;
        }
        match self {
            Self::Constant => peak,
            Self::Cosine => {
                let span = (steps - warm_up).max(1) as f64;
                let done = ((step - warm_up) as f64 / span).min(1.0);
                let fall = 0.5 * (1.0 + (core::f64::consts::PI * done).cos());
                peak * (0.1 + 0.9 * fall)
            }
        }
    }
}
