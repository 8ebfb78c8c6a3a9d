//! What can go wrong, with the numbers and the way out.

use lct_kernels::{CodecError, Profile};
use safetensors::SafeTensorError;
use thiserror::Error;

/// Why a file was not inspected to its end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The file cannot be opened or mapped.
    #[error("cannot read {file}: {source}; check the path and its permissions")]
    Read {
        /// The file.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not a whole safetensors file.
    #[error("{file} is not a whole safetensors file: {source}; copy or convert it again")]
    Format {
        /// The file.
        file: String,
        /// What is wrong with it.
        source: SafeTensorError,
    },
    /// A tensor cannot be coded, or does not come back as it was.
    #[error("{file}: tensor {tensor}: {source}")]
    Coding {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// What happened to it.
        source: CodingError,
    },
}

/// What the codec did wrong.
#[derive(Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CodingError {
    /// The codec refused.
    #[error("profile {profile:?}: {source}")]
    Codec {
        /// The profile.
        profile: Profile,
        /// What the codec said.
        source: CodecError,
    },
    /// The codec returned other values.
    #[error(
        "profile {profile:?}: value {position} of {values} was {expected:#06x} and came back as {found:#06x}; this must not \
         happen: keep the file and report it"
    )]
    Differs {
        /// The profile.
        profile: Profile,
        /// The first value that differs.
        position: usize,
        /// Values in the tensor.
        values: usize,
        /// Its bits before.
        expected: u16,
        /// Its bits after.
        found: u16,
    },
}
