//! Canonical codes from the code table: every cube builds its own tables in shared memory.

use cubecl::prelude::*;

use crate::codebook::{ESCAPE_SYMBOL, Entry};
use crate::header::TABLE_WORDS;

/// Words of scratch that [`Lengths::entries`] needs.
pub(crate) const SCRATCH_WORDS: u32 = 256 + 257;

/// Code lengths as the header has them, and how many codes have each length.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Lengths {
    /// 256 lengths of four bits.
    table: SharedMemory<u32>,
    /// Codes by length, the escape's included.
    counts: SharedMemory<u32>,
    /// Length of the escape.
    escape: u32,
}

#[cube]
impl Lengths {
    /// Collects the lengths: unit `u` of the first 32 brings word `u` of the code table.
    pub(crate) fn new(word: u32, escape: u32) -> Lengths {
        let mut table = SharedMemory::<u32>::new(TABLE_WORDS);
        let mut counts = SharedMemory::<u32>::new(9usize);
        if UNIT_POS < comptime!(TABLE_WORDS as u32) {
            table[UNIT_POS as usize] = word;
        }
        sync_cube();
        if UNIT_POS <= 8 {
            let mut count = u32::cast_from(escape == UNIT_POS);
            for word in 0..TABLE_WORDS {
                count += matches(table[word], UNIT_POS).count_ones();
            }
            counts[UNIT_POS as usize] = count;
        }
        sync_cube();
        Lengths {
            table,
            counts,
            escape,
        }
    }

    /// Length of a symbol's code.
    fn of(&self, symbol: u32) -> u32 {
        (self.table[(symbol / 8) as usize] >> (symbol % 8 * 4)) & 0xf
    }

    /// How many lower symbols have codes of this length.
    fn rank(&self, symbol: u32, length: u32) -> u32 {
        let mut rank = 0u32;
        for word in 0..symbol / 8 {
            rank += matches(self.table[word as usize], length).count_ones();
        }
        let below = (1u32 << (symbol % 8 * 4)) - 1;
        rank + (matches(self.table[(symbol / 8) as usize], length) & below).count_ones()
    }

    /// The first code of this length.
    fn first(&self, length: u32) -> u32 {
        let mut code = 0u32;
        for shorter in 1..length {
            code = (code + self.counts[shorter as usize]) << 1;
        }
        code
    }

    /// How many codes are shorter.
    fn shorter(&self, length: u32) -> u32 {
        let mut count = 0u32;
        for shorter in 1..length {
            count += self.counts[shorter as usize];
        }
        count
    }

    /// For each exponent what the encoder writes: the bits, and in bits 16 and up their number.
    pub(crate) fn codes(&self) -> SharedMemory<u32> {
        let mut codes = SharedMemory::<u32>::new(256usize);
        let length = self.of(UNIT_POS);
        codes[UNIT_POS as usize] = if length > 0 {
            (self.first(length) + self.rank(UNIT_POS, length)) | length << 16
        } else {
            // The escape is the last code of its length.
            let escape = self.first(self.escape) + self.counts[self.escape as usize] - 1;
            escape << 8 | UNIT_POS | (self.escape + 8) << 16
        };
        sync_cube();
        codes
    }

    /// The table of [`Entry`], by the next 12 bits. `scratch` has [`SCRATCH_WORDS`] words.
    pub(crate) fn entries(&self, scratch: SharedMemory<u32>) -> SharedMemory<u32> {
        let mut entries = SharedMemory::<u32>::new(4096usize);
        // 256 single entries, then the symbols in canonical order.
        let mut single = scratch;
        let mut order = scratch;

        let length = self.of(UNIT_POS);
        if length > 0 {
            let place = self.shorter(length) + self.rank(UNIT_POS, length);
            order[(256 + place) as usize] = UNIT_POS;
        }
        if UNIT_POS == 0 {
            let last = self.shorter(self.escape) + self.counts[self.escape as usize] - 1;
            order[(256 + last) as usize] = ESCAPE_SYMBOL;
        }
        sync_cube();

        // One symbol by the next 8 bits.
        let mut entry = 0u32;
        let mut first = 0u32;
        let mut before = 0u32;
        for length in 1..9u32 {
            let count = self.counts[length as usize];
            let prefix = UNIT_POS >> (8 - length);
            if entry == 0 && prefix < first + count {
                let symbol = order[(256 + before + prefix - first) as usize];
                let escapes = symbol == ESCAPE_SYMBOL;
                let what = select(escapes, comptime!(Entry::ESCAPE), symbol << 7);
                entry = what | (length << 16);
            }
            before += count;
            first = (first + count) << 1;
        }
        single[UNIT_POS as usize] = entry;
        sync_cube();

        // Two symbols by the next 12 bits.
        for step in 0..16u32 {
            let bits = step * 256 + UNIT_POS;
            let mut entry = single[(bits >> 4) as usize];
            let taken = (entry >> 16) & 0xf;
            let second = single[((bits << taken >> 4) & 0xff) as usize];
            let both = taken + ((second >> 16) & 0xf);
            let escapes = (entry | second) & comptime!(Entry::ESCAPE);
            if entry > 0 && second > 0 && escapes == 0 && both <= 12 {
                entry |= ((second & 0x7f80) << 16) | both;
            }
            entries[bits as usize] = entry;
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
