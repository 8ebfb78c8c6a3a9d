//! The decode launch: a persistent grid of cubes decodes the blocks.
//!
//! A unit owns a stream. It reads the sign-fraction bytes (1 byte a value) and the stream's words
//! (W / 8 L bytes a value: 0.39 in Clean) and writes whole granules (2).

use cubecl::prelude::*;

use super::bits::window;
use super::codes::Lengths;
use super::dense::{Access, Granule, Rows, granule_address, store};
use super::encode::{PlaneGranule, inclusive_sum};
use super::geometry::{
    Block, Geometry, block_at, block_count, granule_index, granule_offset, granule_values,
    stream_count,
};
use crate::codebook::Entry;
use crate::header::{DIRECTORY_WORD, ESCAPE_WORD, TABLE_WORD, TABLE_WORDS};
use crate::layout::{GRANULE, MARKER_WORDS, NO_SPILL, STREAMS};

/// Rows whose loads are in flight together.
const AHEAD: u32 = 4;

/// What the device allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Means {
    /// A block's words fit into shared memory beside the table.
    pub stage: bool,
    /// 64-bit integers exist.
    pub has_u64: bool,
}

#[cube(launch_unchecked)]
pub(crate) fn decode(
    head: &Array<u32>,
    plane: &Array<PlaneGranule>,
    streams: &Array<u32>,
    spill: &Array<u32>,
    wide: &mut Array<Granule>,
    narrow: &mut Array<Atomic<u32>>,
    values: u32,
    row_length: u32,
    row_pitch: u32,
    #[comptime] geometry: Geometry,
    #[comptime] access: Access,
    #[comptime] means: Means,
) {
    let rows = Rows {
        length: row_length,
        pitch: row_pitch,
    };
    let mut word = 0u32;
    if UNIT_POS < comptime!(TABLE_WORDS as u32) {
        word = head[TABLE_WORD + UNIT_POS as usize];
    }
    let escape = head[ESCAPE_WORD];
    let staged_words = comptime!(if means.stage {
        geometry.words * STREAMS
    } else {
        1
    });
    let staged = SharedMemory::<u32>::new(comptime!(staged_words as usize));
    let scratch = SharedMemory::<u32>::new(comptime!(STREAMS as usize));
    // The next rows' bytes. The first block is on its way while the tables are built.
    let mut ahead = Array::<PlaneGranule>::new(comptime!(AHEAD as usize));
    let mut index = CUBE_POS as u32;
    let block = block_at(index, values, geometry);
    let mut record = head[DIRECTORY_WORD + index as usize];
    load_rows(&mut ahead, plane, block);
    stage_words(staged, streams, block, geometry, means);
    let entries = Lengths::new(word, escape).entries();

    let blocks = block_count(values, geometry);
    while index < blocks {
        let block = block_at(index, values, geometry);
        let reader = Reader::new(streams, staged, block, means);
        let whole = block.values == comptime!(geometry.block_values()) && record == NO_SPILL;
        if comptime!(access.aligned) {
            if whole {
                let first = index * comptime!(geometry.block_granules());
                whole_block(
                    &mut ahead, plane, wide, first, rows, &reader, &entries, geometry, access,
                    means,
                );
            } else {
                let spilled = Spilled::new(record, spill, block, scratch);
                any_block(
                    &mut ahead, plane, spill, wide, narrow, block, rows, spilled, &reader,
                    &entries, access, means,
                );
            }
        } else {
            let spilled = Spilled::new(record, spill, block, scratch);
            any_block(
                &mut ahead, plane, spill, wide, narrow, block, rows, spilled, &reader, &entries,
                access, means,
            );
        }
        index += CUBE_COUNT as u32;
        if index < blocks {
            let block = block_at(index, values, geometry);
            record = head[DIRECTORY_WORD + index as usize];
            load_rows(&mut ahead, plane, block);
            stage_words(staged, streams, block, geometry, means);
        }
    }
}

/// Decodes a full block without spill into aligned granules. `ahead` holds its first rows; `first`
/// is its first granule.
#[cube]
fn whole_block(
    ahead: &mut Array<PlaneGranule>,
    plane: &Array<PlaneGranule>,
    wide: &mut Array<Granule>,
    first: u32,
    rows: Rows,
    reader: &Reader,
    entries: &SharedMemory<u32>,
    #[comptime] geometry: Geometry,
    #[comptime] access: Access,
    #[comptime] means: Means,
) {
    let mut row = 0u32;
    while row < comptime!(geometry.rows()) {
        #[unroll]
        for slot in 0..AHEAD {
            let place = first + granule_index(UNIT_POS, row + slot);
            let exponents = reader.granule(entries, means);
            wide[granule_address(place, rows, access) as usize] =
                merge(exponents, ahead[slot as usize]);
            if row < comptime!(geometry.rows() - AHEAD) {
                let next = first + granule_index(UNIT_POS, row + slot + AHEAD);
                ahead[slot as usize] = plane[next as usize];
            }
        }
        row += AHEAD;
    }
}

