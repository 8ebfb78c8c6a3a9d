//! Int and bool tensors are not ours: they are made from packed floats, and floats are made from them.

use burn::tensor::{Bool, DType, Int, IntDType, Tensor};

use crate::results::{indices, leaf};
use crate::{DEVICE, Lct, Results, Train, report, same_bits, turn};

#[test]
fn ints() {
    same_bits!(numbers);
}

#[test]
fn bools() {
    same_bits!(truths);
}

#[test]
fn they_pass_and_are_counted() {
    let _turn = turn();
    let before = report();
    let numbers = Tensor::<Lct, 1, Int>::arange(0..5000, &DEVICE);
    let small = numbers.clone().lower_elem(10);
    let after = report();
    assert_eq!(after.logical_bytes, 0, "nothing to compress: {after}");
    assert!(after.passed_int_bool >= before.passed_int_bool + 2);
    assert_eq!(numbers.sum().into_scalar(), 12_497_500);
    assert_eq!(small.int().sum().into_scalar(), 10);
}

fn numbers<B: Train>(results: &mut Results) {
    let x = leaf::<B, 2>([64, 96], 1);
    let scaled: Tensor<B, 2, Int> = (x.clone() * 100.0).int();
    results.tensor("int", scaled.clone());
    results.tensor("wide", scaled.clone().cast(IntDType::I64));
    // Back to floats, which are packed again.
    let back = scaled.clone().float();
    assert_eq!(back.dtype(), DType::BF16);
    results.backward("float", back * x.clone(), &[&x]);
    let classes = x.clone().argmax(1).reshape([64]);
    let hot = classes.one_hot::<2>(96).float();
    results.backward("one_hot", hot.matmul(x.clone().transpose()), &[&x]);
    let positions = Tensor::<B, 1, Int>::arange(0..6144, &DEVICE).reshape([64, 96]);
    results.backward("arange", positions.float() * x.clone(), &[&x]);
    let random = indices::<B, 2>([64, 96], 12, 2);
    let low = random.bitwise_and_scalar(3).equal_elem(2);
    results.backward("bits", x.clone().mask_fill(low, 0.0), &[&x]);
}

fn truths<B: Train>(results: &mut Results) {
    let [x, y] = [1, 2].map(|seed| leaf::<B, 2>([64, 96], seed));
    let mask: Tensor<B, 2, Bool> = x.clone().greater(y.clone());
    results.tensor("greater", mask.clone());
    results.tensor("places", mask.clone().argwhere());
    results.tensor("any", x.clone().lower_elem(-1.9).any_dim(1));
    results.tensor("all", x.clone().is_finite().all());
    results.tensor("close", x.clone().is_close(y.clone(), None, Some(0.1)));
    let either = mask.clone().bool_or(y.clone().lower_elem(0.0));
    // A mask as factor, as in ReLU by hand.
    results.backward("float", either.float() * x.clone(), &[&x]);
    let triangle = Tensor::<B, 2, Bool>::tril_mask([64, 96], 0, &DEVICE);
    results.backward("triangle", x.clone().mask_fill(triangle, 1.0), &[&x]);
}
