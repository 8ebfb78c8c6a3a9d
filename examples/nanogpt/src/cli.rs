//! The command line.

use crate::{Error, preset::Preset};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;
use trainer::cli::{CompareArgs, at_least_one, in_range, positive};

pub use trainer::cli::{BackendKind, Checkpointing, DeviceKind, RunArgs, Switch};

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
    Compare(CompareArgs),
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
    /// How many cards train together, each on a batch of its own; on the CPU, so many trainings share it.
    #[arg(long, default_value_t = 1)]
    pub devices: usize,
    /// How they do [default: multi, where there are several].
    #[arg(long, value_enum)]
    pub strategy: Option<Strategy>,

    /// The settings that every training has.
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunArgs,

    /// Folder for samples of weights, gradients, optimizer state and activations.
    #[arg(long, value_name = "DIR")]
    pub capture: Option<PathBuf>,
    /// Steps after which samples are written, separated by commas.
    #[arg(long, value_name = "STEPS", value_delimiter = ',')]
    pub capture_steps: Vec<usize>,
    /// The most values that are kept of one tensor, from its middle.
    #[arg(long, default_value_t = 262_144)]
    pub capture_values: usize,

    /// Tokens of the sample written at the end; 0 for none.
    #[arg(long, default_value_t = 48)]
    pub sample_tokens: usize,
    /// How bold the sample is: the logits are divided by this.
    #[arg(long, default_value_t = 0.8)]
    pub temperature: f64,
}

impl TrainArgs {
    /// Checks what clap cannot.
    ///
    /// # Errors
    /// A flag without the one that it needs, or a number out of its range.
    pub fn validate(&self) -> Result<(), Error> {
        self.run.validate()?;
        at_least_one("--devices", self.devices)?;
        if self.strategy().is_some() {
            let flags = [
                ("--accumulate", self.run.accumulate > 1),
                ("--checkpoint", self.run.checkpoint.is_some()),
                ("--capture", self.capture.is_some()),
                ("--timeline", self.run.timeline.is_some()),
            ];
            if let Some((flag, _)) = flags.into_iter().find(|(_, given)| *given) {
                return Err(Error::OneDevice { flag });
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
        for &step in &self.capture_steps {
            in_range(
                (1..=self.run.steps).contains(&step),
                "--capture-steps",
                step,
                "at least 1 and at most --steps",
            )?;
        }
        at_least_one("--capture-values", self.capture_values)?;
        positive("--temperature", self.temperature)
    }

    /// How several devices share the training; `None` for the program's own loop on one.
    pub fn strategy(&self) -> Option<Strategy> {
        let several = self.devices > 1;
        self.strategy.or(several.then_some(Strategy::Multi))
    }

    /// The same with the preset's defaults filled in.
    pub fn filled(mut self) -> Self {
        let run = &mut self.run;
        run.batch.get_or_insert(self.preset.batch());
        run.lr.get_or_insert(self.preset.rate(run.optim));
        self
    }
}
