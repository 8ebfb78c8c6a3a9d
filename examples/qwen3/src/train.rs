//! A training of this program.

use crate::{
    cli::{Gradients, TrainArgs},
    config::Qwen3Config,
    model::Qwen3,
    released, weights,
};
use burn::tensor::get_device_settings;
use serde_json::{Map, json};
use std::path::PathBuf;
use trainer::{
    Error,
    data::{self, Dataset},
    losses::Losses,
    optim::{Optim, TrainBackend},
    tokenizer::Tokenizer,
    train::{self, Pass, Setup, Task},
};

/// The most tokens that are learned from a text, if no tokenizer is given. The vocabulary is padded beyond them.
const LEARNED_TOKENS: usize = 8192;

/// A run made ready: settings, model shape and text. Nothing in it depends on the backend.
#[derive(Clone)]
pub struct Plan {
    args: TrainArgs,
    model: Qwen3Config,
    /// Files with the weights; none for random ones.
    weights: Vec<PathBuf>,
    setup: Setup,
}

impl Plan {
    /// Reads the model's shape and the corpus.
    ///
    /// # Errors
    /// Settings that do not fit together, or files that cannot be used.
    pub fn new(args: TrainArgs) -> Result<Self, Error> {
        args.validate()?;
        let args = args.filled();
        let (model, weights, tokenizer) = match &args.weights {
            Some(folder) => (
                Qwen3Config::from_file(&folder.join("config.json"))?,
                weights::files(folder)?,
                Some(folder.join("tokenizer.json")).filter(|file| file.exists()),
            ),
            None => {
                let preset = args.preset.unwrap_or(crate::config::Preset::Tiny);
                (preset.model(), Vec::new(), None)
            }
        };
        let run = &args.run;
        let files = match &run.corpus {
            Some(file) => vec![file.clone()],
            None => data::corpus_files(&["moby-dick.txt", "state-of-the-union.txt"]),
        };
        let data = Dataset::load(&files, args.sequence, |text, digest| match &tokenizer {
            Some(file) => Tokenizer::from_file(file),
            None => {
                let tokens = LEARNED_TOKENS.min(model.vocab_size);
                Tokenizer::cached(text, digest, tokens, &run.cache_dir)
            }
        })?;
        let (tokens, vocabulary) = (data.tokenizer.len(), model.vocab_size);
        if tokens > vocabulary {
            return Err(Error::Vocabulary { tokens, vocabulary });
        }
        Ok(Self {
            setup: setup(&args, &model, data),
            args,
            model,
            weights,
        })
    }

    /// The same run with sequences of another length.
    ///
    /// # Errors
    /// A text that is shorter than a sequence.
    pub fn with_sequence(mut self, sequence: usize) -> Result<Self, Error> {
        self.args.sequence = sequence;
        let data = self.setup.data.with_context(sequence)?;
        self.setup = setup(&self.args, &self.model, data);
        Ok(self)
    }

    /// The settings.
    pub fn args(&self) -> &TrainArgs {
        &self.args
    }
}

fn setup(args: &TrainArgs, model: &Qwen3Config, data: Dataset) -> Setup {
    let mut also = Map::new();
    also.insert("sequence".into(), json!(args.sequence));
    also.insert("weights".into(), json!(args.weights));
    Setup {
        run: args.run.clone(),
        args: json!(args),
        model: json!(model),
        parameters: model.parameters(),
        data,
        also,
    }
}

impl Task for Plan {
    type Model<B: TrainBackend> = Qwen3<B>;

    fn setup(&self) -> &Setup {
        &self.setup
    }

    fn init<B: TrainBackend>(&self, device: &B::Device) -> Result<Qwen3<B>, Error> {
        let model = self.model.init(device);
        if !self.weights.is_empty() {
            return weights::load(
                model,
                &self.weights,
                get_device_settings::<B>(device).float_dtype,
            );
        }
        if !self.args.run.quiet {
            eprintln!("no weights are given: they are random");
        }
        train::draw(&model);
        Ok(model)
    }

    fn step<B: TrainBackend>(
        &self,
        pass: &mut Pass<'_, B>,
        model: Qwen3<B>,
        optim: &mut Optim<B, Qwen3<B>>,
    ) -> Result<(Qwen3<B>, Losses<B>), Error> {
        match self.args.gradients {
            Gradients::Kept => train::step(self, pass, model, optim),
            Gradients::Released => {
                let batch = self.setup.batch(pass.index, 0);
                released::step(pass, model, optim, batch.upload::<B>(pass.device))
            }
        }
    }
}
