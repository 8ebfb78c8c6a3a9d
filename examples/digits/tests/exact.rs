//! Plain and compressed training with burn-train give the same bits, and so does a training that was resumed.
//!
//! One binary, one configuration: everything is forced through the packed form, with no hot window at all.

use burn::backend::flex::FlexDevice;
use burn::backend::{Autodiff, Flex};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, set_default_dtypes};
use burn_lct::{HotWindow, LctBackend, LctConfig, LctMemoryMetric};
use clap::Parser;
use digits::Error;
use digits::cli::Settings;
use digits::train::{Outcome, train};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

type Plain = Autodiff<Flex>;
type Lct = Autodiff<LctBackend<Flex>>;

const DEVICE: FlexDevice = FlexDevice;

/// Sets the device up, and keeps the tests from running at the same time: Flex has one generator of random numbers.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static SET_UP: Once = Once::new();
    static RUNNING: Mutex<()> = Mutex::new(());
    SET_UP.call_once(|| {
        set_default_dtypes::<Flex>(&DEVICE, DType::BF16, DType::I32).unwrap();
        let config = LctConfig::default()
            .with_hot_window(HotWindow::Bytes(0))
            .with_min_elements(4096);
        LctBackend::<Flex>::configure(&DEVICE, config).unwrap();
    });
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn settings(dir: &Path, line: &str) -> Settings {
    let words = ["digits", "--quiet", "--images", "200"];
    Settings {
        dir: dir.into(),
        ..Settings::try_parse_from(words.into_iter().chain(line.split_whitespace())).unwrap()
    }
}

fn run<B: AutodiffBackend<Device = FlexDevice>>(dir: &Path, line: &str) -> Result<Outcome, Error> {
    let metrics = vec![
        LctMemoryMetric::resident::<Flex>(&DEVICE),
        LctMemoryMetric::ratio::<Flex>(&DEVICE),
    ];
    train::<B, _>(&settings(dir, line), &DEVICE, metrics)
}

/// Trains on both backends, in folders of their own, and requires the same bits.
fn both(line: &str) -> Outcome {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let plain = run::<Plain>(a.path(), line).unwrap();
    let lct = run::<Lct>(b.path(), line).unwrap();
    assert_eq!(plain, lct, "{line}");
    plain
}

#[test]
fn losses_and_weights_are_equal_and_tensors_were_packed() {
    let _running = one_at_a_time();
    let before = LctBackend::<Flex>::memory_report(&DEVICE);
    let outcome = both("--epochs 2");
    let after = LctBackend::<Flex>::memory_report(&DEVICE);

    assert_eq!(outcome.epochs.len(), 2);
    let losses: Vec<f64> = outcome
        .epochs
        .iter()
        .flat_map(|e| e.losses.clone())
        .collect();
    assert_eq!(losses.len(), 2 * 4, "200 images in batches of 64");
    assert!(losses.iter().all(|loss| loss.is_finite()));
    assert!(after.encodes > before.encodes + 100, "{after}");
    assert_eq!(after.failed_encodes, 0);
    assert!(after.ratio() > 1.05, "{after}");
}

#[test]
fn accumulation_clipping_and_freezing_keep_the_bits_and_change_the_outcome() {
    let _running = one_at_a_time();
    let usual = both("--epochs 1");
    let accumulated = both("--epochs 1 --accumulate 2");
    let clipped = both("--epochs 1 --clip 0.05");
    let frozen = both("--epochs 1 --freeze");
    let all = both("--epochs 1 --accumulate 2 --clip 0.05 --freeze");
    let digests = [&usual, &accumulated, &clipped, &frozen, &all].map(|o| &o.weights);
    for (index, digest) in digests.iter().enumerate() {
        assert!(
            !digests[..index].contains(digest),
            "run {index} is like another"
        );
    }
}

#[test]
fn a_resumed_run_ends_where_an_uninterrupted_one_does() {
    let _running = one_at_a_time();
    fn resumed<B: AutodiffBackend<Device = FlexDevice>>() -> Outcome {
        let dir = tempfile::tempdir().unwrap();
        let line = "--epochs 3 --accumulate 2 --clip 0.5";
        let whole = run::<B>(dir.path(), line).unwrap();
        let rest = run::<B>(dir.path(), &format!("{line} --resume 2")).unwrap();
        assert_eq!(rest.epochs, whole.epochs[2..]);
        assert_eq!(rest.weights, whole.weights);
        whole
    }
    assert_eq!(resumed::<Plain>(), resumed::<Lct>());
}

#[test]
fn a_checkpoint_of_one_backend_is_resumed_by_the_other() {
    let _running = one_at_a_time();
    let line = "--epochs 2";
    let dir = tempfile::tempdir().unwrap();
    let plain = run::<Plain>(dir.path(), line).unwrap();
    let lct = run::<Lct>(dir.path(), &format!("{line} --resume 1")).unwrap();
    assert_eq!(lct.epochs, plain.epochs[1..]);
    assert_eq!(lct.weights, plain.weights);
    let again = run::<Plain>(dir.path(), &format!("{line} --resume 1")).unwrap();
    assert_eq!(again, lct);
}

#[test]
fn early_stopping_stops_both_backends_after_the_same_epoch() {
    let _running = one_at_a_time();
    // At this rate nothing is learned, so the validation loss stops falling soon.
    let outcome = both("--epochs 12 --images 64 --lr 1 --patience 1");
    assert!(outcome.epochs.len() < 12, "{outcome:?}");
}

#[test]
fn burns_own_loader_works_with_two_workers() {
    let _running = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let outcome = run::<Lct>(dir.path(), "--epochs 1 --loader burn").unwrap();
    let epoch = &outcome.epochs[0];
    assert_eq!(epoch.losses.len(), 4);
    assert!(epoch.validation_loss.is_finite());
}

#[test]
fn memory_is_logged_beside_the_losses() {
    let _running = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    run::<Lct>(dir.path(), "--epochs 1").unwrap();
    let logged = |name: &str| {
        let path = dir.path().join("train/epoch-1").join(name);
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| line.parse().unwrap())
            .collect::<Vec<f64>>()
    };
    assert!(logged("LCT_resident.log").iter().all(|mib| *mib > 0.0));
    assert!(logged("LCT_ratio.log").iter().all(|ratio| *ratio > 1.05));
}

#[test]
fn what_cannot_work_is_an_error() {
    let _running = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let refused = |line: &str| run::<Plain>(dir.path(), line).unwrap_err();
    assert!(matches!(refused("--epochs 0"), Error::OutOfRange { .. }));
    assert!(matches!(refused("--lr 2"), Error::OutOfRange { .. }));
    assert!(matches!(refused("--clip 0"), Error::OutOfRange { .. }));
    assert!(matches!(
        refused("--epochs 2 --resume 1"),
        Error::NoCheckpoint { .. }
    ));
    assert!(matches!(
        refused("--epochs 2 --resume 2"),
        Error::NothingLeft { .. }
    ));

    run::<Plain>(dir.path(), "--epochs 1").unwrap();
    assert!(matches!(refused("--epochs 1"), Error::Occupied { .. }));
    let missing = refused("--epochs 9 --resume 3").to_string();
    assert!(missing.contains("[1]"), "{missing}");
}
