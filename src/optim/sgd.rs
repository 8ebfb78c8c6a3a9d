//! Stochastic gradient descent.

use burn_core as burn;

use burn::config::Config;
use burn::module::AutodiffModule;
use burn::record::Record;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{ElementConversion, Tensor};
use burn_optim::adaptor::OptimizerAdaptor;
use burn_optim::decay::WeightDecayConfig;
use burn_optim::grad_clipping::GradientClippingConfig;
use burn_optim::momentum::MomentumConfig;
use burn_optim::{LearningRate, SimpleOptimizer};
use lct_kernels::optim as kernels;

use super::math::Salts;
use super::step::{fits, of_module, step};
use super::{FusedUpdate, Math};

/// Configuration of stochastic gradient descent, in place of [`burn_optim::SgdConfig`].
#[derive(Config, Debug)]
pub struct LctSgdConfig {
    /// Adds a part of the weight to the gradient.
    weight_decay: Option<WeightDecayConfig>,
    /// Follows a velocity instead of the gradient.
    momentum: Option<MomentumConfig>,
    /// Clips gradients before the step.
    gradient_clipping: Option<GradientClippingConfig>,
    /// In what precision a step is computed.
    #[config(default = "Math::Bf16")]
    math: Math,
}

impl LctSgdConfig {
    /// The optimizer of a single tensor.
    pub fn build(&self) -> LctSgd {
        LctSgd {
            rule: kernels::Sgd {
                momentum: self.momentum.as_ref().map(|config| kernels::Momentum {
                    momentum: config.momentum,
                    dampening: config.dampening,
                    nesterov: config.nesterov,
                }),
                penalty: self.weight_decay.as_ref().map(|config| config.penalty),
            },
            math: self.math,
            salts: Salts::new(self.math),
        }
    }

    /// The optimizer of a module.
    pub fn init<B, M>(&self) -> OptimizerAdaptor<LctSgd, M, B>
    where
        B: AutodiffBackend<InnerBackend: FusedUpdate>,
        M: AutodiffModule<B>,
    {
        of_module(self.build(), self.gradient_clipping.as_ref())
    }
}

/// Stochastic gradient descent; made by [`LctSgdConfig`].
#[derive(Clone, Debug)]
pub struct LctSgd {
    rule: kernels::Sgd,
    math: Math,
    salts: Salts,
}

/// The state of [`LctSgd`]. Its record reads and writes the files of [`burn_optim::SgdState`]'s.
#[derive(Record, Clone, Debug)]
pub struct LctSgdState<B: Backend, const D: usize> {
    /// The velocity, if there is one.
    pub momentum: Option<LctMomentumState<B, D>>,
}

/// The velocity of a parameter. Burn's own state does not let it out.
#[derive(Record, Clone, Debug)]
pub struct LctMomentumState<B: Backend, const D: usize> {
    /// Of the parameter's shape.
    pub velocity: Tensor<B, D>,
}

impl<B: FusedUpdate> SimpleOptimizer<B> for LctSgd {
    type State<const D: usize> = LctSgdState<B, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<B, D>, Option<Self::State<D>>) {
        let velocity = state.and_then(|state| state.momentum);
        let velocity = velocity.map(|state| state.velocity);
        if self.rule.momentum.is_none() {
            // One that was loaded is kept for an optimizer that uses it.
            let (weight, _) = self.descend(lr, tensor, grad, None);
            return (weight, state_of(velocity));
        }
        let (weight, velocity) = self.descend(lr, tensor, grad, velocity);
        (weight, state_of(velocity))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &B::Device) -> Self::State<D> {
        state_of(state.momentum.map(|state| state.velocity.to_device(device)))
            .expect("a state is always made")
    }
}

fn state_of<B: Backend, const D: usize>(
    velocity: Option<Tensor<B, D>>,
) -> Option<LctSgdState<B, D>> {
    let momentum = velocity.map(|velocity| LctMomentumState { velocity });
    Some(LctSgdState { momentum })
}

impl LctSgd {
    fn descend<B: FusedUpdate, const D: usize>(
        &self,
        rate: LearningRate,
        weight: Tensor<B, D>,
        gradient: Tensor<B, D>,
        velocity: Option<Tensor<B, D>>,
    ) -> (Tensor<B, D>, Option<Tensor<B, D>>) {
        if !fits(&weight, &[Some(&gradient), velocity.as_ref()]) {
            return self.chain(rate, weight, gradient, velocity);
        }
        let known = velocity.iter().len();
        let update = (self.rule).update(rate, known, self.math.kernel(), self.salts.next());
        let (weight, states) = step(&update, weight, gradient, velocity.into_iter().collect());
        (weight, states.into_iter().next())
    }

    /// The step operation by operation, for tensors of other types.
    fn chain<B: Backend, const D: usize>(
        &self,
        rate: LearningRate,
        weight: Tensor<B, D>,
        gradient: Tensor<B, D>,
        velocity: Option<Tensor<B, D>>,
    ) -> (Tensor<B, D>, Option<Tensor<B, D>>) {
        let gradient = match self.rule.penalty {
            Some(penalty) => weight.clone().mul_scalar(penalty) + gradient,
            None => gradient,
        };
        let (direction, velocity) = match self.rule.momentum {
            None => (gradient, velocity),
            Some(rule) => {
                let keep: B::FloatElem = rule.momentum.elem();
                let velocity = match velocity {
                    Some(velocity) => {
                        gradient.clone().mul_scalar(1.0 - rule.dampening)
                            + velocity.mul_scalar(keep)
                    }
                    None => gradient.clone(),
                };
                let direction = match rule.nesterov {
                    true => velocity.clone().mul_scalar(keep) + gradient,
                    false => velocity.clone(),
                };
                (direction, Some(velocity))
            }
        };
        (weight - direction.mul_scalar(rate), velocity)
    }
}
