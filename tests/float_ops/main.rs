//! Every operation that takes or gives floats gives the same bits on `LctBackend<Flex>` as on `Flex`,
//! with every tensor packed between operations.

#![cfg(feature = "flex")]

#[path = "../common/mod.rs"]
mod common;

#[macro_use]
mod cases;
mod activation;
mod float;
mod module;
mod other;

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use burn_backend::{Backend, TensorData};
use burn_flex::{Flex, FlexDevice};
use burn_lct::{HotWindow, LctBackend, LctConfig};
use burn_std::FloatDType;

use cases::Cases;

/// Methods without a case: Flex has none of its own, and calling Burn's default panics.
const NOT_IN_FLEX: [&str; 2] = ["ctc_loss_backward", "float_argtopk"];

/// The names of the operations with what they gave, in a fixed order.
fn results<B: Backend>(dtype: FloatDType) -> Vec<(&'static str, TensorData)> {
    // The seed of Flex is global, and the tests run side by side.
    static SEED: Mutex<()> = Mutex::new(());
    let _seed = SEED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut cases = Cases::<B>::new(dtype);
    float::run(&mut cases);
    module::run(&mut cases);
    activation::run(&mut cases);
    other::run(&mut cases);
    cases.results()
}

#[test]
fn results_are_bit_equal() {
    let config = LctConfig::default()
        .with_hot_window(HotWindow::Bytes(0))
        .with_min_elements(1);
    LctBackend::<Flex>::configure(&FlexDevice, config).expect("the device has not been used");

    for dtype in [FloatDType::BF16, FloatDType::F32, FloatDType::F16] {
        let plain = results::<Flex>(dtype);
        let packed = results::<LctBackend<Flex>>(dtype);
        compare(dtype, &plain, &packed);
    }

    // The comparison means something only if tensors were packed; and none may be left behind.
    let report = LctBackend::<Flex>::memory_report(&FlexDevice);
    assert!(report.encodes > 500 && report.decodes > 1000, "{report:?}");
    assert_eq!(report.failed_encodes, 0, "{report:?}");
    assert_eq!(
        (report.logical_bytes, report.resident_bytes()),
        (0, 0),
        "{report:?}"
    );
}

#[test]
fn every_float_operation_has_a_case() {
    let exercised = results::<Flex>(FloatDType::F32);
    assert_eq!(
        without_case(&exercised),
        BTreeSet::from(NOT_IN_FLEX.map(str::to_string))
    );
}

fn compare(
    dtype: FloatDType,
    plain: &[(&'static str, TensorData)],
    packed: &[(&'static str, TensorData)],
) {
    assert_eq!(plain.len(), packed.len());
    let different: Vec<String> = plain
        .iter()
        .zip(packed)
        .enumerate()
        .filter(|(_, ((_, plain), (_, packed)))| {
            plain.dtype != packed.dtype
                || plain.shape != packed.shape
                || plain.as_bytes() != packed.as_bytes()
        })
        .map(|(at, ((name, plain), (_, packed)))| {
            format!("case {at}, {name}:\n  plain  {plain:?}\n  packed {packed:?}")
        })
        .collect();
    assert!(different.is_empty(), "{dtype:?}:\n{}", different.join("\n"));
}

/// The methods of Burn's float operations that no case is named after.
fn without_case(results: &[(&'static str, TensorData)]) -> BTreeSet<String> {
    let exercised: BTreeSet<&str> = results.iter().map(|(name, _)| *name).collect();
    [
        ("trait FloatTensorOps", "backend/ops/tensor.rs"),
        ("trait ModuleOps", "backend/ops/modules/base.rs"),
        ("trait ActivationOps", "backend/ops/activation.rs"),
    ]
    .into_iter()
    .flat_map(|(header, file)| common::declared(header, file))
    .filter(|name| !exercised.contains(name.as_str()))
    .collect()
}
