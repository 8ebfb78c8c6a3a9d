//! The command line.

use crate::config::Preset;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;
use trainer::{
    Error,
    cli::{CompareArgs, RunArgs, at_least_one},
    optim::OptimKind,
};

/// Fine-tune all weights of a Qwen3 on text, with plain Burn or with losslessly compressed tensors.
#[derive(Debug, Parser)]
#[command(name = "qwen3", version)]
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
    /// Do a few steps at each of several lengths and report the memory of each; the report is written after each length,
    /// so that it tells the longest one even if the next does not fit.
    Context {
        /// The lengths in tokens, separated by commas.
        #[arg(long, value_name = "TOKENS", value_delimiter = ',', required = true)]
        sequences: Vec<usize>,
        /// Report digests of weights and optimizer state after the last length.
        #[arg(long)]
        digests: bool,
        /// The other settings; `--steps` is for each length.
        #[command(flatten)]
        args: Box<TrainArgs>,
    },
    /// Say whether two reports agree bit for bit; the exit code is 1 when they do not.
    Compare(CompareArgs),
}

/// When the optimizer takes the gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Gradients {
    /// When the backward pass is done: all of them live at once.
    Kept,
    /// Layer by layer, as soon as the layer's are complete: one layer's live at a time.
    Released,
}

/// The settings of a run.
#[derive(Clone, Debug, Args, Serialize)]
pub struct TrainArgs {
    /// The model's shape, with random weights [default: tiny].
    #[arg(long, value_enum, conflicts_with = "weights")]
    pub preset: Option<Preset>,
    /// A folder with a model's config.json, tokenizer.json and *.safetensors, as Hugging Face has them. Without
    /// safetensors the weights are random, without tokenizer.json a tokenizer is learned from the text.
    #[arg(long, value_name = "DIR")]
    pub weights: Option<PathBuf>,
    /// Tokens of a sequence.
    #[arg(long, default_value_t = 500)]
    pub sequence: usize,
    /// When the optimizer takes the gradients.
    #[arg(long, value_enum, default_value = "kept")]
    pub gradients: Gradients,

    /// The settings that every training has.
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunArgs,
}

impl TrainArgs {
    /// Checks what clap cannot.
    ///
    /// # Errors
    /// A flag without the one that it needs, or a number out of its range.
    pub fn validate(&self) -> Result<(), Error> {
        self.run.validate()?;
        at_least_one("--sequence", self.sequence)?;
        if self.gradients == Gradients::Released && self.run.accumulate > 1 {
            return Err(Error::MissingFlag {
                flag: "--accumulate with more than 1",
                needs: "--gradients kept, as the sum of several batches' gradients has to live",
            });
        }
        Ok(())
    }

    /// The same with the defaults filled in.
    pub fn filled(mut self) -> Self {
        if self.weights.is_none() {
            self.preset.get_or_insert(Preset::Tiny);
        }
        let tiny = self.preset == Some(Preset::Tiny);
        self.run.batch.get_or_insert(1);
        self.run.lr.get_or_insert(match (self.run.optim, tiny) {
            // BF16 weights swallow small updates, so SGD wants a large rate.
            (OptimKind::Sgd | OptimKind::LctSgd, true) => 0.1,
            (OptimKind::Sgd | OptimKind::LctSgd, false) => 3e-3,
            (OptimKind::AdamW | OptimKind::LctAdamW, true) => 5e-3,
            (OptimKind::AdamW | OptimKind::LctAdamW, false) => 1e-5,
        });
        self
    }
}
