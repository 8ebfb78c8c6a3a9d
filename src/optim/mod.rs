//! Burn's optimizers, each step one operation of the backend instead of a chain of them.
//!
//! [`LctSgdConfig`], [`LctAdamConfig`] and [`LctAdamWConfig`] have the builder methods of Burn's configurations and make
//! optimizers whose results and checkpoints are the same as Burn's on the same backend without fusion, bit for bit. See
//! `docs/optimizers.md`.
//!
//! ```
//! # #[cfg(feature = "flex")] {
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::{GradientsParams, Optimizer, momentum::MomentumConfig};
//! use burn::tensor::Tensor;
//! use burn_autodiff::Autodiff;
//! use burn_flex::Flex;
//! use burn_lct::{LctBackend, LctSgdConfig};
//!
//! type Train = Autodiff<LctBackend<Flex>>;
//!
//! let device = Default::default();
//! let model: Linear<Train> = LinearConfig::new(64, 64).init(&device);
//! let mut optim = LctSgdConfig::new()
//!     .with_momentum(Some(MomentumConfig::new()))
//!     .init::<Train, Linear<Train>>();
//! let loss = model.forward(Tensor::<Train, 2>::ones([8, 64], &device)).sum();
//! let grads = GradientsParams::from_grads(loss.backward(), &model);
//! let model = optim.step(0.01, model, grads);
//! # let _ = model;
//! # }
//! ```

use burn_core::tensor::backend::Backend;
use burn_core::tensor::{Tensor, TensorPrimitive};

mod adam;
mod adamw;
mod backend;
mod math;
mod sgd;
mod step;

pub use adam::{LctAdam, LctAdamConfig};
pub use adamw::{LctAdamW, LctAdamWConfig};
pub use backend::FusedUpdate;
pub use math::Math;
pub use sgd::{LctMomentumState, LctSgd, LctSgdConfig, LctSgdState};

/// The primitive of a float tensor.
fn primitive<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> B::FloatTensorPrimitive {
    tensor.into_primitive().tensor()
}

/// The tensor of a primitive.
fn tensor<B: Backend, const D: usize>(primitive: B::FloatTensorPrimitive) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}
