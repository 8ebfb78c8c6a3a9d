//! Decoding on the host.

use rayon::prelude::*;

use crate::codebook::{DecodeTable, Entry};
use crate::layout::{
    BlockShape, COUNT_WORDS, GRANULE, RAW, ROW_VALUES, STREAMS, chunk_of, plane_word,
};
use crate::packed::extra_halves;
use crate::{CodecError, Packed, Profile};

/// Decodes a packed tensor to BF16 bit patterns.
///
/// # Errors
/// Any flaw of the packed form, as its own variant of [`CodecError`].
pub fn decode(packed: &Packed) -> Result<Vec<u16>, CodecError> {
    // Before the allocation, so that a forged length costs no memory.
    let layout = packed.validate()?;
    let mut values = vec![0; layout.values()];
    decode_validated(packed, &mut values)?;
    Ok(values)
}

/// Decodes a packed tensor into `output`, whose length must be the tensor's.
///
/// # Errors
/// [`CodecError::OutputLength`], or any flaw of the packed form; then `output`'s content is
/// unspecified.
pub fn decode_into(packed: &Packed, output: &mut [u16]) -> Result<(), CodecError> {
    let layout = packed.validate()?;
    if output.len() != layout.values() {
        return Err(CodecError::OutputLength {
            expected: layout.values(),
            found: output.len(),
        });
    }
    decode_validated(packed, output)
}

fn decode_validated(packed: &Packed, output: &mut [u16]) -> Result<(), CodecError> {
    let layout = packed.layout()?;
    if output.is_empty() {
        return Ok(());
    }
    let table = DecodeTable::new(&packed.code_lengths()?);
    let body = &packed.blob[layout.plane_offset_words() as usize..];
    let (plane, streams) = body.split_at(layout.plane_words() as usize);
    let block_values = layout.block_values() as usize;
    let fixed_words = (layout.profile().stream_words() * STREAMS) as usize;
    output
        .par_chunks_mut(block_values)
        .zip(plane.par_chunks(block_values / 4))
        .enumerate()
        .try_for_each(|(index, (output, plane))| {
            let block = index as u32;
            let shape = layout.block(block);
            let record = packed.record(&layout, block);
            if let Some((entry, record)) = record
                && entry.rows == RAW
            {
                write_raw(record, shape, plane, output);
                return Ok(());
            }
            // Rows, then extra words.
            let (rows, counts, rows_at, extra) = match record {
                Some((entry, record)) if layout.profile() == Profile::Auto => {
                    let (counts, words) = record.split_at(COUNT_WORDS as usize);
                    let (rows, extra) = words.split_at((entry.rows * STREAMS) as usize);
                    (entry.rows, counts, rows, extra)
                }
                record => {
                    let rows = &streams[index * fixed_words..];
                    let (counts, extra) = match record {
                        Some((_, record)) => record.split_at(COUNT_WORDS as usize),
                        None => (&[0; COUNT_WORDS as usize][..], &[][..]),
                    };
                    (shape.stream_words, counts, rows, extra)
                }
            };
            let mut place = 0;
            let mut bytes = [[0; 4 * ROOM]; TOGETHER];
            for first in (0..STREAMS).step_by(TOGETHER) {
                let mut used = [0; TOGETHER];
                for ((stream, bytes), used) in (first..).zip(&mut bytes).zip(&mut used) {
                    let own_rows = rows_at.get(stream as usize..).unwrap_or_default();
                    let interleaved = own_rows.iter().step_by(STREAMS as usize);
                    let words = bytes.chunks_exact_mut(4);
                    for (word, coded) in words.zip(interleaved.take(rows as usize)) {
                        word.copy_from_slice(&coded.to_be_bytes());
                    }
                    let halves = extra_halves(counts, stream);
                    // What an earlier stream left lies behind the end; reading it is noticed by its place.
                    *used = rows + halves.div_ceil(2);
                    bytes[4 * rows as usize..4 * *used as usize].fill(0);
                    for half in 2 * rows..2 * rows + halves {
                        let bits = (extra[place / 2] >> (16 - place % 2 * 16)) as u16;
                        bytes[2 * half as usize..][..2].copy_from_slice(&bits.to_be_bytes());
                        place += 1;
                    }
                }
                let mut streams = std::array::from_fn(|index| Coded {
                    block,
                    stream: first + index as u32,
                    bytes: &bytes[index],
                    count: used[index],
                    table: &table,
                    position: 0,
                });
                decode_streams(&mut streams, shape, plane, output)?;
            }
            Ok(())
        })
}

/// A granule's first `exponents.len()` values from exponents, where BF16 has them, and two words of the plane.
#[inline]
fn merge(exponents: &[u16], plane: &[u32], output: &mut [u16]) {
    // The two in the middle of each four are swapped.
    const SHIFTS: [u32; 4] = [0, 16, 8, 24];
    for (index, (value, &exponent)) in output.iter_mut().zip(exponents).enumerate() {
        let byte = (plane[index / 4] >> SHIFTS[index % 4]) as u16;
        *value = exponent | (byte & 0x80) << 8 | byte & 0x7f;
    }
}

