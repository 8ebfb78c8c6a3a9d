//! The buffers of a packed form: how they are had, filled, read, moved and cut to size.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_cubecl::{CubeRuntime, tensor::CubeTensor};
use cubecl::client::ComputeClient;
use cubecl::server::Handle;
use lct_kernels::launch::{self, LaunchError, Tickets};

use super::PackedBuffers;
use crate::store::cube_layout::span_bytes;
use crate::store::{
    PackRequest,
    pages::{aligned, rounded},
    reserve::PANICKED,
    streams,
};

impl PackedBuffers {
    /// Queues the encode.
    pub(super) fn encode<R: CubeRuntime>(
        &mut self,
        tensor: &CubeTensor<R>,
        request: &PackRequest,
        tickets: &Tickets,
    ) -> Result<(), LaunchError> {
        let spill = self
            .spill
            .clone()
            .expect("room for the worst case until the status is known");
        self.serial = launch::encode(
            &tensor.client,
            tensor.handle.clone(),
            self.rows,
            request.codec.family,
            &self.layout,
            self.blob.clone(),
            spill,
            tickets,
        )?;
        Ok(())
    }
}

/// Decodes into memory of the stream whose memory the buffers are.
pub(super) fn decode<R: CubeRuntime>(
    client: &ComputeClient<R>,
    buffers: &PackedBuffers,
) -> Result<Handle, LaunchError> {
    let bytes = span_bytes(buffers.rows);
    let output = buffers.blob.stream.executes(|| client.empty(bytes));
    decode_into(client, buffers, output.clone())?;
    Ok(output)
}

/// Decodes on the stream whose memory the buffers are, whichever thread asks.
pub(super) fn decode_into<R: CubeRuntime>(
    client: &ComputeClient<R>,
    buffers: &PackedBuffers,
    output: Handle,
) -> Result<(), LaunchError> {
    let (blob, spill) = (buffers.blob.clone(), buffers.spill.clone());
    buffers
        .blob
        .stream
        .executes(|| launch::decode(client, blob, spill, &buffers.layout, output, buffers.rows))
}

/// A buffer of so many bytes. Tensors of a shape have it in few sizes, by the [predictions](crate::store::predict).
pub(in crate::store) fn buffer<R: CubeRuntime>(client: &ComputeClient<R>, bytes: u64) -> Handle {
    let room = aligned(bytes);
    client.empty(room as usize).offset_end(room - bytes)
}

/// A copy of a buffer, with its room, on another device.
pub(super) fn moved<R: CubeRuntime>(
    from: &R::CubeDevice,
    buffer: Handle,
    to: &R::CubeDevice,
) -> Handle {
    // With all of its room, so that both devices' allocators see the same few sizes.
    let room = buffer.offset_end.unwrap_or(0);
    let mut whole = buffer;
    whole.offset_end = None;
    let mut owner = R::client(from);
    // SAFETY: it is the stream that the buffer belongs to, and all that is asked of it is to read that buffer.
    unsafe { owner.set_stream(whole.stream) };
    let word = cubecl::ir::ElemType::UInt(cubecl::ir::UIntKind::U32);
    let (stream, sent) = (whole.stream, whole.clone());
    streams::send::<R, _>(from, stream, to, || {
        owner.to_client(sent, &R::client(to), word)
    })
    .offset_end(room)
}

/// Copies the used words into a buffer of their size, on the stream that they belong to.
pub(super) fn trimmed<R: CubeRuntime>(
    client: &ComputeClient<R>,
    worst_case: Handle,
    words: usize,
) -> Handle {
    let stream = worst_case.stream;
    stream.executes(|| copied(client, worst_case, words))
}

fn copied<R: CubeRuntime>(client: &ComputeClient<R>, worst_case: Handle, words: usize) -> Handle {
    let bytes = 4 * words as u64;
    let room = rounded(bytes);
    let exact = client.empty(room as usize).offset_end(room - bytes);
    streams::copy_words(client, worst_case, exact.clone(), words);
    exact
}

/// Waits until the allocator has found memory for the buffers, or says that there is none. Memory that could not be had is
/// otherwise noticed when what should lie there is looked for, and the dense tensor is gone by then.
pub(in crate::store) fn confirm<'a, R: CubeRuntime>(
    client: &ComputeClient<R>,
    mut buffers: impl Iterator<Item = &'a Handle>,
) -> Result<(), String> {
    buffers.try_for_each(|buffer| {
        // CubeCL panics, here too, where its own thread does.
        let found = catch_unwind(AssertUnwindSafe(|| client.get_resource(buffer.clone())));
        let why = match found {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => PANICKED.to_string(),
        };
        let bytes = buffer.size();
        Err(format!(
            "the allocator has no memory for {bytes} bytes: {why}"
        ))
    })
}
