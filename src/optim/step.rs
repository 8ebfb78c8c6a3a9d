//! What the optimizers share.

use burn_core::module::AutodiffModule;
use burn_core::tensor::backend::AutodiffBackend;
use burn_core::tensor::{DType, Tensor};
use burn_optim::SimpleOptimizer;
use burn_optim::adaptor::OptimizerAdaptor;
use burn_optim::grad_clipping::GradientClippingConfig;
use lct_kernels::optim::Update;

use super::{FusedUpdate, primitive, tensor};
use crate::store::Operands;

/// The most values whose places, gaps between rows included, kernels can count.
const MOST_VALUES: usize = u32::MAX as usize / 2;

/// Whether a step on these tensors is one that is done as one operation. Others take Burn's chain.
pub(super) fn fits<B: FusedUpdate, const D: usize>(
    weight: &Tensor<B, D>,
    others: &[Option<&Tensor<B, D>>],
) -> bool {
    let values = weight.shape().num_elements();
    let same =
        |other: &&Tensor<B, D>| other.dtype() == DType::BF16 && other.shape() == weight.shape();
    weight.dtype() == DType::BF16
        && (1..=MOST_VALUES).contains(&values)
        && others.iter().flatten().all(same)
}

/// The new weight and states.
pub(super) fn step<B: FusedUpdate, const D: usize>(
    update: &Update,
    weight: Tensor<B, D>,
    gradient: Tensor<B, D>,
    states: Vec<Tensor<B, D>>,
) -> (Tensor<B, D>, Vec<Tensor<B, D>>) {
    let operands = Operands {
        gradient: primitive(gradient),
        weight: primitive(weight),
        states: states.into_iter().map(primitive).collect(),
    };
    let mut new = B::fused_update(update, operands).into_iter().map(tensor);
    let weight = new.next().expect("an update returns the weight");
    (weight, new.collect())
}

/// The optimizer of a module, with gradients clipped if that is asked for.
pub(super) fn of_module<O, M, B>(
    optim: O,
    clipping: Option<&GradientClippingConfig>,
) -> OptimizerAdaptor<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend>,
    M: AutodiffModule<B>,
    B: AutodiffBackend,
{
    let optim = OptimizerAdaptor::from(optim);
    match clipping {
        Some(config) => optim.with_grad_clipping(config.init()),
        None => optim,
    }
}
