//! What the residency promises, seen from outside: what is packed, what is not, and that the books balance.
//!
//! Configurations are set once for a device and every test of a binary shares `Flex`'s only device, so the tests run one
//! after the other in one function, each on tensors of its own.
#![cfg(feature = "flex")]

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Distribution, Tensor, TensorData, TensorPrimitive};
use burn_backend::TensorMetadata;
use burn_flex::{Flex, FlexDevice};
use burn_lct::{ConfigError, HotWindow, LctBackend, LctConfig, MemoryReport};

type B = LctBackend<Flex>;

const DEVICE: FlexDevice = FlexDevice;
const KIB: u64 = 1024;
/// Holds four tensors of 64 KiB.
const WINDOW: u64 = 256 * KIB;

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

fn bits<const D: usize>(tensor: &Tensor<B, D>) -> TensorData {
    tensor.clone().into_data()
}

#[test]
fn residency() {
    impossible_configurations_are_refused();
    let config = LctConfig::default()
        .with_hot_window(HotWindow::Bytes(WINDOW))
        .with_min_elements(1024)
        .with_verify(true);
    B::configure(&DEVICE, config.clone()).unwrap();
    assert_eq!(B::config(&DEVICE), config);
    assert!(matches!(
        B::configure(&DEVICE, config),
        Err(ConfigError::InUse { .. })
    ));

    what_dies_young_is_never_encoded();
    the_oldest_are_packed_and_come_back_whole();
    views_share_one_packed_form();
    other_types_and_small_tensors_pass_through();
    metadata_and_clones_do_not_decode();
    incompressible_data_stays_dense();
    special_values_survive();
    what_is_cheap_is_computed_again();
    what_lost_its_operands_is_packed();
    what_would_keep_more_alive_is_packed();
    no_more_than_two_operations_are_done_again();
    nothing_is_left();
}

