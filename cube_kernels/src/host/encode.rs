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
    // With room for all records, whatever they take: memory that is never touched costs nothing.
    let room = layout.with_capacity(u64::MAX).blob_words();
    let mut blob = vec![0u32; room as usize];
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
                Some(block.record(plane))
            })
            .collect()
    } else {
        let fixed = (config.profile.stream_words() * STREAMS) as usize;
        planes
            .zip(streams.par_chunks_mut(fixed))
            .map(|((index, (values, plane)), words)| {
                let block = Block::new(&layout, index, values, &codes);
                block.fixed(plane, words)
            })
            .collect()
    };
    let mut packed = Packed {
        blob,
        spill: Vec::new(),
    };
    packed.append(&layout, &records);
    packed.blob.shrink_to_fit();
    Ok(packed)
}

/// A code, an escape's literal included, and above it the number of its bits. The sum of a few has the sum of each field.
#[derive(Clone, Copy)]
struct Code(u32);

const LONGEST: u32 = MAX_LENGTH + 8;
const _: () = assert!(LONGEST <= 16);

impl Code {
    fn new((bits, length): (u16, u8)) -> Self {
        Self(bits as u32 | (length as u32) << 24)
    }

    #[inline]
    fn bits(self) -> u64 {
        (self.0 & 0xffff) as u64
    }

    #[inline]
    fn length(self) -> u32 {
        self.0 >> 24
    }

    /// This code and the next one behind it.
    #[inline]
    fn then(self, next: Self) -> u64 {
        self.bits() << next.length() | next.bits()
    }

    /// Bits that both take.
    #[inline]
    fn and(self, next: Self) -> Self {
        Self(self.0 + next.0)
    }
}

/// The most words of any profile's streams.
const LIMIT: usize = 40;

/// Rows of the streams' words, as a record has them. The last takes what is too much.
type Rows = [[u32; STREAMS as usize]; LIMIT + 1];

/// A stream being written.
struct Writer<'a> {
    rows: &'a mut Rows,
    stream: usize,
    /// Words that are full.
    count: usize,
    /// Pending bits, the last one lowest; above them lie bits that were written before.
    bits: u64,
    /// Number of pending bits, below 32 between codes.
    pending: u32,
}

