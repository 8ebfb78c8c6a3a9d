//! The training loop.

use crate::{
    Error,
    capture::Capture,
    checkpoint,
    cli::TrainArgs,
    data::{self, Batch, Dataset},
    digest,
    generate::{self, Sampling},
    memory::{self, Peaks, Probe, Timeline, Usage, Watch},
    model::{Gpt, GptConfig},
    optim::{Optim, TrainBackend},
    progress::Progress,
    report::{Card, Report, Step, Validation},
};
use burn::{
    module::AutodiffModule,
    optim::GradientsParams,
    tensor::{TensorData, backend::Backend},
};
use serde_json::{Map, Value, json};
use std::{ops::Range, sync::Arc, time::Instant};

/// Tokens of the validation part that the sample starts with.
const PROMPT_TOKENS: usize = 16;

/// A run made ready: settings, model shape and text. Nothing in it depends on the backend.
pub struct Plan {
    args: TrainArgs,
    model: GptConfig,
    data: Arc<Dataset>,
}

impl Plan {
    /// Reads the corpus for the preset of the settings.
    ///
    /// # Errors
    /// Settings that do not fit together, or a corpus that cannot be used.
    pub fn new(args: TrainArgs) -> Result<Self, Error> {
        let (model, tokens) = (args.preset.model(), args.preset.tokens());
        Self::with_model(args, model, tokens)
    }

    /// The same for a model of any shape, whose tokenizer learns `tokens` tokens.
    ///
    /// # Errors
    /// As for [`Plan::new`].
    pub fn with_model(args: TrainArgs, model: GptConfig, tokens: usize) -> Result<Self, Error> {
        args.validate()?;
        let files = match &args.corpus {
            Some(file) => vec![file.clone()],
            None => data::corpus_files(args.preset),
        };
        let data = Dataset::load(&files, tokens, model.context, &args.cache_dir)?;
        let data = Arc::new(data);
        Ok(Self { args, model, data })
    }

    /// The model's shape.
    pub(crate) fn model(&self) -> &GptConfig {
        &self.model
    }

    /// The tokens.
    pub(crate) fn data(&self) -> &Arc<Dataset> {
        &self.data
    }

    /// The settings.
    pub fn args(&self) -> &TrainArgs {
        &self.args
    }

    /// What makes the run what it is: a checkpoint is resumed only by a run with the same. The backend is not part of
    /// it, for it must not matter.
    pub fn identity(&self) -> Map<String, Value> {
        let args = &self.args;
        let identity = json!({
            "preset": args.preset,
            "model": self.model,
            "steps": args.steps,
            "seed": args.seed,
            "batch": args.batch(),
            "optim": args.optim,
            "lr": args.lr(),
            "schedule": args.schedule,
            "corpus": self.data.corpus_digest,
            "tokens": self.data.token_digest,
        });
        match identity {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }

    /// The mean loss over the validation batches, weighted equally.
    pub(crate) fn validate<B: Backend>(
        &self,
        model: &Gpt<B>,
        device: &B::Device,
    ) -> Result<f64, Error> {
        let args = &self.args;
        let mut sum = 0.0;
        for index in 0..args.eval_batches {
            let batch = self
                .data
                .validation
                .fixed_batch(index, args.eval_batches, args.batch());
            let (tokens, targets) = batch.upload::<B>(device);
            let surprise = model.surprise(tokens, targets).try_into_data();
            sum += mean(&surprise.map_err(Error::device("validating"))?);
        }
        Ok(sum / args.eval_batches as f64)
    }

    /// Text that continues the start of the validation part.
    pub(crate) fn sample<B: Backend>(
        &self,
        model: &Gpt<B>,
        device: &B::Device,
    ) -> Result<String, Error> {
        let args = &self.args;
        if args.sample_tokens == 0 {
            return Ok(String::new());
        }
        let context = self.model.context;
        let sampling = Sampling {
            tokens: args.sample_tokens,
            temperature: args.temperature,
            seed: args.seed,
            rows: args.batch(),
            context,
        };
        let prompt = self.data.validation.first(PROMPT_TOKENS.min(context / 2));
        let text = generate::continue_text(model, prompt, sampling, device)?;
        self.data.tokenizer.decode(&text)
    }

    /// The settings with the preset's defaults filled in.
    pub(crate) fn settings(&self) -> Value {
        let args = &self.args;
        let filled = TrainArgs {
            batch: Some(args.batch()),
            lr: Some(args.lr()),
            ..args.clone()
        };
        json!(filled)
    }

    /// The digests of the corpus and of its tokens.
    pub(crate) fn digests(&self) -> (String, String) {
        let data = &self.data;
        (data.corpus_digest.clone(), data.token_digest.clone())
    }

    /// Trains on a device and reports; with `until`, stops after that many steps as if interrupted.
    ///
    /// # Errors
    /// A checkpoint that cannot be written or resumed, or a device that fails.
    pub fn run<B: TrainBackend>(
        &self,
        device: &B::Device,
        probe: &Probe,
        card: Card,
        until: Option<usize>,
    ) -> Result<Report, Error> {
        Run::<B> {
            plan: self,
            device,
            probe,
            peaks: Peaks::default(),
            drawn: None,
            timeline: None,
        }
        .train(card, until)
    }
}

/// A run on one device.
struct Run<'a, B: TrainBackend> {
    plan: &'a Plan,
    device: &'a B::Device,
    probe: &'a Probe,
    peaks: Peaks,
    /// The step whose timeline is kept, counted from 0.
    drawn: Option<usize>,
    timeline: Option<Timeline>,
}

