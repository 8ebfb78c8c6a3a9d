//! Float tensors, the ones that are packed between operations.
//!
//! Written out are the methods that decode nothing: those that only change the shape are recorded as
//! views, so that a tensor and its views share one packed form, and questions about the device or the
//! gradient are answered as they stand. `float_to_device` to the device where the tensor is returns it packed as it is.

use burn_backend::ops::{FloatTensorOps, GridSampleOptions};
use burn_backend::tensor::{Device, FloatTensor, IndexingUpdateOp};
use burn_backend::{Distribution, ExecutionError, Scalar, TensorData, TensorMetadata};
use burn_std::{BoolDType, FloatDType, IntDType, Shape, Slice};

use crate::LctBackend;
use crate::store::PackedStore;
use crate::tensor::{LctTensor, ViewOp, before_result, result_of};

impl<B: PackedStore> FloatTensorOps<Self> for LctBackend<B> {
    // Creation, transfer and conversion.
    forward! { (data: TensorData, device: (&Device)) -> FloatTensor: float_from_data }
    forward! {
        (shape: Shape, device: (&Device), dtype: FloatDType) -> FloatTensor:
        float_zeros, float_ones, float_empty
    }
    forward! {
        (shape: Shape, fill_value: Scalar, device: (&Device), dtype: FloatDType) -> FloatTensor:
        float_full
    }
    forward! {
        (
            shape: Shape,
            distribution: Distribution,
            device: (&Device),
            dtype: FloatDType,
        ) -> FloatTensor:
        float_random
    }
    forward! { (tensor: FloatTensor, out_dtype: IntDType) -> IntTensor: float_into_int }
    forward! { (tensor: FloatTensor, dtype: FloatDType) -> FloatTensor: float_cast }

    fn float_into_data(
        tensor: FloatTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        let device = tensor.device();
        tensor.touch();
        before_result::<B>(&device);
        let data = B::float_into_data(tensor.dense());
        result_of::<B, _>(device, data)
    }

    fn float_device(tensor: &FloatTensor<Self>) -> Device<Self> {
        tensor.device()
    }

    fn float_to_device(tensor: FloatTensor<Self>, device: &Device<Self>) -> FloatTensor<Self> {
        tensor.into_device(device)
    }

    // Autodiff. Gradients are tracked around this backend, not inside it: an inner backend that
    // tracked them would have to see every clone.
    fn float_detach(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        tensor
    }

    fn float_set_require_grad(tensor: FloatTensor<Self>, _require_grad: bool) -> FloatTensor<Self> {
        tensor
    }

    fn float_is_require_grad(_tensor: &FloatTensor<Self>) -> bool {
        false
    }

    // Views.
    fn float_reshape(tensor: FloatTensor<Self>, shape: Shape) -> FloatTensor<Self> {
        tensor.view(ViewOp::Reshape(shape))
    }

    fn float_expand(tensor: FloatTensor<Self>, shape: Shape) -> FloatTensor<Self> {
        tensor.view(ViewOp::Expand(shape))
    }

    fn float_transpose(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        match tensor.rank() {
            // Without two dimensions to swap, what happens is for `B` to say.
            0 | 1 => LctTensor::new(B::float_transpose(tensor.dense())),
            rank => tensor.view(ViewOp::SwapDims(rank - 2, rank - 1)),
        }
    }

    fn float_swap_dims(tensor: FloatTensor<Self>, dim1: usize, dim2: usize) -> FloatTensor<Self> {
        tensor.view(ViewOp::SwapDims(dim1, dim2))
    }

    fn float_permute(tensor: FloatTensor<Self>, axes: &[usize]) -> FloatTensor<Self> {
        tensor.view(ViewOp::Permute(axes.to_vec()))
    }

    fn float_slice(tensor: FloatTensor<Self>, slices: &[Slice]) -> FloatTensor<Self> {
        tensor.view(ViewOp::Slice(slices.to_vec()))
    }

    // Arithmetic.
    forward! {
        cheap;
        (tensor: FloatTensor) -> FloatTensor:
        float_exp = Exp, float_log = Log, float_recip = Recip, float_sqrt = Sqrt,
        float_tanh = Tanh
    }
    forward! { cheap; (lhs: FloatTensor, rhs: FloatTensor) -> FloatTensor: float_div = Div }
    forward! {
        (tensor: FloatTensor) -> FloatTensor:
        float_neg, float_abs, float_sign,
        float_log1p, float_erf, float_round, float_floor, float_ceil, float_trunc,
        float_cos, float_sin, float_tan, float_cosh, float_sinh,
        float_acos, float_asin, float_atan, float_acosh, float_asinh, float_atanh
    }
    forward! {
        (lhs: FloatTensor, rhs: FloatTensor) -> FloatTensor:
        float_add, float_sub, float_mul, float_remainder, float_powf, float_atan2
    }
    forward! {
        (lhs: FloatTensor, rhs: Scalar) -> FloatTensor:
        float_add_scalar, float_sub_scalar, float_mul_scalar, float_div_scalar,
        float_remainder_scalar,
        float_powf_scalar, float_powf_scalar_impl, float_powi_scalar, float_powi_scalar_impl
    }
    forward! { (lhs: FloatTensor, rhs: IntTensor) -> FloatTensor: float_powi }
    forward! {
        (tensor: FloatTensor, bound: Scalar) -> FloatTensor:
        float_clamp_min, float_clamp_max
    }
    forward! { (tensor: FloatTensor, min: Scalar, max: Scalar) -> FloatTensor: float_clamp }
    forward! { (lhs: FloatTensor, rhs: FloatTensor, dim: usize) -> FloatTensor: float_cross }
    forward! { break(lhs); (lhs: FloatTensor, rhs: FloatTensor) -> FloatTensor: float_matmul }

