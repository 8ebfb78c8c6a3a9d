//! Launching an encode.

use std::sync::atomic::{AtomicU32, Ordering};

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::LaunchError;
use super::bind::{
    BUFFER_ALIGNMENT, Blob, Cubes, Dense, DenseLayout, Needs, bind, check_buffer, has_u64,
};
use crate::codebook::templates;
use crate::kernels::REVISION;
use crate::kernels::codebook::Choice;
use crate::kernels::encode as kernel;
use crate::kernels::geometry::Geometry;
use crate::kernels::head::encode_nothing;
use crate::kernels::record::NOTES;
use crate::kernels::tickets::TICKETS;
use crate::layout::STREAMS;
use crate::{CodecError, Family, PackedLayout};

/// Shared memory beside the teams': the code's choice, the codes, the code table with its counts.
const TABLE_BYTES: usize = 4 * 1024 + 512;
/// Cubes that find registers on an H200's multiprocessor.
const RESIDENT: u32 = 5;

/// The next encode's number.
static SERIAL: AtomicU32 = AtomicU32::new(1);

/// A number that no other encode of this process has, until they have all been used.
pub(super) fn next_serial() -> u32 {
    SERIAL.fetch_add(1, Ordering::Relaxed)
}

/// Counters that encodes share: one after the other they leave them as they found them, zero.
///
/// Launches that may run at the same time, on different streams, need tickets of their own.
#[derive(Clone, Debug)]
pub struct Tickets(pub(super) Handle);

impl Tickets {
    /// New counters.
    pub fn new<R: Runtime>(client: &ComputeClient<R>) -> Self {
        Self(client.create_from_slice(&[0; 256]))
    }
}

/// Encodes dense BF16 values on the device. Returns at once; the work is queued on the stream.
///
/// `blob` has at least [`PackedLayout::blob_bytes`] and `spill` at least
/// [`PackedLayout::spill_bound_bytes`] bytes, neither needs to be cleared, and both start at
/// multiples of [`BUFFER_ALIGNMENT`]. The header says how much of either was used.
///
/// Returns the number of this encode, which the header has in its [`SERIAL_WORD`](crate::header::SERIAL_WORD) when the
/// device has done it: a buffer that was used before can hold a header that is right in all else.
///
/// # Errors
/// [`LaunchError`] if sizes, offsets or the device's limits forbid the launch; nothing is launched
/// then.
#[allow(clippy::too_many_arguments, reason = "each is a buffer or its layout")]
pub fn encode<R: Runtime>(
    client: &ComputeClient<R>,
    input: Handle,
    dense: DenseLayout,
    family: Family,
    layout: &PackedLayout,
    blob: Handle,
    spill: Handle,
    tickets: &Tickets,
) -> Result<u32, LaunchError> {
    let has_u64 = has_u64(client);
    encode_with(
        client, input, dense, family, layout, blob, spill, tickets, has_u64,
    )
}

/// [`encode`] with or without 64-bit integers.
#[allow(clippy::too_many_arguments)]
pub(super) fn encode_with<R: Runtime>(
    client: &ComputeClient<R>,
    input: Handle,
    dense: DenseLayout,
    family: Family,
    layout: &PackedLayout,
    blob: Handle,
    spill: Handle,
    tickets: &Tickets,
    has_u64: bool,
) -> Result<u32, LaunchError> {
    if dense.values() != layout.values() {
        // One that is too large for any layout is told so.
        let values = dense.values() as u64;
        if values > crate::layout::MAX_VALUES {
            return Err(LaunchError::Codec(CodecError::TooManyValues {
                values,
                limit: crate::layout::MAX_VALUES,
            }));
        }
        return Err(LaunchError::ValueCount {
            dense: dense.values(),
            packed: layout.values(),
        });
    }
    // Without values the input is never read, and may be too small to be bound.
    let input = if layout.values() == 0 {
        blob.clone()
    } else {
        input
    };
    let input = Dense::new(input, dense)?;
    let blob = Blob::new(blob, *layout)?;
    check_buffer(
        "spill",
        &spill,
        layout.spill_bound_bytes(),
        BUFFER_ALIGNMENT,
    )?;

    let serial = next_serial();
    let geometry = Geometry::from(layout);
    let profile = layout.profile().code() as u32;
    let range = templates(family).unwrap_or(0..0);
    let choice = Choice {
        first: range.start,
        end: range.end,
    };
    let team_bytes = (4 * layout.max_stream_words() * STREAMS) as usize + (4 * NOTES) as usize;
    let needs = Needs::usual(TABLE_BYTES, team_bytes, RESIDENT);
    let cubes = Cubes::new(client, &needs, has_u64)?;
    if layout.blocks() == 0 {
        // SAFETY: the head has at least 64 words, and the kernel checks its length.
        unsafe {
            encode_nothing::launch_unchecked::<R>(
                client,
                CubeCount::Static(1, 1, 1),
                cubes.dim,
                blob.head(),
                serial,
                profile,
                geometry,
                REVISION,
            );
        }
        return Ok(serial);
    }
    let (grid, teams) = cubes.grid(client, layout.blocks());
    // SAFETY: sizes were checked above, and the kernel's indices stay below them; records stay below the bound that was
    // checked.
    unsafe {
        kernel::encode::launch_unchecked::<R>(
            client,
            grid,
            cubes.dim,
            blob.head(),
            blob.plane(),
            blob.streams(),
            bind(&spill, spill.size_in_used() / 4),
            bind(&tickets.0, TICKETS as u64),
            input.wide(&blob),
            input.narrow(),
            layout.values() as u32,
            layout.capacity(),
            serial,
            teams,
            input.row_len,
            input.row_pitch,
            profile,
            geometry,
            choice,
            input.access,
            cubes.means,
            REVISION,
        );
    }
    Ok(serial)
}
