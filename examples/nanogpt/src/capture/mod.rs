//! Samples of what a training holds in memory, as safetensors files that `lct inspect` reads.
//!
//! A file holds, named `kind/place`, the weights and the optimizer's state after a step, and from one more pass over the
//! step's batch the parameters' gradients, the activations and (`grad:kind`) the activations' gradients: of the first, the
//! middle and the last block and of what is outside of blocks. The pass is the capture's own; the training does not notice.

mod activations;
mod parameters;
mod samples;

use crate::{
    Error,
    cli::TrainArgs,
    data::Batch,
    model::Gpt,
    optim::{Optim, TrainBackend},
};
use activations::Activations;
use burn::{module::Module, optim::GradientsParams, tensor::Tensor};
use parameters::Parameters;
use samples::Samples;
use serde_json::{Map, Value, json};
use std::{fs, path::PathBuf};

/// When to take samples, of what, and where to put them.
pub struct Capture {
    dir: PathBuf,
    steps: Vec<usize>,
    /// The most values of one tensor.
    values: usize,
    blocks: Blocks,
}

impl Capture {
    /// What the settings ask for, of a model of so many layers; the folder is made if it is not there. `None` if they ask for
    /// nothing.
    ///
    /// # Errors
    /// A folder that cannot be made.
    pub fn new(args: &TrainArgs, layers: usize) -> Result<Option<Self>, Error> {
        let Some(dir) = &args.capture else {
            return Ok(None);
        };
        fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        Ok(Some(Self {
            dir: dir.clone(),
            steps: args.capture_steps.clone(),
            values: args.capture_values,
            blocks: Blocks::of(layers),
        }))
    }

    /// Whether samples are taken after this step.
    pub fn is_due(&self, done: usize) -> bool {
        self.steps.contains(&done)
    }

    /// Takes samples after a step, with the batch of that step, and returns where they are. `identity` says which run they
    /// are of.
    ///
    /// # Errors
    /// A device that fails, or a file that cannot be written.
    pub fn take<B: TrainBackend>(
        &self,
        done: usize,
        identity: &Map<String, Value>,
        model: &Gpt<B>,
        optim: &Optim<B, Gpt<B>>,
        batch: Batch,
        device: &B::Device,
    ) -> Result<PathBuf, Error> {
        let mut samples = Samples::new(self.values);
        let (tokens, targets) = batch.upload::<B>(device);
        let mut activations = Activations::new(&mut samples, self.blocks);
        let loss: Tensor<B, 1> = model
            .surprise_observed(tokens, targets, &mut activations)
            .mean();
        let gradients = loss.backward();
        activations.finish(&gradients);

        let gradients = GradientsParams::from_grads(gradients, model);
        let mut parameters = Parameters::new(&mut samples, self.blocks, &gradients, optim);
        model.visit(&mut parameters);

        let mut run = identity.clone();
        run.insert("step".into(), json!(done));
        let path = self.dir.join(format!("step-{done:06}.safetensors"));
        samples.save(&path, &Value::Object(run).to_string())?;
        Ok(path)
    }
}

/// The blocks that samples are taken of.
#[derive(Clone, Copy)]
struct Blocks([usize; 3]);

impl Blocks {
    /// The first, the middle and the last of so many.
    fn of(layers: usize) -> Self {
        Self([0, layers / 2, layers.saturating_sub(1)])
    }

    /// Whether samples are taken of this block; always of what is in none.
    fn contains(self, block: Option<usize>) -> bool {
        block.is_none_or(|block| self.0.contains(&block))
    }
}
