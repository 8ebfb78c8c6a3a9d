//! The training, with burn-train's `SupervisedTraining`.

use crate::cli::{LoaderKind, Settings};
use crate::data::{Digit, DigitBatcher, Digits};
use crate::loader::OrderedLoader;
use crate::log::{AfterLog, EpochRecord, Epochs, Log};
use crate::model::Classifier;
use crate::renderer::Silent;
use crate::{Error, digest};
use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataset::InMemDataset;
use burn::grad_clipping::GradientClippingConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::optim::SgdConfig;
use burn::optim::momentum::MomentumConfig;
use burn::record::DefaultRecorder;
use burn::tensor::backend::AutodiffBackend;
use burn::train::checkpoint::{
    ComposedCheckpointingStrategy, KeepLastNCheckpoints, MetricCheckpointingStrategy,
};
use burn::train::metric::store::{Aggregate, Direction, Split};
use burn::train::metric::{AccuracyMetric, LossMetric, Metric, Numeric};
use burn::train::{Learner, MetricEarlyStoppingStrategy, StoppingCondition, SupervisedTraining};
use std::fs;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

/// What a training gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The epochs of this run, one after the other; after a resume, those since.
    pub epochs: Vec<EpochRecord>,
    /// A digest over every bit of the final weights and running means.
    pub weights: String,
}

/// Trains as the settings say. The extra metrics are plotted beside loss and accuracy.
///
/// Calls `seed` of the backend, so two trainings that run at the same time in one process disturb each other's dropout.
///
/// # Errors
/// Settings out of range, or a folder that does not fit: one in use by another run, or without the checkpoint to resume
/// from.
pub fn train<B: AutodiffBackend, M: Metric<Input = ()> + Numeric + 'static>(
    settings: &Settings,
    device: &B::Device,
    extra: Vec<M>,
) -> Result<Outcome, Error> {
    settings.validate()?;
    let Digits {
        mut training,
        validation,
    } = Digits::load()?;
    training.truncate(settings.images.unwrap_or(usize::MAX));
    let first = settings.resume.unwrap_or(0) + 1;
    prepare(&settings.dir, settings.resume)?;

    let steps = training.len().div_ceil(settings.batch) * settings.epochs;
    let scheduler = CosineAnnealingLrSchedulerConfig::new(settings.lr, steps)
        .init()
        .map_err(|_| Error::OutOfRange {
            flag: "--lr",
            value: settings.lr.to_string(),
            range: "greater than 0 and at most 1",
        })?;
    let clip = settings.clip.map(GradientClippingConfig::Norm);
    let optimizer = SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new()))
        .with_gradient_clipping(clip)
        .init::<B, Classifier<B>>();
    B::seed(device, settings.seed);
    let mut model = Classifier::<B>::new(device);
    if settings.freeze {
        model = model.freeze_first();
    }

    let training_loader = match settings.loader {
        LoaderKind::Ordered => Arc::new(OrderedLoader::<B>::new(
            training,
            settings.batch,
            settings.workers,
            settings.seed,
            first,
            device.clone(),
        )),
        LoaderKind::Burn => DataLoaderBuilder::<B, Digit, _>::new(DigitBatcher)
            .batch_size(settings.batch)
            .shuffle(settings.seed)
            .num_workers(settings.workers)
            .set_device(device.clone())
            .build(InMemDataset::new(training)),
    };
    // The order of these batches changes nothing: they are only counted, and sums of so few BF16 losses are exact in f64.
    let validation_loader = DataLoaderBuilder::<B::InnerBackend, Digit, _>::new(DigitBatcher)
        .batch_size(settings.batch)
        .num_workers(settings.workers)
        .set_device(device.clone())
        .build(InMemDataset::new(validation));

    let loss = LossMetric::<B>::new();
    let epochs = Epochs::default();
    let stopping = MetricEarlyStoppingStrategy::new(
        &loss,
        Aggregate::Mean,
        Direction::Lowest,
        Split::Valid,
        StoppingCondition::NoImprovementSince {
            n_epochs: settings.patience,
        },
    );
    let keeping = ComposedCheckpointingStrategy::builder()
        .add(KeepLastNCheckpoints::new(2))
        .add(MetricCheckpointingStrategy::new(
            &loss,
            Aggregate::Mean,
            Direction::Lowest,
            Split::Valid,
        ))
        .build();

    let terminal = std::io::stdout().is_terminal() && !settings.quiet;
    let announce = !terminal && !settings.quiet;
    let log = Log::new(&settings.dir, first, announce, epochs.clone());
    let mut supervised = SupervisedTraining::new(&settings.dir, training_loader, validation_loader)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .with_metric_logger(log)
        // Full precision holds every BF16 value. `CompactRecorder` would save F16, and lose the small ones.
        .with_file_checkpointer(DefaultRecorder::new())
        .with_checkpointing_strategy(AfterLog::new(keeping, epochs.clone()))
        .early_stopping(AfterLog::new(stopping, epochs.clone()))
        .num_epochs(settings.epochs);
    for metric in extra {
        supervised = supervised.metric_train_numeric(metric);
    }
    if let Some(batches) = settings.accumulate {
        supervised = supervised.grads_accumulation(batches);
    }
    if let Some(epoch) = settings.resume {
        supervised = supervised.checkpoint(epoch);
    }
    // On a terminal burn-train shows its dashboard.
    supervised = match terminal {
        true => supervised.summary(),
        false => supervised.renderer(Silent),
    };

    let result = supervised.launch(Learner::new(model, optimizer, scheduler));
    Ok(Outcome {
        epochs: epochs.records(),
        weights: digest::weights(&result.model),
    })
}

/// Makes sure that the folder is there and holds what the run expects.
fn prepare(dir: &Path, resume: Option<usize>) -> Result<(), Error> {
    let checkpoints = dir.join("checkpoint");
    fs::create_dir_all(&checkpoints).map_err(Error::io("create", &checkpoints))?;
    let found = numbered(&checkpoints, "model-")?;
    let Some(epoch) = resume else {
        return match found.is_empty() {
            true => Ok(()),
            false => Err(Error::Occupied { dir: dir.into() }),
        };
    };
    if !found.contains(&epoch) {
        let found = match found.is_empty() {
            true => "none".into(),
            false => format!("those of epochs {found:?}"),
        };
        return Err(Error::NoCheckpoint {
            dir: dir.into(),
            epoch,
            found,
        });
    }
    // Metrics of epochs that are now trained again would be taken for those of this run.
    for split in ["train", "valid"] {
        let folder = dir.join(split);
        for later in numbered(&folder, "epoch-")? {
            if later > epoch {
                let stale = folder.join(format!("epoch-{later}"));
                fs::remove_dir_all(&stale).map_err(Error::io("remove", &stale))?;
            }
        }
    }
    Ok(())
}

/// The numbers of a folder's entries that are named with this prefix, in ascending order. No folder has none.
fn numbered(folder: &Path, prefix: &str) -> Result<Vec<usize>, Error> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("read", folder)(error)),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry.map_err(Error::io("read", folder))?.file_name();
        let stem = Path::new(&name).file_stem().and_then(|stem| stem.to_str());
        let number: Option<usize> = stem.and_then(|stem| stem.strip_prefix(prefix)?.parse().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers)
}
