//! The program's promises, on the CPU backend in BF16.

use burn::{
    backend::{
        Autodiff, Flex, autodiff::checkpoint::strategy::BalancedCheckpointing, flex::FlexDevice,
    },
    tensor::{DType, Distribution, Int, Tensor, set_default_dtypes},
};
use burn_lct::{HotWindow, LctBackend, LctConfig};
use clap::Parser;
use qwen3::{
    cli::{Cli, Command, TrainArgs},
    config::Preset,
    context::{Context, Curve},
    ops,
    train::Plan,
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};
use trainer::{
    Error,
    backend::Program,
    compare::Comparison,
    data,
    memory::Probe,
    optim::TrainBackend,
    place::Place,
    report::{Card, Report},
    train::Task,
};

type Plain = Autodiff<Flex>;
type Balanced = Autodiff<Flex, BalancedCheckpointing>;
type Lct = Autodiff<LctBackend<Flex>>;
type LctBalanced = Autodiff<LctBackend<Flex>, BalancedCheckpointing>;

const DEVICE: FlexDevice = FlexDevice;

/// Flex has one random generator and one setting for the whole process, so tests that train take turns. Everything is
/// packed, with no hot window at all.
fn turn() -> MutexGuard<'static, bool> {
    static READY: Mutex<bool> = Mutex::new(false);
    let mut ready = READY.lock().unwrap_or_else(PoisonError::into_inner);
    if !*ready {
        set_default_dtypes::<Flex>(&DEVICE, DType::BF16, DType::I32).unwrap();
        let config = LctConfig::default()
            .with_hot_window(HotWindow::Bytes(0))
            .with_min_elements(1);
        LctBackend::<Flex>::configure(&DEVICE, config).unwrap();
        *ready = true;
    }
    ready
}

/// An empty folder of a test's own.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("qwen3-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn parse(line: &str) -> Result<TrainArgs, clap::Error> {
    let words = ["qwen3", "train", "--quiet", "--device", "cpu"];
    match Cli::try_parse_from(words.into_iter().chain(line.split_whitespace()))?.command {
        Command::Train(args) => Ok(*args),
        _ => unreachable!("the line says train"),
    }
}

/// A few steps on the start of the novel; `line` says what else.
fn args(folder: &Path, line: &str) -> TrainArgs {
    let corpus = folder.join("corpus.txt");
    let novel = fs::read_to_string(&data::corpus_files(&["moby-dick.txt"])[0]).unwrap();
    fs::write(&corpus, novel.chars().take(40_000).collect::<String>()).unwrap();
    let mut args = parse(&format!("--sequence 40 --eval-batches 1 {line}")).unwrap();
    args.run.corpus = Some(corpus);
    args.run.cache_dir = folder.join("cache");
    args
}

fn run<B: TrainBackend<Device = FlexDevice>>(args: &TrainArgs, until: Option<usize>) -> Report {
    let plan = Plan::new(args.clone()).unwrap();
    plan.train::<B>(&DEVICE, &Probe::none(), Card::default(), until)
        .unwrap()
}

fn assert_equal(a: &Report, b: &Report) {
    let comparison = Comparison::of(a, b);
    assert!(comparison.equal(), "{comparison}");
}

#[test]
fn the_presets_have_the_published_sizes() {
    let sizes = [Preset::Small, Preset::Large].map(|preset| preset.model().parameters());
    assert_eq!(sizes, [596_049_920, 4_022_468_096]);
}

#[test]
fn it_learns_and_compression_changes_no_bit() {
    let _turn = turn();
    let folder = folder("exact");
    for optim in ["sgd", "adamw", "lct-sgd", "lct-adamw"] {
        let args = args(&folder, &format!("--steps 12 --batch 2 --optim {optim}"));
        let plain = run::<Plain>(&args, None);
        assert!(plain.steps[11].loss < plain.steps[0].loss - 0.2, "{optim}");
        assert_equal(&plain, &run::<Lct>(&args, None));
    }
    let report = LctBackend::<Flex>::memory_report(&DEVICE);
    assert!(report.encodes > 1000, "{report}");
    assert_eq!(report.failed_encodes, 0, "{report}");
}

#[test]
fn checkpointing_and_the_release_of_gradients_change_no_bit() {
    let _turn = turn();
    let folder = folder("ways");
    let kept = args(&folder, "--steps 4 --optim adamw");
    let released = args(&folder, "--steps 4 --optim adamw --gradients released");
    let plain = run::<Plain>(&kept, None);
    assert_equal(&plain, &run::<Balanced>(&kept, None));
    assert_equal(&plain, &run::<LctBalanced>(&kept, None));
    assert_equal(&plain, &run::<Plain>(&released, None));
    assert_equal(&plain, &run::<Lct>(&released, None));
    assert_equal(&plain, &run::<LctBalanced>(&released, None));
}

/// The most bytes that a forward and a backward pass of an operation take, with LCT's count of what plain Burn would.
fn peak_bytes(sequence: usize, tile: usize) -> u64 {
    LctBackend::<Flex>::reset_peaks(&DEVICE);
    let normal = Distribution::Normal(0.0, 1.0);
    let [query, key, value] = [4, 2, 2].map(|heads| {
        Tensor::<Lct, 4>::random([1, sequence, heads, 8], normal, &DEVICE).require_grad()
    });
    let result = ops::attention(query, key, value, tile);
    let [hidden, weight] = [sequence, 1024]
        .map(|rows| Tensor::<Lct, 2>::random([rows, 32], normal, &DEVICE).require_grad());
    let targets = Tensor::<Lct, 1, Int>::zeros([sequence], &DEVICE);
    let losses = ops::surprise(hidden + result.squeeze_dim(0), weight, targets, tile * 128);
    drop(losses.sum().backward());
    LctBackend::<Flex>::memory_report(&DEVICE).peak_logical_bytes
}

