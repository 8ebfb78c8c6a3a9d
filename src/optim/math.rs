//! In what precision a step is computed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lct_kernels::optim as kernels;
use serde::{Deserialize, Serialize};

/// In what precision a step is computed. Weights and states are BF16 in each case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Math {
    /// As Burn computes it: every result of its chain of operations, and every number in it, is rounded to BF16. The bits
    /// are those of Burn's optimizer on the same backend without fusion.
    #[default]
    Bf16,
    /// In `f32`, and what is stored is rounded to nearest. A change of less than half a unit in the last place of a weight
    /// is lost.
    F32,
    /// In `f32`, and what is stored is rounded up or down with probabilities that keep its expectation. Two runs with the
    /// same seed that do the same steps draw the same numbers; a run continued from a checkpoint draws others.
    Stochastic {
        /// Where the numbers begin.
        seed: u64,
    },
}

impl Math {
    pub(super) fn kernel(self) -> kernels::Math {
        match self {
            Self::Bf16 => kernels::Math::Bf16,
            Self::F32 => kernels::Math::F32,
            Self::Stochastic { .. } => kernels::Math::Stochastic,
        }
    }
}

/// A number for each step of each parameter.
#[derive(Debug)]
pub(super) struct Salts {
    seed: u64,
    drawn: AtomicU64,
}

impl Salts {
    pub(super) fn new(math: Math) -> Self {
        let seed = match math {
            Math::Bf16 | Math::F32 => 0,
            Math::Stochastic { seed } => seed,
        };
        Self {
            seed,
            drawn: AtomicU64::new(0),
        }
    }

    pub(super) fn next(&self) -> u32 {
        let number = self.drawn.fetch_add(1, Relaxed);
        // A step of splitmix64: neighbours have nothing in common.
        let x = self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31) as u32
    }
}

impl Clone for Salts {
    /// A copy that goes on from here on its own.
    fn clone(&self) -> Self {
        Self {
            seed: self.seed,
            drawn: AtomicU64::new(self.drawn.load(Relaxed)),
        }
    }
}
