//! The command line.

use crate::{Error, optim::OptimKind, preset::Preset, schedule::Schedule};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;

/// Train a small GPT on real text, with plain Burn or with losslessly compressed tensors.
#[derive(Debug, Parser)]
#[command(name = "nanogpt", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model and report losses, times, memory and digests.
    Train(Box<TrainArgs>),
    /// Say whether two reports agree bit for bit; the exit code is 1 when they do not.
    Compare {
        /// The report of the first run.
        a: PathBuf,
        /// The report of the second run.
        b: PathBuf,
        /// Draw the timelines of both runs side by side to this file.
        #[arg(long, value_name = "FILE.svg")]
        timeline: Option<PathBuf>,
    },
}

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

/// How several devices share a training, each with a batch of its own. Both are burn-train's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// The first device adds up the gradients of all and steps; the others get the new weights from it.
    Multi,
    /// Every device takes the mean of the gradients of all and steps. Needs the cargo feature `distributed`.
    Ddp,
}

/// The settings of a run.
#[derive(Clone, Debug, Args, Serialize)]
pub struct TrainArgs {
    /// The model's size.
    #[arg(long, value_enum, default_value = "tiny")]
    pub preset: Preset,
    /// Whether tensors are compressed.
    #[arg(long, value_enum, default_value = "lct")]
    pub backend: BackendKind,
    /// Where to train.
    #[arg(long, value_enum, default_value = "auto")]
    pub device: DeviceKind,
    /// How many cards train together; on the CPU, so many trainings share it.
    #[arg(long, default_value_t = 1)]
    pub devices: usize,
    /// How they do [default: multi, where there are several].
    #[arg(long, value_enum)]
    pub strategy: Option<Strategy>,
    /// Training steps of the whole run.
    #[arg(long, default_value_t = 200)]
    pub steps: usize,
    /// Seed of the weights, the batches and the sample.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Sequences in a batch, of which each device has one [default: the preset's].
    #[arg(long)]
    pub batch: Option<usize>,
    /// The optimizer.
    #[arg(long, value_enum, default_value = "sgd")]
    pub optim: OptimKind,
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

    /// Folder for samples of weights, gradients, optimizer state and activations.
    #[arg(long, value_name = "DIR")]
    pub capture: Option<PathBuf>,
    /// Steps after which samples are written, separated by commas.
    #[arg(long, value_name = "STEPS", value_delimiter = ',')]
    pub capture_steps: Vec<usize>,
    /// The most values that are kept of one tensor, from its middle.
    #[arg(long, default_value_t = 262_144)]
    pub capture_values: usize,

    /// Train on this text [default: the preset's corpus].
    #[arg(long, value_name = "FILE")]
    pub corpus: Option<PathBuf>,
    /// Folder for the learned tokenizer.
    #[arg(long, value_name = "DIR", default_value = "target/nanogpt")]
    pub cache_dir: PathBuf,
    /// Tokens of the sample written at the end; 0 for none.
    #[arg(long, default_value_t = 48)]
    pub sample_tokens: usize,
    /// How bold the sample is: the logits are divided by this.
    #[arg(long, default_value_t = 0.8)]
    pub temperature: f64,

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

impl TrainArgs {
    /// Checks what clap cannot.
    ///
    /// # Errors
    /// A flag without the one that it needs, or a number out of its range.
    pub fn validate(&self) -> Result<(), Error> {
        if self.checkpoint.is_none() {
            let needs = "--checkpoint DIR";
            if self.resume {
                return Err(Error::MissingFlag {
                    flag: "--resume",
                    needs,
                });
            }
            if self.save_every > 0 {
                return Err(Error::MissingFlag {
                    flag: "--save-every",
                    needs,
                });
            }
        }
        match (&self.capture, self.capture_steps.is_empty()) {
            (None, false) => {
                return Err(Error::MissingFlag {
                    flag: "--capture-steps",
                    needs: "--capture DIR",
                });
            }
            (Some(_), true) => {
                return Err(Error::MissingFlag {
                    flag: "--capture",
                    needs: "--capture-steps, such as 1,100,1000",
                });
            }
            (None, true) | (Some(_), false) => {}
        }
        if self.strategy().is_some() {
            let flags = [
                ("--checkpoint", self.checkpoint.is_some()),
                ("--capture", self.capture.is_some()),
                ("--timeline", self.timeline.is_some()),
            ];
            if let Some((flag, _)) = flags.into_iter().find(|(_, given)| *given) {
                return Err(Error::OneDevice { flag });
            }
        }
        let at_least_one = "at least 1";
        let positive = "a positive number";
        let check = |good: bool, flag, value: String, range| {
            if good {
                Ok(())
            } else {
                Err(Error::OutOfRange { flag, value, range })
            }
        };
        let is_positive = |value: f64| value.is_finite() && value > 0.0;
        let (batch, lr) = (self.batch(), self.lr());
        let devices = self.devices.to_string();
        check(self.devices > 0, "--devices", devices, at_least_one)?;
        check(
            self.steps > 0,
            "--steps",
            self.steps.to_string(),
            at_least_one,
        )?;
        for step in &self.capture_steps {
            check(
                (1..=self.steps).contains(step),
                "--capture-steps",
                step.to_string(),
                "at least 1 and at most --steps",
            )?;
        }
        check(
            self.capture_values > 0,
            "--capture-values",
            self.capture_values.to_string(),
            at_least_one,
        )?;
        if let Some(gib) = self.max_memory {
            let value = gib.to_string();
            check(is_positive(gib), "--max-memory", value, positive)?;
        }
        check(batch > 0, "--batch", batch.to_string(), at_least_one)?;
        check(
            self.eval_batches > 0,
            "--eval-batches",
            self.eval_batches.to_string(),
            at_least_one,
        )?;
        check(is_positive(lr), "--lr", lr.to_string(), positive)?;
        check(
            is_positive(self.temperature),
            "--temperature",
            self.temperature.to_string(),
            positive,
        )
    }

    /// How several devices share the training; `None` for the program's own loop on one.
    pub fn strategy(&self) -> Option<Strategy> {
        let several = self.devices > 1;
        self.strategy.or(several.then_some(Strategy::Multi))
    }

    /// Sequences in a batch.
    pub fn batch(&self) -> usize {
        self.batch.unwrap_or(self.preset.batch())
    }

    /// The peak learning rate.
    pub fn lr(&self) -> f64 {
        self.lr.unwrap_or(self.preset.rate(self.optim))
    }
}
