//! A backend that cannot compute in BF16: wgpu, here on a CPU through Mesa's lavapipe. What LCT cannot compress passes
//! through, is reported, and trains to the same bits.

use std::fs;
use std::path::Path;

use burn::backend::Autodiff;
use burn_lct::LctBackend;
use burn_wgpu::{Wgpu, WgpuDevice};
use clap::Parser;
use nanogpt::cli::{Cli, Command, TrainArgs};
use nanogpt::compare::Comparison;
use nanogpt::memory::Probe;
use nanogpt::optim::TrainBackend;
use nanogpt::report::{Card, Report};
use nanogpt::train::Plan;
use trainer::train::Task;

type Plain = Wgpu<f32, i32, u32>;
type Lct = LctBackend<Plain>;

/// What lavapipe is.
const DEVICE: WgpuDevice = WgpuDevice::Cpu;

fn args() -> TrainArgs {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wgpu");
    let _ = fs::remove_dir_all(&folder);
    let line = "nanogpt train --quiet --preset tiny --steps 4 --seed 1";
    let command = Cli::try_parse_from(line.split_whitespace())
        .unwrap()
        .command;
    let Command::Train(mut args) = command else {
        unreachable!("the line says train");
    };
    args.run.cache_dir = folder;
    *args
}

fn train<B: TrainBackend<Device = WgpuDevice>>(plan: &Plan) -> Report {
    plan.train::<B>(&DEVICE, &Probe::none(), Card::default(), None)
        .unwrap()
}

#[test]
fn tiny_trains_through_wgpu() {
    let plan = Plan::new(args()).unwrap();
    let plain = train::<Autodiff<Plain>>(&plan);
    let lct = train::<Autodiff<Lct>>(&plan);
    assert_eq!(lct.dtype, "F32");
    assert_eq!(lct.steps.len(), 4);
    let comparison = Comparison::of(&plain, &lct);
    assert!(comparison.equal(), "{comparison}");

    let report = Lct::memory_report(&DEVICE);
    assert!(report.passed_other_dtype > 0, "{report}");
    assert_eq!((report.encodes, report.logical_bytes), (0, 0), "{report}");
}
