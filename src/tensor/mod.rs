//! The float tensor primitive: a storage that is kept once, and a view of it.

use std::sync::Arc;
#[cfg(feature = "distributed")]
use std::sync::Weak;

use burn_backend::ops::FloatTensorOps;
use burn_backend::tensor::{Device, FloatTensor};
use burn_backend::{DType, ExecutionError, FloatDType, Shape, TensorMetadata};

use crate::residency::{Residency, admits};
// What operations need of the residency reaches them through here.
pub(crate) use crate::residency::{defer_evictions, natural_break, passed_int_bool};
use crate::store::{Origin, PackedStore, Room};

mod image;
mod recipe;
mod state;
mod storage;
mod sync;
#[cfg(feature = "optim")]
mod update;
mod view;

pub(crate) use image::Image;
pub(crate) use recipe::Recipe;
pub(crate) use state::Held;
pub(crate) use storage::Storage;
pub(crate) use view::{View, ViewOp};

/// Waits for a result of the device, or for the error of the device that came to light before it. Encode statuses come with
/// it.
pub(crate) async fn result_of<B: PackedStore, T>(
    device: Device<B>,
    result: impl Future<Output = Result<T, ExecutionError>>,
) -> Result<T, ExecutionError> {
    let result = result.await;
    B::idle(&device);
    B::take_statuses(&device);
    with_errors_of::<B, _>(&device, result)
}

/// Prepares to wait for a result of the device: what is queued is going to be executed, and so may be cut.
pub(crate) fn before_result<B: PackedStore>(device: &Device<B>) {
    natural_break::<B>(device);
    B::ask_statuses(device);
}

/// A result that was waited for, or the device's error that came to light before it. One that may be for want of memory says
/// how much there is.
pub(crate) fn with_errors_of<B: PackedStore, T>(
    device: &Device<B>,
    result: Result<T, ExecutionError>,
) -> Result<T, ExecutionError> {
    let error = match (B::take_error(device), result) {
        (None, Ok(value)) => return Ok(value),
        (Some(reason), Ok(_)) => return Err(ExecutionError::WithContext { reason }),
        (None, Err(error)) => error,
        (Some(reason), Err(error)) => {
            let reason = format!("{error}\n{reason}");
            return Err(ExecutionError::WithContext { reason });
        }
    };
    match Residency::<B>::find(device) {
        Some(residency) if lacks_memory(&error.to_string()) => {
            let memory = residency
                .stats()
                .memory(None, B::room(device).map(Room::bytes));
            let reason = format!("{error}\n{memory}");
            Err(ExecutionError::WithContext { reason })
        }
        _ => Err(error),
    }
}

/// Whether CubeCL says, or a driver, that memory could not be had. It is noticed when what should lie there is looked for.
fn lacks_memory(error: &str) -> bool {
    [
        "can't allocate",
        "couldn't find resource",
        "out of memory",
        "OUT_OF_MEMORY",
    ]
    .iter()
    .any(|words| error.contains(words))
}

/// A float tensor of [`LctBackend`](crate::LctBackend).
///
/// BF16 tensors of at least 1,024 elements are managed: they are dense while in the hot window and at rest afterwards. All others are B's own tensors, passed through as they are. Shape, type and device never need a
/// decode, nor do clones and views.
///
/// Programs meet it only where they extend Burn's backends by operations of their own. Such an operation goes on through
/// [`dense`](Self::dense) and [`new`](Self::new):
///
/// ```
/// # #[cfg(feature = "flex")] {
/// use burn::tensor::backend::Backend;
/// use burn::tensor::ops::{FloatTensor, FloatTensorOps};
/// use burn::tensor::{Tensor, TensorPrimitive};
/// use burn_flex::Flex;
/// use burn_lct::{LctBackend, LctTensor, PackedStore};
///
/// trait WithSquare: Backend {
///     fn square(x: FloatTensor<Self>) -> FloatTensor<Self>;
/// }
///
/// impl WithSquare for Flex {
///     fn square(x: FloatTensor<Self>) -> FloatTensor<Self> {
///         Self::float_mul(x.clone(), x) // a kernel, say
///     }
/// }
///
/// impl<B: WithSquare + PackedStore> WithSquare for LctBackend<B> {
///     fn square(x: FloatTensor<Self>) -> FloatTensor<Self> {
///         LctTensor::new(B::square(x.dense()))
///     }
/// }
///
/// let x = Tensor::<LctBackend<Flex>, 1>::from_floats([3.0, -2.0], &Default::default());
/// let square = LctBackend::<Flex>::square(x.into_primitive().tensor());
/// let square = Tensor::<LctBackend<Flex>, 1>::from_primitive(TensorPrimitive::Float(square));
/// assert_eq!(square.into_data().to_vec::<f32>().unwrap(), [9.0, 4.0]);
/// # }
/// ```
#[derive(Clone)]
pub struct LctTensor<B: PackedStore>(Form<B>);

