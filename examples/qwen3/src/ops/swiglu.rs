//! The gate of the feed-forward layer. Keeps its two inputs.

use super::{float, primitive};
use burn::tensor::{
    DType, Tensor,
    activation::{sigmoid, silu},
    backend::Backend,
    ops::{FloatTensor, IntTensor},
};
use trainer::differentiable::{Differentiable, Operation};

/// `silu(gate) * up`, all of one shape.
pub fn swiglu<B: Differentiable, const D: usize>(
    gate: Tensor<B, D>,
    up: Tensor<B, D>,
) -> Tensor<B, D> {
    float(B::apply(SwiGlu::<D>, [primitive(gate), primitive(up)], []))
}

#[derive(Clone, Debug)]
struct SwiGlu<const D: usize>;

impl<const D: usize> Operation<2, 0> for SwiGlu<D> {
    const CHEAP: bool = true;

    fn forward<B: Backend>(
        &self,
        [gate, up]: [FloatTensor<B>; 2],
        []: [IntTensor<B>; 0],
    ) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
        let (gate, up) = (float::<B, D>(gate), float::<B, D>(up));
        let dtype = gate.dtype();
        let result = silu(gate.cast(DType::F32)) * up.cast(DType::F32);
        (primitive(result.cast(dtype)), Vec::new())
    }

    fn backward<B: Backend>(
        &self,
        [gate, up]: [FloatTensor<B>; 2],
        []: [IntTensor<B>; 0],
        _kept: Vec<FloatTensor<B>>,
        gradient: FloatTensor<B>,
    ) -> [Option<FloatTensor<B>>; 2] {
        let gate = float::<B, D>(gate);
        let dtype = gate.dtype();
        let [gate, up, gradient] =
            [gate, float(up), float(gradient)].map(|tensor| tensor.cast(DType::F32));
        let share = sigmoid(gate.clone());
        let of_up = gradient.clone() * gate.clone() * share.clone();
        // silu' = s (1 + x (1 - s))
        let slope = share.clone() * (gate * (share.neg() + 1.0) + 1.0);
        let of_gate = gradient * up * slope;
        [of_gate, of_up].map(|tensor| Some(primitive(tensor.cast(dtype))))
    }
}
