//! Second launch of an encode: a persistent grid of cubes codes the blocks.
//!
//! A unit owns a stream. It reads each granule once (2 bytes a value), writes the sign-fraction
//! bytes (1), collects the stream's words in shared memory, where each unit touches its own
//! column only, and writes them out line by line (W / 8 L bytes a value: 0.39 in Clean).

use cubecl::prelude::*;

use super::codes::Lengths;
use super::dense::{Access, Granule, Rows, load, load_index};
use super::geometry::{
    Block, Geometry, block_at, block_count, granule_offset, granule_values, stream_count,
};
use crate::header::{DIRECTORY_WORD, ESCAPE_WORD, SPILL_WORDS_WORD, TABLE_WORD, TABLE_WORDS};
use crate::layout::{GRANULE, MARKER_WORDS, NO_SPILL, STREAMS};

/// Rows whose loads are in flight together.
const AHEAD: u32 = 4;
/// Marker of a stream that fits.
const FITS: u32 = u32::MAX;

/// The sign-fraction bytes of a granule.
pub(crate) type PlaneGranule = Vector<u32, Const<2>>;

#[cube(launch_unchecked)]
pub(crate) fn encode(
    head: &mut Array<Atomic<u32>>,
    plane: &mut Array<PlaneGranule>,
    streams: &mut Array<u32>,
    spill: &mut Array<u32>,
    wide: &Array<Granule>,
    narrow: &Array<u32>,
    values: u32,
    row_length: u32,
    row_pitch: u32,
    #[comptime] geometry: Geometry,
    #[comptime] access: Access,
) {
    let rows = Rows {
        length: row_length,
        pitch: row_pitch,
    };
    let mut word = 0u32;
    if UNIT_POS < comptime!(TABLE_WORDS as u32) {
        word = head[TABLE_WORD + UNIT_POS as usize].load();
    }
    let codes = Lengths::new(word, head[ESCAPE_WORD].load()).codes();
    let staged = SharedMemory::<u32>::new(comptime!((geometry.words * STREAMS) as usize));
    let overflowed = SharedMemory::<Atomic<u32>>::new(1usize);
    if UNIT_POS == 0 {
        overflowed[0].store(0u32);
    }
    sync_cube();

    let blocks = block_count(values, geometry);
    let mut index = CUBE_POS as u32;
    while index < blocks {
        let block = block_at(index, values, geometry);
        let writer = Writer::new(staged, block.words);
        let mut next = Array::<Granule>::new(comptime!(AHEAD as usize));
        load_rows(&mut next, wide, narrow, 0u32, block, rows, access);
        let mut row = 0u32;
        while row < block.rows {
            let mut now = Array::<Granule>::new(comptime!(AHEAD as usize));
            #[unroll]
            for ahead in 0..comptime!(AHEAD as usize) {
                now[ahead] = next[ahead];
            }
            load_rows(&mut next, wide, narrow, row + AHEAD, block, rows, access);
            #[unroll]
            for ahead in 0..AHEAD {
                if row + ahead < block.rows {
                    let granule = now[ahead as usize];
                    let offset = granule_offset(UNIT_POS, row + ahead);
                    let place = ((block.first + offset) / GRANULE) as usize;
                    // Beyond the last value the plane's padding is written, zero.
                    if place < plane.len() {
                        plane[place] = plane_granule(granule);
                    }
                    let count = granule_values(offset, block.values);
                    writer.granule(granule, count, row + ahead, &codes);
                }
            }
            row += AHEAD;
        }
        writer.finish();
        for word in 0..block.words {
            let place = word * STREAMS + UNIT_POS;
            streams[(block.stream_base + place) as usize] = staged[place as usize];
        }

        let marker = writer.marker.read();
        if marker != FITS {
            overflowed[0].store(1u32);
        }
        sync_cube();
        let spills = overflowed[0].load();
        sync_cube();
        if spills == 1 {
            if UNIT_POS == 0 {
                overflowed[0].store(0u32);
            }
            let counter = &head[SPILL_WORDS_WORD];
            let record = write_record(spill, counter, marker, staged, narrow, block, rows, access);
            if UNIT_POS == 0 {
                head[DIRECTORY_WORD + index as usize].store(record);
            }
        } else if UNIT_POS == 0 {
            head[DIRECTORY_WORD + index as usize].store(NO_SPILL);
        }
        index += CUBE_COUNT as u32;
    }
}

