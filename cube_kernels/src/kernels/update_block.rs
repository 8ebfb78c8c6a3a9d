//! One block of an update of packed tensors: decode, step and encode, a granule at a time.
//!
//! The new words of a stream take the place of its old ones in shared memory: those are staged at the column's end, the new
//! ones are written from its beginning on. They have the same codes and nearly the same lengths, so a word is hardly ever
//! written before the one in its place was read; then, and where blocks are not whole, the old words are read where they lie.

use cubecl::prelude::*;

use super::dense::{Access, Granule, Rows, load};
use super::feed::Feed;
use super::geometry::{Block, Geometry, granule_offset, granule_values, plane_index};
use super::plane::{PlanePair, merge, second_row, split};
use super::reader::{Reader, granules};
use super::source::{Source, load_entry, source};
use super::stage::{stage, staged_rows};
use super::step::{Granules, Numbers, Plan, step_granule};
use super::team::Means;
use super::writer::Writer;
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

/// Where this unit's streams of a block lie.
#[cube]
pub(crate) fn sources(
    old: &Old,
    index: u32,
    stream: u32,
    values: u32,
    blocks: u32,
    #[comptime] geometry: Geometry,
    #[comptime] tensors: usize,
) -> Sequence<Source> {
    let mut sources = Sequence::<Source>::new();
    #[unroll]
    for tensor in 0..tensors {
        let (head, streams) = (old.head.index(tensor), old.streams.index(tensor));
        let spill = old.spill.index(tensor);
        let entry = load_entry(head, spill, index, blocks, 0u32, geometry);
        let capacity = head[CAPACITY_WORD];
        let mut source = source(entry, index, stream, values, capacity, blocks, geometry);
        source.load_counts(streams, spill, stream);
        sources.push(source);
    }
    sources
}

/// Updates a block of which all values exist, if its old words find room in shared memory. Returns whether all is done; if
/// not, nothing has been done that counts.
#[cube]
pub(crate) fn whole_block(
    old: &Old,
    gradient: &Gradient,
    planes: &mut Sequence<Array<PlanePair>>,
    sources: &Sequence<Source>,
    staged: &Sequence<SharedMemory<u32>>,
    tables: &Sequence<SharedMemory<u32>>,
    codes: &Sequence<SharedMemory<u32>>,
    writers: &Sequence<Writer>,
    block: Block,
    stream: u32,
    numbers: &Numbers,
    #[comptime] table_bits: u32,
    #[comptime] geometry: Geometry,
    #[comptime] plan: Plan,
    #[comptime] access: Access,
    #[comptime] means: Means,
) -> bool {
    let tensors = comptime!(1 + plan.chain.states());
    let mut fits = true;
    #[unroll]
    for tensor in 0..tensors {
        fits = fits && staged_rows(sources.index(tensor)) <= geometry.limit;
    }
    let mut done = fits;
    if fits {
        let plane = block.first / comptime!(2 * GRANULE) + stream;
        // The next row's gradient, and the next two rows' signs and fractions, are on their way.
        let mut slope = gradient.granule(block, stream, 0u32, GRANULE.runtime(), access);
        let mut coming = Array::<PlanePair>::new(tensors);
        let mut bytes = Array::<PlanePair>::new(tensors);
        let mut above = Array::<Granule>::new(tensors);
        let mut readers = Sequence::<Reader>::new();
        #[unroll]
        for tensor in 0..tensors {
            coming[tensor] = old.plane.index(tensor)[plane as usize];
            bytes[tensor] = PlanePair::empty();
            above[tensor] = Granule::empty();
            let (source, column) = (sources.index(tensor), *staged.index(tensor));
            let (streams, spill) = (old.streams.index(tensor), old.spill.index(tensor));
            let first = geometry.limit - staged_rows(source);
            stage(column, first, source, streams, spill, means);
            readers.push(Reader::new(column, first, table_bits, means));
        }
        // A row at a time, for the instruction cache.
        for row in 0..comptime!(geometry.rows()) {
            let second = row % 2 == 1;
            let new = {
                let exponents = granules(&readers, tables, means);
                let mut merged = Array::<Granule>::new(tensors);
                #[unroll]
                for tensor in 0..tensors {
                    if second {
                        bytes[tensor] = second_row(bytes[tensor]);
                    } else {
                        bytes[tensor] = coming[tensor];
                        let after = select(row + 2 < comptime!(geometry.rows()), row + 2, row);
                        let place = plane + after / 2 * STREAMS;
                        coming[tensor] = old.plane.index(tensor)[place as usize];
                    }
                    merged[tensor] = merge(exponents[tensor], bytes[tensor], 0u32);
                }
                let place = block.first + granule_offset(stream, row);
                step_granule(gather(&merged, tensors), slope, place, numbers, plan)
            };
            let after = select(row + 1 < comptime!(geometry.rows()), row + 1, row);
            slope = gradient.granule(block, stream, after, GRANULE.runtime(), access);
            #[unroll]
            for tensor in 0..tensors {
                let granule = new.get(tensor);
                if second {
                    let place = plane + row / 2 * STREAMS;
                    planes.index_mut(tensor)[place as usize] = split(above[tensor], granule);
                } else {
                    above[tensor] = granule;
                }
                let writer = writers.index(tensor);
                writer.set_end(readers.index(tensor).place());
                writer.granule(granule, codes.index(tensor), means);
            }
        }
        #[unroll]
        for tensor in 0..tensors {
            let writer = writers.index(tensor);
            if writer.has_refused() {
                done = false;
            }
            writer.set_end(comptime!(geometry.limit * means.units()).runtime());
        }
        if !done {
            #[unroll]
            for tensor in 0..tensors {
                writers.index(tensor).reset(geometry, means);
            }
        }
    }
    done
}

