//! The training loop.

use crate::{
    Error,
    backend::Program,
    checkpoint,
    cli::RunArgs,
    data::{Batch, Dataset},
    digest,
    losses::{Losses, mean},
    memory::{self, Peaks, Probe, Timeline, Usage, Watch},
    optim::{MathKind, Optim, TrainBackend},
    place::Place,
    progress::Progress,
    report::{Card, Report, Step, Validation},
};
use burn::{
    module::{AutodiffModule, Module, ModuleVisitor, Param},
    optim::{GradientsAccumulator, GradientsParams},
    record::FullPrecisionSettings,
    tensor::{Int, Tensor, backend::Backend},
};
use serde_json::{Map, Value, json};
use std::{ops::Range, time::Instant};

/// A model of text.
pub trait LanguageModel<B: Backend>: Module<B> {
    /// The negative log likelihood of each target, in nats: the mean of it is the loss.
    ///
    /// # Shapes
    /// - `tokens` and `targets`: `[batch, sequence]`
    /// - result: `[batch * sequence]`
    fn surprise(&self, tokens: Tensor<B, 2, Int>, targets: Tensor<B, 2, Int>) -> Tensor<B, 1>;
}

/// A run made ready. Nothing in it depends on the backend.
#[derive(Clone)]
pub struct Setup {
    /// The settings that every training has, with the preset's defaults filled in.
    pub run: RunArgs,
    /// All settings, for the report.
    pub args: Value,
    /// The model's shape.
    pub model: Value,
    /// The number of parameters.
    pub parameters: usize,
    /// The text.
    pub data: Dataset,
    /// What else makes the run what it is, beside what every training has.
    pub also: Map<String, Value>,
}

impl Setup {
    /// What makes the run what it is: a checkpoint is resumed only by a run with the same. The backend is not part of
    /// it, for it must not matter.
    pub fn identity(&self) -> Map<String, Value> {
        let run = &self.run;
        let mut identity = self.also.clone();
        for (name, value) in [
            ("preset", self.args["preset"].clone()),
            ("model", self.model.clone()),
            ("steps", json!(run.steps)),
            ("seed", json!(run.seed)),
            ("batch", json!(run.batch())),
            ("optim", json!(run.optim)),
            ("lr", json!(run.lr())),
            ("schedule", json!(run.schedule)),
            ("corpus", json!(self.data.corpus_digest)),
            ("tokens", json!(self.data.token_digest)),
        ] {
            identity.insert(name.into(), value);
        }
        // Checkpoints from before there was a choice say nothing of it.
        if run.accumulate > 1 {
            identity.insert("accumulate".into(), json!(run.accumulate));
        }
        if run.math != MathKind::Bf16 {
            identity.insert("math".into(), json!(run.math));
        }
        identity
    }

    /// The `part`-th batch of a training step, both counted from 0.
    pub fn batch(&self, step: usize, part: usize) -> Batch {
        let place = step * self.run.accumulate + part;
        let train = &self.data.train;
        train.random_batch(self.run.seed, place, self.run.batch())
    }

    /// The mean loss over the validation batches, weighted equally.
    ///
    /// # Errors
    /// A device that fails.
    pub fn validate<B: Backend>(
        &self,
        model: &impl LanguageModel<B>,
        device: &B::Device,
    ) -> Result<f64, Error> {
        let args = &self.run;
        let mut sum = 0.0;
        for index in 0..args.eval_batches {
            let validation = &self.data.validation;
            let batch = validation.fixed_batch(index, args.eval_batches, args.batch());
            let (tokens, targets) = batch.upload::<B>(device);
            let surprise = model.surprise(tokens, targets).try_into_data();
            sum += mean(&[surprise.map_err(Error::device("validating"))?]);
        }
        Ok(sum / args.eval_batches as f64)
    }

    /// A report of this run on a device, without anything yet that comes out of its steps but the memory's peaks.
    pub fn report<B: Backend>(&self, device: &B::Device, card: Card, peaks: Peaks) -> Report {
        Report {
            version: env!("CARGO_PKG_VERSION").into(),
            args: self.args.clone(),
            model: self.model.clone(),
            parameters: self.parameters,
            dtype: format!("{:?}", Tensor::<B, 1>::zeros([1], device).dtype()),
            backend: B::name(device),
            card,
            corpus_digest: self.data.corpus_digest.clone(),
            token_digest: self.data.token_digest.clone(),
            peak_bytes_in_use: peaks.in_use(),
            peak_bytes_reserved: peaks.reserved(),
            peak_bytes_process: peaks.process(),
            peaks,
            ..Report::default()
        }
    }
}

