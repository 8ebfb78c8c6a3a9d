//! The update of packed tensors: old packed forms and a dense gradient go in, new packed forms come out.
//!
//! A team works on the same block of all tensors. Each unit decodes its streams of weight and states granule by granule,
//! does the step in registers, and codes the new values with the codes that the old forms had: a step changes so little
//! that they still fit, and what has no code is escaped. So nothing dense exists but the gradient. Bytes per value: 2 for the
//! gradient, and 2.67 for each tensor of which an exponent takes 2.7 bits.

use cubecl::prelude::*;

use super::codebook::Chosen;
use super::codes::Lengths;
use super::dense::Access;
use super::encode::MANY_ROUNDS;
use super::geometry::{Geometry, block_at, block_count};
use super::head::write_head;
use super::plane::PlanePair;
use super::record::{NOTES, place_record};
use super::step::{Numbers, Plan};
use super::team::{Means, sync_team};
use super::tickets::{TAKEN, is_last_cube, places};
use super::update_block::{Gradient, Old, any_block, sources, whole_block};
use super::writer::Writer;
use crate::header::{CODEBOOK_WORD, DIRECTORY_WORD, ESCAPE_WORD, TABLE_WORD, TABLE_WORDS};
use crate::layout::{ENTRY_WORDS, STREAMS};

/// Does a step for every value of weight and states, all of one layout, whose streams take what they need.
#[cube(launch_unchecked)]
pub(crate) fn update_packed(
    old: &Old,
    gradient: &Gradient,
    heads: &mut Sequence<Array<u32>>,
    planes: &mut Sequence<Array<PlanePair>>,
    streams: &mut Sequence<Array<u32>>,
    spills: &mut Sequence<Array<u32>>,
    tickets: &mut Array<Atomic<u32>>,
    capacities: &Sequence<u32>,
    values: u32,
    serial: u32,
    teams: u32,
    numbers: &Numbers,
    #[comptime] profile: u32,
    #[comptime] table_bits: u32,
    #[comptime] geometry: Geometry,
    #[comptime] plan: Plan,
    #[comptime] access: Access,
    #[comptime] means: Means,
    #[comptime] _revision: u32,
) {
    let tensors = comptime!(1 + plan.chain.states());
    let team = UNIT_POS / STREAMS;
    let stream = UNIT_POS % STREAMS;
    let blocks = block_count(values, geometry);
    let works = team < teams;
    let mut index = CUBE_POS as u32 * teams + team;

    let mut entries = Sequence::<SharedMemory<u32>>::new();
    let mut codes = Sequence::<SharedMemory<u32>>::new();
    let mut chosen = Sequence::<Chosen>::new();
    let mut staged = Sequence::<SharedMemory<u32>>::new();
    #[unroll]
    for tensor in 0..tensors {
        let head = old.head.index(tensor);
        let mut table = SharedMemory::<u32>::new(TABLE_WORDS);
        if UNIT_POS < comptime!(TABLE_WORDS as u32) {
            table[UNIT_POS as usize] = head[TABLE_WORD + UNIT_POS as usize];
        }
        let escape = head[ESCAPE_WORD];
        let lengths = Lengths::new(table, escape);
        entries.push(lengths.entries(table_bits));
        codes.push(lengths.codes());
        let origin = head[CODEBOOK_WORD];
        chosen.push(Chosen {
            table,
            escape,
            origin,
        });
        staged.push(SharedMemory::<u32>::new(comptime!(
            (geometry.limit * means.units()) as usize
        )));
    }
    let notes = SharedMemory::<Atomic<u32>>::new(comptime!((NOTES * means.teams) as usize));

    let stride = CUBE_COUNT as u32 * teams;
    // The same for the whole cube where teams wait for one another.
    let mut left = (blocks + stride - 1) / stride;
    let many = left > MANY_ROUNDS;
    while left > 0 {
        let active = works && index < blocks;
        let mut next = index + stride;
        if comptime!(means.planes) {
            // See the encode: whoever is done first takes the next block.
            if active && many && stream == 0 {
                next = stride + tickets[TAKEN].fetch_add(1u32);
            }
        }
        let mut writers = Sequence::<Writer>::new();
        // Where the records of tensors lie that are stored raw, and which those are.
        let mut raw_at = Array::<u32>::new(tensors);
        let mut raw = 0u32;
        #[unroll]
        for tensor in 0..tensors {
            writers.push(Writer::new(staged[tensor], geometry, means));
        }
        // Once to code the block, and once more if a tensor turns out to be stored raw: its values were not kept.
        for pass in 0..2u32 {
            if active && (pass == 0 || raw > 0) {
                let block = block_at(index, values, geometry);
                let sources = sources(old, index, stream, values, blocks, geometry, tensors);
                let mut done = false;
                if raw == 0 {
                    if block.values == comptime!(geometry.block_values()) {
                        done = whole_block(
                            old, gradient, planes, &sources, &staged, &entries, &codes, &writers,
                            block, stream, numbers, table_bits, geometry, plan, access, means,
                        );
                    }
                }
                if !done {
                    any_block(
                        old, gradient, planes, streams, spills, &sources, &entries, &codes,
                        &writers, block, stream, raw, &raw_at, capacities, numbers, table_bits,
                        plan, access, means,
                    );
                }
            }
            if pass == 0 {
                if comptime!(means.planes) {
                    if active && many {
                        next = plane_broadcast(next, 0u32);
                    }
                }
                #[unroll]
                for tensor in 0..tensors {
                    let capacity = *capacities.index(tensor);
                    let mut halves = 0u32;
                    if active {
                        halves = writers.index(tensor).finish(means);
                    }
                    let record = place_record(
                        tickets,
                        &notes,
                        team,
                        stream,
                        active,
                        halves,
                        staged[tensor],
                        index,
                        values,
                        capacity,
                        comptime!(places(tensor)),
                        geometry,
                        means,
                    );
                    if active {
                        if stream == 0 {
                            let entry = DIRECTORY_WORD + (index * ENTRY_WORDS) as usize;
                            let head = heads.index_mut(tensor);
                            head[entry] = record.place;
                            head[entry + 1] = record.info;
                        }
                        if record.is_raw() {
                            raw |= comptime!(1u32 << tensor as u32);
                            raw_at[tensor] = record.place;
                        } else if record.place >= capacity {
                            record.write_coded(
                                spills.index_mut(tensor),
                                staged[tensor],
                                &notes,
                                stream,
                                record.place - capacity,
                                halves,
                                geometry,
                                means,
                            );
                        } else {
                            record.write_coded(
                                streams.index_mut(tensor),
                                staged[tensor],
                                &notes,
                                stream,
                                record.place,
                                halves,
                                geometry,
                                means,
                            );
                        }
                    }
                    sync_team(means);
                }
            }
        }
        index = next;
        if comptime!(means.planes) {
            left = u32::cast_from(works && index < blocks);
        } else {
            left -= 1;
        }
    }

    if is_last_cube(tickets) {
        #[unroll]
        for tensor in 0..tensors {
            write_head(
                heads.index_mut(tensor),
                tickets,
                chosen.index(tensor),
                values,
                *capacities.index(tensor),
                serial,
                blocks,
                comptime!(places(tensor)),
                profile,
                geometry,
            );
        }
    }
}
