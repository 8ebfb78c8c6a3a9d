//! What users of Burn and of other tensor compressors ran into, each as a test of its own; `docs/testing.md` lists where they
//! said so, and the cases that are tested elsewhere.
//!
//! Everything is forced through the packed form, and plain Flex says what the bits must be.
#![cfg(feature = "flex")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::backend::Backend;
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, DType, Distribution, Int, Tensor, TensorData};
use burn_autodiff::Autodiff;
use burn_flex::{Flex, FlexDevice};
use burn_lct::{ConfigError, HotWindow, LctBackend, LctConfig, MemoryReport};
use half::{bf16, f16};

type Lct = LctBackend<Flex>;

const DEVICE: FlexDevice = FlexDevice;

/// The device, for one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let config = LctConfig::default()
        .with_hot_window(HotWindow::Bytes(0))
        .with_min_elements(1024)
        .with_verify(true);
    match Lct::configure(&DEVICE, config) {
        Ok(()) | Err(ConfigError::InUse { .. }) => alone,
        Err(error) => panic!("{error}"),
    }
}

fn report() -> MemoryReport {
    Lct::memory_report(&DEVICE)
}

/// BF16 values around `mean`, the same each time.
fn data<const D: usize>(shape: [usize; D], mean: f32) -> TensorData {
    let value = |i: usize| {
        let bits = (i * 7 + 3).wrapping_mul(0x9e37_79b9) >> 9;
        bf16::from_f32(mean + (bits % 1021) as f32 * 0.004 - 2.0)
    };
    TensorData::new((0..shape.iter().product()).map(value).collect(), shape)
}

fn tensor<B: Backend<Device = FlexDevice>, const D: usize>(data: TensorData) -> Tensor<B, D> {
    Tensor::from_data(data, (&DEVICE, DType::BF16))
}

/// Runs a program on both backends, and checks that LCT's share packs something.
macro_rules! same_bits {
    ($program:ident) => {{
        let _alone = alone();
        let before = report().encodes;
        let (plain, packed) = ($program::<Flex>(), $program::<Lct>());
        assert_eq!(plain.len(), packed.len());
        for (plain, packed) in plain.iter().zip(&packed) {
            assert_eq!((plain.dtype, &plain.shape), (packed.dtype, &packed.shape));
            assert!(plain.bytes == packed.bytes, "{:?}", plain.shape);
        }
        assert!(report().encodes > before, "nothing was packed");
        plain
    }};
}

/// burn#4339, #2743, #2333: forward passes under autodiff that nobody follows with a backward pass. Burn keeps their graphs
/// as long as a parameter lives, until the next backward pass; so what they saved rests, and goes then.
#[test]
fn what_forward_passes_left_goes_with_the_next_backward_pass() {
    type B = Autodiff<Lct>;
    let _alone = alone();
    let weight =
        Tensor::<B, 2>::from_data(data([64, 64], 0.0), (&DEVICE, DType::BF16)).require_grad();
    let own = report().logical_bytes;
    let forward = || {
        let mut x = Tensor::<B, 2>::from_data(data([64, 64], 0.1), (&DEVICE, DType::BF16));
        for _ in 0..4 {
            x = burn::tensor::activation::gelu(x.matmul(weight.clone()));
        }
        x
    };
    for _ in 0..10 {
        drop(forward());
    }
    let full = report();
    assert!(
        full.resident_bytes() < full.logical_bytes * 9 / 10,
        "what is left rests: {full}"
    );
    drop(forward().mean().backward());
    assert_eq!(report().logical_bytes, own);
    drop(weight);
    assert_eq!(report().logical_bytes, 0);
}

