//! [`PackedStore`] for `CubeBackend`: the CubeCL kernels, on the device.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn_backend::ops::FloatTensorOps;
use burn_backend::tensor::{Device, FloatTensor};
use burn_backend::{DType, TensorMetadata};
use burn_cubecl::{
    BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement, tensor::CubeTensor,
};
use burn_std::Metadata;
use cubecl::client::ComputeClient;
use cubecl::server::Handle;
use cubecl::stream_id::StreamId;
use lct_kernels::PackedLayout;
use lct_kernels::launch::{self, DenseLayout};
use lct_kernels::optim::Update;

use super::cube_layout::{gelu, lay_out, memory_rows, quotient, span_bytes};
use super::pages;
use super::reserve::Reserve;
use super::slab::Piece;
use super::{Cheap, Operands, Origin, PackRequest, PackedStore, Pages, Room, streams};
use crate::error::PackError;
use crate::report::{Footprint, KeptDense};

mod buffers;
#[cfg(test)]
mod faults;
mod settle;
#[cfg(all(test, feature = "wgpu"))]
mod tests;

pub(super) use buffers::{buffer, confirm};
use buffers::{decode, decode_into, moved};

/// A CubeCL tensor in packed form. Shared, because its encode status is settled later.
pub struct CubePacked<R: CubeRuntime>(pub(super) Arc<Shared<R>>);

pub(super) struct Shared<R: CubeRuntime> {
    pub(super) client: ComputeClient<R>,
    pub(super) device: R::Device,
    pub(super) meta: Metadata,
    pub(super) origin: Origin,
    footprint: Footprint,
    form: Mutex<Form<R>>,
}

pub(super) enum Form<R: CubeRuntime> {
    Packed(PackedBuffers),
    /// Packed, and still dense: whether both are the same has not been read yet.
    Unverified(PackedBuffers, Box<Original<R>>),
    Dense(CubeTensor<R>),
    /// The device did not do what it was asked; why.
    Lost(String),
}

/// The tensor that a packed form was made from, and the buffer in which the device says whether the form gives it back.
#[derive(Clone)]
pub(super) struct Original<R: CubeRuntime> {
    tensor: CubeTensor<R>,
    verdict: Handle,
}

#[derive(Clone)]
pub(super) struct PackedBuffers {
    pub(super) layout: PackedLayout,
    /// The number of the encode.
    pub(super) serial: u32,
    pub(super) rows: DenseLayout,
    pub(super) blob: Handle,
    /// Where the blob is a part of a slab, that part, which is kept as long as the blob is in use.
    pub(super) piece: Option<Arc<Piece>>,
    /// The worst case until the status is known, then what was used. `None`: nothing spilled.
    pub(super) spill: Option<Handle>,
    /// Where the records end, once the status is known.
    pub(super) end: Option<u32>,
    /// Where they ended when the code was chosen, if that is known.
    pub(super) end_of_choice: Option<u32>,
}

