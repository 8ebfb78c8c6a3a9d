//! The geometry of a packed tensor: a pure function of its length and profile.

use crate::{CodecError, Profile};

/// Streams in a block; one GPU thread each.
pub const STREAMS: u32 = 256;
/// Neighbouring values that go to the same stream.
pub const GRANULE: u32 = 8;
/// Values in one row of a block: one granule for each stream.
pub const ROW_VALUES: u32 = STREAMS * GRANULE;
/// By how many streams the dealing turns from row to row. Odd, so that a granule visits every
/// stream before it meets the first again, and far from powers of two, which tensors' widths are.
pub const ROTATION: u32 = 37;
/// The most values that one packed tensor holds.
pub const MAX_VALUES: u64 = u32::MAX as u64;
/// Words of a spill record that hold its markers, two in a word.
pub const MARKER_WORDS: u32 = STREAMS / 2;
/// Directory entry of a block that did not spill.
pub const NO_SPILL: u32 = u32::MAX;

/// Sections start at multiples of this many words (256 bytes), because that is the coarsest
/// alignment a GPU runtime asks of a buffer binding, and sections are bound one by one.
const SECTION_WORDS: u64 = 64;

/// Sizes and offsets of a packed tensor's two buffers.
///
/// Everything follows from the number of values and the profile, so buffers are allocated before
/// the data exists and nothing waits for a size to come back from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackedLayout {
    values: u32,
    profile: Profile,
}

/// The shape of one block. Only the last block of a tensor is not full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockShape {
    /// Values in the block.
    pub values: u32,
    /// Rows of 2,048 values, the last of them perhaps partial.
    pub rows: u32,
    /// Words each stream owns.
    pub stream_words: u32,
}

impl PackedLayout {
    /// The layout of `values` BF16 values under `profile`.
    ///
    /// # Errors
    /// [`CodecError::TooManyValues`] above [`MAX_VALUES`].
    pub fn new(values: usize, profile: Profile) -> Result<Self, CodecError> {
        match u32::try_from(values) {
            Ok(values) => Ok(Self { values, profile }),
            Err(_) => Err(CodecError::TooManyValues {
                values: values as u64,
                limit: MAX_VALUES,
            }),
        }
    }

    /// Number of BF16 values.
    pub fn values(&self) -> usize {
        self.values as usize
    }

    /// The profile.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Number of blocks; zero without values.
    pub fn blocks(&self) -> u32 {
        self.values.div_ceil(self.profile.block_values())
    }

    /// The shape of block `block`.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn block(&self, block: u32) -> BlockShape {
        assert!(block < self.blocks(), "block {block} of {}", self.blocks());
        let full = self.profile.block_values();
        let values = (self.values - block * full).min(full);
        let rows = values.div_ceil(ROW_VALUES);
        let stream_words =
            (self.profile.stream_words() * rows * GRANULE).div_ceil(self.profile.stream_symbols());
        BlockShape {
            values,
            rows,
            stream_words,
        }
    }

    /// Words of the header, code table and directory, padding included: the plane's offset.
    pub fn plane_offset_words(&self) -> u64 {
        section(crate::header::DIRECTORY_WORD as u64 + self.blocks() as u64)
    }

    /// Words of the sign-fraction plane, padding included.
    pub fn plane_words(&self) -> u64 {
        section((self.values as u64).div_ceil(4))
    }

    /// Where the exponent streams begin, in words.
    pub fn streams_offset_words(&self) -> u64 {
        self.plane_offset_words() + self.plane_words()
    }

    /// Words of the exponent streams of every block.
    pub fn streams_words(&self) -> u64 {
        match self.blocks() {
            0 => 0,
            blocks => {
                let full = (blocks - 1) as u64 * self.profile.stream_words() as u64;
                (full + self.block(blocks - 1).stream_words as u64) * STREAMS as u64
            }
        }
    }

    /// Words of the blob: every section.
    pub fn blob_words(&self) -> u64 {
        self.streams_offset_words() + self.streams_words()
    }

    /// Bytes of the blob.
    pub fn blob_bytes(&self) -> u64 {
        self.blob_words() * 4
    }

    /// The most words the spill can take.
    ///
    /// No symbol takes more than 16 bits, so `W` words hold at least `2 W` symbols and at most
    /// `L - 2 W` of a stream spill, each as one byte.
    pub fn spill_bound_words(&self) -> u64 {
        let bound = |shape: BlockShape| {
            let symbols = shape.rows * GRANULE;
            let spilled = symbols.saturating_sub(2 * shape.stream_words);
            match spilled {
                0 => 0,
                _ => (MARKER_WORDS + STREAMS * spilled.div_ceil(4)) as u64,
            }
        };
        match self.blocks() {
            0 => 0,
            1 => bound(self.block(0)),
            blocks => (blocks - 1) as u64 * bound(self.block(0)) + bound(self.block(blocks - 1)),
        }
    }

    /// Bytes of the largest spill.
    pub fn spill_bound_bytes(&self) -> u64 {
        self.spill_bound_words() * 4
    }

    /// Bytes of the dense form.
    pub fn dense_bytes(&self) -> u64 {
        self.values as u64 * 2
    }
}

impl BlockShape {
    /// Symbols that stream `stream` holds.
    pub fn stream_count(&self, stream: u32) -> u32 {
        let last = self.rows - 1;
        let before = last * ROW_VALUES + chunk_of(stream, last) * GRANULE;
        last * GRANULE + self.values.saturating_sub(before).min(GRANULE)
    }
}

/// The granule of row `row` that goes to stream `stream`.
pub fn chunk_of(stream: u32, row: u32) -> u32 {
    stream.wrapping_sub(ROTATION * row) % STREAMS
}

/// The stream that takes granule `chunk` of row `row`.
pub fn stream_of(chunk: u32, row: u32) -> u32 {
    (chunk + ROTATION * row) % STREAMS
}

fn section(words: u64) -> u64 {
    words.next_multiple_of(SECTION_WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dealing_is_a_permutation_and_counts_agree() {
        for values in [1, 7, 8, 2047, 2048, 2049, 40_000, 65_535, 65_536] {
            let layout = PackedLayout::new(values, Profile::Clean).unwrap();
            let shape = layout.block(0);
            let mut counts = [0u32; STREAMS as usize];
            for value in 0..values as u32 {
                let (row, chunk) = (value / ROW_VALUES, value % ROW_VALUES / GRANULE);
                let stream = stream_of(chunk, row);
                assert_eq!(chunk_of(stream, row), chunk);
                counts[stream as usize] += 1;
            }
            for stream in 0..STREAMS {
                assert_eq!(counts[stream as usize], shape.stream_count(stream));
            }
        }
    }

    #[test]
    fn clean_costs_what_the_design_says() {
        let n = 1 << 28;
        let layout = PackedLayout::new(n, Profile::Clean).unwrap();
        let ratio = layout.dense_bytes() as f64 / layout.blob_bytes() as f64;
        assert!((1.438..1.4382).contains(&ratio), "{ratio}");
    }

    #[test]
    fn limits() {
        assert_eq!(PackedLayout::new(0, Profile::High).unwrap().blocks(), 0);
        let max = PackedLayout::new(MAX_VALUES as usize, Profile::High).unwrap();
        assert_eq!(max.blocks(), 131_072);
        assert_eq!(
            PackedLayout::new(1 << 32, Profile::High),
            Err(CodecError::TooManyValues {
                values: 1 << 32,
                limit: MAX_VALUES
            })
        );
    }
}
