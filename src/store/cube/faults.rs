//! Faults in encodes of a CubeCL device, for tests.

use burn_cubecl::CubeRuntime;
use cubecl::client::ComputeClient;
use cubecl::server::Handle;

use super::{PackedBuffers, buffer};
use crate::store::inject::{Fault, flipped_bit};

/// What goes wrong before the encode is queued.
pub(super) fn before<R: CubeRuntime>(
    client: &ComputeClient<R>,
    buffers: &mut PackedBuffers,
    fault: Option<Fault>,
) {
    let bytes = buffers.layout.blob_bytes();
    match fault {
        Some(Fault::NoMemory) => buffers.blob = beyond_memory(client, bytes),
        Some(Fault::Refused) => buffers.blob = client.empty(4),
        _ => {}
    }
}

/// What goes wrong after the encode.
pub(super) fn after<R: CubeRuntime>(
    client: &ComputeClient<R>,
    buffers: &mut PackedBuffers,
    fault: Option<Fault>,
) {
    match fault {
        Some(Fault::NotRun) => {
            let other = buffer(client, buffers.layout.blob_bytes());
            // Never freed, or the other one could get its memory.
            std::mem::forget(std::mem::replace(&mut buffers.blob, other));
        }
        Some(Fault::FlippedBit) => {
            let bytes = client.read_one(buffers.blob.clone()).unwrap();
            let mut words: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
            let (word, bit) = flipped_bit(&buffers.layout);
            words[word] ^= bit;
            buffers.blob = client.create_from_slice(bytemuck::cast_slice(&words));
        }
        _ => {}
    }
}

/// A buffer of which the allocator will find, later and on the device's own thread, that there is no room for it.
fn beyond_memory<R: CubeRuntime>(client: &ComputeClient<R>, bytes: u64) -> Handle {
    const ROOM: u64 = 1 << 60;
    client.empty(ROOM as usize).offset_end(ROOM - bytes)
}
