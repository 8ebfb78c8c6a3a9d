//! Optimizer updates on the device against the host's reference: on whatever wgpu finds (lavapipe where there is no GPU),
//! or with the feature `cuda` on the first CUDA card.

#![cfg(feature = "cube")]

#[path = "../common/mod.rs"]
mod common;

mod cases;
mod dense;
mod packed;

use cubecl::prelude::*;
use cubecl::server::Handle;
use lct_kernels::optim::{Math, QUIET_NAN, Update, Values, apply};

#[cfg(feature = "cuda")]
type Tested = cubecl::cuda::CudaRuntime;
#[cfg(not(feature = "cuda"))]
type Tested = cubecl::wgpu::WgpuRuntime;

type Client = ComputeClient<Tested>;

fn client() -> Client {
    Tested::client(&Default::default())
}

fn download(client: &Client, handle: Handle) -> Vec<u16> {
    let bytes = client.read_one(handle).unwrap();
    bytes
        .chunks_exact(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        .collect()
}

/// What the host computes: the weight, then the states.
fn reference(update: &Update, [weight, gradient, states @ ..]: &[Vec<u16>; 5]) -> Vec<Vec<u16>> {
    let mut weight = weight.clone();
    let mut states = states.clone();
    let [a, b, c] = &mut states;
    let values = Values {
        weight: &mut weight,
        states: [a, b, c],
    };
    apply(update, gradient, values);
    let count = update.chain.states();
    std::iter::once(weight)
        .chain(states.into_iter().take(count))
        .collect()
}

fn is_nan(bits: u16) -> bool {
    bits & 0x7fff > 0x7f80
}

fn is_subnormal(bits: u16) -> bool {
    bits & 0x7f80 == 0 && bits & 0x7f != 0
}

/// Panics unless the device has the host's bits. A NaN that was computed is the device's own. Vulkan may take subnormal
/// numbers for zeros, and so do what follows from them: they do not occur in these tests but as results.
fn assert_bits(what: &str, device: &[u16], host: &[u16]) {
    assert_eq!(device.len(), host.len(), "{what}");
    for (index, (&device, &host)) in device.iter().zip(host).enumerate() {
        let nan = is_nan(host) && (device == QUIET_NAN || device | 0x40 == host | 0x40);
        let flushed = cfg!(not(feature = "cuda")) && is_subnormal(host) && device & 0x7fff == 0;
        assert!(
            device == host || nan || flushed,
            "{what}: value {index} is {device:#06x} on the device, {host:#06x} on the host"
        );
    }
}

/// Panics unless the numbers are neighbours, or differ by what `f32` rounds away of the operands: the device's compiler may
/// contract operations.
fn assert_near(what: &str, device: &[u16], host: &[u16]) {
    assert_eq!(device.len(), host.len(), "{what}");
    let number = |bits: u16| f32::from_bits((bits as u32) << 16);
    for (index, (&device, &host)) in device.iter().zip(host).enumerate() {
        let (found, expected) = (number(device), number(host));
        let near = (found - expected).abs() <= expected.abs() / 128.0 + 1e-8;
        assert!(
            near || device == host,
            "{what}: value {index} is {device:#06x} instead of {host:#06x}"
        );
    }
}

fn check(what: &str, math: Math, device: &[u16], host: &[u16]) {
    match math {
        Math::Bf16 => assert_bits(what, device, host),
        Math::F32 | Math::Stochastic => assert_near(what, device, host),
    }
}