fn write_raw(record: &[u32], shape: BlockShape, plane: &[u32], output: &mut [u16]) {
    for row in 0..shape.rows {
        for stream in 0..STREAMS {
            let first = (row * ROW_VALUES + chunk_of(stream, row) * GRANULE) as usize;
            let Some(output) = output.get_mut(first..) else {
                continue;
            };
            let mut exponents = [0; GRANULE as usize];
            for (symbol, exponent) in (0..).zip(&mut exponents) {
                let word = record[((2 * row + symbol / 4) * STREAMS + stream) as usize];
                *exponent = ((word >> (symbol % 4 * 8)) as u16 & 0xff) << 7;
            }
            merge(
                &exponents,
                &plane[plane_word(stream, row) as usize..],
                output,
            );
        }
    }
}

/// Words that any stream of at most 256 symbols takes, and more; a power of two, so that no index needs a check.
const ROOM: usize = 256;

/// Streams that are decoded together: each waits for its own table look-ups only.
const TOGETHER: usize = 4;

/// One coded stream.
struct Coded<'a> {
    block: u32,
    stream: u32,
    /// Its bytes in the order in which they are read.
    bytes: &'a [u8; 4 * ROOM],
    /// Its number of words.
    count: u32,
    table: &'a DecodeTable,
    /// Bits that were read.
    position: u32,
}

/// Writes the streams' values.
fn decode_streams(
    streams: &mut [Coded<'_>; TOGETHER],
    shape: BlockShape,
    plane: &[u32],
    output: &mut [u16],
) -> Result<(), CodecError> {
    for row in 0..shape.rows {
        for coded in &mut *streams {
            let first = (row * ROW_VALUES + chunk_of(coded.stream, row) * GRANULE) as usize;
            if let Some(output) = output.get_mut(first..) {
                let plane = &plane[plane_word(coded.stream, row) as usize..][..2];
                let count = output.len().min(GRANULE as usize);
                coded.granule(row, plane, &mut output[..count])?;
            }
        }
    }
    streams.iter().try_for_each(Coded::check_end)
}

impl Coded<'_> {
    /// Writes at most eight values.
    #[inline]
    fn granule(&mut self, row: u32, plane: &[u32], output: &mut [u16]) -> Result<(), CodecError> {
        if let Ok(output) = <&mut [u16; GRANULE as usize]>::try_from(&mut *output)
            && let Some(pairs) = self.four_pairs()
        {
            for (half, (output, &word)) in output.chunks_exact_mut(4).zip(plane).enumerate() {
                // Of each four bytes the two in the middle are swapped.
                let low = word & 0x007f_007f | word << 8 & 0x8000_8000;
                let high = word >> 8 & 0x007f_007f | word & 0x8000_8000;
                let low = pairs[2 * half] & Entry::PAIR_MASK | low;
                let high = pairs[2 * half + 1] & Entry::PAIR_MASK | high;
                let [a, b, c, d] = [low, low >> 16, high, high >> 16];
                output.copy_from_slice(&[a as u16, b as u16, c as u16, d as u16]);
            }
            return Ok(());
        }
        self.symbols(row, plane, output)
    }

    /// Writes at most eight values, one at a time.
    #[cold]
    fn symbols(&mut self, row: u32, plane: &[u32], output: &mut [u16]) -> Result<(), CodecError> {
        let mut exponents = [0; GRANULE as usize];
        for (symbol, exponent) in (0..).zip(&mut exponents[..output.len()]) {
            *exponent = self.symbol(row * GRANULE + symbol)?;
        }
        merge(&exponents, plane, output);
        Ok(())
    }

    fn check_end(&self) -> Result<(), CodecError> {
        let capacity = self.count * 32;
        if self.position > capacity {
            return Err(CodecError::StreamOverrun {
                block: self.block,
                stream: self.stream,
                used: self.position,
                capacity,
            });
        }
        Ok(())
    }

    /// At least 57 bits from `position` on, the next one highest.
    #[inline]
    fn window(&self, position: u32) -> u64 {
        // A stream of at most 256 symbols ends long before.
        let first = (position as usize / 8).min(4 * ROOM - 8);
        let bytes = self.bytes[first..].first_chunk();
        u64::from_be_bytes(*bytes.unwrap_or(&[0; 8])) << (position % 8)
    }

    /// The entries of a granule's exponents, if the table has all four pairs; then they have been read.
    #[inline]
    fn four_pairs(&mut self) -> Option<[u32; 4]> {
        // Four pairs take at most 48 bits.
        let mut window = self.window(self.position);
        let mut pairs = [0; 4];
        let (mut all, mut missing) = (0, false);
        for pair in &mut pairs {
            let entry = self.table.get((window >> 52) as usize);
            missing |= entry.pair_bits() == 0;
            window <<= entry.pair_bits();
            all += entry.pair_bits();
            *pair = entry.0;
        }
        if missing {
            return None;
        }
        self.position += all;
        Some(pairs)
    }

    /// One exponent, where BF16 has it.
    fn symbol(&mut self, symbol: u32) -> Result<u16, CodecError> {
        let window = self.window(self.position);
        let entry = self.table.get((window >> 52) as usize);
        let bits = entry.first_bits();
        if bits == 0 {
            return Err(CodecError::InvalidCode {
                block: self.block,
                stream: self.stream,
                symbol,
            });
        }
        if entry.is_escape() {
            self.position += bits + 8;
            return Ok(((window << bits >> 56) as u16) << 7);
        }
        self.position += bits;
        Ok((entry.first() as u16) << 7)
    }
}
