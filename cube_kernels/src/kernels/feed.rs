//! A stream being read from where it lies, without being staged: an update's blocks that are not whole or raw, and those whose
//! new words would overtake the old ones.

use cubecl::prelude::*;

use super::reader::Window;
use super::source::Source;
use super::team::Means;

/// A packed stream being read, an exponent at a time.
#[derive(CubeType)]
pub(crate) struct Feed {
    source: Source,
    window: Window,
    /// The number of the word after the window's.
    next: RuntimeCell<u32>,
}

#[cube]
impl Feed {
    pub(crate) fn new(
        source: Source,
        streams: &Array<u32>,
        spill: &Array<u32>,
        #[comptime] means: Means,
    ) -> Feed {
        let high = source.word(streams, spill, 0u32.runtime(), means.has_u64);
        let low = source.word(streams, spill, 1u32.runtime(), means.has_u64);
        let following = source.word(streams, spill, 2u32.runtime(), means.has_u64);
        Feed {
            source,
            window: Window::new(high, low, following),
            next: RuntimeCell::<u32>::new(3u32),
        }
    }

    /// Moves the window on if its first word was read. An escaped exponent takes 16 bits, so where 64-bit integers look into
    /// the whole window that is not needed before every second exponent.
    pub(crate) fn refill(
        &self,
        streams: &Array<u32>,
        spill: &Array<u32>,
        #[comptime] means: Means,
    ) {
        if self.window.is_read() {
            let next = self.next.read();
            self.next.store(next + 1);
            let word = self.source.word(streams, spill, next, means.has_u64);
            self.window.advance(word);
        }
    }

    /// The next exponent, where the lower BF16 of a pair has it. Of a raw stream it means nothing.
    pub(crate) fn symbol(
        &self,
        table: &SharedMemory<u32>,
        #[comptime] table_bits: u32,
        #[comptime] means: Means,
    ) -> u32 {
        let bits = self.window.peek(means);
        let entry = table[(bits >> comptime!(32 - table_bits)) as usize];
        self.window.first(entry, bits)
    }

    /// Whether the words hold the exponents themselves.
    pub(crate) fn is_raw(&self) -> bool {
        self.source.is_raw()
    }

    /// The exponents of pair `pair` in the granule of row `row` of a raw stream, where a pair of BF16 has them.
    pub(crate) fn raw_pair(
        &self,
        row: u32,
        pair: u32,
        streams: &Array<u32>,
        spill: &Array<u32>,
    ) -> u32 {
        let four = self.source.raw_word(streams, spill, row * 2 + pair / 2);
        let two = four >> (pair % 2 * 16);
        ((two & 0xff) << 7) | ((two & 0xff00) << 15)
    }
}
