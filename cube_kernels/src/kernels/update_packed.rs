//! The update of packed tensors: old packed forms and a dense gradient go in, new packed forms come out.
//!
//! A team works on the same block of all tensors. Each unit decodes its streams of weight and states granule by granule,
//! does the step in registers, and codes the new values with the codes that the old forms had: a step changes so little
//! that they still fit, and what has no code is escaped. So nothing dense exists but the gradient. Bytes per value: 2 for the
//! gradient, and 2.67 for each tensor of which an exponent takes 2.7 bits.

use cubecl::prelude::*;

use super::codebook::Chosen;
use super::codes::{Code, Lengths};
use super::dense::{Access, Granule, Rows, load};
use super::encode::MANY_ROUNDS;
use super::feed::Feed;
use super::geometry::{
    Block, Geometry, block_at, block_count, granule_offset, granule_values, plane_index,
};
use super::head::write_head;
use super::plane::{PlanePair, merge, split};
use super::record::{NOTES, place_record};
use super::source::{load_entry, source};
use super::step::{Granules, Numbers, Plan, step_granule};
use super::team::{Means, sync_team};
use super::tickets::{DONE, TAKEN, places};
use super::writer::{Writer, code_length};
use crate::header::{
    CAPACITY_WORD, CODEBOOK_WORD, DIRECTORY_WORD, ESCAPE_WORD, TABLE_WORD, TABLE_WORDS,
};
use crate::layout::{ENTRY_WORDS, GRANULE, STREAMS};

/// The old packed forms: of the weight, then of the states.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Old {
    pub head: Sequence<Array<u32>>,
    pub plane: Sequence<Array<PlanePair>>,
    pub streams: Sequence<Array<u32>>,
    pub spill: Sequence<Array<u32>>,
}

/// The gradient.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Gradient {
    pub wide: Array<Granule>,
    pub narrow: Array<u32>,
    pub row_length: u32,
    pub row_pitch: u32,
}