impl Writer<'_> {
    /// Appends 1 to 32 bits. Without a branch, as nobody could predict it: a word that is not full is written again later.
    #[inline]
    fn push(&mut self, bits: u64, length: u32) {
        self.bits = self.bits << length | bits;
        self.pending += length;
        self.write((self.bits >> (self.pending % 32)) as u32);
        self.count += self.pending as usize / 32;
        self.pending %= 32;
    }

    /// Appends the codes of eight values, at once if they take at most 32 bits, as they mostly do.
    #[inline]
    fn eight(&mut self, codes: [Code; 8]) {
        let [a, b, c, d, e, f, g, h] = codes;
        let (first, second) = (a.and(b).and(c.and(d)), e.and(f).and(g.and(h)));
        if first.length() + second.length() <= 32 {
            let front = a.then(b) << c.and(d).length() | c.then(d);
            let back = e.then(f) << g.and(h).length() | g.then(h);
            let length = first.length() + second.length();
            self.push(front << second.length() | back, length);
        } else {
            for [first, second] in [[a, b], [c, d], [e, f], [g, h]] {
                self.push(first.then(second), first.and(second).length());
            }
        }
    }

    #[inline]
    fn write(&mut self, word: u32) {
        self.rows[self.count.min(LIMIT)][self.stream % STREAMS as usize] = word;
    }

    /// Writes the pending bits; returns the number of half-words.
    fn finish(mut self) -> u32 {
        let end = (self.bits << (32 - self.pending)) as u32;
        self.write(if self.pending > 0 { end } else { 0 });
        2 * self.count as u32 + self.pending.div_ceil(16)
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

/// A block's coded streams, and how many half-words each has.
struct Coded {
    rows: Rows,
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

    /// The block with all its words in its record.
    fn record(&self, plane: &mut [u32]) -> Record {
        let Some(coded) = self.coded(plane) else {
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
    fn fixed(&self, plane: &mut [u32], words: &mut [u32]) -> Option<Record> {
        let rows = self.shape.stream_words;
        let Some(coded) = self.coded(plane).filter(|coded| {
            coded.most() <= 2 * rows + MAX_EXTRA
                && coded_words(0, coded.extra(rows)) < self.shape.raw_words()
        }) else {
            return Some(self.raw());
        };
        coded.write_rows(rows, words);
        (coded.most() > 2 * rows).then(|| coded.record(rows, false))
    }

    /// Writes the block's plane and codes all streams; `None` if one of them is too long.
    fn coded(&self, plane: &mut [u32]) -> Option<Box<Coded>> {
        let mut coded = Box::new(Coded {
            rows: [[0; STREAMS as usize]; LIMIT + 1],
            counts: [0; STREAMS as usize],
        });
        for stream in 0..STREAMS {
            coded.counts[stream as usize] = self.stream(stream, plane, &mut coded.rows);
        }
        (coded.most().div_ceil(2) as usize <= self.limit).then_some(coded)
    }

    /// Codes one stream, and writes its signs and fractions, of each four values in a word the two in the middle swapped;
    /// returns the number of its half-words.
    fn stream(&self, stream: u32, plane: &mut [u32], rows: &mut Rows) -> u32 {
        let mut writer = Writer {
            rows,
            stream: stream as usize,
            count: 0,
            bits: 0,
            pending: 0,
        };
        let code = |value: u64| self.codes[(value >> 7 & 0xff) as usize];
        for row in 0..self.shape.rows {
            let first = (row * ROW_VALUES + chunk_of(stream, row) * GRANULE) as usize;
            let values = self.values.get(first..).unwrap_or_default();
            let plane = &mut plane[plane_word(stream, row) as usize..][..2];
            if let Some(granule) = values.first_chunk::<8>() {
                let [low, high] = [0, 4].map(|first| four(&granule[first..first + 4]));
                plane.copy_from_slice(&[plane_of(low), plane_of(high)]);
                let codes = [low, high]
                    .map(|all| [code(all), code(all >> 16), code(all >> 32), code(all >> 48)]);
                let [[a, b, c, d], [e, f, g, h]] = codes;
                writer.eight([a, b, c, d, e, f, g, h]);
            } else {
                for (word, values) in plane.iter_mut().zip(values.chunks(4)) {
                    *word = plane_of(four(values));
                    for &value in values {
                        let code = code(value as u64);
                        writer.push(code.bits(), code.length());
                    }
                }
            }
        }
        writer.finish()
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

/// At most four values, the first one lowest.
#[inline]
fn four(values: &[u16]) -> u64 {
    let values = values.iter().rev();
    values.fold(0, |all, &value| all << 16 | value as u64)
}

/// Signs and fractions of four values, the two in the middle swapped.
#[inline]
fn plane_of(four: u64) -> u32 {
    const FRACTIONS: u64 = 0x007f_007f_007f_007f;
    const SIGNS: u64 = 0x0080_0080_0080_0080;
    let bytes = four & FRACTIONS | four >> 8 & SIGNS;
    (bytes | bytes >> 24) as u32
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
        words.copy_from_slice(self.rows[..rows as usize].as_flattened());
    }

    /// Counts, rows if they are part of the record, and the half-words beyond them.
    fn record(&self, rows: u32, with_rows: bool) -> Record {
        let in_record = if with_rows { rows } else { 0 };
        let mut words = vec![0u32; coded_words(in_record, self.extra(rows)) as usize];
        let (counts, rest) = words.split_at_mut(COUNT_WORDS as usize);
        let (row_words, extra) = rest.split_at_mut((in_record * STREAMS) as usize);
        self.write_rows(in_record, row_words);
        let mut place = 0;
        for (stream, &count) in self.counts.iter().enumerate() {
            counts[stream / 8] |= count.saturating_sub(2 * rows) << (4 * (stream % 8));
            for half in 2 * rows..count {
                let word = self.rows[half as usize / 2][stream];
                let bits = word >> (16 - half % 2 * 16) & 0xffff;
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
