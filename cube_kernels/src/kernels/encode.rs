//! The encode launch: a persistent grid of cubes codes the blocks.
//!
//! A unit owns a stream. It reads each granule once (2 bytes a value), writes the sign-fraction
//! bytes (1) and collects the stream's words in shared memory, where each unit touches its own
//! column only. When the team knows how long its streams are, it takes a place for the block's
//! record and writes it (0.33 bytes a value on weights).

use cubecl::prelude::*;

use super::UNITS;
use super::bits::window_before;
use super::codebook::{Choice, Chosen, choose};
use super::codes::{Code, Lengths};
use super::dense::{Access, Granule, Rows, granule_address, load};
use super::geometry::{
    Block, Geometry, block_at, block_count, granule_index, granule_offset, granule_values,
    plane_index,
};
use super::huffman::SCRATCH_WORDS;
use super::record::{NOTES, Record, place_record};
use super::team::{Means, sync_team};
use crate::header::{
    CAPACITY_WORD, CODEBOOK_WORD, DIRECTORY_WORD, ESCAPE_WORD, MAGIC, RECORDS_END_WORD,
    RESERVED_WORD, TABLE_WORD, TABLE_WORDS, VERSION,
};
use crate::layout::{ENTRY_WORDS, GRANULE, STREAMS};

/// Rows whose loads are in flight together.
const AHEAD: u32 = 4;
/// Which ticket counts the words of the records.
pub(crate) const PLACES: usize = 0;
/// Which ticket counts the cubes that are done.
pub(crate) const DONE: usize = 1;
/// Which ticket counts the blocks that were taken after the first of each team.
const TAKEN: usize = 2;
/// Rounds over the grid that make blocks so many that they are taken as they come.
pub(crate) const MANY_ROUNDS: u32 = 4;
/// Tickets that an encode uses.
pub(crate) const TICKETS: usize = 3;

/// Words of shared memory for the teams' streams; before there are any, the choice of the code uses it.
pub(crate) fn staged_words(geometry: Geometry, means: Means) -> u32 {
    (geometry.limit * means.units()).max(SCRATCH_WORDS)
}

