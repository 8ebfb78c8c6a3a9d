//! Parameters with their gradients and their optimizer state.

use super::{Blocks, Samples};
use crate::{
    model::Gpt,
    optim::{Optim, TrainBackend},
};
use burn::{
    module::{ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::Tensor,
};

/// Takes samples of the parameters that it visits.
pub(super) struct Parameters<'a, B: TrainBackend> {
    samples: &'a mut Samples<B::InnerBackend>,
    blocks: Blocks,
    gradients: &'a GradientsParams,
    optim: &'a Optim<B, Gpt<B>>,
    /// The names of the modules around, and the parameter's own.
    path: Vec<String>,
}

impl<'a, B: TrainBackend> Parameters<'a, B> {
    /// Adds to `samples` what is in these blocks or in none.
    pub(super) fn new(
        samples: &'a mut Samples<B::InnerBackend>,
        blocks: Blocks,
        gradients: &'a GradientsParams,
        optim: &'a Optim<B, Gpt<B>>,
    ) -> Self {
        Self {
            samples,
            blocks,
            gradients,
            optim,
            path: Vec::new(),
        }
    }

    /// The block that the visit is in.
    fn block(&self) -> Option<usize> {
        match self.path.as_slice() {
            [blocks, index, ..] if blocks == "blocks" => index.parse().ok(),
            _ => None,
        }
    }
}

impl<B: TrainBackend> ModuleVisitor<B> for Parameters<'_, B> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if !self.blocks.contains(self.block()) {
            return;
        }
        let place = self.path.join(".");
        let value = param.val().inner();
        let moments = self.optim.moments::<D>(param.id, &value.device());
        self.samples.add("weights", &place, value);
        if let Some(gradient) = self.gradients.get::<B::InnerBackend, D>(param.id) {
            self.samples.add("gradients", &place, gradient);
        }
        for (kind, tensor) in moments {
            self.samples.add(kind, &place, tensor);
        }
    }
}
