//! The encode launch: a persistent grid of cubes codes the blocks.
//!
//! A unit owns a stream. It reads each granule once (2 bytes a value), writes the sign-fraction
//! bytes (1) and collects the stream's words in shared memory, where each unit touches its own
//! column only. When the team knows how long its streams are, it takes a place for the block's
//! record and writes it (0.33 bytes a value on weights).

use cubecl::prelude::*;

use super::codebook::{Choice, choose};
use super::codes::Lengths;
use super::dense::{Access, Granule, Rows, granule_address, load};
use super::geometry::{
    Block, Geometry, block_at, block_count, granule_index, granule_offset, granule_values,
    plane_index,
};
use super::head::write_head;
use super::huffman::SCRATCH_WORDS;
use super::plane::{PlanePair, split};
use super::record::{NOTES, Record, place_record, write_rows};
use super::team::{Means, sync_team};
use super::tickets::{PLACES, TAKEN, is_last_cube};
use super::writer::Writer;
use crate::header::DIRECTORY_WORD;
use crate::layout::{ENTRY_WORDS, GRANULE, STREAMS};

/// Rows whose loads are in flight together.
const AHEAD: u32 = 4;
/// Rounds over the grid that make blocks so many that they are taken as they come.
pub(crate) const MANY_ROUNDS: u32 = 4;

/// Words of shared memory for the teams' streams; before there are any, the choice of the code uses it.
pub(crate) fn staged_words(geometry: Geometry, means: Means) -> u32 {
    (geometry.limit * means.units()).max(SCRATCH_WORDS)
}

#[cube(launch_unchecked)]
pub(crate) fn encode(
    head: &mut Array<u32>,
    plane: &mut Array<PlanePair>,
    streams: &mut Array<u32>,
    spill: &mut Array<u32>,
    tickets: &mut Array<Atomic<u32>>,
    wide: &Array<Granule>,
    narrow: &Array<u32>,
    values: u32,
    capacity: u32,
    serial: u32,
    teams: u32,
    row_length: u32,
    row_pitch: u32,
    #[comptime] profile: u32,
    #[comptime] geometry: Geometry,
    #[comptime] choice: Choice,
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
    // The next rows' granules, the first block's on their way while the code is chosen.
    let mut ahead = Array::<Granule>::new(comptime!(AHEAD as usize));
    let mut index = CUBE_POS as u32 * teams + team;
    let works = team < teams;
    if works && index < blocks {
        let block = block_at(index, values, geometry);
        load_rows(&mut ahead, wide, narrow, stream, block, rows, access);
    }
    let staged = SharedMemory::<u32>::new(comptime!(staged_words(geometry, means) as usize));
    let chosen = choose(wide, narrow, values, rows, staged, choice, access);
    let codes = Lengths::new(chosen.table, chosen.escape).codes();
    let notes = SharedMemory::<Atomic<u32>>::new(comptime!((NOTES * means.teams) as usize));

    let stride = CUBE_COUNT as u32 * teams;
    // The same for the whole cube where teams wait for one another.
    let mut left = (blocks + stride - 1) / stride;
    let many = left > MANY_ROUNDS;
    while left > 0 {
        let active = works && index < blocks;
        let mut next = index + stride;
        if comptime!(means.planes) {
            // Whoever is done first takes the next block, as multiprocessors differ in how many cubes they hold; not where
            // the last blocks to be taken would be a large part of all.
            if active && many && stream == 0 {
                next = stride + tickets[TAKEN].fetch_add(1u32);
            }
        }
        let mut halves = 0u32;
        let writer = Writer::new(staged, geometry, means);
        if active {
            let block = block_at(index, values, geometry);
            let full = block.values == comptime!(geometry.block_values());
            if comptime!(access.aligned) {
                if full {
                    let first = index * comptime!(geometry.block_granules());
                    full_block(
                        &mut ahead, plane, wide, stream, first, rows, &writer, &codes, geometry,
                        access, means,
                    );
                } else {
                    any_block(
                        &mut ahead, plane, wide, narrow, stream, block, rows, &writer, &codes,
                        access, means,
                    );
                }
            } else {
                any_block(
                    &mut ahead, plane, wide, narrow, stream, block, rows, &writer, &codes, access,
                    means,
                );
            }
            halves = writer.finish(means);
            if comptime!(means.planes) {
                if many {
                    next = plane_broadcast(next, 0u32);
                }
            }
            if next < blocks {
                let block = block_at(next, values, geometry);
                load_rows(&mut ahead, wide, narrow, stream, block, rows, access);
            }
        }
        let record = place_record(
            tickets, &notes, team, stream, active, halves, staged, index, values, capacity, PLACES,
            geometry, means,
        );
        if active {
            let block = block_at(index, values, geometry);
            write_block(
                head, streams, spill, staged, &notes, narrow, stream, index, halves, block, record,
                capacity, blocks, rows, geometry, access, means,
            );
        }
        sync_team(means);
        index = next;
        if comptime!(means.planes) {
            left = u32::cast_from(works && index < blocks);
        } else {
            left -= 1;
        }
    }

    if is_last_cube(tickets) {
        write_head(
            head, tickets, &chosen, values, capacity, serial, blocks, PLACES, profile, geometry,
        );
    }
}

