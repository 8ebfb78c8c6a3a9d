//! The JSON report of a run.

use crate::{
    Error,
    memory::{Peaks, Timeline, Usage},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// Everything a run found out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// The version of the program.
    pub version: String,
    /// All settings, from the command line or by default.
    pub args: Value,
    /// The model's shape.
    pub model: Value,
    /// The number of parameters.
    pub parameters: usize,
    /// The type of the weights.
    pub dtype: String,
    /// Burn's name of the backend.
    pub backend: String,
    /// Where it ran.
    pub card: Card,
    /// Digest of the corpus.
    pub corpus_digest: String,
    /// Digest of the token ids.
    pub token_digest: String,
    /// The step that the run resumed from; 0 for a run from the start.
    pub resumed_from: usize,
    /// Each training step.
    pub steps: Vec<Step>,
    /// The validation losses.
    pub validation: Vec<Validation>,
    /// Text that the model wrote at the end.
    pub sample: String,
    /// Digest of all weights at the end.
    pub weights_digest: String,
    /// Digest of the optimizer's state at the end.
    pub state_digest: String,
    /// The most bytes that tensors held; null on a CPU.
    pub peak_bytes_in_use: Option<u64>,
    /// The most bytes that the allocator held; null on a CPU.
    pub peak_bytes_reserved: Option<u64>,
    /// The most bytes that were taken on the card, as its driver sees it; null on a CPU.
    #[serde(default)]
    pub peak_bytes_process: Option<u64>,
    /// The same at each point of a step.
    pub peaks: Peaks,
    /// The memory within one step; null if it was not asked for.
    #[serde(default)]
    pub timeline: Option<Timeline>,
    /// The report of the compression; null for plain tensors.
    pub memory: Option<Value>,
    /// The same for people.
    pub memory_summary: Option<String>,
    /// Each device, where several share the training. The figures above are then the largest of any device, and the
    /// compression is that of the first.
    #[serde(default)]
    pub devices: Vec<DeviceReport>,
}

/// One of several devices.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceReport {
    /// What it is.
    pub card: Card,
    /// The most bytes of each kind within a step; null on a CPU.
    pub peak: Option<Usage>,
    /// The report of its compression; null for plain tensors.
    pub memory: Option<Value>,
    /// The same for people.
    pub summary: Option<String>,
}

/// The device of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// Burn's name of the device.
    pub device: String,
    /// The model of the card or of the processor.
    pub name: Option<String>,
    /// The version of the card's driver, where Linux tells it.
    pub driver: Option<String>,
    /// The card's memory.
    pub total_bytes: Option<u64>,
}

/// One training step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// The number of the step, from 1.
    pub step: usize,
    /// The mean over the batch's tokens of the negative log likelihood in nats, each in the weights' type, summed in
    /// double precision on the host.
    pub loss: f64,
    /// The bits of the loss tensor that the backward pass started from, in hexadecimal; of each device, separated by spaces,
    /// where several share the training.
    pub loss_bits: String,
    /// The learning rate.
    pub lr: f64,
    /// Wall time in milliseconds, until the device had finished.
    pub step_ms: f64,
}

/// One validation loss.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Validation {
    /// Completed training steps.
    pub step: usize,
    /// The mean negative log likelihood of a token, in nats.
    pub loss: f64,
}

impl Report {
    /// Writes the report.
    ///
    /// # Errors
    /// A path that cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let json = serde_json::to_string_pretty(self).map_err(Error::json(path))?;
        std::fs::write(path, json + "\n").map_err(Error::io("write", path))
    }

    /// Reads a report.
    ///
    /// # Errors
    /// A path that cannot be read, or a file that is no report.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let json = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
        serde_json::from_str(&json).map_err(Error::json(path))
    }

    /// The median wall time of a step in milliseconds, the first tenth of the steps left out as warm-up.
    pub fn median_step_ms(&self) -> Option<f64> {
        let mut times: Vec<f64> = self
            .steps
            .iter()
            .skip(self.steps.len() / 10)
            .map(|step| step.step_ms)
            .collect();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    }
}