impl<R, F, I, BT> PackedStore for CubeBackend<R, F, I, BT>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    type Packed = CubePacked<R>;
    type Eager = Self;
    type Layout = Metadata;
    type Lifted = CubeTensor<R>;
    type Leaving = ();
    type Batch = ();

    const LAZY: bool = false;

    fn again(op: Cheap, operands: Vec<CubeTensor<R>>) -> CubeTensor<R> {
        match (op, &operands[..]) {
            (Cheap::Div, [dividend, divisor]) => quotient(dividend, divisor),
            (Cheap::Gelu, [input]) => gelu(input),
            _ => None,
        }
        .unwrap_or_else(|| op.apply::<Self>(operands))
    }

    fn update(update: &Update, operands: Operands<CubeTensor<R>>) -> Vec<CubeTensor<R>> {
        super::cube_update::update(update, operands)
    }

    fn update_packed(
        update: &Update,
        gradient: CubeTensor<R>,
        old: &[&CubePacked<R>],
        request: &PackRequest,
    ) -> Result<Vec<CubePacked<R>>, CubeTensor<R>> {
        if CubePacked::updatable(old, request) {
            Ok(CubePacked::update(update, gradient, old, request))
        } else {
            Err(gradient)
        }
    }

    fn pads_rows(device: &Device<Self>, row_len: usize) -> bool {
        pages::pads_rows::<R>(device, 2 * row_len)
    }

    fn move_dense(tensor: CubeTensor<R>, device: &Device<Self>) -> CubeTensor<R> {
        let (from, owner) = (tensor.device.clone(), tensor.handle.stream);
        let sent = tensor.clone();
        streams::send::<R, _>(&from, owner, device, || Self::float_to_device(sent, device))
    }

    fn moving<T>(from: &Device<Self>, to: &Device<Self>, moves: impl FnOnce() -> T) -> T {
        streams::send::<R, T>(from, StreamId::current(), to, moves)
    }

    fn tidy(device: &Device<Self>) {
        pages::tidy::<R>(device);
    }

    fn room(device: &Device<Self>) -> Option<Room> {
        pages::room::<R>(device)
    }

    fn drawn(device: &Device<Self>) -> Option<u64> {
        pages::drawn::<R>(device)
    }

    fn keep(device: &Device<Self>, bytes: u64) {
        pages::keep::<R>(device, bytes);
    }

    fn pages(device: &Device<Self>) -> Option<Pages> {
        pages::held::<R>(device)
    }

    fn claim(device: &Device<Self>, again: bool) {
        pages::use_exact_pages::<R>(device, again);
    }

    fn pack((): &mut (), tensor: CubeTensor<R>, request: &PackRequest) -> CubePacked<R> {
        CubePacked::pack(tensor, request)
    }

    fn relocate(
        packed: &CubePacked<R>,
        device: &Device<Self>,
        request: &PackRequest,
    ) -> Option<CubePacked<R>> {
        packed.relocate(device, request)
    }

    fn unpack(packed: &CubePacked<R>) -> FloatTensor<Self> {
        packed.unpack()
    }

    fn from_eager(tensor: CubeTensor<R>) -> CubeTensor<R> {
        tensor
    }

    fn to_eager(tensor: CubeTensor<R>) -> CubeTensor<R> {
        tensor
    }

    fn lift((): &mut (), tensor: CubeTensor<R>) -> CubeTensor<R> {
        tensor
    }

    fn lifted(tensor: &CubeTensor<R>) -> CubeTensor<R> {
        tensor.clone()
    }

    fn discard(_batch: &mut (), _tensor: FloatTensor<Self>) {}

    fn release((): &mut (), tensor: CubeTensor<R>) -> Metadata {
        *tensor.meta
    }

    fn lay_out(tensor: CubeTensor<R>, layout: &Metadata) -> CubeTensor<R> {
        lay_out(tensor, layout)
    }

    fn here(tensor: CubeTensor<R>) -> CubeTensor<R> {
        streams::here(tensor)
    }

    fn tensor_here(tensor: CubeTensor<R>) -> CubeTensor<R> {
        streams::here(tensor)
    }

    fn is_home(packed: &CubePacked<R>) -> bool {
        packed.is_home()
    }

    fn is_dense(packed: &CubePacked<R>) -> bool {
        packed.is_dense()
    }

    fn check(packed: &CubePacked<R>) {
        packed.check();
    }

    fn take_error(device: &Device<Self>) -> Option<String> {
        Reserve::<R>::of(device).take_error()
    }

    fn ask_statuses(device: &Device<Self>) {
        Reserve::<R>::of(device).ask();
    }

    fn take_statuses(device: &Device<Self>) {
        Reserve::<R>::of(device).take();
    }

    fn settle(device: &Device<Self>) {
        Reserve::<R>::of(device).settle_all();
    }
}

impl<R: CubeRuntime> CubePacked<R> {
    /// Packs one tensor in its memory order, or keeps it dense and counts why. On the stream that the tensor's memory belongs
    /// to: on another one it could be given up and given to others before it has been encoded.
    pub(super) fn pack(tensor: CubeTensor<R>, request: &PackRequest) -> Self {
        let owner = tensor.handle.stream;
        match owner.executes(|| Self::try_pack(&tensor, request)) {
            Ok(packed) => packed,
            Err(why) => {
                let logical = 2 * tensor.shape().num_elements() as u64;
                let footprint = Footprint::kept_dense(&request.stats, logical, why);
                Self::new(
                    tensor.clone(),
                    request.origin,
                    footprint,
                    Form::Dense(tensor),
                )
            }
        }
    }

