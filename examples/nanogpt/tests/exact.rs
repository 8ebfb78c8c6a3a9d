//! Plain and compressed training give the same bits, on the CPU backend.
//!
//! One binary, one configuration: everything is forced through the packed form, with no hot window at all.

use std::fs;
use std::path::{Path, PathBuf};

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::backend::flex::FlexDevice;
use burn::backend::{Autodiff, Flex};
use burn::tensor::{DType, set_default_dtypes};
use burn_lct::{HotWindow, LctBackend, LctConfig};
use clap::Parser;
use nanogpt::cli::{Cli, Command, Strategy, TrainArgs};
use nanogpt::compare::Comparison;
use nanogpt::devices::Together;
use nanogpt::memory::Probe;
use nanogpt::model::GptConfig;
use nanogpt::optim::{OptimKind, TrainBackend};
use nanogpt::report::{Card, Report, Step};
use nanogpt::train::Plan;
use trainer::backend::Program;
use trainer::place::Place;
use trainer::train::Task;

type Plain = Autodiff<Flex>;
type Lct = Autodiff<LctBackend<Flex>>;
type LctBalanced = Autodiff<LctBackend<Flex>, BalancedCheckpointing>;

const DEVICE: FlexDevice = FlexDevice;

fn args(folder: &Path, line: &str) -> TrainArgs {
    let words = ["nanogpt", "train", "--quiet", "--device", "cpu"];
    match Cli::try_parse_from(words.into_iter().chain(line.split_whitespace()))
        .unwrap()
        .command
    {
        Command::Train(mut args) => {
            args.run.cache_dir = folder.join("cache");
            *args
        }
        Command::Compare { .. } => unreachable!("the line says train"),
    }
}

fn run<B: TrainBackend<Device = FlexDevice>>(plan: &Plan) -> Report {
    plan.train::<B>(&DEVICE, &Probe::none(), Card::default(), None)
        .unwrap()
}

fn on_all<B: TrainBackend<Device = FlexDevice>>(plan: &Plan) -> Report {
    let place = |_| Place::new(DEVICE, Probe::none(), Card::default());
    let places = (0..plan.args().devices).map(place);
    Together::new(plan, Strategy::Multi)
        .run::<B>(places.collect())
        .unwrap()
}

fn assert_equal(a: &Report, b: &Report) {
    let comparison = Comparison::of(a, b);
    assert!(comparison.equal(), "{comparison}");
    assert_eq!(comparison.common_steps, a.steps.len());
}

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// Wide enough that its weights, activations and state are worth packing.
fn micro() -> GptConfig {
    GptConfig::new(512, 32, 96, 2, 4)
}

/// One test, because all trainings of a process share Flex's random generator and device settings.
#[test]
fn compressed_training_gives_the_same_bits() {
    set_default_dtypes::<Flex>(&DEVICE, DType::BF16, DType::I32).unwrap();
    let config = LctConfig::default()
        .with_hot_window(HotWindow::Bytes(0))
        .with_min_elements(1);
    LctBackend::<Flex>::configure(&DEVICE, config).unwrap();

    two_hundred_steps_of_tiny();
    adamw_and_balanced_checkpointing();
    a_checkpoint_of_either_loads_in_the_other();
    several_devices();

    let report = LctBackend::<Flex>::memory_report(&DEVICE);
    assert!(report.encodes > 10_000, "{report}");
    assert_eq!(report.failed_encodes, 0, "{report}");
    assert_eq!(
        report.logical_bytes, 0,
        "a training leaves nothing behind: {report}"
    );
}

fn two_hundred_steps_of_tiny() {
    let folder = folder("exact-tiny");
    let plan = Plan::new(args(&folder, "--preset tiny --steps 200 --seed 1")).unwrap();
    let plain = run::<Plain>(&plan);
    assert_eq!(plain.steps.len(), 200);
    assert!(
        plain.steps[199].loss < plain.steps[0].loss - 1.0,
        "it learns"
    );
    assert_equal(&plain, &run::<Lct>(&plan));
}

fn adamw_and_balanced_checkpointing() {
    let folder = folder("exact-adamw");
    let args = args(&folder, "--steps 10 --batch 4 --optim adamw --eval-every 5");
    assert_eq!(args.run.optim, OptimKind::AdamW);
    let plan = Plan::with_model(args, micro(), 512).unwrap();
    let plain = run::<Plain>(&plan);
    assert_equal(&plain, &run::<Lct>(&plan));
    assert_equal(&plain, &run::<LctBalanced>(&plan));
}

/// Burn's `MultiDevice`, all of whose devices are the one CPU.
fn several_devices() {
    let folder = folder("exact-devices");
    let plan = |devices: usize| {
        let line = "--steps 6 --batch 2 --optim adamw --eval-batches 1 --strategy multi";
        let line = format!("{line} --devices {devices}");
        Plan::with_model(args(&folder, &line), micro(), 512).unwrap()
    };
    let two = on_all::<Plain>(&plan(2));
    assert_equal(&two, &on_all::<Lct>(&plan(2)));
    assert_eq!(two.devices.len(), 2);
    let losses = |step: &Step| step.loss_bits.split_once(' ').map(|(a, b)| a == b);
    let equal: Option<Vec<bool>> = two.steps.iter().map(losses).collect();
    let equal = equal.expect("there are two losses");
    assert!(equal.contains(&false), "each device has batches of its own");

    // One device through burn-train is what it is in the program's own loop.
    let one = on_all::<Plain>(&plan(1));
    let own = run::<Plain>(&plan(1));
    let bits = |report: &Report| -> Vec<String> {
        let steps = report.steps.iter();
        steps.map(|step| step.loss_bits.clone()).collect()
    };
    assert_eq!(bits(&one), bits(&own));
    assert_eq!(one.weights_digest, own.weights_digest);
    let rates = |report: &Report| -> Vec<f64> { report.steps.iter().map(|step| step.lr).collect() };
    assert_eq!(rates(&one), rates(&own));
    assert_ne!(one.weights_digest, two.weights_digest);
}

fn a_checkpoint_of_either_loads_in_the_other() {
    let folder = folder("exact-resume");
    let plan = |checkpoint: &str| {
        let line = format!("--steps 8 --batch 4 --optim adamw {checkpoint}");
        Plan::with_model(args(&folder, &line), micro(), 512).unwrap()
    };
    let stop = Some(4);
    let whole = run::<Plain>(&plan(""));

    let dir = folder.join("from-lct");
    let save = plan(&format!("--checkpoint {} --save-every 4", dir.display()));
    save.train::<Lct>(&DEVICE, &Probe::none(), Card::default(), stop)
        .unwrap();
    let resume = plan(&format!("--checkpoint {} --resume", dir.display()));
    assert_equal(&run::<Plain>(&resume), &whole);

    let dir = folder.join("from-plain");
    let save = plan(&format!("--checkpoint {} --save-every 4", dir.display()));
    save.train::<Plain>(&DEVICE, &Probe::none(), Card::default(), stop)
        .unwrap();
    let resume = plan(&format!("--checkpoint {} --resume", dir.display()));
    assert_equal(&run::<Lct>(&resume), &whole);
}