/// The operands of a step.
#[cube]
fn gather(granules: &Array<Granule>, #[comptime] tensors: usize) -> Granules {
    let mut gathered = Granules {
        weight: granules[0usize],
        first: Granule::empty(),
        second: Granule::empty(),
        most: Granule::empty(),
    };
    if comptime!(tensors > 1) {
        gathered.first = granules[1usize];
    }
    if comptime!(tensors > 2) {
        gathered.second = granules[2usize];
    }
    if comptime!(tensors > 3) {
        gathered.most = granules[3usize];
    }
    gathered
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
    #[comptime] table_bits: u32,
    #[comptime] plan: Plan,
    #[comptime] means: Means,
) -> Granules {
    let tensors = comptime!(1 + plan.chain.states());
    let mut exponents = Array::<Granule>::new(tensors);
    #[unroll]
    for tensor in 0..tensors {
        exponents[tensor] = Granule::empty();
    }
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
            if pair * 2 + symbol < count {
                #[unroll]
                for tensor in 0..tensors {
                    let table = entries.index(tensor);
                    let exponent = feeds.index(tensor).symbol(table, table_bits, means);
                    two[tensor] |= exponent << (symbol * 16);
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
    #[unroll]
    for tensor in 0..tensors {
        exponents[tensor] = merge(exponents[tensor], bytes[tensor], 0u32);
    }
    let place = block.first + granule_offset(stream, row);
    step_granule(gather(&exponents, tensors), gradient, place, numbers, plan)
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

/// Codes any block's new values; or, where `raw` says of which tensors, writes their new exponents, a byte each.
#[cube]
pub(crate) fn any_block(
    old: &Old,
    gradient: &Gradient,
    planes: &mut Sequence<Array<PlanePair>>,
    streams: &mut Sequence<Array<u32>>,
    spills: &mut Sequence<Array<u32>>,
    sources: &Sequence<Source>,
    tables: &Sequence<SharedMemory<u32>>,
    codes: &Sequence<SharedMemory<u32>>,
    writers: &Sequence<Writer>,
    block: Block,
    stream: u32,
    raw: u32,
    raw_at: &Array<u32>,
    capacities: &Sequence<u32>,
    numbers: &Numbers,
    #[comptime] table_bits: u32,
    #[comptime] plan: Plan,
    #[comptime] access: Access,
    #[comptime] means: Means,
) {
    let tensors = comptime!(1 + plan.chain.states());
    let mut feeds = Sequence::<Feed>::new();
    // Signs and fractions of two rows, the old ones, and the new ones of the first.
    let mut bytes = Array::<PlanePair>::new(tensors);
    let mut above = Array::<Granule>::new(tensors);
    #[unroll]
    for tensor in 0..tensors {
        let (streams, spill) = (old.streams.index(tensor), old.spill.index(tensor));
        feeds.push(Feed::new(*sources.index(tensor), streams, spill, means));
        bytes[tensor] = PlanePair::empty();
        above[tensor] = Granule::empty();
    }
    for row in 0..block.rows {
        let count = granule_values(granule_offset(stream, row), block.values);
        let slope = gradient.granule(block, stream, row, count, access);
        let place = block.first / comptime!(2 * GRANULE) + plane_index(stream, row);
        let second = row % 2 == 1;
        #[unroll]
        for tensor in 0..tensors {
            if second {
                bytes[tensor] = second_row(bytes[tensor]);
            } else {
                let plane = old.plane.index(tensor);
                bytes[tensor] = plane[place as usize];
            }
        }
        let new = renew(
            old, &feeds, tables, &bytes, slope, block, stream, row, count, numbers, table_bits,
            plan, means,
        );
        #[unroll]
        for tensor in 0..tensors {
            let granule = cut(new.get(tensor), count);
            if raw == 0 {
                let plane = planes.index_mut(tensor);
                if second {
                    plane[place as usize] = split(above[tensor], granule);
                } else {
                    above[tensor] = granule;
                    if row + 1 == block.rows {
                        plane[place as usize] = split(granule, Granule::empty());
                    }
                }
                writers
                    .index(tensor)
                    .values(granule, count, codes.index(tensor), means);
            } else if raw & comptime!(1u32 << tensor as u32) != 0 {
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
