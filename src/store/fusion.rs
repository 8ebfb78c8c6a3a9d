//! [`PackedStore`] for `Fusion<CubeBackend>`, which must not change what burn-fusion fuses.
//!
//! burn-fusion keeps operations in a lazy stream and compiles runs of them into one kernel. In such a kernel the
//! compiler may contract a multiplication and an addition, so a run that is cut elsewhere gives other bits. Hence:
//!
//! - **Packing** is a custom operation, one for a batch of tensors. The residency asks for it at *natural breaks*,
//!   beside matrix products, where the run before is closed anyway; and the tensors are the ones that were not used for
//!   longest, whose producers have long been executed.
//! - **Unpacking** leaves no trace in the stream: the decode kernel runs at once, its output is registered as a handle,
//!   and a [shell](Shells) stands for it, as if the operation that made it had been executed before.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use burn_backend::tensor::{Device, FloatTensor};
use burn_backend::{DType, DeviceOps, Shape, StreamId};
use burn_cubecl::fusion::FusionCubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_fusion::client::GlobalFusionClient;
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{Fusion, FusionHandle, FusionTensor, get_client};
use burn_ir::{BackendIr, CustomOpIr, HandleContainer, OperationIr, TensorIr, TensorStatus};
use burn_std::Metadata;
use lct_kernels::optim::Update;

use super::cube::{self, CubePacked};
use super::reserve::Reserve;
use super::{Cheap, Operands, PackRequest, PackedStore};
use crate::per_device;

type Client<R> = GlobalFusionClient<FusionCubeRuntime<R>>;
pub(super) type Slot<R> = Arc<OnceLock<CubePacked<R>>>;

/// What an operation of a stream leaves, once it has been executed.
pub struct Pending<T, R: CubeRuntime> {
    client: Client<R>,
    stream: StreamId,
    slot: Arc<OnceLock<T>>,
}

impl<T, R: CubeRuntime> Pending<T, R> {
    /// What an operation of this thread's stream is going to leave.
    fn new(client: &Client<R>) -> Self {
        Self {
            client: client.clone(),
            stream: StreamId::current(),
            slot: Arc::default(),
        }
    }

    fn get(&self) -> &T {
        self.slot.get().unwrap_or_else(|| {
            // It is still in the queue.
            self.stream.executes(|| self.client.sync(|| ()));
            self.slot
                .get()
                .expect("a drained stream has executed its operations")
        })
    }
}

/// A fusion tensor in packed form, which exists as soon as the stream has got to its pack operation.
pub struct FusionPacked<R: CubeRuntime> {
    shape: Shape,
    packed: Pending<CubePacked<R>, R>,
}

