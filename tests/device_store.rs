//! The stores for `CubeBackend` and `Fusion<CubeBackend>`, on whatever device wgpu finds: lavapipe in CI.
//!
//! WGSL has no BF16, so nothing here computes with the values. They go up, are packed and unpacked by the real kernels
//! through the real stores, and come back.
#![cfg(feature = "wgpu")]

use burn::tensor::backend::Backend;
use burn::tensor::ops::ModuleOps;
use burn::tensor::{DType, Int, Tensor, TensorData, TensorPrimitive};
use burn_cubecl::CubeBackend;
use burn_lct::{HotWindow, LctBackend, LctConfig, MemoryReport, PackedStore};
use burn_wgpu::{Wgpu, WgpuDevice, WgpuRuntime};
use half::bf16;

type Unfused = CubeBackend<WgpuRuntime, f32, i32, u32>;
type Fused = Wgpu<f32, i32, u32>;

/// Values with the exponents that trained weights have.
fn weights(len: usize) -> Vec<bf16> {
    let mut state = 0x2545_f491u32;
    let mut uniform = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32
    };
    // A sum of uniforms is near enough to a normal distribution.
    (0..len)
        .map(|_| bf16::from_f32((0..6).map(|_| uniform() - 0.5).sum::<f32>() * 0.03))
        .collect()
}

/// Every bit pattern, most with exponents that have no code, among seven times as many ordinary values.
fn patterns() -> Vec<bf16> {
    let ordinary = weights(7 << 16);
    let all = (0..=u16::MAX).map(bf16::from_bits);
    all.zip(ordinary.chunks(7))
        .flat_map(|(pattern, ordinary)| [&[pattern], ordinary].concat())
        .collect()
}

/// Incompressible values.
fn noise(len: usize) -> Vec<bf16> {
    let mut state = 7u32;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bf16::from_bits((state >> 16) as u16)
    };
    (0..len).map(|_| next()).collect()
}

fn tensor<B: PackedStore, const D: usize>(
    values: &[bf16],
    shape: [usize; D],
    device: &B::Device,
) -> Tensor<LctBackend<B>, D> {
    let data = TensorData::new(values.to_vec(), shape);
    Tensor::from_data(data, (device, DType::BF16))
}

/// The gradient of an embedding needs no values of its weights, so packed ones stay so.
fn gradient_of_rows<B: PackedStore>(weights: Tensor<LctBackend<B>, 2>, device: &B::Device) {
    let decodes = || LctBackend::<B>::memory_report(device).decodes;
    let [rows, columns] = weights.dims();
    let tokens = Tensor::<LctBackend<B>, 2, Int>::from_data([[0, 3, 0]], device);
    let grad = Tensor::<LctBackend<B>, 3>::ones([1, 3, columns], (device, DType::F32));
    let before = decodes();
    let found = <LctBackend<B> as ModuleOps<LctBackend<B>>>::embedding_backward(
        weights.into_primitive().tensor(),
        grad.into_primitive().tensor(),
        tokens.into_primitive(),
    );
    let found = Tensor::<LctBackend<B>, 2>::from_primitive(TensorPrimitive::Float(found));
    assert_eq!(found.dims(), [rows, columns]);
    let mut expected = vec![0.0f32; rows * columns];
    expected[..columns].fill(2.0);
    expected[3 * columns..][..columns].fill(1.0);
    assert_eq!(found.into_data().to_vec::<f32>().unwrap(), expected);
    assert_eq!(decodes(), before);
}

fn check<B: PackedStore>(device: B::Device) {
    let report = || -> MemoryReport { LctBackend::<B>::memory_report(&device) };
    let config = LctConfig::default()
        .with_hot_window(HotWindow::Bytes(0))
        .with_min_elements(1)
        .with_spill_reserve(1 << 20)
        .with_verify(true);
    LctBackend::<B>::configure(&device, config).unwrap();

    // Odd sizes and widths, and more than one block.
    let shapes = [[1, 70_000], [96, 768], [33, 1031], [300, 300], [131, 4096]];
    let kept: Vec<_> = shapes
        .iter()
        .map(|&[rows, columns]| {
            let values = weights(rows * columns);
            (tensor::<B, 2>(&values, [rows, columns], &device), values)
        })
        .collect();
    let all = patterns();
    let mixed = tensor::<B, 2>(&all, [512, 1024], &device);
    let random = noise(100_000);
    let incompressible = tensor::<B, 1>(&random, [100_000], &device);
    let constant = vec![bf16::from_f32(1.5); 100_000];
    let same = tensor::<B, 1>(&constant, [100_000], &device);

    // A lazy backend packs where its plans break; here nothing computes, so syncing has to do.
    LctBackend::<B>::sync(&device).unwrap();
    for (tensor, values) in &kept {
        for _ in 0..2 {
            let data = tensor.clone().into_data();
            assert_eq!(data.as_slice::<bf16>().unwrap().len(), values.len());
            assert_eq!(*data.bytes, *bytemuck::cast_slice::<_, u8>(values));
        }
        let [rows, columns] = tensor.dims();
        let flat = tensor.clone().reshape([rows * columns]).into_data();
        assert_eq!(*flat.bytes, *bytemuck::cast_slice::<_, u8>(values));
    }
    assert_eq!(
        *mixed.clone().into_data().bytes,
        *bytemuck::cast_slice::<_, u8>(&all)
    );
    assert_eq!(
        *same.clone().into_data().bytes,
        *bytemuck::cast_slice::<_, u8>(&constant)
    );

    assert_eq!(
        *incompressible.clone().into_data().bytes,
        *bytemuck::cast_slice::<_, u8>(&random)
    );

    let (table, _) = &kept[2];
    gradient_of_rows(table.clone(), &device);
    gradient_of_rows(table.clone().transpose(), &device);

    LctBackend::<B>::settle(&device);
    let packed = report();
    assert_eq!(packed.reserved_bytes, 0, "{packed}");
    // The patterns take more than is expected of data that is not known yet; packed again, they find room.
    if B::LAZY {
        assert!(packed.spill_bytes > 0, "the patterns spill: {packed}");
    }
    assert!(packed.encodes >= 5, "{packed}");
    assert!(packed.decodes >= 5, "{packed}");
    assert_eq!(packed.failed_encodes, 0, "{packed}");
    assert_eq!(packed.incompressible, 1, "{packed}");
    // Given up after the fact, and still whole; spilled, trimmed, and still whole.
    for (tensor, values) in [(&incompressible, &random), (&same, &constant)] {
        assert_eq!(
            *tensor.clone().into_data().bytes,
            *bytemuck::cast_slice::<_, u8>(values)
        );
    }
    assert_eq!(
        *mixed.clone().into_data().bytes,
        *bytemuck::cast_slice::<_, u8>(&all)
    );
    assert!(packed.ratio() > 1.28, "{packed}");

    // A piece of something wider stays dense and is counted. It is not read: that would copy it, and WGSL has no BF16.
    if !B::LAZY {
        let wide = tensor::<B, 2>(&weights(128 * 8192), [128, 8192], &device);
        let piece = wide.narrow(1, 1024, 512);
        let kept = report();
        assert_eq!(kept.unpackable_layouts, 1, "{kept}");
        assert_eq!(piece.dims(), [128, 512]);
    }

    drop((kept, mixed, same, incompressible));
    LctBackend::<B>::sync(&device).unwrap();
    let end = report();
    assert_eq!((end.logical_bytes, end.window_bytes), (0, 0), "{end}");
    LctBackend::<B>::memory_cleanup(&device);
    let end = report();
    assert_eq!((end.packed_bytes, end.kept_dense_bytes), (0, 0), "{end}");
}

