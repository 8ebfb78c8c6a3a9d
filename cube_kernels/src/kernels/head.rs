//! The blob's header, written when the rest is.

use cubecl::prelude::*;

use super::UNITS;
use super::codebook::Chosen;
use super::geometry::Geometry;
use super::tickets::{DONE, TAKEN};
use crate::header::{
    CAPACITY_WORD, CODEBOOK_WORD, DIRECTORY_WORD, ESCAPE_WORD, MAGIC, RECORDS_END_WORD,
    RESERVED_WORD, SERIAL_WORD, TABLE_WORD, TABLE_WORDS, VERSION,
};
use crate::layout::ENTRY_WORDS;

/// Writes header, code table and the padding behind the directory, and resets the tickets; `ticket` has counted the places.
#[cube]
pub(crate) fn write_head(
    head: &mut Array<u32>,
    tickets: &Array<Atomic<u32>>,
    chosen: &Chosen,
    values: u32,
    capacity: u32,
    serial: u32,
    blocks: u32,
    #[comptime] ticket: usize,
    #[comptime] profile: u32,
    #[comptime] geometry: Geometry,
) {
    if UNIT_POS < comptime!(TABLE_WORDS as u32) {
        head[TABLE_WORD + UNIT_POS as usize] = chosen.table[UNIT_POS as usize];
    }
    if UNIT_POS == 0 {
        head[0] = MAGIC;
        head[1] = comptime!(VERSION as u32 | profile << 16);
        head[2] = values;
        head[3] = 0u32;
        head[4] = comptime!(geometry.block_values());
        head[5] = comptime!(geometry.symbols);
        head[6] = comptime!(geometry.words);
        head[7] = blocks;
        head[RECORDS_END_WORD] = tickets[ticket].load();
        head[CODEBOOK_WORD] = chosen.origin;
        head[ESCAPE_WORD] = chosen.escape;
        head[CAPACITY_WORD] = capacity;
        head[SERIAL_WORD] = serial;
        #[unroll]
        for word in RESERVED_WORD..TABLE_WORD {
            head[word] = 0u32;
        }
        tickets[ticket].store(0u32);
        tickets[DONE].store(0u32);
        tickets[TAKEN].store(0u32);
    }
    let listed = if comptime!(geometry.is_fixed()) {
        0u32.runtime()
    } else {
        blocks * ENTRY_WORDS
    };
    // At most 64 words.
    let padding = DIRECTORY_WORD + (listed + UNIT_POS) as usize;
    if padding < head.len() {
        head[padding] = 0u32;
    }
}

/// The header of a tensor without values.
#[cube(launch_unchecked)]
pub(crate) fn encode_nothing(
    head: &mut Array<u32>,
    serial: u32,
    #[comptime] profile: u32,
    #[comptime] geometry: Geometry,
    #[comptime] _revision: u32,
) {
    let place = UNIT_POS as usize;
    if place < head.len() {
        head[place] = 0u32;
    }
    sync_cube();
    if UNIT_POS == 0 {
        head[0] = MAGIC;
        head[1] = comptime!(VERSION as u32 | profile << 16);
        head[4] = comptime!(geometry.block_values());
        head[5] = comptime!(geometry.symbols);
        head[6] = comptime!(geometry.words);
        head[SERIAL_WORD] = serial;
    }
}

const _: () = assert!(UNITS >= TABLE_WORDS as u32);
