//! Encoding on the host.

use rayon::prelude::*;

use crate::codebook::{Codebook, MAX_LENGTH};
use crate::header::{
    self, CODEBOOK_WORD, DIRECTORY_WORD, ESCAPE_WORD, SPILL_WORDS_WORD, TABLE_WORD, TABLE_WORDS,
};
use crate::layout::{
    BlockShape, GRANULE, MARKER_WORDS, NO_SPILL, ROW_VALUES, STREAMS, chunk_of, stream_of,
};
use crate::{CodecConfig, CodecError, Packed, PackedLayout};

/// Packs BF16 values, given as bit patterns.
///
/// Every bit pattern survives, NaN payloads included. The result depends on the values and the
/// settings alone, not on the number of threads.
///
/// # Errors
/// [`CodecError::TooManyValues`].
pub fn encode(values: &[u16], config: &CodecConfig) -> Result<Packed, CodecError> {
    let layout = PackedLayout::new(values.len(), config.profile)?;
    let mut blob = vec![0u32; layout.blob_words() as usize];
    let codebook = Codebook::choose(values, config.family);
    blob[..8].copy_from_slice(&header::fixed_words(&layout));
    blob[CODEBOOK_WORD] = codebook.origin;
    blob[ESCAPE_WORD] = codebook.lengths.escape as u32;
    blob[TABLE_WORD..][..TABLE_WORDS].copy_from_slice(&codebook.lengths.table_words());

    let (head, body) = blob.split_at_mut(layout.plane_offset_words() as usize);
    let (plane, streams) = body.split_at_mut(layout.plane_words() as usize);
    let codes = codebook.lengths.codes();
    let block_values = config.profile.block_values() as usize;
    let block_streams = (config.profile.stream_words() * STREAMS) as usize;
    let records: Vec<Option<Vec<u32>>> = values
        .par_chunks(block_values)
        .zip(plane.par_chunks_mut(block_values / 4))
        .zip(streams.par_chunks_mut(block_streams))
        .enumerate()
        .map(|(block, ((values, plane), words))| {
            let shape = layout.block(block as u32);
            write_plane(values, plane);
            let markers = write_streams(values, shape, &codes, words);
            markers.map(|markers| record(values, shape, &markers))
        })
        .collect();

    let mut spill = Vec::new();
    for (entry, record) in head[DIRECTORY_WORD..].iter_mut().zip(&records) {
        *entry = match record {
            None => NO_SPILL,
            Some(record) => {
                let offset = spill.len() as u32;
                spill.extend_from_slice(record);
                offset
            }
        };
    }
    blob[SPILL_WORDS_WORD] = spill.len() as u32;
    Ok(Packed { blob, spill })
}

/// Sign into bit 7, fraction into bits 6 to 0, four values in a word.
fn write_plane(values: &[u16], plane: &mut [u32]) {
    let byte = |value: u16| (value >> 8 & 0x80 | value & 0x7f) as u32;
    for (word, values) in plane.iter_mut().zip(values.chunks(4)) {
        *word = values
            .iter()
            .rev()
            .fold(0, |word, &value| word << 8 | byte(value));
    }
}

/// Bits of the longest code: an escape with its literal.
const LONGEST: u32 = MAX_LENGTH + 8;

/// One stream being written.
#[derive(Clone, Copy)]
struct Writer {
    /// Pending bits, the latest lowest.
    bits: u64,
    /// Number of pending bits, below 32 between symbols.
    pending: u32,
    /// Words written.
    words: u32,
    /// Symbols coded before the spill, once there is one.
    marker: Option<u16>,
}

impl Writer {
    /// Appends 1 to 32 bits.
    #[inline]
    fn push(&mut self, bits: u32, length: u32, stream: usize, words: &mut [u32]) {
        self.bits = self.bits << length | bits as u64;
        self.pending += length;
        if self.pending >= 32 {
            self.pending -= 32;
            let word = (self.bits >> self.pending) as u32;
            words[self.words as usize * STREAMS as usize + stream] = word;
            self.words += 1;
        }
    }
}

/// Codes a block's exponents; returns where each stream's spill starts if any has one.
fn write_streams(
    values: &[u16],
    shape: BlockShape,
    codes: &[(u16, u8); 256],
    words: &mut [u32],
) -> Option<[u16; STREAMS as usize]> {
    let capacity = shape.stream_words * 32;
    let code = |value: u16| codes[(value >> 7 & 0xff) as usize];
    let mut writers = [Writer {
        bits: 0,
        pending: 0,
        words: 0,
        marker: None,
    }; STREAMS as usize];

    for (row, values) in (0..).zip(values.chunks(ROW_VALUES as usize)) {
        for (chunk, values) in (0..).zip(values.chunks(GRANULE as usize)) {
            let stream = stream_of(chunk, row) as usize;
            let writer = &mut writers[stream];
            if writer.marker.is_some() {
                continue;
            }
            let mut left = capacity - (writer.words * 32 + writer.pending);
            if values.len() == GRANULE as usize && left >= GRANULE * LONGEST {
                // Whatever the symbols are, they fit, two at a time.
                for pair in values.chunks_exact(2) {
                    let (first, second) = (code(pair[0]), code(pair[1]));
                    let bits = (first.0 as u32) << second.1 | second.0 as u32;
                    writer.push(bits, (first.1 + second.1) as u32, stream, words);
                }
                continue;
            }
            for (index, &value) in (0..).zip(values) {
                let (bits, length) = code(value);
                let length = length as u32;
                if length > left {
                    writer.marker = Some((row * GRANULE + index) as u16);
                    break;
                }
                left -= length;
                writer.push(bits as u32, length, stream, words);
            }
        }
    }
    for (stream, writer) in writers.iter().enumerate() {
        if writer.pending > 0 {
            let word = (writer.bits << (32 - writer.pending)) as u32;
            words[writer.words as usize * STREAMS as usize + stream] = word;
        }
    }
    let spilled = writers.iter().any(|writer| writer.marker.is_some());
    spilled.then(|| {
        std::array::from_fn(|stream| {
            let all = shape.stream_count(stream as u32) as u16;
            writers[stream].marker.unwrap_or(all)
        })
    })
}

/// A block's spill record: the markers, then each stream's remaining exponents as bytes, each
/// stream's padded to a word.
fn record(values: &[u16], shape: BlockShape, markers: &[u16; STREAMS as usize]) -> Vec<u32> {
    let mut record = Vec::with_capacity(MARKER_WORDS as usize);
    for pair in markers.chunks_exact(2) {
        record.push(pair[0] as u32 | (pair[1] as u32) << 16);
    }
    for stream in 0..STREAMS {
        let marker = markers[stream as usize] as u32;
        let exponents: Vec<u32> = (marker..shape.stream_count(stream))
            .map(|symbol| {
                let row = symbol / GRANULE;
                let chunk = row * STREAMS + chunk_of(stream, row);
                let value = values[(chunk * GRANULE + symbol % GRANULE) as usize];
                (value >> 7 & 0xff) as u32
            })
            .collect();
        for bytes in exponents.chunks(4) {
            record.push(bytes.iter().rev().fold(0, |word, &byte| word << 8 | byte));
        }
    }
    record
}
