//! A stream being read from where it lies, without being staged: shared memory is for what is written at the same time.

use cubecl::prelude::*;

use super::dense::Granule;
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

    /// The first `count` exponents of the granule of row `row`, which comes next, where pairs of BF16 have them. The loop is
    /// not unrolled: streams of several tensors are read in turn, and the code of all finds no room in the instruction cache.
    pub(crate) fn granule(
        &self,
        row: u32,
        count: u32,
        streams: &Array<u32>,
        spill: &Array<u32>,
        entries: SharedMemory<u32>,
        #[comptime] whole: bool,
        #[comptime] means: Means,
    ) -> Granule {
        let mut granule = Granule::empty();
        let raw = self.source.is_raw();
        for pair in 0..4u32 {
            let mut exponents = 0u32;
            if raw {
                if pair * 2 < count {
                    let four = self.source.raw_word(streams, spill, row * 2 + pair / 2);
                    let two = four >> (pair % 2 * 16);
                    exponents = (two & 0xff) << 7 | (two & 0xff00) << 15;
                }
            } else if comptime!(whole) {
                exponents = self.symbol(streams, spill, entries, 0u32, means);
                exponents |= self.symbol(streams, spill, entries, 1u32, means) << 16;
            } else {
                #[unroll]
                for symbol in 0..2u32 {
                    if pair * 2 + symbol < count {
                        let exponent = self.symbol(streams, spill, entries, symbol, means);
                        exponents |= exponent << (symbol * 16);
                    }
                }
            }
            granule[0] = granule[1];
            granule[1] = granule[2];
            granule[2] = granule[3];
            granule[3] = exponents;
        }
        granule
    }

    /// One exponent, the first or the second of a pair. An escaped one takes 16 bits, so where 64-bit integers look into the
    /// whole window it need not be moved on before the second.
    fn symbol(
        &self,
        streams: &Array<u32>,
        spill: &Array<u32>,
        entries: SharedMemory<u32>,
        #[comptime] symbol: u32,
        #[comptime] means: Means,
    ) -> u32 {
        if comptime!(symbol == 0 || !means.has_u64) {
            if self.window.is_read() {
                let next = self.next.read();
                self.next.store(next + 1);
                let word = self.source.word(streams, spill, next, means.has_u64);
                self.window.advance(word);
            }
        }
        let bits = self.window.peek(means);
        self.window.first(entries[(bits >> 24) as usize], bits)
    }
}
