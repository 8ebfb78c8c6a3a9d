//! Encoding on the host.

use rayon::prelude::*;

use crate::codebook::{Codebook, MAX_LENGTH};
use crate::header::{self, CODEBOOK_WORD, ESCAPE_WORD, TABLE_WORD, TABLE_WORDS};
use crate::layout::{
    BlockShape, COUNT_WORDS, DirectoryEntry, GRANULE, MAX_EXTRA, RAW, ROW_VALUES, STREAMS,
    chunk_of, plane_word,
};
use crate::packed::coded_words;
use crate::{CodecConfig, CodecError, Packed, PackedLayout, Profile};

/// A block's record, still without its place.
type Record = (DirectoryEntry, Vec<u32>);

/// Packs BF16 values, given as bit patterns.
///
/// Every bit pattern survives, NaN payloads included. The result depends on the values and the
/// settings alone, not on the number of threads.
///
/// # Errors
/// [`CodecError::TooManyValues`].
pub fn encode(values: &[u16], config: &CodecConfig) -> Result<Packed, CodecError> {
    let layout = PackedLayout::new(values.len(), config.profile)?.with_capacity(0);
    let mut blob = vec![0u32; layout.blob_words() as usize];
    let codebook = Codebook::choose(values, config.family);
    blob[..8].copy_from_slice(&header::fixed_words(&layout));
    blob[CODEBOOK_WORD] = codebook.origin;
    blob[ESCAPE_WORD] = codebook.lengths.escape as u32;
    blob[TABLE_WORD..][..TABLE_WORDS].copy_from_slice(&codebook.lengths.table_words());

    let body = &mut blob[layout.plane_offset_words() as usize..];
    let (plane, streams) = body.split_at_mut(layout.plane_words() as usize);
    let codes = codebook.lengths.codes().map(Code::new);
    let block_values = layout.block_values() as usize;
    let planes = values
        .par_chunks(block_values)
        .zip(plane.par_chunks_mut(block_values / 4))
        .enumerate();
    let records: Vec<Option<Record>> = if config.profile == Profile::Auto {
        planes
            .map(|(index, (values, plane))| {
                let block = Block::new(&layout, index, values, &codes);
                block.write_plane(plane);
                Some(block.record())
            })
            .collect()
    } else {
        let fixed = (config.profile.stream_words() * STREAMS) as usize;
        planes
            .zip(streams.par_chunks_mut(fixed))
            .map(|((index, (values, plane)), words)| {
                let block = Block::new(&layout, index, values, &codes);
                block.write_plane(plane);
                block.fixed(words)
            })
            .collect()
    };
    let mut packed = Packed {
        blob,
        spill: Vec::new(),
    };
    packed.append(&layout, &records);
    Ok(packed)
}

/// The longest code, an escape with its literal, and its number of bits above it.
#[derive(Clone, Copy)]
struct Code(u32);

const LONGEST: u32 = MAX_LENGTH + 8;
const _: () = assert!(LONGEST <= 16);

impl Code {
    fn new((bits, length): (u16, u8)) -> Self {
        Self(bits as u32 | (length as u32) << 16)
    }

    fn bits(self) -> u32 {
        self.0 & 0xffff
    }

    fn length(self) -> u32 {
        self.0 >> 16
    }
}

/// One block to be coded.
struct Block<'a> {
    shape: BlockShape,
    /// The most words of a stream.
    limit: usize,
    values: &'a [u16],
    codes: &'a [Code; 256],
}

/// The most words of any profile's streams.
const LIMIT: usize = 40;

/// A block's coded streams, and how many half-words each has.
struct Coded {
    words: [[u32; LIMIT]; STREAMS as usize],
    counts: [u32; STREAMS as usize],
}

impl<'a> Block<'a> {
    fn new(layout: &PackedLayout, index: usize, values: &'a [u16], codes: &'a [Code; 256]) -> Self {
        Self {
            shape: layout.block(index as u32),
            limit: layout.max_stream_words() as usize,
            values,
            codes,
        }
    }

    /// Writes signs and fractions, of each four values in a word the two in the middle swapped.
    fn write_plane(&self, plane: &mut [u32]) {
        let byte = |value: u16| (value >> 8 & 0x80 | value & 0x7f) as u32;
        for stream in 0..STREAMS {
            for row in 0..self.shape.rows {
                let first = (row * ROW_VALUES + chunk_of(stream, row) * GRANULE) as usize;
                let values = self.values.get(first..).unwrap_or_default();
                let values = &values[..values.len().min(GRANULE as usize)];
                let words = &mut plane[plane_word(stream, row) as usize..];
                for (word, four) in words.iter_mut().zip(values.chunks(4)) {
                    *word = match *four {
                        [a, b, c, d] => byte(a) | byte(c) << 8 | byte(b) << 16 | byte(d) << 24,
                        ref few => (few.iter().zip([0, 16, 8]))
                            .fold(0, |word, (&value, shift)| word | byte(value) << shift),
                    };
                }
            }
        }
    }

    /// The block with all its words in its record.
    fn record(&self) -> Record {
        let Some(coded) = self.coded() else {
            return self.raw();
        };
        let most = coded.most();
        let least = coded.counts.iter().copied().min().unwrap_or(0);
        let rows = (least / 2).max(most.saturating_sub(MAX_EXTRA).div_ceil(2));
        let words = coded_words(rows, coded.extra(rows));
        if words >= self.shape.raw_words() {
            return self.raw();
        }
        coded.record(rows, true)
    }

