//! [`LctBackend`]: the type a user writes around a backend, and what it says of itself.
//!
//! Devices, element types and the int, bool and quantized tensors are those of the backend inside;
//! only the float tensors are [`LctTensor`]s.

use std::marker::PhantomData;

use burn_backend::tensor::Device;
use burn_backend::{Backend, BackendTypes, DType, DTypeUsageSet, ExecutionError, TensorData};

use crate::store::PackedStore;
use crate::tensor::{LctTensor, before_result, defer_evictions, with_errors_of};

/// The backend `B` with its float tensors kept losslessly compressed.
///
/// Every operation is `B`'s own and gives the same bits; between operations the tensors are packed
/// as the device's configuration says. Put it where `B` stood:
///
/// ```
/// # #[cfg(feature = "flex")] {
/// use burn_autodiff::Autodiff;
/// use burn_flex::Flex;
/// use burn_lct::LctBackend;
///
/// type Plain = Flex; // or Cuda<bf16, i32>
/// type Train = Autodiff<LctBackend<Plain>>; // was Autodiff<Plain>
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct LctBackend<B>(PhantomData<B>);

impl<B: PackedStore> BackendTypes for LctBackend<B> {
    type Device = B::Device;

    type FloatTensorPrimitive = LctTensor<B>;
    type FloatElem = B::FloatElem;

    type IntTensorPrimitive = B::IntTensorPrimitive;
    type IntElem = B::IntElem;

    type BoolTensorPrimitive = B::BoolTensorPrimitive;
    type BoolElem = B::BoolElem;

    type QuantizedTensorPrimitive = B::QuantizedTensorPrimitive;
}

impl<B: PackedStore> Backend for LctBackend<B> {
    fn ad_enabled(device: &Device<Self>) -> bool {
        B::ad_enabled(device)
    }

    fn memory_persistent_allocations<
        Output: Send,
        Input: Send,
        Func: Fn(Input) -> Output + Send,
    >(
        device: &Device<Self>,
        input: Input,
        func: Func,
    ) -> Output {
        // Inside the window every allocation goes to pages that are kept for its exact size for
        // good. Packed buffers come in many sizes, so none may be made before the window closes.
        let output = B::memory_persistent_allocations(device, input, move |input| {
            let _guard = defer_evictions();
            func(input)
        });
        B::claim(device, true);
        output
    }

    fn memory_cleanup(device: &Device<Self>) {
        B::settle(device);
        B::memory_cleanup(device)
    }

    fn name(device: &Device<Self>) -> String {
        format!("lct<{}>", B::name(device))
    }

    fn seed(device: &Device<Self>, seed: u64) {
        B::seed(device, seed)
    }

    fn sync(device: &Device<Self>) -> Result<(), ExecutionError> {
        before_result::<B>(device);
        let result = B::sync(device);
        B::idle(device);
        B::take_statuses(device);
        with_errors_of::<B, _>(device, result)
    }

    fn staging<'a, Iter>(data: Iter, device: &Device<Self>)
    where
        Iter: Iterator<Item = &'a mut TensorData>,
    {
        B::staging(data, device)
    }

    fn supports_dtype(device: &Device<Self>, dtype: DType) -> bool {
        B::supports_dtype(device, dtype)
    }

    fn dtype_usage(device: &Device<Self>, dtype: DType) -> DTypeUsageSet {
        B::dtype_usage(device, dtype)
    }

    fn device_count(type_id: u16) -> usize {
        B::device_count(type_id)
    }
}
