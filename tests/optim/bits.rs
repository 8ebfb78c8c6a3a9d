//! Random steps with every configuration.

use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, SgdConfig, SimpleOptimizer};
use burn::record::{FullPrecisionSettings, Record};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_flex::{Flex, FlexDevice};
use burn_lct::{LctAdamConfig, LctAdamWConfig, LctSgdConfig};

use crate::{Lct, Random, VALUES, assert_bits, bits, configure, tensor};

/// An optimizer with the state of one parameter.
struct Run<B: Backend, O: SimpleOptimizer<B>> {
    optim: O,
    weight: Tensor<B, 2>,
    state: Option<O::State<2>>,
    device: B::Device,
}

impl<B: Backend, O: SimpleOptimizer<B>> Run<B, O> {
    fn new(optim: O, weight: &[u16], device: &B::Device) -> Self {
        Self {
            optim,
            weight: tensor(weight, device),
            state: None,
            device: device.clone(),
        }
    }

    fn step(&mut self, rate: f64, gradient: &[u16]) -> Vec<u16> {
        let gradient = tensor(gradient, &self.device);
        let (weight, state) =
            (self.optim).step(rate, self.weight.clone(), gradient, self.state.take());
        self.weight = weight;
        self.state = state;
        bits(self.weight.clone())
    }
}

/// Steps of Burn's optimizer, and of ours on the plain backend and on the packing one.
fn compare<A, B, C>(what: &str, steps: u64, burn: A, plain: B, packed: C)
where
    A: SimpleOptimizer<Flex>,
    B: SimpleOptimizer<Flex>,
    C: SimpleOptimizer<Lct>,
{
    configure();
    for special in [false, true] {
        let mut random = Random(steps + special as u64);
        let mut values = |deviation| match special {
            true => random.special(VALUES, deviation),
            false => random.values(VALUES, deviation),
        };
        let weight = values(0.05);
        let mut burn = Run::<Flex, _>::new(burn.clone(), &weight, &FlexDevice);
        let mut plain = Run::<Flex, _>::new(plain.clone(), &weight, &FlexDevice);
        let mut packed = Run::<Lct, _>::new(packed.clone(), &weight, &FlexDevice);
        for step in 0..steps {
            let gradient = values(0.01 / (1.0 + step as f32));
            let rate = 0.05 / (1.0 + step as f64);
            let expected = burn.step(rate, &gradient);
            let what = format!("{what}, special values: {special}, step {step}");
            assert_bits(&what, &plain.step(rate, &gradient), &expected);
            assert_bits(
                &format!("{what}, packed"),
                &packed.step(rate, &gradient),
                &expected,
            );
        }
    }
}

const STEPS: u64 = 40;

fn decays() -> [Option<WeightDecayConfig>; 2] {
    [None, Some(WeightDecayConfig::new(0.05))]
}

#[test]
fn sgd() {
    let velocity = |momentum, dampening, nesterov| {
        let config = MomentumConfig::new().with_momentum(momentum);
        Some(config.with_dampening(dampening).with_nesterov(nesterov))
    };
    let momenta = [
        None,
        velocity(0.9, 0.1, false),
        velocity(0.9, 0.0, false),
        velocity(0.99, 0.5, true),
        velocity(0.9, 0.0, true),
    ];
    for momentum in momenta {
        for decay in decays() {
            let what = format!("{momentum:?} {decay:?}");
            let burn = SgdConfig::new()
                .with_momentum(momentum.clone())
                .with_weight_decay(decay.clone());
            let ours = LctSgdConfig::new()
                .with_momentum(momentum.clone())
                .with_weight_decay(decay);
            compare(
                &what,
                STEPS,
                burn.build::<Flex>(),
                ours.build(),
                ours.build(),
            );
        }
    }
}