/// Codes a block whose every granule is whole and aligned. `ahead` holds its first rows; `first` is
/// its first granule.
#[cube]
fn full_block(
    ahead: &mut Array<Granule>,
    plane: &mut Array<PlanePair>,
    wide: &Array<Granule>,
    stream: u32,
    first: u32,
    rows: Rows,
    writer: &Writer,
    codes: &SharedMemory<u32>,
    #[comptime] geometry: Geometry,
    #[comptime] access: Access,
    #[comptime] means: Means,
) {
    let mut row = 0u32;
    while row < comptime!(geometry.rows()) {
        #[unroll]
        for slot in 0..AHEAD {
            let granule = ahead[slot as usize];
            if comptime!(slot % 2 == 0) {
                let place = first / 2 + plane_index(stream, row + slot);
                plane[place as usize] = split(granule, ahead[comptime!(slot as usize + 1)]);
            }
            writer.granule(granule, codes, means);
            if row < comptime!(geometry.rows() - AHEAD) {
                let next = first + granule_index(stream, row + slot + AHEAD);
                ahead[slot as usize] = wide[granule_address(next, rows, access) as usize];
            }
        }
        row += AHEAD;
    }
}

/// Codes any block.
#[cube]
fn any_block(
    ahead: &mut Array<Granule>,
    plane: &mut Array<PlanePair>,
    wide: &Array<Granule>,
    narrow: &Array<u32>,
    stream: u32,
    block: Block,
    rows: Rows,
    writer: &Writer,
    codes: &SharedMemory<u32>,
    #[comptime] access: Access,
    #[comptime] means: Means,
) {
    let mut row = 0u32;
    while row < block.rows {
        #[unroll]
        for slot in 0..AHEAD {
            // Rows that do not exist are zero, in the second half of a pair.
            if row + slot < block.rows {
                let granule = ahead[slot as usize];
                let offset = granule_offset(stream, row + slot);
                if comptime!(slot % 2 == 0) {
                    let first = block.first / comptime!(2 * GRANULE);
                    let place = first + plane_index(stream, row + slot);
                    plane[place as usize] = split(granule, ahead[comptime!(slot as usize + 1)]);
                }
                let count = granule_values(offset, block.values);
                if count == GRANULE {
                    writer.granule(granule, codes, means);
                } else {
                    writer.values(granule, count, codes, means);
                }
            }
            ahead[slot as usize] = load_row(
                wide,
                narrow,
                stream,
                row + slot + AHEAD,
                block,
                rows,
                access,
            );
        }
        row += AHEAD;
    }
}

/// Loads this unit's granules of a block's first rows.
#[cube]
fn load_rows(
    granules: &mut Array<Granule>,
    wide: &Array<Granule>,
    narrow: &Array<u32>,
    stream: u32,
    block: Block,
    rows: Rows,
    #[comptime] access: Access,
) {
    #[unroll]
    for row in 0..AHEAD {
        granules[row as usize] = load_row(wide, narrow, stream, row.runtime(), block, rows, access);
    }
}

/// Loads this unit's granule of a row; what does not exist is zero.
#[cube]
fn load_row(
    wide: &Array<Granule>,
    narrow: &Array<u32>,
    stream: u32,
    row: u32,
    block: Block,
    rows: Rows,
    #[comptime] access: Access,
) -> Granule {
    let offset = granule_offset(stream, row);
    let count = granule_values(offset, block.values);
    load(wide, narrow, block.first + offset, count, rows, access)
}

/// Writes a block's directory entry, the words it owns and its record.
#[cube]
fn write_block(
    head: &mut Array<u32>,
    streams: &mut Array<u32>,
    spill: &mut Array<u32>,
    staged: SharedMemory<u32>,
    notes: &SharedMemory<Atomic<u32>>,
    narrow: &Array<u32>,
    stream: u32,
    index: u32,
    halves: u32,
    block: Block,
    record: Record,
    capacity: u32,
    blocks: u32,
    rows: Rows,
    #[comptime] geometry: Geometry,
    #[comptime] access: Access,
    #[comptime] means: Means,
) {
    let entry = index * ENTRY_WORDS;
    if comptime!(geometry.is_fixed()) {
        let base = index * comptime!(geometry.words * STREAMS) + stream;
        let coded = select(record.is_raw(), 0u32, halves);
        write_rows(streams, staged, base, block.words, coded, means);
        if stream == 0 {
            spill[entry as usize] = record.place;
            spill[(entry + 1) as usize] = record.info;
        }
        if record.exists() {
            let at = blocks * ENTRY_WORDS + record.place;
            record.write(
                spill, staged, notes, narrow, stream, at, halves, block, rows, geometry, access,
                means,
            );
        }
    } else {
        if stream == 0 {
            head[DIRECTORY_WORD + entry as usize] = record.place;
            head[DIRECTORY_WORD + (entry + 1) as usize] = record.info;
        }
        if record.place < capacity {
            record.write(
                streams,
                staged,
                notes,
                narrow,
                stream,
                record.place,
                halves,
                block,
                rows,
                geometry,
                access,
                means,
            );
        } else {
            let at = record.place - capacity;
            record.write(
                spill, staged, notes, narrow, stream, at, halves, block, rows, geometry, access,
                means,
            );
        }
    }
}
