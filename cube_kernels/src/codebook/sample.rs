//! The sample a code is chosen from.

use crate::layout::GRANULE;

/// The most values a code is chosen from.
pub const SAMPLE_VALUES: u32 = 2048;

/// Odd multipliers of the hash.
pub(crate) const MIX: [u32; 2] = [0x7feb_352d, 0x846c_a68b];

/// Position of sample `index` among `values` values: the index itself if all are sampled, else one of eight neighbours, a
/// granule, at a pseudo-random place. A stride would meet the same columns of a matrix again and again; a GPU loads eight
/// neighbours as fast as one value.
pub fn sample_position(index: u32, values: u32) -> u32 {
    if values <= SAMPLE_VALUES {
        index
    } else {
        let hash = mix((index / GRANULE) ^ mix(values)) as u64;
        let granule = (hash * (values / GRANULE) as u64) >> 32;
        granule as u32 * GRANULE + index % GRANULE
    }
}

/// An integer hash: xor-shifts and odd multiplications, each a bijection of 32 bits.
#[inline]
pub(crate) fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(MIX[0]);
    x ^= x >> 15;
    x = x.wrapping_mul(MIX[1]);
    x ^ (x >> 16)
}

/// How often each exponent occurs in the sample of `values`, which are at most `u32::MAX`.
pub(super) fn histogram(values: &[u16]) -> [u32; 256] {
    let n = values.len() as u32;
    let mut histogram = [0; 256];
    for index in 0..n.min(SAMPLE_VALUES) {
        let value = values[sample_position(index, n) as usize];
        histogram[(value >> 7 & 0xff) as usize] += 1;
    }
    histogram
}
