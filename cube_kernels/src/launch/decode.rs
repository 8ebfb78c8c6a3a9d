//! Launching a decode.

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::LaunchError;
use super::bind::{
    BUFFER_ALIGNMENT, Blob, Cubes, Dense, DenseLayout, Needs, bind, check_buffer, has_u64,
};
use crate::PackedLayout;
use crate::kernels::REVISION;
use crate::kernels::decode::{self as kernel, STAGED_ROWS};
use crate::kernels::geometry::Geometry;
use crate::layout::STREAMS;

/// Shared memory for the decode table and the code table with its counts.
const TABLE_BYTES: usize = 4 * (4096 + 32 + 9 + 2);
/// Cubes that find registers on an H200's multiprocessor.
const RESIDENT: u32 = 4;

/// Decodes a packed tensor on the device into `output`. Returns at once; the work is queued on the
/// stream. Gaps between pitched rows are not written.
///
/// `layout` is the packed form's own, which comes from [`encode`](super::encode) or was validated
/// ([`Packed::validate`](crate::Packed::validate)): the device cannot report a corrupt one.
/// `spill` holds at least the words that the header declares as used; it is `None` when they are
/// none.
///
/// # Errors
/// [`LaunchError`] if sizes, offsets or the device's limits forbid the launch; nothing is launched
/// then.
pub fn decode<R: Runtime>(
    client: &ComputeClient<R>,
    blob: Handle,
    spill: Option<Handle>,
    layout: &PackedLayout,
    output: Handle,
    dense: DenseLayout,
) -> Result<(), LaunchError> {
    decode_with(client, blob, spill, layout, output, dense, has_u64(client))
}

/// [`decode`] with or without 64-bit integers.
pub(super) fn decode_with<R: Runtime>(
    client: &ComputeClient<R>,
    blob: Handle,
    spill: Option<Handle>,
    layout: &PackedLayout,
    output: Handle,
    dense: DenseLayout,
    has_u64: bool,
) -> Result<(), LaunchError> {
    if dense.values() != layout.values() {
        return Err(LaunchError::ValueCount {
            dense: dense.values(),
            packed: layout.values(),
        });
    }
    let output = Dense::new(output, dense)?;
    // A binding is needed in any case; without spill it is never read.
    let spill = spill
        .filter(|spill| spill.size_in_used() > 0)
        .unwrap_or_else(|| blob.clone());
    check_buffer("spill", &spill, 0, BUFFER_ALIGNMENT)?;
    let blob = Blob::new(blob, *layout)?;
    if layout.blocks() == 0 {
        return Ok(());
    }
    let geometry = Geometry::from(layout);
    let team_bytes = (4 * STAGED_ROWS * STREAMS) as usize;
    let needs = Needs::usual(TABLE_BYTES, team_bytes, RESIDENT);
    let cubes = Cubes::new(client, &needs, has_u64)?;

    let (grid, teams) = cubes.grid(client, layout.blocks());
    // SAFETY: sizes were checked above, and the kernel's indices stay below them.
    unsafe {
        kernel::decode::launch_unchecked::<R>(
            client,
            grid,
            cubes.dim,
            blob.head(),
            blob.plane(),
            blob.streams(),
            bind(&spill, spill.size_in_used() / 4),
            output.wide(&blob),
            output.narrow(),
            layout.values() as u32,
            layout.capacity(),
            teams,
            output.row_len,
            output.row_pitch,
            geometry,
            output.access,
            cubes.means,
            REVISION,
        );
    }
    Ok(())
}
