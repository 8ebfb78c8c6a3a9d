//! [`PackedStore`] for `CubeBackend`: the CubeCL kernels, on the device.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn_backend::tensor::{Device, FloatTensor};
use burn_backend::{DType, TensorMetadata};
use burn_cubecl::{
    BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement, tensor::CubeTensor,
};
use burn_std::Metadata;
use cubecl::client::ComputeClient;
use cubecl::prelude::TensorBinding;
use cubecl::server::{Handle, ServerCommunication};
use lct_kernels::PackedLayout;
use lct_kernels::header::{CAPACITY_WORD, RECORDS_END_WORD, SERIAL_WORD, fixed_words};
use lct_kernels::launch::{self, DenseLayout};
use lct_kernels::optim::Update;

use super::cube_layout::{gelu, lay_out, memory_rows, quotient, span_bytes};
use super::pages::{self, rounded};
use super::reserve::Reserve;
use super::{Cheap, Operands, PackRequest, PackedStore};
use crate::report::{Footprint, KeptDense};

/// A CubeCL tensor in packed form. Shared, because its encode status is settled later.
pub struct CubePacked<R: CubeRuntime>(pub(super) Arc<Shared<R>>);

pub(super) struct Shared<R: CubeRuntime> {
    pub(super) client: ComputeClient<R>,
    pub(super) device: R::Device,
    pub(super) meta: Metadata,
    footprint: Footprint,
    form: Mutex<Form<R>>,
}

pub(super) enum Form<R: CubeRuntime> {
    Packed(PackedBuffers),
    Dense(CubeTensor<R>),
    /// The device did not do what it was asked; why.
    Lost(String),
}

#[derive(Clone)]
pub(super) struct PackedBuffers {
    pub(super) layout: PackedLayout,
    /// The number of the encode.
    pub(super) serial: u32,
    pub(super) rows: DenseLayout,
    pub(super) blob: Handle,
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

    fn tidy(device: &Device<Self>) {
        pages::tidy::<R>(device);
    }

