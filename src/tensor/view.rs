//! Shape-only operations, recorded so that they can be done again.
//!
//! A saved tensor and a view of it must not be stored twice, and a view must not keep a dense buffer alive
//! beside its packed form. So a view is a chain of operations that is replayed on the dense tensor when
//! that is needed. A chain holds only operations that cost nothing to replay: what would copy on a row-major
//! tensor is executed once instead and becomes a tensor of its own. A lazy backend executes the operation as well, when it is
//! recorded: its stream is to be what it is without us (see `Storage::image`).

use burn_backend::tensor::FloatTensor;
use burn_backend::{Backend, Shape, Slice};

/// One shape-only operation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ViewOp {
    /// To a shape of as many elements.
    Reshape(Shape),
    /// Two dimensions change places.
    SwapDims(usize, usize),
    /// The dimensions in another order.
    Permute(Vec<usize>),
    /// Dimensions of size one broadcast.
    Expand(Shape),
    /// A box of the tensor.
    Slice(Vec<Slice>),
}

impl ViewOp {
    /// Executes the operation on B.
    pub(crate) fn apply<B: Backend>(&self, tensor: FloatTensor<B>) -> FloatTensor<B> {
        match self {
            Self::Reshape(shape) => B::float_reshape(tensor, shape.clone()),
            Self::SwapDims(a, b) => B::float_swap_dims(tensor, *a, *b),
            Self::Permute(axes) => B::float_permute(tensor, axes),
            Self::Expand(shape) => B::float_expand(tensor, shape.clone()),
            Self::Slice(slices) => B::float_slice(tensor, slices),
        }
    }
}

/// A chain of [view operations](ViewOp) over a row-major tensor.
#[derive(Debug, Clone)]
pub(crate) struct View {
    ops: Vec<ViewOp>,
    shape: Vec<usize>,
    /// The strides that the chain gives on a row-major tensor, in elements.
    strides: Vec<usize>,
}

impl View {
    /// The view that changes nothing.
    pub(crate) fn identity(shape: &Shape) -> Self {
        let shape = shape.to_vec();
        Self {
            ops: Vec::new(),
            strides: row_major(&shape),
            shape,
        }
    }

    /// Whether nothing is changed.
    pub(crate) fn is_identity(&self) -> bool {
        self.ops.is_empty()
    }

    /// The shape that the chain ends with.
    pub(crate) fn shape(&self) -> Shape {
        Shape::from(self.shape.clone())
    }

    /// The elements that the chain ends with.
    pub(crate) fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The chain and `op` after it, or `None` if `op` would have to copy (or is out of range, so that B itself
    /// shall say so).
    pub(crate) fn then(&self, op: &ViewOp) -> Option<Self> {
        let mut next = self.clone();
        match op {
            ViewOp::Reshape(shape) => {
                next.strides = reshaped_strides(&self.shape, &self.strides, shape.as_slice())?;
                next.shape = shape.to_vec();
            }
            ViewOp::SwapDims(a, b) => {
                if *a.max(b) >= self.shape.len() {
                    return None;
                }
                next.shape.swap(*a, *b);
                next.strides.swap(*a, *b);
            }
            ViewOp::Permute(axes) => {
                let mut sorted = axes.clone();
                sorted.sort_unstable();
                if !sorted.into_iter().eq(0..self.shape.len()) {
                    return None;
                }
                next.shape = axes.iter().map(|&axis| self.shape[axis]).collect();
                next.strides = axes.iter().map(|&axis| self.strides[axis]).collect();
            }
            ViewOp::Expand(shape) => {
                let lead = shape.num_dims().checked_sub(self.shape.len())?;
                next.shape = shape.to_vec();
                next.strides = vec![0; shape.num_dims()];
                for (dim, (&size, &stride)) in self.shape.iter().zip(&self.strides).enumerate() {
                    if size == shape[lead + dim] {
                        next.strides[lead + dim] = stride;
                    } else if size != 1 {
                        return None;
                    }
                }
            }
            ViewOp::Slice(slices) => {
                if slices.len() > self.shape.len() || slices.iter().any(|slice| slice.step != 1) {
                    return None;
                }
                for (dim, slice) in slices.iter().enumerate() {
                    let range = slice.to_range(self.shape[dim]);
                    if range.start > range.end || range.end > self.shape[dim] {
                        return None;
                    }
                    next.shape[dim] = range.len();
                }
            }
        }
        next.ops.push(op.clone());
        Some(next)
    }

    /// Replays the chain on the dense tensor.
    pub(crate) fn replay<B: Backend>(&self, tensor: FloatTensor<B>) -> FloatTensor<B> {
        self.ops
            .iter()
            .fold(tensor, |tensor, op| op.apply::<B>(tensor))
    }
}

fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim];
    }
    strides
}

