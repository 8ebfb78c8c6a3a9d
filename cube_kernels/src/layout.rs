//! The geometry of a packed tensor.

use crate::header::DIRECTORY_WORD;
use crate::{CodecError, Profile};

/// Streams in a block; one GPU thread each, of one warp.
pub const STREAMS: u32 = 32;
/// Neighbouring values that go to the same stream.
pub const GRANULE: u32 = 8;
/// Values in one row of a block: one granule for each stream.
pub const ROW_VALUES: u32 = STREAMS * GRANULE;
/// By how many streams the dealing turns from row to row. Odd, so that a granule visits every
/// stream before it meets the first again.
pub const ROTATION: u32 = 5;
/// The most values that one packed tensor holds.
pub const MAX_VALUES: u64 = u32::MAX as u64;
/// The most half-words of 16 bits that a stream has beyond its block's rows: what four bits can count.
pub const MAX_EXTRA: u32 = 15;
/// Words that count each stream's extra half-words, eight counts in a word.
pub const COUNT_WORDS: u32 = STREAMS / 8;
/// Records are placed at multiples of this many words, and their lengths are multiples too.
pub const RECORD_ALIGN: u32 = 4;
/// Words of a directory entry.
pub const ENTRY_WORDS: u32 = 2;
/// Place of a block that has no record.
pub const NO_RECORD: u32 = u32::MAX;
/// Row count of a block that is stored raw.
pub const RAW: u32 = 0xff;

/// Sections start at multiples of this many words (256 bytes), because that is the coarsest
/// alignment a GPU runtime asks of a buffer binding, and sections are bound one by one.
const SECTION_WORDS: u64 = 64;
/// Bits per exponent that `Auto` makes room for if nothing better is known.
const EXPECTED_BITS: f64 = 3.0;

/// Sizes and offsets of a packed tensor's two buffers.
///
/// Everything follows from the number of values, the profile and, for [`Profile::Auto`], the room
/// for records in the blob, so buffers are allocated before the data exists and nothing waits for a
/// size to come back from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackedLayout {
    values: u32,
    profile: Profile,
    capacity: u32,
}

/// The shape of one block. Only the last block of a tensor is not full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockShape {
    /// Values in the block.
    pub values: u32,
    /// Rows of 256 values, the last of them perhaps partial.
    pub rows: u32,
    /// Words each stream owns; 0 if that is not fixed.
    pub stream_words: u32,
}

/// A block's entry in the directory: where its record lies.
///
/// | word | bits | content |
/// |---|---|---|
/// | 0 | | place of the record's first word, or [`NO_RECORD`] |
/// | 1 | 0 to 7 | full rows of words, or [`RAW`] |
/// | | 8 to 11 | the most extra half-words of a stream |
/// | | 12 to 31 | words of the record |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Place of the record's first word.
    pub place: u32,
    /// Rows of words, one of every stream; those of shorter streams are zero.
    pub rows: u32,
    /// The most half-words that a stream has beyond them.
    pub extra: u32,
    /// Words of the record.
    pub words: u32,
}

impl DirectoryEntry {
    /// The entry of a block that has no record.
    pub const NONE: [u32; 2] = [NO_RECORD, 0];

    /// Reads an entry, or `None` if the block has no record.
    pub fn read(words: [u32; 2]) -> Option<Self> {
        (words[0] != NO_RECORD).then_some(Self {
            place: words[0],
            rows: words[1] & 0xff,
            extra: words[1] >> 8 & 0xf,
            words: words[1] >> 12,
        })
    }

    /// The entry's two words.
    pub fn words(self) -> [u32; 2] {
        [self.place, self.rows | self.extra << 8 | self.words << 12]
    }
}

impl PackedLayout {
    /// The layout of `values` BF16 values under `profile`. `Auto` gets room for what data commonly takes; see
    /// [`with_capacity`](Self::with_capacity).
    ///
    /// # Errors
    /// [`CodecError::TooManyValues`] above [`MAX_VALUES`].
    pub fn new(values: usize, profile: Profile) -> Result<Self, CodecError> {
        match u32::try_from(values) {
            Ok(values) => Ok(Self {
                values,
                profile,
                capacity: 0,
            }
            .with_capacity((values as f64 * EXPECTED_BITS / 32.0) as u64)),
            Err(_) => Err(CodecError::TooManyValues {
                values: values as u64,
                limit: MAX_VALUES,
            }),
        }
    }

