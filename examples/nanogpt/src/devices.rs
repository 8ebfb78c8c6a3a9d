//! Training on several devices, with burn-train's own strategies.
//!
//! Each device has a batch of its own in every step: what one device trains on with a batch of 16, two train on with a
//! batch of 8 each.

use crate::{
    Error,
    cli::{RunArgs, Strategy},
    digest,
    memory::{self, Peaks, Probe, Usage, Watch},
    model::Gpt,
    nothing::Nothing,
    optim::{Optim, TrainBackend},
    report::{DeviceReport, Report, Step, Validation},
    schedule::Schedule,
    train::Plan,
};
use burn::{
    data::dataloader::{DataLoader, DataLoaderIterator, Progress as Position},
    lr_scheduler::LrScheduler,
    optim::Optimizer,
    tensor::{Int, Tensor, backend::Backend},
    train::{
        ExecutionStrategy, InferenceStep, Learner, MultiDeviceOptim, SupervisedTraining,
        TrainOutput, TrainStep, logger::InMemoryMetricLogger,
    },
};
use std::{
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};
use trainer::{
    backend::Program,
    losses::{Loss, Losses},
    place::Place,
    progress::Progress,
    train::{LanguageModel, Setup, Task, is_watched},
};

/// A training that several devices share.
pub struct Together<'a> {
    plan: &'a Plan,
    strategy: Strategy,
}

impl<'a> Together<'a> {
    /// On as many devices as the plan's settings say.
    pub fn new(plan: &'a Plan, strategy: Strategy) -> Self {
        Self { plan, strategy }
    }
}

impl Program for Together<'_> {
    type Output = Report;

    fn args(&self) -> &RunArgs {
        &self.plan.setup().run
    }

    fn devices(&self) -> Option<usize> {
        Some(self.plan.args().devices)
    }

    /// Trains on all of the devices and reports.
    ///
    /// # Errors
    /// A strategy that is not built in, or a device that fails.
    ///
    /// # Panics
    /// If a device fails in the middle of a step: burn-train's strategies know of no errors.
    fn run<B: TrainBackend>(&self, places: Vec<Place<B::Device>>) -> Result<Report, Error> {
        let setup = Arc::new(self.plan.setup().clone());
        let args = &setup.run;
        let devices: Vec<B::Device> = places.iter().map(|place| place.device.clone()).collect();
        let main = &devices[0];
        let log = Arc::new(Log::new(&places, args));
        let training = Batches::<B> {
            setup: setup.clone(),
            log: log.clone(),
            range: 0..args.steps * devices.len(),
            device: main.clone(),
        };
        let execution = execution::<B>(self.strategy, &devices)?;
        let rate = Rate {
            schedule: args.schedule,
            peak: args.lr(),
            steps: args.steps,
            asked: 0,
            // burn-train's distributed strategy asks once for each device.
            asks: match self.strategy {
                Strategy::Multi => 1,
                Strategy::Ddp => devices.len(),
            },
        };
        B::seed(main, args.seed);
        let model: Gpt<B> = self.plan.init(main)?;
        let learner = Learning {
            model,
            rate,
            training,
            execution,
        };
        let nudging = match self.strategy {
            Strategy::Multi => Vec::new(),
            Strategy::Ddp => places.iter().map(keep_nudging).collect(),
        };
        let model = match Optim::<B, Gpt<B>>::new(args) {
            Optim::Sgd(optim) => learner.launch(optim),
            Optim::AdamW(optim) => learner.launch(optim),
            Optim::LctSgd(optim) => learner.launch(optim),
            Optim::LctAdamW(optim) => learner.launch(optim),
        };
        drop(nudging);
        let (steps, peaks) = log.finish(args.schedule, args.lr());
        let validation = Validation {
            step: args.steps,
            loss: setup.validate(&model, main)?,
        };

        let reports: Vec<DeviceReport> = places
            .into_iter()
            .zip(&peaks)
            .map(|(place, peak)| {
                let (summary, memory) = (place.probe.compression)().unzip();
                DeviceReport {
                    card: place.card,
                    peak: *peak,
                    memory,
                    summary,
                }
            })
            .collect();
        let mut within_step = None;
        for peak in peaks {
            memory::raise(&mut within_step, peak);
        }
        let peaks = Peaks {
            within_step,
            ..Peaks::default()
        };
        let summaries = reports.iter().filter_map(|report| report.summary.clone());
        let summaries: Vec<String> = summaries.collect();
        let report = setup.report::<B>(main, reports[0].card.clone(), peaks);
        Ok(Report {
            steps,
            validation: vec![validation],
            weights_digest: digest::weights(&model),
            state_digest: "burn-train keeps the optimizer to itself".into(),
            sample: self.plan.text(&model, main)?,
            memory: reports[0].memory.clone(),
            memory_summary: (!summaries.is_empty()).then(|| summaries.join("\n")),
            devices: reports,
            ..report
        })
    }
}

