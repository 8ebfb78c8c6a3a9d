//! An optimizer's step.

use lct_kernels::optim::Update;

use super::{LctTensor, natural_break};
use crate::store::{Operands, PackedStore};

impl<B: PackedStore> LctTensor<B> {
    /// Does the step as one operation of the backend inside; returns the new weight and states.
    pub(crate) fn update(update: &Update, operands: Operands<Self>) -> Vec<Self> {
        operands.iter().for_each(Self::touch);
        // A fused run ends here anyway.
        natural_break::<B>(&operands.weight.device());
        let new = B::update(update, operands.map(Self::dense));
        new.into_iter().map(Self::new).collect()
    }
}
