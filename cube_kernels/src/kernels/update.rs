//! The update of dense tensors: one pass over memory.
//!
//! Bytes per value: 2 for each tensor that is read or written, so 10 for a step with one state. A unit works on eight
//! neighbours, 16 bytes of each tensor.

use cubecl::prelude::*;

use super::dense::{Access, Granule, Rows, load, store};
use super::geometry::granule_values;
use super::step::{Numbers, Pairs, Plan, step_pair};
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
        let known = comptime!(1 + plan.chain.known);
        let mut old = Array::<Granule>::new(known);
        #[unroll]
        for tensor in 0..known {
            old[tensor] = operand(
                wide_in,
                narrow_in,
                comptime!(tensor + 1),
                first,
                count,
                rows,
                access,
            );
        }
        let tensors = comptime!(1 + plan.chain.states());
        let mut new = Array::<Granule>::new(tensors);
        #[unroll]
        for tensor in 0..tensors {
            new[tensor] = Granule::empty();
        }
        #[unroll]
        for word in 0..comptime!(GRANULE as usize / 2) {
            let mut two = Pairs::empty();
            two.weight = old[0usize][word];
            if comptime!(known > 1) {
                two.first = old[1usize][word];
            }
            if comptime!(known > 2) {
                two.second = old[2usize][word];
            }
            if comptime!(known > 3) {
                two.most = old[3usize][word];
            }
            let place = first + comptime!(word as u32 * 2);
            let two = step_pair(two, gradient[word], place, numbers, plan);
            #[unroll]
            for tensor in 0..tensors {
                let mut granule = new[tensor];
                granule[word] = two.get(tensor);
                new[tensor] = granule;
            }
        }
        #[unroll]
        for tensor in 0..tensors {
            store(
                wide_out.index_mut(tensor),
                narrow_out.index(tensor),
                new[tensor],
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
