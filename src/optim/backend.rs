//! Which backends do a step as one operation.

use burn_backend::Backend;
use burn_backend::tensor::FloatTensor;
use lct_kernels::optim::Update;

use crate::LctBackend;
use crate::store::{Operands, PackedStore};
use crate::tensor::LctTensor;

/// A backend that does an optimizer's step as one operation: [`LctBackend`], and the backends that can stand inside it.
///
/// The bound of a training loop that is generic over the backend; nothing in it is to be called by user code.
pub trait FusedUpdate: Backend {
    /// Does the step; returns the new weight and the states of the update's rule. All operands are BF16, of one shape and
    /// on one device.
    ///
    /// # Panics
    /// If the operands differ in shape, are not those that the update is for, or are too many values for a kernel.
    fn fused_update(
        update: &Update,
        operands: Operands<FloatTensor<Self>>,
    ) -> Vec<FloatTensor<Self>>;
}

impl<P: PackedStore> FusedUpdate for P {
    fn fused_update(update: &Update, operands: Operands<FloatTensor<P>>) -> Vec<FloatTensor<P>> {
        P::update(update, operands)
    }
}

impl<P: PackedStore> FusedUpdate for LctBackend<P> {
    fn fused_update(
        update: &Update,
        operands: Operands<FloatTensor<Self>>,
    ) -> Vec<FloatTensor<Self>> {
        LctTensor::update(update, operands)
    }
}
