//! How a backend packs its float tensors and gets them back.
//!
//! One file per backend: [`flex`] through the host codec, [`cube`] through the CubeCL kernels, [`fusion`]
//! through operations that leave the fusion stream's own plans as they would be without us.

use std::fmt::Debug;
use std::sync::Arc;

use burn_backend::{
    Backend,
    tensor::{Device, FloatTensor},
};
use lct_kernels::CodecConfig;
use lct_kernels::optim::Update;

use crate::report::Stats;

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "cube")]
mod cube_layout;
#[cfg(feature = "cube")]
mod cube_update;
#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "cube")]
mod fusion;
#[cfg(feature = "cube")]
mod fusion_rest;
#[cfg(feature = "cube")]
mod fusion_shells;
#[cfg(feature = "cube")]
mod fusion_update;
#[cfg(feature = "cube")]
mod pages;
#[cfg(feature = "cube")]
mod predict;
#[cfg(feature = "cube")]
mod reserve;
#[cfg(feature = "cube")]
mod slab;
#[cfg(feature = "cube")]
mod streams;

mod cheap;
#[cfg(test)]
pub(crate) mod inject;
mod update;

pub use cheap::Cheap;
pub use update::Operands;

/// Which operation made a tensor, and which of its results it is. Those of one origin and size are mostly alike: the gradients of
/// a layer's matrices, say, or what an optimizer makes of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Origin {
    operation: &'static str,
    result: usize,
}

impl Origin {
    pub(crate) fn of(operation: &'static str) -> Self {
        Self::result(operation, 0)
    }

    /// What an optimizer's step makes of the weight, or of one of the states that follow.
    #[cfg(any(feature = "optim", feature = "cube"))]
    pub(crate) fn updated(index: usize) -> Self {
        Self::result("update", index)
    }

    fn result(operation: &'static str, result: usize) -> Self {
        Self { operation, result }
    }
}

/// What an encode needs besides the tensors.
#[derive(Debug, Clone)]
pub struct PackRequest {
    pub(crate) codec: CodecConfig,
    pub(crate) origin: Origin,
    pub(crate) verify: bool,
    // Only encodes that run on a device reserve for their spill.
    #[cfg_attr(not(feature = "cube"), expect(dead_code))]
    pub(crate) spill_reserve: u64,
    /// Memory is short: see to it that the packed form has got its memory before the dense tensor goes.
    #[cfg_attr(not(feature = "cube"), expect(dead_code))]
    pub(crate) confirm: bool,
    /// The bytes of a slab, of which packed forms get pieces, where memory is tight; otherwise 0.
    #[cfg_attr(not(feature = "cube"), expect(dead_code))]
    pub(crate) slab_bytes: u64,
    pub(crate) stats: Arc<Stats>,
    /// What shall go wrong.
    #[cfg(test)]
    pub(crate) fault: Option<inject::Fault>,
}

impl PackRequest {
    /// Whether a form of `packed` bytes is worth having instead of `dense` bytes: at least 5 % smaller.
    pub(crate) fn pays(packed: u64, dense: u64) -> bool {
        packed.saturating_mul(20) <= dense.saturating_mul(19)
    }
}

/// What `moves` returns, which moves a tensor that is always dense to where it may be already.
pub(crate) fn moved<B: PackedStore, T>(
    from: &Device<B>,
    to: &Device<B>,
    moves: impl FnOnce() -> T,
) -> T {
    if from == to {
        moves()
    } else {
        B::moving(from, to, moves)
    }
}

/// The pages of an allocator, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Pages {
    pub(crate) held: u64,
    pub(crate) used: u64,
}

impl Pages {
    pub(crate) fn free(&self) -> u64 {
        self.held.saturating_sub(self.used)
    }
}

/// A device's memory, in bytes, as its driver sees it.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// That nobody has.
    pub(crate) free: u64,
    /// That the driver keeps for this program, from buffers that were given back.
    pub(crate) pooled: u64,
    /// That the program's buffers take.
    pub(crate) drawn: u64,
}

impl Room {
    /// What can be allocated, unless what is pooled is in too small pieces.
    pub(crate) fn bytes(self) -> u64 {
        self.free + self.pooled
    }

    /// What can be counted on. Where a sixth of a pool was free, buffers of 48 MB were refused (an H200, Qwen3-4B).
    pub(crate) fn safe(self) -> u64 {
        self.free + self.pooled / 2
    }

    /// All that the program has or can get.
    pub(crate) fn capacity(self) -> u64 {
        self.bytes() + self.drawn
    }
}

