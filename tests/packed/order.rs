//! Sorting, and what depends on the order of values.

use crate::results::leaf;
use crate::{Results, Train, same_bits};

#[test]
fn sorting() {
    same_bits!(sorted);
}

#[test]
fn largest_and_smallest() {
    same_bits!(extremes);
}

#[test]
fn running_values() {
    same_bits!(running);
}

fn sorted<B: Train>(results: &mut Results) {
    let x = leaf::<B, 2>([64, 96], 1);
    // Sorted along rows with equal values among them: BF16 has few.
    results.backward("sort", x.clone().sort(1), &[&x]);
    let (values, places) = x.clone().sort_descending_with_indices(0);
    results.tensor("places", places);
    results.backward("sort_descending", values, &[&x]);
    results.tensor("argsort", x.clone().argsort(1));
    results.tensor("argsort_descending", x.clone().argsort_descending(0));
    results.backward("median", x.clone().median(1), &[&x]);
}

fn extremes<B: Train>(results: &mut Results) {
    let x = leaf::<B, 2>([64, 96], 1);
    // Burn has no gradient of it.
    results.tensor("topk", x.clone().inner().topk(40, 1));
    let (values, places) = x.clone().topk_with_indices(20, 0);
    results.tensor("places", places);
    results.backward("topk_with_indices", values, &[&x]);
    results.tensor("argmax", x.clone().argmax(1));
    results.tensor("argmin", x.clone().argmin(0));
    let (values, places) = x.clone().max_dim_with_indices(0);
    results.tensor("places", places);
    results.backward("max_dim", values, &[&x]);
    results.backward("min_dim", x.clone().min_dim(1), &[&x]);
    results.backward("max", x.clone().max(), &[&x]);
    results.backward("clamp", x.clone().clamp(-0.5, 0.5), &[&x]);
    results.backward("max_abs_dim", x.clone().max_abs_dim(1), &[&x]);
}

fn running<B: Train>(results: &mut Results) {
    let x = leaf::<B, 2>([64, 96], 1);
    results.backward("cumsum", x.clone().cumsum(1), &[&x]);
    results.backward("cumprod", x.clone().cumprod(1), &[&x]);
    results.backward("cummin", x.clone().cummin(0), &[&x]);
    results.backward("cummax", x.clone().cummax(0), &[&x]);
}
