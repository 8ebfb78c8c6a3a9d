//! Embeddings and positions.

use burn::nn::{EmbeddingConfig, PositionalEncodingConfig, RotaryEncodingConfig};

use crate::results::{indices, leaf};
use crate::{DEVICE, Results, Train, same_bits};

#[test]
fn embeddings() {
    same_bits!(tokens);
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
