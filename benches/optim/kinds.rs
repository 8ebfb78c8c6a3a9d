//! The optimizers that are measured: Burn's own and ours, with the same numbers.

use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    Adam, AdamConfig, AdamState, AdamW, AdamWConfig, AdamWState, Sgd, SgdConfig, SgdState,
    SimpleOptimizer,
};
use burn::record::{PrecisionSettings, Record};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, bf16};
use burn_lct::kernels::optim::{self as kernels, Math, Update};
use burn_lct::optim::FusedUpdate;
use burn_lct::optim::{LctAdam, LctAdamW, LctSgd, LctSgdState};
use burn_lct::{LctAdamConfig, LctAdamWConfig, LctSgdConfig};

/// What `--optimizer` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Momentum 0.9, dampening 0.1.
    Sgd,
    /// Momentum 0.9, Nesterov, weight decay 0.01.
    SgdNesterov,
    /// Betas 0.9 and 0.95, weight decay 0.01.
    Adam,
    /// Betas 0.9 and 0.95, AMSGrad.
    AdamAmsgrad,
    /// Betas 0.9 and 0.95, weight decay 0.1.
    AdamW,
    /// The same, decaying cautiously.
    AdamWCautious,
}

/// The learning rate of all.
pub const RATE: f64 = 1e-3;

impl Kind {
    pub const ALL: [Self; 6] = [
        Self::Sgd,
        Self::SgdNesterov,
        Self::Adam,
        Self::AdamAmsgrad,
        Self::AdamW,
        Self::AdamWCautious,
    ];

    fn momentum(self) -> MomentumConfig {
        MomentumConfig::new().with_nesterov(self == Self::SgdNesterov)
    }

    fn decay(self) -> Option<WeightDecayConfig> {
        matches!(self, Self::SgdNesterov | Self::Adam).then(|| WeightDecayConfig::new(0.01))
    }

    /// Tensors of state.
    pub fn states(self) -> usize {
        match self {
            Self::Sgd | Self::SgdNesterov => 1,
            Self::Adam | Self::AdamW | Self::AdamWCautious => 2,
            Self::AdamAmsgrad => 3,
        }
    }

    /// The step number `time` for the kernels, with all states known but in the first.
    pub fn update(self, time: usize) -> Update {
        let known = if time == 1 { 0 } else { self.states() };
        let penalty = self.decay().map(|decay| decay.penalty);
        match self {
            Self::Sgd | Self::SgdNesterov => {
                let config = self.momentum();
                let momentum = Some(kernels::Momentum {
                    momentum: config.momentum,
                    dampening: config.dampening,
                    nesterov: config.nesterov,
                });
                kernels::Sgd { momentum, penalty }.update(RATE, known, Math::Bf16, 0)
            }
            Self::Adam | Self::AdamAmsgrad => kernels::Adam {
                beta_1: 0.9,
                beta_2: 0.95,
                epsilon: 1e-8,
                amsgrad: self == Self::AdamAmsgrad,
                penalty,
            }
            .update(RATE, time, known, Math::Bf16, 0),
            Self::AdamW | Self::AdamWCautious => kernels::AdamW {
                beta_1: 0.9,
                beta_2: 0.95,
                epsilon: 1e-8,
                amsgrad: false,
                weight_decay: 0.1,
                cautious: self == Self::AdamWCautious,
            }
            .update(RATE, time, known, Math::Bf16, 0),
        }
    }
}

/// An optimizer and its state for one parameter.
pub trait Stepper<B: Backend> {
    /// The weight after a step.
    fn step(&mut self, weight: Tensor<B, 1>, gradient: Tensor<B, 1>) -> Tensor<B, 1>;

    /// The states, in the order of the kernels.
    fn states(&self) -> Vec<Tensor<B, 1>>;
}

struct Held<B: Backend, O: SimpleOptimizer<B>> {
    optim: O,
    state: Option<O::State<1>>,
    list: fn(&O::State<1>) -> Vec<Tensor<B, 1>>,
}

impl<B: Backend, O: SimpleOptimizer<B>> Stepper<B> for Held<B, O> {
    fn step(&mut self, weight: Tensor<B, 1>, gradient: Tensor<B, 1>) -> Tensor<B, 1> {
        let (weight, state) = (self.optim).step(RATE, weight, gradient, self.state.take());
        self.state = state;
        weight
    }