/// What is trained, and what a step of it is.
pub trait Task: Sized {
    /// The model.
    type Model<B: TrainBackend>: LanguageModel<B>
        + AutodiffModule<B, InnerModule: LanguageModel<B::InnerBackend>>;

    /// The run's settings and text.
    fn setup(&self) -> &Setup;

    /// The model before the first step. The device's generator is seeded.
    ///
    /// # Errors
    /// Weights that cannot be read.
    fn init<B: TrainBackend>(&self, device: &B::Device) -> Result<Self::Model<B>, Error>;

    /// One step; as [`step`] does it, unless the task says otherwise.
    ///
    /// # Errors
    /// A device that fails.
    fn step<B: TrainBackend>(
        &self,
        pass: &mut Pass<'_, B>,
        model: Self::Model<B>,
        optim: &mut Optim<B, Self::Model<B>>,
    ) -> Result<(Self::Model<B>, Losses<B>), Error> {
        step(self, pass, model, optim)
    }

    /// Does something after a step; `done` steps are. What it returns is told to the person at the terminal.
    ///
    /// # Errors
    /// A device that fails, or a file that cannot be written.
    fn after_step<B: TrainBackend>(
        &self,
        _done: usize,
        _model: &Self::Model<B>,
        _optim: &Optim<B, Self::Model<B>>,
        _device: &B::Device,
    ) -> Result<Option<String>, Error> {
        Ok(None)
    }

    /// Text that the model writes at the end.
    ///
    /// # Errors
    /// A device that fails.
    fn sample<B: TrainBackend>(
        &self,
        _model: &Self::Model<B>,
        _device: &B::Device,
    ) -> Result<String, Error> {
        Ok(String::new())
    }

    /// Trains on a device and reports; with `until`, stops after that many steps as if interrupted.
    ///
    /// # Errors
    /// A checkpoint that cannot be written or resumed, or a device that fails.
    fn train<B: TrainBackend>(
        &self,
        device: &B::Device,
        probe: &Probe,
        card: Card,
        until: Option<usize>,
    ) -> Result<Report, Error> {
        train::<B, Self>(self, device, probe, card, until)
    }
}

impl<T: Task> Program for T {
    type Output = Report;

    fn args(&self) -> &RunArgs {
        &self.setup().run
    }

    fn run<B: TrainBackend>(&self, mut places: Vec<Place<B::Device>>) -> Result<Report, Error> {
        let place = places.remove(0);
        self.train::<B>(&place.device, &place.probe, place.card, None)
    }
}

/// One step: all gradients, then the optimizer.
///
/// # Errors
/// A device that fails.
pub fn step<B: TrainBackend, T: Task>(
    task: &T,
    pass: &mut Pass<'_, B>,
    model: T::Model<B>,
    optim: &mut Optim<B, T::Model<B>>,
) -> Result<(T::Model<B>, Losses<B>), Error> {
    let run = &task.setup().run;
    let mut gradients = GradientsAccumulator::new();
    let mut losses = Losses::new();
    for part in 0..run.accumulate {
        let batch = task.setup().batch(pass.index, part);
        let (tokens, targets) = batch.upload::<B>(pass.device);
        let loss = losses.of(model.surprise(tokens, targets));
        pass.forward_ends()?;

        let loss = match run.accumulate {
            1 => loss,
            parts => loss.div_scalar(parts as f64),
        };
        let new = GradientsParams::from_grads(loss.backward(), &model);
        gradients.accumulate(&model, new);
    }
    pass.backward_ends()?;

    let model = optim.step(pass.rate, model, gradients.grads());
    pass.step_ends()?;
    Ok((model, losses))
}

/// A step that is being done: where the loop looks at the memory.
pub struct Pass<'a, B: TrainBackend> {
    /// The step, counted from 0.
    pub index: usize,
    /// The learning rate.
    pub rate: f64,
    /// Where it is done.
    pub device: &'a B::Device,
    probe: &'a Probe,
    peaks: &'a mut Peaks,
    watch: Option<&'a Watch>,
    /// Milliseconds from the step's start to the end of each part.
    ends: [f64; 3],
}

