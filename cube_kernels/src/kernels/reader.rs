//! A stream being read.

use cubecl::prelude::*;

use super::bits::window;
use super::dense::Granule;
use super::team::Means;
use crate::codebook::Entry;

/// The next bits of a stream, two words of them, and the word that follows.
#[derive(CubeType)]
pub(crate) struct Window {
    /// The first word.
    high: RuntimeCell<u32>,
    /// The second word.
    low: RuntimeCell<u32>,
    /// The word that follows, loaded ahead.
    following: RuntimeCell<u32>,
    /// Bits already read.
    offset: RuntimeCell<u32>,
}

#[cube]
impl Window {
    /// On a stream's first words.
    pub(crate) fn new(high: u32, low: u32, following: u32) -> Window {
        Window {
            high: RuntimeCell::<u32>::new(high),
            low: RuntimeCell::<u32>::new(low),
            following: RuntimeCell::<u32>::new(following),
            offset: RuntimeCell::<u32>::new(0u32),
        }
    }

    /// Whether the first word was read, so that the window is to be moved on.
    pub(crate) fn is_read(&self) -> bool {
        self.offset.read() >= 32
    }

    /// Moves on by a word; `following` comes behind all others.
    pub(crate) fn advance(&self, following: u32) {
        self.high.store(self.low.read());
        self.low.store(self.following.read());
        self.following.store(following);
        self.offset.store(self.offset.read() - 32);
    }

    /// The next 32 bits.
    pub(crate) fn peek(&self, #[comptime] means: Means) -> u32 {
        let offset = self.offset.read();
        window(self.high.read(), self.low.read(), offset, means.has_u64)
    }

    /// Reads so many bits.
    pub(crate) fn skip(&self, bits: u32) {
        self.offset.store(self.offset.read() + bits);
    }

    /// The exponent that `entry` says `bits` begin with, where the lower BF16 of a pair has it.
    pub(crate) fn first(&self, entry: u32, bits: u32) -> u32 {
        self.skip(first_length(entry));
        first_exponent(entry, bits)
    }
}

/// A staged stream being read. Two pairs of short codes take at most 24 bits and an escaped exponent 16, so where 64-bit
/// integers look into the whole window it is moved only once in two pairs, and before each exponent that is read alone.
#[derive(CubeType)]
pub(crate) struct Reader {
    staged: SharedMemory<u32>,
    window: Window,
    /// Where the word after the window's lies.
    place: RuntimeCell<u32>,
}

#[cube]
impl Reader {
    pub(crate) fn new(staged: SharedMemory<u32>, #[comptime] means: Means) -> Reader {
        let high = staged[UNIT_POS as usize];
        let low = staged[(UNIT_POS + means.units()) as usize];
        let following = staged[(UNIT_POS + 2 * means.units()) as usize];
        Reader {
            staged,
            window: Window::new(high, low, following),
            place: RuntimeCell::<u32>::new(UNIT_POS + 3 * means.units()),
        }
    }

    /// Moves the window on if its first word was read, so that its offset is below 32.
    fn refill(&self, #[comptime] means: Means) {
        if self.window.is_read() {
            let place = self.place.read();
            self.place.store(place + means.units());
            self.window.advance(self.staged[place as usize]);
        }
    }

    /// One exponent.
    fn symbol(&self, entries: &SharedMemory<u32>, #[comptime] means: Means) -> u32 {
        self.refill(means);
        let bits = self.window.peek(means);
        self.window.first(entries[(bits >> 20) as usize], bits)
    }

    /// Eight exponents, two in a step where the table has two; other bits are not cleared.
    pub(crate) fn granule(&self, entries: &SharedMemory<u32>, #[comptime] means: Means) -> Granule {
        let mut granule = Granule::empty();
        #[unroll]
        for pair in 0..4usize {
            if comptime!(pair % 2 == 0 || !means.has_u64) {
                self.refill(means);
            }
            let bits = self.window.peek(means);
            let entry = entries[(bits >> 20) as usize];
            let mut exponents = entry;
            let both = entry & 0xf;
            if both > 0 {
                self.window.skip(both);
            } else {
                exponents = self.window.first(entry, bits);
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
