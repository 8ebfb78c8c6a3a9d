//! The corpus as token ids, and batches that depend on the seed and the step alone.

use crate::{Error, digest, rng::SplitMix64, tokenizer::Tokenizer};
use burn::tensor::{Int, Tensor, TensorData, backend::Backend};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Tenths of the corpus that are trained on; the rest is for validation.
const TRAIN_TENTHS: usize = 9;

/// A tokenized corpus.
#[derive(Clone)]
pub struct Dataset {
    /// The first nine tenths.
    pub train: Tokens,
    /// The last tenth.
    pub validation: Tokens,
    /// What made the tokens.
    pub tokenizer: Tokenizer,
    /// The digest of the text.
    pub corpus_digest: String,
    /// The digest of the token ids.
    pub token_digest: String,
}

impl Dataset {
    /// Reads and tokenizes the files of a corpus; `tokenizer` gets the text and its digest.
    ///
    /// # Errors
    /// A file that cannot be read, a tokenizer that is not there, or a text too short for sequences of `context` tokens.
    pub fn load(
        files: &[PathBuf],
        context: usize,
        tokenizer: impl FnOnce(&str, &str) -> Result<Tokenizer, Error>,
    ) -> Result<Self, Error> {
        let mut text = String::new();
        for path in files {
            let read = std::fs::read_to_string(path);
            text += &read.map_err(|source| Error::Corpus {
                path: path.clone(),
                source,
            })?;
        }
        let corpus_digest = digest::of_bytes(text.as_bytes());
        let tokenizer = tokenizer(&text, &corpus_digest)?;
        let mut train = tokenizer.encode(&text)?;
        let token_bytes: Vec<u8> = train.iter().flat_map(|id| id.to_le_bytes()).collect();
        let token_digest = digest::of_bytes(&token_bytes);
        let validation = train.split_off(train.len() * TRAIN_TENTHS / 10);
        Ok(Self {
            train: Tokens::new("training", train.into(), context)?,
            validation: Tokens::new("validation", validation.into(), context)?,
            tokenizer,
            corpus_digest,
            token_digest,
        })
    }

    /// The same text in sequences of another length.
    ///
    /// # Errors
    /// A text too short for sequences of `context` tokens.
    pub fn with_context(self, context: usize) -> Result<Self, Error> {
        Ok(Self {
            train: Tokens::new("training", self.train.ids, context)?,
            validation: Tokens::new("validation", self.validation.ids, context)?,
            ..self
        })
    }
}

/// Texts of the corpus, in the data folder below the working directory or where the program was built.
pub fn corpus_files(names: &[&str]) -> Vec<PathBuf> {
    let here = Path::new("examples/nanogpt/data");
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nanogpt/data");
    let folder = if here.is_dir() { here } else { &built };
    names.iter().map(|name| folder.join(name)).collect()
}

/// One part of the corpus, cut into sequences of one length.
#[derive(Clone)]
pub struct Tokens {
    ids: Arc<[u32]>,
    context: usize,
}

impl Tokens {
    fn new(part: &'static str, ids: Arc<[u32]>, context: usize) -> Result<Self, Error> {
        let needed = context + 1;
        if ids.len() < needed {
            return Err(Error::CorpusTooSmall {
                part,
                tokens: ids.len(),
                needed,
            });
        }
        Ok(Self { ids, context })
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// The length of a sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Never: a part holds at least one sequence.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The first `count` token ids.
    pub fn first(&self, count: usize) -> &[u32] {
        &self.ids[..count.min(self.ids.len())]
    }

    /// The training batch of a step, at places drawn from the seed and the step: a resumed run meets the same ones.
    pub fn random_batch(&self, seed: u64, step: usize, rows: usize) -> Batch {
        let mut rng = SplitMix64::keyed(&[seed, step as u64]);
        let places = self.ids.len() - self.context;
        self.gather((0..rows).map(|_| rng.below(places)))
    }

    /// The `index`-th of `count` validation batches, spread evenly over the part and the same at every call.
    pub fn fixed_batch(&self, index: usize, count: usize, rows: usize) -> Batch {
        let places = self.ids.len() - self.context;
        let sequences = (count * rows).max(1);
        self.gather((0..rows).map(|row| (index * rows + row) * places / sequences))
    }

    fn gather(&self, starts: impl Iterator<Item = usize>) -> Batch {
        let mut batch = Batch {
            inputs: Vec::new(),
            targets: Vec::new(),
            context: self.context,
        };
        for start in starts {
            let window = &self.ids[start..=start + self.context];
            batch
                .inputs
                .extend(window[..self.context].iter().map(|&id| id as i32));
            batch
                .targets
                .extend(window[1..].iter().map(|&id| id as i32));
        }
        batch
    }
}

/// Input and target ids on the host, `[rows, context]` each.
pub struct Batch {
    inputs: Vec<i32>,
    targets: Vec<i32>,
    context: usize,
}

impl Batch {
    /// Inputs and targets on the device, `[rows, context]` each.
    pub fn upload<B: Backend>(self, device: &B::Device) -> (Tensor<B, 2, Int>, Tensor<B, 2, Int>) {
        let shape = [self.inputs.len() / self.context, self.context];
        let tensor = |ids| Tensor::from_data(TensorData::new(ids, shape), device);
        (tensor(self.inputs), tensor(self.targets))
    }
}
