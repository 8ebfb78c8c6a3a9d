//! Adam.

use burn_core as burn;

use burn::config::Config;
use burn::module::AutodiffModule;
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn_optim::adaptor::OptimizerAdaptor;
use burn_optim::decay::WeightDecayConfig;
use burn_optim::grad_clipping::GradientClippingConfig;
use burn_optim::{
    Adam, AdamConfig, AdamState, AdaptiveMomentumState, LearningRate, SimpleOptimizer,
};
use lct_kernels::optim::{self as kernels, Update};

use super::math::Salts;
use super::step::{fits, of_module, step};
use super::{FusedUpdate, Math};

/// Configuration of Adam, in place of [`burn_optim::AdamConfig`].
///
/// BF16 has 8 bits of fraction: under [`Math::Bf16`] a `beta_2` of 0.999 is 1, and the second moment only grows.
#[derive(Config, Debug)]
pub struct LctAdamConfig {
    /// What is kept of the first moment.
    #[config(default = 0.9)]
    beta_1: f32,
    /// What is kept of the second moment.
    #[config(default = 0.999)]
    beta_2: f32,
    /// What is added to the second moment's root.
    #[config(default = 1e-5)]
    epsilon: f32,
    /// Divides by the root of the greatest second moment so far.
    #[config(default = false)]
    amsgrad: bool,
    /// Adds a part of the weight to the gradient.
    weight_decay: Option<WeightDecayConfig>,
    /// Clips gradients before the step.
    grad_clipping: Option<GradientClippingConfig>,
    /// In what precision a step is computed.
    #[config(default = "Math::Bf16")]
    math: Math,
}

impl LctAdamConfig {
    /// The optimizer of a single tensor.
    pub fn build(&self) -> LctAdam {
        LctAdam {
            rule: kernels::Adam {
                beta_1: self.beta_1,
                beta_2: self.beta_2,
                epsilon: self.epsilon,
                amsgrad: self.amsgrad,
                penalty: self.weight_decay.as_ref().map(|config| config.penalty),
            },
            other_types: AdamConfig::new()
                .with_beta_1(self.beta_1)
                .with_beta_2(self.beta_2)
                .with_epsilon(self.epsilon)
                .with_amsgrad(self.amsgrad)
                .with_weight_decay(self.weight_decay.clone())
                .build(),
            math: self.math,
            salts: Salts::new(self.math),
        }
    }

    /// The optimizer of a module.
    pub fn init<B, M>(&self) -> OptimizerAdaptor<LctAdam, M, B>
    where
        B: AutodiffBackend<InnerBackend: FusedUpdate>,
        M: AutodiffModule<B>,
    {
        of_module(self.build(), self.grad_clipping.as_ref())
    }
}

/// Adam; made by [`LctAdamConfig`].
#[derive(Clone)]
pub struct LctAdam {
    rule: kernels::Adam,
    /// Burn's own, for tensors of other types.
    other_types: Adam,
    math: Math,
    salts: Salts,
}

impl<B: FusedUpdate> SimpleOptimizer<B> for LctAdam {
    type State<const D: usize> = AdamState<B, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<B, D>, Option<Self::State<D>>) {
        let moments = state.map(|state| state.momentum);
        if !all_fit(&tensor, &grad, moments.as_ref()) {
            let state = moments.map(AdamState::new);
            return SimpleOptimizer::<B>::step(&self.other_types, lr, tensor, grad, state);
        }
        let update = |time, known| {
            let (math, salt) = (self.math.kernel(), self.salts.next());
            self.rule.update(lr, time, known, math, salt)
        };
        let (weight, moments) = descend(update, self.rule.amsgrad, tensor, grad, moments);
        (weight, Some(AdamState::new(moments)))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &B::Device) -> Self::State<D> {
        AdamState::new(state.momentum.to_device(device))
    }
}

/// Whether weight, gradient and moments fit one operation.
pub(super) fn all_fit<B: FusedUpdate, const D: usize>(
    weight: &Tensor<B, D>,
    gradient: &Tensor<B, D>,
    moments: Option<&AdaptiveMomentumState<B, D>>,
) -> bool {
    let first = moments.map(|moments| &moments.moment_1);
    let second = moments.map(|moments| &moments.moment_2);
    let most = moments.and_then(|moments| moments.max_moment_2.as_ref());
    fits(weight, &[Some(gradient), first, second, most])
}

/// The next weight and moments; `update` makes the step of that number with so many known states.
pub(super) fn descend<B: FusedUpdate, const D: usize>(
    update: impl Fn(usize, usize) -> Update,
    amsgrad: bool,
    weight: Tensor<B, D>,
    gradient: Tensor<B, D>,
    moments: Option<AdaptiveMomentumState<B, D>>,
) -> (Tensor<B, D>, AdaptiveMomentumState<B, D>) {
    let mut states = Vec::new();
    let mut time = 1;
    // Without AMSGrad a greatest second moment that was loaded stays as it is.
    let mut unused = None;
    if let Some(moments) = moments {
        time = moments.time + 1;
        states.extend([moments.moment_1, moments.moment_2]);
        if amsgrad {
            states.extend(moments.max_moment_2);
        } else {
            unused = moments.max_moment_2;
        }
    }
    let update = update(time, states.len());
    let (weight, states) = step(&update, weight, gradient, states);
    let mut states = states.into_iter();
    let mut next = || {
        states
            .next()
            .expect("an update returns all states of its rule")
    };
    let mut moments = AdaptiveMomentumState::new(time, next(), next());
    moments.max_moment_2 = match amsgrad {
        true => Some(next()),
        false => unused,
    };
    (weight, moments)
}
