//! The loss over a large vocabulary, whose logits are never there all at once.
//!
//! Keeps the hidden states, the head's weight and one f32 number a token. Logits exist for one chunk of the vocabulary at
//! a time, and are computed again in the backward pass. A chunk is a piece of the weight's rows, so its gradient is
//! written once and not summed up.

use super::{float, int, primitive};
use burn::tensor::{
    Bool, DType, Int, Tensor,
    backend::Backend,
    ops::{FloatTensor, IntTensor},
};
use std::ops::Range;
use trainer::differentiable::{Differentiable, Operation};

/// The negative log likelihood of each target in nats, in f32, with the logits `hidden · weightᵀ`.
///
/// # Shapes
/// - `hidden`: `[tokens, width]`
/// - `weight`: `[vocabulary, width]`
/// - `targets`: `[tokens]`, ids below the vocabulary
/// - result: `[tokens]`
///
/// At most `values` logits exist at a time, or those of a step of ids.
pub fn surprise<B: Differentiable>(
    hidden: Tensor<B, 2>,
    weight: Tensor<B, 2>,
    targets: Tensor<B, 1, Int>,
    values: usize,
) -> Tensor<B, 1> {
    let operation = Surprise { values };
    let inputs = [primitive(hidden), primitive(weight)];
    float(B::apply(operation, inputs, [targets.into_primitive()]))
}

/// A chunk is a multiple of so many ids, which the matrix products like.
pub const STEP: usize = 128;

#[derive(Clone, Debug)]
struct Surprise {
    /// The most logits that exist at a time.
    values: usize,
}

impl Surprise {
    fn chunks(&self, tokens: usize, vocabulary: usize) -> Vec<Range<usize>> {
        let ids = (self.values / tokens.max(1) / STEP).max(1) * STEP;
        let starts = (0..vocabulary).step_by(ids);
        starts
            .map(|start| start..(start + ids).min(vocabulary))
            .collect()
    }
}

impl Operation<2, 1> for Surprise {
    const CHEAP: bool = false;

    fn forward<B: Backend>(
        &self,
        [hidden, weight]: [FloatTensor<B>; 2],
        [targets]: [IntTensor<B>; 1],
    ) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
        let (hidden, weight) = (float::<B, 2>(hidden), float::<B, 2>(weight));
        let targets = int::<B, 1>(targets);
        let [tokens, _] = hidden.dims();
        // The most, the sum of the exponentials above it, and the target's logit, of the chunks so far.
        let mut so_far: Option<[Tensor<B, 2>; 3]> = None;
        for ids in self.chunks(tokens, weight.dims()[0]) {
            let logits = logits(&hidden, &weight, &ids);
            let (outside, place) = place(&targets, &ids);
            let target = logits.clone().gather(1, place).mask_fill(outside, 0.0);
            let most = logits.clone().max_dim(1);
            so_far = Some(match so_far {
                None => {
                    let sum = (logits - most.clone()).exp().sum_dim(1);
                    [most, sum, target]
                }
                Some([old_most, old_sum, old_target]) => {
                    let most = old_most.clone().max_pair(most);
                    let sum = (logits - most.clone()).exp().sum_dim(1);
                    let old_sum = old_sum * (old_most - most.clone()).exp();
                    [most, old_sum + sum, old_target + target]
                }
            });
        }
        let [most, sum, target] = so_far.expect("a vocabulary has at least one token");
        let norm = sum.log() + most;
        let result = (norm.clone() - target).squeeze_dim::<1>(1);
        (primitive(result), vec![primitive(norm)])
    }

    fn backward<B: Backend>(
        &self,
        [hidden, weight]: [FloatTensor<B>; 2],
        [targets]: [IntTensor<B>; 1],
        kept: Vec<FloatTensor<B>>,
        gradient: FloatTensor<B>,
    ) -> [Option<FloatTensor<B>>; 2] {
        let [norm] = <[_; 1]>::try_from(kept).expect("kept as forward kept it");
        let (hidden, weight) = (float::<B, 2>(hidden), float::<B, 2>(weight));
        let (norm, targets) = (float::<B, 2>(norm), int::<B, 1>(targets));
        let gradient = float::<B, 1>(gradient).unsqueeze_dim::<2>(1);
        let ([tokens, width], dtype) = (hidden.dims(), hidden.dtype());
        let mut of_hidden: Option<Tensor<B, 2>> = None;
        let mut of_weight = Tensor::empty(weight.dims(), (&weight.device(), weight.dtype()));
        for ids in self.chunks(tokens, weight.dims()[0]) {
            let shares = (logits(&hidden, &weight, &ids) - norm.clone()).exp();
            let hit = hit(&targets, &ids);
            let of_logits = shares.clone().mask_where(hit, shares - 1.0) * gradient.clone();
            let of_logits = of_logits.cast(dtype);
            let rows = weight.clone().slice([ids.clone()]);
            let part = of_logits.clone().matmul(rows).cast(DType::F32);
            of_hidden = Some(match of_hidden {
                None => part,
                Some(sum) => sum + part,
            });
            let part = of_logits.transpose().matmul(hidden.clone());
            of_weight = of_weight.slice_assign([ids, 0..width], part);
        }
        let of_hidden = of_hidden.expect("a vocabulary has at least one token");
        [
            Some(primitive(of_hidden.cast(dtype))),
            Some(primitive(of_weight)),
        ]
    }
}

/// The logits of a chunk of ids, in f32: `[tokens, ids]`.
fn logits<B: Backend>(
    hidden: &Tensor<B, 2>,
    weight: &Tensor<B, 2>,
    ids: &Range<usize>,
) -> Tensor<B, 2> {
    let rows = weight.clone().slice([ids.clone()]);
    hidden.clone().matmul(rows.transpose()).cast(DType::F32)
}

/// Whether each target is not among the ids, and its place there; 0 for one that is not. `[tokens, 1]` both.
fn place<B: Backend>(
    targets: &Tensor<B, 1, Int>,
    ids: &Range<usize>,
) -> (Tensor<B, 2, Bool>, Tensor<B, 2, Int>) {
    let place = targets.clone().unsqueeze_dim::<2>(1) - ids.start as i64;
    let outside = place
        .clone()
        .lower_elem(0)
        .bool_or(place.clone().greater_equal_elem(ids.len() as i64));
    (outside.clone(), place.mask_fill(outside, 0))
}

/// Where the target's own logit is: `[tokens, ids]`.
fn hit<B: Backend>(targets: &Tensor<B, 1, Int>, ids: &Range<usize>) -> Tensor<B, 2, Bool> {
    let [tokens] = targets.dims();
    let range = ids.start as i64..ids.end as i64;
    let ids = Tensor::<B, 1, Int>::arange(range, &targets.device());
    let [count] = ids.dims();
    let shape = [tokens, count];
    let targets = targets.clone().unsqueeze_dim::<2>(1).expand(shape);
    targets.equal(ids.unsqueeze_dim::<2>(0).expand(shape))
}
