//! Other float types, other devices.

use burn::module::Module;
use burn::nn::LinearConfig;
use burn::tensor::{DType, FloatDType, Tensor};

use crate::results::{leaf, normal};
use crate::{DEVICE, Packed, Results, Train, report, same_bits, turn};

#[test]
fn casts() {
    same_bits!(there_and_back);
}

#[test]
fn mixed_precision() {
    same_bits!(mixed);
}

#[test]
fn the_same_device_needs_no_decode() {
    let _turn = turn();
    let tensor = normal::<Packed, 2>([64, 96], 1);
    let layer = LinearConfig::new(64, 64)
        .with_bias(false)
        .init::<Packed>(&DEVICE);
    // A parameter is made when it is first asked for.
    let weight = layer.weight.val();
    let before = report();
    let moved = tensor.clone().to_device(&DEVICE).detach();
    let layer = layer.to_device(&DEVICE).fork(&DEVICE);
    assert_eq!(layer.devices(), [DEVICE]);
    assert_eq!(report().decodes, before.decodes);
    assert_eq!(report().logical_bytes, before.logical_bytes);
    assert_eq!(moved.into_data(), tensor.into_data());
    assert_eq!(layer.weight.val().into_data(), weight.into_data());
}

#[test]
fn a_cast_to_the_own_type_needs_no_decode() {
    let _turn = turn();
    let tensor = normal::<Packed, 2>([64, 96], 1);
    let before = report();
    let same = tensor.clone().cast(DType::BF16);
    assert_eq!(report().decodes, before.decodes);
    assert_eq!(same.into_data(), tensor.into_data());
}

fn there_and_back<B: Train>(results: &mut Results) {
    let x = leaf::<B, 2>([64, 96], 1);
    for dtype in [FloatDType::F32, FloatDType::F16, FloatDType::F64] {
        let name = format!("{dtype:?}");
        let other = x.clone().cast(dtype);
        assert_eq!(other.dtype(), DType::from(dtype));
        results.tensor(&name, other.clone());
        results.backward(&name, other.sin().cast(FloatDType::BF16), &[&x]);
    }
}

/// Weights in BF16, sums in F32, as many programs have it.
fn mixed<B: Train>(results: &mut Results) {
    let x = leaf::<B, 2>([64, 96], 1);
    let y = leaf::<B, 2>([96, 64], 2);
    let product = x.clone().matmul(y.clone()).cast(FloatDType::F32);
    let mean = product.clone().mean_dim(1);
    let centred: Tensor<B, 2> = product.sub(mean).powi_scalar(2).cast(FloatDType::BF16);
    results.backward("mixed", centred.matmul(x.clone()), &[&x]);
}
