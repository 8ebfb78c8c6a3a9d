//! An optimizer's step as one operation of the backend.

/// What a step works on, all of one shape and on one device.
#[derive(Debug)]
pub struct Operands<T> {
    /// The gradient.
    pub gradient: T,
    /// The weight.
    pub weight: T,
    /// The states that exist before the step.
    pub states: Vec<T>,
}

impl<T> Operands<T> {
    /// Each operand as another form of it.
    #[cfg(feature = "flex")]
    pub(crate) fn map<U>(self, mut form: impl FnMut(T) -> U) -> Operands<U> {
        Operands {
            gradient: form(self.gradient),
            weight: form(self.weight),
            states: self.states.into_iter().map(form).collect(),
        }
    }

    /// The gradient, the weight, the states.
    #[cfg(feature = "optim")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        [&self.gradient, &self.weight]
            .into_iter()
            .chain(&self.states)
    }

    /// The gradient, the weight, the states, by value.
    #[cfg(feature = "cube")]
    pub(crate) fn into_vec(self) -> Vec<T> {
        let mut all = vec![self.gradient, self.weight];
        all.extend(self.states);
        all
    }
}