/// burn#3987, #3420: a global response normalization, forward and backward.
#[test]
fn a_global_response_normalization_has_the_same_bits_forward_and_backward() {
    fn program<B: Backend<Device = FlexDevice>>() -> Vec<TensorData> {
        let data = data([2, 12, 12, 32], 0.0);
        let x = Tensor::<Autodiff<B>, 4>::from_data(data, (&DEVICE, DType::BF16)).require_grad();
        let gamma =
            Tensor::<Autodiff<B>, 4>::ones([1, 1, 1, 32], (&DEVICE, DType::BF16)).require_grad();
        let norm = x.clone().powi_scalar(2).sum_dim(1).sum_dim(2).sqrt();
        let response = norm.clone() / (norm.mean_dim(3) + 1e-6);
        let y = gamma.clone() * (x.clone() * response) + x.clone();
        let gradients = y.clone().powi_scalar(2).mean().backward();
        vec![
            y.into_data(),
            x.grad(&gradients).unwrap().into_data(),
            gamma.grad(&gradients).unwrap().into_data(),
        ]
    }
    same_bits!(program);
}

/// burn#5211, #5410, #4467: normalizations in low precision, where the mean is much larger than what it varies by.
#[test]
fn normalizations_with_a_large_mean_have_the_same_bits() {
    fn program<B: Backend<Device = FlexDevice>>() -> Vec<TensorData> {
        let x = tensor::<B, 3>(data([4, 32, 512], 300.0));
        let mean = x.clone().mean_dim(2);
        let centred = x - mean.clone();
        let deviation = (centred.clone().powi_scalar(2).mean_dim(2) + 1e-5).sqrt();
        let group = tensor::<B, 3>(data([2, 1, 65_536], 100.0));
        let group_sum = group.clone().sum_dim(2);
        vec![
            mean.into_data(),
            (centred / deviation).into_data(),
            (group / group_sum).into_data(),
        ]
    }
    same_bits!(program);
}

/// burn#4697: rows of attention in which everything is masked are NaN, or whatever plain Burn says; with the same bits.
#[test]
fn fully_masked_attention_has_the_same_bits() {
    fn program<B: Backend<Device = FlexDevice>>() -> Vec<TensorData> {
        let of = |mean| tensor::<B, 4>(data([2, 4, 32, 16], mean));
        let mask = Tensor::<B, 4, Bool>::full([2, 4, 32, 32], true, &DEVICE);
        let options = AttentionModuleOptions::default();
        let attended = attention(of(0.0), of(0.1), of(0.2), Some(mask), None, options);
        let scores = of(0.3).matmul(of(0.4).transpose());
        let masked = scores
            .clone()
            .mask_fill(scores.is_nan().bool_not(), f32::NEG_INFINITY);
        vec![
            attended.into_data(),
            burn::tensor::activation::softmax(masked, 3).into_data(),
        ]
    }
    let plain = same_bits!(program);
    assert!(plain[1].iter::<f32>().all(f32::is_nan));
}

/// burn#5386, #5290: extremes keep NaN, and all keep the type. (Plain Flex 0.21 cannot pad BF16.)
#[test]
fn extremes_keep_nan_and_the_type() {
    fn program<B: Backend<Device = FlexDevice>>() -> Vec<TensorData> {
        let mut values = data([48, 64], 0.0).to_vec::<bf16>().unwrap();
        values[5] = bf16::NAN;
        values[700] = bf16::NEG_INFINITY;
        values[701] = bf16::NEG_ZERO;
        values[702] = bf16::from_bits(1);
        let x = tensor::<B, 2>(TensorData::new(values, [48, 64]));
        vec![
            x.clone().max_dim(1).into_data(),
            x.clone().min_dim(0).into_data(),
            (-x).into_data(),
        ]
    }
    let plain = same_bits!(program);
    assert!(plain.iter().all(|data| data.dtype == DType::BF16));
}

/// burn#5158 and CubeCL's persistent pages: what is made while parameters are born is not packed before they are.
#[test]
fn nothing_is_packed_while_parameters_are_born() {
    let _alone = alone();
    let before = report().encodes;
    let parameters = Lct::memory_persistent_allocations(&DEVICE, (), |()| {
        let parameters: Vec<_> = (0..6)
            .map(|_| {
                let normal = Distribution::Normal(0.0, 0.02);
                Tensor::<Lct, 2>::random([64, 64], normal, (&DEVICE, DType::BF16))
            })
            .collect();
        assert_eq!(report().encodes, before, "in the window");
        parameters
    });
    drop(tensor::<Lct, 2>(data([64, 64], 0.0)));
    assert_eq!(
        report().encodes - before,
        7,
        "all of them, and what came after"
    );
    drop(parameters);
}

