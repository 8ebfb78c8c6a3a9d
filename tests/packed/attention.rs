//! Attention and transformers: masks, dropout, caches.

use burn::module::AutodiffModule;
use burn::nn::attention::{
    MhaCache, MhaInput, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn::nn::transformer::{
    TransformerDecoderConfig, TransformerDecoderInput, TransformerEncoderConfig,
    TransformerEncoderInput,
};
use burn::tensor::module::attention;

use crate::results::{indices, leaf, normal};
use crate::{DEVICE, Results, Train, same_bits};

#[test]
fn attention_as_an_operation() {
    same_bits!(operation);
}

#[test]
fn heads() {
    same_bits!(masked_heads);
}

#[test]
fn encoder_and_decoder() {
    same_bits!(transformers);
}

#[test]
fn generation_with_a_cache() {
    same_bits!(cached);
}

fn operation<B: Train>(results: &mut Results) {
    let [q, k, v] = [1, 2, 3].map(|seed| leaf::<B, 4>([2, 4, 24, 16], seed));
    let mask = indices::<B, 4>([2, 4, 24, 24], 5, 4).equal_elem(0);
    let output = attention(
        q.clone(),
        k.clone(),
        v.clone(),
        Some(mask),
        None,
        Default::default(),
    );
    results.backward("attention", output, &[&q, &k, &v]);
}

fn masked_heads<B: Train>(results: &mut Results) {
    let x = leaf::<B, 3>([4, 20, 64], 1);
    let padded = indices::<B, 2>([4, 20], 6, 2).equal_elem(0);
    for quiet in [false, true] {
        // Dropout draws from the device's generator, in the same order.
        let layer = MultiHeadAttentionConfig::new(64, 4)
            .with_dropout(0.2)
            .with_quiet_softmax(quiet)
            .init(&DEVICE);
        let input = MhaInput::self_attn(x.clone())
            .mask_pad(padded.clone())
            .mask_attn(generate_autoregressive_mask(4, 20, &DEVICE));
        let output = layer.forward(input);
        results.tensor("weights", output.weights);
        results.module("heads", &layer, &x, output.context);
    }
}

fn transformers<B: Train>(results: &mut Results) {
    let x = leaf::<B, 3>([4, 20, 64], 1);
    let encoder = TransformerEncoderConfig::new(64, 128, 4, 2)
        .with_norm_first(true)
        .init(&DEVICE);
    let memory = encoder.forward(TransformerEncoderInput::new(x.clone()));
    results.module("encoder", &encoder, &x, memory.clone());

    let decoder = TransformerDecoderConfig::new(64, 128, 4, 1).init(&DEVICE);
    let target = leaf::<B, 3>([4, 16, 64], 2);
    let input = TransformerDecoderInput::new(target.clone(), memory.detach())
        .target_mask_attn(generate_autoregressive_mask(4, 16, &DEVICE));
    results.module("decoder", &decoder, &target, decoder.forward(input));
}

fn cached<B: Train>(results: &mut Results) {
    let layer = MultiHeadAttentionConfig::new(64, 4)
        .init::<B>(&DEVICE)
        .valid();
    let mut cache = MhaCache::autoregressive();
    let x = normal::<B, 3>([8, 12, 64], 1).inner();
    // Each step sees one token more.
    for end in 1..=12 {
        let seen = MhaInput::self_attn(x.clone().narrow(1, 0, end));
        results.tensor("context", layer.forward_cache(seen, &mut cache).context);
    }
}
