//! How much memory a step takes at each length.

use crate::{cli::TrainArgs, train::Plan};
use burn::module::AutodiffModule;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs;
use trainer::{
    Error,
    backend::Program,
    checkpoint::Bf16Settings,
    cli::RunArgs,
    digest,
    memory::human,
    optim::{Optim, TrainBackend},
    place::Place,
    report::{Card, Step},
    train::{Stepper, Task},
};

/// The lengths to try, one after the other in one process, so that the model is made once.
pub struct Context {
    plans: Vec<Plan>,
    digests: bool,
}

/// What was found out so far.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Curve {
    /// All settings, from the command line or by default.
    pub args: Value,
    /// The number of parameters.
    pub parameters: usize,
    /// Burn's name of the backend.
    pub backend: String,
    /// Where it ran.
    pub card: Card,
    /// The lengths that are done.
    pub points: Vec<Point>,
    /// Digest of all weights at the end, if it was asked for.
    pub weights_digest: Option<String>,
    /// Digest of the optimizer's state at the end, if it was asked for; of BF16, not of f32 as in a training's report.
    pub state_digest: Option<String>,
    /// The report of the compression over all lengths; null for plain tensors, and before the last length is done.
    #[serde(default)]
    pub memory: Option<Value>,
}

/// The steps at one length.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Tokens of a sequence.
    pub sequence: usize,
    /// The most bytes that tensors held; null on a CPU.
    pub peak_bytes_in_use: Option<u64>,
    /// The most bytes that the allocator held; null on a CPU.
    pub peak_bytes_reserved: Option<u64>,
    /// The most bytes that were taken on the card, as its driver sees it; null on a CPU.
    pub peak_bytes_process: Option<u64>,
    /// The steps.
    pub steps: Vec<Step>,
    /// The loss of a batch of the validation text after them. A device that could not do the last step fails here, or gives
    /// NaN (null in JSON), as no loss before depends on the weights that it left.
    #[serde(default)]
    pub validation_loss: f64,
}

impl Context {
    /// Makes the runs ready; with `digests`, weights and state are digested at the end.
    ///
    /// # Errors
    /// Settings that do not fit together, or files that cannot be used.
    pub fn new(mut args: TrainArgs, sequences: Vec<usize>, digests: bool) -> Result<Self, Error> {
        args.run.eval_batches = 1;
        let plan = Plan::new(args)?;
        let plans = sequences
            .into_iter()
            .map(|sequence| plan.clone().with_sequence(sequence))
            .collect::<Result<_, _>>()?;
        Ok(Self { plans, digests })
    }
}

impl Program for Context {
    type Output = Curve;

    fn args(&self) -> &RunArgs {
        &self.plans[0].setup().run
    }

    fn run<B: TrainBackend>(&self, mut places: Vec<Place<B::Device>>) -> Result<Curve, Error> {
        let Place {
            device,
            probe,
            card,
            ..
        } = places.remove(0);
        let first = self.plans[0].setup();
        let args = &first.run;
        let mut curve = Curve {
            args: first.args.clone(),
            parameters: first.parameters,
            backend: B::name(&device),
            card,
            points: Vec::new(),
            weights_digest: None,
            state_digest: None,
            memory: None,
        };
        B::seed(&device, args.seed);
        let mut model = self.plans[0].init::<B>(&device)?;
        let mut optim = Optim::<B, _>::new(args);
        for plan in &self.plans {
            let mut stepper = Stepper::new(plan, &device, &probe);
            let mut steps = Vec::new();
            for index in 0..args.steps {
                let step;
                (model, step) = stepper.step(model, &mut optim, index)?;
                steps.push(step);
            }
            let validation_loss = plan.setup().validate(&model.valid(), &device)?;
            let point = Point {
                sequence: plan.args().sequence,
                peak_bytes_in_use: stepper.peaks.in_use(),
                peak_bytes_reserved: stepper.peaks.reserved(),
                peak_bytes_process: stepper.peaks.process(),
                steps,
                validation_loss,
            };
            if !args.quiet {
                eprintln!("{}", words(&point));
            }
            curve.points.push(point);
            save(&curve, args)?;
            if !validation_loss.is_finite() {
                return Err(Error::LossLost {
                    sequence: plan.args().sequence,
                    loss: validation_loss,
                });
            }
            // The next length starts with what lives, not with the pages of this one.
            B::memory_cleanup(&device);
        }
        curve.memory = (probe.compression)().map(|(_, record)| record);
        save(&curve, args)?;
        if self.digests {
            let order = digest::parameter_order(&model);
            curve.weights_digest = Some(digest::weights(&model));
            curve.state_digest = Some(optim.digest::<Bf16Settings>(&order)?);
            save(&curve, args)?;
        }
        Ok(curve)
    }
}

fn words(point: &Point) -> String {
    let bytes = |bytes: Option<u64>| bytes.map_or("unknown".into(), human);
    let ms = point.steps.last().map_or(f64::NAN, |step| step.step_ms);
    format!(
        "{} tokens: {} in use, {} reserved, {ms:.1} ms",
        point.sequence,
        bytes(point.peak_bytes_in_use),
        bytes(point.peak_bytes_reserved),
    )
}

fn save(curve: &Curve, args: &RunArgs) -> Result<(), Error> {
    let Some(path) = &args.report else {
        return Ok(());
    };
    let json = serde_json::to_string_pretty(curve).map_err(Error::json(path))?;
    fs::write(path, json + "\n").map_err(Error::io("write", path))
}
