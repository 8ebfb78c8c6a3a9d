//! RMS norms, alone and followed by the rotation of queries and keys. Both keep their inputs only.

use super::{float, primitive};
use burn::{
    nn::RmsNorm,
    tensor::{
        DType, Tensor,
        backend::Backend,
        ops::{FloatTensor, IntTensor},
    },
};
use trainer::differentiable::{Differentiable, Operation};

/// `x / sqrt(mean(x²) + epsilon) * gamma` along the last dimension.
pub fn rms_norm<B: Differentiable, const D: usize>(
    x: Tensor<B, D>,
    norm: &RmsNorm<B>,
) -> Tensor<B, D> {
    let shape = x.dims();
    let width = shape[D - 1];
    let rows = x.reshape([shape.iter().product::<usize>() / width, width]);
    let operation = Norm {
        epsilon: norm.epsilon,
    };
    let inputs = [primitive(rows), primitive(norm.gamma.val())];
    float::<B, 2>(B::apply(operation, inputs, [])).reshape(shape)
}

/// The norm of each head's vector, turned by its position: RoPE, which turns the pairs `(i, i + head / 2)`.
///
/// # Shapes
/// - `x`: `[batch, sequence, heads, head]`
/// - `cos` and `sin`: `[sequence, head]`, in f32; constants
pub fn rms_norm_rotated<B: Differentiable>(
    x: Tensor<B, 4>,
    norm: &RmsNorm<B>,
    cos: Tensor<B, 2>,
    sin: Tensor<B, 2>,
) -> Tensor<B, 4> {
    let operation = NormRotated {
        epsilon: norm.epsilon,
    };
    let gamma = primitive(norm.gamma.val());
    let inputs = [primitive(x), gamma, primitive(cos), primitive(sin)];
    float(B::apply(operation, inputs, []))
}

#[derive(Clone, Debug)]
struct Norm {
    epsilon: f64,
}

impl Operation<2, 0> for Norm {
    const CHEAP: bool = true;

    fn forward<B: Backend>(
        &self,
        [x, gamma]: [FloatTensor<B>; 2],
        []: [IntTensor<B>; 0],
    ) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
        let result = normalize::<B>(float(x), float(gamma), self.epsilon);
        (primitive(result), Vec::new())
    }

    fn backward<B: Backend>(
        &self,
        [x, gamma]: [FloatTensor<B>; 2],
        []: [IntTensor<B>; 0],
        _kept: Vec<FloatTensor<B>>,
        gradient: FloatTensor<B>,
    ) -> [Option<FloatTensor<B>>; 2] {
        let gradient = float::<B, 2>(gradient).cast(DType::F32);
        let (of_x, of_gamma) = normalize_backward(float(x), float(gamma), gradient, self.epsilon);
        [Some(primitive(of_x)), Some(primitive(of_gamma))]
    }
}

#[derive(Clone, Debug)]
struct NormRotated {
    epsilon: f64,
}

impl Operation<4, 0> for NormRotated {
    const CHEAP: bool = true;

    fn forward<B: Backend>(
        &self,
        [x, gamma, cos, sin]: [FloatTensor<B>; 4],
        []: [IntTensor<B>; 0],
    ) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
        let x = float::<B, 4>(x);
        let (shape, dtype) = (x.dims(), x.dtype());
        let normal = normalize(rows(x), float(gamma), self.epsilon);
        let normal = normal.reshape(shape).cast(DType::F32);
        let [first, second] = halves(normal.clone());
        let across = Tensor::cat(vec![second.neg(), first], 3) * by_position(sin);
        let result = normal * by_position(cos) + across;
        (primitive(result.cast(dtype)), Vec::new())
    }

    fn backward<B: Backend>(
        &self,
        [x, gamma, cos, sin]: [FloatTensor<B>; 4],
        []: [IntTensor<B>; 0],
        _kept: Vec<FloatTensor<B>>,
        gradient: FloatTensor<B>,
    ) -> [Option<FloatTensor<B>>; 4] {
        let x = float::<B, 4>(x);
        let shape = x.dims();
        let gradient = float::<B, 4>(gradient).cast(DType::F32);
        // The rotation's transpose turns back.
        let [first, second] = halves(gradient.clone() * by_position(sin));
        let across = Tensor::cat(vec![second, first.neg()], 3);
        let gradient = rows(gradient * by_position(cos) + across);
        let (of_x, of_gamma) = normalize_backward(rows(x), float(gamma), gradient, self.epsilon);
        let of_x = of_x.reshape(shape);
        [Some(primitive(of_x)), Some(primitive(of_gamma)), None, None]
    }
}

/// `[rows, width]` to the same, in the same type.
fn normalize<B: Backend>(x: Tensor<B, 2>, gamma: Tensor<B, 1>, epsilon: f64) -> Tensor<B, 2> {
    let dtype = x.dtype();
    let (unit, _) = unit(x, epsilon);
    unit.cast(dtype) * gamma.unsqueeze()
}

/// The gradients of `x` and `gamma`, each in its type, from that of the result, which is f32.
fn normalize_backward<B: Backend>(
    x: Tensor<B, 2>,
    gamma: Tensor<B, 1>,
    gradient: Tensor<B, 2>,
    epsilon: f64,
) -> (Tensor<B, 2>, Tensor<B, 1>) {
    let (dtype, gamma_dtype) = (x.dtype(), gamma.dtype());
    let (unit, scale) = unit(x, epsilon);
    let of_gamma = (gradient.clone() * unit.clone()).sum_dim(0).squeeze_dim(0);
    let gradient = gradient * gamma.cast(DType::F32).unsqueeze();
    // What changes the length only does not change the direction.
    let along = (gradient.clone() * unit.clone()).mean_dim(1);
    let of_x = (gradient - unit * along) * scale;
    (of_x.cast(dtype), of_gamma.cast(gamma_dtype))
}

/// Each row over its root mean square, and one over that: `[rows, width]` and `[rows, 1]` in f32.
fn unit<B: Backend>(x: Tensor<B, 2>, epsilon: f64) -> (Tensor<B, 2>, Tensor<B, 2>) {
    let x = x.cast(DType::F32);
    let square = (x.clone() * x.clone()).mean_dim(1);
    let scale = (square + epsilon).sqrt().recip();
    (x * scale.clone(), scale)
}

/// `[batch, sequence, heads, head]` as `[batch * sequence * heads, head]`.
fn rows<B: Backend>(x: Tensor<B, 4>) -> Tensor<B, 2> {
    let [batch, sequence, heads, head] = x.dims();
    x.reshape([batch * sequence * heads, head])
}

/// The first and the second half of each head's vector.
fn halves<B: Backend>(x: Tensor<B, 4>) -> [Tensor<B, 4>; 2] {
    let half = x.dims()[3] / 2;
    [x.clone().narrow(3, 0, half), x.narrow(3, half, half)]
}

/// `[sequence, head]` as `[1, sequence, 1, head]`.
fn by_position<B: Backend>(table: FloatTensor<B>) -> Tensor<B, 4> {
    let table = float::<B, 2>(table);
    let [sequence, head] = table.dims();
    table.reshape([1, sequence, 1, head])
}
