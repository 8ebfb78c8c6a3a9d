//! Activations and their gradients, seen from within a forward pass.

use super::{Blocks, Samples};
use crate::observe::Observer;
use burn::tensor::{Tensor, backend::AutodiffBackend};

/// Takes a sample of every activation, and adds a leaf of zeros to it, whose gradient is the activation's.
///
/// The zeros are negative: adding one changes no bits of any number. (`-0 + 0` would be `0`.)
pub(super) struct Activations<'a, B: AutodiffBackend> {
    samples: &'a mut Samples<B::InnerBackend>,
    blocks: Blocks,
    block: Option<usize>,
    leaves: Vec<Leaf<B>>,
}

/// What an activation's gradient is read from.
struct Leaf<B: AutodiffBackend> {
    kind: String,
    place: String,
    zeros: Tensor<B, 1>,
}

impl<'a, B: AutodiffBackend> Activations<'a, B> {
    /// Adds to `samples` what is in these blocks or in none.
    pub(super) fn new(samples: &'a mut Samples<B::InnerBackend>, blocks: Blocks) -> Self {
        Self {
            samples,
            blocks,
            block: None,
            leaves: Vec::new(),
        }
    }

    /// Takes samples of the gradients after the backward pass.
    pub(super) fn finish(self, gradients: &B::Gradients) {
        for Leaf { kind, place, zeros } in self.leaves {
            if let Some(gradient) = zeros.grad(gradients) {
                self.samples.add(&kind, &place, gradient);
            }
        }
    }
}

impl<B: AutodiffBackend> Observer<B> for Activations<'_, B> {
    fn enter(&mut self, block: Option<usize>) {
        self.block = block;
    }

    fn pass<const D: usize>(
        &mut self,
        kind: &'static str,
        part: &'static str,
        activation: Tensor<B, D>,
    ) -> Tensor<B, D> {
        if !self.blocks.contains(self.block) {
            return activation;
        }
        let place = match self.block {
            Some(block) => format!("blocks.{block}.{part}"),
            None => part.to_owned(),
        };
        self.samples.add(kind, &place, activation.clone().inner());

        let shape = activation.shape();
        let (device, dtype) = (activation.device(), activation.dtype());
        let zeros =
            Tensor::<B::InnerBackend, 1>::full([shape.num_elements()], -0.0, (&device, dtype));
        let zeros = Tensor::<B, 1>::from_inner(zeros).require_grad();
        self.leaves.push(Leaf {
            kind: format!("grad:{kind}"),
            place,
            zeros: zeros.clone(),
        });
        let zeros: Tensor<B, D> = zeros.reshape(shape);
        activation + zeros
    }
}
