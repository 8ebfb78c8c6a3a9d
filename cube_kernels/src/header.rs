//! The blob's header: sixteen words, specified in `docs/FORMAT.md`.

use crate::{CodecError, PackedLayout, Profile};

/// "LCT1" in little-endian order.
pub const MAGIC: u32 = u32::from_le_bytes(*b"LCT1");
/// The format version this crate writes and reads.
pub const VERSION: u16 = 2;

/// The element type that this version packs, in the highest byte of word 1: BF16.
pub const DTYPE_BF16: u8 = 0;

/// Word that says where the places of all records end.
pub const RECORDS_END_WORD: usize = 8;
/// Word that says where the code came from.
pub const CODEBOOK_WORD: usize = 9;
/// Word that holds the escape's code length.
pub const ESCAPE_WORD: usize = 10;
/// Word that says how many words of records the blob has room for; 0 where places are fixed.
pub const CAPACITY_WORD: usize = 11;
/// Word that tells one device's encodes apart; 0 from the host. It only informs.
pub const SERIAL_WORD: usize = 12;
/// First reserved word; reserved words are zero.
pub const RESERVED_WORD: usize = 13;
/// First word of the code table, and the header's length.
pub const TABLE_WORD: usize = 16;
/// Words of the code table: 256 code lengths of four bits.
pub const TABLE_WORDS: usize = 32;
/// First word of the directory.
pub const DIRECTORY_WORD: usize = TABLE_WORD + TABLE_WORDS;

/// Header fields that follow from the layout: words 0 to 7.
pub fn fixed_words(layout: &PackedLayout) -> [u32; 8] {
    let profile = layout.profile();
    [
        MAGIC,
        VERSION as u32 | (profile.code() as u32) << 16 | (DTYPE_BF16 as u32) << 24,
        layout.values() as u32,
        0,
        layout.block_values(),
        layout.stream_symbols(),
        profile.stream_words(),
        layout.blocks(),
    ]
}

/// Reads the layout from the first words of a blob and checks every field that the layout fixes.
///
/// # Errors
/// One variant of [`CodecError`] for each way in which the header can be wrong.
pub fn read_layout(blob: &[u32]) -> Result<PackedLayout, CodecError> {
    if blob.len() < DIRECTORY_WORD {
        return Err(CodecError::Truncated {
            needed: DIRECTORY_WORD * 4,
            found: blob.len() * 4,
        });
    }
    if blob[0] != MAGIC {
        return Err(CodecError::BadMagic {
            expected: MAGIC,
            found: blob[0],
        });
    }
    let version = blob[1] as u16;
    if version != VERSION {
        return Err(CodecError::UnknownVersion {
            found: version,
            supported: VERSION,
        });
    }
    let dtype = (blob[1] >> 24) as u8;
    if dtype != DTYPE_BF16 {
        return Err(CodecError::UnknownDtype { found: dtype });
    }
    let number = (blob[1] >> 16) as u8;
    let profile = Profile::from_code(number).ok_or(CodecError::UnknownProfile { found: number })?;
    let values = blob[2] as u64 | (blob[3] as u64) << 32;
    // A target whose `usize` has 32 bits cannot hold more values than the format allows either.
    let layout = PackedLayout::new(usize::try_from(values).unwrap_or(usize::MAX), profile)?
        .with_capacity(blob[CAPACITY_WORD] as u64);

    const NAMES: [&str; 8] = [
        "magic",
        "version, profile and dtype",
        "values (low word)",
        "values (high word)",
        "block_values",
        "stream_symbols",
        "stream_words",
        "blocks",
    ];
    let expected = fixed_words(&layout);
    let fixed = NAMES.iter().zip(expected).zip(blob);
    let capacity = ((&"capacity", layout.capacity()), &blob[CAPACITY_WORD]);
    let reserved = blob[RESERVED_WORD..TABLE_WORD]
        .iter()
        .map(|word| ((&"reserved", 0), word));
    for ((name, expected), &found) in fixed.chain([capacity]).chain(reserved) {
        if expected != found {
            return Err(CodecError::HeaderField {
                field: name,
                expected: expected as u64,
                found: found as u64,
            });
        }
    }
    Ok(layout)
}
