//! What is stored once, however many views look at it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

use burn_backend::tensor::{Device, FloatTensor};
use burn_backend::{Shape, TensorMetadata};

use super::image::Image;
use super::recipe::{Derivation, Recipe};
use super::state::{self, Cell, Evicted, Forms, Held, State};
use super::view::{View, ViewOp};
use crate::backend::LctBackend;
use crate::lock::lock;
use crate::report::Stats;
use crate::residency::{Residency, defer_evictions};
use crate::store::{Origin, PackedStore};

/// After so many evictions without a use in between, a tensor of another thread's stream is packed all the same.
const MOST_REFUSALS: u32 = 8;

/// One BF16 tensor under the residency's management: dense, at rest (packed, or to be derived from others), or at rest with
/// a dense copy beside it.
///
/// Shape and device stand outside of the [state's](state) lock, so that asking for them never waits.
pub(crate) struct Storage<B: PackedStore> {
    pub(crate) shape: Shape,
    pub(crate) device: Device<B>,
    pub(crate) residency: &'static Residency<B>,
    /// The place of this storage in the hot window: an entry with an older ticket is stale.
    pub(crate) ticket: Arc<AtomicU64>,
    /// The bytes that had entered the hot window when this storage last did.
    pub(crate) entered: Arc<AtomicU64>,
    pub(crate) origin: Origin,
    /// How it was computed, if that is cheap to do again.
    recipe: Option<Recipe<B>>,
    /// How often it was to leave the window and another thread's stream was in the way, since its last use.
    refusals: AtomicU32,
    /// What views of the dense tensor are in a lazy backend's stream.
    images: Mutex<Vec<Weak<Image<B>>>>,
    cell: Cell<LctBackend<B>>,
}

impl<B: PackedStore> Forms for LctBackend<B> {
    type Dense = FloatTensor<B>;
    type Lifted = B::Lifted;
    type Rest = Rest<B>;
    type Copy = FloatTensor<B::Eager>;
    type Books = Share;
}

/// How a tensor rests.
pub(crate) enum Rest<B: PackedStore> {
    Packed(B::Packed),
    /// Not stored at all: computed again from others, and laid out as it was.
    Derived(Derivation<B>, B::Layout),
}

impl<B: PackedStore> Rest<B> {
    /// Whether the dense tensor is there all the same, and only another handle is needed.
    fn is_dense(&self) -> bool {
        matches!(self, Self::Packed(packed) if B::is_dense(packed))
    }

    /// Whether a copy that this thread makes is for all to use.
    fn is_home(&self) -> bool {
        match self {
            Self::Packed(packed) => B::is_home(packed),
            Self::Derived(..) => true,
        }
    }

    /// Panics if the values are known to be lost.
    fn check(&self) {
        match self {
            Self::Packed(packed) => B::check(packed),
            Self::Derived(..) => {}
        }
    }
}

impl<B: PackedStore> state::Rest for Rest<B> {
    fn is_derived(&self) -> bool {
        matches!(self, Self::Derived(..))
    }
}

/// A storage's share in the counters of its device.
pub(crate) struct Share {
    stats: Arc<Stats>,
    bytes: u64,
}

impl state::Books for Share {
    fn enter_window(&self) {
        self.stats.window_add(self.bytes);
    }

    fn leave_window(&self) {
        self.stats.window_sub(self.bytes);
    }

    fn enter_derived(&self) {
        self.stats.derived.add(self.bytes);
    }

    fn leave_derived(&self) {
        self.stats.derived.sub(self.bytes);
    }
}

/// A packed form that is kept alive.
pub(crate) struct PackedRest<B: PackedStore>(Arc<Rest<B>>);

impl<B: PackedStore> PackedRest<B> {
    pub(crate) fn get(&self) -> &B::Packed {
        match &*self.0 {
            Rest::Packed(packed) => packed,
            Rest::Derived(..) => unreachable!("only a packed form is kept in here"),
        }
    }
}

/// Logical bytes of a tensor of this shape.
fn bytes_of(shape: &Shape) -> u64 {
    2 * shape.num_elements() as u64
}

impl<B: PackedStore> Storage<B> {
    /// Takes a dense tensor under management and counts it; admitting it to the window is the caller's part.
    pub(crate) fn new(
        tensor: FloatTensor<B>,
        device: Device<B>,
        residency: &'static Residency<B>,
        origin: Origin,
        recipe: Option<Recipe<B>>,
    ) -> Self {
        Self::with(
            tensor.shape(),
            device,
            residency,
            origin,
            recipe,
            State::Dense(tensor),
        )
    }

