//! What one step does with each value.

use super::round::nearest_f32;

/// What the optimizer does with a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The gradient itself is the direction.
    Sgd,
    /// A velocity is; with `nesterov`, the velocity one step ahead. One state.
    Momentum {
        /// Looks one step ahead.
        nesterov: bool,
    },
    /// The first moment over the root of the second, corrected by a factor. Two states, or three.
    Adam {
        /// Divides by the root of the greatest second moment so far, which is the third state.
        amsgrad: bool,
    },
    /// The same with both moments corrected by a division.
    AdamW {
        /// As for [`Adam`](Self::Adam).
        amsgrad: bool,
    },
}

impl Rule {
    /// Tensors of state that a step leaves.
    pub fn states(self) -> usize {
        match self {
            Self::Sgd => 0,
            Self::Momentum { .. } => 1,
            Self::Adam { amsgrad } | Self::AdamW { amsgrad } => 2 + amsgrad as usize,
        }
    }

    /// Whether the greatest second moment is kept.
    pub(crate) fn amsgrad(self) -> bool {
        self.states() == 3
    }
}

/// How the weight decays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decay {
    /// Not at all.
    None,
    /// A part of the weight is added to the gradient.
    Coupled,
    /// The weight is multiplied by a factor.
    Decoupled,
    /// A part of the weight is subtracted where weight and first moment are both negative or both not.
    Cautious,
}

/// In what precision a step is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Math {
    /// Every result is rounded to BF16, as Burn's operations do one by one.
    #[default]
    Bf16,
    /// In `f32`; what is stored is rounded to nearest, ties to even.
    F32,
    /// In `f32`; what is stored is rounded up with the probability that keeps the expectation.
    Stochastic,
}

/// The operations of a step; kernels are compiled for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// What is done with the gradient.
    pub rule: Rule,
    /// How the weight decays.
    pub decay: Decay,
    /// How many of the rule's states exist before the step: none in the first one.
    pub known: usize,
    /// In what precision.
    pub math: Math,
}

impl Chain {
    /// Tensors of state that the step leaves.
    pub fn states(self) -> usize {
        self.rule.states()
    }
}

/// The numbers in a step. Under [`Math::Bf16`] each is one that BF16 has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scalars {
    /// The part of the weight that [`Decay::Coupled`] adds, what [`Decay::Decoupled`] leaves of the weight, or the part
    /// that [`Decay::Cautious`] subtracts.
    pub decay: f32,
    /// What is kept of the velocity, or of the first moment.
    pub keep: f32,
    /// What the gradient adds to it.
    pub fresh: f32,
    /// What is kept of the second moment.
    pub keep_2: f32,
    /// What the gradient's square adds to it.
    pub fresh_2: f32,
    /// Adam: the factor of the first moment; AdamW: its divisor.
    pub correct: f32,
    /// AdamW: the divisor of the second moment.
    pub correct_2: f32,
    /// What is added to the second moment's root.
    pub epsilon: f32,
    /// The learning rate.
    pub rate: f32,
}

impl Scalars {
    /// Each rounded to BF16.
    pub(super) fn rounded(self) -> Self {
        Self {
            decay: nearest_f32(self.decay),
            keep: nearest_f32(self.keep),
            fresh: nearest_f32(self.fresh),
            keep_2: nearest_f32(self.keep_2),
            fresh_2: nearest_f32(self.fresh_2),
            correct: nearest_f32(self.correct),
            correct_2: nearest_f32(self.correct_2),
            epsilon: nearest_f32(self.epsilon),
            rate: nearest_f32(self.rate),
        }
    }
}

/// One step for one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// The operations.
    pub chain: Chain,
    /// The numbers in them.
    pub scalars: Scalars,
    /// What [`Math::Stochastic`] draws from: another number for every step and parameter.
    pub salt: u32,
}

impl Update {
    pub(super) fn new(
        rule: Rule,
        decay: Decay,
        known: usize,
        math: Math,
        scalars: Scalars,
        salt: u32,
    ) -> Self {
        let scalars = match math {
            Math::Bf16 => scalars.rounded(),
            Math::F32 | Math::Stochastic => scalars,
        };
        let known = known.min(rule.states());
        Self {
            chain: Chain {
                rule,
                decay,
                known,
                math,
            },
            scalars,
            salt,
        }
    }
}
