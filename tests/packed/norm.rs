//! Norms, with their running statistics.

use burn::module::AutodiffModule;
use burn::nn::{
    BatchNormConfig, GroupNormConfig, InstanceNormConfig, LayerNormConfig, LocalResponseNormConfig,
    RmsNormConfig,
};

use crate::results::{leaf, normal};
use crate::{DEVICE, Results, Train, same_bits};

#[test]
fn norms_of_features() {
    same_bits!(features);
}

#[test]
fn norms_of_channels() {
    same_bits!(channels);
}

#[test]
fn running_statistics() {
    same_bits!(running);
}

fn features<B: Train>(results: &mut Results) {
    let x = leaf::<B, 3>([4, 24, 64], 1);
    // A mean far from zero, where BF16 has few bits left for the variance.
    let shifted = || x.clone() + 30.0;
    let layer = LayerNormConfig::new(64).init(&DEVICE);
    results.module("layer", &layer, &x, layer.forward(shifted()));
    let layer = RmsNormConfig::new(64).init(&DEVICE);
    results.module("rms", &layer, &x, layer.forward(shifted()));
}

fn channels<B: Train>(results: &mut Results) {
    let x = leaf::<B, 4>([4, 16, 10, 12], 1);
    let layer = GroupNormConfig::new(4, 16).init(&DEVICE);
    results.module("group", &layer, &x, layer.forward(x.clone()));
    let layer = InstanceNormConfig::new(16).init(&DEVICE);
    results.module("instance", &layer, &x, layer.forward(x.clone()));
    let layer = LocalResponseNormConfig::new(5).init();
    results.backward("local response", layer.forward(x.clone()), &[&x]);
}

fn running<B: Train>(results: &mut Results) {
    // As many channels as a packed running mean needs.
    let x = leaf::<B, 4>([4, 2048, 2, 2], 1);
    let layer = BatchNormConfig::new(2048).init(&DEVICE);
    for step in 0..3 {
        let input = x.clone() + step as f64;
        results.module("training", &layer, &x, layer.forward(input));
    }
    let layer = layer.valid();
    let input = normal::<B, 4>([4, 2048, 2, 2], 2).inner();
    results.tensor("validation", layer.forward(input));
    results.tensor("mean", layer.running_mean.value_sync());
    results.tensor("variance", layer.running_var.value_sync());
}
