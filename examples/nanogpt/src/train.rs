//! A training of this program.

use crate::{
    Error,
    capture::Capture,
    cli::TrainArgs,
    data::Dataset,
    generate::{self, Sampling},
    model::{Gpt, GptConfig},
    optim::{Optim, TrainBackend},
    tokenizer::Tokenizer,
};
use burn::{
    module::AutodiffModule,
    tensor::{Int, Tensor, backend::Backend},
};
use serde_json::{Map, Value, json};
use trainer::train::{LanguageModel, Setup, Task};

/// Tokens of the validation part that the sample starts with.
const PROMPT_TOKENS: usize = 16;

/// A run made ready: settings, model shape and text. Nothing in it depends on the backend.
pub struct Plan {
    args: TrainArgs,
    model: GptConfig,
    setup: Setup,
    capture: Option<Capture>,
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
        let args = args.filled();
        let files = match &args.run.corpus {
            Some(file) => vec![file.clone()],
            None => args.preset.corpus_files(),
        };
        let data = Dataset::load(&files, model.context, |text, digest| {
            Tokenizer::cached(text, digest, tokens, &args.run.cache_dir)
        })?;
        let setup = Setup {
            run: args.run.clone(),
            args: json!(args),
            model: json!(model),
            parameters: model.parameters(),
            data,
            also: Map::new(),
        };
        let capture = Capture::new(&args, model.layers)?;
        Ok(Self {
            args,
            model,
            setup,
            capture,
        })
    }

    /// The settings.
    pub fn args(&self) -> &TrainArgs {
        &self.args
    }

    /// What makes the run what it is, see [`Setup::identity`].
    pub fn identity(&self) -> Map<String, Value> {
        self.setup.identity()
    }

    /// Text that continues the start of the validation part.
    pub(crate) fn text<B: Backend>(
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
            seed: args.run.seed,
            rows: args.run.batch(),
            context,
        };
        let data = &self.setup.data;
        let prompt = data.validation.first(PROMPT_TOKENS.min(context / 2));
        let text = generate::continue_text(model, prompt, sampling, device)?;
        data.tokenizer.decode(&text)
    }
}

impl Task for Plan {
    type Model<B: TrainBackend> = Gpt<B>;

    fn setup(&self) -> &Setup {
        &self.setup
    }

    fn init<B: TrainBackend>(&self, device: &B::Device) -> Result<Gpt<B>, Error> {
        Ok(self.model.init(device))
    }

    /// Samples of the tensors, where they are asked for.
    fn after_step<B: TrainBackend>(
        &self,
        done: usize,
        model: &Gpt<B>,
        optim: &Optim<B, Gpt<B>>,
        device: &B::Device,
    ) -> Result<Option<String>, Error> {
        let due = self.capture.as_ref().filter(|it| it.is_due(done));
        let Some(capture) = due else {
            return Ok(None);
        };
        let batch = self.setup.batch(done - 1, 0);
        let path = capture.take(done, &self.identity(), model, optim, batch, device)?;
        Ok(Some(format!("samples in {}", path.display())))
    }

    fn sample<B: TrainBackend>(&self, model: &Gpt<B>, device: &B::Device) -> Result<String, Error> {
        self.text(&model.valid(), device)
    }
}

impl<B: Backend> LanguageModel<B> for Gpt<B> {
    fn surprise(&self, tokens: Tensor<B, 2, Int>, targets: Tensor<B, 2, Int>) -> Tensor<B, 1> {
        self.surprise_observed(tokens, targets, &mut ())
    }
}
