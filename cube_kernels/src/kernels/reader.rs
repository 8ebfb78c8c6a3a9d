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
    /// Bits by which symbols are looked up.
    #[cube(comptime)]
    table_bits: u32,
}

#[cube]
impl Reader {
    /// Of the words that are staged from row `first` on.
    pub(crate) fn new(
        staged: SharedMemory<u32>,
        first: u32,
        #[comptime] table_bits: u32,
        #[comptime] means: Means,
    ) -> Reader {
        let place = first * means.units() + UNIT_POS;
        let high = staged[place as usize];
        let low = staged[(place + means.units()) as usize];
        let following = staged[(place + 2 * means.units()) as usize];
        Reader {
            staged,
            window: Window::new(high, low, following),
            place: RuntimeCell::<u32>::new(place + 3 * means.units()),
            table_bits,
        }
    }

    /// Words that lie before this place will not be read any more.
    pub(crate) fn place(&self) -> u32 {
        self.place.read()
    }

    /// Moves the window on if its first word was read, so that its offset is below 32.
    fn refill(&self, #[comptime] means: Means) {
        if self.window.is_read() {
            let place = self.place.read();
            self.place.store(place + means.units());
            self.window.advance(self.staged[place as usize]);
        }
    }

    /// What the next bits begin with.
    fn entry(&self, entries: &SharedMemory<u32>, bits: u32) -> u32 {
        entries[(bits >> comptime!(32 - self.table_bits)) as usize]
    }

    /// One exponent.
    fn symbol(&self, entries: &SharedMemory<u32>, #[comptime] means: Means) -> u32 {
        self.refill(means);
        let bits = self.window.peek(means);
        self.window.first(self.entry(entries, bits), bits)
    }

    /// Eight exponents, two in a step where the table has two; other bits are not cleared.
    pub(crate) fn granule(&self, entries: &SharedMemory<u32>, #[comptime] means: Means) -> Granule {
        let mut granule = Granule::empty();
        #[unroll]
        for pair in 0..4usize {
            self.refill_for(pair, means);
            let bits = self.window.peek(means);
            let entry = self.entry(entries, bits);
            granule[pair] = self.take(entry, bits, entries, means);
        }
        granule
    }

    /// Moves the window on, where a granule's pair `pair` may need it.
    fn refill_for(&self, #[comptime] pair: usize, #[comptime] means: Means) {
        if comptime!(pair % 2 == 0 || !means.has_u64) {
            self.refill(means);
        }
    }

    /// The two exponents of `entry`, which [has them](is_pair).
    fn take_pair(&self, entry: u32) -> u32 {
        self.window.skip(entry & 0xf);
        entry
    }

    /// Two exponents, of which `entry` may have the first one only.
    fn take(
        &self,
        entry: u32,
        bits: u32,
        entries: &SharedMemory<u32>,
        #[comptime] means: Means,
    ) -> u32 {
        if is_pair(entry) {
            self.take_pair(entry)
        } else {
            let first = self.window.first(entry, bits);
            first | (self.symbol(entries, means) << 16)
        }
    }
}

/// [`Reader::granule`] of several streams side by side, so that their latencies overlap.
#[cube]
pub(crate) fn granules(
    readers: &Sequence<Reader>,
    tables: &Sequence<SharedMemory<u32>>,
    #[comptime] means: Means,
) -> Array<Granule> {
    let streams = comptime!(readers.len());
    let mut granules = Array::<Granule>::new(streams);
    #[unroll]
    for stream in 0..streams {
        granules[stream] = Granule::empty();
    }
    #[unroll]
    for pair in 0..4usize {
        let mut bits = Array::<u32>::new(streams);
        let mut entries = Array::<u32>::new(streams);
        let mut pairs = true;
        #[unroll]
        for stream in 0..streams {
            let reader = readers.index(stream);
            reader.refill_for(pair, means);
            bits[stream] = reader.window.peek(means);
            entries[stream] = reader.entry(tables.index(stream), bits[stream]);
            pairs = pairs && is_pair(entries[stream]);
        }
        if pairs {
            #[unroll]
            for stream in 0..streams {
                let mut granule = granules[stream];
                granule[pair] = readers.index(stream).take_pair(entries[stream]);
                granules[stream] = granule;
            }
        } else {
            #[unroll]
            for stream in 0..streams {
                let (reader, entry) = (readers.index(stream), entries[stream]);
                let mut granule = granules[stream];
                granule[pair] = reader.take(entry, bits[stream], tables.index(stream), means);
                granules[stream] = granule;
            }
        }
    }
    granules
}

/// Whether `entry` has two exponents.
#[cube]
fn is_pair(entry: u32) -> bool {
    entry & 0xf > 0
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