/// A backend whose BF16 tensors can rest in packed form.
///
/// Implemented for `Flex`, `CubeBackend` and `Fusion<CubeBackend>`, and by nobody else: what a [`PackRequest`] holds is
/// this crate's. User code needs it only as the bound of a function that is generic over
/// [`LctBackend`](crate::LctBackend)'s parameter.
#[diagnostic::on_unimplemented(
    note = "`LctBackend` goes around Flex and CubeCL's backends: turn on burn-lct's feature for yours (`flex`, `cuda`, `wgpu` or `rocm`), and write `Autodiff<LctBackend<B>>`, not `LctBackend<Autodiff<B>>`"
)]
pub trait PackedStore: Backend {
    /// A tensor in packed form, with what is needed to give it back in the memory layout it had.
    ///
    /// A tensor that could not be packed (its layout, its data, a failed launch) is held dense in it: nothing
    /// is ever lost, and [`unpack`](Self::unpack) returns it as well.
    type Packed: Send + Sync + Debug + 'static;

    /// Whether operations are registered lazily, so that packing is best done where the backend's plans
    /// break anyway.
    const LAZY: bool;

    /// The backend whose operations run at once, on the same device: this one, or the one that a lazy one drives.
    type Eager: Backend<Device = Self::Device>;

    /// How a tensor lies in memory.
    type Layout: Send + Sync + 'static;

    /// A dense tensor that can be had at once, by the [eager](Self::Eager) part too.
    type Lifted: Send + Sync + 'static;

    /// A tensor that was given up, as long as it has not left a lazy backend's stream.
    type Leaving: Send + Sync + 'static;

    /// Tensors that go to rest together. A lazy backend gathers them until [`submit`](Self::submit); the others do at once
    /// what is asked.
    type Batch: Default;

    /// Does a cheap operation again.
    fn again(op: Cheap, operands: Vec<FloatTensor<Self::Eager>>) -> FloatTensor<Self::Eager>;

    /// Does an optimizer's step on dense BF16 tensors, in place where nobody else holds them. Returns the new weight and all
    /// states of the update's rule.
    ///
    /// # Panics
    /// If the operands differ in shape, or are not those that the update is for.
    fn update(update: &Update, operands: Operands<FloatTensor<Self>>) -> Vec<FloatTensor<Self>>;

    /// Does an optimizer's step on the packed forms of the weight and of all states of the update's rule, in that order, without
    /// a dense copy of any. Returns the new packed forms, or the gradient if they are of a kind that has to be unpacked.
    fn update_packed(
        _update: &Update,
        gradient: FloatTensor<Self>,
        _old: &[&Self::Packed],
        _request: &PackRequest,
    ) -> Result<Vec<Self::Packed>, FloatTensor<Self>> {
        Err(gradient)
    }

    /// Whether rows of so many BF16 values lie apart in memory, so that a reshape has to copy.
    fn pads_rows(_device: &Device<Self>, _row_len: usize) -> bool {
        false
    }

    /// The dense tensor on another device.
    fn move_dense(tensor: FloatTensor<Self>, device: &Device<Self>) -> FloatTensor<Self> {
        Self::float_to_device(tensor, device)
    }

    /// Does what moves a tensor of this thread's from one device to another. What is sent is not given to others before it has
    /// been, and what arrives is not written over what is still read.
    fn moving<T>(_from: &Device<Self>, _to: &Device<Self>, moves: impl FnOnce() -> T) -> T {
        moves()
    }

    /// Gives back memory that the backend's allocator holds for nothing.
    fn tidy(_device: &Device<Self>) {}

    /// What can still be allocated on the device, where that is known.
    fn room(_device: &Device<Self>) -> Option<Room> {
        None
    }

    /// The bytes that the driver has given out to the whole program, where that is known without waiting.
    fn drawn(_device: &Device<Self>) -> Option<u64> {
        None
    }

    /// Lets the driver keep so many bytes, those in use included, so that memory that was given back is had again at once.
    fn keep(_device: &Device<Self>, _bytes: u64) {}

    /// The pages that the backend's allocator holds for this thread, where it does not bound them itself. Waits until what was
    /// asked of the allocator before has been done.
    fn pages(_device: &Device<Self>) -> Option<Pages> {
        None
    }

    /// Sets up how this thread allocates on the device; `again`, where something may have set it back.
    fn claim(_device: &Device<Self>, _again: bool) {}

    /// Packs a BF16 tensor.
    ///
    /// The dense tensor is consumed, and freed as soon as its packed form is known to be whole, or cannot fail to be.
    fn pack(
        batch: &mut Self::Batch,
        tensor: FloatTensor<Self>,
        request: &PackRequest,
    ) -> Self::Packed;

    /// Sees to it that what was gathered is done. A lazy backend does it once none of its operations needs the tensors any more.
    fn submit(_batch: Self::Batch) {}

    /// An operation that computes `result` was queued after all that was submitted so far. Where this is told often, a lazy
    /// backend soon knows that what was gathered can be done.
    fn queued(_result: &FloatTensor<Self>) {}

