//! Operations that keep little for the backward pass, each with its gradient written by hand.
//!
//! Sums and exponentials are taken in f32, whatever the type of the operands.

mod attention;
mod loss;
mod norm;
mod swiglu;

pub use attention::attention;
pub use loss::surprise;
pub use norm::{rms_norm, rms_norm_rotated};
pub use swiglu::swiglu;

use burn::tensor::{
    Int, Tensor, TensorPrimitive,
    backend::Backend,
    ops::{FloatTensor, IntTensor},
};

fn float<B: Backend, const D: usize>(primitive: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}

fn int<B: Backend, const D: usize>(primitive: IntTensor<B>) -> Tensor<B, D, Int> {
    Tensor::from_primitive(primitive)
}

fn primitive<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}
