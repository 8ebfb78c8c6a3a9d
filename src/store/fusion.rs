//! [`PackedStore`] for `Fusion<CubeBackend>`, which must not change what burn-fusion fuses.
//!
//! burn-fusion keeps operations in a lazy stream and compiles runs of them into one kernel. In such a kernel the
//! compiler may contract a multiplication and an addition, so a run that is cut elsewhere gives other bits. Hence:
//!
//! - **Going to rest** (packing, lifting, releasing) happens [beside the stream](super::fusion_rest).
//! - **Unpacking** leaves no trace in the stream either: the decode kernel runs at once, its output is registered as a
//!   handle, and a [shell](Shells) stands for it, as if the operation that made it had been executed before.

use std::sync::{Arc, OnceLock};

use burn_backend::tensor::{Device, FloatTensor};
use burn_backend::{Backend, Shape, StreamId};
use burn_cubecl::fusion::FusionCubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_fusion::client::GlobalFusionClient;
use burn_fusion::{Fusion, FusionBackend, FusionTensor, get_client};
use burn_ir::BackendIr;
use burn_std::Metadata;
use lct_kernels::optim::Update;

use super::cube::CubePacked;
use super::cube_layout;
use super::fusion_rest::{self as rest, Fate, FusionBatch, Gate, Queued, Waiting};
use super::fusion_shells::Shells;
use super::reserve::Reserve;
use super::{Cheap, Operands, PackRequest, PackedStore, Pages, Room, streams};

type Client<R> = GlobalFusionClient<FusionCubeRuntime<R>>;

/// How often, a millisecond apart, an operation is looked for that another thread is about to queue.
const MOST_TRIES: u32 = 10_000;

/// What a tensor leaves that goes to rest, once it has left its stream.
pub struct Pending<T, R: CubeRuntime> {
    client: Client<R>,
    stream: StreamId,
    slot: Arc<OnceLock<T>>,
    /// The tensor, as long as it has not left.
    waiting: Option<Arc<Waiting<R>>>,
    force: fn(&Client<R>, StreamId),
}

impl<T, R: CubeRuntime> Pending<T, R> {
    /// What an operation of this thread's stream is going to leave.
    fn new<B: rest::Backend<R>>(client: &Client<R>) -> Self {
        Self {
            client: client.clone(),
            stream: StreamId::current(),
            slot: Arc::default(),
            waiting: None,
            force: |client, stream| Gate::<R>::of(client.device()).force::<B>(client, stream),
        }
    }

    /// What is there already.
    fn ready<B: rest::Backend<R>>(client: &Client<R>, value: T) -> Self {
        Self {
            slot: Arc::new(OnceLock::from(value)),
            ..Self::new::<B>(client)
        }
    }

    /// What this thread's tensor leaves as soon as the batch has left.
    fn gathered<B: rest::Backend<R>>(
        batch: &mut FusionBatch<R>,
        tensor: FusionTensor<FusionCubeRuntime<R>>,
        queued: Option<Queued>,
        fate: impl FnOnce(Arc<OnceLock<T>>) -> Fate<R>,
    ) -> Self {
        let pending = Self::new::<B>(&tensor.client);
        let waiting = batch.add(tensor, queued, fate(pending.slot.clone()));
        Self {
            waiting: Some(waiting),
            ..pending
        }
    }

    /// The tensor, if it has not left yet.
    fn reclaim(&self) -> Option<FusionTensor<FusionCubeRuntime<R>>> {
        self.waiting.as_ref()?.reclaim()
    }

