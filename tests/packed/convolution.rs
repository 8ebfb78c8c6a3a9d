//! Convolutions, pools and interpolation.

use burn::nn::conv::{
    Conv1dConfig, Conv2dConfig, Conv3dConfig, ConvTranspose1dConfig, ConvTranspose2dConfig,
    ConvTranspose3dConfig, DeformConv2dConfig,
};
use burn::nn::interpolate::{Interpolate1dConfig, Interpolate2dConfig, InterpolateMode};
use burn::nn::pool::{
    AdaptiveAvgPool1dConfig, AdaptiveAvgPool2dConfig, AvgPool1dConfig, AvgPool2dConfig,
    MaxPool1dConfig, MaxPool2dConfig,
};
use burn::nn::{PaddingConfig1d, PaddingConfig2d, Unfold4dConfig};

use crate::results::leaf;
use crate::{DEVICE, Results, Train, same_bits};

#[test]
fn convolutions() {
    same_bits!(forward_convolutions);
}

#[test]
fn transposed_convolutions() {
    same_bits!(transposed);
}

#[test]
fn deformable_convolutions() {
    same_bits!(deformable);
}

#[test]
fn pools_and_windows() {
    same_bits!(pools);
}

#[test]
fn interpolation() {
    same_bits!(interpolations);
}

fn forward_convolutions<B: Train>(results: &mut Results) {
    let x = leaf::<B, 3>([4, 8, 96], 1);
    let layer = Conv1dConfig::new(8, 16, 5)
        .with_groups(2)
        .with_padding(PaddingConfig1d::Explicit(2, 2))
        .init(&DEVICE);
    results.module("conv1d", &layer, &x, layer.forward(x.clone()));

    let x = leaf::<B, 4>([2, 8, 24, 20], 2);
    let layer = Conv2dConfig::new([8, 16], [3, 3])
        .with_stride([2, 1])
        .with_dilation([1, 2])
        .with_padding(PaddingConfig2d::Valid)
        .init(&DEVICE);
    results.module("conv2d", &layer, &x, layer.forward(x.clone()));

    let x = leaf::<B, 5>([2, 4, 8, 8, 8], 3);
    let layer = Conv3dConfig::new([4, 8], [3, 3, 3])
        .with_bias(false)
        .init(&DEVICE);
    results.module("conv3d", &layer, &x, layer.forward(x.clone()));
}

fn transposed<B: Train>(results: &mut Results) {
    let x = leaf::<B, 3>([4, 16, 48], 1);
    let layer = ConvTranspose1dConfig::new([16, 8], 4)
        .with_stride(2)
        .init(&DEVICE);
    results.module("conv_transpose1d", &layer, &x, layer.forward(x.clone()));

    let x = leaf::<B, 4>([2, 16, 12, 10], 2);
    let layer = ConvTranspose2dConfig::new([16, 8], [3, 3])
        .with_stride([2, 2])
        .with_padding_out([1, 1])
        .init(&DEVICE);
    results.module("conv_transpose2d", &layer, &x, layer.forward(x.clone()));

    let x = leaf::<B, 5>([2, 8, 6, 6, 6], 3);
    let layer = ConvTranspose3dConfig::new([8, 4], [2, 2, 2]).init(&DEVICE);
    results.module("conv_transpose3d", &layer, &x, layer.forward(x.clone()));
}

fn deformable<B: Train>(results: &mut Results) {
    let layer = DeformConv2dConfig::new([4, 8], [3, 3]).init(&DEVICE);
    let x = leaf::<B, 4>([2, 4, 14, 14], 1);
    let offset = leaf::<B, 4>([2, 2 * 9, 12, 12], 2);
    let mask = leaf::<B, 4>([2, 9, 12, 12], 3);
    let output = layer.forward(x.clone(), offset.clone(), Some(mask.clone()));
    results.backward("offset and mask", output, &[&x, &offset, &mask]);
    let output = layer.forward(x.clone(), offset, Some(mask));
    results.module("layer", &layer, &x, output);
}

fn pools<B: Train>(results: &mut Results) {
    let x = leaf::<B, 3>([4, 8, 96], 1);
    let average = AvgPool1dConfig::new(3).with_stride(2).init();
    let largest = MaxPool1dConfig::new(4).init();
    let adaptive = AdaptiveAvgPool1dConfig::new(20).init();
    results.backward("avg_pool1d", average.forward(x.clone()), &[&x]);
    results.backward("max_pool1d", largest.forward(x.clone()), &[&x]);
    results.backward("adaptive_avg_pool1d", adaptive.forward(x.clone()), &[&x]);

    let x = leaf::<B, 4>([2, 8, 24, 20], 2);
    let average = AvgPool2dConfig::new([3, 3])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .init();
    let largest = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
    let adaptive = AdaptiveAvgPool2dConfig::new([7, 5]).init();
    let windows = Unfold4dConfig::new([3, 3]).init();
    results.backward("avg_pool2d", average.forward(x.clone()), &[&x]);
    results.backward("max_pool2d", largest.forward(x.clone()), &[&x]);
    results.backward("adaptive_avg_pool2d", adaptive.forward(x.clone()), &[&x]);
    results.backward("unfold4d", windows.forward(x.clone()), &[&x]);
}

fn interpolations<B: Train>(results: &mut Results) {
    let line = leaf::<B, 3>([4, 8, 64], 1);
    let image = leaf::<B, 4>([2, 4, 24, 20], 2);
    // Burn has a gradient of the nearest value only.
    for mode in [
        InterpolateMode::Nearest,
        InterpolateMode::Linear,
        InterpolateMode::Cubic,
    ] {
        let name = format!("{mode:?}");
        let scale1d = Interpolate1dConfig::new()
            .with_output_size(Some(100))
            .with_mode(mode.clone())
            .init();
        let scale2d = Interpolate2dConfig::new()
            .with_output_size(Some([31, 40]))
            .with_mode(mode.clone())
            .init();
        if matches!(mode, InterpolateMode::Nearest) {
            results.backward(&name, scale1d.forward(line.clone()), &[&line]);
            results.backward(&name, scale2d.forward(image.clone()), &[&image]);
        } else {
            results.tensor(&name, scale1d.forward(line.clone().inner()));
            results.tensor(&name, scale2d.forward(image.clone().inner()));
        }
    }
}