    /// Fills the words that the block's streams own, and makes a record of what does not fit.
    fn fixed(&self, words: &mut [u32]) -> Option<Record> {
        let rows = self.shape.stream_words;
        let Some(coded) = self.coded().filter(|coded| {
            coded.most() <= 2 * rows + MAX_EXTRA
                && coded_words(0, coded.extra(rows)) < self.shape.raw_words()
        }) else {
            return Some(self.raw());
        };
        coded.write_rows(rows, words);
        (coded.most() > 2 * rows).then(|| coded.record(rows, false))
    }

    /// All streams, or `None` if one of them is too long.
    fn coded(&self) -> Option<Box<Coded>> {
        let mut coded = Box::new(Coded {
            words: [[0; LIMIT]; STREAMS as usize],
            counts: [0; STREAMS as usize],
        });
        for (stream, (words, count)) in (0..).zip(coded.words.iter_mut().zip(&mut coded.counts)) {
            *count = self.stream(stream, &mut words[..self.limit])?;
        }
        Some(coded)
    }

    /// Codes one stream; returns the number of its half-words unless they are too many.
    fn stream(&self, stream: u32, words: &mut [u32]) -> Option<u32> {
        let (mut bits, mut pending, mut count) = (0u64, 0u32, 0usize);
        let mut push = |code: u32, length: u32| {
            bits = bits << length | code as u64;
            pending += length;
            if pending >= 32 {
                pending -= 32;
                *words.get_mut(count)? = (bits >> pending) as u32;
                count += 1;
            }
            Some(())
        };
        for row in 0..self.shape.rows {
            let first = (row * ROW_VALUES + chunk_of(stream, row) * GRANULE) as usize;
            let granule = self.values.get(first..).unwrap_or_default();
            let granule = &granule[..granule.len().min(GRANULE as usize)];
            let code = |value: u16| self.codes[(value >> 7 & 0xff) as usize];
            let mut pairs = granule.chunks_exact(2);
            for pair in &mut pairs {
                let (first, second) = (code(pair[0]), code(pair[1]));
                let bits = first.bits() << second.length() | second.bits();
                push(bits, first.length() + second.length())?;
            }
            for &value in pairs.remainder() {
                push(code(value).bits(), code(value).length())?;
            }
        }
        if pending > 0 {
            *words.get_mut(count)? = (bits << (32 - pending)) as u32;
        }
        Some(2 * count as u32 + pending.div_ceil(16))
    }

    /// A byte for each exponent, four in a word, the streams' words interleaved.
    fn raw(&self) -> Record {
        let mut words = vec![0u32; self.shape.raw_words() as usize];
        for stream in 0..STREAMS {
            for row in 0..self.shape.rows {
                let first = row * ROW_VALUES + chunk_of(stream, row) * GRANULE;
                let values = self
                    .values
                    .iter()
                    .skip(first as usize)
                    .take(GRANULE as usize);
                for (symbol, &value) in values.enumerate() {
                    let word = (2 * row + symbol as u32 / 4) * STREAMS + stream;
                    words[word as usize] |= ((value >> 7 & 0xff) as u32) << (symbol % 4 * 8);
                }
            }
        }
        let entry = DirectoryEntry {
            place: 0,
            rows: RAW,
            extra: 0,
            words: words.len() as u32,
        };
        (entry, words)
    }
}

impl Coded {
    fn most(&self) -> u32 {
        self.counts.iter().copied().max().unwrap_or(0)
    }

    /// Half-words beyond so many rows.
    fn extra(&self, rows: u32) -> u32 {
        self.counts
            .iter()
            .map(|count| count.saturating_sub(2 * rows))
            .sum()
    }

    fn write_rows(&self, rows: u32, words: &mut [u32]) {
        for (row, words) in (0..rows as usize).zip(words.chunks_exact_mut(STREAMS as usize)) {
            for (word, stream) in words.iter_mut().zip(&self.words) {
                *word = stream[row];
            }
        }
    }

    /// Counts, rows if they are part of the record, and the half-words beyond them.
    fn record(&self, rows: u32, with_rows: bool) -> Record {
        let in_record = if with_rows { rows } else { 0 };
        let mut words = vec![0u32; coded_words(in_record, self.extra(rows)) as usize];
        let (counts, rest) = words.split_at_mut(COUNT_WORDS as usize);
        let (row_words, extra) = rest.split_at_mut((in_record * STREAMS) as usize);
        self.write_rows(in_record, row_words);
        let mut place = 0;
        for (stream, (words, &count)) in self.words.iter().zip(&self.counts).enumerate() {
            counts[stream / 8] |= count.saturating_sub(2 * rows) << (4 * (stream % 8));
            for half in 2 * rows..count {
                let bits = words[half as usize / 2] >> (16 - half % 2 * 16) & 0xffff;
                extra[place / 2] |= bits << (16 - place % 2 * 16);
                place += 1;
            }
        }
        let entry = DirectoryEntry {
            place: 0,
            rows,
            extra: self.most().saturating_sub(2 * rows),
            words: words.len() as u32,
        };
        (entry, words)
    }
}
