//! Canonical codes from the code table: every cube builds its own tables in shared memory.

use cubecl::prelude::*;

use super::UNITS;
use crate::codebook::{ESCAPE_SYMBOL, Entry};
use crate::header::TABLE_WORDS;

/// What the encoder writes for an exponent: the bits in bits 0 to 15, their number from bit 20 on,
/// and [`ESCAPED`](Self::ESCAPED). The sum of eight such words has the sum of each field.
pub(crate) struct Code;

impl Code {
    /// Where the number of bits lies.
    pub(crate) const LENGTH_SHIFT: u32 = 20;
    /// Marks exponents behind the escape; only their codes have more than eight bits.
    pub(crate) const ESCAPED: u32 = 1 << 28;
    /// Where the bits lie.
    pub(crate) const BITS: u32 = 0xffff;
}

/// Words in which single symbols' entries are made: the entries, and the symbols in canonical order.
const SINGLES_WORDS: u32 = 256 + 257;

/// Words of a table of [`Lengths::entries`], with the room to make it.
pub(crate) fn entry_words(bits: u32) -> u32 {
    (1 << bits).max(SINGLES_WORDS)
}

/// Code lengths as the header has them, and how many codes have each length.
///
/// Unit `u` holds what concerns exponent `u`; units beyond the first 256 hold nothing.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Lengths {
    /// Length of the exponent's code.
    length: u32,
    /// How many lower exponents have codes of this length.
    rank: u32,
    /// Codes by length, the escape's included.
    counts: SharedMemory<u32>,
    /// Length of the escape.
    escape: u32,
}

#[cube]
impl Lengths {
    /// Collects the lengths of a code table, which may have been written just before.
    pub(crate) fn new(table: SharedMemory<u32>, escape: u32) -> Lengths {
        let mut counts = SharedMemory::<u32>::new(9usize);
        // The first and one past the last word of the table that is not zero.
        let bounds = SharedMemory::<Atomic<u32>>::new(2usize);
        if UNIT_POS <= 8 {
            counts[UNIT_POS as usize] = u32::cast_from(escape == UNIT_POS);
        }
        if UNIT_POS < 2 {
            bounds[UNIT_POS as usize].store(select(UNIT_POS == 0, u32::MAX, 0u32));
        }
        sync_cube();
        if UNIT_POS < comptime!(TABLE_WORDS as u32) {
            if table[UNIT_POS as usize] > 0 {
                bounds[0].fetch_min(UNIT_POS);
                bounds[1].fetch_max(UNIT_POS + 1);
            }
        }
        sync_cube();
        let own = UNIT_POS / 8;
        let mut length = 0u32;
        if UNIT_POS < UNITS {
            length = (table[own as usize] >> (UNIT_POS % 8 * 4)) & 0xf;
        }
        let mut rank = 0u32;
        // On real data most units have no code, and most warps nothing to do.
        if length > 0 {
            let below = (1u32 << (UNIT_POS % 8 * 4)) - 1;
            let mut count = u32::cast_from(escape == length);
            for word in bounds[0].load()..bounds[1].load() {
                let found = matches(table[word as usize], length);
                count += found.count_ones();
                let lower = select(word == own, below, 0u32);
                rank += (found & select(word < own, u32::MAX, lower)).count_ones();
            }
            // The same from every unit with this length.
            counts[length as usize] = count;
        }
        sync_cube();
        Lengths {
            length,
            rank,
            counts,
            escape,
        }
    }

    /// The first code of this length.
    fn first(&self, length: u32) -> u32 {
        let mut code = 0u32;
        #[unroll]
        for shorter in 1..8u32 {
            let next = (code + self.counts[shorter as usize]) << 1;
            code = select(shorter < length, next, code);
        }
        code
    }

    /// How many codes are shorter.
    fn shorter(&self, length: u32) -> u32 {
        let mut count = 0u32;
        #[unroll]
        for shorter in 1..8u32 {
            count += select(shorter < length, self.counts[shorter as usize], 0u32);
        }
        count
    }