/// Decodes any block.
#[cube]
fn any_block(
    ahead: &mut Array<PlaneGranule>,
    plane: &Array<PlaneGranule>,
    spill: &Array<u32>,
    wide: &mut Array<Granule>,
    narrow: &Array<Atomic<u32>>,
    block: Block,
    rows: Rows,
    spilled: Spilled,
    reader: &Reader,
    entries: &SharedMemory<u32>,
    #[comptime] access: Access,
    #[comptime] means: Means,
) {
    let mut row = 0u32;
    while row < block.rows {
        #[unroll]
        for slot in 0..AHEAD {
            let offset = granule_offset(UNIT_POS, row + slot);
            let count = granule_values(offset, block.values);
            if count > 0 {
                let symbol = (row + slot) * GRANULE;
                let whole = count == GRANULE && symbol + GRANULE <= spilled.marker;
                let exponents = if whole {
                    reader.granule(entries, means)
                } else {
                    reader.symbols(entries, spill, symbol, count, spilled, means)
                };
                let granule = merge(exponents, ahead[slot as usize]);
                let first = block.first + offset;
                store(wide, narrow, granule, first, count, rows, access);
            }
            ahead[slot as usize] = load_row(plane, row + slot + AHEAD, block);
        }
        row += AHEAD;
    }
}

/// Copies a block's words to shared memory, if they are staged. Each unit copies and reads its own
/// column only, so nothing has to be awaited.
#[cube]
fn stage_words(
    staged: SharedMemory<u32>,
    streams: &Array<u32>,
    block: Block,
    #[comptime] geometry: Geometry,
    #[comptime] means: Means,
) {
    if comptime!(means.stage) {
        let mut staged = staged;
        if block.words == comptime!(geometry.words) {
            let mut words = Array::<u32>::new(comptime!(geometry.words as usize));
            #[unroll]
            for word in 0..comptime!(geometry.words) {
                let place = word * STREAMS + UNIT_POS;
                words[word as usize] = streams[(block.stream_base + place) as usize];
            }
            #[unroll]
            for word in 0..comptime!(geometry.words) {
                staged[(word * STREAMS + UNIT_POS) as usize] = words[word as usize];
            }
        } else {
            for word in 0..block.words {
                let place = word * STREAMS + UNIT_POS;
                staged[place as usize] = streams[(block.stream_base + place) as usize];
            }
        }
    }
}

/// Loads this unit's sign-fraction granules of a block's first rows.
#[cube]
fn load_rows(granules: &mut Array<PlaneGranule>, plane: &Array<PlaneGranule>, block: Block) {
    #[unroll]
    for row in 0..AHEAD {
        granules[row as usize] = load_row(plane, row, block);
    }
}

/// Loads this unit's sign-fraction granule of a row; what does not exist is zero.
#[cube]
fn load_row(plane: &Array<PlaneGranule>, row: u32, block: Block) -> PlaneGranule {
    let offset = granule_offset(UNIT_POS, row);
    let mut granule = PlaneGranule::empty();
    if offset < block.values {
        granule = plane[((block.first + offset) / GRANULE) as usize];
    }
    granule
}

/// Adds signs and fractions to entries' exponents.
#[cube]
fn merge(exponents: Granule, plane: PlaneGranule) -> Granule {
    let mut granule = Granule::empty();
    #[unroll]
    for pair in 0..4usize {
        let bytes = (plane[comptime!(pair / 2)] >> comptime!(pair as u32 % 2 * 16)) & 0xffff;
        let spread = bytes | (bytes << 8);
        // Selections by mask are one instruction each.
        let rest = ((spread << 8) & 0x8000_8000u32) | (spread & 0x7fff_7fffu32);
        let mask = comptime!(Entry::PAIR_MASK);
        granule[pair] = (exponents[pair] & mask) | (rest & comptime!(!Entry::PAIR_MASK));
    }
    granule
}

/// Where this unit's stream spilled.
#[derive(CubeType, Clone, Copy)]
struct Spilled {
    /// Symbols coded before the spill.
    marker: u32,
    /// The spill's first word.
    first: u32,
}

#[cube]
impl Spilled {
    /// Reads the block's record, if it has one. The same for the whole cube, as it must be.
    fn new(record: u32, spill: &Array<u32>, block: Block, scratch: SharedMemory<u32>) -> Spilled {
        let mut marker = u32::MAX.runtime();
        let mut first = 0u32;
        if record != NO_SPILL {
            let pair = spill[(record + UNIT_POS / 2) as usize];
            marker = (pair >> (UNIT_POS % 2 * 16)) & 0xffff;
            let words = (stream_count(UNIT_POS, block) - marker + 3) / 4;
            first = record + MARKER_WORDS + inclusive_sum(words, scratch) - words;
        }
        Spilled { marker, first }
    }
}

