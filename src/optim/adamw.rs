//! AdamW.

use burn_core as burn;

use burn::config::Config;
use burn::module::AutodiffModule;
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn_optim::adaptor::OptimizerAdaptor;
use burn_optim::grad_clipping::GradientClippingConfig;
use burn_optim::{AdamW, AdamWConfig, AdamWState, LearningRate, SimpleOptimizer};
use lct_kernels::optim as kernels;

use super::adam::{all_fit, descend};
use super::math::Salts;
use super::step::of_module;
use super::{FusedUpdate, Math};

/// Configuration of AdamW, in place of [`burn_optim::AdamWConfig`].
///
/// BF16 has 8 bits of fraction: under [`Math::Bf16`] a `beta_2` of 0.999 is 1, and so is what a step's decay leaves of the
/// weight, unless rate times decay is at least 1/512.
#[derive(Config, Debug)]
pub struct LctAdamWConfig {
    /// What is kept of the first moment.
    #[config(default = 0.9)]
    beta_1: f32,
    /// What is kept of the second moment.
    #[config(default = 0.999)]
    beta_2: f32,
    /// What is added to the second moment's root.
    #[config(default = 1e-5)]
    epsilon: f32,
    /// The part of the weight that a step at rate 1 takes.
    #[config(default = 1e-4)]
    weight_decay: f32,
    /// Decays only where weight and first moment are both negative or both not.
    #[config(default = false)]
    cautious_weight_decay: bool,
    /// Divides by the root of the greatest second moment so far.
    #[config(default = false)]
    amsgrad: bool,
    /// Clips gradients before the step.
    grad_clipping: Option<GradientClippingConfig>,
    /// In what precision a step is computed.
    #[config(default = "Math::Bf16")]
    math: Math,
}

impl LctAdamWConfig {
    /// The optimizer of a single tensor.
    pub fn build(&self) -> LctAdamW {
        LctAdamW {
            rule: kernels::AdamW {
                beta_1: self.beta_1,
                beta_2: self.beta_2,
                epsilon: self.epsilon,
                amsgrad: self.amsgrad,
                weight_decay: self.weight_decay,
                cautious: self.cautious_weight_decay,
            },
            other_types: AdamWConfig::new()
                .with_beta_1(self.beta_1)
                .with_beta_2(self.beta_2)
                .with_epsilon(self.epsilon)
                .with_weight_decay(self.weight_decay)
                .with_cautious_weight_decay(self.cautious_weight_decay)
                .with_amsgrad(self.amsgrad)
                .build(),
            math: self.math,
            salts: Salts::new(self.math),
        }
    }

    /// The optimizer of a module.
    pub fn init<B, M>(&self) -> OptimizerAdaptor<LctAdamW, M, B>
    where
        B: AutodiffBackend<InnerBackend: FusedUpdate>,
        M: AutodiffModule<B>,
    {
        of_module(self.build(), self.grad_clipping.as_ref())
    }
}

/// AdamW; made by [`LctAdamWConfig`].
#[derive(Clone)]
pub struct LctAdamW {
    rule: kernels::AdamW,
    /// Burn's own, for tensors of other types.
    other_types: AdamW,
    math: Math,
    salts: Salts,
}

impl<B: FusedUpdate> SimpleOptimizer<B> for LctAdamW {
    type State<const D: usize> = AdamWState<B, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<B, D>, Option<Self::State<D>>) {
        let moments = state.map(|state| state.momentum);
        if !all_fit(&tensor, &grad, moments.as_ref()) {
            let state = moments.map(AdamWState::new);
            return SimpleOptimizer::<B>::step(&self.other_types, lr, tensor, grad, state);
        }
        let update = |time, known| {
            let (math, salt) = (self.math.kernel(), self.salts.next());
            self.rule.update(lr, time, known, math, salt)
        };
        let (weight, moments) = descend(update, self.rule.amsgrad, tensor, grad, moments);
        (weight, Some(AdamWState::new(moments)))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &B::Device) -> Self::State<D> {
        AdamWState::new(state.momentum.to_device(device))
    }
}
