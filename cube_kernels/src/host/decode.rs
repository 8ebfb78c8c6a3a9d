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
            let mut words = vec![0u32; layout.max_stream_words() as usize + 1];
            let mut place = 0;
            for stream in 0..STREAMS {
                let own_rows = rows_at.get(stream as usize..).unwrap_or_default();
                let interleaved = own_rows.iter().step_by(STREAMS as usize);
                for (word, &coded) in words.iter_mut().zip(interleaved.take(rows as usize)) {
                    *word = coded;
                }
                let halves = extra_halves(counts, stream);
                let count = (rows + halves.div_ceil(2)) as usize;
                words[rows as usize..count].fill(0);
                for half in 2 * rows..2 * rows + halves {
                    let bits = extra[place / 2] >> (16 - place % 2 * 16) & 0xffff;
                    words[half as usize / 2] |= bits << (16 - half % 2 * 16);
                    place += 1;
                }
                let coded = Coded {
                    block,
                    stream,
                    shape,
                    words: &words[..count],
                    table: &table,
                };
                coded.decode(plane, output)?;
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

/// One coded stream.
struct Coded<'a> {
    block: u32,
    stream: u32,
    shape: BlockShape,
    words: &'a [u32],
    table: &'a DecodeTable,
}

/// Where a stream is being read.
struct Reader<'a> {
    words: &'a [u32],
    /// Bits to come, the next one highest.
    window: u64,
    /// Number of bits in the window.
    filled: u32,
    /// Words read, those past the stream's end, which read as zero, included.
    read: u32,
}

impl Reader<'_> {
    /// Makes sure that at least 32 bits are in the window: a code and its literal take 16, two codes of an entry 12.
    #[inline]
    fn refill(&mut self) {
        if self.filled < 32 {
            let word = self.words.get(self.read as usize).copied().unwrap_or(0);
            self.window |= (word as u64) << (32 - self.filled);
            self.filled += 32;
            self.read += 1;
        }
    }

    #[inline]
    fn skip(&mut self, bits: u32) {
        self.window <<= bits;
        self.filled -= bits;
    }
}

impl Coded<'_> {
    /// Writes the stream's values.
    fn decode(&self, plane: &[u32], output: &mut [u16]) -> Result<(), CodecError> {
        let mut reader = Reader {
            words: self.words,
            window: 0,
            filled: 0,
            read: 0,
        };
        for row in 0..self.shape.rows {
            let first = (row * ROW_VALUES + chunk_of(self.stream, row) * GRANULE) as usize;
            let Some(output) = output.get_mut(first..) else {
                continue;
            };
            let plane = &plane[plane_word(self.stream, row) as usize..];
            let mut exponents = [0u16; GRANULE as usize];
            if output.len() >= GRANULE as usize {
                self.granule(&mut reader, row, &mut exponents)?;
                merge(&exponents, &plane[..2], &mut output[..GRANULE as usize]);
            } else {
                let exponents = &mut exponents[..output.len()];
                self.granule(&mut reader, row, exponents)?;
                merge(exponents, plane, output);
            }
        }
        let (used, capacity) = (
            reader.read * 32 - reader.filled,
            self.words.len() as u32 * 32,
        );
        if used > capacity {
            return Err(CodecError::StreamOverrun {
                block: self.block,
                stream: self.stream,
                used,
                capacity,
            });
        }
        Ok(())
    }

    /// Decodes a granule's exponents, two in a step while the table has two.
    #[inline]
    fn granule(
        &self,
        reader: &mut Reader,
        row: u32,
        exponents: &mut [u16],
    ) -> Result<(), CodecError> {
        let mut done = 0;
        while done < exponents.len() {
            reader.refill();
            let entry = self.table.get((reader.window >> 52) as usize);
            if entry.pair_bits() > 0 && done + 1 < exponents.len() {
                let pair = entry.0 & Entry::PAIR_MASK;
                exponents[done] = pair as u16;
                exponents[done + 1] = (pair >> 16) as u16;
                reader.skip(entry.pair_bits());
                done += 2;
                continue;
            }
            if entry.first_bits() == 0 {
                return Err(CodecError::InvalidCode {
                    block: self.block,
                    stream: self.stream,
                    symbol: row * GRANULE + done as u32,
                });
            }
            reader.skip(entry.first_bits());
            let mut exponent = entry.first() as u16;
            if entry.is_escape() {
                exponent = (reader.window >> 56) as u16;
                reader.skip(8);
            }
            exponents[done] = exponent << 7;
            done += 1;
        }
        Ok(())
    }
}