    /// The layout with room for at least `words` words of records in the blob, at most for what the tensor can need. What
    /// does not fit goes to the spill. No change but for [`Profile::Auto`].
    #[must_use]
    pub fn with_capacity(mut self, words: u64) -> Self {
        if self.profile == Profile::Auto {
            let needed = words.min(self.raw_words());
            self.capacity = needed.next_multiple_of(RECORD_ALIGN as u64) as u32;
        }
        self
    }

    /// Number of BF16 values.
    pub fn values(&self) -> usize {
        self.values as usize
    }

    /// The profile.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Words for records in the blob; 0 if each stream's place is fixed.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Symbols in each stream of a full block.
    pub fn stream_symbols(&self) -> u32 {
        self.profile.stream_symbols(self.values)
    }

    /// The most words that a coded stream takes: 5 bits a symbol, or 6 where streams are short and so differ more. A block
    /// that has a longer one is stored raw.
    pub fn max_stream_words(&self) -> u32 {
        8 + self.stream_symbols() / 8
    }

    /// Values in a full block.
    pub fn block_values(&self) -> u32 {
        self.stream_symbols() * STREAMS
    }

    /// Number of blocks; zero without values.
    pub fn blocks(&self) -> u32 {
        self.values.div_ceil(self.block_values())
    }