/// F32 arithmetic, with BF16 tensors made, packed and unpacked between its steps.
fn beside<B: Backend>(device: &B::Device) -> TensorData {
    let bf16s = |seed: usize| -> Tensor<B, 1> {
        // Multiples of the alignment, so that a piece needs no kernel: WGSL has none for BF16.
        let len = (547 + seed) * 128;
        let data = TensorData::new(weights(len), [len]);
        Tensor::from_data(data, (device, DType::BF16))
    };
    let values: Vec<f32> = (0..5000).map(|i| (i as f32 * 0.37).sin()).collect();
    let x = Tensor::<B, 2>::from_data(TensorData::new(values, [50, 100]), (device, DType::F32));
    let mut sum = x.clone();
    let (mut alive, mut pieces) = (Vec::new(), Vec::new());
    for step in 0..6 {
        let scaled = sum.clone() * 1.1 + x.clone();
        alive.push(bf16s(step));
        let squashed = scaled.clone().tanh() * scaled;
        let read = alive[step / 2].clone().into_data();
        let values = weights(read.num_elements());
        assert_eq!(*read.bytes, *bytemuck::cast_slice::<_, u8>(&values));
        // A small piece is cut out of the decoded tensor at once, in the middle of the arithmetic.
        pieces.push(alive[step].clone().narrow(0, 256, 256));
        let product = squashed.clone().matmul(x.clone().transpose());
        alive.push(bf16s(step + 100));
        sum = squashed + product.mean_dim(1) * x.clone();
    }
    for piece in pieces {
        let values = weights(512);
        assert_eq!(
            *piece.into_data().bytes,
            *bytemuck::cast_slice::<_, u8>(&values[256..])
        );
    }
    sum.into_data()
}

#[test]
fn arithmetic_between_packs_gives_the_same_bits() {
    // Another device id, so that its configuration is its own.
    let device = WgpuDevice::Cpu;
    let config = LctConfig::default()
        .with_hot_window(HotWindow::Bytes(0))
        .with_min_elements(1);
    LctBackend::<Fused>::configure(&device, config).unwrap();
    let plain = beside::<Fused>(&device);
    assert_eq!(beside::<Fused>(&device), plain, "plain equals plain");
    assert_eq!(beside::<LctBackend<Fused>>(&device), plain);
    let report = LctBackend::<Fused>::memory_report(&device);
    assert!(report.encodes >= 10 && report.decodes >= 3, "{report}");
}

/// Tensors of one thread are read in others, while those make their own.
fn threads_share_tensors(device: WgpuDevice) {
    let values = weights(70_000);
    let shared: Vec<_> = (0..4)
        .map(|_| tensor::<Fused, 1>(&values, [70_000], &device))
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (shared, values, device) = (&shared, &values, &device);
            scope.spawn(move || {
                let mut own = Vec::new();
                for round in 0..6 {
                    let own_values = weights(70_000 + thread * 100 + round);
                    let len = own_values.len();
                    own.push((tensor::<Fused, 1>(&own_values, [len], device), own_values));
                    let read = shared[(thread + round) % 4].clone().into_data();
                    assert_eq!(*read.bytes, *bytemuck::cast_slice::<_, u8>(values));
                }
                for (tensor, values) in own {
                    assert_eq!(
                        *tensor.into_data().bytes,
                        *bytemuck::cast_slice::<_, u8>(&values)
                    );
                }
            });
        }
    });
}

#[test]
fn unfused_tensors_come_back_whole() {
    check::<Unfused>(WgpuDevice::default());
}

#[test]
fn fused_tensors_come_back_whole() {
    check::<Fused>(WgpuDevice::default());
    threads_share_tensors(WgpuDevice::default());
}
