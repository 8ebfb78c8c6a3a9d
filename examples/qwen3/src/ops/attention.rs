//! Causal attention whose memory grows linearly with the sequence.
//!
//! Keeps queries, keys, values, the result and one f32 number a row. Scores exist for one tile of queries at a time, and
//! are computed again in the backward pass. A tile looks at the keys up to its last row only.

use super::{float, primitive};
use burn::tensor::{
    Bool, DType, Tensor,
    backend::Backend,
    ops::{FloatTensor, IntTensor},
};
use std::ops::Range;
use trainer::differentiable::{Differentiable, Operation};

/// Causal attention with grouped heads: each key head serves `heads / key_heads` query heads. The scores are divided by the
/// root of `head`.
///
/// # Shapes
/// - `query`: `[batch, sequence, heads, head]`
/// - `key` and `value`: `[batch, sequence, key_heads, head]`
/// - result: `[batch, sequence, heads * head]`
///
/// # Panics
/// If `tile`, the rows of queries whose scores exist at a time, is 0.
pub fn attention<B: Differentiable>(
    query: Tensor<B, 4>,
    key: Tensor<B, 4>,
    value: Tensor<B, 4>,
    tile: usize,
) -> Tensor<B, 3> {
    assert!(tile > 0, "a tile has at least one row");
    let inputs = [query, key, value].map(primitive);
    float(B::apply(Attention { tile }, inputs, []))
}

#[derive(Clone, Debug)]
struct Attention {
    tile: usize,
}

impl Operation<3, 0> for Attention {
    const CHEAP: bool = false;

    fn forward<B: Backend>(
        &self,
        [query, key, value]: [FloatTensor<B>; 3],
        []: [IntTensor<B>; 0],
    ) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
        let (query, key, value) = (float::<B, 4>(query), columns::<B>(key), columns(value));
        let heads = Heads::of(&query, &key);
        let (mut results, mut norms) = (Vec::new(), Vec::new());
        for rows in heads.tiles(self.tile) {
            let scores = heads.scores(heads.tile(&query, &rows), &key, &rows);
            let most = scores.clone().max_dim(4);
            let shares = (scores - most.clone()).exp();
            let sum = shares.clone().sum_dim(4);
            let shares = (shares / sum.clone()).cast(query.dtype());
            let shares = heads.joined(shares);
            let value = value.clone().narrow(2, 0, rows.end);
            results.push(heads.untile(shares.matmul(value)));
            norms.push(sum.log() + most);
        }
        let result = primitive(Tensor::cat(results, 1));
        let norms = primitive(Tensor::cat(norms, 3));
        (result.clone(), vec![result, norms])
    }

    fn backward<B: Backend>(
        &self,
        [query, key, value]: [FloatTensor<B>; 3],
        []: [IntTensor<B>; 0],
        kept: Vec<FloatTensor<B>>,
        gradient: FloatTensor<B>,
    ) -> [Option<FloatTensor<B>>; 3] {
        let [result, norms] = <[_; 2]>::try_from(kept).expect("kept as forward kept it");
        let (query, key, value) = (float::<B, 4>(query), columns::<B>(key), columns(value));
        let heads = Heads::of(&query, &key);
        let norms = float::<B, 5>(norms);
        let result = heads.split(float::<B, 3>(result));
        let gradient = heads.split(float::<B, 3>(gradient));
        let dtype = query.dtype();

        let mut of_query = Vec::new();
        let mut of_key: Option<Tensor<B, 4>> = None;
        let mut of_value: Option<Tensor<B, 4>> = None;
        // The last tile sees all keys, so its sums are what the others are added to.
        for rows in heads.tiles(self.tile).into_iter().rev() {
            let query = heads.tile(&query, &rows);
            let gradient = heads.tile(&gradient, &rows);
            let seen = |columns: &Tensor<B, 4>| columns.clone().narrow(2, 0, rows.end);

            let scores = heads.scores(query.clone(), &key, &rows);
            let norm = norms.clone().narrow(3, rows.start, rows.len());
            let shares = (scores - norm).exp();
            let of_shares = gradient.clone().matmul(seen(&value).transpose());
            let of_shares = heads.grouped(of_shares.cast(DType::F32));
            // The sum over keys of share times its gradient is that over the head of result times its gradient.
            let result = heads.tile(&result, &rows).cast(DType::F32);
            let mean = (result * gradient.clone().cast(DType::F32)).sum_dim(3);
            let mean = heads.grouped(mean);
            let of_scores = shares.clone() * (of_shares - mean) * heads.scale();
            let of_scores = heads.joined(of_scores.cast(dtype));
            let shares = heads.joined(shares.cast(dtype));

            of_query.push(heads.untile(of_scores.clone().matmul(seen(&key))));
            let part = of_scores.transpose().matmul(query);
            of_key = Some(added(of_key, part.cast(DType::F32)));
            let part = shares.transpose().matmul(gradient);
            of_value = Some(added(of_value, part.cast(DType::F32)));
        }
        of_query.reverse();
        let of_query = heads.split(Tensor::cat(of_query, 1));
        let of_columns = |sum: Option<Tensor<B, 4>>| {
            let sum = sum.expect("a sequence has at least one tile");
            Some(primitive(sum.cast(dtype).swap_dims(1, 2)))
        };
        [
            Some(primitive(of_query)),
            of_columns(of_key),
            of_columns(of_value),
        ]
    }
}

