//! The decode launch: a persistent grid of cubes decodes the blocks.
//!
//! A unit owns a stream. It reads the sign-fraction bytes (1 byte a value) and the stream's words
//! (0.33 bytes a value on weights) and writes whole granules (2). A block's words are first copied
//! to shared memory, where each unit reads its own column only.

use cubecl::prelude::*;

use super::bits::window;
use super::codes::Lengths;
use super::dense::{Access, Granule, Rows, granule_address, store};
use super::geometry::{
    Block, Geometry, block_at, block_count, granule_index, granule_offset, granule_values,
    plane_index,
};
use super::plane::{PlanePair, merge};
use super::reader::{Reader, first_exponent, first_length};
use super::source::{Source, load_entry, source};
use super::stage::{stage, staged_rows};
use super::team::Means;
use crate::header::{ESCAPE_WORD, RECORDS_END_WORD, TABLE_WORD, TABLE_WORDS};
use crate::layout::{GRANULE, STREAMS};

/// Rows of words that are staged, for 8.2 bits a symbol where streams are short, so for any, and 4.1 where they are long.
/// Four cubes of a multiprocessor of an H200 have room for no more.
pub(crate) const STAGED_ROWS: u32 = 36;
/// Bits of a stream by which its next two symbols are looked up.
pub(crate) const TABLE_BITS: u32 = 12;

#[cube(launch_unchecked)]
pub(crate) fn decode(
    head: &Array<u32>,
    plane: &Array<PlanePair>,
    streams: &Array<u32>,
    spill: &Array<u32>,
    wide: &mut Array<Granule>,
    narrow: &mut Array<Atomic<u32>>,
    values: u32,
    capacity: u32,
    teams: u32,
    row_length: u32,
    row_pitch: u32,
    #[comptime] geometry: Geometry,
    #[comptime] access: Access,
    #[comptime] means: Means,
    #[comptime] _revision: u32,
) {
    let rows = Rows {
        length: row_length,
        pitch: row_pitch,
    };
    let team = UNIT_POS / STREAMS;
    let stream = UNIT_POS % STREAMS;
    let blocks = block_count(values, geometry);
    let works = team < teams;
    let mut index = CUBE_POS as u32 * teams + team;
    let stride = CUBE_COUNT as u32 * teams;

    let mut table = SharedMemory::<u32>::new(TABLE_WORDS);
    if UNIT_POS < comptime!(TABLE_WORDS as u32) {
        table[UNIT_POS as usize] = head[TABLE_WORD + UNIT_POS as usize];
    }
    let escape = head[ESCAPE_WORD];
    let records_end = head[RECORDS_END_WORD];
    let staged = SharedMemory::<u32>::new(comptime!((STAGED_ROWS * means.units()) as usize));
    // The first block is on its way while the tables are built, and later each one's directory entry and first bytes while
    // the one before is decoded.
    let mut entry = load_entry(head, spill, index, blocks, records_end, geometry);
    let mut words = source(entry, index, stream, values, capacity, blocks, geometry);
    let mut bytes = PlanePair::empty();
    if works && index < blocks {
        let block = block_at(index, values, geometry);
        bytes = load_pair(plane, stream, 0u32, block);
        words.load_counts(streams, spill, stream);
        if is_staged(&words) {
            stage(staged, 0u32, &words, streams, spill, means);
        }
    }
    let next = index + stride;
    entry = load_entry(head, spill, next, blocks, records_end, geometry);
    sync_cube();
    let entries = Lengths::new(table, escape).entries(TABLE_BITS);

    if works {
        while index < blocks {
            let block = block_at(index, values, geometry);
            let full = block.values == comptime!(geometry.block_values());
            let whole = full && is_staged(&words);
            let next = index + stride;
            if comptime!(access.aligned) {
                if whole {
                    let after = select(next < blocks, next, index);
                    bytes = whole_block(
                        bytes, plane, wide, stream, index, after, rows, staged, &entries, geometry,
                        access, means,
                    );
                } else {
                    any_block(
                        plane, streams, spill, wide, narrow, stream, block, rows, &words, &entries,
                        access, means,
                    );
                }
            } else {
                any_block(
                    plane, streams, spill, wide, narrow, stream, block, rows, &words, &entries,
                    access, means,
                );
            }
            if next < blocks {
                words = source(entry, next, stream, values, capacity, blocks, geometry);
                words.load_counts(streams, spill, stream);
                if is_staged(&words) {
                    stage(staged, 0u32, &words, streams, spill, means);
                }
                if !whole {
                    bytes = load_pair(plane, stream, 0u32, block_at(next, values, geometry));
                }
                let following = next + stride;
                entry = load_entry(head, spill, following, blocks, records_end, geometry);
            }
            index = next;
        }
    }
}

