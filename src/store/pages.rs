//! How memory is asked for, so that the allocator holds little more than what is in use.
//!
//! CubeCL's pools cut large pages into pieces, one pool for each range of sizes, and a page that is half empty is no use
//! to another pool: plain Burn holds twice what it uses. Pages of exact sizes waste nothing, as long as the sizes repeat.
//! Tensors' sizes do, from step to step; packed forms are rounded to few sizes.

use std::cell::RefCell;

use burn_backend::{DeviceId, DeviceOps};
use burn_cubecl::CubeRuntime;
use cubecl::MemoryAllocationMode;
use cubecl::client::ComputeClient;

use super::Pages;

/// Buffers are a multiple of this, as the allocator has it.
const ALIGNMENT: u64 = 512;
/// Sizes between two powers of two.
const STEPS: u32 = 4;

/// So many bytes as the allocator counts them.
pub(super) fn aligned(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(ALIGNMENT)
}

/// The size that a buffer of any number of bytes gets: at most a sixteenth more, and one of few.
pub(super) fn rounded(bytes: u64) -> u64 {
    let step = bytes.max(1).ilog2().saturating_sub(STEPS);
    bytes.max(1).next_multiple_of((1 << step).max(ALIGNMENT))
}

thread_local! {
    /// The devices on which this thread's stream has exact pages.
    static EXACT: RefCell<Vec<DeviceId>> = const { RefCell::new(Vec::new()) };
}

/// Lets this thread's stream allocate pages of exact sizes; `again`, if something may have set it back.
pub(super) fn use_exact_pages<R: CubeRuntime>(device: &R::CubeDevice, again: bool) {
    let id = device.id();
    let known = EXACT.with_borrow(|devices| devices.contains(&id));
    if known && !again {
        return;
    }
    if !known {
        EXACT.with_borrow_mut(|devices| devices.push(id));
    }
    let client = R::client(device);
    if !has_exact_pages::<R>(&client) {
        return;
    }
    // SAFETY: the mode belongs to this thread's stream, and is set in the order of its other requests. What "might leak"
    // are pages of sizes that are not asked for again, which `memory_cleanup` frees.
    unsafe { client.allocation_mode(MemoryAllocationMode::Persistent) }
}

/// Gives pages that nobody uses back to the driver, in the order of this thread's stream.
pub(super) fn tidy<R: CubeRuntime>(device: &R::CubeDevice) {
    let client = R::client(device);
    if has_exact_pages::<R>(&client) {
        client.memory_cleanup();
    }
}

/// This thread's pages.
pub(super) fn held<R: CubeRuntime>(device: &R::CubeDevice) -> Option<Pages> {
    let client = R::client(device);
    if !has_exact_pages::<R>(&client) {
        return None;
    }
    let usage = client.memory_usage().ok()?;
    Some(Pages {
        held: usage.bytes_reserved,
        used: usage.bytes_in_use,
    })
}

/// Other runtimes have pools of another kind.
fn has_exact_pages<R: CubeRuntime>(client: &ComputeClient<R>) -> bool {
    R::name(client) == "cuda"
}

/// The driver's pool of a card, from which CubeCL allocates.
#[cfg(feature = "cuda")]
mod pool {
    use std::sync::Arc;

    use burn_backend::DeviceOps;
    use burn_cubecl::CubeRuntime;
    use cudarc::driver::sys::{CUmemPool_attribute as Attribute, CUmemoryPool};
    use cudarc::driver::{CudaContext, result};

    use crate::store::Room;

    /// The context that CubeCL uses too: the device's primary one.
    struct Context(Option<Arc<CudaContext>>);

    /// The pool that is the device's default, with its context bound to this thread.
    fn of<R: CubeRuntime>(device: &R::CubeDevice) -> Option<CUmemoryPool> {
        if !super::has_exact_pages::<R>(&R::client(device)) {
            return None;
        }
        let id = device.id();
        let open = || Context(CudaContext::new(id.index_id as usize).ok());
        let context = crate::per_device::get(id, open).0.as_ref()?;
        context.bind_to_thread().ok()?;
        // SAFETY: the device is the context's, which lives as long as the program.
        unsafe { result::device::get_default_mem_pool(context.cu_device()) }.ok()
    }

