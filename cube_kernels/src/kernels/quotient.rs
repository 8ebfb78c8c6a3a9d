//! Rows divided by a value each: the last step of a softmax, done again.
//!
//! Bytes per value: 4, two read and two written. What a backend does for a broadcast division reads one value at a time.

use cubecl::prelude::*;

/// Values that a unit loads at once: 16 bytes of BF16.
pub(crate) const WIDTH: usize = 8;

/// Each unit divides [`WIDTH`] neighbours of a row, which has `row_vectors` times as many.
#[cube(launch_unchecked)]
pub(crate) fn quotient<F: Float>(
    dividend: &Array<Vector<F, Const<8>>>,
    divisor: &Array<F>,
    output: &mut Array<Vector<F, Const<8>>>,
    vectors: u32,
    row_vectors: u32,
    #[comptime] _revision: u32,
) {
    let mut index = ABSOLUTE_POS as u32;
    while index < vectors {
        let row = index / row_vectors;
        let place = index as usize;
        output[place] = dividend[place] / Vector::new(divisor[row as usize]);
        index += CUBE_COUNT as u32 * CUBE_DIM;
    }
}
