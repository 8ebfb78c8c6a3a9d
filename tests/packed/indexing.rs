//! Parts of tensors: selected, gathered, scattered, sliced, masked, joined.

use burn::tensor::{IndexingUpdateOp, Tensor, s};

use crate::results::{indices, leaf};
use crate::{Results, Train, same_bits};

#[test]
fn select_and_gather() {
    same_bits!(gathered);
}

#[test]
fn scatter_and_assign() {
    same_bits!(scattered);
}

#[test]
fn slices() {
    same_bits!(sliced);
}

#[test]
fn masks() {
    same_bits!(masked);
}

#[test]
fn pieces_and_joins() {
    same_bits!(joined);
}

fn gathered<B: Train>(results: &mut Results) {
    let x = leaf::<B, 2>([64, 96], 1);
    let rows = indices::<B, 1>([80], 64, 2);
    results.backward("select", x.clone().select(0, rows.clone()), &[&x]);
    let places = indices::<B, 2>([64, 50], 96, 3);
    results.backward("gather", x.clone().gather(1, places), &[&x]);
    let lines = indices::<B, 2>([100, 1], 64, 4);
    results.backward("gather_nd", x.clone().gather_nd::<2, 2>(lines), &[&x]);
    let taken = x.clone().take::<2, 3>(0, indices([6, 9], 64, 5));
    results.backward("take", taken, &[&x]);
}

fn scattered<B: Train>(results: &mut Results) {
    let x = leaf::<B, 2>([64, 96], 1);
    let rows = indices::<B, 1>([80], 64, 2);
    let values = leaf::<B, 2>([80, 96], 3);
    let added = x
        .clone()
        .select_assign(0, rows, values.clone(), IndexingUpdateOp::Add);
    results.backward("select_assign", added, &[&x, &values]);

    let places = indices::<B, 2>([40, 96], 64, 4);
    let values = leaf::<B, 2>([40, 96], 5);
    let added = x
        .clone()
        .scatter(0, places, values.clone(), IndexingUpdateOp::Add);
    results.backward("scatter", added, &[&x, &values]);

    let lines = indices::<B, 2>([50, 1], 64, 6);
    let values = leaf::<B, 2>([50, 96], 7);
    let added = x
        .clone()
        .scatter_nd(lines, values.clone(), IndexingUpdateOp::Add);
    results.backward("scatter_nd", added, &[&x, &values]);
}

fn sliced<B: Train>(results: &mut Results) {
    let x = leaf::<B, 2>([64, 96], 1);
    results.backward("slice", x.clone().slice(s![3..60, ..80]), &[&x]);
    results.backward("steps", x.clone().slice(s![..;2, ..;-3]), &[&x]);
    results.backward("narrow", x.clone().narrow(1, 10, 70), &[&x]);
    let values = leaf::<B, 2>([32, 96], 2);
    let assigned = x.clone().slice_assign(s![8..40, ..], values.clone());
    results.backward("slice_assign", assigned, &[&x, &values]);
    // The tensor that was assigned to is as it was.
    results.tensor("parent", x.clone());
    results.backward("slice_fill", x.clone().slice_fill(s![..9, ..], 0.5), &[&x]);
    results.backward("upper triangle", x.clone().triu(2), &[&x]);
}

fn masked<B: Train>(results: &mut Results) {
    let [x, y] = [1, 2].map(|seed| leaf::<B, 2>([64, 96], seed));
    let mask = x.clone().greater(y.clone());
    let chosen = x.clone().mask_where(mask.clone(), y.clone());
    results.backward("mask_where", chosen, &[&x, &y]);
    results.backward("mask_fill", x.clone().mask_fill(mask, -1.0), &[&x]);
}

fn joined<B: Train>(results: &mut Results) {
    let [x, y] = [1, 2].map(|seed| leaf::<B, 2>([64, 96], seed));
    let both = vec![x.clone(), y.clone()];
    results.backward("cat", Tensor::cat(both.clone(), 1), &[&x, &y]);
    results.backward("stack", Tensor::stack::<3>(both, 1), &[&x, &y]);
    for (index, piece) in x.clone().chunk(3, 0).into_iter().enumerate() {
        results.backward(&format!("chunk {index}"), piece, &[&x]);
    }
    results.backward("repeat", x.clone().repeat(&[2, 1]), &[&x]);
    results.backward("flip", x.clone().flip([0, 1]), &[&x]);
    results.backward("roll", x.clone().roll_dim(5, 1), &[&x]);
    let expanded = x.clone().unsqueeze::<3>().expand([3, 64, 96]);
    results.backward("expand", expanded.swap_dims(0, 2), &[&x]);
}