    fn get(&self) -> &T {
        let found = || self.slot.get();
        if let Some(found) = found() {
            return found;
        }
        // The server may only lag behind. A stream in which nothing is queued waits for it and cuts no plans.
        let idle = Gate::<R>::of(self.client.device()).idle;
        idle.executes(|| self.client.sync(|| ()));
        for _ in 0..MOST_TRIES {
            if let Some(found) = found() {
                return found;
            }
            // It waits, is still in the queue, or is about to be put there by another thread.
            (self.force)(&self.client, self.stream);
            self.stream.executes(|| self.client.sync(|| ()));
            if found().is_none() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        panic!("an operation that was gathered was never queued: the thread that did so panicked");
    }
}

/// The tensor as the backend inside has it, for which its stream is executed.
fn resolve<R: CubeRuntime, F: FloatElement, I: IntElement, BT: BoolElement>(
    tensor: FusionTensor<FusionCubeRuntime<R>>,
) -> CubeTensor<R> {
    let client = tensor.client.clone();
    client.resolve_tensor_float::<CubeBackend<R, F, I, BT>>(tensor)
}

/// Lets the device's server launch what is queued for it, but for what waits to be fused. No plan is cut: only the stream is
/// executed in which there are none.
fn launch_queued<B, R>(device: &Device<B>)
where
    B: FusionBackend<FusionRuntime = FusionCubeRuntime<R>> + Backend<Device = R::CubeDevice>,
    R: CubeRuntime,
{
    let client = get_client::<B>(device);
    Gate::<R>::of(client.device())
        .idle
        .executes(|| client.sync(|| ()));
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
    type Leaving = Arc<Waiting<R>>;
    type Batch = FusionBatch<R>;

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
                packed: Pending::new::<CubeBackend<R, F, I, BT>>(&gradient.client),
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

    fn move_dense(tensor: FloatTensor<Self>, device: &Device<Self>) -> FloatTensor<Self> {
        // As Burn does: what the tensor's stream holds is executed.
        let tensor = resolve::<R, F, I, BT>(tensor);
        launch_queued::<CubeBackend<R, F, I, BT>, R>(device);
        Self::from_eager(CubeBackend::<R, F, I, BT>::move_dense(tensor, device))
    }

    fn moving<T>(from: &Device<Self>, to: &Device<Self>, moves: impl FnOnce() -> T) -> T {
        launch_queued::<CubeBackend<R, F, I, BT>, R>(to);
        CubeBackend::<R, F, I, BT>::moving(from, to, moves)
    }

    fn tidy(device: &Device<Self>) {
        CubeBackend::<R, F, I, BT>::tidy(device);
    }

    fn room(device: &Device<Self>) -> Option<Room> {
        CubeBackend::<R, F, I, BT>::room(device)
    }

    fn drawn(device: &Device<Self>) -> Option<u64> {
        CubeBackend::<R, F, I, BT>::drawn(device)
    }

    fn keep(device: &Device<Self>, bytes: u64) {
        CubeBackend::<R, F, I, BT>::keep(device, bytes);
    }

    fn pages(device: &Device<Self>) -> Option<Pages> {
        CubeBackend::<R, F, I, BT>::pages(device)
    }

    fn claim(device: &Device<Self>, again: bool) {
        CubeBackend::<R, F, I, BT>::claim(device, again);
    }

    fn pack(
        batch: &mut FusionBatch<R>,
        tensor: FloatTensor<Self>,
        request: &PackRequest,
    ) -> FusionPacked<R> {
        let shape = tensor.shape.clone();
        let queued = Queued::new(&request.stats, bytes(&shape));
        let fate = |slot| Fate::Pack(slot, request.clone());
        let queued = Some(queued);
        let packed = Pending::gathered::<CubeBackend<R, F, I, BT>>(batch, tensor, queued, fate);
        FusionPacked { shape, packed }
    }

    fn submit(batch: FusionBatch<R>) {
        batch.submit();
    }

    fn queued(result: &FloatTensor<Self>) {
        let gate = Gate::<R>::of(result.client.device());
        gate.queued::<CubeBackend<R, F, I, BT>>(result);
    }

    fn idle(device: &Device<Self>) {
        let client = get_client::<CubeBackend<R, F, I, BT>>(device);
        Gate::<R>::of(device).idle::<CubeBackend<R, F, I, BT>>(&client);
    }

    fn reclaim(packed: &FusionPacked<R>) -> Option<FloatTensor<Self>> {
        packed.packed.reclaim()
    }

    fn reclaim_lifted(lifted: &Self::Lifted) -> Option<FloatTensor<Self>> {
        lifted.reclaim()
    }

    fn reclaim_released(layout: &Self::Layout) -> Option<FloatTensor<Self>> {
        layout.reclaim()
    }

    fn relocate(
        packed: &FusionPacked<R>,
        device: &Device<Self>,
        request: &PackRequest,
    ) -> Option<FusionPacked<R>> {
        let Pending { client, stream, .. } = &packed.packed;
        // As Burn does before it moves a tensor: what its stream holds is executed.
        stream.executes(|| client.sync(|| ()));
        launch_queued::<CubeBackend<R, F, I, BT>, R>(device);
        let moved = packed.packed.get().relocate(device, request)?;
        let client = get_client::<CubeBackend<R, F, I, BT>>(device);
        Some(FusionPacked {
            shape: packed.shape.clone(),
            packed: Pending::ready::<CubeBackend<R, F, I, BT>>(&client, moved),
        })
    }

    fn unpack(packed: &FusionPacked<R>) -> CubeTensor<R> {
        packed.packed.get().unpack()
    }

    fn from_eager(tensor: CubeTensor<R>) -> FloatTensor<Self> {
        let client = get_client::<CubeBackend<R, F, I, BT>>(&tensor.device);
        let mut shell = Shells::<R>::of(client.device()).take(&client);
        shell.shape = tensor.meta.shape().clone();
        shell.dtype = tensor.dtype;
        shell.stream = StreamId::current();
        shell.id =
            client.register_tensor_handle(CubeBackend::<R, F, I, BT>::float_tensor_handle(tensor));
        shell
    }

    fn to_eager(tensor: FloatTensor<Self>) -> CubeTensor<R> {
        let gate = Gate::<R>::of(tensor.client.device());
        match gate.look::<CubeBackend<R, F, I, BT>>(&tensor) {
            Some(found) => found,
            None => resolve::<R, F, I, BT>(tensor),
        }
    }

    fn lift(batch: &mut FusionBatch<R>, tensor: FloatTensor<Self>) -> Self::Lifted {
        Pending::gathered::<CubeBackend<R, F, I, BT>>(batch, tensor, None, Fate::Lift)
    }

    fn lifted(tensor: &Self::Lifted) -> CubeTensor<R> {
        tensor.get().clone()
    }

    fn discard(batch: &mut FusionBatch<R>, tensor: FloatTensor<Self>) -> Arc<Waiting<R>> {
        batch.discard(tensor)
    }

    fn stay(leaving: &Arc<Waiting<R>>) -> Option<FloatTensor<Self>> {
        leaving.reclaim()
    }

    fn release(batch: &mut FusionBatch<R>, tensor: FloatTensor<Self>) -> Self::Layout {
        Pending::gathered::<CubeBackend<R, F, I, BT>>(batch, tensor, None, Fate::Release)
    }

    fn lay_out(tensor: CubeTensor<R>, layout: &Self::Layout) -> CubeTensor<R> {
        cube_layout::lay_out(tensor, layout.get())
    }

    fn here(tensor: CubeTensor<R>) -> CubeTensor<R> {
        streams::here(tensor)
    }

    fn tensor_here(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        if tensor.stream == StreamId::current() {
            tensor
        } else {
            // The other thread's stream is executed up to here, as plain Burn does when it sees the tensor.
            Self::from_eager(Self::here(resolve::<R, F, I, BT>(tensor)))
        }
    }

    fn is_home(packed: &FusionPacked<R>) -> bool {
        packed.packed.get().is_home()
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
        // What waits to be packed leaves the stream, too.
        Self::idle(device);
        client.sync(|| ());
        Reserve::<R>::of(device).settle_all();
    }
}

/// Logical bytes of a BF16 tensor.
fn bytes(shape: &Shape) -> u64 {
    2 * shape.num_elements() as u64
}

impl<R: CubeRuntime> std::fmt::Debug for FusionPacked<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FusionPacked")
            .field("shape", &self.shape)
            .field("packed", &self.packed.slot.get())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "wgpu"))]
