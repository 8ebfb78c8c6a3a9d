//! What a backend does beside computing: random numbers, cleaning up, staging, waiting.

use burn::nn::{DropoutConfig, LinearConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Distribution, Tensor, TensorData};

use crate::results::{leaf, normal};
use crate::{DEVICE, Lct, Packed, Results, Train, report, same_bits, turn};

#[test]
fn seeds() {
    same_bits!(drawn);
}

#[test]
fn initialization_in_persistent_memory() {
    same_bits!(initialized);
}

#[test]
fn cleaning_up_and_waiting_keep_every_bit() {
    let _turn = turn();
    let tensors: Vec<_> = (0..4)
        .map(|seed| normal::<Packed, 2>([64, 96], seed))
        .collect();
    let expected: Vec<TensorData> = tensors.iter().map(Tensor::to_data).collect();
    let before = report();
    Packed::memory_cleanup(&DEVICE);
    Packed::sync(&DEVICE).unwrap();
    Lct::settle(&DEVICE);
    let after = report();
    assert_eq!(after.logical_bytes, before.logical_bytes);
    assert_eq!(
        (after.encodes, after.decodes),
        (before.encodes, before.decodes)
    );
    for (tensor, expected) in tensors.iter().zip(expected) {
        assert_eq!(tensor.to_data(), expected);
    }
    drop(tensors);
    Packed::memory_cleanup(&DEVICE);
    assert_eq!(report().resident_bytes(), 0);
}

#[test]
fn staged_data_is_what_it_was() {
    let _turn = turn();
    let mut data: Vec<TensorData> = (0..3)
        .map(|seed| normal::<Packed, 2>([64, 96], seed).into_data())
        .collect();
    let expected = data.clone();
    Packed::staging(data.iter_mut(), &DEVICE);
    for (data, expected) in data.into_iter().zip(expected) {
        let tensor = Tensor::<Packed, 2>::from_data(data, &DEVICE);
        assert_eq!(tensor.into_data(), expected);
    }
}

#[test]
fn the_backend_answers_for_the_one_inside() {
    let _turn = turn();
    assert_eq!(Lct::name(&DEVICE), "lct<flex>");
    for dtype in [DType::BF16, DType::F32, DType::I64, DType::F16] {
        let inside = burn_flex::Flex::supports_dtype(&DEVICE, dtype);
        assert_eq!(Lct::supports_dtype(&DEVICE, dtype), inside, "{dtype:?}");
    }
    assert_eq!(Lct::device_count(0), burn_flex::Flex::device_count(0));
    assert!(!Lct::ad_enabled(&DEVICE) && Packed::ad_enabled(&DEVICE));
}

fn drawn<B: Train>(results: &mut Results) {
    let shape = [64, 96];
    for seed in [1, 2, 1] {
        B::seed(&DEVICE, seed);
        for distribution in [
            Distribution::Default,
            Distribution::Normal(0.0, 0.5),
            Distribution::Bernoulli(0.3),
        ] {
            results.tensor(
                "random",
                Tensor::<B, 2>::random(shape, distribution, &DEVICE),
            );
        }
    }
    let x = leaf::<B, 2>(shape, 1);
    let dropout = DropoutConfig::new(0.4).init();
    results.backward("dropout", dropout.forward(x.clone()), &[&x]);
    results.tensor("like", x.random_like(Distribution::Default));
}

fn initialized<B: Train>(results: &mut Results) {
    // Burn makes parameters inside `memory_persistent_allocations`, where nothing is packed; they are afterwards.
    let layer = LinearConfig::new(96, 64).init::<B>(&DEVICE);
    let x = leaf::<B, 2>([64, 96], 1);
    results.module("linear", &layer, &x, layer.forward(x.clone()));
    let doubled = B::memory_persistent_allocations(&DEVICE, x.clone(), |x| x * 2.0);
    results.backward("inside", doubled, &[&x]);
}
