//! The inputs of the programs, and the record of what they computed.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{BasicOps, Int, Shape, Tensor, TensorData};

use crate::{DEVICE, Train};

/// Values about normally distributed, the same for a shape and a seed.
pub fn normal<B: Train, const D: usize>(shape: [usize; D], seed: u64) -> Tensor<B, D> {
    let values = draw(seed).map(|bits| {
        let part = |shift: u32| (bits >> shift & 0xffff) as f32 / 65536.0;
        part(0) + part(16) + part(32) + part(48) - 2.0
    });
    let values: Vec<f32> = values.take(Shape::from(shape).num_elements()).collect();
    Tensor::from_data(TensorData::new(values, shape), &DEVICE)
}

/// The same as a leaf that gets a gradient.
pub fn leaf<B: Train, const D: usize>(shape: [usize; D], seed: u64) -> Tensor<B, D> {
    normal(shape, seed).require_grad()
}

/// Integers below `limit`, in no order and with repetitions.
pub fn indices<B: Train, const D: usize>(
    shape: [usize; D],
    limit: u64,
    seed: u64,
) -> Tensor<B, D, Int> {
    let values = draw(seed).map(|bits| ((bits >> 20) % limit) as i32);
    let values: Vec<i32> = values.take(Shape::from(shape).num_elements()).collect();
    Tensor::from_data(TensorData::new(values, shape), &DEVICE)
}

/// A small generator: reproducible, and the same for both backends.
fn draw(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    })
}

/// What a program computed, each under a name.
#[derive(Default)]
pub struct Results(Vec<(String, TensorData)>);

impl Results {
    /// Adds values as they were read.
    pub fn data(&mut self, name: impl Into<String>, data: TensorData) {
        self.0.push((name.into(), data));
    }

    /// Adds what can be printed.
    pub fn text(&mut self, name: &str, text: &str) {
        self.data(name, TensorData::from(text.as_bytes()));
    }

    /// Adds the values of a tensor.
    pub fn tensor<B: Backend, const D: usize, K: BasicOps<B>>(
        &mut self,
        name: impl Into<String>,
        tensor: Tensor<B, D, K>,
    ) {
        self.data(name, tensor.into_data());
    }

    /// Adds an output and the gradients of the leaves that it was made of, for a loss that weighs each value differently.
    pub fn backward<B: Train, const D: usize, const E: usize>(
        &mut self,
        name: &str,
        output: Tensor<B, E>,
        leaves: &[&Tensor<B, D>],
    ) {
        let gradients = self.loss(name, output);
        for (index, leaf) in leaves.iter().enumerate() {
            let gradient = leaf
                .grad(&gradients)
                .expect("the output depends on the leaf");
            self.tensor(format!("{name}, gradient {index}"), gradient);
        }
    }

    /// The same for an input and all parameters of a module.
    pub fn module<B: Train, M: Module<B>, const D: usize, const E: usize>(
        &mut self,
        name: &str,
        module: &M,
        input: &Tensor<B, D>,
        output: Tensor<B, E>,
    ) {
        let gradients = self.loss(name, output);
        if let Some(gradient) = input.grad(&gradients) {
            self.tensor(format!("{name}, gradient of the input"), gradient);
        }
        module.visit(&mut Parameters::<B> {
            name,
            results: self,
            gradients: &gradients,
        });
    }

    fn loss<B: Train, const E: usize>(&mut self, name: &str, output: Tensor<B, E>) -> B::Gradients {
        self.tensor(name, output.clone());
        let weights = normal::<B, E>(output.dims(), 99);
        (output * weights).sum().backward()
    }

    /// Panics unless all results have the same bits, shapes and types.
    pub fn assert_equal(&self, expected: &Self) {
        assert_eq!(self.0.len(), expected.0.len());
        assert!(!self.0.is_empty());
        for ((name, found), (_, expected)) in self.0.iter().zip(&expected.0) {
            assert_eq!(found.shape, expected.shape, "{name}");
            assert_eq!(found.dtype, expected.dtype, "{name}");
            assert!(
                found.as_bytes() == expected.as_bytes(),
                "{name}:\n  packed {found}\n  plain  {expected}"
            );
        }
    }
}

/// Adds every parameter's gradient, and the value of those that have none, such as running means.
struct Parameters<'a, B: AutodiffBackend> {
    name: &'a str,
    results: &'a mut Results,
    gradients: &'a B::Gradients,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Parameters<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let name = format!("{}, parameter", self.name);
        match param.val().grad(self.gradients) {
            Some(gradient) => self.results.tensor(name, gradient),
            None => self.results.tensor(name, param.val()),
        }
    }
}
