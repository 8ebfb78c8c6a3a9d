//! The errors of the public API.

use burn_backend::DType;
use lct_kernels::VerifyError;
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

/// A tensor that was to be packed and could not be, or not faithfully.
///
/// Each is logged as an error event of `tracing` when it happens, and counted in
/// [`MemoryReport::failed_encodes`](crate::MemoryReport::failed_encodes). The first ones are kept for
/// [`LctBackend::pack_errors`](crate::LctBackend::pack_errors).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PackError {
    /// The packed form did not give the tensor back ([`LctConfig::verify`](crate::LctConfig::verify)). The tensor stayed dense.
    #[error(
        "a packed {dtype:?} tensor of shape {shape:?} did not verify: {reason}. It stays dense. Either memory is faulty or \
         burn-lct is: please report it"
    )]
    Mismatch {
        /// The tensor's shape.
        shape: Vec<usize>,
        /// Its type.
        dtype: DType,
        /// Block, stream, and how many values differ; or why nothing could be compared.
        #[source]
        reason: VerifyError,
    },
    /// The encode was refused before it began. The tensor stayed dense.
    #[error("a tensor of shape {shape:?} was not packed and stays dense: {reason}. {memory}")]
    Refused {
        /// The tensor's shape.
        shape: Vec<usize>,
        /// Who refused, and why.
        reason: String,
        /// What was asked for and what was there.
        memory: MemoryState,
    },
    /// The device did not run the encode and said so too late: the tensor has no value any more, and using it panics.
    #[error("a packed tensor of shape {shape:?} was lost: {reason}. {memory}")]
    Lost {
        /// The tensor's shape.
        shape: Vec<usize>,
        /// What the device said or left undone.
        reason: String,
        /// What was asked for and what is there.
        memory: MemoryState,
    },
}

/// What a device had to give when something failed, in bytes; it prints with what can be changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryState {
    /// What was asked for, where that is known.
    pub needed: Option<u64>,
    /// What could still be allocated on the device, where that is known.
    pub free: Option<u64>,
    /// What the managed tensors took in all their forms.
    pub resident: u64,
    /// What they would have taken in plain Burn.
    pub logical: u64,
}

impl std::fmt::Display for MemoryState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(needed) = self.needed {
            write!(f, "{needed} bytes were needed; ")?;
        }
        match self.free {
            Some(free) => write!(f, "{free} bytes could be allocated; ")?,
            None => write!(f, "the runtime does not say how many bytes are free; ")?,
        }
        write!(
            f,
            "LCT's tensors took {} bytes, {} in plain Burn. If memory is short, make the batch smaller, lower \
             `LctConfig::hot_window`, or end other programs on the device",
            self.resident, self.logical,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_state_says_what_was_needed_what_was_there_and_what_to_change() {
        let state = MemoryState {
            needed: Some(300),
            free: Some(200),
            resident: 70,
            logical: 90,
        };
        let text = state.to_string();
        for part in [
            "300 bytes",
            "200 bytes",
            "70 bytes",
            "90 in plain",
            "hot_window",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let text = MemoryState::default().to_string();
        assert!(text.starts_with("the runtime does not say"), "{text}");
    }
}
