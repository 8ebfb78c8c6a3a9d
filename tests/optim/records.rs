//! Checkpoints of either load in the other, through a module's optimizer.

use burn::module::Param;
use burn::nn::{Linear, LinearConfig};
use burn::optim::grad_clipping::GradientClippingConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, Optimizer, SgdConfig};
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
use burn::tensor::Tensor;
use burn_autodiff::Autodiff;
use burn_flex::FlexDevice;
use burn_lct::{LctAdamConfig, LctAdamWConfig, LctSgdConfig};

use crate::{Lct, Random, assert_bits, bits, configure, tensor};

type Train = Autodiff<Lct>;

fn model() -> Linear<Train> {
    let weight = tensor::<Train>(&Random(11).values(64 * 64, 0.1), &FlexDevice);
    let mut model = LinearConfig::new(64, 64).with_bias(false).init(&FlexDevice);
    model.weight = Param::from_tensor(weight);
    model
}

fn steps<O: Optimizer<Linear<Train>, Train>>(
    optim: &mut O,
    mut model: Linear<Train>,
) -> Linear<Train> {
    for step in 0..4 {
        let input = tensor::<Train>(&Random(step).values(64 * 16, 0.5), &FlexDevice);
        let loss: Tensor<Train, 1> = model.forward(input).powi_scalar(2).mean();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(0.05, model, grads);
    }
    model
}

/// Both do the same steps with the same model and leave the same file, which either reads.
macro_rules! same_files {
    ($burn:expr, $ours:expr) => {{
        configure();
        let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
        let start = model();
        let mut burn = $burn.init::<Train, Linear<Train>>();
        let mut ours = $ours.init::<Train, Linear<Train>>();
        let expected = steps(&mut burn, start.clone());
        let found = steps(&mut ours, start);
        let weight = |model: Linear<Train>| bits(model.weight.val());
        assert_bits("weight", &weight(found), &weight(expected));
        let record = |record| Recorder::<Train>::record(&recorder, record, ()).unwrap();
        let file = record(burn.to_record());
        let own = |record| Recorder::<Train>::record(&recorder, record, ()).unwrap();
        assert!(file == own(ours.to_record()), "the files differ");
        // Each file goes through the other.
        let loaded = Recorder::<Train>::load(&recorder, file.clone(), &FlexDevice).unwrap();
        let ours = ours.load_record(loaded);
        assert!(file == own(ours.to_record()), "ours reads Burn's");
        let loaded = Recorder::<Train>::load(&recorder, file.clone(), &FlexDevice).unwrap();
        let burn = burn.load_record(loaded);
        assert!(file == record(burn.to_record()), "Burn reads ours");
    }};
}

#[test]
fn sgd() {
    same_files!(SgdConfig::new(), LctSgdConfig::new());
    let clipping = Some(GradientClippingConfig::Norm(0.5));
    same_files!(
        SgdConfig::new()
            .with_momentum(Some(MomentumConfig::new()))
            .with_gradient_clipping(clipping.clone()),
        LctSgdConfig::new()
            .with_momentum(Some(MomentumConfig::new()))
            .with_gradient_clipping(clipping)
    );
}

#[test]
fn adam() {
    same_files!(AdamConfig::new(), LctAdamConfig::new());
    same_files!(
        AdamConfig::new().with_amsgrad(true),
        LctAdamConfig::new().with_amsgrad(true)
    );
}

#[test]
fn adamw() {
    same_files!(AdamWConfig::new(), LctAdamWConfig::new());
    same_files!(
        AdamWConfig::new().with_amsgrad(true),
        LctAdamWConfig::new().with_amsgrad(true)
    );
}
