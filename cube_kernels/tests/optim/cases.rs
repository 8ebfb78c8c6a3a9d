//! Every chain of operations, and values for it.

use lct_kernels::optim::{Adam, AdamW, Math, Momentum, Sgd, Update};

use crate::common::{Random, bf16};

/// Every rule with every form of decay, in its first step and in a later one.
pub fn updates(math: Math) -> Vec<(String, Update)> {
    let mut found = Vec::new();
    let mut add = |name: String, update: Update| found.push((name, update));
    let momentum = |dampening, nesterov| {
        Some(Momentum {
            momentum: 0.9,
            dampening,
            nesterov,
        })
    };
    for penalty in [None, Some(0.05)] {
        for momentum in [None, momentum(0.1, false), momentum(0.0, true)] {
            for known in [0, 1] {
                let rule = Sgd { momentum, penalty };
                add(
                    format!("{rule:?} {known}"),
                    rule.update(0.02, known, math, 7),
                );
            }
        }
    }
    for amsgrad in [false, true] {
        for known in [0, 2, 3] {
            let time = 1 + known;
            for penalty in [None, Some(0.5)] {
                let rule = Adam {
                    beta_1: 0.9,
                    beta_2: 0.95,
                    epsilon: 1e-5,
                    amsgrad,
                    penalty,
                };
                add(
                    format!("{rule:?} {known}"),
                    rule.update(1e-3, time, known, math, 8),
                );
            }
            for (weight_decay, cautious) in [(0.0, false), (0.5, false), (0.5, true)] {
                let rule = AdamW {
                    beta_1: 0.9,
                    beta_2: 0.95,
                    epsilon: 1e-8,
                    amsgrad,
                    weight_decay,
                    cautious,
                };
                add(
                    format!("{rule:?} {known}"),
                    rule.update(1e-2, time, known, math, 9),
                );
            }
        }
    }
    found
}

/// Weight, gradient and three states, in the scales of a training.
pub fn values(n: usize, seed: u64) -> [Vec<u16>; 5] {
    let mut random = Random(seed);
    let mut normal = |deviation: f64| -> Vec<u16> {
        (0..n).map(|_| bf16(deviation * random.normal())).collect()
    };
    let (weight, gradient, first) = (normal(0.02), normal(1e-3), normal(1e-3));
    let squares = |values: Vec<u16>| values.into_iter().map(|x| x & 0x7fff).collect();
    let (second, most) = (squares(normal(1e-6)), squares(normal(1e-6)));
    [weight, gradient, first, second, most]
}

/// The same with infinities, NaN and zeros of both signs in each, and large and small numbers.
pub fn special_values(n: usize, seed: u64) -> [Vec<u16>; 5] {
    let mut random = Random(seed);
    let special = [
        0, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0xffff, 0x7f81, 0x3f80, 0xbf80, 0x7f7f, 0xff7f, 0x2000,
        0x6000,
    ];
    values(n, seed).map(|values| {
        let pick = |value| match random.bits() {
            bits if bits & 3 == 0 => special[(bits >> 8) as usize % special.len()],
            _ => value,
        };
        values.into_iter().map(pick).collect()
    })
}