fn impossible_configurations_are_refused() {
    let refused = |config: LctConfig| B::configure(&DEVICE, config).unwrap_err();
    let fraction = refused(LctConfig::default().with_hot_window(HotWindow::Share(1.5)));
    assert_eq!(
        fraction,
        ConfigError::Share {
            name: "hot_window",
            given: 1.5
        }
    );
    let nan = LctConfig::default().with_hot_window(HotWindow::Share(f64::NAN));
    assert!(matches!(refused(nan), ConfigError::Share { .. }));
    let none = refused(LctConfig::default().with_min_elements(0));
    assert_eq!(none, ConfigError::MinElements { given: 0 });
    let reserve = refused(LctConfig::default().with_spill_reserve(10));
    let needed = 8192;
    assert_eq!(reserve, ConfigError::SpillReserve { given: 10, needed });
    assert!(reserve.to_string().contains("10 bytes"), "{reserve}");
    let unknown = serde_json::from_str::<LctConfig>(r#"{"hot_windows": 3}"#);
    assert!(unknown.is_err(), "a misspelt field is not ignored");
}

fn what_dies_young_is_never_encoded() {
    let before = report();
    for _ in 0..100 {
        drop(fresh() + 1.0);
    }
    let after = report();
    assert_eq!(after.encodes, before.encodes);
    assert!(after.peak_window_bytes <= WINDOW);
}

fn the_oldest_are_packed_and_come_back_whole() {
    let before = report();
    let tensors: Vec<_> = (0..10).map(|_| fresh()).collect();
    let full = report();
    assert_eq!(full.logical_bytes - before.logical_bytes, 10 * 64 * KIB);
    assert_eq!(
        full.encodes - before.encodes,
        6,
        "ten were made, four fit the window"
    );
    assert!(full.window_bytes <= WINDOW);
    let saved = 6 * 64 * KIB - (full.packed_bytes - before.packed_bytes);
    assert!(
        saved * 10 > 6 * 64 * KIB * 2,
        "at least a fifth is saved: {saved}"
    );

    // Decoded twice, and compared with what plain Flex computes from the decoded bits.
    for tensor in &tensors {
        let data = bits(tensor);
        assert_eq!(bits(tensor), data);
        let plain: Tensor<Flex, 2> = Tensor::from_data(data, (&DEVICE, DType::BF16));
        let doubled = (plain * 2.0).into_data();
        assert_eq!(bits(&(tensor.clone() * 2.0)), doubled);
    }
    let decoded = report();
    let count = decoded.decodes - full.decodes;
    assert!(count > 0);
    assert_eq!(decoded.decoded_bytes - full.decoded_bytes, count * 64 * KIB);
    assert_eq!(
        decoded.encodes - before.encodes,
        10,
        "the last four made room for decoded copies"
    );
    tensors.iter().for_each(|tensor| drop(bits(tensor)));
    assert_eq!(
        report().encodes,
        decoded.encodes,
        "a decoded copy is dropped, not encoded again"
    );
}

fn views_share_one_packed_form() {
    let tensor = fresh();
    let expected = bits(&tensor);
    let before = report();
    let heads = tensor.clone().reshape([256, 8, 16]).swap_dims(0, 1);
    let half = tensor.clone().slice([0..256, 0..64]);
    assert_eq!(
        report().logical_bytes,
        before.logical_bytes,
        "a view stores nothing"
    );
    let _pressure: Vec<_> = (0..8).map(|_| fresh()).collect();
    assert_eq!(
        report().encodes - before.encodes,
        5,
        "the tensor once, not its views"
    );

    let back = heads.swap_dims(0, 1).reshape([256, 128]);
    assert_eq!(bits(&back), expected);
    let plain: Tensor<Flex, 2> = Tensor::from_data(expected, (&DEVICE, DType::BF16));
    assert_eq!(bits(&half), plain.slice([0..256, 0..64]).into_data());
}

fn other_types_and_small_tensors_pass_through() {
    let before = report();
    let f32s: Tensor<B, 2> = Tensor::ones([256, 128], (&DEVICE, DType::F32));
    let small: Tensor<B, 1> = Tensor::ones([1023], (&DEVICE, DType::BF16));
    let ints: Tensor<B, 1, burn::tensor::Int> = Tensor::arange(0..5000, &DEVICE);
    let mask = f32s.clone().greater_elem(0.5);
    let after = report();
    assert_eq!(after.logical_bytes, before.logical_bytes);
    assert!(after.passed_other_dtype > before.passed_other_dtype);
    assert!(after.passed_small > before.passed_small);
    assert!(after.passed_int_bool >= before.passed_int_bool + 2);
    assert_eq!(small.dtype(), DType::BF16);
    drop((ints, mask));
}

fn metadata_and_clones_do_not_decode() {
    let tensor = fresh();
    let _pressure: Vec<_> = (0..8).map(|_| fresh()).collect();
    let before = report();
    let clone = tensor.clone().to_device(&DEVICE).detach();
    assert_eq!(clone.dims(), [256, 128]);
    assert_eq!(clone.dtype(), DType::BF16);
    let TensorPrimitive::Float(primitive) = clone.into_primitive() else {
        unreachable!("the tensor is not quantized")
    };
    assert_eq!(primitive.rank(), 2);
    assert!(format!("{primitive:?}").contains("Nothing"));
    assert_eq!(report().decodes, before.decodes);
}

fn incompressible_data_stays_dense() {
    let before = report();
    let mut state = 1u32;
    let noise: Vec<half::bf16> = (0..32_768)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            half::bf16::from_bits((state >> 16) as u16)
        })
        .collect();
    let expected = TensorData::new(noise, [256, 128]);
    let tensor: Tensor<B, 2> = Tensor::from_data(expected.clone(), (&DEVICE, DType::BF16));
    let _pressure: Vec<_> = (0..8).map(|_| fresh()).collect();
    let after = report();
    assert_eq!(after.incompressible - before.incompressible, 1);
    assert_eq!(after.kept_dense_bytes - before.kept_dense_bytes, 64 * KIB);
    assert_eq!(bits(&tensor).bytes, expected.bytes);
}

fn special_values_survive() {
    // Every pattern once, NaN payloads, both zeros and infinities among them; compared as bytes, not values.
    // Among seven times as many ordinary values, so that the tensor is worth packing.
    let all = (0..=u16::MAX)
        .flat_map(|bits| [bits, 0x3f80, 0x3f81, 0xbf80, 0x3f82, 0x3f80, 0x3f83, 0x3e00]);
    let values: Vec<half::bf16> = all.map(half::bf16::from_bits).collect();
    let sorted = TensorData::new(values, [2048, 256]);
    let before = report();
    let tensor: Tensor<B, 2> = Tensor::from_data(sorted.clone(), (&DEVICE, DType::BF16));
    assert_eq!(report().encodes - before.encodes, 1);
    assert_eq!(bits(&tensor).bytes, sorted.bytes);
}

