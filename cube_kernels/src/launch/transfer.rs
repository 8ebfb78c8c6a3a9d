//! Packed tensors between host and device.

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::{DenseLayout, LaunchError, Tickets, decode, encode};
use crate::header::RECORDS_END_WORD;
use crate::{CodecConfig, Packed, PackedLayout};

/// Encodes on the device and reads the packed form back. Waits for the device.
///
/// # Errors
/// As [`encode`] and [`read`].
pub fn encode_to_host<R: Runtime>(
    client: &ComputeClient<R>,
    input: Handle,
    dense: DenseLayout,
    config: &CodecConfig,
) -> Result<Packed, LaunchError> {
    let layout = PackedLayout::new(dense.values(), config.profile)?;
    // An encode leaves what it does not need as it was, in the spill too: places of a record that would lie across the blob's end.
    // Old memory is nobody's to see or to save.
    let blank = |bytes: u64| client.create_from_slice(&vec![0; bytes as usize]);
    let blob = blank(layout.blob_bytes());
    let spill = blank(layout.spill_bound_bytes().max(4));
    let tickets = Tickets::new(client);
    let (to, rest) = (blob.clone(), spill.clone());
    encode(
        client,
        input,
        dense,
        config.family,
        &layout,
        to,
        rest,
        &tickets,
    )?;
    read(client, &layout, blob, spill)
}

/// Reads a packed tensor back from the device, of the spill only what was used. Waits for the
/// device.
///
/// # Errors
/// [`LaunchError::Read`], or [`LaunchError::BufferSize`] if the header declares more spill than
/// `spill` holds.
pub fn read<R: Runtime>(
    client: &ComputeClient<R>,
    layout: &PackedLayout,
    blob: Handle,
    spill: Handle,
) -> Result<Packed, LaunchError> {
    let blob = read_words(client, blob, layout.blob_bytes())?;
    let used = layout.spill_words(blob[RECORDS_END_WORD]) * 4;
    let spill = match used {
        0 => Vec::new(),
        _ => read_words(client, spill, used)?,
    };
    Ok(Packed { blob, spill })
}

/// Copies a packed tensor to the device: its blob, and its spill if it has one.
pub fn upload<R: Runtime>(client: &ComputeClient<R>, packed: &Packed) -> (Handle, Option<Handle>) {
    let words = |words: &[u32]| client.create_from_slice(bytemuck::cast_slice(words));
    let spill = (!packed.spill.is_empty()).then(|| words(&packed.spill));
    (words(&packed.blob), spill)
}

/// Validates a packed tensor from host memory and decodes it on the device into `output`.
///
/// # Errors
/// Any flaw of the packed form, and those of [`decode`].
pub fn decode_packed<R: Runtime>(
    client: &ComputeClient<R>,
    packed: &Packed,
    output: Handle,
    dense: DenseLayout,
) -> Result<(), LaunchError> {
    let layout = packed.validate()?;
    let (blob, spill) = upload(client, packed);
    decode(client, blob, spill, &layout, output, dense)
}

fn read_words<R: Runtime>(
    client: &ComputeClient<R>,
    handle: Handle,
    bytes: u64,
) -> Result<Vec<u32>, LaunchError> {
    let Some(rest) = handle.size_in_used().checked_sub(bytes) else {
        return Err(LaunchError::BufferSize {
            buffer: "packed",
            needed: bytes,
            found: handle.size_in_used(),
        });
    };
    let read = client.read_one(handle.offset_end(rest));
    let read = read.map_err(|error| LaunchError::Read {
        bytes,
        reason: error.to_string(),
    })?;
    let words = read.chunks_exact(4);
    Ok(words
        .map(|word| {
            word.iter()
                .rev()
                .fold(0, |all, &byte| all << 8 | byte as u32)
        })
        .collect())
}
