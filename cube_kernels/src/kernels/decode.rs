//! The decode launch: a persistent grid of cubes decodes the blocks.
//!
//! A unit owns a stream. It reads the sign-fraction bytes (1 byte a value) and the stream's words
//! (W / 8 L bytes a value: 0.39 in Clean) and writes whole granules (2).

use cubecl::prelude::*;

use super::codes::{Lengths, SCRATCH_WORDS};
use super::dense::{Access, Granule, Rows, store};
use super::encode::{PlaneGranule, inclusive_sum};
use super::geometry::{
    Block, Geometry, block_at, block_count, granule_offset, granule_values, stream_count,
};
use crate::codebook::Entry;
use crate::header::{DIRECTORY_WORD, ESCAPE_WORD, TABLE_WORD, TABLE_WORDS};
use crate::layout::{GRANULE, MARKER_WORDS, NO_SPILL, STREAMS};

/// Rows whose loads are in flight together.
const AHEAD: u32 = 4;

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
    #[comptime] stage: bool,
) {
    let rows = Rows {
        length: row_length,
        pitch: row_pitch,
    };
    let mut word = 0u32;
    if UNIT_POS < comptime!(TABLE_WORDS as u32) {
        word = head[TABLE_WORD + UNIT_POS as usize];
    }
    // Scratch between blocks; within one the stream's words, if they are staged.
    let staged_words = comptime!(if stage {
        geometry.words * STREAMS
    } else {
        SCRATCH_WORDS
    });
    let mut staged = SharedMemory::<u32>::new(comptime!(staged_words as usize));
    let entries = Lengths::new(word, head[ESCAPE_WORD]).entries(staged);

    let blocks = block_count(values, geometry);
    let mut index = CUBE_POS as u32;
    while index < blocks {
        let block = block_at(index, values, geometry);
        let mut next = Array::<PlaneGranule>::new(comptime!(AHEAD as usize));
        load_rows(&mut next, plane, 0u32, block);
        let record = head[DIRECTORY_WORD + index as usize];
        let spilled = Spilled::new(record, spill, block, staged);
        if comptime!(stage) {
            // Each unit stages and reads its own column only, so nothing has to be awaited.
            if block.words == comptime!(geometry.words) {
                #[unroll]
                for word in 0..comptime!(geometry.words) {
                    let place = word * STREAMS + UNIT_POS;
                    staged[place as usize] = streams[(block.stream_base + place) as usize];
                }
            } else {
                for word in 0..block.words {
                    let place = word * STREAMS + UNIT_POS;
                    staged[place as usize] = streams[(block.stream_base + place) as usize];
                }
            }
        }
        let reader = Reader::new(streams, staged, block, stage);
        let mut row = 0u32;
        while row < block.rows {
            let mut now = Array::<PlaneGranule>::new(comptime!(AHEAD as usize));
            #[unroll]
            for ahead in 0..comptime!(AHEAD as usize) {
                now[ahead] = next[ahead];
            }
            load_rows(&mut next, plane, row + AHEAD, block);
            #[unroll]
            for ahead in 0..AHEAD {
                let offset = granule_offset(UNIT_POS, row + ahead);
                let count = granule_values(offset, block.values);
                if count > 0 {
                    let symbol = (row + ahead) * GRANULE;
                    let whole = count == GRANULE && symbol + GRANULE <= spilled.marker;
                    let exponents = if whole {
                        reader.granule(&entries, stage)
                    } else {
                        reader.symbols(&entries, spill, symbol, count, spilled, stage)
                    };
                    let granule = merge(exponents, now[ahead as usize]);
                    let first = block.first + offset;
                    store(wide, narrow, granule, first, count, rows, access);
                }
            }
            row += AHEAD;
        }
        index += CUBE_COUNT as u32;
    }
}

/// Loads this unit's sign-fraction granules of the next rows.
#[cube]
fn load_rows(
    granules: &mut Array<PlaneGranule>,
    plane: &Array<PlaneGranule>,
    row: u32,
    block: Block,
) {
    #[unroll]
    for ahead in 0..AHEAD {
        let offset = granule_offset(UNIT_POS, row + ahead);
        let mut granule = PlaneGranule::empty();
        if offset < block.values {
            granule = plane[((block.first + offset) / GRANULE) as usize];
        }
        granules[ahead as usize] = granule;
    }
}