    fn new(tensor: CubeTensor<R>, origin: Origin, footprint: Footprint, form: Form<R>) -> Self {
        Self(Arc::new(Shared {
            client: tensor.client,
            device: tensor.device,
            meta: *tensor.meta,
            origin,
            footprint,
            form: Mutex::new(form),
        }))
    }

    /// One of another origin that lies where `other` does.
    pub(super) fn like(other: &Self, origin: Origin, footprint: Footprint, form: Form<R>) -> Self {
        Self(Arc::new(Shared {
            client: other.0.client.clone(),
            device: other.0.device.clone(),
            meta: other.0.meta.clone(),
            origin,
            footprint,
            form: Mutex::new(form),
        }))
    }

    /// The packed form on another device, if Burn would move the tensor as it lies: what it lays out anew is moved dense.
    pub(super) fn relocate(&self, device: &R::Device, request: &PackRequest) -> Option<Self> {
        let Shared {
            device: home, meta, ..
        } = &*self.0;
        if !R::can_read_tensor(meta.shape(), meta.strides()) {
            return None;
        }
        // A piece of a slab would take the slab along.
        let buffers = self.settled().filter(|buffers| buffers.piece.is_none())?;
        let moved = |buffer: Handle| moved::<R>(home, buffer, device);
        let spilled = buffers.spill.as_ref().map_or(0, Handle::size_in_used);
        let layout = &buffers.layout;
        let footprint = Footprint::moved(
            &request.stats,
            layout.dense_bytes(),
            layout.blob_bytes(),
            spilled,
        );
        let form = Form::Packed(PackedBuffers {
            blob: moved(buffers.blob),
            piece: None,
            spill: buffers.spill.map(moved),
            ..buffers
        });
        Some(Self(Arc::new(Shared {
            client: R::client(device),
            device: device.clone(),
            meta: meta.clone(),
            origin: self.0.origin,
            footprint,
            form: Mutex::new(form),
        })))
    }

    /// The buffers, if it is packed and known to be whole.
    fn settled(&self) -> Option<PackedBuffers> {
        if self.buffers()?.end.is_none() {
            Reserve::<R>::of(&self.0.device).settle_all();
        }
        self.buffers().filter(|buffers| buffers.end.is_some())
    }

    /// The buffers, if it is packed.
    pub(super) fn buffers(&self) -> Option<PackedBuffers> {
        match &*self.0.lock() {
            Form::Packed(buffers) => Some(buffers.clone()),
            Form::Unverified(..) | Form::Dense(_) | Form::Lost(_) => None,
        }
    }

