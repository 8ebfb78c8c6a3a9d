//! Int tensors: `B`'s own and never packed, so each method passes its arguments through. The float
//! tensor made by `int_into_float` is wrapped.

use std::ops::Range;

use burn_backend::ops::IntTensorOps;
use burn_backend::tensor::{Device, IndexingUpdateOp, IntTensor};
use burn_backend::{Distribution, ExecutionError, Scalar, TensorData};
use burn_std::{BoolDType, FloatDType, IntDType, Shape, Slice};

use crate::LctBackend;
use crate::store::{PackedStore, moved};

impl<B: PackedStore> IntTensorOps<Self> for LctBackend<B> {
    // Creation, transfer and conversion.
    forward! {
        (shape: Shape, device: (&Device), dtype: IntDType) -> IntTensor:
        int_empty, int_zeros, int_ones
    }
    forward! {
        (shape: Shape, fill_value: Scalar, device: (&Device), dtype: IntDType) -> IntTensor:
        int_full
    }
    forward! {
        (shape: Shape, distribution: Distribution, device: (&Device), dtype: IntDType) -> IntTensor:
        int_random
    }
    forward! {
        (range: (Range<i64>), device: (&Device), dtype: IntDType) -> IntTensor:
        int_arange
    }
    forward! {
        (range: (Range<i64>), step: usize, device: (&Device), dtype: IntDType) -> IntTensor:
        int_arange_step
    }
    forward! { (data: TensorData, device: (&Device)) -> IntTensor: int_from_data }

    fn int_to_device(tensor: IntTensor<Self>, device: &Device<Self>) -> IntTensor<Self> {
        let from = B::int_device(&tensor);
        moved::<B, _>(&from, device, || B::int_to_device(tensor, device))
    }

    forward! { (tensor: IntTensor, out_dtype: FloatDType) -> FloatTensor: int_into_float }
    forward! { (tensor: IntTensor, dtype: IntDType) -> IntTensor: int_cast }

    fn int_into_data(
        tensor: IntTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::int_into_data(tensor)
    }

    fn int_device(tensor: &IntTensor<Self>) -> Device<Self> {
        B::int_device(tensor)
    }

    // Arithmetic.
    forward! {
        (tensor: IntTensor) -> IntTensor:
        int_neg, int_abs, int_sign, bitwise_not
    }
    forward! {
        (lhs: IntTensor, rhs: IntTensor) -> IntTensor:
        int_add, int_sub, int_mul, int_div, int_remainder, int_powi, int_matmul,
        bitwise_and, bitwise_or, bitwise_xor, bitwise_left_shift, bitwise_right_shift
    }
    forward! {
        (lhs: IntTensor, rhs: Scalar) -> IntTensor:
        int_add_scalar, int_sub_scalar, int_mul_scalar, int_div_scalar, int_remainder_scalar,
        int_powi_scalar, int_powi_scalar_impl,
        bitwise_and_scalar, bitwise_or_scalar, bitwise_xor_scalar,
        bitwise_left_shift_scalar, bitwise_right_shift_scalar
    }
    forward! { (tensor: IntTensor, bound: Scalar) -> IntTensor: int_clamp_min, int_clamp_max }
    forward! { (tensor: IntTensor, min: Scalar, max: Scalar) -> IntTensor: int_clamp }

    // Comparison.
    forward! {
        (lhs: IntTensor, rhs: IntTensor, out_dtype: BoolDType) -> BoolTensor:
        int_equal, int_not_equal, int_greater, int_greater_equal, int_lower, int_lower_equal
    }
    forward! {
        (lhs: IntTensor, rhs: Scalar, out_dtype: BoolDType) -> BoolTensor:
        int_equal_elem, int_not_equal_elem, int_greater_elem, int_greater_equal_elem,
        int_lower_elem, int_lower_equal_elem
    }
    forward! { (tensor: IntTensor, out_dtype: BoolDType) -> BoolTensor: int_any, int_all }
    forward! {
        (tensor: IntTensor, dim: usize, out_dtype: BoolDType) -> BoolTensor:
        int_any_dim, int_all_dim
    }

    // Reduction, accumulation and order.
    forward! {
        (tensor: IntTensor) -> IntTensor:
        int_sum, int_prod, int_mean, int_max, int_min, int_max_abs
    }
    forward! {
        (tensor: IntTensor, dim: usize) -> IntTensor:
        int_sum_dim, int_prod_dim, int_mean_dim, int_max_dim, int_min_dim, int_max_abs_dim,
        int_argmax, int_argmin, int_cumsum, int_cumprod, int_cummin, int_cummax
    }
    forward! {
        (tensor: IntTensor, dim: usize) -> (IntTensor, IntTensor):
        int_max_dim_with_indices, int_min_dim_with_indices
    }
    forward! { (tensor: IntTensor, dim: usize, k: usize) -> IntTensor: int_topk, int_argtopk }
    forward! {
        (tensor: IntTensor, dim: usize, descending: bool) -> IntTensor:
        int_sort, int_argsort
    }
    forward! {
        (tensor: IntTensor, dim: usize, descending: bool) -> (IntTensor, IntTensor):
        int_sort_with_indices
    }

    // Shape.
    forward! { (tensor: IntTensor, shape: Shape) -> IntTensor: int_reshape, int_expand }
    forward! { (tensor: IntTensor) -> IntTensor: int_transpose }
    forward! { (tensor: IntTensor, dim1: usize, dim2: usize) -> IntTensor: int_swap_dims }
    forward! { (tensor: IntTensor, axes: (&[usize])) -> IntTensor: int_permute, int_flip }
    forward! { (tensor: IntTensor, dim: usize, times: usize) -> IntTensor: int_repeat_dim }
    forward! { (tensors: (Vec<IntTensor>), dim: usize) -> IntTensor: int_cat }
    forward! {
        (tensor: IntTensor, dim: usize, size: usize, step: usize) -> IntTensor:
        int_unfold
    }

    // Selection.
    forward! { (tensor: IntTensor, slices: (&[Slice])) -> IntTensor: int_slice }
    forward! {
        (tensor: IntTensor, slices: (&[Slice]), value: IntTensor) -> IntTensor:
        int_slice_assign
    }
    forward! {
        (tensor: IntTensor, mask: BoolTensor, value: IntTensor) -> IntTensor:
        int_mask_where
    }
    forward! { (tensor: IntTensor, mask: BoolTensor, value: Scalar) -> IntTensor: int_mask_fill }
    forward! { (dim: usize, tensor: IntTensor, indices: IntTensor) -> IntTensor: int_gather }
    forward! { (data: IntTensor, indices: IntTensor) -> IntTensor: int_gather_nd }
    forward! {
        (dim: usize, tensor: IntTensor, indices: IntTensor, value: IntTensor) -> IntTensor:
        int_scatter_add
    }
    forward! {
        (
            data: IntTensor,
            indices: IntTensor,
            values: IntTensor,
            reduction: IndexingUpdateOp,
        ) -> IntTensor:
        int_scatter_nd
    }
    forward! { (tensor: IntTensor, dim: usize, indices: IntTensor) -> IntTensor: int_select }
    forward! {
        (tensor: IntTensor, dim: usize, indices: IntTensor, value: IntTensor) -> IntTensor:
        int_select_add
    }
}