    /// A lazy backend has just executed all that this thread had queued: what is queued now cuts no plans.
    fn idle(_device: &Device<Self>) {}

    /// The dense tensor, if it has not become this packed form yet. Then it never will.
    fn reclaim(_packed: &Self::Packed) -> Option<FloatTensor<Self>> {
        None
    }

    /// The tensor, if it has not been [lifted](Self::lift) yet.
    fn reclaim_lifted(_lifted: &Self::Lifted) -> Option<FloatTensor<Self>> {
        None
    }

    /// The tensor, if it has not been [released](Self::release) yet.
    fn reclaim_released(_layout: &Self::Layout) -> Option<FloatTensor<Self>> {
        None
    }

    /// The packed form on another device, moved as it is and counted there. `None` if the tensor has to move dense: the backend
    /// inside would lay it out anew, or there is no way for packed forms from one of its devices to another.
    ///
    /// Blocks until an encode that is still running has ended: only then is it known what there is to move.
    fn relocate(
        _packed: &Self::Packed,
        _device: &Device<Self>,
        _request: &PackRequest,
    ) -> Option<Self::Packed> {
        None
    }

    /// Decodes to a tensor of the same bits, shape and memory layout as the one that was packed.
    ///
    /// # Panics
    /// If the packed form is known to be damaged, or never came to be because the device failed: then there is no value to
    /// return.
    fn unpack(packed: &Self::Packed) -> FloatTensor<Self::Eager>;

    /// Takes over a tensor that is there already: a lazy backend's plans do not change by it.
    fn from_eager(tensor: FloatTensor<Self::Eager>) -> FloatTensor<Self>;

    /// The tensor itself. A lazy backend that has not computed it yet has to do that now, which cuts its plans.
    fn to_eager(tensor: FloatTensor<Self>) -> FloatTensor<Self::Eager>;

    /// Takes the tensor out of a lazy backend's stream, so that asking for it later does not cut plans.
    fn lift(batch: &mut Self::Batch, tensor: FloatTensor<Self>) -> Self::Lifted;

    /// A handle of a lifted tensor.
    fn lifted(tensor: &Self::Lifted) -> FloatTensor<Self::Eager>;

    /// Whether the tensor's memory layout can be made again from that of another tensor with the same values.
    fn derivable(_tensor: &FloatTensor<Self>) -> bool {
        true
    }

    /// Gives the tensor up.
    fn discard(batch: &mut Self::Batch, tensor: FloatTensor<Self>) -> Self::Leaving;

    /// The tensor that was [given up](Self::discard), if it has not left yet. Then it does not leave.
    fn stay(_leaving: &Self::Leaving) -> Option<FloatTensor<Self>> {
        None
    }

    /// Gives the tensor up, but for how it lies in memory.
    fn release(batch: &mut Self::Batch, tensor: FloatTensor<Self>) -> Self::Layout;

    /// A tensor with the same values that lies in memory as `layout` says.
    fn lay_out(tensor: FloatTensor<Self::Eager>, layout: &Self::Layout)
    -> FloatTensor<Self::Eager>;

    /// The tensor in memory that is this thread's to use: what other threads give up is theirs, and given to others before
    /// this thread's device has looked at it.
    fn here(tensor: FloatTensor<Self::Eager>) -> FloatTensor<Self::Eager> {
        tensor
    }

    /// The same for the backend's own tensor.
    fn tensor_here(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        tensor
    }

    /// Whether a copy that this thread decodes from the packed form is for all threads to use.
    fn is_home(_packed: &Self::Packed) -> bool {
        true
    }

    /// Whether the packed form holds the tensor dense, so that unpacking it is only another handle.
    fn is_dense(packed: &Self::Packed) -> bool;

    /// Whether this thread may pack the tensor now. A lazy backend's tensor that another thread is still working on may not
    /// be: it would cut that thread's plans.
    fn packs_here(_tensor: &FloatTensor<Self>) -> bool {
        true
    }

    /// Panics if the packed form is known never to have come to be: a copy decoded from it is worth nothing either.
    fn check(_packed: &Self::Packed) {}

    /// The first error of the device that was read together with encode statuses. The backend has not seen it and no longer
    /// can: it is reported with the next result that is waited for.
    fn take_error(_device: &Device<Self>) -> Option<String> {
        None
    }

    /// Asks for the encode statuses that are outstanding. Waits for nothing.
    fn ask_statuses(_device: &Device<Self>) {}

    /// Takes in the encode statuses that are on their way, so that what they hold is given back: nothing to wait for, after
    /// the device has given an answer that was asked for later.
    fn take_statuses(_device: &Device<Self>) {}

    /// Reads every outstanding encode status, so that all worst-case reserves are given back.
    fn settle(_device: &Device<Self>) {}
}