    fn try_pack(tensor: &CubeTensor<R>, request: &PackRequest) -> Result<Self, KeptDense> {
        let rows = memory_rows(&tensor.meta).ok_or(KeptDense::Layout)?;
        let mut needed = None;
        let refused = |needed: Option<u64>, reason: String| {
            let free = pages::room::<R>(&tensor.device).map(Room::bytes);
            request.stats.on_error(PackError::Refused {
                shape: tensor.shape().as_slice().to_vec(),
                reason,
                memory: request.stats.memory(needed, free),
            });
            KeptDense::Failed
        };
        let layout = PackedLayout::new(rows.row_len * rows.rows, request.codec.profile)
            .map_err(|error| refused(needed, error.to_string()))?;
        let reserve = Reserve::<R>::of(&tensor.device);
        let layout = {
            let mut predictions = reserve.predictions();
            if !predictions.worth_a_try(request.origin, &layout) {
                return Err(KeptDense::Incompressible);
            }
            predictions.fit(request.origin, layout)
        };
        if !PackRequest::pays(layout.blob_bytes(), layout.dense_bytes()) {
            return Err(KeptDense::Incompressible);
        }
        let bound = layout.spill_bound_bytes();
        // One that is verified stays until its outcome is known.
        let kept = if request.verify {
            layout.dense_bytes()
        } else {
            0
        };
        reserve.make_room(bound + kept, request.spill_reserve);

        let client = &tensor.client;
        needed = Some(layout.blob_bytes() + bound);
        let (blob, piece) = reserve.blob(client, layout.blob_bytes(), request);
        let mut buffers = PackedBuffers {
            layout,
            serial: 0,
            rows,
            blob,
            piece,
            spill: Some(buffer(client, bound.max(4))),
            end: None,
            end_of_choice: None,
        };
        #[cfg(test)]
        faults::before(client, &mut buffers, request.fault);
        if request.confirm {
            let all = [Some(&buffers.blob), buffers.spill.as_ref()];
            confirm(client, all.into_iter().flatten()).map_err(|reason| refused(needed, reason))?;
        }
        buffers
            .encode(tensor, request, &reserve.tickets())
            .map_err(|error| refused(needed, error.to_string()))?;
        #[cfg(test)]
        faults::after(client, &mut buffers, request.fault);
        let form = if request.verify {
            let verdict = decode(client, &buffers)
                .and_then(|decoded| launch::compare(client, tensor.handle.clone(), decoded, rows))
                .map_err(|error| refused(needed, error.to_string()))?;
            let tensor = tensor.clone();
            Form::Unverified(buffers, Box::new(Original { tensor, verdict }))
        } else {
            Form::Packed(buffers)
        };
        let footprint = Footprint::packed(
            &request.stats,
            layout.dense_bytes(),
            layout.blob_bytes(),
            bound + kept,
        );
        let packed = Self::new(tensor.clone(), request.origin, footprint, form);
        reserve.watch(&packed.0, bound + kept);
        Ok(packed)
    }

    /// Decodes to the layout that the tensor had.
    ///
    /// # Panics
    /// If the encode is known to have failed on the device: then there is no value to return.
    pub(super) fn unpack(&self) -> CubeTensor<R> {
        // The kernel is queued after the lock is released.
        let buffers = match &*self.0.lock() {
            Form::Dense(tensor) => Err(tensor.clone()),
            Form::Unverified(_, original) => Err(original.tensor.clone()),
            Form::Packed(buffers) => Ok(buffers.clone()),
            Form::Lost(why) => panic!("{why}"),
        };
        match buffers {
            Ok(buffers) => self.0.decode_here(&buffers),
            Err(tensor) => streams::here(tensor),
        }
    }

    /// Whether the form's memory belongs to this thread's stream.
    pub(super) fn is_home(&self) -> bool {
        let owner = match &*self.0.lock() {
            Form::Packed(buffers) | Form::Unverified(buffers, _) => buffers.blob.stream,
            Form::Dense(tensor) => tensor.handle.stream,
            Form::Lost(_) => return true,
        };
        owner == StreamId::current()
    }

    /// Panics if the encode is known to have failed on the device.
    pub(super) fn check(&self) {
        if let Form::Lost(why) = &*self.0.lock() {
            panic!("{why}");
        }
    }

    pub(super) fn is_dense(&self) -> bool {
        matches!(*self.0.lock(), Form::Dense(_) | Form::Unverified(..))
    }
}

impl<R: CubeRuntime> Shared<R> {
    fn lock(&self) -> MutexGuard<'_, Form<R>> {
        self.form.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decodes into memory of this thread's stream.
    fn decode_here(&self, buffers: &PackedBuffers) -> CubeTensor<R> {
        let output = self.client.empty(span_bytes(buffers.rows));
        decode_into(&self.client, buffers, output.clone())
            .unwrap_or_else(|error| panic!("a packed tensor cannot be decoded: {error}"));
        streams::wait_for(&self.client, buffers.blob.stream);
        self.tensor(output)
    }

    fn tensor(&self, handle: Handle) -> CubeTensor<R> {
        CubeTensor::new(
            self.client.clone(),
            handle,
            self.meta.clone(),
            self.device.clone(),
            DType::BF16,
        )
    }
}

impl<R: CubeRuntime> std::fmt::Debug for CubePacked<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CubePacked")
            .field("meta", &self.0.meta)
            .field("footprint", &self.0.footprint)
            .finish_non_exhaustive()
    }
}