    // Comparison.
    forward! {
        (lhs: FloatTensor, rhs: FloatTensor, out_dtype: BoolDType) -> BoolTensor:
        float_equal, float_not_equal, float_greater, float_greater_equal, float_lower,
        float_lower_equal
    }
    forward! {
        (lhs: FloatTensor, rhs: Scalar, out_dtype: BoolDType) -> BoolTensor:
        float_equal_elem, float_not_equal_elem, float_greater_elem, float_greater_equal_elem,
        float_lower_elem, float_lower_equal_elem
    }
    forward! {
        (tensor: FloatTensor, out_dtype: BoolDType) -> BoolTensor:
        float_any, float_all, float_is_nan, float_is_inf
    }
    forward! {
        (tensor: FloatTensor, dim: usize, out_dtype: BoolDType) -> BoolTensor:
        float_any_dim, float_all_dim
    }

    // Reduction.
    forward! {
        (tensor: FloatTensor) -> FloatTensor:
        float_sum, float_prod, float_mean, float_max, float_min, float_max_abs
    }
    forward! {
        (tensor: FloatTensor, dim: usize) -> FloatTensor:
        float_sum_dim, float_prod_dim, float_mean_dim, float_max_dim, float_min_dim,
        float_max_abs_dim
    }
    forward! {
        (tensor: FloatTensor, dim: usize, indices_dtype: IntDType) -> (FloatTensor, IntTensor):
        float_max_dim_with_indices, float_min_dim_with_indices
    }
    forward! {
        (tensor: FloatTensor, dim: usize, out_dtype: IntDType) -> IntTensor:
        float_argmax, float_argmin
    }

    // Accumulation and order.
    forward! {
        break(tensor);
        (tensor: FloatTensor, dim: usize) -> FloatTensor:
        float_cumsum, float_cumprod, float_cummin, float_cummax
    }
    forward! {
        break(tensor);
        (tensor: FloatTensor, dim: usize, k: usize) -> FloatTensor:
        float_topk
    }
    forward! {
        break(tensor);
        (tensor: FloatTensor, dim: usize, k: usize, out_dtype: IntDType) -> IntTensor:
        float_argtopk
    }
    forward! {
        break(tensor);
        (tensor: FloatTensor, dim: usize, descending: bool) -> FloatTensor:
        float_sort
    }
    forward! {
        break(tensor);
        (
            tensor: FloatTensor,
            dim: usize,
            descending: bool,
            indices_dtype: IntDType,
        ) -> (FloatTensor, IntTensor):
        float_sort_with_indices
    }
    forward! {
        break(tensor);
        (tensor: FloatTensor, dim: usize, descending: bool, out_dtype: IntDType) -> IntTensor:
        float_argsort
    }

    // Shape, with new values in memory.
    forward! { (tensor: FloatTensor, axes: (&[usize])) -> FloatTensor: float_flip }
    forward! { (tensor: FloatTensor, dim: usize, times: usize) -> FloatTensor: float_repeat_dim }
    forward! { (tensors: (Vec<FloatTensor>), dim: usize) -> FloatTensor: float_cat }
    forward! {
        (tensor: FloatTensor, dim: usize, size: usize, step: usize) -> FloatTensor:
        float_unfold
    }

    // Selection.
    forward! {
        (tensor: FloatTensor, slices: (&[Slice]), value: FloatTensor) -> FloatTensor:
        float_slice_assign
    }
    forward! {
        (tensor: FloatTensor, mask: BoolTensor, value: FloatTensor) -> FloatTensor:
        float_mask_where
    }
    forward! {
        (tensor: FloatTensor, mask: BoolTensor, value: Scalar) -> FloatTensor:
        float_mask_fill
    }
    forward! {
        break(tensor);
        (dim: usize, tensor: FloatTensor, indices: IntTensor) -> FloatTensor:
        float_gather
    }
    forward! {
        break(data);
        (data: FloatTensor, indices: IntTensor) -> FloatTensor:
        float_gather_nd
    }
    forward! {
        break(tensor);
        (dim: usize, tensor: FloatTensor, indices: IntTensor, value: FloatTensor) -> FloatTensor:
        float_scatter_add
    }
    forward! {
        break(data);
        (
            data: FloatTensor,
            indices: IntTensor,
            values: FloatTensor,
            reduction: IndexingUpdateOp,
        ) -> FloatTensor:
        float_scatter_nd
    }
    forward! {
        break(tensor);
        (tensor: FloatTensor, dim: usize, indices: IntTensor) -> FloatTensor:
        float_select
    }
    forward! {
        break(tensor);
        (tensor: FloatTensor, dim: usize, indices: IntTensor, value: FloatTensor) -> FloatTensor:
        float_select_add
    }
    forward! {
        break(tensor);
        (tensor: FloatTensor, grid: FloatTensor, options: GridSampleOptions) -> FloatTensor:
        float_grid_sample_2d
    }
}
