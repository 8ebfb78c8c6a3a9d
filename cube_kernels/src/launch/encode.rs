//! Launching an encode.

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::LaunchError;
use super::bind::{
    BUFFER_ALIGNMENT, Blob, Dense, DenseLayout, bind, check_buffer, cube_dim, has_u64,
    persistent_grid,
};
use crate::codebook::templates;
use crate::kernels::codebook::{Choice, choose};
use crate::kernels::encode as kernel;
use crate::kernels::geometry::Geometry;
use crate::layout::STREAMS;
use crate::{CodecConfig, PackedLayout};

/// Shared memory beside the staged streams: the codes, and the code table with its counts.
const TABLE_BYTES: usize = 4 * (256 + 32 + 9 + 1);
/// Shared memory of the codebook kernel, rounded up.
const CODEBOOK_BYTES: usize = 20 * 1024;

/// Encodes dense BF16 values on the device. Returns at once; the work is queued on the stream.
///
/// `blob` has at least [`PackedLayout::blob_bytes`] and `spill` at least
/// [`PackedLayout::spill_bound_bytes`] bytes, neither needs to be cleared, and both start at
/// multiples of [`BUFFER_ALIGNMENT`]. How much of the spill was used stands in the blob's header.
///
/// # Errors
/// [`LaunchError`] if sizes, offsets or the device's limits forbid the launch; nothing is launched
/// then.
pub fn encode<R: Runtime>(
    client: &ComputeClient<R>,
    input: Handle,
    dense: DenseLayout,
    config: &CodecConfig,
    blob: Handle,
    spill: Handle,
) -> Result<PackedLayout, LaunchError> {
    encode_with(client, input, dense, config, blob, spill, has_u64(client))
}

/// [`encode`] with or without 64-bit integers.
pub(super) fn encode_with<R: Runtime>(
    client: &ComputeClient<R>,
    input: Handle,
    dense: DenseLayout,
    config: &CodecConfig,
    blob: Handle,
    spill: Handle,
    has_u64: bool,
) -> Result<PackedLayout, LaunchError> {
    let layout = PackedLayout::new(dense.values(), config.profile)?;
    // Without values the input is never read, and may be too small to be bound.
    let input = if layout.values() == 0 {
        blob.clone()
    } else {
        input
    };
    let input = Dense::new(input, dense)?;
    let blob = Blob::new(blob, layout)?;
    check_buffer(
        "spill",
        &spill,
        layout.spill_bound_bytes(),
        BUFFER_ALIGNMENT,
    )?;

    let geometry = Geometry::from(config.profile);
    let values = layout.values() as u32;
    let range = templates(config.family).unwrap_or(0..0);
    let choice = Choice {
        first: range.start,
        end: range.end,
    };
    let codebook_dim = cube_dim(client, CODEBOOK_BYTES)?;
    let shared_memory = TABLE_BYTES + (geometry.words * STREAMS * 4) as usize;
    let block_dim = cube_dim(client, shared_memory)?;

    // SAFETY: sizes were checked above, and the kernel's indices stay below them.
    unsafe {
        choose::launch_unchecked::<R>(
            client,
            CubeCount::Static(1, 1, 1),
            codebook_dim,
            blob.head(),
            input.narrow(),
            values,
            input.row_len,
            input.row_pitch,
            config.profile.code() as u32,
            geometry,
            choice,
            input.access,
        );
    }
    if layout.blocks() == 0 {
        return Ok(layout);
    }
    // SAFETY: as above; spilled records stay below the bound that was checked.
    unsafe {
        kernel::encode::launch_unchecked::<R>(
            client,
            persistent_grid(client, layout.blocks(), shared_memory),
            block_dim,
            blob.head(),
            blob.plane(),
            blob.streams(),
            bind(&spill, spill.size_in_used() / 4),
            input.wide(&blob),
            input.narrow(),
            values,
            input.row_len,
            input.row_pitch,
            geometry,
            input.access,
            has_u64,
        );
    }
    Ok(layout)
}