/// Loads this unit's granules of the next rows; what does not exist is zero.
#[cube]
fn load_rows(
    granules: &mut Array<Granule>,
    wide: &Array<Granule>,
    narrow: &Array<u32>,
    row: u32,
    block: Block,
    rows: Rows,
    #[comptime] access: Access,
) {
    #[unroll]
    for ahead in 0..AHEAD {
        let offset = granule_offset(UNIT_POS, row + ahead);
        let count = granule_values(offset, block.values);
        granules[ahead as usize] = load(wide, narrow, block.first + offset, count, rows, access);
    }
}

/// Signs and fractions of eight values.
#[cube]
fn plane_granule(granule: Granule) -> PlaneGranule {
    let mut bytes = PlaneGranule::empty();
    #[unroll]
    for half in 0..2usize {
        let low = plane_pair(granule[comptime!(half * 2)]);
        let high = plane_pair(granule[comptime!(half * 2 + 1)]);
        bytes[half] = low | high << 16;
    }
    bytes
}

#[cube]
fn plane_pair(pair: u32) -> u32 {
    let bytes = ((pair >> 8) & 0x0080_0080) | (pair & 0x007f_007f);
    (bytes | (bytes >> 8)) & 0xffff
}

/// A stream being written.
#[derive(CubeType)]
struct Writer {
    staged: SharedMemory<u32>,
    /// Words the stream owns.
    capacity: u32,
    /// Pending bits, the first one highest.
    bits: RuntimeCell<u32>,
    /// Number of pending bits, below 32.
    pending: RuntimeCell<u32>,
    /// Words written.
    words: RuntimeCell<u32>,
    /// Symbols coded before the spill, or [`FITS`].
    marker: RuntimeCell<u32>,
}

#[cube]
impl Writer {
    fn new(staged: SharedMemory<u32>, capacity: u32) -> Writer {
        Writer {
            staged,
            capacity,
            bits: RuntimeCell::<u32>::new(0u32),
            pending: RuntimeCell::<u32>::new(0u32),
            words: RuntimeCell::<u32>::new(0u32),
            marker: RuntimeCell::<u32>::new(FITS),
        }
    }

    /// Codes a granule's first `count` exponents.
    fn granule(&self, granule: Granule, count: u32, row: u32, codes: &SharedMemory<u32>) {
        if self.marker.read() == FITS {
            let mut pairs = Array::<u32>::new(4usize);
            let mut lengths = Array::<u32>::new(4usize);
            let mut total = 0u32;
            #[unroll]
            for pair in 0..4usize {
                let values = granule[pair];
                let first = codes[((values >> 7) & 0xff) as usize];
                let second = codes[((values >> 23) & 0xff) as usize];
                let second_length = second >> 16;
                let length = (first >> 16) + second_length;
                pairs[pair] = (first & 0xffff) << second_length | second & 0xffff;
                lengths[pair] = length;
                total += length;
            }
            let left = self.capacity * 32 - self.words.read() * 32 - self.pending.read();
            if count == GRANULE && total <= left {
                #[unroll]
                for pair in 0..4usize {
                    self.push(pairs[pair], lengths[pair]);
                }
            } else {
                self.symbols(granule, count, row, left, codes);
            }
        }
    }