#[test]
fn memory_grows_linearly_with_the_sequence() {
    let _turn = turn();
    let growth = |tile: fn(usize) -> usize| {
        let peak = |sequence| peak_bytes(sequence, tile(sequence)) as f64;
        peak(1024) / peak(512)
    };
    let (by_tiles, at_once) = (growth(|_| 16), growth(|sequence| sequence));
    assert!(by_tiles < 2.1, "{by_tiles}");
    assert!(at_once > 3.0, "{at_once}");
}

#[test]
fn batches_add_up() {
    let _turn = turn();
    let folder = folder("accumulate");
    let args = args(&folder, "--steps 3 --accumulate 2 --optim adamw");
    let plain = run::<Plain>(&args, None);
    // Two losses a step, of four bytes each.
    assert_eq!(plain.steps[0].loss_bits.len(), 2 + 16);
    assert_equal(&plain, &run::<Lct>(&args, None));
}

#[test]
fn a_resumed_run_equals_the_uninterrupted_one() {
    let _turn = turn();
    let folder = folder("resume");
    let whole = run::<Plain>(&args(&folder, "--steps 6 --optim adamw"), None);
    let dir = folder.join("checkpoints");
    let line = format!("--steps 6 --optim adamw --checkpoint {}", dir.display());
    run::<Lct>(&args(&folder, &format!("{line} --save-every 3")), Some(3));
    let resumed = run::<Plain>(&args(&folder, &format!("{line} --resume")), None);
    assert_eq!((resumed.resumed_from, resumed.steps.len()), (3, 3));
    assert_equal(&whole, &resumed);

    let mut shorter = args(&folder, &format!("{line} --resume"));
    shorter.sequence = 32;
    let plan = Plan::new(shorter).unwrap();
    let error = plan.train::<Plain>(&DEVICE, &Probe::none(), Card::default(), None);
    let error = error.unwrap_err();
    assert!(
        matches!(&error, Error::ForeignCheckpoint { field, .. } if field == "sequence"),
        "{error}"
    );
}

#[test]
fn each_length_is_reported_as_soon_as_it_is_done() {
    let _turn = turn();
    let folder = folder("context");
    let file = folder.join("curve.json");
    let mut args = args(&folder, "--steps 2");
    args.run.report = Some(file.clone());
    let context = Context::new(args.clone(), vec![24, 40], true).unwrap();
    let curve = context
        .run::<Plain>(vec![Place::new(DEVICE, Probe::none(), Card::default())])
        .unwrap();
    let lengths: Vec<_> = curve.points.iter().map(|point| point.sequence).collect();
    assert_eq!(lengths, [24, 40]);
    assert!(curve.points.iter().all(|point| point.steps.len() == 2));
    let saved: Curve = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(saved.points.len(), 2);
    assert_eq!(saved.weights_digest, curve.weights_digest);
    assert!(saved.weights_digest.is_some() && saved.state_digest.is_some());

    // The first length is a training of that length.
    args.sequence = 24;
    let report = run::<Plain>(&args, None);
    assert_eq!(
        curve.points[0].steps[1].loss_bits,
        report.steps[1].loss_bits
    );

    let mut lost = args.clone();
    lost.run.lr = Some(1e38);
    let lost = Context::new(lost, vec![24, 40], false).unwrap();
    let error = lost
        .run::<Plain>(vec![Place::new(DEVICE, Probe::none(), Card::default())])
        .err()
        .unwrap();
    assert!(
        matches!(error, Error::LossLost { sequence: 24, .. }),
        "{error}"
    );
    let error = Context::new(args, vec![24, 1_000_000], false)
        .err()
        .unwrap();
    assert!(matches!(error, Error::CorpusTooSmall { .. }), "{error}");
}

#[test]
fn a_folder_brings_its_shape_and_its_tokenizer() {
    let _turn = turn();
    let folder = folder("folder");
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tied");
    let model = folder.join("model");
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(data).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, model.join(path.file_name().unwrap())).unwrap();
    }
    let line = format!("--steps 2 --weights {}", model.display());
    // A tokenizer that is learned has at least a token for each byte.
    let error = Plan::new(args(&folder, &line)).err().unwrap();
    assert!(
        matches!(
            error,
            Error::Vocabulary {
                tokens: 256,
                vocabulary: 96
            }
        ),
        "{error}"
    );

    let words = r#"{"the": 0, "whale": 1, "?": 2}"#;
    let tokenizer = format!(
        r#"{{"model": {{"type": "WordLevel", "vocab": {words}, "unk_token": "?"}},
            "pre_tokenizer": {{"type": "Whitespace"}}}}"#
    );
    fs::write(model.join("tokenizer.json"), tokenizer).unwrap();
    let args = args(&folder, &line);
    let plain = run::<Plain>(&args, None);
    assert_eq!((plain.parameters, plain.steps.len()), (24_800, 2));
    assert_equal(&plain, &run::<Lct>(&args, None));
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let refused = |line: &str| parse(line).unwrap().validate().unwrap_err();
    let error = refused("--gradients released --accumulate 2");
    assert!(matches!(error, Error::MissingFlag { .. }), "{error}");
    let error = refused("--sequence 0");
    assert!(
        matches!(
            error,
            Error::OutOfRange {
                flag: "--sequence",
                ..
            }
        ),
        "{error}"
    );
    assert!(parse("--preset 4b --weights folder").is_err());
}
