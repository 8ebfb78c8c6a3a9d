//! What can keep a kernel from being launched.

use thiserror::Error;

use crate::{CodecError, Profile};

/// A launch that was refused, or a transfer that failed. Each carries the numbers that disagree.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The request or the packed form is invalid.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The rows of the dense layout overlap.
    #[error(
        "rows of {row_len} values cannot start every {row_pitch}; the pitch is at least the length"
    )]
    RowPitch {
        /// Values in a row.
        row_len: usize,
        /// Values between the starts of rows.
        row_pitch: usize,
    },
    /// The dense layout reaches further than the kernels can index.
    #[error("the dense rows span {span} values, kernels index at most {limit}; split the tensor")]
    Span {
        /// Values from the first to the last, gaps included.
        span: u128,
        /// The most that can be indexed.
        limit: u64,
    },
    /// Dense and packed layout disagree about the number of values.
    #[error("the dense layout has {dense} values, the packed one {packed}")]
    ValueCount {
        /// Values in the dense layout.
        dense: usize,
        /// Values in the packed layout.
        packed: usize,
    },
    /// A buffer is too small.
    #[error("the {buffer} buffer has {found} bytes, {needed} are needed")]
    BufferSize {
        /// Which buffer.
        buffer: &'static str,
        /// Bytes needed.
        needed: u64,
        /// Bytes there.
        found: u64,
    },
    /// A buffer starts at an offset that cannot be bound.
    #[error(
        "the {buffer} buffer starts at byte {offset} of its allocation, not a multiple of {alignment}"
    )]
    BufferOffset {
        /// Which buffer.
        buffer: &'static str,
        /// Its offset in bytes.
        offset: u64,
        /// The alignment required.
        alignment: u64,
    },
    /// The device has too little shared memory for the tables.
    #[error("the device has {found} bytes of shared memory per cube, the kernels need {needed}")]
    SharedMemory {
        /// Bytes needed.
        needed: usize,
        /// Bytes there.
        found: usize,
    },
    /// The device's cubes are too small.
    #[error("the device runs at most {found} units in a cube, the kernels need {needed}")]
    CubeSize {
        /// Units needed.
        needed: u32,
        /// Units there.
        found: u32,
    },
    /// An update got another number of buffers than its chain has operands.
    #[error("the update has {needed} {what}, {found} were given")]
    Operands {
        /// Inputs, outputs or packed forms.
        what: &'static str,
        /// Buffers needed.
        needed: usize,
        /// Buffers given.
        found: usize,
    },
    /// The device binds too few buffers to one kernel.
    #[error("the device binds {found} buffers to a kernel, the update needs {needed}")]
    Bindings {
        /// Buffers needed.
        needed: u32,
        /// Buffers that can be bound.
        found: u32,
    },
    /// A packed form whose streams have fixed places, where they must take what they need.
    #[error("packed tensors are updated under profile Auto, not {found:?}")]
    Profile {
        /// The form's profile.
        found: Profile,
    },
    /// Reading back from the device failed.
    #[error("reading {bytes} bytes from the device failed: {reason}")]
    Read {
        /// Bytes asked for.
        bytes: u64,
        /// What the runtime said.
        reason: String,
    },
}
