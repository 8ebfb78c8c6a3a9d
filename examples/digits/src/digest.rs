//! A digest over every bit of a model's weights.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use xxhash_rust::xxh3::Xxh3;

/// The 128-bit XXH3 of shape, type and bits of every float parameter and running mean, in the module's order.
pub fn weights<B: Backend, M: Module<B>>(module: &M) -> String {
    let mut visitor = Weights(Xxh3::new());
    module.visit(&mut visitor);
    format!("{:032x}", visitor.0.digest128())
}

struct Weights(Xxh3);

impl<B: Backend> ModuleVisitor<B> for Weights {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let data = param.val().into_data();
        self.0
            .update(format!("{:?}{:?}", data.dtype, data.shape).as_bytes());
        self.0.update(data.as_bytes());
    }
}