impl<B: TrainBackend> Pass<'_, B> {
    /// The forward pass is done.
    ///
    /// # Errors
    /// A device that fails.
    pub fn forward_ends(&mut self) -> Result<(), Error> {
        self.part_ends(0)
    }

    /// The backward pass is done.
    ///
    /// # Errors
    /// A device that fails.
    pub fn backward_ends(&mut self) -> Result<(), Error> {
        self.part_ends(1)
    }

    /// The optimizer's step is done.
    ///
    /// # Errors
    /// A device that fails.
    pub fn step_ends(&mut self) -> Result<(), Error> {
        self.part_ends(2)
    }

    fn part_ends(&mut self, part: usize) -> Result<(), Error> {
        if let Some(watch) = self.watch {
            let usage = usage::<B>(self.probe, self.device)?;
            let Peaks {
                after_forward,
                after_backward,
                after_step,
                ..
            } = self.peaks;
            memory::raise([after_forward, after_backward, after_step][part], usage);
            self.ends[part] = watch.ms();
        }
        Ok(())
    }
}

/// See [`Task::train`].
fn train<B: TrainBackend, T: Task>(
    task: &T,
    device: &B::Device,
    probe: &Probe,
    card: Card,
    until: Option<usize>,
) -> Result<Report, Error> {
    let setup = task.setup();
    let args = &setup.run;
    let identity = setup.identity();
    B::seed(device, args.seed);
    let mut model = task.init(device)?;
    let mut optim = Optim::<B, T::Model<B>>::new(args);
    let mut start = 0;
    if let (true, Some(dir)) = (args.resume, &args.checkpoint) {
        (start, model, optim) = checkpoint::load(dir, &identity, model, optim, device)?;
    }

    let end = until.unwrap_or(args.steps).min(args.steps);
    let mut stepper = Stepper::new(task, device, probe);
    stepper.drawn = step_to_draw(args, probe, start..end)?;
    let progress = Progress::new(args.steps, start, args.quiet);
    let (mut steps, mut validation) = (Vec::new(), Vec::new());
    for index in start..end {
        let step;
        (model, step) = stepper.step(model, &mut optim, index)?;
        progress.step(step.step, || message(setup, probe, &step));
        let done = step.step;
        steps.push(step);

        let last = done == args.steps;
        if last || is_due(done, args.eval_every) {
            let loss = setup.validate(&model.valid(), device)?;
            progress.note(&format!("step {done}: validation loss {loss:.4}"));
            validation.push(Validation { step: done, loss });
        }
        if let Some(dir) = args
            .checkpoint
            .as_ref()
            .filter(|_| last || is_due(done, args.save_every))
        {
            checkpoint::save(dir, done, &identity, &model, &optim)?;
        }
        if let Some(note) = task.after_step(done, &model, &optim, device)? {
            progress.note(&format!("step {done}: {note}"));
        }
    }
    progress.finish();

    // Before the sample is drawn: only the training counts.
    let (memory_summary, memory) = (probe.compression)().unzip();
    let order = digest::parameter_order(&model);
    let Stepper {
        peaks, timeline, ..
    } = stepper;
    Ok(Report {
        resumed_from: start,
        steps,
        validation,
        weights_digest: digest::weights(&model),
        state_digest: optim.digest::<FullPrecisionSettings>(&order)?,
        sample: task.sample(&model, device)?,
        timeline,
        memory,
        memory_summary,
        ..setup.report::<B>(device, card, peaks)
    })
}

/// Does steps, with an eye on time and memory.
pub struct Stepper<'a, B: TrainBackend, T> {
    task: &'a T,
    device: &'a B::Device,
    probe: &'a Probe,
    /// The largest figures of the steps so far.
    pub peaks: Peaks,
    /// The step whose timeline is kept, counted from 0.
    drawn: Option<usize>,
    timeline: Option<Timeline>,
}

impl<'a, B: TrainBackend, T: Task> Stepper<'a, B, T> {
    /// No step is done yet.
    pub fn new(task: &'a T, device: &'a B::Device, probe: &'a Probe) -> Self {
        Self {
            task,
            device,
            probe,
            peaks: Peaks::default(),
            drawn: None,
            timeline: None,
        }
    }