    /// The [`Code`] of each exponent.
    pub(crate) fn codes(&self) -> SharedMemory<u32> {
        let mut codes = SharedMemory::<u32>::new(256usize);
        if UNIT_POS < UNITS {
            codes[UNIT_POS as usize] = if self.length > 0 {
                (self.first(self.length) + self.rank) | self.length << comptime!(Code::LENGTH_SHIFT)
            } else {
                // The escape is the last code of its length.
                let escape = self.first(self.escape) + self.counts[self.escape as usize] - 1;
                let length = self.escape + 8;
                let code = escape << 8 | UNIT_POS | length << comptime!(Code::LENGTH_SHIFT);
                code | comptime!(Code::ESCAPED)
            };
        }
        sync_cube();
        codes
    }

    /// Writes 256 entries with one symbol each; behind them it needs scratch, [`SINGLES_WORDS`] in all.
    fn fill_singles(&self, entries: SharedMemory<u32>) {
        let mut entries = entries;
        // First the symbols in canonical order.
        if self.length > 0 {
            let place = self.shorter(self.length) + self.rank;
            entries[(256 + place) as usize] = UNIT_POS;
        }
        if UNIT_POS == 0 {
            let last = self.shorter(self.escape) + self.counts[self.escape as usize] - 1;
            entries[(256 + last) as usize] = ESCAPE_SYMBOL;
        }
        sync_cube();

        // One symbol by the next 8 bits: the shortest code that they begin with.
        let mut length = 0u32;
        let mut place = 0u32;
        let mut first = 0u32;
        let mut before = 0u32;
        #[unroll]
        for bits in 1..9u32 {
            let count = self.counts[bits as usize];
            let prefix = UNIT_POS >> (8 - bits);
            if length == 0 && prefix < first + count {
                length = bits.runtime();
                place = before + prefix - first;
            }
            before += count;
            first = (first + count) << 1;
        }
        let mut entry = 0u32;
        if length > 0 {
            let symbol = entries[(256 + place) as usize];
            let escapes = symbol == ESCAPE_SYMBOL;
            let what = select(escapes, comptime!(Entry::ESCAPE), symbol << 7);
            entry = what | (length << 16);
        }
        if UNIT_POS < UNITS {
            entries[UNIT_POS as usize] = entry;
        }
        sync_cube();
    }

    /// The table of [`Entry`], by the next `bits` bits, 8 to 12.
    pub(crate) fn entries(&self, #[comptime] bits: u32) -> SharedMemory<u32> {
        let steps = comptime!((1 << bits) / UNITS);
        let mut entries = SharedMemory::<u32>::new(comptime!(entry_words(bits) as usize));
        self.fill_singles(entries);

        // Two symbols where both are seen. All reads come first: their latencies overlap, and then the scratch may be
        // overwritten.
        let mut pairs = Array::<u32>::new(comptime!(steps as usize));
        #[unroll]
        for step in 0..steps {
            let next = step * UNITS + UNIT_POS % UNITS;
            let first = entries[(next >> comptime!(bits - 8)) as usize];
            let taken = (first >> 16) & 0xf;
            let second = entries[((next << taken >> comptime!(bits - 8)) & 0xff) as usize];
            let both = taken + ((second >> 16) & 0xf);
            let escapes = (first | second) & comptime!(Entry::ESCAPE);
            let paired = first > 0 && second > 0 && escapes == 0 && both <= bits;
            let more = ((second & 0x7f80) << 16) | both;
            pairs[step as usize] = first | select(paired, more, 0u32);
        }
        sync_cube();
        if UNIT_POS < UNITS {
            #[unroll]
            for step in 0..steps {
                entries[(step * UNITS + UNIT_POS) as usize] = pairs[step as usize];
            }
        }
        sync_cube();
        entries
    }
}

/// A one at the lowest bit of each of the eight nibbles that equals `value`.
#[cube]
fn matches(word: u32, value: u32) -> u32 {
    let differs = word ^ (value * 0x1111_1111);
    let folded = differs | (differs >> 1);
    let folded = folded | (folded >> 2);
    (folded & 0x1111_1111) ^ 0x1111_1111
}
