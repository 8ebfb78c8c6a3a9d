//! The optimizers of one operation through `CubeBackend` and `Fusion<CubeBackend>`, on whatever device wgpu finds: lavapipe
//! in CI.
//!
//! WGSL has no BF16, so Burn's own optimizers cannot run there. The kernels work on 32-bit words; what they compute is
//! compared with the host's reference, which `tests/optim` compares with Burn.
#![cfg(all(feature = "wgpu", feature = "optim"))]

use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdaptiveMomentumState, SimpleOptimizer};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use burn_cubecl::CubeBackend;
use burn_lct::kernels::optim::{self as kernels, Math, Update, Values, apply};
use burn_lct::optim::FusedUpdate;
use burn_lct::{
    HotWindow, LctAdamWConfig, LctBackend, LctConfig, LctSgdConfig, MemoryReport, PackedStore,
};
use burn_wgpu::{Wgpu, WgpuDevice, WgpuRuntime};
use half::bf16;

type Unfused = CubeBackend<WgpuRuntime, f32, i32, u32>;
type Fused = Wgpu<f32, i32, u32>;

/// Values of a parameter.
const VALUES: usize = 20_000;

/// BF16 bits near a normal distribution.
fn values(seed: u64, deviation: f32) -> Vec<u16> {
    let mut state = seed;
    let mut uniform = move || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let mut normal = move || (0..4).map(|_| uniform()).sum::<f32>();
    (0..VALUES)
        .map(|_| bf16::from_f32(normal() * deviation).to_bits())
        .collect()
}

fn tensor<B: Backend>(bits: &[u16], device: &B::Device) -> Tensor<B, 2> {
    let values: Vec<bf16> = bits.iter().map(|&bits| bf16::from_bits(bits)).collect();
    Tensor::from_data(
        TensorData::new(values, [VALUES / 100, 100]),
        (device, DType::BF16),
    )
}

fn bits<B: Backend>(tensor: Tensor<B, 2>) -> Vec<u16> {
    let data = tensor.into_data();
    let values = data.as_slice::<bf16>().expect("the tensor is BF16");
    values.iter().map(|value| value.to_bits()).collect()
}

/// Weight and states on the host.
struct Host {
    weight: Vec<u16>,
    states: [Vec<u16>; 3],
}

impl Host {
    fn new(weight: &[u16]) -> Self {
        Self {
            weight: weight.to_vec(),
            states: [0; 3].map(|_| vec![0; VALUES]),
        }
    }

    fn step(&mut self, update: &Update, gradient: &[u16]) {
        let [a, b, c] = &mut self.states;
        let values = Values {
            weight: &mut self.weight,
            states: [a, b, c],
        };
        apply(update, gradient, values);
    }
}

/// Panics unless the bits are equal; lavapipe takes subnormal numbers for zeros.
fn assert_bits(what: &str, found: &[u16], expected: &[u16]) {
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let flushed = expected & 0x7f80 == 0 && found & 0x7fff == 0;
        assert!(
            found == expected || flushed,
            "{what}: value {index} is {found:#06x} instead of {expected:#06x}"
        );
    }
}

const STEPS: u64 = 5;

/// Steps of SGD with momentum, with gradients that the optimizer alone holds, and of AdamW.
fn train<B: FusedUpdate>(what: &str, device: &B::Device) {
    let start = values(1, 0.02);
    let momentum = MomentumConfig::new().with_nesterov(true);
    let optim = LctSgdConfig::new().with_momentum(Some(momentum)).build();
    let rule = kernels::Sgd {
        momentum: Some(kernels::Momentum {
            momentum: 0.9,
            dampening: 0.1,
            nesterov: true,
        }),
        penalty: None,
    };
    let mut host = Host::new(&start);
    let mut weight = tensor::<B>(&start, device);
    let mut state = None;
    for step in 0..STEPS {
        let gradient = values(10 + step, 1e-3);
        host.step(
            &rule.update(0.05, (step > 0) as usize, Math::Bf16, 0),
            &gradient,
        );
        (weight, state) = optim.step(0.05, weight, tensor::<B>(&gradient, device), state);
    }
    assert_bits(&format!("{what}, SGD, weight"), &bits(weight), &host.weight);
    let velocity = state.unwrap().momentum.unwrap().velocity;
    assert_bits(
        &format!("{what}, SGD, velocity"),
        &bits(velocity),
        &host.states[0],
    );

    let optim = LctAdamWConfig::new()
        .with_beta_2(0.95)
        .with_weight_decay(0.5)
        .build();
    let rule = kernels::AdamW {
        beta_1: 0.9,
        beta_2: 0.95,
        epsilon: 1e-5,
        amsgrad: false,
        weight_decay: 0.5,
        cautious: false,
    };
    let mut host = Host::new(&start);
    let mut weight = tensor::<B>(&start, device);
    let mut state = None;
    for step in 0..STEPS {
        let gradient = values(20 + step, 1e-3);
        let known = if step == 0 { 0 } else { 2 };
        host.step(
            &rule.update(0.01, step as usize + 1, known, Math::Bf16, 0),
            &gradient,
        );
        (weight, state) = optim.step(0.01, weight, tensor::<B>(&gradient, device), state);
    }
    assert_bits(
        &format!("{what}, AdamW, weight"),
        &bits(weight),
        &host.weight,
    );
    let state: AdaptiveMomentumState<B, 2> = state.unwrap().momentum;
    assert_eq!(state.time, STEPS as usize);
    assert_bits(
        &format!("{what}, AdamW, first"),
        &bits(state.moment_1),
        &host.states[0],
    );
    assert_bits(
        &format!("{what}, AdamW, second"),
        &bits(state.moment_2),
        &host.states[1],
    );
}

/// The same with tensors that are packed as soon as they may be; returns what the residency has done.
fn packed<B: PackedStore<Device = WgpuDevice>>(what: &str, device: &WgpuDevice) -> MemoryReport {
    let config = LctConfig::default()
        .with_hot_window(HotWindow::Bytes(0))
        .with_min_elements(4096);
    LctBackend::<B>::configure(device, config).unwrap();
    train::<LctBackend<B>>(what, device);
    LctBackend::<B>::memory_report(device)
}

#[test]
fn steps_on_the_device_have_the_bits_of_the_host() {
    let device = WgpuDevice::default();
    train::<Unfused>("unfused", &device);
    train::<Fused>("fused", &device);
    // The five tensors that were read: no later step decoded a weight or a state. Without fusion also ten gradients, which were
    // packed too, and two weights for the first steps; with it these were had back before they left the stream.
    for (report, decodes) in [
        (packed::<Unfused>("unfused, packed", &device), 17..=17),
        (packed::<Fused>("fused, packed", &device), 0..=5),
    ] {
        assert!(decodes.contains(&report.decodes), "{report}");
        assert_eq!(report.failed_encodes, 0, "{report}");
    }
}