    /// One step of training. `index` counts from 0.
    ///
    /// # Errors
    /// A device that fails.
    pub fn step(
        &mut self,
        model: T::Model<B>,
        optim: &mut Optim<B, T::Model<B>>,
        index: usize,
    ) -> Result<(T::Model<B>, Step), Error> {
        let args = &self.task.setup().run;
        let lr = args.schedule.rate(args.lr(), index, args.steps);
        let drawn = self.drawn == Some(index);
        let watch = (drawn || is_watched(index, args.memory_every))
            .then(|| Watch::start(self.probe, drawn));
        let clock = Instant::now();

        let mut pass = Pass {
            index,
            rate: lr,
            device: self.device,
            probe: self.probe,
            peaks: &mut self.peaks,
            watch: watch.as_ref(),
            ends: [0.0; 3],
        };
        let (model, losses) = self.task.step(&mut pass, model, optim)?;
        let ends = pass.ends;

        let loss = losses.read()?;
        B::sync(self.device).map_err(Error::device("finishing a step"))?;
        let step_ms = clock.elapsed().as_secs_f64() * 1e3;
        if let Some(watch) = watch {
            let (peak, moments) = watch.end();
            memory::raise(&mut self.peaks.within_step, peak);
            if drawn {
                self.timeline = Some(Timeline {
                    step: index + 1,
                    forward_end_ms: ends[0],
                    backward_end_ms: ends[1],
                    step_end_ms: ends[2],
                    moments,
                });
            }
        }
        Ok((
            model,
            Step {
                step: index + 1,
                loss: loss.mean,
                loss_bits: loss.bits,
                lr,
                step_ms,
            },
        ))
    }
}

/// Draws every weight of a model that is not drawn yet, in the order of its fields, from the device's generator.
///
/// Burn draws a parameter when it is first used, and then the weights of a seed would depend on the order of the
/// operations.
pub fn draw<B: Backend>(model: &impl Module<B>) {
    model.visit(&mut Draw);
}

struct Draw;

impl<B: Backend> ModuleVisitor<B> for Draw {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let _ = param.val();
    }
}

/// The step whose timeline is kept, counted from 0: the last whose memory is read anyway, or else the last of all.
fn step_to_draw(
    args: &RunArgs,
    probe: &Probe,
    steps: Range<usize>,
) -> Result<Option<usize>, Error> {
    if args.timeline.is_none() {
        return Ok(None);
    }
    if (probe.usage)().is_none() && (probe.forms)().is_none() {
        return Err(Error::NoAllocator);
    }
    let watched = steps
        .clone()
        .rev()
        .find(|&index| is_watched(index, args.memory_every));
    match watched.or(steps.last()) {
        None => Err(Error::NoStepLeft { steps: args.steps }),
        drawn => Ok(drawn),
    }
}

/// What the allocator says once the device has done everything asked of it so far.
fn usage<B: Backend>(probe: &Probe, device: &B::Device) -> Result<Option<Usage>, Error> {
    B::sync(device).map_err(Error::device("measuring memory"))?;
    Ok((probe.usage)())
}

fn message(setup: &Setup, probe: &Probe, step: &Step) -> String {
    let sequences = setup.run.batch() * setup.run.accumulate;
    let tokens = (sequences * setup.data.train.context()) as f64;
    let mut message = format!(
        "loss {:.4}  {:.0} tokens/s",
        step.loss,
        tokens / step.step_ms * 1e3
    );
    if let Some(usage) = (probe.usage)() {
        message += &format!(
            "  {} in use, {} reserved",
            memory::human(usage.in_use),
            memory::human(usage.reserved)
        );
    } else if let Some(words) = (probe.words)() {
        message += &format!("  {words}");
    }
    message
}

/// Whether something that happens every so many steps happens after this one; never for 0.
fn is_due(done: usize, every: usize) -> bool {
    every > 0 && done.is_multiple_of(every)
}

/// Whether memory is read in a step, counted from 0. The first ones always are, as optimizer state and the allocator's pools
/// come into being in them.
pub fn is_watched(index: usize, every: usize) -> bool {
    every > 0 && (index < 3 || is_due(index + 1, every))
}