/// Whether a block's words fit into shared memory; a raw one's do not.
#[cube]
fn is_staged(words: &Source) -> bool {
    staged_rows(words) <= STAGED_ROWS
}

/// Decodes block `index`, which is full and whose words are staged, into aligned granules. `first` are the bytes of its
/// first rows; returns those of block `after`.
#[cube]
fn whole_block(
    first: PlanePair,
    plane: &Array<PlanePair>,
    wide: &mut Array<Granule>,
    stream: u32,
    index: u32,
    after: u32,
    rows: Rows,
    staged: SharedMemory<u32>,
    entries: &SharedMemory<u32>,
    #[comptime] geometry: Geometry,
    #[comptime] access: Access,
    #[comptime] means: Means,
) -> PlanePair {
    let reader = Reader::new(staged, 0u32, TABLE_BITS, means);
    let granules = index * comptime!(geometry.block_granules());
    let mut bytes = first;
    let mut row = 0u32;
    // Two rows at a time, as the code of more finds no room in the instruction cache.
    while row < comptime!(geometry.rows()) {
        let own = granules / 2 + plane_index(stream, row + 2);
        let others = after * comptime!(geometry.block_granules() / 2) + stream;
        let last = row == comptime!(geometry.rows() - 2);
        let next = plane[select(last, others, own) as usize];
        #[unroll]
        for half in 0..2u32 {
            let place = granules + granule_index(stream, row + half);
            let exponents = reader.granule(entries, means);
            wide[granule_address(place, rows, access) as usize] = merge(exponents, bytes, half);
        }
        // Waits for the load.
        bytes = next;
        row += 2;
    }
    bytes
}

/// Decodes any block, symbol by symbol, its words read where they lie.
#[cube]
fn any_block(
    plane: &Array<PlanePair>,
    streams: &Array<u32>,
    spill: &Array<u32>,
    wide: &mut Array<Granule>,
    narrow: &Array<Atomic<u32>>,
    stream: u32,
    block: Block,
    rows: Rows,
    words: &Source,
    entries: &SharedMemory<u32>,
    #[comptime] access: Access,
    #[comptime] means: Means,
) {
    let mut high = words.word(streams, spill, 0u32, means.has_u64);
    let mut low = words.word(streams, spill, 1u32, means.has_u64);
    let mut next = 2u32;
    let mut offset = 0u32;
    let mut row = 0u32;
    while row < block.rows {
        let bytes = load_pair(plane, stream, row, block);
        #[unroll]
        for slot in 0..2u32 {
            let place = granule_offset(stream, row + slot);
            let count = granule_values(place, block.values);
            if count > 0 {
                let mut exponents = Granule::empty();
                #[unroll]
                for symbol in 0..GRANULE {
                    let mut exponent = 0u32;
                    if symbol < count {
                        if words.is_raw() {
                            let word = (row + slot) * 2 + comptime!(symbol / 4);
                            let four = words.raw_word(streams, spill, word);
                            exponent = ((four >> comptime!(symbol % 4 * 8)) & 0xff) << 7;
                        } else {
                            if offset >= 32 {
                                high = low;
                                low = words.word(streams, spill, next, means.has_u64);
                                next += 1;
                                offset -= 32;
                            }
                            let bits = window(high, low, offset, means.has_u64);
                            let entry = entries[(bits >> comptime!(32 - TABLE_BITS)) as usize];
                            exponent = first_exponent(entry, bits);
                            offset += first_length(entry);
                        }
                    }
                    exponents[comptime!((symbol / 2) as usize)] |=
                        exponent << comptime!(symbol % 2 * 16);
                }
                let granule = merge(exponents, bytes, slot);
                store(
                    wide,
                    narrow,
                    granule,
                    block.first + place,
                    count,
                    rows,
                    access,
                );
            }
        }
        row += 2;
    }
}

/// Loads this unit's sign-fraction bytes of two rows; what does not exist is zero.
#[cube]
fn load_pair(plane: &Array<PlanePair>, stream: u32, row: u32, block: Block) -> PlanePair {
    let mut bytes = PlanePair::empty();
    if row < block.rows {
        let first = block.first / comptime!(2 * GRANULE);
        bytes = plane[(first + plane_index(stream, row)) as usize];
    }
    bytes
}
