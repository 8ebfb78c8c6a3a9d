//! Looking at a forward pass without changing it.

use burn::tensor::{Tensor, backend::Backend};

/// Sees the activations of a forward pass, in the order in which they are computed.
pub trait Observer<B: Backend> {
    /// What follows belongs to this block, or to none.
    fn enter(&mut self, block: Option<usize>);

    /// Takes an activation and gives it back for the pass to go on with. `kind` says what it is, `part` in which part of the
    /// model.
    fn pass<const D: usize>(
        &mut self,
        kind: &'static str,
        part: &'static str,
        activation: Tensor<B, D>,
    ) -> Tensor<B, D>;
}

/// Nobody looks: each activation is handed on as it is.
impl<B: Backend> Observer<B> for () {
    fn enter(&mut self, _block: Option<usize>) {}

    fn pass<const D: usize>(
        &mut self,
        _kind: &'static str,
        _part: &'static str,
        activation: Tensor<B, D>,
    ) -> Tensor<B, D> {
        activation
    }
}