/// The sign-fraction bytes of a stream's granules in two rows.
pub(crate) type PlanePair = Vector<u32, Const<4>>;

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
    teams: u32,
    row_length: u32,
    row_pitch: u32,
    #[comptime] profile: u32,
    #[comptime] geometry: Geometry,
    #[comptime] choice: Choice,
    #[comptime] access: Access,
    #[comptime] means: Means,
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
            if many && stream == 0 {
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
            tickets, &notes, team, stream, active, halves, staged, index, values, capacity,
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

    // The last cube knows where the records end.
    let last = SharedMemory::<Atomic<u32>>::new(1usize);
    sync_cube();
    if UNIT_POS == 0 {
        let done = tickets[DONE].fetch_add(1u32);
        last[0].store(u32::cast_from(done + 1 == CUBE_COUNT as u32));
    }
    sync_cube();
    if last[0].load() == 1 {
        write_head(
            head, tickets, &chosen, values, capacity, blocks, profile, geometry,
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
                plane[place as usize] = plane_pair(granule, ahead[comptime!(slot as usize + 1)]);
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
                    plane[place as usize] =
                        plane_pair(granule, ahead[comptime!(slot as usize + 1)]);
                }
                let count = granule_values(offset, block.values);
                if count == GRANULE {
                    writer.granule(granule, codes, means);
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

/// Signs and fractions of two granules. Of each four values the two in the middle are swapped: so every
/// byte is where a shift by 0 or 8 of its pair brings it.
#[cube]
fn plane_pair(first: Granule, second: Granule) -> PlanePair {
    let mut bytes = PlanePair::empty();
    bytes[0] = plane_word(first[0], first[1]);
    bytes[1] = plane_word(first[2], first[3]);
    bytes[2] = plane_word(second[0], second[1]);
    bytes[3] = plane_word(second[2], second[3]);
    bytes
}

#[cube]
fn plane_word(first: u32, second: u32) -> u32 {
    let low = (first & 0x007f_007fu32) | ((first >> 8) & !0x007f_007fu32);
    let high = ((second << 8) & 0x7f00_7f00u32) | (second & !0x7f00_7f00u32);
    (low & 0x00ff_00ffu32) | (high & !0x00ff_00ffu32)
}

/// A stream being written into a column of shared memory.
#[derive(CubeType)]
struct Writer {
    staged: SharedMemory<u32>,
    /// The word that is written next.
    place: RuntimeCell<u32>,
    /// Pending bits, the last one lowest. Above them lie bits that were written before.
    bits: RuntimeCell<u32>,
    /// Number of pending bits, below 32.
    pending: RuntimeCell<u32>,
    /// Where the column's room ends.
    #[cube(comptime)]
    end: u32,
}

#[cube]
impl Writer {
    fn new(
        staged: SharedMemory<u32>,
        #[comptime] geometry: Geometry,
        #[comptime] means: Means,
    ) -> Writer {
        let place = UNIT_POS % means.units();
        Writer {
            staged,
            place: RuntimeCell::<u32>::new(place),
            bits: RuntimeCell::<u32>::new(0u32),
            pending: RuntimeCell::<u32>::new(0u32),
            end: comptime!(geometry.limit * means.units()),
        }
    }

    /// Codes a granule's exponents.
    fn granule(&self, granule: Granule, codes: &SharedMemory<u32>, #[comptime] means: Means) {
        #[unroll]
        for half in 0..2usize {
            let first = granule[comptime!(half * 2)];
            let second = granule[comptime!(half * 2 + 1)];
            let a = codes[((first >> 7) & 0xff) as usize];
            let b = codes[((first >> 23) & 0xff) as usize];
            let c = codes[((second >> 7) & 0xff) as usize];
            let d = codes[((second >> 23) & 0xff) as usize];
            self.four(a, b, c, d, means);
        }
    }

    /// Appends four codes, at once if they take at most 32 bits.
    fn four(&self, a: u32, b: u32, c: u32, d: u32, #[comptime] means: Means) {
        let sum = a + b + (c + d);
        if sum < comptime!(Code::ESCAPED) {
            // Nothing lies above the lengths here.
            let shift = comptime!(Code::LENGTH_SHIFT);
            let front = (a << (b >> shift) | b) & comptime!(Code::BITS);
            let back = (c << (d >> shift) | d) & comptime!(Code::BITS);
            self.push(front << ((c + d) >> shift) | back, sum >> shift, means);
        } else {
            self.two(a, b, means);
            self.two(c, d, means);
        }
    }

    /// Appends two codes, which take at most 32 bits even if both are escaped.
    fn two(&self, a: u32, b: u32, #[comptime] means: Means) {
        let front = (a & comptime!(Code::BITS)) << code_length(b);
        let both = front | b & comptime!(Code::BITS);
        self.push(both, code_length(a + b), means);
    }

    /// Appends 1 to 32 bits.
    fn push(&self, code: u32, length: u32, #[comptime] means: Means) {
        let bits = self.bits.read();
        let pending = self.pending.read();
        let unused = 32 - length;
        let aligned = code << unused;
        let total = pending + length;
        if total >= 32 {
            self.write(window_before(bits, aligned, pending, means.has_u64), means);
        }
        self.bits
            .store(window_before(bits, aligned, unused, means.has_u64));
        self.pending.store(total & 31);
    }

    /// Writes the pending bits; returns how many halves of words the stream has, or would have.
    fn finish(&self, #[comptime] means: Means) -> u32 {
        let pending = self.pending.read();
        let words = self.place.read() / means.units();
        if pending > 0 {
            self.write(self.bits.read() << (32 - pending), means);
        }
        words * 2 + (pending + 15) / 16
    }

    /// Stages a word, if there is room; without it the block will be stored raw.
    fn write(&self, word: u32, #[comptime] means: Means) {
        let mut staged = self.staged;
        let place = self.place.read();
        if place < comptime!(self.end) {
            staged[place as usize] = word;
        }
        self.place.store(place + means.units());
    }
}

/// The number of bits of a code, or of up to eight.
#[cube]
fn code_length(codes: u32) -> u32 {
    (codes >> comptime!(Code::LENGTH_SHIFT)) & 0xff
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
        for row in 0..block.words {
            let mut word = 0u32;
            if !record.is_raw() && row * 2 < halves {
                word = staged[(row * means.units() + UNIT_POS) as usize];
            }
            streams[(base + row * STREAMS) as usize] = word;
        }
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

/// Writes header, code table and the padding behind the directory, and resets the tickets.
#[cube]
fn write_head(
    head: &mut Array<u32>,
    tickets: &Array<Atomic<u32>>,
    chosen: &Chosen,
    values: u32,
    capacity: u32,
    blocks: u32,
    #[comptime] profile: u32,
    #[comptime] geometry: Geometry,
) {
    if UNIT_POS < comptime!(TABLE_WORDS as u32) {
        head[TABLE_WORD + UNIT_POS as usize] = chosen.table[UNIT_POS as usize];
    }
    if UNIT_POS == 0 {
        head[0] = MAGIC;
        head[1] = comptime!(VERSION as u32 | profile << 16);
        head[2] = values;
        head[3] = 0u32;
        head[4] = comptime!(geometry.block_values());
        head[5] = comptime!(geometry.symbols);
        head[6] = comptime!(geometry.words);
        head[7] = blocks;
        head[RECORDS_END_WORD] = tickets[PLACES].load();
        head[CODEBOOK_WORD] = chosen.origin;
        head[ESCAPE_WORD] = chosen.escape;
        head[CAPACITY_WORD] = capacity;
        #[unroll]
        for word in RESERVED_WORD..TABLE_WORD {
            head[word] = 0u32;
        }
        tickets[PLACES].store(0u32);
        tickets[DONE].store(0u32);
        tickets[TAKEN].store(0u32);
    }
    let listed = if comptime!(geometry.is_fixed()) {
        0u32.runtime()
    } else {
        blocks * ENTRY_WORDS
    };
    // At most 64 words.
    let padding = DIRECTORY_WORD + (listed + UNIT_POS) as usize;
    if padding < head.len() {
        head[padding] = 0u32;
    }
}

/// The header of a tensor without values.
#[cube(launch_unchecked)]
pub(crate) fn encode_nothing(
    head: &mut Array<u32>,
    #[comptime] profile: u32,
    #[comptime] geometry: Geometry,
) {
    let place = UNIT_POS as usize;
    if place < head.len() {
        head[place] = 0u32;
    }
    sync_cube();
    if UNIT_POS == 0 {
        head[0] = MAGIC;
        head[1] = comptime!(VERSION as u32 | profile << 16);
        head[4] = comptime!(geometry.block_values());
        head[5] = comptime!(geometry.symbols);
        head[6] = comptime!(geometry.words);
    }
}

const _: () = assert!(UNITS >= TABLE_WORDS as u32);
