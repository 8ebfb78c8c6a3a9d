//! The errors of the public API.

use thiserror::Error;

/// A [configuration](crate::LctConfig) that cannot be used, or that came too late.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Tensors of fewer elements than the smallest useful packed form cannot be asked for.
    #[error("min_elements is {given}, but must be at least 1: an empty tensor has nothing to pack")]
    MinElements {
        /// The value given, in elements.
        given: usize,
    },
    /// The spill reserve cannot hold even one block's worst case.
    #[error(
        "spill_reserve is {given} bytes, but one block can spill {needed}: give at least {needed} bytes"
    )]
    SpillReserve {
        /// The value given, in bytes.
        given: u64,
        /// The smallest usable value, in bytes.
        needed: u64,
    },
    /// A fraction that is not in the open interval from 0 to 1.
    #[error("{name} is {given}, but must lie between 0 and 1, both excluded")]
    Share {
        /// The field's name.
        name: &'static str,
        /// The value given.
        given: f64,
    },
    /// The device has been used already, so that tensors live under another configuration.
    #[error(
        "device {device} is already in use with its own configuration: call `configure` before the first tensor is created there"
    )]
    InUse {
        /// The device, as it prints itself.
        device: String,
    },
}
