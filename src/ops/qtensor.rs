//! Quantized tensors: `B`'s own and never packed. Float tensors come in where values are quantized
//! and in the operands of `q_matmul`, and go out where a result is not quantized again.

use burn_backend::ops::QTensorOps;
use burn_backend::tensor::quantization::QuantizationParametersPrimitive;
use burn_backend::tensor::{Device, FloatTensor, QuantizedTensor};
use burn_backend::{ExecutionError, Scalar, TensorData, TensorPrimitive};
use burn_std::quantization::QuantScheme;
use burn_std::{BoolDType, FloatDType, IntDType, Shape, Slice};

use crate::LctBackend;
use crate::store::{PackedStore, moved};

impl<B: PackedStore> QTensorOps<Self> for LctBackend<B> {
    // Quantization, transfer and conversion.
    fn quantize(
        tensor: FloatTensor<Self>,
        scheme: &QuantScheme,
        qparams: QuantizationParametersPrimitive<Self>,
    ) -> QuantizedTensor<Self> {
        B::quantize(
            tensor.dense(),
            scheme,
            QuantizationParametersPrimitive {
                scales: qparams.scales.dense(),
            },
        )
    }

    forward! {
        (tensor: FloatTensor, scheme: (&QuantScheme)) -> QuantizedTensor:
        quantize_dynamic
    }
    forward! { (tensor: QuantizedTensor, dtype: FloatDType) -> FloatTensor: dequantize }
    forward! { (data: TensorData, device: (&Device)) -> QuantizedTensor: q_from_data }

    fn q_to_device(tensor: QuantizedTensor<Self>, device: &Device<Self>) -> QuantizedTensor<Self> {
        let from = B::q_device(&tensor);
        moved::<B, _>(&from, device, || B::q_to_device(tensor, device))
    }

    fn q_into_data(
        tensor: QuantizedTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::q_into_data(tensor)
    }

    fn q_device(tensor: &QuantizedTensor<Self>) -> Device<Self> {
        B::q_device(tensor)
    }

    // Autodiff.
    forward! { (tensor: QuantizedTensor) -> QuantizedTensor: q_detach }
    forward! {
        (tensor: QuantizedTensor, require_grad: bool) -> QuantizedTensor:
        q_set_require_grad
    }

    fn q_is_require_grad(tensor: &QuantizedTensor<Self>) -> bool {
        B::q_is_require_grad(tensor)
    }

    // Arithmetic.
    forward! {
        (tensor: QuantizedTensor) -> TensorPrimitive:
        q_neg, q_recip, q_exp, q_log, q_log1p, q_sqrt, q_cos, q_sin, q_tan, q_cosh, q_sinh, q_tanh,
        q_erf
    }
    forward! { (tensor: QuantizedTensor) -> QuantizedTensor: q_abs }
    forward! {
        (lhs: QuantizedTensor, rhs: QuantizedTensor) -> TensorPrimitive:
        q_add, q_sub, q_mul, q_div, q_powf
    }
    forward! {
        (lhs: QuantizedTensor, rhs: Scalar) -> TensorPrimitive:
        q_add_scalar, q_sub_scalar, q_mul_scalar, q_div_scalar, q_powi_scalar, q_powf_scalar
    }
    forward! { (lhs: QuantizedTensor, rhs: IntTensor) -> TensorPrimitive: q_powi }
    forward! {
        (tensor: QuantizedTensor, bound: Scalar) -> TensorPrimitive:
        q_clamp_min, q_clamp_max
    }
    forward! { (tensor: QuantizedTensor, min: Scalar, max: Scalar) -> TensorPrimitive: q_clamp }

    fn q_matmul(lhs: TensorPrimitive<Self>, rhs: TensorPrimitive<Self>) -> TensorPrimitive<Self> {
        wrap!(
            q_matmul: TensorPrimitive,
            B::q_matmul(dense_primitive(lhs), dense_primitive(rhs))
        )
    }

    // Reduction, accumulation and order.
    forward! { (tensor: QuantizedTensor) -> TensorPrimitive: q_sum, q_prod, q_mean }
    forward! { (tensor: QuantizedTensor) -> QuantizedTensor: q_max, q_min, q_max_abs }
    forward! {
        (tensor: QuantizedTensor, dim: usize) -> TensorPrimitive:
        q_sum_dim, q_prod_dim, q_mean_dim, q_cumsum, q_cumprod, q_cummin, q_cummax
    }
    forward! {
        (tensor: QuantizedTensor, dim: usize) -> QuantizedTensor:
        q_max_dim, q_min_dim, q_max_abs_dim
    }
    forward! {
        (tensor: QuantizedTensor, dim: usize, out_dtype: IntDType) -> (QuantizedTensor, IntTensor):
        q_max_dim_with_indices, q_min_dim_with_indices
    }
    forward! {
        (tensor: QuantizedTensor, dim: usize, out_dtype: IntDType) -> IntTensor:
        q_argmax, q_argmin
    }
    forward! { (tensor: QuantizedTensor, dim: usize, k: usize) -> QuantizedTensor: q_topk }
    forward! {
        (tensor: QuantizedTensor, dim: usize, k: usize, out_dtype: IntDType) -> IntTensor:
        q_argtopk
    }
    forward! { (tensor: QuantizedTensor, dim: usize, descending: bool) -> QuantizedTensor: q_sort }
    forward! {
        (
            tensor: QuantizedTensor,
            dim: usize,
            descending: bool,
            out_dtype: IntDType,
        ) -> (QuantizedTensor, IntTensor):
        q_sort_with_indices
    }
    forward! {
        (
            tensor: QuantizedTensor,
            dim: usize,
            descending: bool,
            out_dtype: IntDType,
        ) -> IntTensor:
        q_argsort
    }
    forward! { (tensor: QuantizedTensor, out_dtype: BoolDType) -> BoolTensor: q_any, q_all }
    forward! {
        (tensor: QuantizedTensor, dim: usize, out_dtype: BoolDType) -> BoolTensor:
        q_any_dim, q_all_dim
    }

    // Shape.
    forward! { (tensor: QuantizedTensor, shape: Shape) -> QuantizedTensor: q_reshape, q_expand }
    forward! { (tensor: QuantizedTensor) -> QuantizedTensor: q_transpose }
    forward! { (tensor: QuantizedTensor, dim1: usize, dim2: usize) -> QuantizedTensor: q_swap_dims }
    forward! { (tensor: QuantizedTensor, axes: (&[usize])) -> QuantizedTensor: q_permute, q_flip }
    forward! {
        (tensor: QuantizedTensor, dim: usize, times: usize) -> QuantizedTensor:
        q_repeat_dim
    }
    forward! { (tensors: (Vec<QuantizedTensor>), dim: usize) -> QuantizedTensor: q_cat }

    // Selection.
    forward! { (tensor: QuantizedTensor, slices: (&[Slice])) -> QuantizedTensor: q_slice }
    forward! {
        (tensor: QuantizedTensor, dim: usize, indices: IntTensor) -> QuantizedTensor:
        q_select
    }
    forward! {
        (dim: usize, tensor: QuantizedTensor, indices: IntTensor) -> QuantizedTensor:
        q_gather
    }
}

/// The operand of a product as `B` takes it.
fn dense_primitive<B: PackedStore>(operand: TensorPrimitive<LctBackend<B>>) -> TensorPrimitive<B> {
    match operand {
        TensorPrimitive::Float(tensor) => TensorPrimitive::Float(tensor.dense()),
        TensorPrimitive::QFloat(tensor) => TensorPrimitive::QFloat(tensor),
    }
}
