//! Whether two dense tensors whose rows lie alike hold the same bits.

use cubecl::prelude::*;

use super::UNITS;
use super::dense::{Access, Granule, Rows, load};
use super::geometry::granule_values;
use crate::layout::GRANULE;

/// Which word of the verdict is the lowest index of a value that differs.
pub(crate) const FIRST: usize = 0;
/// Which counts the values that differ.
pub(crate) const COUNT: usize = 1;
/// Which holds 1 once the kernel has run.
pub(crate) const RAN: usize = 2;
/// Words of a verdict.
pub(crate) const VERDICT_WORDS: usize = 4;

/// Compares value by value; gaps between rows do not count.
#[cube(launch_unchecked)]
pub(crate) fn compare(
    left_wide: &Array<Granule>,
    left: &Array<u32>,
    right_wide: &Array<Granule>,
    right: &Array<u32>,
    verdict: &Array<Atomic<u32>>,
    values: u32,
    row_length: u32,
    row_pitch: u32,
    #[comptime] access: Access,
    #[comptime] _revision: u32,
) {
    let rows = Rows {
        length: row_length,
        pitch: row_pitch,
    };
    let mut granule = CUBE_POS as u32 * UNITS + UNIT_POS;
    if granule == 0 {
        verdict[RAN].store(1u32);
    }
    let granules = values / GRANULE + u32::cast_from(values % GRANULE > 0);
    while granule < granules {
        let first = granule * GRANULE;
        let count = granule_values(first, values);
        let left = load(left_wide, left, first, count, rows, access);
        let right = load(right_wide, right, first, count, rows, access);
        #[unroll]
        for word in 0..4u32 {
            let other = left[word as usize] ^ right[word as usize];
            #[unroll]
            for half in 0..2u32 {
                if (other >> comptime!(half * 16)) & 0xffff != 0 {
                    verdict[FIRST].fetch_min(first + comptime!(word * 2 + half));
                    verdict[COUNT].fetch_add(1u32);
                }
            }
        }
        granule += CUBE_COUNT as u32 * UNITS;
    }
}
