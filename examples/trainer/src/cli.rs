//! The part of the command line that every training has.

use crate::{
    Error,
    optim::{MathKind, OptimKind},
    schedule::Schedule,
};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;

/// Whether tensors are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// Burn as it is.
    Plain,
    /// Losslessly compressed tensors.
    Lct,
}

/// Where to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// CUDA when there is a card, else the CPU.
    Auto,
    /// The first CUDA card.
    Cuda,
    /// The CPU, through Burn's Flex backend.
    Cpu,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// What the backward pass computes anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Checkpointing {
    /// Nothing: every value that it needs is kept.
    None,
    /// What is cheap to compute anew, as Burn's `BalancedCheckpointing` decides.
    Balanced,
}

/// The settings of a run, whatever is trained.
#[derive(Clone, Debug, Args, Serialize)]
pub struct RunArgs {
    /// Whether tensors are compressed.
    #[arg(long, value_enum, default_value = "lct")]
    pub backend: BackendKind,
    /// Where to train.
    #[arg(long, value_enum, default_value = "auto")]
    pub device: DeviceKind,
    /// Training steps of the whole run.
    #[arg(long, default_value_t = 200)]
    pub steps: usize,
    /// Seed of the weights, the batches and the sample.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Sequences in a batch [default: the preset's].
    #[arg(long)]
    pub batch: Option<usize>,
    /// Batches whose gradients are added up for one step of the optimizer.
    #[arg(long, default_value_t = 1)]
    pub accumulate: usize,
    /// The optimizer.
    #[arg(long, value_enum, default_value = "sgd")]
    pub optim: OptimKind,
    /// The precision of a step of lct-sgd or lct-adamw. A resumed run draws other numbers for stochastic than one that was not
    /// interrupted.
    #[arg(long, value_enum, default_value = "bf16")]
    pub math: MathKind,
    /// Write a JSON report to this file.
    #[arg(long, value_name = "FILE.json")]
    pub report: Option<PathBuf>,

    /// Peak learning rate [default: the preset's].
    #[arg(long)]
    pub lr: Option<f64>,
    /// Learning rate after the warm-up.
    #[arg(long, value_enum, default_value = "cosine")]
    pub schedule: Schedule,
    /// Steps between two validation losses; 0 for one at the end only.
    #[arg(long, default_value_t = 50)]
    pub eval_every: usize,
    /// Batches that a validation loss is the mean of.
    #[arg(long, default_value_t = 4)]
    pub eval_batches: usize,
    /// Steps between two readings of the device's memory, each of which makes the device wait; 0 for none.
    #[arg(long, default_value_t = 10)]
    pub memory_every: usize,
    /// Draw bytes over time within one step, the last whose memory is read or else the last of all, to this file.
    #[arg(long, value_name = "FILE.svg")]
    pub timeline: Option<PathBuf>,

    /// Settings of the compression as JSON; it needs none.
    #[arg(long, value_name = "FILE.json")]
    pub lct_config: Option<PathBuf>,

    /// Folder for checkpoints.
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// Steps between two checkpoints; 0 for one at the end only.
    #[arg(long, default_value_t = 0)]
    pub save_every: usize,
    /// Continue from the newest checkpoint.
    #[arg(long)]
    pub resume: bool,

    /// Train on this text [default: the preset's corpus].
    #[arg(long, value_name = "FILE")]
    pub corpus: Option<PathBuf>,
    /// Folder for the learned tokenizer.
    #[arg(long, value_name = "DIR", default_value = "target/nanogpt")]
    pub cache_dir: PathBuf,

    /// Train as on a card with so many GiB of memory: the rest is held by nobody's data.
    #[arg(long, value_name = "GIB")]
    pub max_memory: Option<f64>,

    /// Kernel fusion on CUDA; off needs the cargo feature `unfused`.
    #[arg(long, value_enum, default_value = "on")]
    pub fusion: Switch,
    /// What the backward pass computes anew.
    #[arg(long, value_enum, default_value = "none")]
    pub checkpointing: Checkpointing,
    /// No progress on the terminal.
    #[arg(long)]
    pub quiet: bool,
}

/// Two runs to compare.
#[derive(Clone, Debug, Args)]
pub struct CompareArgs {
    /// The report of the first run.
    pub a: PathBuf,
    /// The report of the second run.
    pub b: PathBuf,
    /// Draw the timelines of both runs side by side to this file.
    #[arg(long, value_name = "FILE.svg")]
    pub timeline: Option<PathBuf>,
}

impl RunArgs {
    /// Checks what clap cannot.
    ///
    /// # Errors
    /// A flag without the one that it needs, or a number out of its range.
    pub fn validate(&self) -> Result<(), Error> {
        let needs_checkpoint = |given: bool, flag| {
            if given && self.checkpoint.is_none() {
                let needs = "--checkpoint DIR";
                return Err(Error::MissingFlag { flag, needs });
            }
            Ok(())
        };
        needs_checkpoint(self.resume, "--resume")?;
        needs_checkpoint(self.save_every > 0, "--save-every")?;
        if self.math != MathKind::Bf16 && !self.optim.is_fused() {
            return Err(Error::MissingFlag {
                flag: "--math",
                needs: "--optim lct-sgd or --optim lct-adamw",
            });
        }
        at_least_one("--steps", self.steps)?;
        at_least_one("--accumulate", self.accumulate)?;
        at_least_one("--eval-batches", self.eval_batches)?;
        self.batch
            .map_or(Ok(()), |it| at_least_one("--batch", it))?;
        self.lr.map_or(Ok(()), |it| positive("--lr", it))?;
        self.max_memory
            .map_or(Ok(()), |it| positive("--max-memory", it))
    }

    /// Sequences in a batch.
    ///
    /// # Panics
    /// If the program did not fill its default in.
    pub fn batch(&self) -> usize {
        self.batch.expect("the preset's batch is filled in")
    }

    /// The peak learning rate.
    ///
    /// # Panics
    /// If the program did not fill its default in.
    pub fn lr(&self) -> f64 {
        self.lr.expect("the preset's rate is filled in")
    }
}

/// Refuses 0.
///
/// # Errors
/// The flag with its value and its range.
pub fn at_least_one(flag: &'static str, value: usize) -> Result<(), Error> {
    in_range(value > 0, flag, value, "at least 1")
}

/// Refuses all but positive numbers.
///
/// # Errors
/// The flag with its value and its range.
pub fn positive(flag: &'static str, value: f64) -> Result<(), Error> {
    let good = value.is_finite() && value > 0.0;
    in_range(good, flag, value, "a positive number")
}

/// Refuses what is not `good`; `range` says in words what is.
///
/// # Errors
/// The flag with its value and its range.
pub fn in_range(
    good: bool,
    flag: &'static str,
    value: impl ToString,
    range: &'static str,
) -> Result<(), Error> {
    if good {
        return Ok(());
    }
    let value = value.to_string();
    Err(Error::OutOfRange { flag, value, range })
}
