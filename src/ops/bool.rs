//! Bool tensors: `B`'s own and never packed, so each method passes its arguments through. The float
//! tensor made by `bool_into_float` is wrapped.

use burn_backend::ops::BoolTensorOps;
use burn_backend::tensor::{BoolTensor, Device, IntTensor};
use burn_backend::{ExecutionError, Scalar, TensorData};
use burn_std::{BoolDType, FloatDType, IntDType, Shape, Slice};

use crate::LctBackend;
use crate::store::{PackedStore, moved};

impl<B: PackedStore> BoolTensorOps<Self> for LctBackend<B> {
    // Creation, transfer and conversion.
    forward! {
        (shape: Shape, device: (&Device), dtype: BoolDType) -> BoolTensor:
        bool_empty, bool_zeros, bool_ones
    }
    forward! { (data: TensorData, device: (&Device)) -> BoolTensor: bool_from_data }

    fn bool_to_device(tensor: BoolTensor<Self>, device: &Device<Self>) -> BoolTensor<Self> {
        let from = B::bool_device(&tensor);
        moved::<B, _>(&from, device, || B::bool_to_device(tensor, device))
    }

    forward! { (tensor: BoolTensor, out_dtype: IntDType) -> IntTensor: bool_into_int }
    forward! { (tensor: BoolTensor, out_dtype: FloatDType) -> FloatTensor: bool_into_float }

    fn bool_into_data(
        tensor: BoolTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::bool_into_data(tensor)
    }

    fn bool_device(tensor: &BoolTensor<Self>) -> Device<Self> {
        B::bool_device(tensor)
    }

    // Logic.
    forward! { (tensor: BoolTensor) -> BoolTensor: bool_not, bool_any, bool_all }
    forward! { (tensor: BoolTensor, dim: usize) -> BoolTensor: bool_any_dim, bool_all_dim }
    forward! {
        (lhs: BoolTensor, rhs: BoolTensor) -> BoolTensor:
        bool_equal, bool_not_equal, bool_and, bool_or, bool_xor
    }
    forward! {
        (lhs: BoolTensor, rhs: Scalar) -> BoolTensor:
        bool_equal_elem, bool_not_equal_elem
    }

    // Shape.
    forward! { (tensor: BoolTensor, shape: Shape) -> BoolTensor: bool_reshape, bool_expand }
    forward! { (tensor: BoolTensor) -> BoolTensor: bool_transpose }
    forward! { (tensor: BoolTensor, dim1: usize, dim2: usize) -> BoolTensor: bool_swap_dims }
    forward! { (tensor: BoolTensor, axes: (&[usize])) -> BoolTensor: bool_permute, bool_flip }
    forward! { (tensor: BoolTensor, dim: usize, times: usize) -> BoolTensor: bool_repeat_dim }
    forward! { (tensors: (Vec<BoolTensor>), dim: usize) -> BoolTensor: bool_cat }
    forward! {
        (tensor: BoolTensor, dim: usize, size: usize, step: usize) -> BoolTensor:
        bool_unfold
    }

    // Selection.
    forward! { (tensor: BoolTensor, slices: (&[Slice])) -> BoolTensor: bool_slice }
    forward! {
        (tensor: BoolTensor, slices: (&[Slice]), value: BoolTensor) -> BoolTensor:
        bool_slice_assign
    }
    forward! {
        (tensor: BoolTensor, mask: BoolTensor, value: BoolTensor) -> BoolTensor:
        bool_mask_where
    }
    forward! { (tensor: BoolTensor, mask: BoolTensor, value: Scalar) -> BoolTensor: bool_mask_fill }
    forward! { (dim: usize, tensor: BoolTensor, indices: IntTensor) -> BoolTensor: bool_gather }
    forward! {
        (dim: usize, tensor: BoolTensor, indices: IntTensor, value: BoolTensor) -> BoolTensor:
        bool_scatter_or
    }
    forward! { (tensor: BoolTensor, dim: usize, indices: IntTensor) -> BoolTensor: bool_select }
    forward! {
        (tensor: BoolTensor, dim: usize, indices: IntTensor, value: BoolTensor) -> BoolTensor:
        bool_select_or
    }

    fn bool_argwhere(
        tensor: BoolTensor<Self>,
        out_dtype: IntDType,
    ) -> impl Future<Output = IntTensor<Self>> + 'static + Send {
        B::bool_argwhere(tensor, out_dtype)
    }
}
