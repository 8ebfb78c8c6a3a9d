//! A packed tensor in host memory, and its serialized form.

use rayon::prelude::*;

use crate::codebook::CodeLengths;
use crate::header::{
    self, CAPACITY_WORD, DIRECTORY_WORD, ESCAPE_WORD, RECORDS_END_WORD, SERIAL_WORD, TABLE_WORD,
    TABLE_WORDS,
};
use crate::layout::{
    BlockShape, COUNT_WORDS, DirectoryEntry, ENTRY_WORDS, MAX_EXTRA, RAW, RECORD_ALIGN, STREAMS,
};
use crate::{CodecError, PackedLayout, Profile};

/// A packed tensor: the two buffers of the format, in host memory.
///
/// The fields are public because either buffer may come from a device; every reader validates
/// them first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Header, code table, directory, sign-fraction plane and exponent streams.
    pub blob: Vec<u32>,
    /// What did not fit.
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
    /// lengths, directory and counts.
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
            self.blob[RECORDS_END_WORD],
            self.spill.len() as u64,
        )?;
        self.code_lengths()?;
        for block in 0..layout.blocks() {
            self.check_record(&layout, block)?;
        }
        Ok(layout)
    }

    /// The directory entry of a block and its record, if it has one. The packed form must have been validated.
    pub(crate) fn record(
        &self,
        layout: &PackedLayout,
        block: u32,
    ) -> Option<(DirectoryEntry, &[u32])> {
        let entry = self.entry(layout, block)?;
        let record = self.record_words(layout, entry)?;
        Some((entry, record))
    }

    fn entry(&self, layout: &PackedLayout, block: u32) -> Option<DirectoryEntry> {
        let directory = match layout.profile() {
            Profile::Auto => &self.blob[DIRECTORY_WORD..],
            _ => &self.spill,
        };
        let words = directory.get((ENTRY_WORDS * block) as usize..)?;
        DirectoryEntry::read([*words.first()?, *words.get(1)?])
    }

    fn record_words(&self, layout: &PackedLayout, entry: DirectoryEntry) -> Option<&[u32]> {
        let (place, words) = (entry.place as usize, entry.words as usize);
        let records = self.spill.get(record_base(layout)..)?;
        let capacity = layout.capacity() as usize;
        match place.checked_sub(capacity) {
            Some(place) => records.get(place..)?.get(..words),
            None => {
                let streams = &self.blob[layout.streams_offset_words() as usize..];
                streams.get(place..)?.get(..words)
            }
        }
    }

    fn check_record(&self, layout: &PackedLayout, block: u32) -> Result<(), CodecError> {
        let Some(entry) = self.entry(layout, block) else {
            // Where places are not fixed, every block has one.
            return match layout.profile() {
                Profile::Auto => Err(outside(layout, block, crate::layout::NO_RECORD, 0, 0)),
                _ => Ok(()),
            };
        };
        let spill = self.spill.len().saturating_sub(record_base(layout)) as u64;
        let Some(record) = self.record_words(layout, entry) else {
            return Err(outside(layout, block, entry.place, entry.words, spill));
        };
        let shape = layout.block(block);
        match expected_words(layout, shape, entry, record) {
            Some(expected) if expected == entry.words => Ok(()),
            expected => Err(CodecError::Record {
                block,
                rows: entry.rows,
                extra: entry.extra,
                words: entry.words,
                expected: expected.unwrap_or(0),
            }),
        }
    }

    /// The same tensor with its records in the order of the blocks and a blob that has room for exactly them: what the host
    /// encoder makes. A device places records as its cubes come, is given room before their size is known, and numbers its encodes.
    ///
    /// # Errors
    /// As [`validate`](Self::validate).
    pub fn compact(&self) -> Result<Self, CodecError> {
        let layout = self.validate()?;
        let mut records = Records::default();
        for block in 0..layout.blocks() {
            match self.record(&layout, block) {
                None => records.entries.push(None),
                Some((entry, words)) => {
                    records.entries.push(Some(entry));
                    records.words.extend_from_slice(words);
                }
            }
        }
        let streams = layout.streams_offset_words() as usize;
        let mut packed = Self {
            blob: self.blob[..streams].to_vec(),
            spill: Vec::new(),
        };
        if layout.profile() != Profile::Auto {
            packed.blob.extend_from_slice(&self.blob[streams..]);
        }
        packed.blob[SERIAL_WORD] = 0;
        packed.append(&layout, &[records]);
        Ok(packed)
    }

    /// Writes the directory, and the records behind what is in the blob, or in the spill.
    pub(crate) fn append(&mut self, layout: &PackedLayout, parts: &[Records]) {
        let mut end = 0u32;
        let mut directory = Vec::with_capacity((ENTRY_WORDS * layout.blocks()) as usize);
        for entry in parts.iter().flat_map(|part| &part.entries) {
            match entry {
                None => directory.extend(DirectoryEntry::NONE),
                Some(entry) => {
                    let place = end;
                    directory.extend(DirectoryEntry { place, ..*entry }.words());
                    end += entry.words;
                }
            }
        }
        self.blob[RECORDS_END_WORD] = end;
        let (records, base) = if layout.profile() == Profile::Auto {
            self.blob[CAPACITY_WORD] = end;
            self.blob[DIRECTORY_WORD..][..directory.len()].copy_from_slice(&directory);
            (&mut self.blob, layout.streams_offset_words() as usize)
        } else if end > 0 {
            let base = directory.len();
            self.spill = directory;
            (&mut self.spill, base)
        } else {
            return;
        };
        records.resize(base + end as usize, 0);
        let mut rest = &mut records[base..];
        let mut copies = Vec::with_capacity(parts.len());
        for Records { words, .. } in parts {
            let (own, others) = rest.split_at_mut(words.len());
            copies.push((own, words));
            rest = others;
        }
        copies
            .into_par_iter()
            .for_each(|(own, words)| own.copy_from_slice(words));
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
        let spill_words = layout.spill_words(head[RECORDS_END_WORD]);
        check_spill_length(&layout, head[RECORDS_END_WORD], spill_words)?;
        let body = layout.blob_bytes() + spill_words * 4;
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

/// The records of neighbouring blocks, still without their places.
#[derive(Default)]
pub(crate) struct Records {
    /// Each block's entry, if it has a record.
    pub entries: Vec<Option<DirectoryEntry>>,
    /// The records' words, in the same order.
    pub words: Vec<u32>,
}

/// Where the spill's records begin.
fn record_base(layout: &PackedLayout) -> usize {
    match layout.profile() {
        Profile::Auto => 0,
        _ => (ENTRY_WORDS * layout.blocks()) as usize,
    }
}

/// How many half-words a stream has beyond its block's rows.
#[inline]
pub(crate) fn extra_halves(record: &[u32], stream: u32) -> u32 {
    record[stream as usize / 8] >> (4 * (stream % 8)) & 0xf
}

/// Words of a coded record with these rows in it and this sum of extra half-words.
pub(crate) fn coded_words(rows: u32, extra: u32) -> u32 {
    (COUNT_WORDS + STREAMS * rows + extra.div_ceil(2)).next_multiple_of(RECORD_ALIGN)
}

/// Words that a record has by its block's shape, its entry's rows and its own counts, if they can be.
fn expected_words(
    layout: &PackedLayout,
    shape: BlockShape,
    entry: DirectoryEntry,
    record: &[u32],
) -> Option<u32> {
    if entry.rows == RAW {
        return Some(shape.raw_words());
    }
    let fixed = layout.profile() != Profile::Auto;
    if record.len() < COUNT_WORDS as usize
        || entry.rows + entry.extra.div_ceil(2) > layout.max_stream_words()
        || fixed && entry.rows != shape.stream_words
    {
        return None;
    }
    let counts = || (0..STREAMS).map(|stream| extra_halves(record, stream));
    debug_assert!(counts().all(|count| count <= MAX_EXTRA));
    if counts().max() != Some(entry.extra) {
        return None;
    }
    Some(coded_words(
        if fixed { 0 } else { entry.rows },
        counts().sum(),
    ))
}

fn outside(layout: &PackedLayout, block: u32, place: u32, words: u32, spill: u64) -> CodecError {
    CodecError::Directory {
        block,
        place,
        words,
        blob: layout.capacity(),
        spill,
    }
}

fn check_spill_length(layout: &PackedLayout, end: u32, found: u64) -> Result<(), CodecError> {
    let (declared, bound) = (layout.spill_words(end), layout.spill_bound_words());
    if declared != found || found > bound {
        return Err(CodecError::SpillLength {
            declared,
            found,
            bound,
        });
    }
    Ok(())
}
