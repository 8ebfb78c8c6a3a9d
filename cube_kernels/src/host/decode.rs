//! Decoding on the host.

use rayon::prelude::*;

use crate::codebook::{DecodeTable, Entry};
use crate::layout::{BlockShape, GRANULE, ROW_VALUES, STREAMS, chunk_of, stream_of};
use crate::packed::marker;
use crate::{CodecError, Packed};

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
    let block_values = layout.profile().block_values() as usize;
    let block_streams = (layout.profile().stream_words() * STREAMS) as usize;
    output
        .par_chunks_mut(block_values)
        .zip(plane.par_chunks(block_values / 4))
        .zip(streams.par_chunks(block_streams))
        .enumerate()
        .try_for_each(|(block, ((output, plane), words))| {
            let block = block as u32;
            let coded = Coded {
                block,
                shape: layout.block(block),
                words,
                table: &table,
                record: packed.record(block),
            };
            coded.exponents(output)?;
            merge_plane(plane, output);
            Ok(())
        })
}

/// Adds signs and fractions to the exponents.
fn merge_plane(plane: &[u32], output: &mut [u16]) {
    for (values, &word) in output.chunks_mut(4).zip(plane) {
        for (value, byte) in values.iter_mut().zip(word.to_le_bytes()) {
            *value |= (byte as u16 & 0x80) << 8 | byte as u16 & 0x7f;
        }
    }
}

/// The coded exponents of one block.
struct Coded<'a> {
    block: u32,
    shape: BlockShape,
    words: &'a [u32],
    table: &'a DecodeTable,
    record: Option<(&'a [u32], &'a [u32])>,
}

/// One stream being read.
#[derive(Clone, Copy, Default)]
struct Reader {
    /// Bits to come, the next one highest.
    window: u64,
    /// Number of bits in the window.
    filled: u32,
    /// Words read, those past the stream's end, which read as zero, included.
    words: u32,
}

impl Coded<'_> {
    /// Writes each value's exponent where BF16 has it, all other bits zero.
    fn exponents(&self, output: &mut [u16]) -> Result<(), CodecError> {
        let mut readers = [Reader::default(); STREAMS as usize];
        for (row, values) in (0..).zip(output.chunks_mut(ROW_VALUES as usize)) {
            for (chunk, values) in (0..).zip(values.chunks_mut(GRANULE as usize)) {
                let stream = stream_of(chunk, row);
                let reader = &mut readers[stream as usize];
                let first = row * GRANULE;
                let coded = match self.record {
                    None => values.len(),
                    Some((markers, _)) => {
                        let left = marker(markers, stream).saturating_sub(first);
                        values.len().min(left as usize)
                    }
                };
                self.granule(reader, stream, first, &mut values[..coded])?;
            }
        }
        for (stream, reader) in (0..).zip(&readers) {
            let (used, capacity) = (
                reader.words * 32 - reader.filled,
                self.shape.stream_words * 32,
            );
            if used > capacity {
                return Err(CodecError::StreamOverrun {
                    block: self.block,
                    stream,
                    used,
                    capacity,
                });
            }
        }
        if let Some((markers, bytes)) = self.record {
            self.spilled(markers, bytes, output);
        }
        Ok(())
    }

    /// Decodes at most eight symbols of one stream, two in a step while the table has two.
    #[inline]
    fn granule(
        &self,
        reader: &mut Reader,
        stream: u32,
        first: u32,
        values: &mut [u16],
    ) -> Result<(), CodecError> {
        let mut done = 0;
        while done < values.len() {
            self.refill(reader, stream);
            let entry = self.table.get((reader.window >> 52) as usize);
            if entry.pair_bits() > 0 && done + 1 < values.len() {
                let pair = entry.0 & Entry::PAIR_MASK;
                values[done] = pair as u16;
                values[done + 1] = (pair >> 16) as u16;
                reader.skip(entry.pair_bits());
                done += 2;
                continue;
            }
            if entry.first_bits() == 0 {
                return Err(CodecError::InvalidCode {
                    block: self.block,
                    stream,
                    symbol: first + done as u32,
                });
            }
            reader.skip(entry.first_bits());
            let mut exponent = entry.first() as u16;
            if entry.is_escape() {
                exponent = (reader.window >> 56) as u16;
                reader.skip(8);
            }
            values[done] = exponent << 7;
            done += 1;
        }
        Ok(())
    }

    /// Makes sure that at least 32 bits are in the window: a code and its literal take 16.
    #[inline]
    fn refill(&self, reader: &mut Reader, stream: u32) {
        if reader.filled < 32 {
            let word = if reader.words < self.shape.stream_words {
                self.words[(reader.words * STREAMS + stream) as usize]
            } else {
                0
            };
            reader.window |= (word as u64) << (32 - reader.filled);
            reader.filled += 32;
            reader.words += 1;
        }
    }

    /// Copies the spilled exponents to their places.
    fn spilled(&self, markers: &[u32], bytes: &[u32], output: &mut [u16]) {
        let mut words = bytes;
        for stream in 0..STREAMS {
            let (start, end) = (marker(markers, stream), self.shape.stream_count(stream));
            for symbol in start..end {
                let index = (symbol - start) as usize;
                let exponent = words[index / 4].to_le_bytes()[index % 4];
                let row = symbol / GRANULE;
                let chunk = row * STREAMS + chunk_of(stream, row);
                let place = (chunk * GRANULE + symbol % GRANULE) as usize;
                output[place] = (exponent as u16) << 7;
            }
            words = &words[(end - start).div_ceil(4) as usize..];
        }
    }
}

impl Reader {
    #[inline]
    fn skip(&mut self, bits: u32) {
        self.window <<= bits;
        self.filled -= bits;
    }
}
