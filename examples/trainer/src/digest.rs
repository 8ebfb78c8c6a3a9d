//! Digests over every bit of the weights and of the optimizer's state.
//!
//! Parameter ids are random, so the order is that in which a visitor meets the parameters.

use crate::Error;
use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    optim::{SimpleOptimizer, record::AdaptorRecord},
    record::{BinBytesRecorder, PrecisionSettings, Record, Recorder},
    tensor::{
        Bool, Int, Tensor, TensorData,
        backend::{AutodiffBackend, Backend},
    },
};
use xxhash_rust::xxh3::Xxh3;

/// The 128-bit XXH3 of some bytes, in hexadecimal.
pub fn of_bytes(bytes: &[u8]) -> String {
    let mut hash = Xxh3::new();
    hash.update(bytes);
    finish(&hash)
}

/// The digest of a module: shape, type and bits of every parameter, in the module's order.
pub fn weights<B: Backend, M: Module<B>>(module: &M) -> String {
    let mut visitor = Weights { hash: Xxh3::new() };
    module.visit(&mut visitor);
    finish(&visitor.hash)
}

/// The ids of a module's float parameters, in the module's order.
pub fn parameter_order<B: Backend, M: Module<B>>(module: &M) -> Vec<ParamId> {
    let mut order = Order(Vec::new());
    module.visit(&mut order);
    order.0
}

/// The digest of an optimizer's state, in the order of the parameters.
///
/// The state is hashed as Burn records it, so nothing in it is forgotten: moments, counters and their ranks. Floats
/// are recorded in the type of `S`: f32, which every BF16 value has a pattern of its own in, or BF16, which is faster.
///
/// # Errors
/// When Burn cannot serialize the state.
pub fn state<S, O, B>(
    order: &[ParamId],
    mut take: impl FnMut(&ParamId) -> Option<AdaptorRecord<O, B>>,
) -> Result<String, Error>
where
    S: PrecisionSettings,
    O: SimpleOptimizer<B::InnerBackend>,
    B: AutodiffBackend,
{
    let recorder = BinBytesRecorder::<S>::default();
    let mut hash = Xxh3::new();
    for id in order {
        let Some(record) = take(id) else {
            hash.update(b"none");
            continue;
        };
        let item = record.into_item::<S>();
        let bytes = Recorder::<B>::save_item(&recorder, item, ())
            .map_err(Error::device("reading the state"))?;
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(&bytes);
    }
    Ok(finish(&hash))
}

fn finish(hash: &Xxh3) -> String {
    format!("{:032x}", hash.digest128())
}

struct Weights {
    hash: Xxh3,
}

impl Weights {
    fn add(&mut self, data: TensorData) {
        self.hash
            .update(format!("{:?}{:?}", data.dtype, data.shape).as_bytes());
        self.hash.update(data.as_bytes());
    }
}

impl<B: Backend> ModuleVisitor<B> for Weights {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.add(param.val().into_data());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        self.add(param.val().into_data());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, Bool>>) {
        self.add(param.val().into_data());
    }
}

struct Order(Vec<ParamId>);

impl<B: Backend> ModuleVisitor<B> for Order {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.0.push(param.id);
    }
}
