//! Optimizer updates, value by value, as Burn 0.21's optimizers chain them out of elementwise operations.
//!
//! An [`Update`] is one step for one parameter: a [`Chain`] of operations and the [`Scalars`] in it. [`Sgd`], [`Adam`] and
//! [`AdamW`] make it from hyperparameters. [`apply`] is the reference on the host, and what the CPU backend runs; the
//! kernels of `launch` compute the same bits.
//!
//! Under [`Math::Bf16`] every operation's result is rounded to BF16, to nearest with ties to even, and so is every scalar:
//! that is what a backend does that executes Burn's operations one by one. A sum, product, quotient or square root of BF16
//! numbers that was computed in `f32` and then rounded is the correctly rounded one, as `f32` has more than twice the bits.

mod chain;
mod host;
mod round;
mod rules;

pub use chain::{Chain, Decay, Math, Rule, Scalars, Update};
pub use host::{Values, apply};
#[cfg(feature = "cube")]
pub(crate) use round::STRIDE;
pub use round::{QUIET_NAN, nearest, noise, stochastic};
pub use rules::{Adam, AdamW, Momentum, Sgd};