#[test]
fn adam() {
    for amsgrad in [false, true] {
        for beta_2 in [0.95, 0.999] {
            for decay in decays() {
                let what = format!("Adam, amsgrad {amsgrad}, beta 2 {beta_2}, {decay:?}");
                let burn = AdamConfig::new()
                    .with_amsgrad(amsgrad)
                    .with_beta_2(beta_2)
                    .with_weight_decay(decay.clone());
                let ours = LctAdamConfig::new()
                    .with_amsgrad(amsgrad)
                    .with_beta_2(beta_2)
                    .with_weight_decay(decay);
                compare(&what, STEPS, burn.build(), ours.build(), ours.build());
            }
        }
    }
}

#[test]
fn adamw() {
    for amsgrad in [false, true] {
        for cautious in [false, true] {
            for (decay, epsilon) in [(0.0, 1e-5), (1e-4, 1e-8), (0.5, 1e-30)] {
                let what = format!("AdamW, amsgrad {amsgrad}, cautious {cautious}, {decay}");
                let burn = AdamWConfig::new()
                    .with_amsgrad(amsgrad)
                    .with_beta_2(0.95)
                    .with_epsilon(epsilon)
                    .with_weight_decay(decay)
                    .with_cautious_weight_decay(cautious);
                let ours = LctAdamWConfig::new()
                    .with_amsgrad(amsgrad)
                    .with_beta_2(0.95)
                    .with_epsilon(epsilon)
                    .with_weight_decay(decay)
                    .with_cautious_weight_decay(cautious);
                compare(&what, STEPS, burn.build(), ours.build(), ours.build());
            }
        }
    }
}

#[test]
fn the_states_are_burns_too() {
    configure();
    let mut random = Random(3);
    let weight = random.values(VALUES, 0.05);
    let config = MomentumConfig::new();
    let burn = SgdConfig::new()
        .with_momentum(Some(config.clone()))
        .build::<Flex>();
    let ours = LctSgdConfig::new().with_momentum(Some(config)).build();
    let mut burn = Run::<Flex, _>::new(burn, &weight, &FlexDevice);
    let mut ours = Run::<Lct, _>::new(ours, &weight, &FlexDevice);
    for _ in 0..2000 {
        let gradient = random.values(VALUES, 0.01);
        burn.step(0.01, &gradient);
        ours.step(0.01, &gradient);
    }
    assert_bits("weight", &bits(ours.weight), &bits(burn.weight));
    let velocity = ours.state.unwrap().momentum.unwrap().velocity;
    let recorded = burn.state.unwrap().momentum.unwrap();
    let recorded = recorded.into_item::<FullPrecisionSettings>().velocity;
    let recorded = Tensor::<Flex, 2>::from_item::<FullPrecisionSettings>(recorded, &FlexDevice);
    let recorded = recorded.cast(burn::tensor::DType::BF16);
    assert_bits("velocity", &bits(velocity), &bits(recorded));
}

#[test]
fn operands_need_not_be_row_major() {
    configure();
    let mut random = Random(5);
    let weight = tensor::<Flex>(&random.values(VALUES, 0.05), &FlexDevice).transpose();
    let gradient = tensor::<Flex>(&random.values(VALUES, 0.01), &FlexDevice).transpose();
    let burn = SgdConfig::new().build::<Flex>();
    let ours = LctSgdConfig::new().build();
    let (expected, _) = burn.step(0.1, weight.clone(), gradient.clone(), None);
    let (found, _) =
        SimpleOptimizer::<Flex>::step(&ours, 0.1, weight.clone(), gradient.clone(), None);
    assert_bits("both transposed", &bits(found), &bits(expected));
    let wide = tensor::<Flex>(&random.values(2 * VALUES, 0.05), &FlexDevice);
    let piece = wide.slice([64..128, 0..64]);
    let other = gradient.slice([0..64, 0..64]);
    let (expected, _) = burn.step(0.1, piece.clone(), other.clone(), None);
    let (found, _) = SimpleOptimizer::<Flex>::step(&ours, 0.1, piece, other, None);
    assert_bits("a piece", &bits(found), &bits(expected));
}
