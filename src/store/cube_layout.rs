//! How CubeCL tensors lie in memory, and operations that must leave them so.

use burn_backend::DType;
use burn_cubecl::{CubeRuntime, tensor::CubeTensor};
use burn_std::Metadata;
use lct_kernels::launch::{self, DenseLayout};

/// The rows of a tensor, each divided by a value of its own, if that is what the division is.
pub(super) fn quotient<R: CubeRuntime>(
    dividend: &CubeTensor<R>,
    divisor: &CubeTensor<R>,
) -> Option<CubeTensor<R>> {
    let (shape, others) = (dividend.meta.shape(), divisor.meta.shape());
    let (&row_len, outer) = shape.as_slice().split_last()?;
    let (&one, same) = others.as_slice().split_last()?;
    let rows = outer.iter().product();
    let fits = outer == same && one == 1 && launch::divides(rows, row_len);
    if !fits || !is_plain(dividend) || !is_plain(divisor) {
        return None;
    }
    let output = empty_like(dividend);
    launch::quotient::<R, half::bf16>(
        &dividend.client,
        dividend.handle.clone(),
        divisor.handle.clone(),
        output.handle.clone(),
        rows,
        row_len,
    )
    .ok()?;
    Some(output)
}

/// The GELU of a tensor in one pass, where Burn has five operations.
pub(super) fn gelu<R: CubeRuntime>(input: &CubeTensor<R>) -> Option<CubeTensor<R>> {
    let values = input.meta.num_elements();
    if !launch::computes(values) || !is_plain(input) {
        return None;
    }
    let output = empty_like(input);
    let (client, input) = (&input.client, input.handle.clone());
    launch::gelu::<R, half::bf16>(client, input, output.handle.clone(), values).ok()?;
    Some(output)
}

/// Whether a tensor is BF16 without gaps.
fn is_plain<R: CubeRuntime>(tensor: &CubeTensor<R>) -> bool {
    tensor.dtype == DType::BF16 && tensor.is_contiguous()
}

/// A [plain](is_plain) tensor of the same shape.
fn empty_like<R: CubeRuntime>(tensor: &CubeTensor<R>) -> CubeTensor<R> {
    CubeTensor::new(
        tensor.client.clone(),
        tensor.client.empty(2 * tensor.meta.num_elements()),
        *tensor.meta.clone(),
        tensor.device.clone(),
        DType::BF16,
    )
}

/// A tensor with the same values at other places, if they are to be at others.
pub(super) fn lay_out<R: CubeRuntime>(tensor: CubeTensor<R>, layout: &Metadata) -> CubeTensor<R> {
    if tensor.meta.strides() == layout.strides() {
        return tensor;
    }
    let shape = layout.shape().iter();
    let last: usize = shape
        .zip(layout.strides().iter())
        .map(|(&size, &stride)| (size - 1) * stride)
        .sum();
    // Kernels read 16 bytes at a time.
    let bytes = (2 * (last + 1)).next_multiple_of(16);
    let output = CubeTensor::new(
        tensor.client.clone(),
        tensor.client.empty(bytes),
        layout.clone(),
        tensor.device.clone(),
        DType::BF16,
    );
    cubecl::std::tensor::copy_into(
        &tensor.client.clone(),
        tensor.binding(),
        output.clone().binding(),
        cubecl::ir::ElemType::Float(cubecl::ir::FloatKind::BF16).into(),
    );
    output
}

/// The bytes from the first value to the last, with the padding between rows.
pub(super) fn span_bytes(rows: DenseLayout) -> usize {
    let values = (rows.rows - 1) * rows.row_pitch + rows.row_len;
    // Kernels read 16 bytes at a time.
    (2 * values).next_multiple_of(16)
}

/// How the tensor's values lie in memory: equal rows at an equal pitch, whatever the order of the
/// dimensions; `None` if they overlap or scatter.
pub(super) fn memory_rows(meta: &Metadata) -> Option<DenseLayout> {
    let mut dims: Vec<(usize, usize)> = meta
        .strides()
        .iter()
        .zip(meta.shape().iter())
        // A broadcast dimension shows the same memory again.
        .filter(|&(&stride, &size)| size != 1 && stride != 0)
        .map(|(&stride, &size)| (stride, size))
        .collect();
    if meta.shape().iter().any(|&size| size == 0) {
        return None;
    }
    dims.sort_unstable();
    let mut row_len = 1;
    let mut dims = dims.into_iter().peekable();
    while let Some((_, size)) = dims.next_if(|&(stride, _)| stride == row_len) {
        row_len *= size;
    }
    let Some(&(row_pitch, _)) = dims.peek() else {
        return Some(DenseLayout {
            row_len,
            row_pitch: row_len,
            rows: 1,
        });
    };
    let mut rows = 1;
    while let Some((_, size)) = dims.next_if(|&(stride, _)| stride == row_pitch * rows) {
        rows *= size;
    }
    // A pitch of twice the row is a piece of something wider: its gaps are another tensor's, not padding.
    let padded = row_pitch > row_len && row_pitch < 2 * row_len.max(256);
    (dims.next().is_none() && padded).then_some(DenseLayout {
        row_len,
        row_pitch,
        rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(shape: &[usize], strides: &[usize]) -> Option<(usize, usize, usize)> {
        let meta = Metadata::new(shape.to_vec(), strides.to_vec());
        memory_rows(&meta).map(|rows| (rows.row_len, rows.row_pitch, rows.rows))
    }

    #[test]
    fn row_major_and_permuted_tensors_are_one_row() {
        assert_eq!(rows(&[2, 3, 4], &[12, 4, 1]), Some((24, 24, 1)));
        assert_eq!(rows(&[4, 2, 3], &[1, 12, 4]), Some((24, 24, 1)));
        assert_eq!(rows(&[1, 1], &[7, 9]), Some((1, 1, 1)));
    }

    #[test]
    fn padded_rows_keep_their_pitch() {
        assert_eq!(rows(&[2, 5, 300], &[2560, 512, 1]), Some((300, 512, 10)));
        assert_eq!(rows(&[300, 10], &[1, 512]), Some((300, 512, 10)));
    }

    #[test]
    fn a_broadcast_is_packed_once() {
        assert_eq!(rows(&[9, 40], &[0, 1]), Some((40, 40, 1)));
    }

    #[test]
    fn pieces_of_wider_tensors_and_scattered_ones_are_not() {
        assert_eq!(rows(&[8, 768], &[2304, 1]), None);
        assert_eq!(rows(&[8, 768], &[768, 2]), None);
        assert_eq!(rows(&[0, 768], &[768, 1]), None);
    }
}