/// Nine tensors of 64 KiB that live: what was made before has left the window.
fn pressure() -> Vec<Tensor<B, 2>> {
    (0..9).map(|_| fresh()).collect()
}

fn plain(tensor: &Tensor<B, 2>) -> Tensor<Flex, 2> {
    Tensor::from_data(bits(tensor), (&DEVICE, DType::BF16))
}

fn what_is_cheap_is_computed_again() {
    let before = report();
    // As softmax does it, along rows that are short enough for their sums to be managed.
    let shifted = fresh().reshape([2048, 16]);
    let exponential = shifted.clone().exp();
    let sum = exponential.clone().sum_dim(1);
    let quotient = exponential.clone() / sum.clone();
    let rectified = burn::tensor::activation::relu(shifted.clone());
    let gelu = burn::tensor::activation::gelu(shifted.clone());
    let expected = [
        plain(&shifted).exp(),
        plain(&shifted).exp() / plain(&sum),
        burn::tensor::activation::relu(plain(&shifted)),
        burn::tensor::activation::gelu(plain(&shifted)),
    ]
    .map(Tensor::into_data);
    let pressure = pressure();
    let full = report();
    assert_eq!(full.derived_bytes - before.derived_bytes, 4 * 64 * KIB);
    assert!(full.peak_derived_bytes >= 4 * 64 * KIB);
    // The operands go on living after their owner is gone.
    drop((shifted, sum));
    let results = [
        (1, &quotient),
        (0, &exponential),
        (2, &rectified),
        (3, &gelu),
    ];
    for (index, result) in results {
        assert_eq!(bits(result), expected[index]);
    }
    let used = report();
    // The quotient asked for the exponential, which stayed in the window.
    assert_eq!(used.derives - full.derives, 4, "{used}");
    assert_eq!(used.rederived_bytes - full.rederived_bytes, 4 * 64 * KIB);
    for (index, result) in results.into_iter().rev() {
        assert_eq!(bits(result), expected[index]);
    }
    let encodes = report().encodes;
    drop(pressure);
    drop((quotient, exponential, rectified, gelu));
    assert_eq!(report().derived_bytes, before.derived_bytes);
    assert_eq!(report().encodes, encodes);
}

fn what_lost_its_operands_is_packed() {
    let before = report();
    let exponential = fresh().exp();
    let expected = bits(&exponential);
    let _pressure = pressure();
    let after = report();
    assert_eq!(after.derived_bytes, before.derived_bytes);
    assert!(after.encodes > before.encodes);
    assert_eq!(bits(&exponential), expected);
}

fn what_would_keep_more_alive_is_packed() {
    let before = report();
    let (a, b) = (fresh(), fresh());
    let quotient = a.clone() / b.clone();
    let expected = bits(&quotient);
    let _pressure = pressure();
    assert_eq!(report().derived_bytes, before.derived_bytes);
    drop((a, b));
    assert_eq!(bits(&quotient), expected);
}

fn no_more_than_two_operations_are_done_again() {
    let before = report();
    let roots: Vec<_> =
        std::iter::successors(Some(fresh().exp()), |last| Some(last.clone().sqrt()))
            .take(5)
            .collect();
    let expected: Vec<_> = roots.iter().map(bits).collect();
    let _pressure = pressure();
    // Each third is packed: the first, whose operand is gone, and the fourth.
    let derived = report().derived_bytes - before.derived_bytes;
    assert_eq!(derived, 3 * 64 * KIB);
    for (root, expected) in roots.iter().zip(expected).rev() {
        assert_eq!(bits(root), expected);
    }
}

fn nothing_is_left() {
    B::sync(&DEVICE).unwrap();
    let end = report();
    assert_eq!(
        (end.logical_bytes, end.packed_bytes, end.spill_bytes),
        (0, 0, 0)
    );
    assert_eq!((end.window_bytes, end.kept_dense_bytes), (0, 0));
    assert_eq!(end.derived_bytes, 0);
    assert_eq!(end.failed_encodes, 0, "every packed tensor verified");
}
