//! One block of an update of packed tensors: decode, step and encode, a granule at a time.

use cubecl::prelude::*;

use super::codes::Code;
use super::dense::{Access, Granule, Rows, load};
use super::feed::Feed;
use super::geometry::{Block, Geometry, granule_offset, granule_values, plane_index};
use super::plane::{PlanePair, merge, split};
use super::source::{load_entry, source};
use super::step::{Granules, Numbers, Plan, step_granule};
use super::team::Means;
use super::writer::{Writer, code_length};
use crate::header::CAPACITY_WORD;
use crate::layout::{GRANULE, STREAMS};

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

/// This unit's streams of a block.
#[cube]
pub(crate) fn feeds(
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
    let tensors = comptime!(1 + plan.chain.states());
    let mut exponents = Array::<Granule>::new(tensors);
    #[unroll]
    for tensor in 0..tensors {
        exponents[tensor] = Granule::empty();
    }
    // Not unrolled, for the instruction cache; the tensors' steps are side by side, so that their latencies overlap.
    for pair in 0..comptime!(GRANULE / 2) {
        let mut two = Array::<u32>::new(tensors);
        #[unroll]
        for tensor in 0..tensors {
            two[tensor] = 0u32;
        }
        #[unroll]
        for symbol in 0..2u32 {
            if comptime!(symbol == 0 || !means.has_u64) {
                #[unroll]
                for tensor in 0..tensors {
                    let (streams, spill) = (old.streams.index(tensor), old.spill.index(tensor));
                    feeds.index(tensor).refill(streams, spill, means);
                }
            }
            if comptime!(whole) {
                read(feeds, entries, &mut two, symbol, tensors, means);
            } else {
                if pair * 2 + symbol < count {
                    read(feeds, entries, &mut two, symbol, tensors, means);
                }
            }
        }
        #[unroll]
        for tensor in 0..tensors {
            let feed = feeds.index(tensor);
            if feed.is_raw() {
                if pair * 2 < count {
                    let (streams, spill) = (old.streams.index(tensor), old.spill.index(tensor));
                    two[tensor] = feed.raw_pair(row, pair, streams, spill);
                }
            }
            // The first pair is at the front after the last.
            let before = exponents[tensor];
            let mut after = Granule::empty();
            after[0] = before[1];
            after[1] = before[2];
            after[2] = before[3];
            after[3] = two[tensor];
            exponents[tensor] = after;
        }
    }
    let mut values = Granules {
        weight: merge(exponents[0usize], bytes[0usize], 0u32),
        first: Granule::empty(),
        second: Granule::empty(),
        most: Granule::empty(),
    };
    if comptime!(tensors > 1) {
        values.first = merge(exponents[1usize], bytes[1usize], 0u32);
    }
    if comptime!(tensors > 2) {
        values.second = merge(exponents[2usize], bytes[2usize], 0u32);
    }
    if comptime!(tensors > 3) {
        values.most = merge(exponents[3usize], bytes[3usize], 0u32);
    }
    let place = block.first + granule_offset(stream, row);
    step_granule(values, gradient, place, numbers, plan)
}

/// Reads the next exponent of each tensor to its place in a pair.
#[cube]
fn read(
    feeds: &Sequence<Feed>,
    entries: &Sequence<SharedMemory<u32>>,
    two: &mut Array<u32>,
    #[comptime] symbol: u32,
    #[comptime] tensors: usize,
    #[comptime] means: Means,
) {
    #[unroll]
    for tensor in 0..tensors {
        let exponent = feeds.index(tensor).symbol(entries[tensor], means);
        two[tensor] |= exponent << comptime!(symbol * 16);
    }
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
pub(crate) fn block_pass(
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