    /// A tensor that was made in packed form; it is not in the hot window.
    pub(crate) fn at_rest(
        packed: B::Packed,
        shape: Shape,
        device: Device<B>,
        residency: &'static Residency<B>,
        origin: Origin,
    ) -> Self {
        let state = State::Resting(Arc::new(Rest::Packed(packed)));
        Self::with(shape, device, residency, origin, None, state)
    }

    fn with(
        shape: Shape,
        device: Device<B>,
        residency: &'static Residency<B>,
        origin: Origin,
        recipe: Option<Recipe<B>>,
        state: State<LctBackend<B>>,
    ) -> Self {
        let share = share(residency, &shape);
        Self {
            shape,
            device,
            residency,
            ticket: Arc::default(),
            entered: Arc::default(),
            origin,
            recipe,
            refusals: AtomicU32::new(0),
            images: Mutex::default(),
            cell: Cell::new(state, share),
        }
    }

    /// Has the tensor back if it was to rest and has not left a lazy backend's stream yet. Returns whether it was so; it is not
    /// in the hot window then, unless it was to be lifted.
    fn reclaim(&self) -> bool {
        if !B::LAZY {
            return false;
        }
        // A view of it that has left already would be done a second time in the stream. Then it is about to leave, too: it was
        // given up after its views, or leaves before them and is had back neither.
        let images = lock(&self.images).clone();
        if !images
            .iter()
            .filter_map(Weak::upgrade)
            .all(|image| image.stay())
        {
            return false;
        }
        let rest = |rest: &Rest<B>| match rest {
            Rest::Packed(packed) => B::reclaim(packed),
            Rest::Derived(_, layout) => B::reclaim_released(layout),
        };
        self.cell.reclaim(rest, B::reclaim_lifted)
    }

    /// The packed form, if there is one that is not held dense.
    pub(crate) fn packed(&self) -> Option<PackedRest<B>> {
        let rest = self.cell.with(|state| state.rest().cloned())?;
        match &*rest {
            Rest::Packed(packed) if !B::is_dense(packed) => Some(PackedRest(rest)),
            Rest::Packed(_) | Rest::Derived(..) => None,
        }
    }

    /// Logical bytes.
    pub(crate) fn bytes(&self) -> u64 {
        bytes_of(&self.shape)
    }

    /// Whether a reshape to `shape` has to copy, because the backend leaves gaps between the rows of such a tensor.
    pub(crate) fn reshape_copies(&self, shape: &Shape) -> bool {
        let row_len = self.shape.as_slice().last().copied().unwrap_or(1);
        let dims = |shape: &Shape| -> Vec<usize> {
            let dims = shape.as_slice().iter().copied();
            dims.filter(|&dim| dim != 1).collect()
        };
        self.shape.num_elements() > row_len
            && dims(&self.shape) != dims(shape)
            && B::pads_rows(&self.device, row_len)
    }

    /// Whether the tensor is dense, and known no other way than by its values.
    pub(crate) fn is_simple(&self) -> bool {
        self.recipe.is_none() && self.cell.with(|state| matches!(state, State::Dense(_)))
    }

    /// What is held now.
    pub(crate) fn held(&self) -> Held {
        self.cell.held()
    }

    /// The operations that have to be done again to get the values: none if they are stored.
    pub(crate) fn steps(&self) -> u32 {
        let rest = self.cell.with(|state| state.rest().cloned());
        match rest.as_deref() {
            Some(Rest::Derived(derivation, _)) => derivation.steps(),
            Some(Rest::Packed(_)) | None => 0,
        }
    }

    /// Whether a recipe says how to get the values again, if the operands live.
    pub(crate) fn has_recipe(&self) -> bool {
        self.recipe.is_some()
    }

    /// What the values can be computed from now, if they may be.
    pub(crate) fn derivation(&self) -> Option<Derivation<B>> {
        self.recipe.as_ref()?.derivation(self.bytes())
    }

    /// A view of the dense tensor, moved out: B may then work in place, as it would have without us.
    pub(crate) fn into_dense(self, view: &View) -> FloatTensor<B> {
        self.reclaim();
        let copied = |copy| B::from_eager(view.replay::<B::Eager>(B::here(copy)));
        match self.cell.take() {
            State::Dense(tensor) => view.replay::<B>(B::tensor_here(tensor)),
            State::Lifted(tensor) => copied(B::lifted(&tensor)),
            State::Copied(rest, copy) => {
                rest.check();
                copied(copy)
            }
            State::Resting(rest) => B::from_eager(view.replay::<B::Eager>(self.wake(&rest))),
            State::Taken => unreachable!("only the last owner takes, and it drops the storage"),
        }
    }

