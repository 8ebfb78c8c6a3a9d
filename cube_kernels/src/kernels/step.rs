//! One step of an optimizer in registers: the device's twin of [`crate::optim`].

use cubecl::prelude::*;
use half::bf16;

use super::codebook::mix;
use super::dense::Granule;
use crate::layout::GRANULE;
use crate::optim::{Chain, Decay, Math, QUIET_NAN, Rule};

/// The numbers of a step; see [`crate::optim::Scalars`].
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Numbers {
    pub decay: f32,
    pub keep: f32,
    pub fresh: f32,
    pub keep_2: f32,
    pub fresh_2: f32,
    pub correct: f32,
    pub correct_2: f32,
    pub epsilon: f32,
    pub rate: f32,
    pub salt: u32,
}

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Plan {
    /// The operations.
    pub chain: Chain,
    /// The device converts to BF16 itself.
    pub native: bool,
}

impl Plan {
    /// Whether every result is rounded.
    fn rounds(self) -> bool {
        self.chain.math == Math::Bf16
    }

    fn coupled(self) -> bool {
        self.chain.decay == Decay::Coupled
    }

    fn nesterov(self) -> bool {
        self.chain.rule == Rule::Momentum { nesterov: true }
    }

    fn adam(self) -> bool {
        matches!(self.chain.rule, Rule::Adam { .. })
    }
}

/// A weight and its states, or a granule of each. Those that the rule does not have are not used.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Value {
    pub weight: f32,
    pub first: f32,
    pub second: f32,
    pub most: f32,
}

/// A granule of the weight and of each state.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Granules {
    pub weight: Granule,
    pub first: Granule,
    pub second: Granule,
    pub most: Granule,
}

#[cube]
impl Granules {
    /// Tensor `tensor`: the weight, then the states.
    pub(crate) fn get(&self, #[comptime] tensor: usize) -> Granule {
        match comptime!(tensor) {
            0 => self.weight,
            1 => self.first,
            2 => self.second,
            _ => self.most,
        }
    }
}

/// The step for eight neighbours, of which the first is number `index`.
#[cube]
pub(crate) fn step_granule(
    old: Granules,
    gradient: Granule,
    index: u32,
    numbers: &Numbers,
    #[comptime] plan: Plan,
) -> Granules {
    let mut new = Granules {
        weight: Granule::empty(),
        first: Granule::empty(),
        second: Granule::empty(),
        most: Granule::empty(),
    };
    #[unroll]
    for word in 0..comptime!(GRANULE as usize / 2) {
        let low = step(
            Value {
                weight: lower(old.weight[word]),
                first: lower(old.first[word]),
                second: lower(old.second[word]),
                most: lower(old.most[word]),
            },
            lower(gradient[word]),
            numbers,
            plan,
        );
        let high = step(
            Value {
                weight: upper(old.weight[word]),
                first: upper(old.first[word]),
                second: upper(old.second[word]),
                most: upper(old.most[word]),
            },
            upper(gradient[word]),
            numbers,
            plan,
        );
        let place = index + comptime!(word as u32 * 2);
        new.weight[word] = pair(low.weight, high.weight, place, 0u32, numbers, plan);
        if comptime!(plan.chain.states() > 0) {
            new.first[word] = pair(low.first, high.first, place, 1u32, numbers, plan);
        }
        if comptime!(plan.chain.states() > 1) {
            new.second[word] = pair(low.second, high.second, place, 2u32, numbers, plan);
        }
        if comptime!(plan.chain.states() > 2) {
            new.most[word] = pair(low.most, high.most, place, 3u32, numbers, plan);
        }
    }
    new
}

#[cube]
fn lower(pair: u32) -> f32 {
    f32::reinterpret(pair << 16)
}

#[cube]
fn upper(pair: u32) -> f32 {
    f32::reinterpret(pair & 0xffff_0000u32)
}

/// Both numbers as BF16, the second of value `index + 1`.
#[cube]
fn pair(
    low: f32,
    high: f32,
    index: u32,
    #[comptime] tensor: u32,
    numbers: &Numbers,
    #[comptime] plan: Plan,
) -> u32 {
    let (mut first, mut second) = (u32::reinterpret(low), u32::reinterpret(high));
    match comptime!(plan.chain.math) {
        Math::Bf16 => {}
        Math::F32 => {
            first = u32::reinterpret(nearest(low, plan));
            second = u32::reinterpret(nearest(high, plan));
        }
        Math::Stochastic => {
            let salt = mix(numbers.salt + comptime!(tensor.wrapping_mul(crate::optim::STRIDE)));
            first = stochastic(low, mix(index ^ salt), plan);
            second = stochastic(high, mix((index + 1) ^ salt), plan);
        }
    }
    (first >> 16) | (second & 0xffff_0000u32)
}