    /// The shape of block `block`.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn block(&self, block: u32) -> BlockShape {
        assert!(block < self.blocks(), "block {block} of {}", self.blocks());
        let full = self.block_values();
        let values = (self.values - block * full).min(full);
        let rows = values.div_ceil(ROW_VALUES);
        let stream_words =
            (self.profile.stream_words() * rows * GRANULE).div_ceil(self.stream_symbols());
        BlockShape {
            values,
            rows,
            stream_words,
        }
    }

    /// The block that codes value `value`, and which of its streams does.
    pub fn place_of(&self, value: u32) -> (u32, u32) {
        let (block, inner) = (value / self.block_values(), value % self.block_values());
        let (row, chunk) = (inner / ROW_VALUES, inner % ROW_VALUES / GRANULE);
        (block, stream_of(chunk, row))
    }

    /// Words of the directory in the blob. Where places are fixed there is none: the few blocks that do not fit are
    /// listed in the spill.
    pub fn directory_words(&self) -> u64 {
        match self.profile {
            Profile::Auto => (ENTRY_WORDS * self.blocks()) as u64,
            _ => 0,
        }
    }

    /// Words of the header, code table and directory, padding included: the plane's offset.
    pub fn plane_offset_words(&self) -> u64 {
        section(DIRECTORY_WORD as u64 + self.directory_words())
    }

    /// Words of the sign-fraction plane, padding included: whole pairs of rows.
    #[inline]
    pub fn plane_words(&self) -> u64 {
        section((self.values as u64).div_ceil(2 * ROW_VALUES as u64) * (2 * ROW_VALUES as u64) / 4)
    }

    /// Where the exponent streams begin, in words.
    pub fn streams_offset_words(&self) -> u64 {
        self.plane_offset_words() + self.plane_words()
    }

    /// Words of the exponent streams in the blob.
    pub fn streams_words(&self) -> u64 {
        match self.blocks() {
            0 => 0,
            _ if self.profile == Profile::Auto => self.capacity as u64,
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

    /// Words of all blocks' records if all are raw, which is the most that they can take.
    pub(crate) fn raw_words(&self) -> u64 {
        match self.blocks() {
            0 => 0,
            blocks => {
                let full = self.block(0).raw_words() as u64;
                (blocks - 1) as u64 * full + self.block(blocks - 1).raw_words() as u64
            }
        }
    }

    /// The most words the spill can take.
    ///
    /// The places that a record would take across the end of the blob are left unused, and it gets others.
    pub fn spill_bound_words(&self) -> u64 {
        let most = self.raw_words();
        match self.blocks() {
            0 => 0,
            blocks if self.profile != Profile::Auto => (ENTRY_WORDS * blocks) as u64 + most,
            _ if self.capacity as u64 >= most => 0,
            _ => most - self.capacity as u64 + self.block(0).raw_words() as u64,
        }
    }

    /// Bytes of the largest spill.
    pub fn spill_bound_bytes(&self) -> u64 {
        self.spill_bound_words() * 4
    }

    /// Words of the spill that are used if the places of all records end at `end`.
    pub fn spill_words(&self, end: u32) -> u64 {
        match self.profile {
            Profile::Auto => end.saturating_sub(self.capacity) as u64,
            _ if end == 0 => 0,
            _ => (ENTRY_WORDS * self.blocks()) as u64 + end as u64,
        }
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

    /// Words of the block's raw record: a byte for each exponent.
    pub fn raw_words(&self) -> u32 {
        self.rows * ROW_VALUES / 4
    }
}

/// The plane's word, from its block's first on, that holds the first four values of a stream's granule in row `row`: a
/// stream's granules of two rows are neighbours, so that a GPU thread reads both at once.
#[inline]
pub fn plane_word(stream: u32, row: u32) -> u32 {
    (row / 2 * STREAMS + stream) * (2 * GRANULE / 4) + row % 2 * (GRANULE / 4)
}

/// The granule of row `row` that goes to stream `stream`.
#[inline]
pub fn chunk_of(stream: u32, row: u32) -> u32 {
    stream.wrapping_sub(ROTATION * row) % STREAMS
}

/// The stream that takes granule `chunk` of row `row`.
#[inline]
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
        for values in [1, 7, 8, 255, 256, 257, 5000, 8191, 8192] {
            let layout = PackedLayout::new(values, Profile::Clean).unwrap();
            let shape = layout.block(0);
            let mut counts = [0u32; STREAMS as usize];
            for value in 0..values as u32 {
                let (row, chunk) = (value / ROW_VALUES, value % ROW_VALUES / GRANULE);
                let stream = stream_of(chunk, row);
                assert_eq!(chunk_of(stream, row), chunk);
                assert_eq!(layout.place_of(value), (0, stream));
                counts[stream as usize] += 1;
            }
            for stream in 0..STREAMS {
                assert_eq!(counts[stream as usize], shape.stream_count(stream));
            }
        }
        let layout = PackedLayout::new(8192 * 4, Profile::Clean).unwrap();
        assert_eq!(layout.place_of(8192 * 3 + 256 * 2 + 8 * 30), (3, 8));
    }

    #[test]
    fn clean_costs_what_the_design_says() {
        let n = 1 << 28;
        let layout = PackedLayout::new(n, Profile::Clean).unwrap();
        let ratio = layout.dense_bytes() as f64 / layout.blob_bytes() as f64;
        assert!((1.43819..1.43821).contains(&ratio), "{ratio}");
    }

    #[test]
    fn entries_survive() {
        let entry = DirectoryEntry {
            place: 0xffff_fff0,
            rows: RAW,
            extra: MAX_EXTRA,
            words: 2048,
        };
        assert_eq!(DirectoryEntry::read(entry.words()), Some(entry));
        assert_eq!(DirectoryEntry::read(DirectoryEntry::NONE), None);
    }

    #[test]
    fn limits() {
        assert_eq!(PackedLayout::new(0, Profile::High).unwrap().blocks(), 0);
        let max = PackedLayout::new(MAX_VALUES as usize, Profile::High).unwrap();
        assert_eq!(max.blocks(), 1 << 20);
        let most = PackedLayout::new(MAX_VALUES as usize, Profile::Auto).unwrap();
        assert_eq!(most.with_capacity(u64::MAX).spill_bound_words(), 0);
        assert_eq!(
            PackedLayout::new(1 << 32, Profile::High),
            Err(CodecError::TooManyValues {
                values: 1 << 32,
                limit: MAX_VALUES
            })
        );
    }
}
