//! One block of an update of packed tensors: decode, step and encode, two neighbours at a time.
//!
//! What a unit does for two neighbours of all tensors is some hundred instructions. More at a time would be more than the
//! instruction cache holds, and waiting for instructions took most of the time when it was eight.

use cubecl::prelude::*;

use super::codes::Code;
use super::dense::{Access, Granule, Rows, load};
use super::feed::Feed;
use super::geometry::{Block, Geometry, granule_offset, granule_values, plane_index};
use super::plane::{PlanePair, merge_pair, split};
use super::source::{load_entry, source};
use super::step::{Numbers, Pairs, Plan, step_pair};
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

/// The old values of pair `pair` of a row, which the feeds come to next, with the signs and fractions in `words`.
#[cube]
fn decode_pair(
    old: &Old,
    feeds: &Sequence<Feed>,
    entries: &Sequence<SharedMemory<u32>>,
    words: &Array<u32>,
    row: u32,
    pair: u32,
    count: u32,
    #[comptime] whole: bool,
    #[comptime] tensors: usize,
    #[comptime] means: Means,
) -> Pairs {
    let mut two = Array::<u32>::new(tensors);
    #[unroll]
    for tensor in 0..tensors {
        two[tensor] = 0u32;
    }
    // The tensors' steps are side by side, so that their latencies overlap.
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
    }
    let mut values = Pairs::empty();
    values.weight = merge_pair(two[0usize], words[0usize]);
    if comptime!(tensors > 1) {
        values.first = merge_pair(two[1usize], words[1usize]);
    }
    if comptime!(tensors > 2) {
        values.second = merge_pair(two[2usize], words[2usize]);
    }
    if comptime!(tensors > 3) {
        values.most = merge_pair(two[3usize], words[3usize]);
    }
    values
}

/// The words but the first, and a new one behind them. After four times a granule's first pair is at the front again.
#[cube]
fn push(granule: Granule, last: u32) -> Granule {
    let mut pushed = Granule::empty();
    pushed[0] = granule[1];
    pushed[1] = granule[2];
    pushed[2] = granule[3];
    pushed[3] = last;
    pushed
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

/// Zeros behind the first `count` values of a granule, of which these are pair `pair`.
#[cube]
fn cut(two: u32, pair: u32, count: u32) -> u32 {
    let upper = select(pair * 2 + 1 < count, u32::MAX, 0xffffu32);
    two & select(pair * 2 < count, upper, 0u32)
}

/// Codes a block's new values; or, where `raw` says of which tensors, writes their new exponents, a byte each. `pairs` is
/// how many a granule has; not a constant, or the compiler would unroll the loop.
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
    pairs: u32,
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
    // Signs and fractions of two rows, the old ones, and the new values of the first.
    let mut bytes = Array::<PlanePair>::new(tensors);
    let mut above = Array::<Granule>::new(tensors);
    for row in 0..rows {
        let count = present(block, stream, row, whole);
        let mut slope = gradient.granule(block, stream, row, count, access);
        let first = block.first + granule_offset(stream, row);
        let place = block.first / comptime!(2 * GRANULE) + plane_index(stream, row);
        let second = row % 2 == 1;
        // The bytes of this row that come next, and the four after them.
        let mut words = Array::<u32>::new(tensors);
        let mut others = Array::<u32>::new(tensors);
        let mut new = Array::<Granule>::new(tensors);
        #[unroll]
        for tensor in 0..tensors {
            if !second {
                let plane = old.plane.index(tensor);
                bytes[tensor] = plane[place as usize];
            }
            let both = bytes[tensor];
            words[tensor] = select(second, both[2], both[0]);
            others[tensor] = select(second, both[3], both[1]);
            new[tensor] = Granule::empty();
        }
        for pair in 0..pairs {
            let values = decode_pair(
                old, feeds, entries, &words, row, pair, count, whole, tensors, means,
            );
            let values = step_pair(values, slope[0], first + pair * 2, numbers, plan);
            slope = push(slope, slope[0]);
            #[unroll]
            for tensor in 0..tensors {
                words[tensor] = select(pair == 1, others[tensor], words[tensor] >> 8);
                let mut two = values.get(tensor);
                if comptime!(!whole) {
                    two = cut(two, pair, count);
                }
                new[tensor] = push(new[tensor], two);
                let writer = writers.index(tensor);
                if comptime!(whole) {
                    writer.pair(two, &codes[tensor], means);
                } else {
                    if raw == 0 {
                        code(writer, two, codes[tensor], pair * 2, count, means);
                    }
                }
            }
        }
        #[unroll]
        for tensor in 0..tensors {
            let granule = new[tensor];
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

/// Codes those of two values, of which the first is number `index` of its granule, that are among the first `count`.
#[cube]
fn code(
    writer: &Writer,
    two: u32,
    codes: SharedMemory<u32>,
    index: u32,
    count: u32,
    #[comptime] means: Means,
) {
    #[unroll]
    for symbol in 0..2u32 {
        if index + symbol < count {
            let exponent = (two >> comptime!(symbol * 16 + 7)) & 0xff;
            let code = codes[exponent as usize];
            writer.push(code & comptime!(Code::BITS), code_length(code), means);
        }
    }
}