impl<R, F, I, BT> PackedStore for Fusion<CubeBackend<R, F, I, BT>>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    type Packed = FusionPacked<R>;
    type Eager = CubeBackend<R, F, I, BT>;
    type Layout = Pending<Metadata, R>;
    type Lifted = Pending<CubeTensor<R>, R>;

    const LAZY: bool = true;

    fn again(op: Cheap, operands: Vec<CubeTensor<R>>) -> CubeTensor<R> {
        CubeBackend::<R, F, I, BT>::again(op, operands)
    }

    fn update(update: &Update, operands: Operands<FloatTensor<Self>>) -> Vec<FloatTensor<Self>> {
        super::fusion_update::update::<CubeBackend<R, F, I, BT>, R>(update, operands)
    }

    fn update_packed(
        update: &Update,
        gradient: FloatTensor<Self>,
        old: &[&FusionPacked<R>],
        request: &PackRequest,
    ) -> Result<Vec<FusionPacked<R>>, FloatTensor<Self>> {
        // The run before ends here in any case, so what is still queued may be asked for.
        let old: Vec<&CubePacked<R>> = old.iter().map(|packed| packed.packed.get()).collect();
        if !CubePacked::updatable(&old, request) {
            return Err(gradient);
        }
        let new: Vec<FusionPacked<R>> = old
            .iter()
            .map(|_| FusionPacked {
                shape: gradient.shape.clone(),
                packed: Pending::new(&gradient.client),
            })
            .collect();
        let slots = new.iter().map(|packed| packed.packed.slot.clone());
        super::fusion_update::update_packed::<CubeBackend<R, F, I, BT>, R>(
            update,
            gradient,
            &old,
            slots.collect(),
            request,
        );
        Ok(new)
    }

    fn pads_rows(device: &Device<Self>, row_len: usize) -> bool {
        CubeBackend::<R, F, I, BT>::pads_rows(device, row_len)
    }

    fn tidy(device: &Device<Self>) {
        CubeBackend::<R, F, I, BT>::tidy(device);
    }

    fn room(device: &Device<Self>) -> Option<u64> {
        CubeBackend::<R, F, I, BT>::room(device)
    }

    fn claim(device: &Device<Self>, again: bool) {
        CubeBackend::<R, F, I, BT>::claim(device, again);
    }

    fn pack(tensors: Vec<FloatTensor<Self>>, request: &PackRequest) -> Vec<FusionPacked<R>> {
        let Some(first) = tensors.first() else {
            return Vec::new();
        };
        let client = first.client.clone();
        let packed: Vec<FusionPacked<R>> = tensors
            .iter()
            .map(|tensor| FusionPacked {
                shape: tensor.shape.clone(),
                packed: Pending::new(&client),
            })
            .collect();
        let streams = OperationStreams::with_inputs(&tensors);
        let inputs: Vec<TensorIr> = tensors.into_iter().map(FusionTensor::into_ir).collect();
        inputs
            .iter()
            .for_each(|input| request.stats.queue_add(bytes(input)));
        let operation = Pack::<CubeBackend<R, F, I, BT>, R> {
            inputs: inputs.clone(),
            slots: packed
                .iter()
                .map(|packed| packed.packed.slot.clone())
                .collect(),
            request: request.clone(),
            backend: PhantomData,
        };
        client.register(
            streams,
            OperationIr::Custom(CustomOpIr::new("lct_pack", &inputs, &[])),
            operation,
        );
        packed
    }

    fn unpack(packed: &FusionPacked<R>) -> CubeTensor<R> {
        packed.packed.get().unpack()
    }

    fn from_eager(tensor: CubeTensor<R>) -> FloatTensor<Self> {
        let client = get_client::<CubeBackend<R, F, I, BT>>(&tensor.device);
        let mut shell = Shells::<R>::of(client.device()).take(&client);
        shell.shape = tensor.meta.shape().clone();
        shell.dtype = DType::BF16;
        shell.stream = StreamId::current();
        shell.id =
            client.register_tensor_handle(CubeBackend::<R, F, I, BT>::float_tensor_handle(tensor));
        shell
    }

    fn to_eager(tensor: FloatTensor<Self>) -> CubeTensor<R> {
        let client = tensor.client.clone();
        client.resolve_tensor_float::<CubeBackend<R, F, I, BT>>(tensor)
    }

    fn lift(tensor: FloatTensor<Self>) -> Self::Lifted {
        consume::<CubeBackend<R, F, I, BT>, R, _>("lct_lift", tensor, |tensor| tensor)
    }

    fn lifted(tensor: &Self::Lifted) -> CubeTensor<R> {
        tensor.get().clone()
    }

    fn release(tensor: FloatTensor<Self>) -> Self::Layout {
        consume::<CubeBackend<R, F, I, BT>, R, _>("lct_release", tensor, |tensor| *tensor.meta)
    }

    fn lay_out(tensor: CubeTensor<R>, layout: &Self::Layout) -> CubeTensor<R> {
        cube::lay_out(tensor, layout.get())
    }

    fn is_dense(packed: &FusionPacked<R>) -> bool {
        packed.packed.slot.get().is_some_and(CubePacked::is_dense)
    }

    fn check(packed: &FusionPacked<R>) {
        if let Some(packed) = packed.packed.slot.get() {
            packed.check();
        }
    }

    fn take_error(device: &Device<Self>) -> Option<String> {
        Reserve::<R>::of(device).take_error()
    }

    fn packs_here(tensor: &FloatTensor<Self>) -> bool {
        tensor.stream == StreamId::current()
    }

    fn ask_statuses(device: &Device<Self>) {
        Reserve::<R>::of(device).ask();
    }

    fn take_statuses(device: &Device<Self>) {
        Reserve::<R>::of(device).take();
    }

    fn settle(device: &Device<Self>) {
        let client = get_client::<CubeBackend<R, F, I, BT>>(device);
        client.sync(|| ());
        Reserve::<R>::of(device).settle_all();
    }
}

/// Takes a tensor out of the stream and leaves what `keep` makes of it.
fn consume<B, R, T>(
    name: &'static str,
    tensor: FusionTensor<FusionCubeRuntime<R>>,
    keep: fn(CubeTensor<R>) -> T,
) -> Pending<T, R>
where
    R: CubeRuntime,
    B: BackendIr<Handle = FusionHandle<FusionCubeRuntime<R>>, FloatTensorPrimitive = CubeTensor<R>>,
    T: Send + Sync + 'static,
{
    let pending = Pending::new(&tensor.client);
    let streams = OperationStreams::with_inputs([&tensor]);
    let input = tensor.into_ir();
    let operation = Consume::<B, R, T> {
        input: input.clone(),
        keep,
        slot: pending.slot.clone(),
        backend: PhantomData,
    };
    pending.client.register(
        streams,
        OperationIr::Custom(CustomOpIr::new(name, &[input], &[])),
        operation,
    );
    pending
}