    /// What is free, in the pool and beside it.
    pub(in crate::store) fn room<R: CubeRuntime>(device: &R::CubeDevice) -> Option<Room> {
        let pool = of::<R>(device)?;
        let (free, _) = result::mem_get_info().ok()?;
        let reserved = bytes_of(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let drawn = bytes_of(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        Some(Room {
            free: free as u64,
            pooled: reserved.saturating_sub(drawn),
            drawn,
        })
    }

    /// The bytes that the pool has given out.
    pub(in crate::store) fn drawn<R: CubeRuntime>(device: &R::CubeDevice) -> Option<u64> {
        let pool = of::<R>(device)?;
        bytes_of(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    }

    /// An attribute of the pool that is a number of bytes.
    fn bytes_of(pool: CUmemoryPool, attribute: Attribute) -> Option<u64> {
        let mut bytes = 0u64;
        // SAFETY: the default pool lives as long as its device, and the attributes asked for are numbers of 64 bits.
        unsafe { result::mem_pool::get_attribute(pool, attribute, (&raw mut bytes).cast()) }
            .ok()?;
        Some(bytes)
    }

    /// Lets the pool keep so many bytes, buffers in use included, when the program waits for the card. By default it returns
    /// all that is not in use then, and getting it again takes time.
    pub(in crate::store) fn keep<R: CubeRuntime>(device: &R::CubeDevice, mut bytes: u64) {
        let Some(pool) = of::<R>(device) else {
            return;
        };
        // SAFETY: as in `room`.
        let kept = unsafe {
            result::mem_pool::set_attribute(
                pool,
                Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                (&raw mut bytes).cast(),
            )
        };
        if let Err(error) = kept {
            tracing::warn!(%error, "the driver gives memory back at every wait");
        }
    }
}

/// No driver tells how much room there is, or can be told to keep memory.
#[cfg(not(feature = "cuda"))]
mod pool {
    use burn_cubecl::CubeRuntime;

    use crate::store::Room;

    pub(in crate::store) fn room<R: CubeRuntime>(_device: &R::CubeDevice) -> Option<Room> {
        None
    }

    pub(in crate::store) fn drawn<R: CubeRuntime>(_device: &R::CubeDevice) -> Option<u64> {
        None
    }

    pub(in crate::store) fn keep<R: CubeRuntime>(_device: &R::CubeDevice, _bytes: u64) {}
}

pub(super) use pool::{drawn, keep, room};

/// Whether the runtime's allocator leaves gaps between rows of so many bytes, so that each begins at an aligned address.
pub(super) fn pads_rows<R: CubeRuntime>(device: &R::CubeDevice, row_bytes: usize) -> bool {
    let client = R::client(device);
    // wgpu's rows follow one another.
    if !matches!(R::name(&client), "cuda" | "hip") || row_bytes <= 2 {
        return false;
    }
    let buffer = client.properties().memory.alignment as usize;
    let align = row_bytes.next_power_of_two().clamp(16, buffer.max(16));
    !row_bytes.is_multiple_of(align)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_few_and_little_is_wasted() {
        assert_eq!(rounded(0), 512);
        assert_eq!(rounded(513), 1024);
        assert_eq!(rounded(100 << 20), 100 << 20);
        assert_eq!(rounded((100 << 20) + 1), 104 << 20);
        let sizes: std::collections::BTreeSet<u64> = (1..1 << 20).map(rounded).collect();
        assert!(sizes.len() < 200, "{}", sizes.len());
        for bytes in (8192u64..1 << 33).step_by(999_983) {
            let rounded = rounded(bytes);
            assert!(bytes <= rounded && (rounded - bytes) * 16 <= bytes);
        }
    }
}
