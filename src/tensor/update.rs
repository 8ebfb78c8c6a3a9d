//! An optimizer's step.

use std::sync::Arc;

use lct_kernels::optim::Update;

use super::{Form, LctTensor, Storage, View, natural_break};
use crate::store::{Operands, PackedStore};

impl<B: PackedStore> LctTensor<B> {
    /// Does the step as one operation of the backend inside; returns the new weight and states. Where all of them rest
    /// packed, the backend is asked to leave them so.
    pub(crate) fn update(update: &Update, mut operands: Operands<Self>) -> Vec<Self> {
        operands.iter().for_each(Self::touch);
        // A fused run ends here anyway.
        natural_break::<B>(&operands.weight.device());
        match Self::update_packed(update, operands) {
            Ok(new) => return new,
            Err(others) => operands = others,
        }
        let new = B::update(update, operands.map(Self::dense));
        new.into_iter().map(Self::new).collect()
    }

    /// The step on packed forms, or the operands as they are.
    fn update_packed(
        update: &Update,
        operands: Operands<Self>,
    ) -> Result<Vec<Self>, Operands<Self>> {
        // A first step makes states that have no packed form yet.
        if update.chain.known < update.chain.states() {
            return Err(operands);
        }
        let olds = operands.iter().skip(1).map(Self::at_rest);
        let Some(olds) = olds.collect::<Option<Vec<&Arc<Storage<B>>>>>() else {
            return Err(operands);
        };
        let rests = olds.iter().map(|storage| storage.packed());
        let Some(rests) = rests.collect::<Option<Vec<_>>>() else {
            return Err(operands);
        };
        let forms: Vec<&B::Packed> = rests.iter().map(|rest| rest.get()).collect();
        let gradient = operands.gradient.clone().dense();
        let request = olds[0].residency.request();
        match B::update_packed(update, gradient, &forms, &request) {
            Ok(new) => Ok(new
                .into_iter()
                .zip(olds)
                .map(|(packed, old)| {
                    let view = View::identity(&old.shape);
                    Self(Form::Managed(Arc::new(Storage::at_rest(packed, old)), view))
                })
                .collect()),
            Err(_) => Err(operands),
        }
    }

    /// The storage, if this is all of it as it is.
    fn at_rest(&self) -> Option<&Arc<Storage<B>>> {
        match &self.0 {
            Form::Managed(storage, view) if view.is_identity() => Some(storage),
            Form::Managed(..) | Form::Passed(_) => None,
        }
    }
}