#[derive(Clone)]
enum Form<B: PackedStore> {
    Passed(FloatTensor<B>),
    /// A view, and what it is in a lazy backend's stream as long as the storage is dense there.
    Managed(Arc<Storage<B>>, View, Option<Arc<Image<B>>>),
}

impl<B: PackedStore> LctTensor<B> {
    /// Takes over a fresh result of B, which enters the hot window if it is one to manage.
    #[must_use]
    pub fn new(tensor: FloatTensor<B>) -> Self {
        Self::made(Origin::default(), tensor)
    }

    /// [`new`](Self::new) where it is known which operation it is a result of.
    pub(crate) fn made(origin: Origin, tensor: FloatTensor<B>) -> Self {
        Self::with_recipe(origin, tensor, None)
    }

    /// A result that need not be stored, as the recipe gives it again.
    pub(crate) fn with_recipe(
        origin: Origin,
        tensor: FloatTensor<B>,
        recipe: Option<Recipe<B>>,
    ) -> Self {
        let device = B::float_device(&tensor);
        let residency = Residency::<B>::of(&device);
        if !admits(residency, tensor.dtype(), tensor.shape().num_elements()) {
            return Self(Form::Passed(tensor));
        }
        B::claim(&device, false);
        let storage = Arc::new(Storage::new(tensor, device, residency, origin, recipe));
        storage.residency.admit(&storage);
        let view = View::identity(&storage.shape);
        Self(Form::Managed(storage, view, None))
    }

    /// B's dense tensor: moved out if nobody else holds it, decoded if it is packed.
    ///
    /// # Panics
    /// If the packed form was damaged in memory, or never came to be because the device failed.
    #[must_use]
    pub fn dense(self) -> FloatTensor<B> {
        match self.0 {
            Form::Passed(tensor) => tensor,
            Form::Managed(storage, view, image) => {
                if let Some(tensor) = image.and_then(Image::used) {
                    match Arc::try_unwrap(storage) {
                        Ok(storage) => storage.end(),
                        Err(storage) => storage.used(),
                    }
                    return tensor;
                }
                match Arc::try_unwrap(storage) {
                    Ok(storage) => storage.into_dense(&view),
                    Err(storage) => storage.to_dense(&view),
                }
            }
        }
    }

    /// A tensor of B with this one's shape, type and device, for an operation that asks for no more: what is at rest is not
    /// decoded for it. Its values are anything, and it takes the memory of one.
    pub(crate) fn outline(self) -> FloatTensor<B> {
        match &self.0 {
            Form::Managed(storage, ..) if storage.held() != Held::Dense => {
                let shape = self.shape();
                let point = Shape::from(vec![1; shape.rank()]);
                let point = B::Eager::float_empty(point, &storage.device, FloatDType::BF16);
                B::from_eager(B::Eager::float_expand(point, shape))
            }
            _ => self.dense(),
        }
    }

    /// Counts as a use, so that the tensor is not the next to leave the window.
    pub(crate) fn touch(&self) {
        if let Form::Managed(storage, ..) = &self.0 {
            storage.residency.touch(storage);
        }
    }

    /// The device, without a decode.
    pub(crate) fn device(&self) -> Device<B> {
        match &self.0 {
            Form::Passed(tensor) => B::float_device(tensor),
            Form::Managed(storage, ..) => storage.device.clone(),
        }
    }

    /// A shape-only operation: recorded if it can be replayed for nothing, executed otherwise.
    ///
    /// A lazy backend's stream sees it now, as it would without us, and not at each use.
    pub(crate) fn view(self, op: ViewOp) -> Self {
        let (storage, view, image) = match self.0 {
            Form::Passed(tensor) => return Self(Form::Passed(op.apply::<B>(tensor))),
            Form::Managed(storage, view, image) => (storage, view, image),
        };
        // Padded rows do not join: the reshape copies, once, and not each time that the view is looked at.
        let copies = matches!(&op, ViewOp::Reshape(shape) if storage.reshape_copies(shape));
        // Nobody else has the tensor as it was.
        let is_last = B::LAZY
            && !matches!(op, ViewOp::Expand(_) | ViewOp::Slice(_))
            && view.is_identity()
            && Arc::strong_count(&storage) == 1
            && storage.is_simple();
        let next = view.then(&op);
        // A small piece is a storage of its own, so that the large one can be freed when nobody else uses it.
        let next = next.filter(|next| 4 * next.num_elements() >= storage.shape.num_elements());
        match next {
            Some(next) if !copies && !is_last => {
                let image = if B::LAZY {
                    storage.image(&view, image, &op)
                } else {
                    None
                };
                Self(Form::Managed(storage, next, image))
            }
            _ => Self::new(op.apply::<B>(Self(Form::Managed(storage, view, image)).dense())),
        }
    }