/// A stream being read, through a window of two words. Two pairs of short codes take at most 24
/// bits and an escaped exponent 16, so where 64-bit integers look into the whole window it is moved
/// only once in two pairs, and before each exponent that is read alone.
#[derive(CubeType)]
struct Reader {
    streams: Slice<u32>,
    staged: SharedMemory<u32>,
    /// Index of the block's first word.
    base: u32,
    /// Last word of the stream: reading past it repeats it, so corrupt data reads no other's.
    last: u32,
    /// The window's first word.
    high: RuntimeCell<u32>,
    /// The window's second word.
    low: RuntimeCell<u32>,
    /// The word that follows, loaded ahead.
    following: RuntimeCell<u32>,
    /// Where the word after that lies.
    place: RuntimeCell<u32>,
    /// Bits of the window already read.
    offset: RuntimeCell<u32>,
}

#[cube]
impl Reader {
    fn new(
        streams: &Array<u32>,
        staged: SharedMemory<u32>,
        block: Block,
        #[comptime] means: Means,
    ) -> Reader {
        let reader = Reader {
            streams: streams.to_slice(),
            staged,
            base: block.stream_base,
            last: (block.words - 1) * STREAMS + UNIT_POS,
            high: RuntimeCell::<u32>::new(0u32),
            low: RuntimeCell::<u32>::new(0u32),
            following: RuntimeCell::<u32>::new(0u32),
            place: RuntimeCell::<u32>::new(UNIT_POS),
            offset: RuntimeCell::<u32>::new(0u32),
        };
        reader.high.store(reader.word(means));
        reader.low.store(reader.word(means));
        reader.following.store(reader.word(means));
        reader
    }

    /// The stream's next word.
    fn word(&self, #[comptime] means: Means) -> u32 {
        let place = self.place.read();
        let next = place + STREAMS;
        self.place.store(select(next < self.last, next, self.last));
        if comptime!(means.stage) {
            self.staged[place as usize]
        } else {
            self.streams[(self.base + place) as usize]
        }
    }

    /// Moves the window on if its first word was read, so that `offset` is below 32.
    fn refill(&self, #[comptime] means: Means) {
        let offset = self.offset.read();
        if offset >= 32 {
            self.high.store(self.low.read());
            self.low.store(self.following.read());
            self.following.store(self.word(means));
            self.offset.store(offset - 32);
        }
    }

    /// The window's next 32 bits.
    fn peek(&self, #[comptime] means: Means) -> u32 {
        let offset = self.offset.read();
        window(self.high.read(), self.low.read(), offset, means.has_u64)
    }

    /// The exponent that `entry` says `bits` begin with, where the lower BF16 of a pair has it.
    fn first(&self, entry: u32, bits: u32) -> u32 {
        let mut length = (entry >> 16) & 0xf;
        let mut exponent = entry & 0x7f80;
        if entry & comptime!(Entry::ESCAPE) != 0 {
            exponent = (bits << length >> 24) << 7;
            length += 8;
        }
        self.offset.store(self.offset.read() + length);
        exponent
    }

    /// One exponent.
    fn symbol(&self, entries: &SharedMemory<u32>, #[comptime] means: Means) -> u32 {
        self.refill(means);
        let bits = self.peek(means);
        self.first(entries[(bits >> 20) as usize], bits)
    }

    /// Eight exponents, two in a step where the table has two; other bits are not cleared.
    fn granule(&self, entries: &SharedMemory<u32>, #[comptime] means: Means) -> Granule {
        let mut granule = Granule::empty();
        #[unroll]
        for pair in 0..4usize {
            if comptime!(pair % 2 == 0 || !means.has_u64) {
                self.refill(means);
            }
            let bits = self.peek(means);
            let entry = entries[(bits >> 20) as usize];
            let mut exponents = entry;
            let both = entry & 0xf;
            if both > 0 {
                self.offset.store(self.offset.read() + both);
            } else {
                exponents = self.first(entry, bits);
                exponents |= self.symbol(entries, means) << 16;
            }
            granule[pair] = exponents;
        }
        granule
    }

    /// Up to eight exponents, each coded or spilled.
    fn symbols(
        &self,
        entries: &SharedMemory<u32>,
        spill: &Array<u32>,
        first: u32,
        count: u32,
        spilled: Spilled,
        #[comptime] means: Means,
    ) -> Granule {
        let mut granule = Granule::empty();
        #[unroll]
        for pair in 0..4u32 {
            let mut exponents = 0u32;
            #[unroll]
            for half in 0..2u32 {
                let symbol = first + comptime!(pair * 2 + half);
                if comptime!(pair * 2 + half) < count {
                    let exponent = if symbol < spilled.marker {
                        self.symbol(entries, means)
                    } else {
                        let byte = symbol - spilled.marker;
                        let word = spill[(spilled.first + byte / 4) as usize];
                        ((word >> (byte % 4 * 8)) & 0xff) << 7
                    };
                    exponents |= exponent << comptime!(half * 16);
                }
            }
            granule[pair as usize] = exponents;
        }
        granule
    }
}