mod tests {
    use burn_backend::ops::FloatTensorOps;
    use burn_backend::{TensorData, TensorMetadata};
    use burn_wgpu::{Wgpu, WgpuDevice};
    use lct_kernels::CodecConfig;

    use super::*;
    use crate::report::Stats;
    use crate::samples;
    use crate::store::Origin;

    type B = Wgpu<f32, i32, u32>;

    fn data(seed: usize) -> TensorData {
        samples::data(seed, [64, 300])
    }

    fn request() -> PackRequest {
        PackRequest {
            codec: CodecConfig::default(),
            origin: Origin::default(),
            verify: true,
            spill_reserve: 1 << 20,
            confirm: false,
            slab_bytes: 0,
            stats: Arc::new(Stats::default()),
            fault: None,
        }
    }

    fn bits(tensor: FloatTensor<B>) -> TensorData {
        cubecl::future::block_on(B::float_into_data(tensor)).unwrap()
    }

    #[test]
    fn one_operation_puts_a_batch_to_rest() {
        let device = WgpuDevice::default();
        let tensor = |seed| B::float_from_data(data(seed), &device);
        let (first, second, third) = (tensor(1), tensor(2), tensor(3));
        let mut batch = FusionBatch::default();
        let lifted = B::lift(&mut batch, first);
        let layout = B::release(&mut batch, second);
        let packed = B::pack(&mut batch, third, &request());
        B::submit(batch);
        // Each is asked for while it is still in the queue, and once more.
        for _ in 0..2 {
            assert_eq!(bits(B::from_eager(B::lifted(&lifted))), data(1));
            assert_eq!(bits(B::from_eager(B::unpack(&packed))), data(3));
        }
        let again = B::lay_out(B::to_eager(tensor(2)), &layout);
        assert_eq!(again.shape(), Shape::new([64, 300]));
        assert_eq!(bits(B::from_eager(again)), data(2));
        B::submit(FusionBatch::default());
    }

    #[test]
    fn who_asks_before_the_batch_is_queued_waits_for_it() {
        let device = WgpuDevice::default();
        let mut batch = FusionBatch::default();
        let lifted = B::lift(&mut batch, B::float_from_data(data(5), &device));
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| bits(B::from_eager(B::lifted(&lifted))));
            std::thread::sleep(std::time::Duration::from_millis(50));
            B::submit(batch);
            assert_eq!(asked.join().unwrap(), data(5));
        });
    }
}