impl<B: TrainBackend> Run<'_, B> {
    fn train(mut self, card: Card, until: Option<usize>) -> Result<Report, Error> {
        let args = &self.plan.args;
        let identity = self.plan.identity();
        B::seed(self.device, args.seed);
        let mut model: Gpt<B> = self.plan.model.init(self.device);
        let mut optim = Optim::<B>::new(args.optim);
        let mut start = 0;
        if let (true, Some(dir)) = (args.resume, &args.checkpoint) {
            (start, model, optim) = checkpoint::load(dir, &identity, model, optim, self.device)?;
        }

        let capture = Capture::new(args, self.plan.model.layers)?;
        let end = until.unwrap_or(args.steps).min(args.steps);
        self.drawn = self.step_to_draw(start..end)?;
        let progress = Progress::new(args.steps, start, args.quiet);
        let (mut steps, mut validation) = (Vec::new(), Vec::new());
        for index in start..end {
            let step;
            (model, step) = self.step(model, &mut optim, index)?;
            progress.step(step.step, || self.message(&step));
            let done = step.step;
            steps.push(step);

            let last = done == args.steps;
            if last || is_due(done, args.eval_every) {
                let loss = self.plan.validate(&model.valid(), self.device)?;
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
            if let Some(capture) = capture.as_ref().filter(|capture| capture.is_due(done)) {
                let path = capture.take(
                    done,
                    &identity,
                    &model,
                    &optim,
                    self.batch(index),
                    self.device,
                )?;
                progress.note(&format!("step {done}: samples in {}", path.display()));
            }
        }
        progress.finish();

        // Before the sample is drawn: only the training counts.
        let (memory_summary, memory) = (self.probe.compression)().unzip();
        let order = digest::parameter_order(&model);
        Ok(Report {
            version: env!("CARGO_PKG_VERSION").into(),
            args: self.plan.settings(),
            model: json!(self.plan.model),
            parameters: self.plan.model.parameters(),
            dtype: "BF16".into(),
            backend: B::name(self.device),
            card,
            corpus_digest: self.plan.data.corpus_digest.clone(),
            token_digest: self.plan.data.token_digest.clone(),
            resumed_from: start,
            steps,
            validation,
            weights_digest: digest::weights(&model),
            state_digest: optim.digest(&order)?,
            sample: self.plan.sample(&model.valid(), self.device)?,
            peak_bytes_in_use: self.peaks.in_use(),
            peak_bytes_reserved: self.peaks.reserved(),
            peak_bytes_process: self.peaks.process(),
            peaks: self.peaks,
            timeline: self.timeline,
            memory,
            memory_summary,
            devices: Vec::new(),
        })
    }

    /// One step of training. `index` counts from 0.
    fn step(
        &mut self,
        model: Gpt<B>,
        optim: &mut Optim<B>,
        index: usize,
    ) -> Result<(Gpt<B>, Step), Error> {
        let args = &self.plan.args;
        let lr = args.schedule.rate(args.lr(), index, args.steps);
        let drawn = self.drawn == Some(index);
        let watch = (drawn || is_watched(index, args.memory_every))
            .then(|| Watch::start(self.probe, drawn));
        let mut ends = [0.0; 3];
        let clock = Instant::now();

        let (tokens, targets) = self.batch(index).upload::<B>(self.device);
        let surprise = model.surprise(tokens, targets);
        let by_token = surprise.clone().inner();
        let loss = surprise.mean();
        let loss_value = loss.clone().inner();
        if let Some(watch) = &watch {
            let usage = self.usage()?;
            memory::raise(&mut self.peaks.after_forward, usage);
            ends[0] = watch.ms();
        }

        let grads = GradientsParams::from_grads(loss.backward(), &model);
        if let Some(watch) = &watch {
            let usage = self.usage()?;
            memory::raise(&mut self.peaks.after_backward, usage);
            ends[1] = watch.ms();
        }

        let model = optim.step(lr, model, grads);
        if let Some(watch) = &watch {
            let usage = self.usage()?;
            memory::raise(&mut self.peaks.after_step, usage);
            ends[2] = watch.ms();
        }

        let reading = Error::device::<burn::tensor::backend::ExecutionError>;
        let loss_bits = bits(
            &loss_value
                .try_into_data()
                .map_err(reading("reading the loss"))?,
        );
        let loss = mean(
            &by_token
                .try_into_data()
                .map_err(reading("reading the loss"))?,
        );
        B::sync(self.device).map_err(reading("finishing a step"))?;
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
                loss,
                loss_bits,
                lr,
                step_ms,
            },
        ))
    }

    /// The step whose timeline is kept, counted from 0: the last whose memory is read anyway, or else the last of all.
    fn step_to_draw(&self, steps: Range<usize>) -> Result<Option<usize>, Error> {
        let args = &self.plan.args;
        if args.timeline.is_none() {
            return Ok(None);
        }
        if (self.probe.usage)().is_none() && (self.probe.forms)().is_none() {
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

    /// The training batch of a step.
    fn batch(&self, index: usize) -> Batch {
        let args = &self.plan.args;
        let train = &self.plan.data.train;
        train.random_batch(args.seed, index, args.batch())
    }

    /// What the allocator says once the device has done everything asked of it so far.
    fn usage(&self) -> Result<Option<Usage>, Error> {
        B::sync(self.device).map_err(Error::device("measuring memory"))?;
        Ok((self.probe.usage)())
    }

    fn message(&self, step: &Step) -> String {
        let tokens = (self.plan.args.batch() * self.plan.model.context) as f64;
        let mut message = format!(
            "loss {:.4}  {:.0} tokens/s",
            step.loss,
            tokens / step.step_ms * 1e3
        );
        if let Some(usage) = (self.probe.usage)() {
            message += &format!(
                "  {} in use, {} reserved",
                memory::human(usage.in_use),
                memory::human(usage.reserved)
            );
        } else if let Some(words) = (self.probe.words)() {
            message += &format!("  {words}");
        }
        message
    }
}

/// Whether something that happens every so many steps happens after this one; never for 0.
fn is_due(done: usize, every: usize) -> bool {
    every > 0 && done.is_multiple_of(every)
}

/// Whether memory is read in a step, counted from 0. The first ones always are, as optimizer state and the allocator's pools
/// come into being in them.
pub(crate) fn is_watched(index: usize, every: usize) -> bool {
    every > 0 && (index < 3 || is_due(index + 1, every))
}

/// The mean of some numbers, summed in double precision in their order.
pub(crate) fn mean(data: &TensorData) -> f64 {
    data.iter::<f64>().sum::<f64>() / data.num_elements() as f64
}

/// The bits of a number, most significant byte first.
pub(crate) fn bits(data: &TensorData) -> String {
    let hex: String = data
        .as_bytes()
        .iter()
        .rev()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("0x{hex}")
}