    /// The tensor on `device`; as it is, packed or not, if it is there already. One that rests packed moves packed.
    pub(crate) fn into_device(self, device: &Device<B>) -> Self {
        if self.device() == *device {
            return self;
        }
        let packed = self
            .at_rest()
            .and_then(|storage| Some((storage.packed()?, storage.origin)));
        if let Some((packed, origin)) = packed {
            let residency = Residency::<B>::of(device);
            B::claim(device, false);
            if let Some(moved) = B::relocate(packed.get(), device, &residency.request()) {
                return Self::packed(moved, self.shape(), device.clone(), residency, origin);
            }
        }
        Self::new(B::move_dense(self.dense(), device))
    }

    /// A tensor that was made in packed form.
    fn packed(
        packed: B::Packed,
        shape: Shape,
        device: Device<B>,
        residency: &'static Residency<B>,
        origin: Origin,
    ) -> Self {
        let view = View::identity(&shape);
        let storage = Storage::at_rest(packed, shape, device, residency, origin);
        Self(Form::Managed(Arc::new(storage), view, None))
    }

    /// The storage, if this is all of it as it is.
    fn at_rest(&self) -> Option<&Arc<Storage<B>>> {
        match &self.0 {
            Form::Managed(storage, view, _) if view.is_identity() => Some(storage),
            Form::Managed(..) | Form::Passed(_) => None,
        }
    }
}

#[cfg(feature = "distributed")]
impl<B: PackedStore> LctTensor<B> {
    /// Takes over a result whose values are not there yet. It is not in the hot window, and so is not packed, before somebody
    /// [admits](Residency::admit) the storage, of which there is none if the tensor is not one to manage.
    pub(crate) fn in_flight(tensor: FloatTensor<B>) -> (Self, Option<Weak<Storage<B>>>) {
        let device = B::float_device(&tensor);
        let residency = Residency::<B>::of(&device);
        if !admits(residency, tensor.dtype(), tensor.shape().num_elements()) {
            return (Self(Form::Passed(tensor)), None);
        }
        B::claim(&device, false);
        let storage = Arc::new(Storage::new(
            tensor,
            device,
            residency,
            Origin::default(),
            None,
        ));
        let view = View::identity(&storage.shape);
        let weak = Arc::downgrade(&storage);
        (Self(Form::Managed(storage, view, None)), Some(weak))
    }

    /// B's dense tensor, to be written where it lies. Whether it was managed before; if so, it is not until it is
    /// [taken back](Self::take_back).
    pub(crate) fn lend(&mut self) -> (&mut FloatTensor<B>, bool) {
        let managed = match &self.0 {
            Form::Managed(..) => Some(self.clone()),
            Form::Passed(_) => None,
        };
        let was_managed = managed.is_some();
        if let Some(tensor) = managed {
            self.0 = Form::Passed(tensor.dense());
        }
        match &mut self.0 {
            Form::Passed(tensor) => (tensor, was_managed),
            Form::Managed(..) => unreachable!("it was made one that is passed"),
        }
    }

    /// Manages a tensor again that was lent.
    pub(crate) fn take_back(&mut self) {
        if let Form::Passed(tensor) = &self.0 {
            *self = Self::new(tensor.clone());
        }
    }
}

impl<B: PackedStore> TensorMetadata for LctTensor<B> {
    fn dtype(&self) -> DType {
        match &self.0 {
            Form::Passed(tensor) => tensor.dtype(),
            Form::Managed(..) => DType::BF16,
        }
    }

    fn shape(&self) -> Shape {
        match &self.0 {
            Form::Passed(tensor) => tensor.shape(),
            Form::Managed(_, view, _) => view.shape(),
        }
    }
}

impl<B: PackedStore> std::fmt::Debug for LctTensor<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Form::Passed(tensor) => f.debug_tuple("LctTensor").field(tensor).finish(),
            Form::Managed(storage, view, _) => f
                .debug_struct("LctTensor")
                .field("shape", &view.shape())
                .field("storage", storage)
                .finish(),
        }
    }
}