    fn room(device: &Device<Self>) -> Option<u64> {
        pages::room::<R>(device)
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

    fn release((): &mut (), tensor: CubeTensor<R>) -> Metadata {
        *tensor.meta
    }

    fn lay_out(tensor: CubeTensor<R>, layout: &Metadata) -> CubeTensor<R> {
        lay_out(tensor, layout)
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
    /// Packs one tensor in its memory order, or keeps it dense and counts why.
    pub(super) fn pack(tensor: CubeTensor<R>, request: &PackRequest) -> Self {
        match Self::try_pack(&tensor, request) {
            Ok(packed) => packed,
            Err(why) => {
                let logical = 2 * tensor.shape().num_elements() as u64;
                let footprint = Footprint::kept_dense(&request.stats, logical, why);
                Self::new(tensor.clone(), footprint, Form::Dense(tensor))
            }
        }
    }

    fn new(tensor: CubeTensor<R>, footprint: Footprint, form: Form<R>) -> Self {
        Self(Arc::new(Shared {
            client: tensor.client,
            device: tensor.device,
            meta: *tensor.meta,
            footprint,
            form: Mutex::new(form),
        }))
    }

    /// One that lies where `other` does.
    pub(super) fn like(other: &Self, footprint: Footprint, form: Form<R>) -> Self {
        Self(Arc::new(Shared {
            client: other.0.client.clone(),
            device: other.0.device.clone(),
            meta: other.0.meta.clone(),
            footprint,
            form: Mutex::new(form),
        }))
    }

    /// The packed form on another device, if Burn would move the tensor as it lies: what it lays out anew is moved dense.
    pub(super) fn relocate(&self, device: &R::Device, request: &PackRequest) -> Option<Self> {
        let Shared { client, meta, .. } = &*self.0;
        if !R::can_read_tensor(meta.shape(), meta.strides()) {
            return None;
        }
        let buffers = self.settled()?;
        let target = R::client(device);
        let moved = |buffer: Handle| moved(client, buffer, &target);
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
            spill: buffers.spill.map(moved),
            ..buffers
        });
        Some(Self(Arc::new(Shared {
            client: target,
            device: device.clone(),
            meta: meta.clone(),
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
            Form::Dense(_) | Form::Lost(_) => None,
        }
    }

    fn try_pack(tensor: &CubeTensor<R>, request: &PackRequest) -> Result<Self, KeptDense> {
        let rows = memory_rows(&tensor.meta).ok_or(KeptDense::Layout)?;
        let failed = |error: &dyn std::fmt::Display| {
            tracing::error!(%error, shape = ?tensor.shape(), "an encode failed; the tensor stays dense");
            KeptDense::Failed
        };
        let layout = PackedLayout::new(rows.row_len * rows.rows, request.codec.profile)
            .map_err(|error| failed(&error))?;
        let reserve = Reserve::<R>::of(&tensor.device);
        let layout = {
            let mut predictions = reserve.predictions();
            if !predictions.worth_a_try(&layout) {
                return Err(KeptDense::Incompressible);
            }
            predictions.fit(layout)
        };
        if !PackRequest::pays(layout.blob_bytes(), layout.dense_bytes()) {
            return Err(KeptDense::Incompressible);
        }
        let bound = layout.spill_bound_bytes();
        reserve.make_room(bound, request.spill_reserve);

        let client = &tensor.client;
        let blob = buffer(client, layout.blob_bytes());
        let spill = buffer(client, bound.max(4));
        let serial = launch::encode(
            client,
            tensor.handle.clone(),
            rows,
            request.codec.family,
            &layout,
            blob.clone(),
            spill.clone(),
            &reserve.tickets(),
        )
        .map_err(|error| failed(&error))?;
        let buffers = PackedBuffers {
            layout,
            serial,
            rows,
            blob,
            spill: Some(spill),
            end: None,
            end_of_choice: None,
        };
        if request.verify {
            verify(tensor, &buffers).map_err(|error| failed(&error))?;
        }
        let footprint = Footprint::packed(
            &request.stats,
            layout.dense_bytes(),
            layout.blob_bytes(),
            bound,
        );
        let packed = Self::new(tensor.clone(), footprint, Form::Packed(buffers));
        reserve.watch(&packed.0, bound);
        Ok(packed)
    }

    /// Decodes to the layout that the tensor had.
    ///
    /// # Panics
    /// If the encode is known to have failed on the device: then there is no value to return.
    pub(super) fn unpack(&self) -> CubeTensor<R> {
        match &*self.0.lock() {
            Form::Dense(tensor) => tensor.clone(),
            Form::Packed(buffers) => self.0.decode(buffers),
            Form::Lost(why) => panic!("a packed tensor was lost: {why}"),
        }
    }

    /// Panics if the encode is known to have failed on the device.
    pub(super) fn check(&self) {
        if let Form::Lost(why) = &*self.0.lock() {
            panic!("a packed tensor was lost: {why}");
        }
    }

    pub(super) fn is_dense(&self) -> bool {
        matches!(*self.0.lock(), Form::Dense(_))
    }
}

impl<R: CubeRuntime> Shared<R> {
    fn lock(&self) -> MutexGuard<'_, Form<R>> {
        self.form.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decode(&self, buffers: &PackedBuffers) -> CubeTensor<R> {
        let handle = decode(&self.client, buffers)
            .unwrap_or_else(|error| panic!("a packed tensor cannot be decoded: {error}"));
        self.tensor(handle)
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

    /// The start of the blob's header, which the encode writes, or `None` if there is nothing to learn.
    pub(super) fn status(&self) -> Option<Handle> {
        let Form::Packed(buffers) = &*self.lock() else {
            return None;
        };
        let rest = buffers.blob.size_in_used() - STATUS_BYTES as u64;
        // On top of what rounding left.
        Some(buffers.blob.clone().offset_end(rest))
    }

    /// Gives back what the encode did not spill, or the whole packed form if it was not worth it.
    pub(super) fn settle(&self, status: &[u8]) {
        let mut form = self.lock();
        let Form::Packed(buffers) = &mut *form else {
            return;
        };
        let layout = &buffers.layout;
        let end = match records_end(status, layout, buffers.serial) {
            Ok(end) => end,
            Err(why) => {
                tracing::error!(shape = ?self.meta.shape(), "{why}");
                self.footprint.lose();
                *form = Form::Lost(why);
                return;
            }
        };
        buffers.end = Some(end);
        buffers.end_of_choice.get_or_insert(end);
        let spill_words = layout.spill_words(end);
        let spilled = 4 * spill_words;
        let pays = PackRequest::pays(layout.blob_bytes() + spilled, layout.dense_bytes());
        {
            let mut predictions = Reserve::<R>::of(&self.device).predictions();
            if pays {
                predictions.shrank(layout, end);
            } else {
                predictions.did_not_shrink(layout);
            }
        }
        if !pays {
            match decode(&self.client, buffers) {
                Ok(handle) => {
                    self.footprint.give_up(KeptDense::Incompressible);
                    *form = Form::Dense(self.tensor(handle));
                }
                // It stays as it is, whole with its worst-case spill.
                Err(error) => {
                    tracing::error!(%error, "a packed tensor that does not pay cannot be decoded")
                }
            }
            return;
        }
        self.footprint.set_spill(spilled);
        let worst_case = buffers.spill.take();
        buffers.spill = worst_case
            .filter(|_| spill_words > 0)
            .map(|worst_case| trimmed(&self.client, worst_case, spill_words as usize));
    }
}

/// The header's words up to the last one that says how large the packed form is, and of which encode.
const STATUS_BYTES: usize = 4 * (SERIAL_WORD + 1);

/// Where the records end, if this encode has written a header that fits the tensor: an earlier one in the same memory may
/// have left one that does. A device that ran out of memory or
/// refused a kernel leaves the buffer as it was, and says so nowhere else.
fn records_end(status: &[u8], layout: &PackedLayout, serial: u32) -> Result<u32, String> {
    let word = |index: usize| bytemuck::pod_read_unaligned::<u32>(&status[4 * index..][..4]);
    let fixed = fixed_words(layout);
    let fixed = fixed.into_iter().enumerate();
    let expected = fixed.chain([(CAPACITY_WORD, layout.capacity()), (SERIAL_WORD, serial)]);
    for (index, expected) in expected {
        if word(index) != expected {
            return Err(format!(
                "the device did not run an encode: word {index} of the packed header is {:#010x} instead of {expected:#010x}; \
                 it may have run out of memory before",
                word(index),
            ));
        }
    }
    let end = word(RECORDS_END_WORD);
    let (words, bound) = (layout.spill_words(end), layout.spill_bound_words());
    if words > bound {
        return Err(format!(
            "an encode reports {words} spilled words, more than the {bound} that it can spill"
        ));
    }
    Ok(end)
}

/// Decodes on the stream whose memory the buffers are, whichever thread asks. On another stream the kernel could run after the
/// buffers were given up and given to others: CubeCL 0.10 keeps them only for the streams that own them.
fn decode<R: CubeRuntime>(
    client: &ComputeClient<R>,
    buffers: &PackedBuffers,
) -> Result<Handle, launch::LaunchError> {
    let rows = buffers.rows;
    buffers.blob.stream.executes(|| {
        let output = client.empty(span_bytes(rows));
        launch::decode(
            client,
            buffers.blob.clone(),
            buffers.spill.clone(),
            &buffers.layout,
            output.clone(),
            rows,
        )?;
        Ok(output)
    })
}

/// A buffer of so many bytes, with the room of one of [few sizes](rounded).
pub(super) fn buffer<R: CubeRuntime>(client: &ComputeClient<R>, bytes: u64) -> Handle {
    let room = rounded(bytes);
    client.empty(room as usize).offset_end(room - bytes)
}

/// A copy of a buffer, with its room, on another device.
fn moved<R: CubeRuntime>(
    client: &ComputeClient<R>,
    buffer: Handle,
    target: &ComputeClient<R>,
) -> Handle {
    // With all of its room, so that both devices' allocators see the same few sizes.
    let room = buffer.offset_end.unwrap_or(0);
    let mut whole = buffer;
    whole.offset_end = None;
    let mut owner = client.clone();
    // SAFETY: it is the stream that the buffer belongs to, and all that is asked of it is to read that buffer.
    unsafe { owner.set_stream(whole.stream) };
    let word = cubecl::ir::ElemType::UInt(cubecl::ir::UIntKind::U32);
    let copy = owner.to_client(whole, target, word);
    if <R::Server as ServerCommunication>::SERVER_COMM_ENABLED {
        // It is sent beside the stream. Without waiting, the stream could give the memory to others before it has been read.
        owner.sync_collective();
    }
    copy.offset_end(room)
}

/// Copies the used words into a buffer of their size, on the stream that they belong to.
fn trimmed<R: CubeRuntime>(client: &ComputeClient<R>, worst_case: Handle, words: usize) -> Handle {
    let stream = worst_case.stream;
    stream.executes(|| copied(client, worst_case, words))
}

fn copied<R: CubeRuntime>(client: &ComputeClient<R>, worst_case: Handle, words: usize) -> Handle {
    let exact = buffer(client, 4 * words as u64);
    let binding = |handle: Handle| TensorBinding::<R> {
        handle: handle.binding(),
        shape: [words].into(),
        strides: [1].into(),
        runtime: std::marker::PhantomData,
    };
    cubecl::std::tensor::copy_into(
        client,
        binding(worst_case),
        binding(exact.clone()),
        cubecl::ir::ElemType::UInt(cubecl::ir::UIntKind::U32).into(),
    );
    exact
}

/// Decodes at once and compares every value with the original's.
fn verify<R: CubeRuntime>(
    tensor: &CubeTensor<R>,
    buffers: &PackedBuffers,
) -> Result<(), Box<dyn std::error::Error>> {
    let decoded = decode(&tensor.client, buffers)?;
    let read = tensor
        .client
        .read_async(vec![tensor.handle.clone(), decoded]);
    let bytes = cubecl::future::block_on(read).map_err(|error| error.to_string())?;
    let DenseLayout {
        row_len,
        row_pitch,
        rows,
    } = buffers.rows;
    for row in 0..rows {
        let span = 2 * row * row_pitch..2 * (row * row_pitch + row_len);
        if bytes[0][span.clone()] != bytes[1][span] {
            return Err(format!("row {row} of {rows} decodes to other bits").into());
        }
    }
    Ok(())
}

impl<R: CubeRuntime> std::fmt::Debug for CubePacked<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CubePacked")
            .field("meta", &self.0.meta)
            .field("footprint", &self.0.footprint)
            .finish_non_exhaustive()
    }
}