#[cube]
impl Gradient {
    /// A stream's granule of a row; what does not exist is zero.
    fn granule(
        &self,
        block: Block,
        stream: u32,
        row: u32,
        count: u32,
        #[comptime] access: Access,
    ) -> Granule {
        let rows = Rows {
            length: self.row_length,
            pitch: self.row_pitch,
        };
        let first = block.first + granule_offset(stream, row);
        load(&self.wide, &self.narrow, first, count, rows, access)
    }
}

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
    #[comptime] geometry: Geometry,
    #[comptime] plan: Plan,
    #[comptime] access: Access,
    #[comptime] means: Means,
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
        entries.push(lengths.singles());
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
                let feeds = feeds(old, index, stream, values, blocks, geometry, tensors, means);
                let full = block.values == comptime!(geometry.block_values());
                if full && raw == 0 {
                    block_pass(
                        old, gradient, planes, streams, spills, &feeds, &entries, &codes, &writers,
                        block, stream, raw, &raw_at, capacities, numbers, true, geometry, plan,
                        access, means,
                    );
                } else {
                    block_pass(
                        old, gradient, planes, streams, spills, &feeds, &entries, &codes, &writers,
                        block, stream, raw, &raw_at, capacities, numbers, false, geometry, plan,
                        access, means,
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

    // The last cube knows where the records end.
    let last = SharedMemory::<Atomic<u32>>::new(1usize);
    sync_cube();
    if UNIT_POS == 0 {
        let done = tickets[DONE].fetch_add(1u32);
        last[0].store(u32::cast_from(done + 1 == CUBE_COUNT as u32));
    }
    sync_cube();
    if last[0].load() == 1 {
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

/// This unit's streams of a block.
#[cube]
fn feeds(
    old: &Old,
    index: u32,
    stream: u32,
    values: u32,
    blocks: u32,
    #[comptime] geometry: Geometry,
    #[comptime] tensors: usize,
    #[comptime] means: Means,
) -> Sequence<Feed> {
    let mut feeds = Sequence::<Feed>::new();
    #[unroll]
    for tensor in 0..tensors {
        let (head, streams) = (old.head.index(tensor), old.streams.index(tensor));
        let spill = old.spill.index(tensor);
        let entry = load_entry(head, spill, index, blocks, 0u32, geometry);
        let capacity = head[CAPACITY_WORD];
        let mut source = source(entry, index, stream, values, capacity, blocks, geometry);
        source.load_counts(streams, spill, stream);
        feeds.push(Feed::new(source, streams, spill, means));
    }
    feeds
}

/// How many values of a granule exist.
#[cube]
fn present(block: Block, stream: u32, row: u32, #[comptime] whole: bool) -> u32 {
    if comptime!(whole) {
        GRANULE.runtime()
    } else {
        granule_values(granule_offset(stream, row), block.values)
    }
}

/// The new values of the granule in row `row`, which the feeds come to next. `bytes` begin with its old signs and fractions.
#[cube]
fn renew(
    old: &Old,
    feeds: &Sequence<Feed>,
    entries: &Sequence<SharedMemory<u32>>,
    bytes: &Array<PlanePair>,
    gradient: Granule,
    block: Block,
    stream: u32,
    row: u32,
    count: u32,
    numbers: &Numbers,
    #[comptime] whole: bool,
    #[comptime] plan: Plan,
    #[comptime] means: Means,
) -> Granules {
    let mut values = Granules {
        weight: Granule::empty(),
        first: Granule::empty(),
        second: Granule::empty(),
        most: Granule::empty(),
    };
    #[unroll]
    for tensor in 0..comptime!(1 + plan.chain.states()) {
        let exponents = feeds.index(tensor).granule(
            row,
            count,
            old.streams.index(tensor),
            old.spill.index(tensor),
            entries[tensor],
            whole,
            means,
        );
        let granule = merge(exponents, bytes[tensor], 0u32);
        match comptime!(tensor) {
            0 => {
                values.weight = granule;
            }
            1 => {
                values.first = granule;
            }
            2 => {
                values.second = granule;
            }
            _ => {
                values.most = granule;
            }
        }
    }
    let place = block.first + granule_offset(stream, row);
    step_granule(values, gradient, place, numbers, plan)
}

/// Zeros behind the first `count` values.
#[cube]
fn cut(granule: Granule, count: u32) -> Granule {
    let mut kept = granule;
    #[unroll]
    for word in 0..comptime!(GRANULE / 2) {
        let upper = select(word * 2 + 1 < count, u32::MAX, 0xffffu32);
        let mask = select(word * 2 < count, upper, 0u32);
        kept[word as usize] = granule[word as usize] & mask;
    }
    kept
}

/// Codes a block's new values; or, where `raw` says of which tensors, writes their new exponents, a byte each.
#[cube]
fn block_pass(
    old: &Old,
    gradient: &Gradient,
    planes: &mut Sequence<Array<PlanePair>>,
    streams: &mut Sequence<Array<u32>>,
    spills: &mut Sequence<Array<u32>>,
    feeds: &Sequence<Feed>,
    entries: &Sequence<SharedMemory<u32>>,
    codes: &Sequence<SharedMemory<u32>>,
    writers: &Sequence<Writer>,
    block: Block,
    stream: u32,
    raw: u32,
    raw_at: &Array<u32>,
    capacities: &Sequence<u32>,
    numbers: &Numbers,
    #[comptime] whole: bool,
    #[comptime] geometry: Geometry,
    #[comptime] plan: Plan,
    #[comptime] access: Access,
    #[comptime] means: Means,
) {
    let tensors = comptime!(1 + plan.chain.states());
    let rows = if comptime!(whole) {
        comptime!(geometry.rows()).runtime()
    } else {
        block.rows
    };
    // Signs and fractions of two rows, the old ones, and the new ones of the first.
    let mut bytes = Array::<PlanePair>::new(tensors);
    let mut above = Array::<Granule>::new(tensors);
    // A row at a time, for the instruction cache.
    for row in 0..rows {
        let count = present(block, stream, row, whole);
        let slope = gradient.granule(block, stream, row, count, access);
        let place = block.first / comptime!(2 * GRANULE) + plane_index(stream, row);
        let second = row % 2 == 1;
        #[unroll]
        for tensor in 0..tensors {
            if second {
                let mut rest = PlanePair::empty();
                rest[0] = bytes[tensor][2];
                rest[1] = bytes[tensor][3];
                bytes[tensor] = rest;
            } else {
                let plane = old.plane.index(tensor);
                bytes[tensor] = plane[place as usize];
            }
        }
        let new = renew(
            old, feeds, entries, &bytes, slope, block, stream, row, count, numbers, whole, plan,
            means,
        );
        #[unroll]
        for tensor in 0..tensors {
            let mut granule = new.get(tensor);
            if comptime!(!whole) {
                granule = cut(granule, count);
            }
            if raw == 0 {
                let plane = planes.index_mut(tensor);
                if second {
                    plane[place as usize] = split(above[tensor], granule);
                } else {
                    above[tensor] = granule;
                    if comptime!(!whole) {
                        if row + 1 == rows {
                            plane[place as usize] = split(granule, Granule::empty());
                        }
                    }
                }
                code(
                    writers.index(tensor),
                    granule,
                    codes[tensor],
                    count,
                    whole,
                    means,
                );
            } else if comptime!(!whole) {
                if raw & comptime!(1u32 << tensor as u32) != 0 {
                    let capacity = *capacities.index(tensor);
                    let at = raw_at[tensor];
                    if at >= capacity {
                        let at = at - capacity;
                        write_raw(spills.index_mut(tensor), granule, at, stream, row);
                    } else {
                        write_raw(streams.index_mut(tensor), granule, at, stream, row);
                    }
                }
            }
        }
    }
}

/// Writes a granule's exponents of a record at word `at`.
#[cube]
fn write_raw(target: &mut Array<u32>, granule: Granule, at: u32, stream: u32, row: u32) {
    #[unroll]
    for half in 0..2u32 {
        let first = granule[comptime!((half * 2) as usize)];
        let second = granule[comptime!((half * 2 + 1) as usize)];
        let low = ((first >> 7) & 0xff) | ((first >> 15) & 0xff00);
        let high = ((second >> 7) & 0xff) | ((second >> 15) & 0xff00);
        target[(at + (row * 2 + half) * STREAMS + stream) as usize] = low | (high << 16);
    }
}

/// Codes a granule's first `count` values.
#[cube]
fn code(
    writer: &Writer,
    granule: Granule,
    codes: SharedMemory<u32>,
    count: u32,
    #[comptime] whole: bool,
    #[comptime] means: Means,
) {
    if comptime!(whole) {
        writer.granule(granule, &codes, means);
    } else {
        #[unroll]
        for symbol in 0..GRANULE {
            if symbol < count {
                let pair = granule[comptime!((symbol / 2) as usize)];
                let exponent = (pair >> comptime!(symbol % 2 * 16 + 7)) & 0xff;
                let code = codes[exponent as usize];
                writer.push(code & comptime!(Code::BITS), code_length(code), means);
            }
        }
    }
}
