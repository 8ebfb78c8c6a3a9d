//! [`DistributedBackend`] for [`LctBackend`] (feature `distributed`): gradients are reduced over several devices as the backend
//! inside does it, and are managed again once they are there.
//!
//! A reduction is asked for before it has been done, and until [`sync_collective`](DistributedBackend::sync_collective) its
//! tensor holds no values: one that were packed in between would be packed as whatever the memory held. So a tensor that is
//! being reduced is out of the hot window, and enters it when the backend inside says that the reduction is done.

use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use burn_backend::distributed::{
    CollectiveTensor, DistributedBackend, DistributedConfig, DistributedParams, ReduceOperation,
    TensorRef,
};
use burn_backend::tensor::{Device, FloatTensor};
use burn_backend::{DeviceId, DeviceOps};

use crate::backend::LctBackend;
use crate::per_device;
use crate::store::PackedStore;
use crate::tensor::{LctTensor, Storage};

impl<B: PackedStore + DistributedBackend> DistributedBackend for LctBackend<B> {
    fn start_communication_server(devices: &[Device<Self>], config: DistributedConfig) {
        B::start_communication_server(devices, config);
    }

    fn close_communication_server(device: &Device<Self>) {
        B::close_communication_server(device);
    }

    fn register_sync_parameters(device: &Device<Self>, distributed_params: Vec<DistributedParams>) {
        InFlight::<B>::of(device).forget_gradients();
        B::register_sync_parameters(device, distributed_params);
    }

    fn submit_sync_collective(device: &Device<Self>) {
        B::submit_sync_collective(device);
        InFlight::<B>::of(device).land();
    }

    fn submit_gradient_sync(tensor: TensorRef<Self>, distributed_params: DistributedParams) {
        // SAFETY: who submits a gradient lets nobody else look at it before `submit_sync_collective` has returned.
        let gradient = unsafe { &mut *tensor.0 };
        let device = gradient.device();
        let (lent, managed) = gradient.lend();
        let lent = TensorRef::<B>(lent);
        if managed {
            InFlight::<B>::of(&device).gradients().push(tensor);
        }
        B::submit_gradient_sync(lent, distributed_params);
    }

    fn all_reduce(
        tensor: FloatTensor<Self>,
        op: ReduceOperation,
        device_ids: Vec<DeviceId>,
    ) -> CollectiveTensor<Self> {
        let device = tensor.device();
        let reduced = B::all_reduce(tensor.dense(), op, device_ids);
        // SAFETY: what comes back is a collective tensor again, and nothing looks at its values before.
        let (tensor, storage) = LctTensor::in_flight(unsafe { reduced.assume_resolved() });
        if let Some(storage) = storage {
            InFlight::<B>::of(&device).reduced().push(storage);
        }
        CollectiveTensor::new(tensor)
    }

    fn sync_collective(device: &Device<Self>) {
        B::sync_collective(device);
        InFlight::<B>::of(device).land();
    }

    unsafe fn comm_device(tensor: &TensorRef<Self>) -> Device<Self> {
        // SAFETY: the caller's promise is the same.
        unsafe { &*tensor.0 }.device()
    }

    unsafe fn float_from_ref(tensor: &TensorRef<Self>) -> FloatTensor<Self> {
        // SAFETY: the caller's promise is the same.
        unsafe { &*tensor.0 }.clone()
    }
}

/// The tensors of one device that are being reduced.
struct InFlight<B: PackedStore> {
    /// Gradients that the backend inside writes where they lie.
    gradients: Mutex<Vec<TensorRef<LctBackend<B>>>>,
    /// Results of `all_reduce`.
    reduced: Mutex<Vec<Weak<Storage<B>>>>,
}

