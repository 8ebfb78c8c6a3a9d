//! An optimizer's step in a fusion stream: one custom operation, on dense tensors or on packed ones.
//!
//! It ends the fused run before it, as a matrix product does. Its operands are consumed where the caller gave up the last
//! handle, so the kernel works in place as an unfused backend's would.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use burn_backend::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::fusion::FusionCubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{FusionHandle, FusionTensor};
use burn_ir::{BackendIr, CustomOpIr, HandleContainer, OperationIr, TensorIr};
use lct_kernels::optim::Update;

use super::cube::CubePacked;
use super::{Operands, PackRequest, cube_update};

/// Where a packed form is left.
type Slot<R> = Arc<OnceLock<CubePacked<R>>>;

/// Queues the step; returns the tensors that it is going to make.
pub(super) fn update<B, R>(
    update: &Update,
    operands: Operands<FusionTensor<FusionCubeRuntime<R>>>,
) -> Vec<FusionTensor<FusionCubeRuntime<R>>>
where
    R: CubeRuntime,
    B: BackendIr<Handle = FusionHandle<FusionCubeRuntime<R>>, FloatTensorPrimitive = CubeTensor<R>>,
{
    let client = operands.weight.client.clone();
    let shape: Shape = operands.weight.shape.clone();
    let tensors = operands.into_vec();
    let streams = OperationStreams::with_inputs(&tensors);
    let inputs: Vec<TensorIr> = tensors.into_iter().map(FusionTensor::into_ir).collect();
    let outputs: Vec<TensorIr> = (0..1 + update.chain.states())
        .map(|_| TensorIr::uninit(client.create_empty_handle(), shape.clone(), DType::BF16))
        .collect();
    let operation = Step::<B, R> {
        update: *update,
        inputs: inputs.clone(),
        outputs: outputs.clone(),
        backend: PhantomData,
    };
    client.register(
        streams,
        OperationIr::Custom(CustomOpIr::new("lct_update", &inputs, &outputs)),
        operation,
    )
}

/// Takes the operands out of the stream, does the step, and puts the results in.
struct Step<B, R: CubeRuntime> {
    update: Update,
    inputs: Vec<TensorIr>,
    outputs: Vec<TensorIr>,
    backend: PhantomData<(B, fn() -> R)>,
}

impl<B, R> Operation<FusionCubeRuntime<R>> for Step<B, R>
where
    R: CubeRuntime,
    B: BackendIr<Handle = FusionHandle<FusionCubeRuntime<R>>, FloatTensorPrimitive = CubeTensor<R>>,
{
    fn execute(&self, handles: &mut HandleContainer<FusionHandle<FusionCubeRuntime<R>>>) {
        let mut tensors = (self.inputs.iter()).map(|input| handles.get_float_tensor::<B>(input));
        let mut next = || tensors.next().expect("gradient and weight are there");
        let (gradient, weight) = (next(), next());
        let operands = Operands {
            gradient,
            weight,
            states: tensors.collect(),
        };
        let new = cube_update::update(&self.update, operands);
        for (output, tensor) in self.outputs.iter().zip(new) {
            handles.register_float_tensor::<B>(&output.id, tensor);
        }
    }
}

impl<B, R: CubeRuntime> std::fmt::Debug for Step<B, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Step")
            .field("update", &self.update)
            .field("inputs", &self.inputs)
            .finish_non_exhaustive()
    }
}

/// Queues a step on packed forms that are there, and that leaves its results in the slots.
pub(super) fn update_packed<B, R>(
    update: &Update,
    gradient: FusionTensor<FusionCubeRuntime<R>>,
    old: &[&CubePacked<R>],
    slots: Vec<Slot<R>>,
    request: &PackRequest,
) where
    R: CubeRuntime,
    B: BackendIr<Handle = FusionHandle<FusionCubeRuntime<R>>, FloatTensorPrimitive = CubeTensor<R>>,
{
    let client = gradient.client.clone();
    let streams = OperationStreams::with_inputs([&gradient]);
    let gradient = gradient.into_ir();
    let operation = PackedStep::<B, R> {
        update: *update,
        gradient: gradient.clone(),
        old: Mutex::new(old.iter().map(|old| CubePacked(old.0.clone())).collect()),
        slots,
        request: request.clone(),
        backend: PhantomData,
    };
    client.register(
        streams,
        OperationIr::Custom(CustomOpIr::new("lct_update_packed", &[gradient], &[])),
        operation,
    );
}

/// Takes the gradient out of the stream and does the step.
struct PackedStep<B, R: CubeRuntime> {
    update: Update,
    gradient: TensorIr,
    /// Given up when the step has been launched.
    old: Mutex<Vec<CubePacked<R>>>,
    slots: Vec<Slot<R>>,
    request: PackRequest,
    backend: PhantomData<fn() -> B>,
}

impl<B, R> Operation<FusionCubeRuntime<R>> for PackedStep<B, R>
where
    R: CubeRuntime,
    B: BackendIr<Handle = FusionHandle<FusionCubeRuntime<R>>, FloatTensorPrimitive = CubeTensor<R>>,
{
    fn execute(&self, handles: &mut HandleContainer<FusionHandle<FusionCubeRuntime<R>>>) {
        let gradient = handles.get_float_tensor::<B>(&self.gradient);
        let old = std::mem::take(&mut *self.old.lock().unwrap_or_else(PoisonError::into_inner));
        let old: Vec<&CubePacked<R>> = old.iter().collect();
        let new = CubePacked::update(&self.update, gradient, &old, &self.request);
        for (slot, packed) in self.slots.iter().zip(new) {
            slot.get_or_init(|| packed);
        }
    }
}

impl<B, R: CubeRuntime> std::fmt::Debug for PackedStep<B, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedStep")
            .field("update", &self.update)
            .field("gradient", &self.gradient)
            .finish_non_exhaustive()
    }
}
