//! Burn's optimizers and ours behind one type, so that the training loop is compiled once for all.

use crate::{
    Error,
    checkpoint::{Bf16Recorder, Bf16Settings},
    cli::RunArgs,
    differentiable::Differentiable,
    digest,
};
use burn::{
    module::{AutodiffModule, ParamId},
    optim::{
        AdamW, AdamWConfig, GradientsParams, Optimizer, Sgd, SgdConfig, adaptor::OptimizerAdaptor,
        momentum::MomentumConfig,
    },
    record::{PrecisionSettings, Record, Recorder, RecorderError},
    tensor::{Tensor, backend::AutodiffBackend},
};
use burn_lct::optim::{FusedUpdate, LctAdamW, LctSgd, Math};
use burn_lct::{LctAdamWConfig, LctSgdConfig};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Which optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OptimKind {
    /// Stochastic gradient descent with momentum 0.9.
    Sgd,
    /// AdamW with betas 0.9 and 0.95 and weight decay 0.1.
    #[value(name = "adamw")]
    AdamW,
    /// The same as `sgd`, each step one operation.
    #[serde(rename = "lct-sgd")]
    LctSgd,
    /// The same as `adamw`, each step one operation.
    #[serde(rename = "lct-adamw")]
    #[value(name = "lct-adamw")]
    LctAdamW,
}

/// In what precision `lct-sgd` and `lct-adamw` compute a step. Weights and states are BF16 in each case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum MathKind {
    /// As Burn: every result of the chain of operations, and every number in it, is rounded to BF16.
    Bf16,
    /// In f32; what is stored is rounded to nearest.
    F32,
    /// In f32; what is stored is rounded up or down with probabilities that keep its expectation, drawn from --seed.
    Stochastic,
}

#[cfg(not(feature = "distributed"))]
pub use burn::tensor::backend::Backend as Reduces;
/// What Burn's autodiff asks of a backend beyond being one.
#[cfg(feature = "distributed")]
pub use burn::tensor::backend::distributed::DistributedBackend as Reduces;

/// A backend below automatic differentiation: every one of these programs.
pub trait BaseBackend: FusedUpdate + Differentiable + Reduces {}

impl<B: FusedUpdate + Differentiable + Reduces> BaseBackend for B {}

/// A backend to train on: every one of these programs.
pub trait TrainBackend:
    AutodiffBackend<InnerBackend: BaseBackend> + Differentiable + Reduces
{
}

impl<B: AutodiffBackend<InnerBackend: BaseBackend> + Differentiable + Reduces> TrainBackend for B {}

impl OptimKind {
    /// The tensors of state that it keeps for each parameter.
    pub fn states(self) -> u64 {
        match self {
            Self::Sgd | Self::LctSgd => 1,
            Self::AdamW | Self::LctAdamW => 2,
        }
    }

    /// Whether a step is one operation of ours, whose precision can be chosen.
    pub fn is_fused(self) -> bool {
        matches!(self, Self::LctSgd | Self::LctAdamW)
    }
}

/// An optimizer of a model, with its state.
pub enum Optim<B: TrainBackend, M: AutodiffModule<B>> {
    /// See [`OptimKind::Sgd`].
    Sgd(OptimizerAdaptor<Sgd<B::InnerBackend>, M, B>),
    /// See [`OptimKind::AdamW`].
    AdamW(OptimizerAdaptor<AdamW, M, B>),
    /// See [`OptimKind::LctSgd`].
    LctSgd(OptimizerAdaptor<LctSgd, M, B>),
    /// See [`OptimKind::LctAdamW`].
    LctAdamW(OptimizerAdaptor<LctAdamW, M, B>),
}

impl<B: TrainBackend, M: AutodiffModule<B>> Optim<B, M> {
    /// The optimizer of a run's settings, without state.
    pub fn new(run: &RunArgs) -> Self {
        let math = match run.math {
            MathKind::Bf16 => Math::Bf16,
            MathKind::F32 => Math::F32,
            MathKind::Stochastic => Math::Stochastic { seed: run.seed },
        };
        match run.optim {
            OptimKind::Sgd => Self::Sgd(
                SgdConfig::new()
                    .with_momentum(Some(MomentumConfig::new()))
                    .init(),
            ),
            // BF16 has 8 bits of fraction: a second moment that loses a thousandth of itself each step would not change.
            OptimKind::AdamW => Self::AdamW(
                AdamWConfig::new()
                    .with_beta_2(0.95)
                    .with_epsilon(1e-8)
                    .with_weight_decay(0.1)
                    .init(),
            ),
            OptimKind::LctSgd => Self::LctSgd(
                LctSgdConfig::new()
                    .with_momentum(Some(MomentumConfig::new()))
                    .with_math(math)
                    .init(),
            ),
            OptimKind::LctAdamW => Self::LctAdamW(
                LctAdamWConfig::new()
                    .with_beta_2(0.95)
                    .with_epsilon(1e-8)
                    .with_weight_decay(0.1)
                    .with_math(math)
                    .init(),
            ),
        }
    }

