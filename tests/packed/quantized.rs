//! Quantized tensors are the inner backend's; they are made from packed floats and give floats again.

use burn::module::{AutodiffModule, Module, Quantizer};
use burn::nn::LinearConfig;
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
use burn::tensor::quantization::{
    Calibration, QuantLevel, QuantParam, QuantScheme, QuantStore, QuantValue,
};

use crate::results::normal;
use crate::{DEVICE, Results, Train, same_bits};

#[test]
fn tensors() {
    same_bits!(quantized_tensors);
}

#[test]
fn modules() {
    same_bits!(quantized_modules);
}

fn scheme() -> QuantScheme {
    QuantScheme::default()
        .with_value(QuantValue::Q8S)
        .with_param(QuantParam::F32)
        .with_store(QuantStore::Native)
}

fn quantized_tensors<B: Train>(results: &mut Results) {
    let [x, y] = [1, 2].map(|seed| normal::<B, 2>([64, 64], seed).inner());
    for level in [QuantLevel::Tensor, QuantLevel::block([32])] {
        let scheme = scheme().with_level(level);
        let quantized = x.clone().quantize_dynamic(&scheme);
        results.data("quantized", quantized.to_data());
        results.tensor("dequantized", quantized.dequantize());
    }
    let a = x.quantize_dynamic(&scheme());
    let b = y.clone().quantize_dynamic(&scheme());
    results.tensor(
        "a product of both",
        a.clone().matmul(b.clone()).dequantize(),
    );
    results.tensor("a product with floats", a.clone().matmul(y));
    results.tensor("a sum", (a.clone() + b).dequantize());
    results.tensor("transposed", a.transpose().dequantize());
}

fn quantized_modules<B: Train>(results: &mut Results) {
    let layer = LinearConfig::new(64, 96)
        .with_bias(false)
        .init::<B>(&DEVICE)
        .valid();
    let mut quantizer = Quantizer {
        calibration: Calibration::MinMax,
        scheme: scheme(),
    };
    let layer = layer.quantize_weights(&mut quantizer);
    let x = normal::<B, 2>([32, 64], 1).inner();
    results.data("weight", layer.weight.val().into_data());
    results.tensor("forward", layer.forward(x.clone()));

    let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
    let file =
        Recorder::<B::InnerBackend>::record(&recorder, layer.clone().into_record(), ()).unwrap();
    let record = Recorder::<B::InnerBackend>::load(&recorder, file, &DEVICE).unwrap();
    let layer = layer.load_record(record);
    results.tensor("loaded", layer.forward(x));
}
