//! What can be wrong with a packed tensor or a request to the host codec.

use thiserror::Error;

use crate::PackedLayout;

/// Values that a packed form does not give back, and where the first of them is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{values} of the values decode to other bits, the first is value {first}, in stream {stream} of block {block}"
)]
pub struct Mismatch {
    /// How many values differ.
    pub values: u32,
    /// The lowest index of one, in the order in which they were packed.
    pub first: u32,
    /// Its block.
    pub block: u32,
    /// Its stream in that block.
    pub stream: u32,
}

impl Mismatch {
    /// `values` values of a tensor with this layout, of which `first` is the first.
    pub fn new(layout: &PackedLayout, first: u32, values: u32) -> Self {
        let (block, stream) = layout.place_of(first);
        Self {
            values,
            first,
            block,
            stream,
        }
    }
}

/// A packed form that was [verified](crate::host::verify) and is not what it was made from.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// It cannot be decoded.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// It decodes to other values.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The device that was to compare has not done so.
    #[error("the device did not compare the packed form with the tensor: {reason}")]
    NotCompared {
        /// What is known of why.
        reason: String,
    },
}

/// A failure of the codec. Each carries the numbers that disagree.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CodecError {
    /// More values than one packed tensor can hold.
    #[error("{values} values exceed the {limit} that one packed tensor holds; split the tensor")]
    TooManyValues {
        /// Values given.
        values: u64,
        /// The most values a packed tensor holds.
        limit: u64,
    },
    /// The output slice has another length than the tensor.
    #[error("the output holds {found} values, the packed tensor has {expected}; pass {expected}")]
    OutputLength {
        /// Values in the packed tensor.
        expected: usize,
        /// Values in the output slice.
        found: usize,
    },
    /// The bytes end inside the header or code table.
    #[error("{found} bytes are too few for the {needed} bytes of header and code table")]
    Truncated {
        /// Bytes needed.
        needed: usize,
        /// Bytes there.
        found: usize,
    },
    /// The data is not a packed tensor.
    #[error("magic {found:#010x} is not {expected:#010x} (\"LCT1\"): not a packed tensor")]
    BadMagic {
        /// The first word of every packed tensor.
        expected: u32,
        /// The first word found.
        found: u32,
    },
    /// A format version this build does not read.
    #[error("format version {found} is unknown, this build reads {supported}; upgrade lct-kernels")]
    UnknownVersion {
        /// Version found.
        found: u16,
        /// Version read by this build.
        supported: u16,
    },
    /// An element type that this version does not pack.
    #[error("element type {found} is not BF16 (0), the only one that this format version packs")]
    UnknownDtype {
        /// Element type number found.
        found: u8,
    },
    /// A profile number without a meaning in this version.
    #[error("profile number {found} is unknown to this format version")]
    UnknownProfile {
        /// Profile number found.
        found: u8,
    },
    /// A header field disagrees with what profile and length prescribe.
    #[error("header field `{field}` is {found}, but profile and length prescribe {expected}")]
    HeaderField {
        /// Name of the field in `docs/FORMAT.md`.
        field: &'static str,
        /// Value prescribed.
        expected: u64,
        /// Value found.
        found: u64,
    },
    /// The blob has another length than its header prescribes.
    #[error("the blob has {found} words, its header prescribes {expected}")]
    BlobLength {
        /// Words prescribed.
        expected: u64,
        /// Words there.
        found: u64,
    },
    /// The spill buffer is shorter or longer than the header declares.
    #[error("the spill has {found} words, the header declares {declared} and allows {bound}")]
    SpillLength {
        /// Words the header declares as used.
        declared: u64,
        /// Words there.
        found: u64,
        /// The most words a tensor of this size can use.
        bound: u64,
    },
    /// The serialized form has another length than its header prescribes.
    #[error("{found} bytes were given, the header prescribes {expected}")]
    ByteLength {
        /// Bytes prescribed.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// The checksum does not match.
    #[error("checksum {computed:#010x} computed, {stored:#010x} stored: the bytes were altered")]
    Checksum {
        /// Checksum stored.
        stored: u32,
        /// Checksum of the bytes.
        computed: u32,
    },
    /// A code length is out of range.
    #[error("symbol {symbol} has code length {length}; lengths are at most {limit}")]
    CodeLength {
        /// Symbol, 256 for the escape.
        symbol: u32,
        /// Its length.
        length: u32,
        /// The longest code.
        limit: u32,
    },
    /// The code lengths cannot be told apart.
    #[error("the code lengths need {sum} of 256 parts of the code space")]
    Kraft {
        /// Code space needed, in parts of 1/256.
        sum: u32,
    },
    /// A directory entry points outside the words that hold records.
    #[error(
        "block {block}: a record of {words} words at place {place} does not lie in the {blob} words of the blob or the {spill} of the spill"
    )]
    Directory {
        /// Block.
        block: u32,
        /// Place of the record's first word.
        place: u32,
        /// Words of the record.
        words: u32,
        /// Words that the blob has for records.
        blob: u32,
        /// Words that the spill has for records.
        spill: u64,
    },
    /// A directory entry and its record disagree about the record's size.
    #[error(
        "block {block}: {rows} rows and {extra} extra half-words at most in {words} words; its counts prescribe {expected} words (0: they cannot be)"
    )]
    Record {
        /// Block.
        block: u32,
        /// Rows that the entry states.
        rows: u32,
        /// The most extra half-words of a stream that the entry states.
        extra: u32,
        /// Words that the entry states.
        words: u32,
        /// Words that the counts prescribe; 0 if rows and counts cannot be.
        expected: u32,
    },
    /// A stream holds bits that are no code.
    #[error("block {block}, stream {stream}: no code begins at symbol {symbol}")]
    InvalidCode {
        /// Block.
        block: u32,
        /// Stream.
        stream: u32,
        /// Symbol of the stream.
        symbol: u32,
    },
    /// A stream's codes reach past its words.
    #[error("block {block}, stream {stream}: {used} bits decoded from a stream of {capacity}")]
    StreamOverrun {
        /// Block.
        block: u32,
        /// Stream.
        stream: u32,
        /// Bits decoded.
        used: u32,
        /// Bits in the stream.
        capacity: u32,
    },
}
