//! The record of a training: what each epoch's losses were, and when they are known.
//!
//! burn-train computes metrics on a thread of its own. In Burn 0.21, early stopping and the choice of checkpoints ask for an
//! epoch's mean without waiting for it, and may find the mean of some batches, or none. [`AfterLog`] makes them wait.

use burn::train::EarlyStoppingStrategy;
use burn::train::checkpoint::{CheckpointingAction, CheckpointingStrategy};
use burn::train::logger::{FileMetricLogger, MetricLogger};
use burn::train::metric::store::{EpochSummary, EventStoreClient, MetricsUpdate, Split};
use burn::train::metric::{MetricDefinition, MetricId, NumericEntry};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longer than any epoch's last batches take. If the metrics' thread died, waiting for it would never end.
const PATIENCE: Duration = Duration::from_secs(60);

/// What one epoch gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EpochRecord {
    /// The epoch, counted from 1.
    pub epoch: usize,
    /// The loss of each training batch, in order.
    pub losses: Vec<f64>,
    /// The mean loss of the validation images.
    pub validation_loss: f64,
    /// How many of them in 100 were recognised.
    pub validation_accuracy: f64,
}

/// The epochs so far, shared by the logger and those that wait for it.
#[derive(Clone, Debug, Default)]
pub struct Epochs(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    done: Vec<EpochRecord>,
    closed: bool,
}

impl Epochs {
    /// The epochs whose validation is over.
    #[must_use]
    pub fn records(&self) -> Vec<EpochRecord> {
        self.lock().done.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.0.changed.notify_all();
    }

    /// Waits until the epoch's validation has been logged.
    fn wait_for(&self, epoch: usize) {
        let missing = |state: &mut State| {
            !state.closed && state.done.last().is_none_or(|last| last.epoch < epoch)
        };
        let waited = self
            .0
            .changed
            .wait_timeout_while(self.lock(), PATIENCE, missing);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Burn's logger into files, which also keeps the losses.
pub struct Log {
    files: FileMetricLogger,
    first: usize,
    announce: bool,
    epochs: Epochs,
    current: EpochRecord,
    /// Sums over the validation images, by the metric's name.
    validation: HashMap<&'static str, Mean>,
}

#[derive(Debug, Default)]
struct Mean {
    sum: f64,
    count: usize,
}

impl Mean {
    fn add(&mut self, entry: &NumericEntry) {
        let (value, count) = match entry {
            NumericEntry::Value(value) => (*value, 1),
            NumericEntry::Aggregated {
                aggregated_value,
                count,
            } => (*aggregated_value, *count),
        };
        self.sum += value * count as f64;
        self.count += count;
    }

    fn value(&self) -> f64 {
        self.sum / self.count as f64
    }
}

const LOSS: &str = "Loss";
const ACCURACY: &str = "Accuracy";

impl Log {
    /// A logger into a folder, for a run whose first epoch is `first`. It prints a line after each epoch if told to.
    #[must_use]
    pub fn new(folder: &Path, first: usize, announce: bool, epochs: Epochs) -> Self {
        Self {
            files: FileMetricLogger::new(folder),
            first,
            announce,
            epochs,
            current: EpochRecord::default(),
            validation: HashMap::new(),
        }
    }
}

impl MetricLogger for Log {
    fn log(&mut self, update: MetricsUpdate, epoch: usize, split: &Split) {
        for (name, entry) in [LOSS, ACCURACY].into_iter().filter_map(|name| {
            let id = MetricId::new(Arc::new(name.to_owned()));
            let mut entries = update.entries_numeric.iter();
            let entry = entries.find(|entry| entry.entry.metric_id == id)?;
            Some((name, &entry.numeric_entry))
        }) {
            match split {
                Split::Train if name == LOSS => self.current.losses.push(entry.current()),
                Split::Valid => self.validation.entry(name).or_default().add(entry),
                Split::Train | Split::Test(_) => {}
            }
        }
        // After a resume, Burn 0.21 takes the first epoch for epoch 1 and would write over that one's files.
        self.files.log(update, epoch.max(self.first), split);
    }

    fn read_numeric(
        &mut self,
        name: &str,
        epoch: usize,
        split: &Split,
    ) -> Result<Vec<NumericEntry>, String> {
        self.files.read_numeric(name, epoch, split)
    }

    fn log_metric_definition(&mut self, definition: MetricDefinition) {
        self.files.log_metric_definition(definition);
    }

    fn log_epoch_summary(&mut self, summary: EpochSummary) {
        let ended = summary.split == Split::Valid;
        let epoch = summary.epoch_number;
        self.files.log_epoch_summary(summary);
        if !ended {
            return;
        }
        let validation = std::mem::take(&mut self.validation);
        let mean = |name| validation.get(name).map_or(f64::NAN, Mean::value);
        let record = EpochRecord {
            epoch,
            validation_loss: mean(LOSS),
            validation_accuracy: mean(ACCURACY),
            ..std::mem::take(&mut self.current)
        };
        if self.announce {
            println!(
                "epoch {epoch}: last batch's loss {:.4}, validation loss {:.4}, accuracy {:.2} %",
                record.losses.last().copied().unwrap_or(f64::NAN),
                record.validation_loss,
                record.validation_accuracy,
            );
        }
        self.epochs.change(|state| state.done.push(record));
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.epochs.change(|state| state.closed = true);
    }
}

/// A strategy that is asked about an epoch when all of it has been logged, and after a resume about the epochs before, too.
#[derive(Clone, Debug)]
pub struct AfterLog<S> {
    strategy: S,
    epochs: Epochs,
    asked: usize,
}

impl<S> AfterLog<S> {
    /// Wraps a strategy.
    #[must_use]
    pub fn new(strategy: S, epochs: Epochs) -> Self {
        Self {
            strategy,
            epochs,
            asked: 0,
        }
    }
}

impl<S: EarlyStoppingStrategy> EarlyStoppingStrategy for AfterLog<S> {
    fn should_stop(&mut self, epoch: usize, store: &EventStoreClient) -> bool {
        self.epochs.wait_for(epoch);
        // The strategy keeps the best epoch, which is in no checkpoint but follows from the files of earlier runs.
        for earlier in self.asked + 1..epoch {
            self.strategy.should_stop(earlier, store);
        }
        self.asked = epoch;
        self.strategy.should_stop(epoch, store)
    }
}

impl<S: CheckpointingStrategy> CheckpointingStrategy for AfterLog<S> {
    fn checkpointing(
        &mut self,
        epoch: usize,
        store: &EventStoreClient,
    ) -> Vec<CheckpointingAction> {
        self.epochs.wait_for(epoch);
        self.strategy.checkpointing(epoch, store)
    }
}
