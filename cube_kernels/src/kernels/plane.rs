//! The sign-fraction plane: one byte a value, in the order of the streams.

use cubecl::prelude::*;

use super::dense::Granule;
use crate::codebook::Entry;

/// The sign-fraction bytes of a stream's granules in two rows.
pub(crate) type PlanePair = Vector<u32, Const<4>>;

/// Signs and fractions of two granules. Of each four values the two in the middle are swapped: so every
/// byte is where a shift by 0 or 8 of its pair brings it.
#[cube]
pub(crate) fn split(first: Granule, second: Granule) -> PlanePair {
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

/// The second of two rows in place of the first.
#[cube]
pub(crate) fn second_row(bytes: PlanePair) -> PlanePair {
    let mut rest = PlanePair::empty();
    rest[0] = bytes[2];
    rest[1] = bytes[3];
    rest
}

/// Adds signs and fractions, of the pair's first or second row, to entries' exponents.
#[cube]
pub(crate) fn merge(exponents: Granule, plane: PlanePair, #[comptime] row: u32) -> Granule {
    let mut granule = Granule::empty();
    #[unroll]
    for half in 0..2usize {
        let bytes = plane[comptime!(row as usize * 2 + half)];
        let mask = comptime!(Entry::PAIR_MASK);
        // Of each four bytes the two in the middle are swapped: a shift by 8 brings every sign, or
        // every fraction, to its place.
        let low = (bytes & 0x007f_007fu32) | ((bytes << 8) & !0x007f_007fu32);
        let high = ((bytes >> 8) & 0x007f_007fu32) | (bytes & !0x007f_007fu32);
        let first = comptime!(half * 2);
        let second = comptime!(half * 2 + 1);
        granule[first] = (exponents[first] & mask) | (low & comptime!(!Entry::PAIR_MASK));
        granule[second] = (exponents[second] & mask) | (high & comptime!(!Entry::PAIR_MASK));
    }
    granule
}
