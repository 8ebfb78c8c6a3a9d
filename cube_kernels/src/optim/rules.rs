//! From hyperparameters to the numbers of a step, in the types and the order in which Burn computes them.

use super::{Decay, Math, Rule, Scalars, Update};

/// Velocity of stochastic gradient descent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Momentum {
    /// What is kept of the velocity.
    pub momentum: f64,
    /// What is left out of the gradient.
    pub dampening: f64,
    /// Looks one step ahead.
    pub nesterov: bool,
}

/// Stochastic gradient descent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sgd {
    /// With a velocity.
    pub momentum: Option<Momentum>,
    /// The part of the weight that is added to the gradient.
    pub penalty: Option<f32>,
}

impl Sgd {
    /// The rule.
    pub fn rule(&self) -> Rule {
        match self.momentum {
            None => Rule::Sgd,
            Some(momentum) => Rule::Momentum {
                nesterov: momentum.nesterov,
            },
        }
    }

    /// One step at learning rate `rate`, with `known` states.
    pub fn update(&self, rate: f64, known: usize, math: Math, salt: u32) -> Update {
        let mut scalars = Scalars {
            rate: rate as f32,
            ..Scalars::default()
        };
        if let Some(momentum) = self.momentum {
            scalars.keep = momentum.momentum as f32;
            scalars.fresh = (1.0 - momentum.dampening) as f32;
        }
        let decay = coupled(self.penalty, &mut scalars);
        Update::new(self.rule(), decay, known, math, scalars, salt)
    }
}

fn coupled(penalty: Option<f32>, scalars: &mut Scalars) -> Decay {
    match penalty {
        None => Decay::None,
        Some(penalty) => {
            scalars.decay = penalty;
            Decay::Coupled
        }
    }
}

/// Adam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// What is kept of the first moment.
    pub beta_1: f32,
    /// What is kept of the second moment.
    pub beta_2: f32,
    /// What is added to the root.
    pub epsilon: f32,
    /// Divides by the root of the greatest second moment so far.
    pub amsgrad: bool,
    /// The part of the weight that is added to the gradient.
    pub penalty: Option<f32>,
}

impl Adam {
    /// Step number `time`, from 1 on, at learning rate `rate`, with `known` states.
    pub fn update(&self, rate: f64, time: usize, known: usize, math: Math, salt: u32) -> Update {
        let time = time as i32;
        let root = (1.0 - self.beta_2.powi(time)).sqrt();
        let mut scalars = Scalars {
            correct: root / (1.0 - self.beta_1.powi(time)),
            epsilon: self.epsilon * root,
            rate: rate as f32,
            ..moments(self.beta_1, self.beta_2)
        };
        let decay = coupled(self.penalty, &mut scalars);
        let rule = Rule::Adam {
            amsgrad: self.amsgrad,
        };
        Update::new(rule, decay, known, math, scalars, salt)
    }
}

fn moments(beta_1: f32, beta_2: f32) -> Scalars {
    Scalars {
        keep: beta_1,
        fresh: 1.0 - beta_1,
        keep_2: beta_2,
        fresh_2: 1.0 - beta_2,
        ..Scalars::default()
    }
}

/// AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// What is kept of the first moment.
    pub beta_1: f32,
    /// What is kept of the second moment.
    pub beta_2: f32,
    /// What is added to the root.
    pub epsilon: f32,
    /// Divides by the root of the greatest second moment so far.
    pub amsgrad: bool,
    /// The part of the weight that a step at rate 1 takes.
    pub weight_decay: f32,
    /// Only where weight and first moment are both negative or both not.
    pub cautious: bool,
}

impl AdamW {
    /// Step number `time`, from 1 on, at learning rate `rate`, with `known` states.
    pub fn update(&self, rate: f64, time: usize, known: usize, math: Math, salt: u32) -> Update {
        let time = time as i32;
        let part = rate * self.weight_decay as f64;
        let (decay, number) = match self.cautious {
            _ if part == 0.0 => (Decay::None, 0.0),
            true => (Decay::Cautious, part),
            false => (Decay::Decoupled, 1.0 - part),
        };
        let scalars = Scalars {
            decay: number as f32,
            correct: 1.0 - self.beta_1.powi(time),
            correct_2: 1.0 - self.beta_2.powi(time),
            epsilon: self.epsilon,
            rate: rate as f32,
            ..moments(self.beta_1, self.beta_2)
        };
        let rule = Rule::AdamW {
            amsgrad: self.amsgrad,
        };
        Update::new(rule, decay, known, math, scalars, salt)
    }
}
