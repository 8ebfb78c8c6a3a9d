//! The command line.

use crate::Error;
use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// Train a classifier of handwritten digits with burn-train, on plain Burn or with losslessly compressed tensors.
#[derive(Clone, Debug, Parser)]
#[command(name = "digits", version, args_override_self = true)]
pub struct Settings {
    /// Whether tensors are compressed.
    #[arg(long, value_enum, default_value = "lct")]
    pub backend: BackendKind,
    /// Where to train.
    #[arg(long, value_enum, default_value = "cpu")]
    pub device: DeviceKind,
    /// Epochs of the whole run; early stopping may end it before.
    #[arg(long, default_value_t = 10)]
    pub epochs: usize,
    /// Images in a batch.
    #[arg(long, default_value_t = 64)]
    pub batch: usize,
    /// Learning rate at the start; it falls to 0 along a cosine.
    #[arg(long, default_value_t = 0.1)]
    pub lr: f64,
    /// Seed of the weights, of the batches and of dropout.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Batches whose gradients are added up before the optimizer steps.
    #[arg(long, value_name = "BATCHES")]
    pub accumulate: Option<usize>,
    /// The largest norm of a parameter's gradient; larger ones are scaled down to it.
    #[arg(long, value_name = "NORM")]
    pub clip: Option<f32>,
    /// Keep the first convolution as it was initialised.
    #[arg(long)]
    pub freeze: bool,
    /// Stop when the validation loss has not fallen for so many epochs.
    #[arg(long, default_value_t = 4, value_name = "EPOCHS")]
    pub patience: usize,
    /// Threads that prepare batches.
    #[arg(long, default_value_t = 2)]
    pub workers: usize,
    /// Which loader brings the training batches.
    #[arg(long, value_enum, default_value = "ordered")]
    pub loader: LoaderKind,
    /// Folder for checkpoints, metrics and the log.
    #[arg(long, default_value = "target/digits")]
    pub dir: PathBuf,
    /// Continue after this epoch, from its checkpoint in the folder.
    #[arg(long, value_name = "EPOCH")]
    pub resume: Option<usize>,
    /// Train on so many of the images only.
    #[arg(long, value_name = "IMAGES")]
    pub images: Option<usize>,
    /// Settings of the compression as JSON; it needs none.
    #[arg(long, value_name = "FILE.json")]
    pub lct_config: Option<PathBuf>,
    /// Print nothing while training.
    #[arg(long)]
    pub quiet: bool,
}

/// Whether tensors are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendKind {
    /// Burn as it is.
    Plain,
    /// Losslessly compressed tensors.
    Lct,
}

/// Where to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceKind {
    /// The CPU, through Burn's Flex backend.
    Cpu,
    /// The first CUDA card (feature `cuda`).
    Cuda,
}

/// Which loader brings the training batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoaderKind {
    /// This program's: the same batches in the same order, whatever the threads do, and after a resume too.
    Ordered,
    /// Burn's `DataLoaderBuilder`: with more than one worker, batches come in the order in which they happen to be ready.
    Burn,
}

impl Settings {
    /// Checks the numbers.
    ///
    /// # Errors
    /// Names the first flag that is out of range.
    pub fn validate(&self) -> Result<(), Error> {
        const AT_LEAST_ONE: &str = "at least 1";
        let counts = [
            ("--epochs", Some(self.epochs)),
            ("--batch", Some(self.batch)),
            ("--accumulate", self.accumulate),
            ("--patience", Some(self.patience)),
            ("--workers", Some(self.workers)),
            ("--resume", self.resume),
            ("--images", self.images),
        ];
        if let Some((flag, _)) = counts.iter().find(|(_, count)| *count == Some(0)) {
            return Err(out_of_range(flag, &0, AT_LEAST_ONE));
        }
        if !(self.lr > 0.0 && self.lr <= 1.0) {
            return Err(out_of_range(
                "--lr",
                &self.lr,
                "greater than 0 and at most 1",
            ));
        }
        if let Some(clip) = self.clip
            && !(clip > 0.0 && clip.is_finite())
        {
            return Err(out_of_range("--clip", &clip, "greater than 0"));
        }
        if let Some(epoch) = self.resume
            && epoch >= self.epochs
        {
            return Err(Error::NothingLeft {
                epoch,
                epochs: self.epochs,
            });
        }
        Ok(())
    }
}

fn out_of_range(flag: &'static str, value: &dyn ToString, range: &'static str) -> Error {
    Error::OutOfRange {
        flag,
        value: value.to_string(),
        range,
    }
}
