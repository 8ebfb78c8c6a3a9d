//! A block's record: its size, its place, and how it is written.

use cubecl::prelude::*;

use super::dense::{Access, Rows, load_index};
use super::geometry::{Block, Geometry, block_at, granule_offset, granule_values};
use super::team::{Counts, Means, sync_team};
use crate::layout::{COUNT_WORDS, GRANULE, MAX_EXTRA, NO_RECORD, RAW, RECORD_ALIGN, STREAMS};

/// What a team has agreed on about its block.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Record {
    /// Where the record begins, or [`NO_RECORD`].
    pub place: u32,
    /// The directory entry's second word.
    pub info: u32,
    /// Each stream's half-words beyond the rows.
    pub counts: Counts,
}

/// What the team's notes in shared memory are.
const MOST: u32 = 0;
const LEAST: u32 = 1;
const COUNTS: u32 = 2;
const PLACE: u32 = 6;
const EXTRA: u32 = 8;
/// Notes of a team: the last are all streams' words beyond the rows.
pub(crate) const NOTES: u32 = EXTRA + STREAMS * (MAX_EXTRA + 1) / 2;

/// Finds out how the block is stored best, from how many `halves` of words its streams have, and takes a place for its
/// record. All units of the team call it, and where it is more than a plane all of the cube. `ticket` counts the places.
#[cube]
pub(crate) fn place_record(
    tickets: &Array<Atomic<u32>>,
    notes: &SharedMemory<Atomic<u32>>,
    team: u32,
    stream: u32,
    active: bool,
    halves: u32,
    staged: SharedMemory<u32>,
    index: u32,
    values: u32,
    capacity: u32,
    #[comptime] ticket: usize,
    #[comptime] geometry: Geometry,
    #[comptime] means: Means,
) -> Record {
    let base = team * NOTES;
    let mut most = 0u32;
    let mut least = 0u32;
    if active {
        #[unroll]
        for step in 0..NOTES / STREAMS {
            notes[(base + step * STREAMS + stream) as usize].store(0u32);
        }
        if stream < comptime!(NOTES % STREAMS) {
            let last = base + comptime!(NOTES / STREAMS * STREAMS) + stream;
            notes[last as usize].store(0u32);
        }
    }
    sync_team(means);
    if comptime!(means.planes) {
        most = plane_max(halves);
        least = plane_min(halves);
    } else {
        if active {
            notes[(base + MOST) as usize].fetch_max(halves);
            // The least is what is most often missing.
            notes[(base + LEAST) as usize].fetch_max(u32::MAX - halves);
        }
        sync_team(means);
        if active {
            most = notes[(base + MOST) as usize].load();
            least = u32::MAX - notes[(base + LEAST) as usize].load();
        }
    }
    let mut rows = 0u32;
    let mut extra = 0u32;
    if active {
        rows = if comptime!(geometry.is_fixed()) {
            block_at(index, values, geometry).words
        } else {
            let needed = select(most > MAX_EXTRA, (most - MAX_EXTRA + 1) / 2, 0u32);
            select(needed > least / 2, needed, least / 2)
        };
        extra = select(halves > rows * 2, halves - rows * 2, 0u32);
        if extra > 0 {
            let count = extra << (stream % 8 * 4);
            notes[(base + COUNTS + stream / 8) as usize].fetch_or(count);
        }
    }
    sync_team(means);
    let mut place = NO_RECORD.runtime();
    let mut info = 0u32;
    let mut counts = Counts {
        words: Vector::empty(),
    };
    if active {
        #[unroll]
        for word in 0..COUNT_WORDS {
            counts.words[word as usize] = notes[(base + COUNTS + word) as usize].load();
        }
        let own = if comptime!(geometry.is_fixed()) {
            0u32.runtime()
        } else {
            rows * STREAMS
        };
        let used = COUNT_WORDS + own + (counts.before(STREAMS.runtime()) + 1) / 2;
        let coded = (used + comptime!(RECORD_ALIGN - 1)) & comptime!(!(RECORD_ALIGN - 1));
        let raw_words = block_at(index, values, geometry).rows * comptime!(STREAMS * GRANULE / 4);
        let fits = most <= 2 * geometry.limit && most <= rows * 2 + MAX_EXTRA && coded < raw_words;
        let most_extra = select(most > rows * 2, most - rows * 2, 0u32);
        let size = select(fits, coded, raw_words);
        info = select(fits, rows | most_extra << 8, RAW) | size << 12;
        if stream == 0 {
            let mut begin = NO_RECORD.runtime();
            if comptime!(geometry.is_fixed()) {
                if most > rows * 2 {
                    begin = tickets[ticket].fetch_add(size);
                } else {
                    info = 0u32;
                }
            } else {
                begin = tickets[ticket].fetch_add(size);
                if begin < capacity && begin + size > capacity {
                    // The one that would lie across the blob's end leaves its places unused.
                    begin = tickets[ticket].fetch_add(size);
                }
            }
            notes[(base + PLACE) as usize].store(begin);
        }
        if fits {
            // The stream's words beyond the rows follow those of the streams before it, from a half-word on.
            let first = counts.before(stream);
            let shift = (first & 1) * 16;
            for word in 0..(extra + 1) / 2 {
                let bits = staged[((rows + word) * means.units() + UNIT_POS) as usize];
                let place = base + EXTRA + first / 2 + word;
                notes[place as usize].fetch_or(bits >> shift);
                if shift > 0 {
                    notes[(place + 1) as usize].fetch_or(bits << 16);
                }
            }
        }
    }
    sync_team(means);
    if active {
        place = notes[(base + PLACE) as usize].load();
    }
    Record {
        place,
        info,
        counts,
    }
}

