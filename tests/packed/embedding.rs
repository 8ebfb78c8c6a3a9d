//! Embeddings and positions.

use burn::nn::{EmbeddingConfig, PositionalEncodingConfig, RotaryEncodingConfig};
use burn::tensor::TensorPrimitive;
use burn::tensor::ops::ModuleOps;

use crate::results::{indices, leaf, normal};
use crate::{DEVICE, Lct, Packed, Results, Train, report, same_bits, turn};

#[test]
fn embeddings() {
    same_bits!(tokens);
}

#[test]
fn the_gradient_decodes_no_weights() {
    let _turn = turn();
    let weights = normal::<Packed, 2>([200, 48], 1).inner();
    let grad = normal::<Packed, 3>([16, 25, 48], 2).inner();
    let tokens = indices::<Packed, 2>([16, 25], 200, 3).inner();
    let before = report().decoded_bytes;
    let found = <Lct as ModuleOps<Lct>>::embedding_backward(
        weights.into_primitive().tensor(),
        grad.into_primitive().tensor(),
        tokens.into_primitive(),
    );
    let decoded = report().decoded_bytes - before;
    assert_eq!(decoded, 2 * 16 * 25 * 48, "only the output's gradient is");
    let found = burn::tensor::Tensor::<Lct, 2>::from_primitive(TensorPrimitive::Float(found));
    assert_eq!(found.dims(), [200, 48]);
}

#[test]
fn positions() {
    same_bits!(encodings);
}

fn tokens<B: Train>(results: &mut Results) {
    let layer = EmbeddingConfig::new(200, 48).init(&DEVICE);
    // Twice as many tokens as rows: gradients of a row are added up.
    let tokens = indices::<B, 2>([16, 25], 200, 1);
    let unused = leaf::<B, 1>([1], 2);
    results.module("embedding", &layer, &unused, layer.forward(tokens));
}

fn encodings<B: Train>(results: &mut Results) {
    let x = leaf::<B, 3>([4, 40, 64], 1);
    let sinusoids = PositionalEncodingConfig::new(64)
        .with_max_sequence_size(128)
        .init(&DEVICE);
    results.backward("sinusoids", sinusoids.forward(x.clone()), &[&x]);

    let x = leaf::<B, 4>([2, 4, 40, 32], 2);
    let rotary = RotaryEncodingConfig::new(128, 32).init(&DEVICE);
    results.backward("rotary", rotary.apply(x.clone(), 7), &[&x]);
}
