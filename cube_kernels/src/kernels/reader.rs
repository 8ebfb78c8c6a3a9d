//! A stream being read.

use cubecl::prelude::*;

use super::bits::window;
use super::dense::Granule;
use super::team::Means;
use crate::codebook::Entry;

/// A staged stream being read, through a window of two words. Two pairs of short codes take at most
/// 24 bits and an escaped exponent 16, so where 64-bit integers look into the whole window it is
/// moved only once in two pairs, and before each exponent that is read alone.
#[derive(CubeType)]
pub(crate) struct Reader {
    staged: SharedMemory<u32>,
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
    pub(crate) fn new(staged: SharedMemory<u32>, #[comptime] means: Means) -> Reader {
        let reader = Reader {
            staged,
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
        self.place.store(place + means.units());
        self.staged[place as usize]
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
        self.offset.store(self.offset.read() + first_length(entry));
        first_exponent(entry, bits)
    }

    /// One exponent.
    fn symbol(&self, entries: &SharedMemory<u32>, #[comptime] means: Means) -> u32 {
        self.refill(means);
        let bits = self.peek(means);
        self.first(entries[(bits >> 20) as usize], bits)
    }

    /// Eight exponents, two in a step where the table has two; other bits are not cleared.
    pub(crate) fn granule(&self, entries: &SharedMemory<u32>, #[comptime] means: Means) -> Granule {
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
}

/// The exponent that `entry` says `bits` begin with, where the lower BF16 of a pair has it.
#[cube]
pub(crate) fn first_exponent(entry: u32, bits: u32) -> u32 {
    let mut exponent = entry & 0x7f80;
    if entry & comptime!(Entry::ESCAPE) != 0 {
        exponent = (bits << ((entry >> 16) & 0xf) >> 24) << 7;
    }
    exponent
}

/// The bits that it takes.
#[cube]
pub(crate) fn first_length(entry: u32) -> u32 {
    let literal = (entry & comptime!(Entry::ESCAPE)) >> comptime!(Entry::ESCAPE.ilog2() - 3);
    ((entry >> 16) & 0xf) + literal
}
