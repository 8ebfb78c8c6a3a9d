//! The reference: a step on the host.

use super::round::{nearest, nearest_f32, noise, stochastic, widen};
use super::{Decay, Math, Rule, Update};

/// Values that a thread updates one after the other.
const SHARE: usize = 1 << 14;

/// A parameter's weight and states as BF16 bits, in one order. Those of the states that the rule does not have are empty.
#[derive(Debug)]
pub struct Values<'a> {
    /// The weight.
    pub weight: &'a mut [u16],
    /// The states; what is in those that the chain does not know is not read.
    pub states: [&'a mut [u16]; 3],
}

/// Does the step for every value in place, on rayon's threads.
///
/// # Panics
/// If the gradient or a state of the rule has another number of values than the weight.
pub fn apply(update: &Update, gradient: &[u16], values: Values<'_>) {
    let lengths = values.states.iter().take(update.chain.states());
    assert!(
        gradient.len() == values.weight.len()
            && lengths
                .map(|state| state.len())
                .all(|len| len == gradient.len()),
        "weight, gradient and states have as many values"
    );
    share(update, 0, gradient, values);
}

fn share(update: &Update, first: usize, gradient: &[u16], values: Values<'_>) {
    if gradient.len() <= SHARE {
        return one_by_one(update, first, gradient, values);
    }
    let half = gradient.len() / 2;
    let (left, right) = gradient.split_at(half);
    let (left_weight, right_weight) = values.weight.split_at_mut(half);
    let halves = values
        .states
        .map(|state| state.split_at_mut(half.min(state.len())));
    let [(a, b), (c, d), (e, f)] = halves;
    let part = |weight, states| Values { weight, states };
    let (before, after) = (part(left_weight, [a, c, e]), part(right_weight, [b, d, f]));
    rayon::join(
        || share(update, first, left, before),
        || share(update, first + half, right, after),
    );
}

fn one_by_one(update: &Update, first: usize, gradient: &[u16], values: Values<'_>) {
    let Values { weight, states } = values;
    let chain = update.chain;
    for (index, (weight, &gradient)) in weight.iter_mut().zip(gradient).enumerate() {
        let mut state = [0.0; 3];
        for (number, state) in state.iter_mut().enumerate().take(chain.known) {
            *state = widen(states[number][index]);
        }
        let (w, g) = (widen(*weight), widen(gradient));
        let (w, state) = match chain.math {
            Math::Bf16 => step(update, nearest_f32, w, g, state),
            Math::F32 | Math::Stochastic => step(update, |x| x, w, g, state),
        };
        let store = |tensor: usize, x: f32| match chain.math {
            // One that BF16 has already, a signaling NaN perhaps.
            Math::Bf16 => (x.to_bits() >> 16) as u16,
            Math::F32 => nearest(x),
            Math::Stochastic => {
                let index = (first + index) as u32;
                stochastic(x, noise(update.salt, tensor as u32, index))
            }
        };
        *weight = store(0, w);
        for (number, &x) in state.iter().enumerate().take(chain.states()) {
            states[number][index] = store(1 + number, x);
        }
    }
}

/// One value's step, `r` after every operation; returns weight and states.
#[inline]
fn step(
    update: &Update,
    r: impl Fn(f32) -> f32 + Copy,
    weight: f32,
    gradient: f32,
    state: [f32; 3],
) -> (f32, [f32; 3]) {
    let (chain, s) = (update.chain, update.scalars);
    let gradient = match chain.decay {
        Decay::Coupled => r(r(weight * s.decay) + gradient),
        Decay::None | Decay::Decoupled | Decay::Cautious => gradient,
    };
    let amsgrad = chain.rule.amsgrad();
    let (direction, state) = match chain.rule {
        Rule::Sgd => (gradient, state),
        Rule::Momentum { nesterov } => {
            let velocity = match chain.known {
                0 => gradient,
                _ => r(r(gradient * s.fresh) + r(state[0] * s.keep)),
            };
            let direction = match nesterov {
                true => r(r(velocity * s.keep) + gradient),
                false => velocity,
            };
            (direction, [velocity, 0.0, 0.0])
        }
        Rule::Adam { .. } => {
            let [first, second, most] = moments(update, r, gradient, state);
            let above = r(first * s.correct);
            let below = r(r(if amsgrad { most } else { second }.sqrt()) + s.epsilon);
            (r(above / below), [first, second, most])
        }
        Rule::AdamW { .. } => {
            let [first, second, most] = moments(update, r, gradient, state);
            let above = r(first / s.correct);
            let corrected = r(if amsgrad { most } else { second } / s.correct_2);
            let below = r(r(corrected.sqrt()) + s.epsilon);
            (r(above / below), [first, second, most])
        }
    };
    let weight = match chain.decay {
        Decay::None | Decay::Coupled => weight,
        Decay::Decoupled => r(weight * s.decay),
        Decay::Cautious => {
            let agree = (weight >= 0.0) == (state[0] >= 0.0);
            r(weight - if agree { r(weight * s.decay) } else { 0.0 })
        }
    };
    (r(weight - r(direction * s.rate)), state)
}

/// The new moments, and the greatest second one.
#[inline]
fn moments(
    update: &Update,
    r: impl Fn(f32) -> f32 + Copy,
    gradient: f32,
    state: [f32; 3],
) -> [f32; 3] {
    let (known, s) = (update.chain.known, update.scalars);
    let fresh = r(gradient * s.fresh);
    let fresh_2 = r(r(gradient * gradient) * s.fresh_2);
    if known == 0 {
        return [fresh, fresh_2, fresh_2];
    }
    let first = r(r(state[0] * s.keep) + fresh);
    let second = r(r(state[1] * s.keep_2) + fresh_2);
    // A NaN is not lower.
    let most = match known {
        3 if state[2] < second => second,
        3 => state[2],
        _ => second,
    };
    [first, second, most]
}
