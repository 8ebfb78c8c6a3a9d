//! A packed tensor in host memory, and its serialized form.

use crate::codebook::CodeLengths;
use crate::header::{self, DIRECTORY_WORD, ESCAPE_WORD, SPILL_WORDS_WORD, TABLE_WORD, TABLE_WORDS};
use crate::layout::{BlockShape, MARKER_WORDS, NO_SPILL, STREAMS};
use crate::{CodecError, PackedLayout};

/// A packed tensor: the two buffers of the format, in host memory.
///
/// The fields are public because either buffer may come from a device; every reader validates
/// them first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Header, code table, directory, sign-fraction plane and exponent streams.
    pub blob: Vec<u32>,
    /// Spill records.
    pub spill: Vec<u32>,
}

impl Packed {
    /// The layout that the header states.
    ///
    /// # Errors
    /// As [`header::read_layout`].
    pub fn layout(&self) -> Result<PackedLayout, CodecError> {
        header::read_layout(&self.blob)
    }

    /// Bytes of both buffers.
    pub fn bytes(&self) -> usize {
        (self.blob.len() + self.spill.len()) * 4
    }

    /// The code lengths in the code table.
    ///
    /// # Errors
    /// Those of the header and of [`CodeLengths::from_table`].
    pub fn code_lengths(&self) -> Result<CodeLengths, CodecError> {
        if self.layout()?.values() == 0 {
            return Ok(CodeLengths::empty());
        }
        let mut table = [0; TABLE_WORDS];
        table.copy_from_slice(&self.blob[TABLE_WORD..][..TABLE_WORDS]);
        CodeLengths::from_table(&table, self.blob[ESCAPE_WORD])
    }

    /// Checks everything but the coded bits themselves, which decoding checks: header, sizes, code
    /// lengths, directory and markers.
    ///
    /// # Errors
    /// The first thing wrong, as its own variant of [`CodecError`].
    pub fn validate(&self) -> Result<PackedLayout, CodecError> {
        let layout = self.layout()?;
        if self.blob.len() as u64 != layout.blob_words() {
            return Err(CodecError::BlobLength {
                expected: layout.blob_words(),
                found: self.blob.len() as u64,
            });
        }
        check_spill_length(
            &layout,
            self.blob[SPILL_WORDS_WORD],
            self.spill.len() as u64,
        )?;
        self.code_lengths()?;
        for block in 0..layout.blocks() {
            self.check_record(block, layout.block(block))?;
        }
        Ok(layout)
    }

    /// The spill record of a block: its markers and what follows them, if it spilled. The packed
    /// form must have been validated.
    pub(crate) fn record(&self, block: u32) -> Option<(&[u32], &[u32])> {
        match self.blob[DIRECTORY_WORD + block as usize] {
            NO_SPILL => None,
            offset => Some(self.spill[offset as usize..].split_at(MARKER_WORDS as usize)),
        }
    }

    fn check_record(&self, block: u32, shape: BlockShape) -> Result<(), CodecError> {
        let offset = self.blob[DIRECTORY_WORD + block as usize];
        if offset == NO_SPILL {
            return Ok(());
        }
        let spill_words = self.spill.len() as u32;
        let outside = CodecError::Directory {
            block,
            offset,
            spill_words,
        };
        let record = self.spill.get(offset as usize..).unwrap_or_default();
        if record.len() < MARKER_WORDS as usize {
            return Err(outside);
        }
        let mut words = MARKER_WORDS as usize;
        for stream in 0..STREAMS {
            let (marker, count) = (marker(record, stream), shape.stream_count(stream));
            if marker > count {
                return Err(CodecError::Marker {
                    block,
                    stream,
                    marker,
                    count,
                });
            }
            words += (count - marker).div_ceil(4) as usize;
        }
        if words > record.len() {
            return Err(outside);
        }
        Ok(())
    }

    /// The serialized form: blob, spill and a CRC-32 of both, as little-endian bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes() + 4);
        for word in self.blob.iter().chain(&self.spill) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        let checksum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads and validates the serialized form.
    ///
    /// # Errors
    /// A variant of [`CodecError`] for each thing that can be wrong; malformed bytes never panic.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CodecError> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        if bytes.len() < DIRECTORY_WORD * 4 {
            return Err(CodecError::Truncated {
                needed: DIRECTORY_WORD * 4,
                found: bytes.len(),
            });
        }
        let head: Vec<u32> = (0..DIRECTORY_WORD).map(|index| word(index * 4)).collect();
        let layout = header::read_layout(&head)?;
        let spill_words = head[SPILL_WORDS_WORD];
        check_spill_length(&layout, spill_words, spill_words as u64)?;
        let body = layout.blob_bytes() + spill_words as u64 * 4;
        if bytes.len() as u64 != body + 4 {
            return Err(CodecError::ByteLength {
                expected: body + 4,
                found: bytes.len() as u64,
            });
        }
        let body = bytes.len() - 4;
        let (stored, computed) = (word(body), crc32fast::hash(&bytes[..body]));
        if stored != computed {
            return Err(CodecError::Checksum { stored, computed });
        }
        let mut words: Vec<u32> = (0..body / 4).map(|index| word(index * 4)).collect();
        let spill = words.split_off(layout.blob_words() as usize);
        let packed = Self { blob: words, spill };
        packed.validate()?;
        Ok(packed)
    }
}

/// How many symbols of a stream precede its spill.
pub(crate) fn marker(markers: &[u32], stream: u32) -> u32 {
    markers[stream as usize / 2] >> (16 * (stream % 2)) & 0xffff
}

fn check_spill_length(layout: &PackedLayout, declared: u32, found: u64) -> Result<(), CodecError> {
    let bound = layout.spill_bound_words();
    if declared as u64 != found || found > bound {
        return Err(CodecError::SpillLength {
            declared: declared as u64,
            found,
            bound,
        });
    }
    Ok(())
}
