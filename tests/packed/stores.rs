//! burn-store: safetensors and burnpack, both ways between plain and packed, with the type that the tensors have.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, TensorData};
use burn_store::{BurnpackStore, ModuleSnapshot, ModuleStore, SafetensorsStore};
use safetensors::SafeTensors;

use crate::{DEVICE, Packed, Plain, Train, report, turn};

#[derive(Module, Debug)]
struct Model<B: Backend> {
    tokens: Embedding<B>,
    convs: Vec<Conv2d<B>>,
}

impl<B: Train> Model<B> {
    fn new() -> Self {
        Self {
            tokens: EmbeddingConfig::new(100, 32).init(&DEVICE),
            convs: (0..2)
                .map(|_| Conv2dConfig::new([16, 16], [3, 3]).init(&DEVICE))
                .collect(),
        }
    }

    fn values(&self) -> Vec<TensorData> {
        let conv = |conv: &Conv2d<B>| conv.weight.val().into_data();
        let convs = self.convs.iter().map(conv);
        convs
            .chain([self.tokens.weight.val().into_data()])
            .collect()
    }
}

/// A file that one backend writes and the other reads.
fn moved<A: Train, B: Train, S: ModuleStore<Error: std::fmt::Debug>>(
    store: impl Fn() -> S,
) -> Vec<TensorData> {
    let model = Model::<A>::new();
    model.save_into(&mut store()).unwrap();
    let mut other = Model::<B>::new();
    assert_ne!(other.values(), model.values());
    let outcome = other.load_from(&mut store()).unwrap();
    assert!(outcome.is_success(), "{outcome:?}");
    assert_eq!(outcome.applied.len(), 5);
    assert_eq!(other.values(), model.values());
    for data in other.values() {
        assert_eq!(data.dtype, DType::BF16);
    }
    model.values()
}

#[test]
fn safetensors() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let store = || SafetensorsStore::from_file(&path).overwrite(true);
    moved::<Plain, Packed, _>(store);
    let before = report();
    let values = moved::<Packed, Plain, _>(store);
    assert!(report().decodes > before.decodes, "the weights were packed");

    // And as others read it.
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let embedding = file.tensor("tokens.weight").unwrap();
    assert_eq!(embedding.dtype(), safetensors::Dtype::BF16);
    assert_eq!(embedding.data(), values[2].as_bytes());
}

#[test]
fn burnpack() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.bpk");
    let store = || BurnpackStore::from_file(&path).overwrite(true);
    moved::<Plain, Packed, _>(store);
    moved::<Packed, Plain, _>(store);
}