#[cube]
impl Record {
    /// Whether there is one.
    pub(crate) fn exists(&self) -> bool {
        self.place != NO_RECORD
    }

    /// Whether it holds the exponents themselves.
    pub(crate) fn is_raw(&self) -> bool {
        self.info & 0xff == RAW
    }

    /// Writes it at word `at` of `target`: this unit its stream, of so many `halves` of words.
    pub(crate) fn write(
        &self,
        target: &mut Array<u32>,
        staged: SharedMemory<u32>,
        notes: &SharedMemory<Atomic<u32>>,
        narrow: &Array<u32>,
        stream: u32,
        at: u32,
        halves: u32,
        block: Block,
        rows: Rows,
        #[comptime] geometry: Geometry,
        #[comptime] access: Access,
        #[comptime] means: Means,
    ) {
        if self.is_raw() {
            write_raw(target, narrow, stream, at, block, rows, access);
        } else {
            self.write_coded(target, staged, notes, stream, at, halves, geometry, means);
        }
    }

    /// [`write`](Self::write) for a record that is not raw.
    pub(crate) fn write_coded(
        &self,
        target: &mut Array<u32>,
        staged: SharedMemory<u32>,
        notes: &SharedMemory<Atomic<u32>>,
        stream: u32,
        at: u32,
        halves: u32,
        #[comptime] geometry: Geometry,
        #[comptime] means: Means,
    ) {
        if stream < COUNT_WORDS {
            target[(at + stream) as usize] = self.counts.word(stream);
        }
        let full = self.info & 0xff;
        let mut next = at + COUNT_WORDS;
        if comptime!(!geometry.is_fixed()) {
            write_rows(target, staged, next + stream, full, halves, means);
            next += full * STREAMS;
        }
        let first = UNIT_POS / STREAMS * NOTES + EXTRA;
        let mut word = stream;
        // With zeros up to the record's end.
        while next + word < at + (self.info >> 12) {
            target[(next + word) as usize] = notes[(first + word) as usize].load();
            word += STREAMS;
        }
    }
}

/// Writes this unit's staged words, of so many `halves`, in rows from word `at` on; zeros behind them.
#[cube]
pub(crate) fn write_rows(
    target: &mut Array<u32>,
    staged: SharedMemory<u32>,
    at: u32,
    rows: u32,
    halves: u32,
    #[comptime] means: Means,
) {
    for row in 0..rows {
        let mut word = 0u32;
        if row * 2 < halves {
            word = staged[(row * means.units() + UNIT_POS) as usize];
        }
        target[(at + row * STREAMS) as usize] = word;
    }
}

/// Writes the exponents themselves, a byte each.
#[cube]
fn write_raw(
    target: &mut Array<u32>,
    narrow: &Array<u32>,
    stream: u32,
    at: u32,
    block: Block,
    rows: Rows,
    #[comptime] access: Access,
) {
    for row in 0..block.rows {
        let offset = granule_offset(stream, row);
        let count = granule_values(offset, block.values);
        #[unroll]
        for half in 0..2u32 {
            let mut word = 0u32;
            #[unroll]
            for byte in 0..4u32 {
                let symbol = comptime!(half * 4 + byte);
                if symbol < count {
                    let value = load_index(narrow, block.first + offset + symbol, rows, access);
                    word |= ((value >> 7) & 0xff) << (byte * 8);
                }
            }
            target[(at + (row * 2 + half) * STREAMS + stream) as usize] = word;
        }
    }
}
