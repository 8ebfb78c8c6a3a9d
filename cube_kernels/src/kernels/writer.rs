//! A stream being written.

use cubecl::prelude::*;

use super::bits::window_before;
use super::codes::Code;
use super::dense::Granule;
use super::geometry::Geometry;
use super::team::Means;
use crate::layout::GRANULE;

/// A stream being written into a column of shared memory.
#[derive(CubeType)]
pub(crate) struct Writer {
    staged: SharedMemory<u32>,
    /// The word that is written next.
    place: RuntimeCell<u32>,
    /// Pending bits, the last one lowest. Above them lie bits that were written before.
    bits: RuntimeCell<u32>,
    /// Number of pending bits, below 32.
    pending: RuntimeCell<u32>,
    /// Where the column's room ends.
    end: RuntimeCell<u32>,
    /// Whether a word found no room.
    refused: RuntimeCell<bool>,
}

#[cube]
impl Writer {
    pub(crate) fn new(
        staged: SharedMemory<u32>,
        #[comptime] geometry: Geometry,
        #[comptime] means: Means,
    ) -> Writer {
        Writer {
            staged,
            place: RuntimeCell::<u32>::new(UNIT_POS % means.units()),
            bits: RuntimeCell::<u32>::new(0u32),
            pending: RuntimeCell::<u32>::new(0u32),
            end: RuntimeCell::<u32>::new(comptime!(geometry.limit * means.units()).runtime()),
            refused: RuntimeCell::<bool>::new(false.runtime()),
        }
    }

    /// Begins anew.
    pub(crate) fn reset(&self, #[comptime] geometry: Geometry, #[comptime] means: Means) {
        self.place.store(UNIT_POS % means.units());
        self.bits.store(0u32.runtime());
        self.pending.store(0u32.runtime());
        self.refused.store(false.runtime());
        self.set_end(comptime!(geometry.limit * means.units()).runtime());
    }

    /// Words are written before this place only.
    pub(crate) fn set_end(&self, end: u32) {
        self.end.store(end);
    }

    /// Whether a word found no room.
    pub(crate) fn has_refused(&self) -> bool {
        self.refused.read()
    }

    /// Codes a granule's exponents.
    pub(crate) fn granule(
        &self,
        granule: Granule,
        codes: &SharedMemory<u32>,
        #[comptime] means: Means,
    ) {
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

    /// Codes the exponents of a granule's first `count` values.
    pub(crate) fn values(
        &self,
        granule: Granule,
        count: u32,
        codes: &SharedMemory<u32>,
        #[comptime] means: Means,
    ) {
        #[unroll]
        for symbol in 0..GRANULE {
            if symbol < count {
                let pair = granule[comptime!((symbol / 2) as usize)];
                let exponent = (pair >> comptime!(symbol % 2 * 16 + 7)) & 0xff;
                let code = codes[exponent as usize];
                self.push(code & comptime!(Code::BITS), code_length(code), means);
            }
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
    pub(crate) fn finish(&self, #[comptime] means: Means) -> u32 {
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
        if place < self.end.read() {
            staged[place as usize] = word;
        } else {
            self.refused.store(true.runtime());
        }
        self.place.store(place + means.units());
    }
}

/// The number of bits of a code, or of up to eight.
#[cube]
fn code_length(codes: u32) -> u32 {
    (codes >> comptime!(Code::LENGTH_SHIFT)) & 0xff
}