/// The strides of `to` over the same memory, if no copy is needed: each run of dimensions that is dense in
/// memory can be cut anew, but no cut goes across two runs.
fn reshaped_strides(from: &[usize], strides: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    if from.iter().product::<usize>() != to.iter().product::<usize>() {
        return None;
    }
    if from.contains(&0) {
        return Some(row_major(to));
    }
    let mut out = vec![1; to.len()];
    // Dimensions of size one lie anywhere; runs are walked from the innermost outwards.
    let mut dims = (0..from.len())
        .filter(|&dim| from[dim] != 1)
        .rev()
        .peekable();
    let mut target = to.len();
    while let Some(inner) = dims.next() {
        let base = strides[inner];
        let mut run = from[inner];
        while let Some(&outer) = dims.peek()
            && strides[outer] == base * run
            && base != 0
        {
            run *= from[outer];
            dims.next();
        }
        let mut filled = 1;
        while filled < run {
            target = target.checked_sub(1)?;
            out[target] = base * filled;
            filled *= to[target];
        }
        if filled != run {
            return None;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(shape: &[usize], ops: &[ViewOp]) -> Option<View> {
        let start = View::identity(&Shape::from(shape.to_vec()));
        ops.iter().try_fold(start, |view, op| view.then(op))
    }

    fn reshape(shape: &[usize]) -> ViewOp {
        ViewOp::Reshape(Shape::from(shape.to_vec()))
    }

    #[test]
    fn reshape_of_row_major_is_a_view() {
        let view = view(&[4, 6], &[reshape(&[2, 2, 3, 2])]).unwrap();
        assert_eq!(view.strides, [12, 6, 2, 1]);
    }

    #[test]
    fn split_heads_is_a_view_and_merging_them_is_not() {
        let split = [reshape(&[2, 5, 3, 4]), ViewOp::SwapDims(1, 2)];
        let heads = view(&[2, 5, 12], &split).unwrap();
        assert_eq!(heads.shape, [2, 3, 5, 4]);
        assert!(heads.then(&reshape(&[2, 3, 20])).is_none());
        assert!(
            heads.then(&reshape(&[6, 5, 4])).is_none(),
            "batch and head do not join"
        );
        assert!(heads.then(&reshape(&[2, 3, 5, 2, 2])).is_some());
    }

    #[test]
    fn reshape_across_a_broadcast_copies() {
        let expand = ViewOp::Expand(Shape::from(vec![3, 4]));
        let rows = view(&[1, 4], &[expand]).unwrap();
        assert_eq!(rows.strides, [0, 1]);
        assert!(rows.then(&reshape(&[12])).is_none());
        assert!(rows.then(&reshape(&[3, 2, 2])).is_some());
    }

    #[test]
    fn a_slice_keeps_its_strides_and_a_stepped_one_copies() {
        let part = ViewOp::Slice(vec![Slice::from(0..4), Slice::from(2..4)]);
        let part = view(&[4, 6], &[part]).unwrap();
        assert_eq!((part.shape, part.strides), (vec![4, 2], vec![6, 1]));
        let stepped = ViewOp::Slice(vec![Slice::with_step(0, Some(4), 2)]);
        assert!(view(&[4, 6], &[stepped]).is_none());
    }

    #[test]
    fn what_is_out_of_range_is_left_to_the_backend() {
        assert!(view(&[4, 6], &[reshape(&[5, 5])]).is_none());
        assert!(view(&[4, 6], &[ViewOp::SwapDims(0, 2)]).is_none());
        assert!(view(&[4, 6], &[ViewOp::Permute(vec![0, 0])]).is_none());
        assert!(view(&[4, 6], &[ViewOp::Expand(Shape::from(vec![5, 6]))]).is_none());
    }
}
