//! Second launch of an encode: a persistent grid of cubes codes the blocks.
//!
//! A unit owns a stream. It reads each granule once (2 bytes a value), writes the sign-fraction
//! bytes (1), collects the stream's words in shared memory, where each unit touches its own
//! column only, and writes them out line by line (W / 8 L bytes a value: 0.39 in Clean).

use cubecl::prelude::*;

use super::bits::window_before;
use super::codes::{Code, Lengths};
use super::dense::{Access, Granule, Rows, granule_address, load, load_index};
use super::geometry::{
    Block, Geometry, block_at, block_count, granule_index, granule_offset, granule_values,
    stream_count,
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
    #[comptime] has_u64: bool,
) {
    let rows = Rows {
        length: row_length,
        pitch: row_pitch,
    };
    let mut word = 0u32;
    if UNIT_POS < comptime!(TABLE_WORDS as u32) {
        word = head[TABLE_WORD + UNIT_POS as usize].load();
    }
    let escape = head[ESCAPE_WORD].load();
    // The next rows' granules, the first block's on their way while the tables are built.
    let mut ahead = Array::<Granule>::new(comptime!(AHEAD as usize));
    let mut index = CUBE_POS as u32;
    let block = block_at(index, values, geometry);
    load_rows(&mut ahead, wide, narrow, block, rows, access);
    let codes = Lengths::new(word, escape).codes();
    let staged = SharedMemory::<u32>::new(comptime!((geometry.words * STREAMS) as usize));
    let overflowed = SharedMemory::<Atomic<u32>>::new(1usize);
    if UNIT_POS == 0 {
        overflowed[0].store(0u32);
    }
    sync_cube();

    let blocks = block_count(values, geometry);
    while index < blocks {
        let block = block_at(index, values, geometry);
        let writer = Writer::new(staged, block.words);
        let full = block.values == comptime!(geometry.block_values());
        if comptime!(access.aligned) {
            if full {
                let first = index * comptime!(geometry.block_granules());
                full_block(
                    &mut ahead, plane, wide, first, rows, &writer, &codes, geometry, access,
                    has_u64,
                );
            } else {
                any_block(
                    &mut ahead, plane, wide, narrow, block, rows, &writer, &codes, access, has_u64,
                );
            }
        } else {
            any_block(
                &mut ahead, plane, wide, narrow, block, rows, &writer, &codes, access, has_u64,
            );
        }
        let next = index + CUBE_COUNT as u32;
        if next < blocks {
            let block = block_at(next, values, geometry);
            load_rows(&mut ahead, wide, narrow, block, rows, access);
        }

        writer.finish();
        if full {
            #[unroll]
            for word in 0..comptime!(geometry.words) {
                let place = word * STREAMS + UNIT_POS;
                streams[(block.stream_base + place) as usize] = staged[place as usize];
            }
        } else {
            for word in 0..block.words {
                let place = word * STREAMS + UNIT_POS;
                streams[(block.stream_base + place) as usize] = staged[place as usize];
            }
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
        index = next;
    }
}

/// Codes a block whose every granule is whole and aligned. `ahead` holds its first rows; `first` is
/// its first granule.
#[cube]
fn full_block(
    ahead: &mut Array<Granule>,
    plane: &mut Array<PlaneGranule>,
    wide: &Array<Granule>,
    first: u32,
    rows: Rows,
    writer: &Writer,
    codes: &SharedMemory<u32>,
    #[comptime] geometry: Geometry,
    #[comptime] access: Access,
    #[comptime] has_u64: bool,
) {
    let mut row = 0u32;
    while row < comptime!(geometry.rows()) {
        #[unroll]
        for slot in 0..AHEAD {
            let granule = ahead[slot as usize];
            let place = first + granule_index(UNIT_POS, row + slot);
            plane[place as usize] = plane_granule(granule);
            writer.granule(granule, GRANULE.runtime(), row + slot, codes, has_u64);
            if row < comptime!(geometry.rows() - AHEAD) {
                let next = first + granule_index(UNIT_POS, row + slot + AHEAD);
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
    plane: &mut Array<PlaneGranule>,
    wide: &Array<Granule>,
    narrow: &Array<u32>,
    block: Block,
    rows: Rows,
    writer: &Writer,
    codes: &SharedMemory<u32>,
    #[comptime] access: Access,
    #[comptime] has_u64: bool,
) {
    let mut row = 0u32;
    while row < block.rows {
        #[unroll]
        for slot in 0..AHEAD {
            if row + slot < block.rows {
                let granule = ahead[slot as usize];
                let offset = granule_offset(UNIT_POS, row + slot);
                let place = ((block.first + offset) / GRANULE) as usize;
                // Beyond the last value the plane's padding is written, zero.
                if place < plane.len() {
                    plane[place] = plane_granule(granule);
                }
                let count = granule_values(offset, block.values);
                writer.granule(granule, count, row + slot, codes, has_u64);
            }
            ahead[slot as usize] = load_row(wide, narrow, row + slot + AHEAD, block, rows, access);
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
    block: Block,
    rows: Rows,
    #[comptime] access: Access,
) {
    #[unroll]
    for row in 0..AHEAD {
        granules[row as usize] = load_row(wide, narrow, row, block, rows, access);
    }
}

/// Loads this unit's granule of a row; what does not exist is zero.
#[cube]
fn load_row(
    wide: &Array<Granule>,
    narrow: &Array<u32>,
    row: u32,
    block: Block,
    rows: Rows,
    #[comptime] access: Access,
) -> Granule {
    let offset = granule_offset(UNIT_POS, row);
    let count = granule_values(offset, block.values);
    load(wide, narrow, block.first + offset, count, rows, access)
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
    /// One past the stream's last word.
    end: u32,
    /// The word that is written next.
    place: RuntimeCell<u32>,
    /// Pending bits, the last one lowest. Above them lie bits that were written before.
    bits: RuntimeCell<u32>,
    /// Number of pending bits, below 32.
    pending: RuntimeCell<u32>,
    /// Bits that the stream has left.
    left: RuntimeCell<u32>,
    /// Symbols coded before the spill, or [`FITS`].
    marker: RuntimeCell<u32>,
}

#[cube]
impl Writer {
    fn new(staged: SharedMemory<u32>, capacity: u32) -> Writer {
        Writer {
            staged,
            end: capacity * STREAMS + UNIT_POS,
            place: RuntimeCell::<u32>::new(UNIT_POS),
            bits: RuntimeCell::<u32>::new(0u32),
            pending: RuntimeCell::<u32>::new(0u32),
            left: RuntimeCell::<u32>::new(capacity * 32),
            marker: RuntimeCell::<u32>::new(FITS),
        }
    }

    /// Codes a granule's first `count` exponents.
    fn granule(
        &self,
        granule: Granule,
        count: u32,
        row: u32,
        codes: &SharedMemory<u32>,
        #[comptime] has_u64: bool,
    ) {
        let mut found = Array::<u32>::new(comptime!(GRANULE as usize));
        #[unroll]
        for pair in 0..4usize {
            let values = granule[pair];
            found[comptime!(pair * 2)] = codes[((values >> 7) & 0xff) as usize];
            found[comptime!(pair * 2 + 1)] = codes[((values >> 23) & 0xff) as usize];
        }
        let low = found[0] + found[1] + (found[2] + found[3]);
        let high = found[4] + found[5] + (found[6] + found[7]);
        let total = code_length(low + high);
        if count == GRANULE && total <= self.left.read() {
            self.left.store(self.left.read() - total);
            self.four(found[0], found[1], found[2], found[3], low, has_u64);
            self.four(found[4], found[5], found[6], found[7], high, has_u64);
        } else if self.marker.read() == FITS {
            #[unroll]
            for symbol in 0..GRANULE {
                if symbol < count {
                    self.symbol(found[symbol as usize], row * GRANULE + symbol, has_u64);
                }
            }
        }
    }

    /// Appends four codes, whose sum is given, at once if they take at most 32 bits.
    fn four(&self, a: u32, b: u32, c: u32, d: u32, sum: u32, #[comptime] has_u64: bool) {
        if sum < comptime!(Code::ESCAPED) {
            // Nothing lies above the lengths here.
            let shift = comptime!(Code::LENGTH_SHIFT);
            let front = (a << (b >> shift) | b) & comptime!(Code::BITS);
            let back = (c << (d >> shift) | d) & comptime!(Code::BITS);
            self.push(front << ((c + d) >> shift) | back, sum >> shift, has_u64);
        } else {
            self.two(a, b, has_u64);
            self.two(c, d, has_u64);
        }
    }

    /// Appends two codes, which take at most 32 bits even if both are escaped.
    fn two(&self, a: u32, b: u32, #[comptime] has_u64: bool) {
        let front = (a & comptime!(Code::BITS)) << code_length(b);
        let both = front | b & comptime!(Code::BITS);
        self.push(both, code_length(a + b), has_u64);
    }

    /// Appends one code, if it fits; from the first that does not on the stream spills.
    fn symbol(&self, code: u32, number: u32, #[comptime] has_u64: bool) {
        if self.marker.read() == FITS {
            let length = code_length(code);
            if length <= self.left.read() {
                self.left.store(self.left.read() - length);
                self.push(code & comptime!(Code::BITS), length, has_u64);
            } else {
                self.left.store(0u32);
                self.marker.store(number);
            }
        }
    }

    /// Appends 1 to 32 bits.
    fn push(&self, code: u32, length: u32, #[comptime] has_u64: bool) {
        let bits = self.bits.read();
        let pending = self.pending.read();
        let unused = 32 - length;
        let aligned = code << unused;
        let total = pending + length;
        if total >= 32 {
            self.write(window_before(bits, aligned, pending, has_u64));
        }
        self.bits
            .store(window_before(bits, aligned, unused, has_u64));
        self.pending.store(total & 31);
    }

    /// Writes the pending bits and zeros up to the stream's end.
    fn finish(&self) {
        if self.pending.read() > 0 {
            self.write(self.bits.read() << (32 - self.pending.read()));
        }
        while self.place.read() < self.end {
            self.write(0u32);
        }
    }

    fn write(&self, word: u32) {
        let mut staged = self.staged;
        staged[self.place.read() as usize] = word;
        self.place.store(self.place.read() + STREAMS);
    }
}

/// The number of bits of a code, or of up to eight.
#[cube]
fn code_length(codes: u32) -> u32 {
    (codes >> comptime!(Code::LENGTH_SHIFT)) & 0xff
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
