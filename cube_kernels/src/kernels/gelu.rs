//! GELU in one pass: `x / sqrt(2)`, `erf`, `+ 1`, `* x`, `/ 2`, each rounded to `F` as where each is an operation by itself.
//!
//! Bytes per value: 4, two read and two written.

use cubecl::prelude::*;

/// Values that a unit loads at once: 16 bytes of BF16.
pub(crate) const WIDTH: usize = 8;

/// Each unit computes [`WIDTH`] neighbours. The divisors are arguments, so that the compiler divides by them rather than by
/// what it knows of them.
#[cube(launch_unchecked)]
pub(crate) fn gelu<F: Float>(
    input: &Array<Vector<F, Const<8>>>,
    output: &mut Array<Vector<F, Const<8>>>,
    vectors: u32,
    root_of_two: f32,
    two: f32,
    #[comptime] _revision: u32,
) {
    let root_of_two = Vector::<F, Const<8>>::new(F::cast_from(root_of_two));
    let two = Vector::<F, Const<8>>::new(F::cast_from(two));
    let one = Vector::<F, Const<8>>::new(F::new(1.0));
    let mut index = ABSOLUTE_POS as u32;
    while index < vectors {
        let x = input[index as usize];
        let twice = x * (Vector::erf(x / root_of_two) + one);
        output[index as usize] = twice / two;
        index += CUBE_COUNT as u32 * CUBE_DIM;
    }
}
