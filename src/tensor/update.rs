//! An optimizer's step.

use std::sync::Arc;

use burn_backend::tensor::FloatTensor;
use lct_kernels::optim::Update;

use super::{LctTensor, Storage, natural_break};
use crate::store::{Operands, Origin, PackedStore};

impl<B: PackedStore> LctTensor<B> {
    /// Does the step as one operation of the backend inside; returns the new weight and states. Where all of them rest
    /// packed, the backend is asked to leave them so.
    pub(crate) fn update(update: &Update, operands: Operands<Self>) -> Vec<Self> {
        operands.iter().for_each(Self::touch);
        // A fused run ends here anyway.
        natural_break::<B>(&operands.weight.device());
        let gradient = operands.gradient.dense();
        let mut old = vec![operands.weight];
        old.extend(operands.states);
        let gradient = match Self::update_packed(update, gradient, &old) {
            Ok(new) => return new,
            Err(gradient) => gradient,
        };
        let mut dense = old.into_iter().map(Self::dense);
        let operands = Operands {
            gradient,
            weight: dense.next().expect("the weight is there"),
            states: dense.collect(),
        };
        let new = B::update(update, operands);
        let wrap = |(index, tensor)| Self::made(Origin::updated(index), tensor);
        new.into_iter().enumerate().map(wrap).collect()
    }

    /// The step on the packed forms of weight and states, or the gradient if they do not all rest packed.
    fn update_packed(
        update: &Update,
        gradient: FloatTensor<B>,
        old: &[Self],
    ) -> Result<Vec<Self>, FloatTensor<B>> {
        let storages: Option<Vec<&Arc<Storage<B>>>> = old.iter().map(Self::at_rest).collect();
        // A first step makes states that have no packed form yet.
        let all_exist = update.chain.known == update.chain.states();
        let Some(storages) = storages.filter(|_| all_exist) else {
            return Err(gradient);
        };
        let rests: Option<Vec<_>> = storages.iter().map(|storage| storage.packed()).collect();
        let Some(rests) = rests else {
            return Err(gradient);
        };
        let forms: Vec<&B::Packed> = rests.iter().map(|rest| rest.get()).collect();
        let request = storages[0].residency.request();
        let new = B::update_packed(update, gradient, &forms, &request)?;
        let wrap = |(index, (packed, old)): (usize, (B::Packed, &Arc<Storage<B>>))| {
            let (shape, device) = (old.shape.clone(), old.device.clone());
            Self::packed(packed, shape, device, old.residency, Origin::updated(index))
        };
        Ok(new
            .into_iter()
            .zip(storages)
            .enumerate()
            .map(wrap)
            .collect())
    }
}