/// burn#4792: threads that come and go, as a data loader's do in each epoch, leave nothing behind.
#[test]
fn threads_that_come_and_go_leave_nothing() {
    let _alone = alone();
    let mut levels = Vec::new();
    for _ in 0..10 {
        std::thread::scope(|scope| {
            for worker in 0..4 {
                scope.spawn(move || {
                    let batches: Vec<_> = (0..5)
                        .map(|batch| {
                            tensor::<Lct, 2>(data([64, 64], (worker * 5 + batch) as f32 * 0.1))
                        })
                        .collect();
                    batches
                        .into_iter()
                        .rev()
                        .for_each(|batch| drop(batch.into_data()));
                });
            }
        });
        let report = report();
        levels.push((report.logical_bytes, report.resident_bytes()));
    }
    assert_eq!(levels, [(0, 0); 10]);
}

/// cubecl#1333, #1360: the allocator's figures are those of the calling thread; ours are not.
#[test]
fn the_report_is_the_same_from_any_thread() {
    let _alone = alone();
    let kept: Vec<_> = (0..3)
        .map(|_| tensor::<Lct, 2>(data([64, 64], 0.0)))
        .collect();
    let here = report();
    assert_eq!(here.logical_bytes, 3 * 2 * 64 * 64);
    let there = std::thread::spawn(report).join().unwrap();
    assert_eq!(there, here);
    drop(kept);
}

/// cubecl#1349: tensors without values.
#[test]
fn empty_tensors_pass() {
    let _alone = alone();
    let empty = Tensor::<Lct, 2>::zeros([0, 300], (&DEVICE, DType::BF16));
    let none = (empty.clone() + 1.0).transpose();
    assert_eq!(none.dims(), [300, 0]);
    assert_eq!(none.into_data().num_elements(), 0);
    let all = Tensor::cat(vec![empty, tensor(data([8, 300], 0.0))], 0);
    assert_eq!(all.into_data().bytes, data([8, 300], 0.0).bytes);
}

/// DFloat11#5: what is not BF16 passes through untouched, and never grows.
#[test]
fn other_types_pass_untouched() {
    let _alone = alone();
    let before = report();
    let halves: Vec<f16> = (0..40_000)
        .map(|i| f16::from_f32(i as f32 * 0.01))
        .collect();
    let halves = TensorData::new(halves, [200, 200]);
    let tensor = Tensor::<Lct, 2>::from_data(halves.clone(), (&DEVICE, DType::F16));
    assert_eq!(tensor.dtype(), DType::F16);
    assert_eq!(tensor.into_data().bytes, halves.bytes);
    let counted = Tensor::<Lct, 1, Int>::arange(0..40_000, &DEVICE);
    assert!(counted.clone().equal(counted).all().into_scalar());
    let after = report();
    assert!(
        after.passed_other_dtype > before.passed_other_dtype,
        "{after}"
    );
    assert!(after.passed_int_bool > before.passed_int_bool, "{after}");
    assert_eq!((after.encodes, after.resident_bytes()), (before.encodes, 0));
}

/// ZipServ's audit: zeros and subnormals keep their signs; DFloat11's kernel: exponents of 240 and above are exponents.
#[test]
fn zeros_subnormals_and_the_largest_exponents_keep_their_signs() {
    let _alone = alone();
    for exponent in [0u16, 1, 2, 239, 240, 254, 255] {
        let values =
            (0..8192u16).map(|i| bf16::from_bits((i & 1) << 15 | exponent << 7 | (i >> 1) & 0x7f));
        let data = TensorData::new(values.collect(), [64, 128]);
        let tensor = tensor::<Lct, 2>(data.clone());
        assert_eq!(tensor.into_data().bytes, data.bytes, "exponent {exponent}");
    }
    let zeros = tensor::<Lct, 2>(TensorData::new(vec![bf16::ZERO; 8192], [64, 128]));
    let rectified = burn::tensor::activation::relu(zeros - 1.0);
    assert!(rectified.into_data().bytes.iter().all(|&byte| byte == 0));
}
