//! Memory of other threads' streams.
//!
//! Each thread has a stream, and each stream memory of its own. CubeCL 0.10 gives memory that was given up to the next buffer of
//! the stream that it belongs to, though a kernel of another stream that reads it may not have run yet. In plain Burn few
//! tensors are given up while another thread works with them; here the residency gives up any at any time. So
//!
//! - what reads memory in order to give it up (encodes, decodes that replace a form, trims) runs on the stream that it
//!   belongs to, whichever thread asks;
//! - a tensor that is handed to another thread than the one whose stream it belongs to is made anew in memory of that
//!   thread's stream, by a kernel of the owner's.

use burn_cubecl::{CubeRuntime, tensor::CubeTensor};
use cubecl::future::block_on;
use cubecl::server::{Handle, ServerCommunication};
use cubecl::{client::ComputeClient, prelude::TensorBinding, stream_id::StreamId};

use super::reserve::Reserve;

/// Lets this thread's stream wait for what another one has been asked to do.
pub(super) fn wait_for<R: CubeRuntime>(client: &ComputeClient<R>, other: StreamId) {
    if other == StreamId::current() {
        return;
    }
    // CubeCL lets a stream wait when it binds memory of another one that is younger than the last wait.
    let mark = other.executes(|| client.empty(16));
    copy_words(client, mark, client.empty(16), 4);
}

/// The tensor in memory of this thread's stream.
pub(super) fn here<R: CubeRuntime>(tensor: CubeTensor<R>) -> CubeTensor<R> {
    let owner = tensor.handle.stream;
    if owner == StreamId::current() {
        return tensor;
    }
    let client = &tensor.client;
    let words = tensor.handle.size_in_used().div_ceil(4) as usize;
    // Kernels read 16 bytes at a time.
    let copy = client.empty((4 * words).next_multiple_of(16));
    owner.executes(|| copy_words(client, tensor.handle.clone(), copy.clone(), words));
    wait_for(client, owner);
    CubeTensor::new(
        client.clone(),
        copy,
        (*tensor.meta).clone(),
        tensor.device.clone(),
        tensor.dtype,
    )
}

/// Sends memory of the stream `owner` to a buffer of this thread's stream on another device. Whoever calls it keeps a handle to
/// the memory until it returns.
///
/// CubeCL 0.10 sends and receives beside the streams of either device. Nothing keeps a stream from giving memory to others
/// before it has been sent, nor what arrives from being written over what kernels of this thread's stream still read.
pub(super) fn send<R: CubeRuntime, T>(
    from: &R::CubeDevice,
    owner: StreamId,
    to: &R::CubeDevice,
    send: impl FnOnce() -> T,
) -> T {
    if !<R::Server as ServerCommunication>::SERVER_COMM_ENABLED {
        return send();
    }
    let (sender, receiver) = (R::client(from), R::client(to));
    if let Err(error) = block_on(receiver.sync()) {
        // Reading it has taken it from those who wait for results, and CubeCL has not waited.
        Reserve::<R>::of(to).note(error.to_string());
        if let Err(error) = block_on(receiver.sync()) {
            tracing::error!(%error, "the device that a tensor moves to cannot be waited for");
        }
    }
    let sent = send();
    owner.executes(|| sender.sync_collective());
    // What this thread made in order to send it belongs to its own stream.
    if owner != StreamId::current() {
        sender.sync_collective();
    }
    // The streams do not wait before the server has got there.
    if let Err(error) = sender.exclusive(|| ()) {
        tracing::error!(%error, "the device that a tensor moves from does not answer");
    }
    sent
}

/// Copies the first words of a buffer, on this thread's stream.
pub(super) fn copy_words<R: CubeRuntime>(
    client: &ComputeClient<R>,
    from: Handle,
    to: Handle,
    words: usize,
) {
    let binding = |handle: Handle| TensorBinding::<R> {
        handle: handle.binding(),
        shape: [words].into(),
        strides: [1].into(),
        runtime: std::marker::PhantomData,
    };
    cubecl::std::tensor::copy_into(
        client,
        binding(from),
        binding(to),
        cubecl::ir::ElemType::UInt(cubecl::ir::UIntKind::U32).into(),
    );
}
