//! Other types than BF16, and other precision.

use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, SgdConfig, SimpleOptimizer};
use burn::tensor::{DType, Tensor};
use burn_flex::{Flex, FlexDevice};
use burn_lct::optim::Math;
use burn_lct::{LctAdamWConfig, LctSgdConfig};

use crate::{Lct, Random, VALUES, bits, configure, tensor};

/// A tensor in `f32`.
fn wide(random: &mut Random, deviation: f32) -> Tensor<Flex, 2> {
    tensor::<Flex>(&random.values(VALUES, deviation), &FlexDevice).cast(DType::F32)
}

#[test]
fn f32_tensors_take_burns_chain() {
    let mut random = Random(1);
    let momentum = Some(MomentumConfig::new().with_nesterov(true));
    let burn = SgdConfig::new()
        .with_momentum(momentum.clone())
        .build::<Flex>();
    let ours = LctSgdConfig::new().with_momentum(momentum).build();
    let weight = wide(&mut random, 0.1);
    let (mut a, mut b) = ((weight.clone(), None), (weight.clone(), None));
    for _ in 0..3 {
        let gradient = wide(&mut random, 0.1);
        a = burn.step(0.1, a.0, gradient.clone(), a.1);
        b = ours.step(0.1, b.0, gradient, b.1);
        assert!(a.0.to_data() == b.0.to_data());
    }
    let burn = AdamWConfig::new().build();
    let ours = LctAdamWConfig::new().build();
    let (mut a, mut b) = ((weight.clone(), None), (weight, None));
    for _ in 0..3 {
        let gradient = wide(&mut random, 0.1);
        a = burn.step(0.1, a.0, gradient.clone(), a.1);
        b = ours.step(0.1, b.0, gradient, b.1);
        assert!(a.0.to_data() == b.0.to_data());
    }
}

/// The weight after 200 steps down the same slope, each a twentieth of a unit in the last place.
fn descend(math: Math) -> Vec<u16> {
    configure();
    let optim = LctSgdConfig::new().with_math(math).build();
    let mut weight = tensor::<Lct>(&[0x3f80; VALUES], &FlexDevice);
    for _ in 0..200 {
        let gradient = tensor::<Lct>(&[0x3f80; VALUES], &FlexDevice);
        weight = optim.step(2f64.powi(-8) / 20.0, weight, gradient, None).0;
    }
    bits(weight)
}

#[test]
fn small_steps_are_lost_but_for_the_stochastic() {
    assert!(descend(Math::Bf16) == [0x3f80; VALUES]);
    assert!(descend(Math::F32) == [0x3f80; VALUES]);
    let drawn = descend(Math::Stochastic { seed: 3 });
    let sum: f64 = drawn
        .iter()
        .map(|&bits| f32::from_bits((bits as u32) << 16) as f64)
        .sum();
    let mean = sum / VALUES as f64;
    let expected = 1.0 - 10.0 * 2f64.powi(-8);
    assert!(
        (mean - expected).abs() < 1e-3,
        "{mean} instead of {expected}"
    );
    assert!(
        drawn == descend(Math::Stochastic { seed: 3 }),
        "reproducible"
    );
    assert!(drawn != descend(Math::Stochastic { seed: 4 }), "seeded");
}