    /// Codes symbol by symbol, as far as they fit.
    fn symbols(
        &self,
        granule: Granule,
        count: u32,
        row: u32,
        left: u32,
        codes: &SharedMemory<u32>,
    ) {
        let mut left = left;
        #[unroll]
        for symbol in 0..GRANULE {
            let values = granule[comptime!((symbol / 2) as usize)];
            let code = codes[((values >> comptime!(7 + symbol % 2 * 16)) & 0xff) as usize];
            let length = code >> 16;
            if symbol < count && self.marker.read() == FITS {
                if length <= left {
                    self.push(code & 0xffff, length);
                    left -= length;
                } else {
                    self.marker.store(row * GRANULE + symbol);
                }
            }
        }
    }

    /// Appends 1 to 32 bits.
    fn push(&self, code: u32, length: u32) {
        let free = 32 - self.pending.read();
        if length < free {
            self.bits.store(self.bits.read() | code << (free - length));
            self.pending.store(self.pending.read() + length);
        } else {
            let rest = length - free;
            self.write(self.bits.read() | code >> rest);
            // A shift by 32 is undefined, so the last one is split off.
            self.bits.store(code << 1 << (31 - rest));
            if rest == 0 {
                self.bits.store(0u32);
            }
            self.pending.store(rest);
        }
    }

    /// Writes the pending bits and zeros up to the stream's end.
    fn finish(&self) {
        if self.pending.read() > 0 {
            self.write(self.bits.read());
        }
        while self.words.read() < self.capacity {
            self.write(0u32);
        }
    }

    fn write(&self, word: u32) {
        let mut staged = self.staged;
        staged[(self.words.read() * STREAMS + UNIT_POS) as usize] = word;
        self.words.store(self.words.read() + 1);
    }
}

/// Takes room for the block's record with one atomic addition and writes it; returns its place.
#[cube]
fn write_record(
    spill: &mut Array<u32>,
    counter: &Atomic<u32>,
    marker: u32,
    scratch: SharedMemory<u32>,
    narrow: &Array<u32>,
    block: Block,
    rows: Rows,
    #[comptime] access: Access,
) -> u32 {
    // Scratch: 256 sums, 256 markers, the record's place.
    let place = comptime!((2 * STREAMS) as usize);
    let mut scratch = scratch;
    let count = stream_count(UNIT_POS, block);
    let marker = select(marker == FITS, count, marker);
    scratch[(STREAMS + UNIT_POS) as usize] = marker;
    let words = (count - marker + 3) / 4;
    let end = inclusive_sum(words, scratch);
    if UNIT_POS == comptime!(STREAMS - 1) {
        scratch[place] = counter.fetch_add(MARKER_WORDS + end);
    }
    sync_cube();
    let record = scratch[place];
    if UNIT_POS < MARKER_WORDS {
        let pair = (STREAMS + UNIT_POS * 2) as usize;
        spill[(record + UNIT_POS) as usize] = scratch[pair] | scratch[pair + 1] << 16;
    }
    let first = record + MARKER_WORDS + end - words;
    for word in 0..words {
        let mut bytes = 0u32;
        #[unroll]
        for byte in 0..4u32 {
            let symbol = marker + word * 4 + byte;
            if symbol < count {
                let offset = granule_offset(UNIT_POS, symbol / GRANULE) + symbol % GRANULE;
                let value = load_index(narrow, block.first + offset, rows, access);
                bytes |= ((value >> 7) & 0xff) << (byte * 8);
            }
        }
        spill[(first + word) as usize] = bytes;
    }
    sync_cube();
    record
}

/// Sum of `value` over this unit and those before it, through 256 words of scratch.
#[cube]
pub(crate) fn inclusive_sum(value: u32, scratch: SharedMemory<u32>) -> u32 {
    let mut sums = scratch;
    let mut sum = value;
    #[unroll]
    for step in 0..8u32 {
        let distance = comptime!(1u32 << step);
        sums[UNIT_POS as usize] = sum;
        sync_cube();
        if UNIT_POS >= distance {
            sum += sums[(UNIT_POS - distance) as usize];
        }
        sync_cube();
    }
    sum
}
