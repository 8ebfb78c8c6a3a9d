//! What is done again rather than stored.

use burn_backend::Backend;
use burn_backend::tensor::FloatTensor;

/// Operations that are one pass over memory and whose result does not depend on what else is in the kernel.
///
/// In a fused kernel the compiler may contract a multiplication and an addition. An operation done again is alone in
/// its kernel, so none is here that begins with an addition or ends with a multiplication: whatever a fused kernel did
/// before or after it, it rounded its operands and its result as the lone kernel does. Nor does any multiply and then add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cheap {
    Div,
    Exp,
    Gelu,
    Log,
    Recip,
    Relu,
    Sqrt,
    Tanh,
    /// What it is given: for tests on devices that cannot compute in BF16.
    #[cfg(test)]
    Same,
}

impl Cheap {
    /// Does the operation on `B`.
    pub(crate) fn apply<B: Backend>(self, operands: Vec<FloatTensor<B>>) -> FloatTensor<B> {
        let mut operands = operands.into_iter();
        let mut next = || operands.next().expect("as many as the operation takes");
        match self {
            Self::Div => {
                let lhs = next();
                B::float_div(lhs, next())
            }
            Self::Exp => B::float_exp(next()),
            Self::Gelu => B::gelu(next()),
            Self::Log => B::float_log(next()),
            Self::Recip => B::float_recip(next()),
            Self::Relu => B::relu(next()),
            Self::Sqrt => B::float_sqrt(next()),
            Self::Tanh => B::float_tanh(next()),
            #[cfg(test)]
            Self::Same => next(),
        }
    }
}
