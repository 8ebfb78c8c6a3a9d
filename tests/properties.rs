//! Random programs give the same bits on `Flex` and on `LctBackend<Flex>` with everything forced through the packed form.
#![cfg(feature = "flex")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use burn_flex::{Flex, FlexDevice};
use burn_lct::{ConfigError, HotWindow, LctBackend, LctConfig};
use half::bf16;
use proptest::prelude::*;

type Lct = LctBackend<Flex>;

/// Everything that is managed is packed, by one test at a time.
fn configured() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let config = LctConfig::default()
        .with_hot_window(HotWindow::Bytes(0))
        .with_min_elements(16)
        .with_verify(true);
    match Lct::configure(&FlexDevice, config) {
        Ok(()) | Err(ConfigError::InUse { .. }) => alone,
        Err(error) => panic!("{error}"),
    }
}

/// An operation on the last tensor, or on an older one.
#[derive(Debug, Clone)]
enum Op {
    /// Looks at an earlier tensor again, as backward passes do.
    Recall(prop::sample::Index),
    SwapDims(prop::sample::Index, prop::sample::Index),
    /// Two dimensions joined.
    Join(prop::sample::Index),
    /// The middle of a dimension.
    Slice(prop::sample::Index),
    Flip(prop::sample::Index),
    Sum(prop::sample::Index),
    /// With an earlier tensor of the same shape, or itself.
    Add(prop::sample::Index),
    Div(prop::sample::Index),
    Exp,
    Relu,
    Sqrt,
    Scale(f32),
    Gram,
}

fn any_op() -> impl Strategy<Value = Op> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        3 => index().prop_map(Op::Recall),
        2 => (index(), index()).prop_map(|(a, b)| Op::SwapDims(a, b)),
        1 => index().prop_map(Op::Join),
        2 => index().prop_map(Op::Slice),
        1 => index().prop_map(Op::Flip),
        1 => index().prop_map(Op::Sum),
        2 => index().prop_map(Op::Add),
        1 => index().prop_map(Op::Div),
        1 => Just(Op::Exp),
        1 => Just(Op::Relu),
        1 => Just(Op::Sqrt),
        1 => (-2.0..2.0f32).prop_map(Op::Scale),
        1 => Just(Op::Gram),
    ]
}

/// Runs a program on 3-dimensional tensors; returns the bits of all that it made.
fn run<B: Backend<Device = FlexDevice>>(
    data: &TensorData,
    dtype: DType,
    program: &[Op],
) -> Vec<TensorData> {
    let mut made = vec![Tensor::<B, 3>::from_data(
        data.clone(),
        (&FlexDevice, dtype),
    )];
    for op in program {
        let last = made[made.len() - 1].clone();
        let dim = |index: &prop::sample::Index| index.index(3);
        let same = |index: &prop::sample::Index| {
            let alike: Vec<_> = made
                .iter()
                .filter(|other| other.dims() == last.dims())
                .collect();
            alike[index.index(alike.len())].clone()
        };
        let next = match op {
            Op::Recall(index) => made[index.index(made.len())].clone(),
            Op::SwapDims(a, b) => last.swap_dims(dim(a), dim(b)),
            Op::Join(index) => {
                let [a, b, c] = last.dims();
                match index.index(2) {
                    0 => last.reshape([1, a * b, c]),
                    _ => last.reshape([a, 1, b * c]),
                }
            }
            Op::Slice(index) => {
                let (dim, dims) = (dim(index), last.dims());
                last.narrow(dim, dims[dim] / 4, dims[dim].div_ceil(2))
            }
            Op::Flip(index) => last.flip([dim(index) as isize]),
            Op::Sum(index) => last.sum_dim(dim(index)),
            Op::Add(index) => last.clone() + same(index),
            Op::Div(index) => last.clone() / same(index),
            Op::Exp => last.exp(),
            Op::Relu => burn::tensor::activation::relu(last),
            Op::Sqrt => last.sqrt(),
            Op::Scale(by) => last * *by,
            Op::Gram => last.clone().matmul(last.transpose()),
        };
        // Products of large matrices take long.
        if next.shape().num_elements() <= 1 << 16 {
            made.push(next);
        }
    }
    // The youngest first, as a backward pass asks.
    made.iter().rev().map(|tensor| tensor.to_data()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_programs_give_the_same_bits(
        shape in (1..6usize, 1..40usize, 1..60usize),
        seed in any::<u32>(),
        scale in -3..4i32,
        bf16s in prop::bool::weighted(0.8),
        program in prop::collection::vec(any_op(), 1..24),
    ) {
        let _alone = configured();
        let (a, b, c) = shape;
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bf16::from_f32(((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * (10f32).powi(scale))
        };
        let data = TensorData::new((0..a * b * c).map(|_| next()).collect(), [a, b, c]);
        let dtype = if bf16s { DType::BF16 } else { DType::F32 };
        let data = data.convert_dtype(dtype);
        let plain = run::<Flex>(&data, dtype, &program);
        let packed = run::<Lct>(&data, dtype, &program);
        for (plain, packed) in plain.iter().zip(&packed) {
            prop_assert_eq!(&plain.shape, &packed.shape);
            prop_assert!(plain.bytes == packed.bytes, "{:?}", plain.shape);
        }
        let report = Lct::memory_report(&FlexDevice);
        prop_assert_eq!(report.logical_bytes, 0, "{}", report);
        prop_assert_eq!(report.failed_encodes, 0, "{}", report);
    }
}

/// The programs above would pass as well if nothing was ever packed.
#[test]
fn random_programs_pack() {
    let _alone = configured();
    let values = (0..30_000)
        .map(|i| bf16::from_f32(i as f32 * 0.001))
        .collect();
    let data = TensorData::new(values, [3, 100, 100]);
    run::<Lct>(&data, DType::BF16, &[Op::Exp, Op::Relu, Op::Scale(0.5)]);
    let report = Lct::memory_report(&FlexDevice);
    assert!(report.encodes > 0 && report.decodes > 0, "{report}");
}
