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
    #[cfg_attr(not(feature = "flex"), allow(dead_code))]
    pub(crate) fn map<U>(self, mut form: impl FnMut(T) -> U) -> Operands<U> {
        Operands {
            gradient: form(self.gradient),
            weight: form(self.weight),
            states: self.states.into_iter().map(form).collect(),
        }
    }

    /// The gradient, the weight, the states.
    #[cfg_attr(not(feature = "optim"), allow(dead_code))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        [&self.gradient, &self.weight]
            .into_iter()
            .chain(&self.states)
    }

    /// The operands in the order of [`iter`](Self::iter).
    #[cfg_attr(not(feature = "cube"), allow(dead_code))]
    pub(crate) fn into_vec(self) -> Vec<T> {
        let mut all = vec![self.gradient, self.weight];
        all.extend(self.states);
        all
    }
}
