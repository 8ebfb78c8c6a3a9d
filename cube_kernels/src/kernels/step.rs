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

/// Two neighbours: a device rounds a pair in one instruction.
type Two = Vector<f32, Const<2>>;

/// Two weights and their states. Those that the rule does not have are not used.
#[derive(CubeType, Clone, Copy)]
struct Values {
    weight: Two,
    first: Two,
    second: Two,
    most: Two,
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
        let old = Values {
            weight: open(old.weight[word]),
            first: open(old.first[word]),
            second: open(old.second[word]),
            most: open(old.most[word]),
        };
        let stepped = step(old, open(gradient[word]), numbers, plan);
        let place = index + comptime!(word as u32 * 2);
        new.weight[word] = close(stepped.weight, place, 0u32, numbers, plan);
        if comptime!(plan.chain.states() > 0) {
            new.first[word] = close(stepped.first, place, 1u32, numbers, plan);
        }
        if comptime!(plan.chain.states() > 1) {
            new.second[word] = close(stepped.second, place, 2u32, numbers, plan);
        }
        if comptime!(plan.chain.states() > 2) {
            new.most[word] = close(stepped.most, place, 3u32, numbers, plan);
        }
    }
    new
}

/// The two numbers of a pair of BF16.
#[cube]
fn open(pair: u32) -> Two {
    let mut two = Two::empty();
    two[0] = f32::reinterpret(pair << 16);
    two[1] = f32::reinterpret(pair & 0xffff_0000u32);
    two
}

/// Both numbers as BF16, the second of value `index + 1`.
#[cube]
fn close(
    two: Two,
    index: u32,
    #[comptime] tensor: u32,
    numbers: &Numbers,
    #[comptime] plan: Plan,
) -> u32 {
    match comptime!(plan.chain.math) {
        Math::Bf16 => upper_halves(u32::reinterpret(two[0]), u32::reinterpret(two[1])),
        Math::F32 => narrow(two, plan),
        Math::Stochastic => {
            let salt = mix(numbers.salt + comptime!(tensor.wrapping_mul(crate::optim::STRIDE)));
            let first = stochastic(two[0], mix(index ^ salt));
            let second = stochastic(two[1], mix((index + 1) ^ salt));
            upper_halves(first, second)
        }
    }
}

#[cube]
fn upper_halves(first: u32, second: u32) -> u32 {
    (first >> 16) | (second & 0xffff_0000u32)
}

#[cube]
fn stochastic(x: f32, noise: u32) -> u32 {
    let bits = u32::reinterpret(x);
    let finite = bits & 0x7f80_0000u32 != 0x7f80_0000u32;
    select(finite, bits + (noise & 0xffff), nearest(x))
}

/// A number's bits, rounded to the nearest that BF16 has; every NaN becomes the same.
#[cube]
fn nearest(x: f32) -> u32 {
    let bits = u32::reinterpret(x);
    let rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000u32;
    let nan = (bits & 0x7fff_ffffu32) > 0x7f80_0000u32;
    let quiet = comptime!((QUIET_NAN as u32) << 16).runtime();
    select(nan, quiet, rounded)
}

/// Both numbers, rounded to the nearest that BF16 has, as a pair.
#[cube]
fn narrow(two: Two, #[comptime] plan: Plan) -> u32 {
    if comptime!(plan.native) {
        // One instruction for both.
        u32::reinterpret(Vector::<bf16, Const<2>>::cast_from(two))
    } else {
        upper_halves(nearest(two[0]), nearest(two[1]))
    }
}

/// What an operation of the chain gives.
#[cube]
fn round(two: Two, #[comptime] plan: Plan) -> Two {
    if comptime!(plan.rounds()) {
        open(narrow(two, plan))
    } else {
        two
    }
}

/// The step for two values.
#[cube]
fn step(old: Values, gradient: Two, s: &Numbers, #[comptime] plan: Plan) -> Values {
    let mut new = Values {
        weight: old.weight,
        first: old.first,
        second: old.second,
        most: old.most,
    };
    let mut gradient = gradient;
    if comptime!(plan.coupled()) {
        gradient = round(round(old.weight * both(s.decay), plan) + gradient, plan);
    }
    let mut direction = gradient;
    match comptime!(plan.chain.rule) {
        Rule::Sgd => {}
        Rule::Momentum { .. } => {
            let mut velocity = gradient;
            if comptime!(plan.chain.known > 0) {
                let fresh = round(gradient * both(s.fresh), plan);
                velocity = round(fresh + round(old.first * both(s.keep), plan), plan);
            }
            new.first = velocity;
            direction = velocity;
            if comptime!(plan.nesterov()) {
                direction = round(round(velocity * both(s.keep), plan) + gradient, plan);
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
                above = round(above * both(s.correct), plan);
            } else {
                above = round(above / both(s.correct), plan);
                below = round(below / both(s.correct_2), plan);
            }
            below = round(round(below.sqrt(), plan) + both(s.epsilon), plan);
            direction = round(above / below, plan);
        }
    }
    let mut weight = old.weight;
    match comptime!(plan.chain.decay) {
        Decay::None | Decay::Coupled => {}
        Decay::Decoupled => {
            weight = round(weight * both(s.decay), plan);
        }
        Decay::Cautious => {
            let decay = round(weight * both(s.decay), plan);
            let mut part = Two::empty();
            #[unroll]
            for one in 0..2usize {
                let agree = (weight[one] >= 0.0) == (new.first[one] >= 0.0);
                part[one] = select(agree, decay[one], 0.0f32);
            }
            weight = round(weight - part, plan);
        }
    }
    new.weight = round(weight - round(direction * both(s.rate), plan), plan);
    new
}

#[cube]
fn both(number: f32) -> Two {
    Two::new(number)
}

/// The values with their new moments.
#[cube]
fn moments(old: Values, gradient: Two, s: &Numbers, #[comptime] plan: Plan) -> Values {
    let mut first = round(gradient * both(s.fresh), plan);
    let mut second = round(round(gradient * gradient, plan) * both(s.fresh_2), plan);
    if comptime!(plan.chain.known > 0) {
        first = round(round(old.first * both(s.keep), plan) + first, plan);
        second = round(round(old.second * both(s.keep_2), plan) + second, plan);
    }
    let mut most = second;
    if comptime!(plan.chain.known == 3) {
        #[unroll]
        for one in 0..2usize {
            let larger = old.most[one] < second[one];
            most[one] = select(larger, second[one], old.most[one]);
        }
    }
    Values {
        weight: old.weight,
        first,
        second,
        most,
    }
}
