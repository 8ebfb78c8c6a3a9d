//! Launching a comparison, and reading what it found.

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::LaunchError;
use super::bind::{Dense, DenseLayout, bind};
use crate::kernels::REVISION;
use crate::kernels::UNITS;
use crate::kernels::compare::{self as kernel, COUNT, FIRST, RAN, VERDICT_WORDS};
use crate::layout::GRANULE;
use crate::{Mismatch, PackedLayout};

/// Cubes of a grid, at most; each strides over the values.
const MOST_CUBES: u32 = 4096;

/// Compares the bits of two dense tensors whose values lie alike, both as `dense` says. Returns at once with the buffer
/// in which the device leaves its verdict; [`verdict`] reads it.
///
/// # Errors
/// [`LaunchError`] if sizes, offsets or the device's limits forbid the launch; nothing is launched then.
pub fn compare<R: Runtime>(
    client: &ComputeClient<R>,
    left: Handle,
    right: Handle,
    dense: DenseLayout,
) -> Result<Handle, LaunchError> {
    let (left, right) = (Dense::new(left, dense)?, Dense::new(right, dense)?);
    let found = client.properties().hardware.max_units_per_cube;
    if found < UNITS {
        return Err(LaunchError::CubeSize {
            needed: UNITS,
            found,
        });
    }
    let mut access = left.access;
    access.aligned &= right.access.aligned;
    let mut fresh = [0; VERDICT_WORDS];
    fresh[FIRST] = u32::MAX;
    let verdict = client.create_from_slice(bytemuck::cast_slice(&fresh));
    let granules = dense.values().div_ceil(GRANULE as usize) as u32;
    // Not even one is too few: the verdict has to say that it is one.
    let cubes = granules.div_ceil(UNITS).clamp(1, MOST_CUBES);
    // SAFETY: both buffers were checked against the layout, and the kernel's indices stay below its values.
    unsafe {
        kernel::compare::launch_unchecked::<R>(
            client,
            CubeCount::Static(cubes, 1, 1),
            CubeDim::new_1d(UNITS),
            left.wide_or_other(client),
            left.narrow(),
            right.wide_or_other(client),
            right.narrow(),
            bind(&verdict, VERDICT_WORDS as u64),
            dense.values() as u32,
            left.row_len,
            left.row_pitch,
            access,
            REVISION,
        );
    }
    Ok(verdict)
}

/// What a comparison found, from the bytes of its verdict: `None` if the device has not run it.
pub fn verdict(bytes: &[u8], layout: &PackedLayout) -> Option<Result<(), Mismatch>> {
    let word = |index: usize| -> Option<u32> {
        let bytes = bytes.get(4 * index..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let (ran, count, first) = (word(RAN)?, word(COUNT)?, word(FIRST)?);
    (ran == 1).then(|| match count {
        0 => Ok(()),
        values => Err(Mismatch::new(layout, first, values)),
    })
}