    fn states(&self) -> Vec<Tensor<B, 1>> {
        self.state.iter().flat_map(self.list).collect()
    }
}

fn held<B: Backend, O: SimpleOptimizer<B> + 'static>(
    optim: O,
    list: fn(&O::State<1>) -> Vec<Tensor<B, 1>>,
) -> Box<dyn Stepper<B>> {
    Box::new(Held {
        optim,
        state: None,
        list,
    })
}

/// Records floats as they are.
#[derive(Clone, Debug, Default)]
struct Bf16Settings;

impl PrecisionSettings for Bf16Settings {
    type FloatElem = bf16;
    type IntElem = i32;
}

fn sgd_states<B: Backend>(state: &SgdState<B, 1>) -> Vec<Tensor<B, 1>> {
    let momentum = state.momentum.clone();
    // Burn shows the velocity only as it is recorded.
    let item = momentum.map(|state| state.into_item::<Bf16Settings>().velocity);
    let tensor = |item| Tensor::from_item::<Bf16Settings>(item, &B::Device::default());
    item.into_iter().map(tensor).collect()
}

fn moments<B: Backend>(momentum: &burn::optim::AdaptiveMomentumState<B, 1>) -> Vec<Tensor<B, 1>> {
    let mut all = vec![momentum.moment_1.clone(), momentum.moment_2.clone()];
    all.extend(momentum.max_moment_2.clone());
    all
}

/// Burn's own optimizer.
pub fn burns<B: Backend>(kind: Kind) -> Box<dyn Stepper<B>> {
    match kind {
        Kind::Sgd | Kind::SgdNesterov => held::<B, Sgd<B>>(
            SgdConfig::new()
                .with_momentum(Some(kind.momentum()))
                .with_weight_decay(kind.decay())
                .build(),
            sgd_states,
        ),
        Kind::Adam | Kind::AdamAmsgrad => held::<B, Adam>(
            AdamConfig::new()
                .with_beta_2(0.95)
                .with_epsilon(1e-8)
                .with_amsgrad(kind == Kind::AdamAmsgrad)
                .with_weight_decay(kind.decay())
                .build(),
            |state: &AdamState<B, 1>| moments(&state.momentum),
        ),
        Kind::AdamW | Kind::AdamWCautious => held::<B, AdamW>(
            AdamWConfig::new()
                .with_beta_2(0.95)
                .with_epsilon(1e-8)
                .with_weight_decay(0.1)
                .with_cautious_weight_decay(kind == Kind::AdamWCautious)
                .build(),
            |state: &AdamWState<B, 1>| moments(&state.momentum),
        ),
    }
}

/// Ours, with the same numbers.
pub fn ours<B: FusedUpdate>(kind: Kind) -> Box<dyn Stepper<B>> {
    match kind {
        Kind::Sgd | Kind::SgdNesterov => held::<B, LctSgd>(
            LctSgdConfig::new()
                .with_momentum(Some(kind.momentum()))
                .with_weight_decay(kind.decay())
                .build(),
            |state: &LctSgdState<B, 1>| {
                let momentum = state.momentum.clone();
                momentum.into_iter().map(|state| state.velocity).collect()
            },
        ),
        Kind::Adam | Kind::AdamAmsgrad => held::<B, LctAdam>(
            LctAdamConfig::new()
                .with_beta_2(0.95)
                .with_epsilon(1e-8)
                .with_amsgrad(kind == Kind::AdamAmsgrad)
                .with_weight_decay(kind.decay())
                .build(),
            |state: &AdamState<B, 1>| moments(&state.momentum),
        ),
        Kind::AdamW | Kind::AdamWCautious => held::<B, LctAdamW>(
            LctAdamWConfig::new()
                .with_beta_2(0.95)
                .with_epsilon(1e-8)
                .with_weight_decay(0.1)
                .with_cautious_weight_decay(kind == Kind::AdamWCautious)
                .build(),
            |state: &AdamWState<B, 1>| moments(&state.momentum),
        ),
    }
}