/// Nudges a device every millisecond until the returned sender is dropped.
///
/// Burn 0.21 queues a gradient's reduction on each device in turn, and the first may wait for the second before the second's
/// queue is full enough to begin: then nobody goes on.
fn keep_nudging<D>(place: &Place<D>) -> Sender<()> {
    let (done, ended) = mpsc::channel();
    let nudge = place.nudge.clone();
    thread::spawn(move || {
        let pause = Duration::from_millis(1);
        while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            nudge();
        }
    });
    done
}

/// Burn's strategy.
fn execution<B: TrainBackend>(
    strategy: Strategy,
    devices: &[B::Device],
) -> Result<ExecutionStrategy<B>, Error> {
    match strategy {
        Strategy::Multi => Ok(ExecutionStrategy::multi(
            devices.to_vec(),
            MultiDeviceOptim::OptimMainDevice,
        )),
        #[cfg(feature = "distributed")]
        Strategy::Ddp => {
            use burn::tensor::backend::distributed::{DistributedConfig, ReduceOperation};
            let all_reduce_op = ReduceOperation::Mean;
            Ok(ExecutionStrategy::ddp(
                devices.to_vec(),
                DistributedConfig { all_reduce_op },
            ))
        }
        #[cfg(not(feature = "distributed"))]
        Strategy::Ddp => Err(Error::NotBuilt {
            what: "distributed training",
            remedy: "build it with --features distributed, or use --strategy multi",
        }),
    }
}

/// What a training starts from.
struct Learning<B: TrainBackend> {
    model: Gpt<B>,
    rate: Rate,
    training: Batches<B>,
    execution: ExecutionStrategy<B>,
}

impl<B: TrainBackend> Learning<B> {
    fn launch<O: Optimizer<Gpt<B>, B> + 'static>(self, optim: O) -> Gpt<B::InnerBackend> {
        // Nothing is written there: metrics stay in memory, and there are no checkpoints.
        SupervisedTraining::new("", Arc::new(self.training), Arc::new(Nothing))
            .with_metric_logger(InMemoryMetricLogger::new())
            .with_application_logger(None)
            .renderer(Nothing)
            .num_epochs(1)
            .with_training_strategy(self.execution.into())
            .launch(Learner::new(self.model, optim, self.rate))
            .model
    }
}

/// The batch of one device in one step.
pub struct Share<B: Backend> {
    tokens: Tensor<B, 2, Int>,
    targets: Tensor<B, 2, Int>,
    rank: usize,
    step: usize,
    log: Arc<Log>,
}

impl<B: TrainBackend> TrainStep for Gpt<B> {
    type Input = Share<B>;
    type Output = ();

    fn step(&self, share: Share<B>) -> TrainOutput<()> {
        share.log.begin(share.rank, share.step);
        let mut losses = Losses::new();
        let loss = losses.of(self.surprise(share.tokens, share.targets));
        let grads = loss.backward();
        let loss = losses.read().expect("burn-train takes no errors");
        share.log.read(share.rank, loss);
        TrainOutput::new(self, grads, ())
    }
}

/// The validation is not burn-train's part.
impl<B: Backend> InferenceStep for Gpt<B> {
    type Input = ();
    type Output = ();

    fn step(&self, (): ()) {}
}

/// The batches of one or several devices: those of the first, then those of the second, and so on, as burn-train cuts them
/// into equal parts.
struct Batches<B: Backend> {
    setup: Arc<Setup>,
    log: Arc<Log>,
    range: Range<usize>,
    device: B::Device,
}

impl<B: Backend> Batches<B> {
    fn with(&self, range: Range<usize>, device: B::Device) -> Arc<Self> {
        Arc::new(Self {
            setup: self.setup.clone(),
            log: self.log.clone(),
            range,
            device,
        })
    }

    fn share(&self, index: usize) -> Share<B> {
        let steps = self.setup.run.steps;
        let (tokens, targets) = self.setup.batch(index, 0).upload::<B>(&self.device);
        Share {
            tokens,
            targets,
            rank: index / steps,
            step: index % steps,
            log: self.log.clone(),
        }
    }
}

impl<B: TrainBackend> DataLoader<B, Share<B>> for Batches<B> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Share<B>> + 'a> {
        Box::new(InOrder {
            batches: self,
            next: self.range.start,
        })
    }

    fn num_items(&self) -> usize {
        self.range.len()
    }

    fn to_device(&self, device: &B::Device) -> Arc<dyn DataLoader<B, Share<B>>> {
        self.with(self.range.clone(), device.clone())
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<B, Share<B>>> {
        let first = self.range.start;
        self.with(first + start..first + end, self.device.clone())
    }
}