    /// A view of the dense tensor, decoded or computed again if need be. Such a copy stays in the hot window.
    pub(crate) fn to_dense(self: &Arc<Self>, view: &View) -> FloatTensor<B> {
        self.look(
            |tensor| view.replay::<B>(tensor),
            |copy| B::from_eager(view.replay::<B::Eager>(copy)),
        )
    }

    /// The dense tensor as the backend's eager part has it: the same as [`to_dense`](Self::to_dense) but for one thing. A
    /// tensor that a lazy backend has not computed yet is computed now.
    pub(crate) fn to_eager(self: &Arc<Self>) -> FloatTensor<B::Eager> {
        self.look(B::to_eager, |copy| copy)
    }

    /// Ends the storage, of whose tensor an image is used: the stream, which saw it end when it was viewed, sees nothing now.
    pub(crate) fn end(self) {
        if let State::Dense(tensor) = self.cell.take() {
            let mut batch = B::Batch::default();
            B::discard(&mut batch, tensor);
            B::submit(batch);
        }
    }

    /// An image of the storage was used.
    pub(crate) fn used(self: &Arc<Self>) {
        self.refusals.store(0, Relaxed);
        self.reclaim();
        self.residency.admit(self);
    }

    /// What a view is after one more operation, in the stream of a lazy backend. `image` is what it is before. A tensor at rest
    /// is decoded for it: operations that follow a view use it. `None` if another thread's stream works on the storage.
    pub(crate) fn image(
        self: &Arc<Self>,
        view: &View,
        image: Option<Arc<Image<B>>>,
        op: &ViewOp,
    ) -> Option<Arc<Image<B>>> {
        let source = image.and_then(Image::used).or_else(|| {
            if self.reclaim() {
                self.residency.touch(self);
            }
            let dense = |state: &State<LctBackend<B>>| match state {
                State::Dense(tensor) => Some(tensor.clone()),
                _ => None,
            };
            match self.cell.with(dense) {
                Some(tensor) => B::packs_here(&tensor).then(|| view.replay::<B>(tensor)),
                None => {
                    // It must not go before the image is there, which would hold its memory.
                    let _stays = defer_evictions();
                    Some(self.to_dense(view))
                }
            }
        })?;
        let image = Arc::new(Image::new(op.apply::<B>(source)));
        let mut images = lock(&self.images);
        images.retain(|image| image.strong_count() > 0);
        images.push(Arc::downgrade(&image));
        drop(images);
        Some(image)
    }

    /// Gives the images up, as the dense tensor is. Those of other threads stay, as their streams may need them.
    fn discard_images(&self, batch: &mut B::Batch) {
        let mut images = std::mem::take(&mut *lock(&self.images));
        images.retain(|image| {
            let image = image.upgrade();
            image.is_some_and(|image| image.discard(batch))
        });
        lock(&self.images).extend(images);
    }

    fn look<T>(
        self: &Arc<Self>,
        dense: impl FnOnce(FloatTensor<B>) -> T,
        copied: impl FnOnce(FloatTensor<B::Eager>) -> T,
    ) -> T {
        self.refusals.store(0, Relaxed);
        self.reclaim();
        // Nothing is locked: what the backend does now may ask for this very storage.
        let tensor = match self.cell.look() {
            State::Dense(tensor) => dense(B::tensor_here(tensor)),
            State::Lifted(tensor) => copied(B::here(B::lifted(&tensor))),
            State::Copied(rest, copy) => {
                rest.check();
                copied(B::here(copy))
            }
            State::Resting(rest) => {
                let copy = self.wake(&rest);
                // Held dense in the packed form, and counted there; or this thread's own.
                if rest.is_dense() || !rest.is_home() {
                    return copied(copy);
                }
                self.cell.keep_copy(&copy);
                copied(copy)
            }
            State::Taken => {
                panic!("queueing an encode panicked before, and the tensor went with it")
            }
        };
        self.residency.admit(self);
        tensor
    }

    /// Whether the tensor is this thread's to put to rest: another thread's stream does not work on it.
    pub(crate) fn is_here(&self) -> bool {
        self.cell.with(|state| match state {
            State::Dense(tensor) => B::packs_here(tensor),
            State::Lifted(_) | State::Copied(..) => true,
            State::Resting(_) | State::Taken => false,
        })
    }

