//! The residency as users have it, with the default window, and from several threads at once.
#![cfg(feature = "flex")]

use burn::tensor::{DType, Distribution, Tensor, TensorData};
use burn_flex::{Flex, FlexDevice};
use burn_lct::{LctBackend, LctConfig, MemoryReport};
use half::bf16;
use rayon::prelude::*;

type B = LctBackend<Flex>;

const DEVICE: FlexDevice = FlexDevice;
const KIB: u64 = 1024;

fn report() -> MemoryReport {
    B::memory_report(&DEVICE)
}

/// 32 Ki values of N(0, 1) in BF16: 64 KiB.
fn fresh() -> Tensor<B, 2> {
    Tensor::random(
        [256, 128],
        Distribution::Normal(0.0, 1.0),
        (&DEVICE, DType::BF16),
    )
}

/// As large, and incompressible.
fn noise(seed: u32) -> Tensor<B, 2> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bf16::from_bits((state >> 16) as u16)
    };
    let values: Vec<bf16> = (0..32_768).map(|_| next()).collect();
    Tensor::from_data(TensorData::new(values, [256, 128]), (&DEVICE, DType::BF16))
}

/// One test, because the tests of a binary share Flex's only device.
#[test]
fn default_residency() {
    asking_does_not_freeze_the_configuration();
    the_limit_follows_the_peak();
    noise_does_not_close_the_window();
    threads_share_packed_tensors();
    threads_of_the_codec_share_packed_tensors();
    let end = report();
    assert_eq!((end.logical_bytes, end.resident_bytes()), (0, 0), "{end}");
    assert_eq!(end.failed_encodes, 0, "{end}");
}

fn asking_does_not_freeze_the_configuration() {
    assert_eq!(report(), MemoryReport::default());
    assert_eq!(B::config(&DEVICE), LctConfig::default());
    B::reset_peaks(&DEVICE);
    B::configure(&DEVICE, LctConfig::default().with_verify(true)).unwrap();
}

fn the_limit_follows_the_peak() {
    let mut tensors: Vec<_> = (0..64).map(|_| fresh()).collect();
    let full = report();
    assert_eq!(full.logical_bytes, 64 * 64 * KIB);
    assert!(full.ratio() > 1.4, "{full}");
    // The share is out of reach: a sixteenth dense, the rest packed, and the tensor that came last.
    let limit = full.logical_bytes as f64 * (1.0 / 16.0 + 15.0 / 16.0 / full.ratio());
    assert!(
        full.resident_bytes() as f64 <= limit + 64.0 * 1024.0,
        "{full}"
    );

    // With half of them gone there is room for what is made now: nothing is packed.
    tensors.truncate(32);
    let before = report();
    let _young: Vec<_> = (0..8).map(|_| fresh()).collect();
    assert_eq!(report().encodes, before.encodes);
}

fn noise_does_not_close_the_window() {
    let _noise: Vec<_> = (0..64).map(noise).collect();
    let _packed: Vec<_> = (0..64).map(|_| fresh()).collect();
    let before = report();
    assert!(before.incompressible >= 24, "{before}");
    for _ in 0..100 {
        drop(fresh() + 1.0);
    }
    let after = report();
    // The window is full of old tensors at first, which have to leave; the young ones never do.
    assert!(after.encodes - before.encodes <= 8, "{before}\n{after}");
}

/// A tensor, its bits, and the bits of a sum that plain Flex computes from it.
type Checked = (Tensor<B, 2>, TensorData, TensorData);

/// Tensors that are packed, because twice as many as ever live beside them; those are returned to keep them alive.
fn shared() -> (Vec<Checked>, Vec<Tensor<B, 2>>) {
    let tensors: Vec<_> = (0..16).map(|_| fresh()).collect();
    let check = |tensor: Tensor<B, 2>| {
        let data = tensor.clone().into_data();
        let plain: Tensor<Flex, 2> = Tensor::from_data(data.clone(), (&DEVICE, DType::BF16));
        let sum = plain.clone() * 2.0 + plain.transpose().transpose();
        (tensor, data, sum.into_data())
    };
    let checked = tensors.into_iter().map(check).collect();
    let others = report().peak_logical_bytes / (32 * KIB);
    (checked, (0..others).map(|_| fresh()).collect())
}

fn use_all(shared: &[Checked], from: usize) {
    for index in 0..shared.len() {
        let (tensor, data, sum) = &shared[(from + index) % shared.len()];
        assert_eq!(tensor.clone().into_data(), *data);
        let same = tensor.clone() * 2.0 + tensor.clone().transpose().transpose();
        assert_eq!(same.into_data(), *sum);
    }
}

fn threads_share_packed_tensors() {
    let (shared, _others) = shared();
    let before = report();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let shared = &shared;
            scope.spawn(move || (0..10).for_each(|round| use_all(shared, thread * 2 + round)));
        }
    });
    assert!(report().decodes > before.decodes);
}

/// The host codec runs on rayon's threads, which here are also the ones that ask for the tensors.
fn threads_of_the_codec_share_packed_tensors() {
    let (shared, _others) = shared();
    (0..200usize)
        .into_par_iter()
        .for_each(|item| use_all(&shared, item));
}