struct InOrder<'a, B: Backend> {
    batches: &'a Batches<B>,
    next: usize,
}

impl<B: Backend> Iterator for InOrder<'_, B> {
    type Item = Share<B>;

    fn next(&mut self) -> Option<Share<B>> {
        let index = self.next;
        self.next += 1;
        (index < self.batches.range.end).then(|| self.batches.share(index))
    }
}

impl<B: Backend> DataLoaderIterator<Share<B>> for InOrder<'_, B> {
    fn progress(&self) -> Position {
        let Range { start, end } = self.batches.range;
        Position::new(self.next.min(end) - start, end - start)
    }
}

/// The learning rate, as burn-train asks for it.
#[derive(Clone)]
struct Rate {
    schedule: Schedule,
    peak: f64,
    steps: usize,
    /// How often it was asked for so far, and how often it is in each step.
    asked: usize,
    asks: usize,
}

impl LrScheduler for Rate {
    type Record<B: Backend> = usize;

    fn step(&mut self) -> f64 {
        let step = self.asked / self.asks;
        self.asked += 1;
        self.schedule.rate(self.peak, step, self.steps)
    }

    fn to_record<B: Backend>(&self) -> usize {
        self.asked
    }

    fn load_record<B: Backend>(self, asked: usize) -> Self {
        Self { asked, ..self }
    }
}

/// What the devices' threads find out.
struct Log {
    ranks: Vec<Mutex<Rank>>,
    progress: Progress,
    memory_every: usize,
}

/// What is known of one device.
struct Rank {
    probe: Probe,
    began: Vec<Instant>,
    losses: Vec<Loss>,
    watch: Option<Watch>,
    peak: Option<Usage>,
}

impl Rank {
    /// The step that runs is over.
    fn end_step(&mut self) {
        if let Some(watch) = self.watch.take() {
            memory::raise(&mut self.peak, watch.end().0);
        }
        self.began.push(Instant::now());
    }
}

impl Log {
    fn new<D>(places: &[Place<D>], args: &RunArgs) -> Self {
        let rank = |place: &Place<D>| {
            Mutex::new(Rank {
                probe: place.probe.readings(),
                began: Vec::new(),
                losses: Vec::new(),
                watch: None,
                peak: None,
            })
        };
        Self {
            ranks: places.iter().map(rank).collect(),
            progress: Progress::new(args.steps, 0, args.quiet),
            memory_every: args.memory_every,
        }
    }

    fn rank(&self, rank: usize) -> MutexGuard<'_, Rank> {
        self.ranks[rank]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A device begins a step, which ends the one before.
    fn begin(&self, rank: usize, step: usize) {
        if step == 0 {
            self.progress.note(&format!("device {rank} begins"));
        }
        let mut rank = self.rank(rank);
        rank.end_step();
        if is_watched(step, self.memory_every) {
            rank.watch = Some(Watch::start(&rank.probe, false));
        }
    }

    /// The loss of the step that a device has begun.
    fn read(&self, rank: usize, loss: Loss) {
        let mean = loss.mean;
        let done = {
            let mut rank = self.rank(rank);
            rank.losses.push(loss);
            rank.losses.len()
        };
        if rank == 0 {
            self.progress.step(done, || format!("loss {mean:.4}"));
        }
    }

    /// Each step, and what each device held at most. A step takes as long as on the slowest device.
    fn finish(&self, schedule: Schedule, peak: f64) -> (Vec<Step>, Vec<Option<Usage>>) {
        self.progress.finish();
        let mut ranks: Vec<_> = (0..self.ranks.len()).map(|rank| self.rank(rank)).collect();
        ranks.iter_mut().for_each(|rank| rank.end_step());
        let count = ranks.iter().map(|rank| rank.losses.len()).min();
        let count = count.unwrap_or(0);
        let step = |index: usize| {
            let losses = ranks.iter().map(|rank| &rank.losses[index]);
            let times = ranks.iter().map(|rank| {
                let took = rank.began[index + 1] - rank.began[index];
                took.as_secs_f64() * 1e3
            });
            let bits: Vec<&str> = losses.clone().map(|loss| loss.bits.as_str()).collect();
            Step {
                step: index + 1,
                loss: losses.map(|loss| loss.mean).sum::<f64>() / ranks.len() as f64,
                loss_bits: bits.join(" "),
                lr: schedule.rate(peak, index, count),
                step_ms: times.fold(0.0, f64::max),
            }
        };
        let steps = (0..count).map(step).collect();
        (steps, ranks.iter().map(|rank| rank.peak).collect())
    }
}