    /// The model after one step of those parameters that have a gradient.
    pub fn step(&mut self, rate: f64, model: M, grads: GradientsParams) -> M {
        match self {
            Self::Sgd(optim) => optim.step(rate, model, grads),
            Self::AdamW(optim) => optim.step(rate, model, grads),
            Self::LctSgd(optim) => optim.step(rate, model, grads),
            Self::LctAdamW(optim) => optim.step(rate, model, grads),
        }
    }

    /// The digest of the state, in the order of the parameters, its floats in the type of `S`.
    ///
    /// # Errors
    /// See [`digest::state`].
    pub fn digest<S: PrecisionSettings>(&self, order: &[ParamId]) -> Result<String, Error> {
        match self {
            Self::Sgd(optim) => {
                let mut record = optim.to_record();
                digest::state::<S, _, _>(order, |id| record.remove(id))
            }
            Self::AdamW(optim) => {
                let mut record = optim.to_record();
                digest::state::<S, _, _>(order, |id| record.remove(id))
            }
            Self::LctSgd(optim) => {
                let mut record = optim.to_record();
                digest::state::<S, _, _>(order, |id| record.remove(id))
            }
            Self::LctAdamW(optim) => {
                let mut record = optim.to_record();
                digest::state::<S, _, _>(order, |id| record.remove(id))
            }
        }
    }

    /// The tensors of a parameter's state, each with its kind; none before the first step.
    pub fn moments<const D: usize>(
        &self,
        id: ParamId,
        device: &B::Device,
    ) -> Vec<(&'static str, Tensor<B::InnerBackend, D>)> {
        match self {
            Self::Sgd(optim) => {
                let record = optim.to_record().remove(&id);
                let momentum = record.and_then(|record| record.into_state::<D>().momentum);
                // Burn shows the velocity only as it is recorded.
                let velocity = momentum.map(|state| state.into_item::<Bf16Settings>().velocity);
                let tensor =
                    |item| Tensor::<B::InnerBackend, D>::from_item::<Bf16Settings>(item, device);
                velocity
                    .into_iter()
                    .map(|item| ("momentum", tensor(item)))
                    .collect()
            }
            Self::AdamW(optim) => match optim.to_record().remove(&id) {
                Some(record) => {
                    let state = record.into_state::<D>().momentum;
                    vec![("moment_1", state.moment_1), ("moment_2", state.moment_2)]
                }
                None => Vec::new(),
            },
            Self::LctSgd(optim) => {
                let record = optim.to_record().remove(&id);
                let momentum = record.and_then(|record| record.into_state::<D>().momentum);
                momentum
                    .into_iter()
                    .map(|state| ("momentum", state.velocity))
                    .collect()
            }
            Self::LctAdamW(optim) => match optim.to_record().remove(&id) {
                Some(record) => {
                    let state = record.into_state::<D>().momentum;
                    vec![("moment_1", state.moment_1), ("moment_2", state.moment_2)]
                }
                None => Vec::new(),
            },
        }
    }

    /// Writes the state to a file.
    ///
    /// # Errors
    /// Those of Burn's recorder.
    pub fn save(&self, path: PathBuf) -> Result<(), RecorderError> {
        let recorder = Bf16Recorder::default();
        match self {
            Self::Sgd(optim) => Recorder::<B>::record(&recorder, optim.to_record(), path),
            Self::AdamW(optim) => Recorder::<B>::record(&recorder, optim.to_record(), path),
            Self::LctSgd(optim) => Recorder::<B>::record(&recorder, optim.to_record(), path),
            Self::LctAdamW(optim) => Recorder::<B>::record(&recorder, optim.to_record(), path),
        }
    }

    /// Reads the state from a file.
    ///
    /// # Errors
    /// Those of Burn's recorder.
    pub fn load(self, path: PathBuf, device: &B::Device) -> Result<Self, RecorderError> {
        let recorder = Bf16Recorder::default();
        Ok(match self {
            Self::Sgd(optim) => {
                Self::Sgd(optim.load_record(Recorder::<B>::load(&recorder, path, device)?))
            }
            Self::AdamW(optim) => {
                Self::AdamW(optim.load_record(Recorder::<B>::load(&recorder, path, device)?))
            }
            Self::LctSgd(optim) => {
                Self::LctSgd(optim.load_record(Recorder::<B>::load(&recorder, path, device)?))
            }
            Self::LctAdamW(optim) => {
                Self::LctAdamW(optim.load_record(Recorder::<B>::load(&recorder, path, device)?))
            }
        })
    }
}