impl<B: PackedStore> InFlight<B> {
    fn of(device: &Device<B>) -> &'static Self {
        per_device::get(device.id(), || Self {
            gradients: Mutex::default(),
            reduced: Mutex::default(),
        })
    }

    fn gradients(&self) -> MutexGuard<'_, Vec<TensorRef<LctBackend<B>>>> {
        self.gradients
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn reduced(&self) -> MutexGuard<'_, Vec<Weak<Storage<B>>>> {
        self.reduced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the gradients of a backward pass that did not come to its end: they are gone with it.
    fn forget_gradients(&self) {
        self.gradients().clear();
    }

    /// The device's reductions are done: their tensors may be packed from now on.
    fn land(&self) {
        // The locks are released before the backend is called.
        let gradients = std::mem::take(&mut *self.gradients());
        let reduced = std::mem::take(&mut *self.reduced());
        for gradient in gradients {
            // SAFETY: the backward pass that submitted the gradient has not returned it yet, and began after
            // `forget_gradients`.
            unsafe { &mut *gradient.0 }.take_back();
        }
        for storage in reduced.iter().filter_map(Weak::upgrade) {
            storage.residency.admit(&storage);
        }
    }
}

#[cfg(all(test, feature = "wgpu"))]
mod tests {
    use burn_backend::TensorData;
    use burn_backend::ops::FloatTensorOps;
    use burn_wgpu::{Wgpu, WgpuDevice};

    use super::*;
    use crate::samples;
    use crate::tensor::natural_break;
    use crate::{HotWindow, LctConfig, MemoryReport};

    type P = Wgpu<f32, i32, u32>;
    type B = LctBackend<P>;

    const BYTES: u64 = 128 << 10;

    fn data(seed: usize) -> TensorData {
        samples::data(seed, [64, 1024])
    }

    fn bits(tensor: &LctTensor<P>) -> TensorData {
        cubecl::future::block_on(B::float_into_data(tensor.clone())).unwrap()
    }

    /// The devices that reduce are CUDA's. What surrounds the reduction is not, and here this test is in its place.
    #[test]
    fn what_is_being_reduced_is_packed_when_it_is_there() {
        let device = WgpuDevice::Cpu;
        let config = LctConfig::default()
            .with_hot_window(HotWindow::Bytes(0))
            .with_min_elements(1024);
        B::configure(&device, config).unwrap();
        let fresh = |seed| P::float_from_data(data(seed), &device);
        // Where a lazy backend packs what is in the window.
        let report = || -> MemoryReport {
            natural_break::<P>(&device);
            B::settle(&device);
            B::memory_report(&device)
        };
        let in_flight = InFlight::<P>::of(&device);

        let (result, storage) = LctTensor::<P>::in_flight(fresh(1));
        in_flight.reduced().extend(storage);
        let before = report();
        assert_eq!((before.encodes, before.window_bytes), (0, BYTES));
        in_flight.land();
        let after = report();
        assert_eq!((after.encodes, after.window_bytes), (1, 0));
        assert_eq!(bits(&result), data(1));
        drop(result);

        let mut gradient = LctTensor::<P>::new(fresh(2));
        assert_eq!(report().encodes, 2);
        let (lent, managed) = gradient.lend();
        assert!(managed);
        assert_eq!(bits_of_plain(lent), data(2));
        let lent: *mut FloatTensor<P> = lent;
        in_flight.gradients().push(TensorRef(&raw mut gradient));
        assert_eq!(report().logical_bytes, 0, "nobody packs it now");
        // SAFETY: the gradient lives, and nobody else looks at it.
        unsafe { *lent = fresh(3) };
        in_flight.land();
        let back = report();
        assert_eq!((back.logical_bytes, back.encodes), (BYTES, 3));
        assert_eq!(bits(&gradient), data(3));

        // A pass that ended early left a gradient that is gone.
        let mut lost = Box::new(LctTensor::<P>::new(fresh(4)));
        lost.lend();
        in_flight.gradients().push(TensorRef(&raw mut *lost));
        drop(lost);
        in_flight.forget_gradients();
        in_flight.land();
        drop(gradient);
        assert_eq!(report().logical_bytes, 0);
    }

    fn bits_of_plain(tensor: &FloatTensor<P>) -> TensorData {
        cubecl::future::block_on(P::float_into_data(tensor.clone())).unwrap()
    }
}