    /// Whether this thread may make the storage give up what it holds dense. One that another thread's stream works on is
    /// let alone, unless it has been found unused at so many natural breaks that this thread seems to be gone.
    pub(crate) fn evictable(&self, at_break: bool) -> bool {
        self.is_here() || at_break && self.refusals.fetch_add(1, Relaxed) >= MOST_REFUSALS
    }

    /// Makes the storage give up its dense tensor: a decoded copy at once, one without a packed form by handing it over to be
    /// packed.
    pub(crate) fn evict(&self, batch: &mut B::Batch) -> Option<(HandOver<'_, B>, FloatTensor<B>)> {
        self.reclaim();
        self.discard_images(batch);
        // What has to be waited for, before the lock is taken.
        match self.cell.look() {
            State::Lifted(tensor) => drop(B::lifted(&tensor)),
            // Operations that need it may be queued on the other thread's stream, of which this thread's results say nothing.
            State::Dense(tensor) if !B::packs_here(&tensor) => drop(B::tensor_here(tensor)),
            _ => {}
        }
        match self.cell.evict() {
            Evicted::Nothing => None,
            Evicted::Dense(hand_over, tensor) => Some((HandOver(hand_over), tensor)),
            Evicted::Lifted(hand_over, tensor) => {
                Some((HandOver(hand_over), B::from_eager(B::lifted(&tensor))))
            }
        }
    }

    /// Gives up the dense tensor, which can be computed again. Returns whether it did.
    pub(crate) fn derive(&self, batch: &mut B::Batch, derivation: Derivation<B>) -> bool {
        let derived = self.cell.derive(B::derivable, |tensor| {
            Rest::Derived(derivation, B::release(batch, tensor))
        });
        if derived {
            self.discard_images(batch);
        }
        derived
    }

    /// Takes the dense tensor out of a lazy backend's stream. Returns whether it was there.
    pub(crate) fn lift(&self, batch: &mut B::Batch) -> bool {
        self.cell.lift(|tensor| B::lift(batch, tensor))
    }

    /// The values of a tensor at rest.
    fn wake(&self, rest: &Rest<B>) -> FloatTensor<B::Eager> {
        match rest {
            Rest::Packed(packed) => {
                let _span = tracing::trace_span!("lct_decode", bytes = self.bytes()).entered();
                if !B::is_dense(packed) {
                    self.residency.stats().on_decode(self.bytes());
                }
                B::unpack(packed)
            }
            Rest::Derived(derivation, layout) => {
                let _span = tracing::trace_span!("lct_derive", bytes = self.bytes()).entered();
                self.residency.stats().on_derive(self.bytes());
                B::lay_out(derivation.run(), layout)
            }
        }
    }
}

/// Counts a new storage; returns its share in the counters.
fn share<B: PackedStore>(residency: &Residency<B>, shape: &Shape) -> Share {
    let (stats, bytes) = (residency.stats().clone(), bytes_of(shape));
    stats.logical.add(bytes);
    stats.on_enter(bytes);
    Share { stats, bytes }
}

/// A storage whose dense tensor was handed over, and that waits, locked, for the packed form.
pub(crate) struct HandOver<'a, B: PackedStore>(state::HandOver<'a, LctBackend<B>>);

impl<'a, B: PackedStore> HandOver<'a, B> {
    /// The packed form is there.
    pub(crate) fn finish(&mut self, packed: B::Packed) {
        self.0.finish(Rest::Packed(packed));
    }

    /// Unlocks the storage, which keeps a handle of the tensor until it is [replaced](Kept::replace).
    pub(crate) fn keep(self, tensor: &FloatTensor<B>) -> Kept<'a, B> {
        Kept(self.0.keep(tensor.clone()))
    }
}

/// A storage that is dense until its packed form is there.
pub(crate) struct Kept<'a, B: PackedStore>(&'a Cell<LctBackend<B>>);

impl<B: PackedStore> Kept<'_, B> {
    /// Replaces the dense tensor by its packed form.
    pub(crate) fn replace(self, packed: B::Packed) {
        self.0.replace(Rest::Packed(packed));
    }
}

impl<B: PackedStore> Drop for Storage<B> {
    fn drop(&mut self) {
        self.residency.stats().logical.sub(self.bytes());
    }
}

impl<B: PackedStore> std::fmt::Debug for Storage<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Storage")
            .field("shape", &self.shape)
            .field("device", &self.device)
            .field("held", &self.held())
            .field("ticket", &self.ticket.load(Relaxed))
            .finish()
    }
}
