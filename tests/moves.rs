//! Tensors move from one device to another as they rest: two devices of wgpu's, both lavapipe in CI.
//!
//! Burn 0.21 itself moves tensors between CUDA's devices only, so nothing dense can move here.
#![cfg(all(feature = "wgpu", feature = "optim"))]

use burn::optim::SimpleOptimizer;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use burn_cubecl::CubeBackend;
use burn_lct::optim::LctSgd;
use burn_lct::{HotWindow, LctBackend, LctConfig, LctSgdConfig, MemoryReport, PackedStore};
use burn_wgpu::{Wgpu, WgpuDevice, WgpuRuntime};
use half::bf16;

type Unfused = CubeBackend<WgpuRuntime, f32, i32, u32>;
type Fused = Wgpu<f32, i32, u32>;

const ROWS: usize = 96;

/// Values with few exponents. One in `rare` has one of the others, of which none has a code.
fn data(columns: usize, seed: usize, rare: usize) -> TensorData {
    let value = |i: usize| {
        let i = i * 31 + seed * 7;
        if i.is_multiple_of(rare) {
            bf16::from_bits((i / rare * 0x0181) as u16)
        } else {
            bf16::from_f32((i % 97) as f32 * 0.01 - 0.4)
        }
    };
    TensorData::new((0..ROWS * columns).map(value).collect(), [ROWS, columns])
}

fn bits<B: Backend>(tensor: &Tensor<B, 2>) -> Vec<u8> {
    tensor.clone().into_data().as_bytes().to_vec()
}

/// Ordinary tensors and one that spills, from the first device to the second and back. What spills depends on earlier tensors
/// of the size, so no two tests have the same.
fn check<B: PackedStore<Device = WgpuDevice>>(columns: usize) {
    let bytes = 2 * (ROWS * columns) as u64;
    let data = |seed, rare| data(columns, seed, rare);
    let (here, there) = (WgpuDevice::DefaultDevice, WgpuDevice::Cpu);
    let report = |device: &WgpuDevice| -> MemoryReport {
        LctBackend::<B>::settle(device);
        LctBackend::<B>::memory_report(device)
    };
    for device in [&here, &there] {
        let config = LctConfig::default()
            .with_hot_window(HotWindow::Bytes(0))
            .with_min_elements(1);
        LctBackend::<B>::configure(device, config).unwrap();
    }
    let given: Vec<TensorData> = vec![data(1, 1 << 30), data(2, 1 << 30), data(3, 40)];
    // One after the other: the last one spills because it is known what those before it took.
    let tensors: Vec<Tensor<LctBackend<B>, 2>> = given
        .iter()
        .map(|data| {
            let tensor = Tensor::from_data(data.clone(), (&here, DType::BF16));
            // A lazy backend packs where its plans break.
            LctBackend::<B>::sync(&here).unwrap();
            LctBackend::<B>::settle(&here);
            tensor
        })
        .collect();
    let at_home = report(&here);
    assert_eq!(at_home.encodes, 3, "{at_home}");
    assert!(at_home.spill_bytes > 0, "{at_home}");

    let moved: Vec<_> = tensors
        .iter()
        .map(|tensor| tensor.clone().to_device(&there))
        .collect();
    let (left, came) = (report(&here), report(&there));
    assert_eq!(left, at_home, "nothing was decoded or given up");
    assert_eq!(came.moves, 3, "{came}");
    assert_eq!(came.moved_bytes, 3 * bytes);
    assert_eq!(
        came.moved_as_bytes,
        at_home.packed_bytes + at_home.spill_bytes
    );
    assert_eq!(came.packed_bytes, at_home.packed_bytes);
    assert_eq!(came.spill_bytes, at_home.spill_bytes);
    assert_eq!((came.logical_bytes, came.window_bytes), (3 * bytes, 0));
    assert_eq!((came.encodes, came.decodes), (0, 0), "{came}");

    // The originals go first.
    drop(tensors);
    LctBackend::<B>::sync(&here).unwrap();
    assert_eq!(report(&here).logical_bytes, 0);
    assert_eq!(report(&here).resident_bytes(), 0);
    for (tensor, data) in moved.iter().zip(&given) {
        assert_eq!(tensor.device(), there);
        assert_eq!(bits(tensor), data.as_bytes());
    }
    assert_eq!(report(&there).decodes, 3);

    let returned: Vec<_> = moved
        .into_iter()
        .map(|tensor| tensor.to_device(&here))
        .collect();
    for (tensor, data) in returned.iter().zip(&given) {
        assert_eq!(bits(tensor), data.as_bytes());
    }
    let end = report(&here);
    assert_eq!((end.moves, end.encodes), (3, 3), "{end}");
    assert_eq!(report(&there).logical_bytes, 0);
    assert_eq!(report(&there).resident_bytes(), 0);
}

/// Weight and state of an optimizer, moved between two steps: the bits of steps that stay where they are.
fn check_steps<B: PackedStore<Device = WgpuDevice>>(columns: usize) {
    let (here, there) = (WgpuDevice::DefaultDevice, WgpuDevice::Cpu);
    let momentum = Some(MomentumConfig::new());
    let optim = LctSgdConfig::new().with_momentum(momentum).build();
    let tensor = |seed, device: &WgpuDevice| {
        Tensor::<LctBackend<B>, 2>::from_data(data(columns, seed, 1 << 30), (device, DType::BF16))
    };
    let steps = |second: &WgpuDevice| {
        let (mut weight, mut state) = (tensor(5, &here), None);
        for step in 0..4 {
            let device = if step < 2 { &here } else { second };
            if step == 2 {
                weight = weight.to_device(second);
                state = state.map(|state| LctSgd::to_device(state, second));
            }
            let gradient = tensor(10 + step, device);
            (weight, state) = optim.step(0.05, weight, gradient, state);
        }
        let velocity = state.unwrap().momentum.unwrap().velocity;
        assert_eq!(velocity.device(), *second);
        [bits(&weight), bits(&velocity)]
    };
    let before = LctBackend::<B>::memory_report(&there).moves;
    let stayed = steps(&here);
    assert_eq!(LctBackend::<B>::memory_report(&there).moves, before);
    assert!(steps(&there) == stayed, "the bits differ");
    assert_eq!(LctBackend::<B>::memory_report(&there).moves, before + 2);
}

/// One after the other: they share the devices, and whose statuses are read when decides what is known of earlier tensors.
#[test]
fn tensors_move_packed() {
    check::<Unfused>(1031);
    check_steps::<Unfused>(1031);
    check::<Fused>(1033);
    check_steps::<Fused>(1033);
}