struct Consume<B, R: CubeRuntime, T> {
    input: TensorIr,
    keep: fn(CubeTensor<R>) -> T,
    slot: Arc<OnceLock<T>>,
    backend: PhantomData<B>,
}

impl<B, R, T> Operation<FusionCubeRuntime<R>> for Consume<B, R, T>
where
    R: CubeRuntime,
    B: BackendIr<Handle = FusionHandle<FusionCubeRuntime<R>>, FloatTensorPrimitive = CubeTensor<R>>,
    T: Send + Sync + 'static,
{
    fn execute(&self, handles: &mut HandleContainer<FusionHandle<FusionCubeRuntime<R>>>) {
        let tensor = handles.get_float_tensor::<B>(&self.input);
        self.slot.get_or_init(|| (self.keep)(tensor));
    }
}

impl<B, R: CubeRuntime, T> std::fmt::Debug for Consume<B, R, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consume")
            .field("input", &self.input)
            .finish_non_exhaustive()
    }
}

/// Takes the dense tensors out of the stream and packs them.
struct Pack<B, R: CubeRuntime> {
    inputs: Vec<TensorIr>,
    slots: Vec<Slot<R>>,
    request: PackRequest,
    backend: PhantomData<B>,
}

impl<R, F, I, BT> Operation<FusionCubeRuntime<R>> for Pack<CubeBackend<R, F, I, BT>, R>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    fn execute(
        &self,
        handles: &mut HandleContainer<<CubeBackend<R, F, I, BT> as BackendIr>::Handle>,
    ) {
        for (input, slot) in self.inputs.iter().zip(&self.slots) {
            let tensor = handles.get_float_tensor::<CubeBackend<R, F, I, BT>>(input);
            slot.get_or_init(|| CubePacked::pack(tensor, &self.request));
            self.request.stats.queue_sub(bytes(input));
        }
    }
}

/// Logical bytes of a BF16 tensor.
fn bytes(tensor: &TensorIr) -> u64 {
    2 * tensor.shape.num_elements() as u64
}

impl<B, R: CubeRuntime> std::fmt::Debug for Pack<B, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pack")
            .field("inputs", &self.inputs)
            .finish_non_exhaustive()
    }
}

impl<R: CubeRuntime> std::fmt::Debug for FusionPacked<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FusionPacked")
            .field("shape", &self.shape)
            .field("packed", &self.packed.slot.get())
            .finish_non_exhaustive()
    }
}

/// Fusion tensors without a value, made in advance.
///
/// Outside of burn-fusion a tensor can only be made as the output of an operation, and an operation in a stream may close a
/// fused run. So shells are made in bulk on a stream of their own, where nothing is ever fused, and given the id of a
/// registered handle and the stream of their user when they are needed.
struct Shells<R: CubeRuntime> {
    stream: StreamId,
    stock: Mutex<Vec<FusionTensor<FusionCubeRuntime<R>>>>,
}

impl<R: CubeRuntime> Shells<R> {
    /// How many are made at a time.
    const BATCH: usize = 256;

    fn of(device: &R::CubeDevice) -> &'static Self {
        per_device::get(device.id(), || Self {
            // A stream belongs to a thread; this one's has ended when others use it.
            stream: std::thread::spawn(StreamId::current)
                .join()
                .expect("asking for a thread's stream does not panic"),
            stock: Mutex::default(),
        })
    }

    fn take(&self, client: &Client<R>) -> FusionTensor<FusionCubeRuntime<R>> {
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        if stock.is_empty() {
            *stock = self.stream.executes(|| make_shells(client, Self::BATCH));
        }
        stock.pop().expect("a fresh batch is not empty")
    }
}

fn make_shells<R: CubeRuntime>(
    client: &Client<R>,
    count: usize,
) -> Vec<FusionTensor<FusionCubeRuntime<R>>> {
    let mut outputs: Vec<TensorIr> = (0..count)
        .map(|_| TensorIr::uninit(client.create_empty_handle(), Shape::new([1]), DType::BF16))
        .collect();
    let shells = client.register(
        OperationStreams::default(),
        OperationIr::Custom(CustomOpIr::new("lct_shells", &[], &outputs)),
        Nothing,
    );
    // The ids with which the shells were made are consumed at once, so that the stream forgets them.
    for output in &mut outputs {
        output.status = TensorStatus::ReadWrite;
    }
    client.register(
        OperationStreams::default(),
        OperationIr::Custom(CustomOpIr::new("lct_shells_made", &outputs, &[])),
        Nothing,
    );
    shells
}

/// An operation that does nothing.
#[derive(Debug)]
struct Nothing;

impl<R: CubeRuntime> Operation<FusionCubeRuntime<R>> for Nothing {
    fn execute(&self, _handles: &mut HandleContainer<FusionHandle<FusionCubeRuntime<R>>>) {}
}
