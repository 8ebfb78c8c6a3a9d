//! Encoding on the host.

use rayon::prelude::*;

use crate::codebook::{Codebook, MAX_LENGTH};
use crate::header::{self, CODEBOOK_WORD, ESCAPE_WORD, TABLE_WORD, TABLE_WORDS};
use crate::layout::{
    BlockShape, COUNT_WORDS, DirectoryEntry, GRANULE, MAX_EXTRA, RAW, ROW_VALUES, STREAMS,
    chunk_of, plane_word,
};
use crate::packed::{Records, coded_words};
use crate::{CodecConfig, CodecError, Packed, PackedLayout, Profile};

/// The most blocks that are coded one after the other.
const BLOCKS_PER_TASK: usize = 32;

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
    let room = layout.with_capacity(values.len() as u64 / 8).blob_words();
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
    // Whatever the tasks are, the result is the same.
    let share = layout.blocks() as usize / (4 * rayon::current_num_threads());
    let together = share.clamp(1, BLOCKS_PER_TASK);
    let task = |(task, (values, plane)): (usize, (&[u16], &mut [u32])), mut words: &mut [u32]| {
        let mut coded = Box::new(Coded::EMPTY);
        let mut records = Records::default();
        if config.profile == Profile::Auto {
            // What exponents mostly take, so that the words seldom move.
            records.words.reserve(together * block_values / 10);
        }
        // Streams go through a block in strides, which the cache does not foresee: so it is read and written in one go.
        let mut read = Vec::with_capacity(block_values);
        let mut written = vec![0; block_values / 4];
        let blocks = values
            .chunks(block_values)
            .zip(plane.chunks_mut(block_values / 4));
        for (index, (values, plane)) in (task * together..).zip(blocks) {
            read.clear();
            read.extend_from_slice(values);
            let block = Block {
                shape: layout.block(index as u32),
                limit: layout.max_stream_words() as usize,
                values: &read,
                codes: &codes,
            };
            let written = &mut written[..plane.len()];
            if values.len() < block_values {
                written.fill(0);
            }
            block.code(written, &mut coded);
            plane.copy_from_slice(written);
            if config.profile == Profile::Auto {
                block.record(&coded, &mut records);
            } else {
                let fixed = (block.shape.stream_words * STREAMS) as usize;
                let (own, others) = std::mem::take(&mut words).split_at_mut(fixed);
                block.fixed(&coded, own, &mut records);
                words = others;
            }
        }
        records
    };
    let tasks = values
        .par_chunks(block_values * together)
        .zip(plane.par_chunks_mut(block_values / 4 * together))
        .enumerate();
    let records: Vec<Records> = if config.profile == Profile::Auto {
        tasks.map(|all| task(all, &mut [])).collect()
    } else {
        let fixed = (config.profile.stream_words() * STREAMS) as usize * together;
        tasks
            .zip(streams.par_chunks_mut(fixed))
            .map(|(all, words)| task(all, words))
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

impl Block<'_> {
    /// Writes the block's plane and codes all streams.
    fn code(&self, plane: &mut [u32], coded: &mut Coded) {
        coded.clear();
        for stream in 0..STREAMS {
            coded.counts[stream as usize] = self.stream(stream, plane, &mut coded.rows);
        }
    }

    /// Whether the coded streams fit a record with these rows, of which so many are in it.
    fn fits(&self, coded: &Coded, rows: u32, in_record: u32) -> bool {
        let most = coded.most();
        most.div_ceil(2) as usize <= self.limit
            && most <= 2 * rows + MAX_EXTRA
            && coded_words(in_record, coded.extra(rows)) < self.shape.raw_words()
    }

    /// Adds the block with all its words to the records.
    fn record(&self, coded: &Coded, records: &mut Records) {
        let least = coded.counts.iter().copied().min().unwrap_or(0);
        let rows = (least / 2).max(coded.most().saturating_sub(MAX_EXTRA).div_ceil(2));
        if self.fits(coded, rows, rows) {
            coded.record(rows, rows, records);
        } else {
            self.raw(records);
        }
    }

    /// Fills the words that the block's streams own, and adds what does not fit to the records.
    fn fixed(&self, coded: &Coded, words: &mut [u32], records: &mut Records) {
        let rows = self.shape.stream_words;
        if !self.fits(coded, rows, 0) {
            return self.raw(records);
        }
        words.copy_from_slice(coded.rows[..rows as usize].as_flattened());
        if coded.most() > 2 * rows {
            coded.record(rows, 0, records);
        } else {
            records.entries.push(None);
        }
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

    /// Adds a byte for each exponent, four in a word, the streams' words interleaved.
    fn raw(&self, records: &mut Records) {
        let base = records.words.len();
        let words = self.shape.raw_words();
        records.words.resize(base + words as usize, 0);
        for stream in 0..STREAMS {
            for row in 0..self.shape.rows {
                let first = (row * ROW_VALUES + chunk_of(stream, row) * GRANULE) as usize;
                let values = self.values.iter().skip(first).take(GRANULE as usize);
                for (symbol, &value) in values.enumerate() {
                    let word = (2 * row + symbol as u32 / 4) * STREAMS + stream;
                    records.words[base + word as usize] |=
                        ((value >> 7 & 0xff) as u32) << (symbol % 4 * 8);
                }
            }
        }
        records.entries.push(Some(DirectoryEntry {
            place: 0,
            rows: RAW,
            extra: 0,
            words,
        }));
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
    const EMPTY: Self = Self {
        rows: [[0; STREAMS as usize]; LIMIT + 1],
        counts: [0; STREAMS as usize],
    };

    /// Makes room for another block.
    fn clear(&mut self) {
        // The last word of a stream is written before it is full.
        let used = (self.most() as usize / 2 + 1).min(LIMIT + 1);
        self.rows[..used].as_flattened_mut().fill(0);
    }

    fn most(&self) -> u32 {
        self.counts.iter().copied().max().unwrap_or(0)
    }

    /// Half-words beyond so many rows.
    fn extra(&self, rows: u32) -> u32 {
        let beyond = |&count: &u32| count.saturating_sub(2 * rows);
        self.counts.iter().map(beyond).sum()
    }

    /// Adds a record: counts, the rows that are in it, and the half-words beyond `rows`.
    fn record(&self, rows: u32, in_record: u32, records: &mut Records) {
        let mut counts = [0; COUNT_WORDS as usize];
        // One word more than all streams' fifteen half-words.
        let mut extra = [0; (STREAMS * (MAX_EXTRA + 1) / 2) as usize];
        // Pending bits, the last one lowest, and the extra words that are full. As many steps for each stream, and none of
        // them a branch, as for the longest: nobody could predict how many each has.
        let (mut bits, mut pending, mut full) = (0u64, 0, 0);
        let steps = self.most().div_ceil(2).saturating_sub(rows) as usize;
        let beyond = &self.rows[rows as usize..][..steps];
        for (stream, &count) in self.counts.iter().enumerate() {
            let mut left = count.saturating_sub(2 * rows);
            counts[stream / 8] |= left << (4 * (stream % 8));
            for row in beyond {
                let length = 16 * left.min(2);
                left = left.saturating_sub(2);
                bits = bits << length | (row[stream] as u64) >> (32 - length);
                pending += length;
                extra[full] = (bits >> (pending % 32)) as u32;
                full += pending as usize / 32;
                pending %= 32;
            }
        }
        let halves = 2 * full as u32 + pending / 16;
        extra[full] = if pending > 0 {
            (bits << (32 - pending)) as u32
        } else {
            0
        };
        let words = coded_words(in_record, halves);
        let rest = words - COUNT_WORDS - in_record * STREAMS;
        records.words.extend_from_slice(&counts);
        let own = self.rows[..in_record as usize].as_flattened();
        records.words.extend_from_slice(own);
        records.words.extend_from_slice(&extra[..rest as usize]);
        records.entries.push(Some(DirectoryEntry {
            place: 0,
            rows,
            extra: self.most().saturating_sub(2 * rows),
            words,
        }));
    }
}