/// Keys or values by head: `[batch, key_heads, sequence, head]`.
fn columns<B: Backend>(x: FloatTensor<B>) -> Tensor<B, 4> {
    float::<B, 4>(x).swap_dims(1, 2)
}

/// `part` added to the first columns of the sum.
fn added<B: Backend>(sum: Option<Tensor<B, 4>>, part: Tensor<B, 4>) -> Tensor<B, 4> {
    let Some(sum) = sum else {
        return part;
    };
    let [batch, heads, columns, head] = part.dims();
    let first = [0..batch, 0..heads, 0..columns, 0..head];
    let part = sum.clone().slice(first.clone()) + part;
    sum.slice_assign(first, part)
}

/// The sizes of an attention. A tile of queries is handled as `[batch, key_heads, groups * rows, head]`.
struct Heads {
    batch: usize,
    sequence: usize,
    key_heads: usize,
    /// Query heads for each key head.
    groups: usize,
    head: usize,
}

impl Heads {
    /// Of queries `[batch, sequence, heads, head]` and keys `[batch, key_heads, sequence, head]`.
    fn of<B: Backend>(query: &Tensor<B, 4>, key: &Tensor<B, 4>) -> Self {
        let [batch, sequence, heads, head] = query.dims();
        let key_heads = key.dims()[1];
        Self {
            batch,
            sequence,
            key_heads,
            groups: heads / key_heads,
            head,
        }
    }

    fn scale(&self) -> f64 {
        (self.head as f64).sqrt().recip()
    }

    fn tiles(&self, tile: usize) -> Vec<Range<usize>> {
        let starts = (0..self.sequence).step_by(tile);
        starts
            .map(|start| start..(start + tile).min(self.sequence))
            .collect()
    }

    /// `[batch, sequence, heads * head]` as `[batch, sequence, heads, head]`.
    fn split<B: Backend>(&self, x: Tensor<B, 3>) -> Tensor<B, 4> {
        let heads = self.key_heads * self.groups;
        x.reshape([self.batch, self.sequence, heads, self.head])
    }

    /// Some rows of `[batch, sequence, heads, head]` as a tile.
    fn tile<B: Backend>(&self, x: &Tensor<B, 4>, rows: &Range<usize>) -> Tensor<B, 4> {
        let (batch, count) = (self.batch, rows.len());
        x.clone()
            .narrow(1, rows.start, count)
            .reshape([batch, count, self.key_heads, self.groups, self.head])
            .permute([0, 2, 3, 1, 4])
            .reshape([batch, self.key_heads, self.groups * count, self.head])
    }

    /// A tile as `[batch, rows, heads * head]`.
    fn untile<B: Backend>(&self, tile: Tensor<B, 4>) -> Tensor<B, 3> {
        let rows = tile.dims()[2] / self.groups;
        tile.reshape([self.batch, self.key_heads, self.groups, rows, self.head])
            .permute([0, 3, 1, 2, 4])
            .reshape([self.batch, rows, self.key_heads * self.groups * self.head])
    }

    /// `[batch, key_heads, groups * rows, columns]` as `[batch, key_heads, groups, rows, columns]`.
    fn grouped<B: Backend>(&self, x: Tensor<B, 4>) -> Tensor<B, 5> {
        let [batch, heads, rows, columns] = x.dims();
        x.reshape([batch, heads, self.groups, rows / self.groups, columns])
    }

    /// The other way.
    fn joined<B: Backend>(&self, x: Tensor<B, 5>) -> Tensor<B, 4> {
        let [batch, heads, groups, rows, columns] = x.dims();
        x.reshape([batch, heads, groups * rows, columns])
    }

    /// The scores of a tile with the keys that its rows may look at, in f32:
    /// `[batch, key_heads, groups, rows, columns]`, minus infinity where a row may not look.
    fn scores<B: Backend>(
        &self,
        tile: Tensor<B, 4>,
        key: &Tensor<B, 4>,
        rows: &Range<usize>,
    ) -> Tensor<B, 5> {
        let key = key.clone().narrow(2, 0, rows.end);
        let future = Tensor::<B, 2, Bool>::tril_mask(
            [rows.len(), rows.end],
            rows.start as i64,
            &tile.device(),
        );
        let scores = tile.matmul(key.transpose()).cast(DType::F32) * self.scale();
        self.grouped(scores)
            .mask_fill(future.unsqueeze(), f32::NEG_INFINITY)
    }
}
