//! The update of dense tensors: one pass over memory.
//!
//! Bytes per value: 2 for each tensor that is read or written, so 10 for a step with one state. A unit works on eight
//! neighbours, 16 bytes of each tensor.

use cubecl::prelude::*;

use super::dense::{Access, Granule, Rows, load, store};
use super::geometry::granule_values;
use super::step::{Granules, Numbers, Plan, step_granule};
use crate::layout::GRANULE;

/// Does a step for every value. The inputs are the gradient, the weight and the states that are known; the outputs, which
/// may be the same buffers, the weight and all states.
#[cube(launch_unchecked)]
pub(crate) fn update(
    wide_in: &Sequence<Array<Granule>>,
    narrow_in: &Sequence<Array<u32>>,
    wide_out: &mut Sequence<Array<Granule>>,
    narrow_out: &mut Sequence<Array<Atomic<u32>>>,
    values: u32,
    row_length: u32,
    row_pitch: u32,
    numbers: &Numbers,
    #[comptime] plan: Plan,
    #[comptime] access: Access,
    #[comptime] _revision: u32,
) {
    let rows = Rows {
        length: row_length,
        pitch: row_pitch,
    };
    let stride = CUBE_COUNT as u32 * CUBE_DIM;
    let granules = values / GRANULE + u32::cast_from(values % GRANULE > 0);
    let mut granule = ABSOLUTE_POS as u32;
    while granule < granules {
        let first = granule * GRANULE;
        let count = granule_values(first, values);
        let gradient = operand(wide_in, narrow_in, 0usize, first, count, rows, access);
        let mut old = Granules {
            weight: operand(wide_in, narrow_in, 1usize, first, count, rows, access),
            first: Granule::empty(),
            second: Granule::empty(),
            most: Granule::empty(),
        };
        if comptime!(plan.chain.known > 0) {
            old.first = operand(wide_in, narrow_in, 2usize, first, count, rows, access);
        }
        if comptime!(plan.chain.known > 1) {
            old.second = operand(wide_in, narrow_in, 3usize, first, count, rows, access);
        }
        if comptime!(plan.chain.known > 2) {
            old.most = operand(wide_in, narrow_in, 4usize, first, count, rows, access);
        }
        let new = step_granule(old, gradient, first, numbers, plan);
        #[unroll]
        for tensor in 0..comptime!(1 + plan.chain.states()) {
            store(
                wide_out.index_mut(tensor),
                narrow_out.index(tensor),
                new.get(tensor),
                first,
                count,
                rows,
                access,
            );
        }
        granule += stride;
    }
}

/// A granule of input `tensor`.
#[cube]
fn operand(
    wide: &Sequence<Array<Granule>>,
    narrow: &Sequence<Array<u32>>,
    #[comptime] tensor: usize,
    first: u32,
    count: u32,
    rows: Rows,
    #[comptime] access: Access,
) -> Granule {
    let (wide, narrow) = (wide.index(tensor), narrow.index(tensor));
    load(wide, narrow, first, count, rows, access)
}