#[cube]
fn stochastic(x: f32, noise: u32, #[comptime] plan: Plan) -> u32 {
    let bits = u32::reinterpret(x);
    let finite = bits & 0x7f80_0000u32 != 0x7f80_0000u32;
    select(
        finite,
        bits + (noise & 0xffff),
        u32::reinterpret(nearest(x, plan)),
    )
}

/// The nearest number that BF16 has; every NaN becomes the same.
#[cube]
fn nearest(x: f32, #[comptime] plan: Plan) -> f32 {
    if comptime!(plan.native) {
        f32::cast_from(bf16::cast_from(x))
    } else {
        let bits = u32::reinterpret(x);
        let rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000u32;
        let nan = (bits & 0x7fff_ffffu32) > 0x7f80_0000u32;
        let quiet = comptime!((QUIET_NAN as u32) << 16).runtime();
        f32::reinterpret(select(nan, quiet, rounded))
    }
}

/// What an operation of the chain gives.
#[cube]
fn round(x: f32, #[comptime] plan: Plan) -> f32 {
    if comptime!(plan.rounds()) {
        nearest(x, plan)
    } else {
        x
    }
}

/// The step for one value.
#[cube]
fn step(old: Value, gradient: f32, s: &Numbers, #[comptime] plan: Plan) -> Value {
    let mut new = Value {
        weight: old.weight,
        first: old.first,
        second: old.second,
        most: old.most,
    };
    let mut gradient = gradient;
    if comptime!(plan.coupled()) {
        gradient = round(round(old.weight * s.decay, plan) + gradient, plan);
    }
    let mut direction = gradient;
    match comptime!(plan.chain.rule) {
        Rule::Sgd => {}
        Rule::Momentum { .. } => {
            let mut velocity = gradient;
            if comptime!(plan.chain.known > 0) {
                let fresh = round(gradient * s.fresh, plan);
                velocity = round(fresh + round(old.first * s.keep, plan), plan);
            }
            new.first = velocity;
            direction = velocity;
            if comptime!(plan.nesterov()) {
                direction = round(round(velocity * s.keep, plan) + gradient, plan);
            }
        }
        Rule::Adam { .. } | Rule::AdamW { .. } => {
            let moved = moments(old, gradient, s, plan);
            new.first = moved.first;
            new.second = moved.second;
            new.most = moved.most;
            let mut below = new.second;
            if comptime!(plan.chain.states() == 3) {
                below = new.most;
            }
            let mut above = new.first;
            if comptime!(plan.adam()) {
                above = round(above * s.correct, plan);
            } else {
                above = round(above / s.correct, plan);
                below = round(below / s.correct_2, plan);
            }
            below = round(round(below.sqrt(), plan) + s.epsilon, plan);
            direction = round(above / below, plan);
        }
    }
    let mut weight = old.weight;
    match comptime!(plan.chain.decay) {
        Decay::None | Decay::Coupled => {}
        Decay::Decoupled => {
            weight = round(weight * s.decay, plan);
        }
        Decay::Cautious => {
            let agree = (weight >= 0.0) == (new.first >= 0.0);
            let part = select(agree, round(weight * s.decay, plan), 0.0f32);
            weight = round(weight - part, plan);
        }
    }
    new.weight = round(weight - round(direction * s.rate, plan), plan);
    new
}

/// The value with its new moments.
#[cube]
fn moments(old: Value, gradient: f32, s: &Numbers, #[comptime] plan: Plan) -> Value {
    let mut first = round(gradient * s.fresh, plan);
    let mut second = round(round(gradient * gradient, plan) * s.fresh_2, plan);
    if comptime!(plan.chain.known > 0) {
        first = round(round(old.first * s.keep, plan) + first, plan);
        second = round(round(old.second * s.keep_2, plan) + second, plan);
    }
    let mut most = second;
    if comptime!(plan.chain.known == 3) {
        most = select(old.most < second, second, old.most);
    }
    Value {
        weight: old.weight,
        first,
        second,
        most,
    }
}