/// Adds signs and fractions to exponents.
#[cube]
fn merge(exponents: Granule, plane: PlaneGranule) -> Granule {
    let mut granule = Granule::empty();
    #[unroll]
    for pair in 0..4usize {
        let bytes = (plane[comptime!(pair / 2)] >> comptime!(pair as u32 % 2 * 16)) & 0xffff;
        let spread = bytes | (bytes << 8);
        granule[pair] = exponents[pair] | (spread & 0x0080_0080) << 8 | spread & 0x007f_007f;
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
            // Slower units may still read the block before from what now becomes scratch.
            sync_cube();
            let pair = spill[(record + UNIT_POS / 2) as usize];
            marker = (pair >> (UNIT_POS % 2 * 16)) & 0xffff;
            let words = (stream_count(UNIT_POS, block) - marker + 3) / 4;
            first = record + MARKER_WORDS + inclusive_sum(words, scratch) - words;
        }
        Spilled { marker, first }
    }
}

/// A stream being read: 32 bits from any position are built of two words, as 64-bit integers do
/// not exist everywhere.
#[derive(CubeType)]
struct Reader {
    streams: Slice<u32>,
    staged: SharedMemory<u32>,
    /// Index of the block's first word.
    base: u32,
    /// Last word of the stream: reading past it repeats it, so corrupt data reads no other's.
    last: u32,
    /// The word in which the next bit lies.
    current: RuntimeCell<u32>,
    /// The word after it.
    following: RuntimeCell<u32>,
    /// Number of the word after that.
    next: RuntimeCell<u32>,
    /// Bits of the current word already read.
    offset: RuntimeCell<u32>,
}

#[cube]
impl Reader {
    fn new(
        streams: &Array<u32>,
        staged: SharedMemory<u32>,
        block: Block,
        #[comptime] stage: bool,
    ) -> Reader {
        let reader = Reader {
            streams: streams.to_slice(),
            staged,
            base: block.stream_base,
            last: block.words - 1,
            current: RuntimeCell::<u32>::new(0u32),
            following: RuntimeCell::<u32>::new(0u32),
            next: RuntimeCell::<u32>::new(2u32),
            offset: RuntimeCell::<u32>::new(0u32),
        };
        reader.current.store(reader.word(0u32, stage));
        reader.following.store(reader.word(1u32, stage));
        reader
    }

    fn word(&self, number: u32, #[comptime] stage: bool) -> u32 {
        let number = select(number < self.last, number, self.last);
        let place = number * STREAMS + UNIT_POS;
        if comptime!(stage) {
            self.staged[place as usize]
        } else {
            self.streams[(self.base + place) as usize]
        }
    }

    /// The next 32 bits.
    fn peek(&self) -> u32 {
        let offset = self.offset.read();
        // A shift by 32 is undefined, so the second one is split.
        self.current.read() << offset | self.following.read() >> 1 >> (31 - offset)
    }

    /// Moves on by at most 32 bits.
    fn skip(&self, bits: u32, #[comptime] stage: bool) {
        let offset = self.offset.read() + bits;
        if offset >= 32 {
            self.current.store(self.following.read());
            self.following.store(self.word(self.next.read(), stage));
            self.next.store(self.next.read() + 1);
        }
        self.offset.store(offset & 31);
    }

    /// One exponent, where the lower BF16 of a pair has it.
    fn symbol(&self, entries: &SharedMemory<u32>, #[comptime] stage: bool) -> u32 {
        let window = self.peek();
        let entry = entries[(window >> 20) as usize];
        let mut bits = (entry >> 16) & 0xf;
        let mut exponent = entry & 0x7f80;
        if entry & comptime!(Entry::ESCAPE) != 0 {
            exponent = (window << bits >> 24) << 7;
            bits += 8;
        }
        self.skip(bits, stage);
        exponent
    }

    /// Eight exponents, two in a step where the table has two.
    fn granule(&self, entries: &SharedMemory<u32>, #[comptime] stage: bool) -> Granule {
        let mut granule = Granule::empty();
        #[unroll]
        for pair in 0..4usize {
            let entry = entries[(self.peek() >> 20) as usize];
            let mut exponents = entry & comptime!(Entry::PAIR_MASK);
            let bits = entry & 0xf;
            if bits > 0 {
                self.skip(bits, stage);
            } else {
                exponents = self.symbol(entries, stage);
                exponents |= self.symbol(entries, stage) << 16;
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
        #[comptime] stage: bool,
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
                        self.symbol(entries, stage)
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
