//! The corpus as token ids, and batches that depend on the seed and the step alone.

use crate::{Error, digest, preset::Preset, rng::SplitMix64, tokenizer::Tokenizer};
use burn::tensor::{Int, Tensor, TensorData, backend::Backend};
use std::path::{Path, PathBuf};

/// Tenths of the corpus that are trained on; the rest is for validation.
const TRAIN_TENTHS: usize = 9;

/// A tokenized corpus.
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
    /// Reads and tokenizes the files of a corpus.
    ///
    /// # Errors
    /// A file that cannot be read, or a text too short for sequences of `context` tokens.
    pub fn load(
        files: &[PathBuf],
        tokens: usize,
        context: usize,
        cache_dir: &Path,
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
        let tokenizer = Tokenizer::cached(&text, &corpus_digest, tokens, cache_dir)?;
        let mut train = tokenizer.encode(&text)?;
        let token_bytes: Vec<u8> = train.iter().flat_map(|id| id.to_le_bytes()).collect();
        let token_digest = digest::of_bytes(&token_bytes);
        let validation = train.split_off(train.len() * TRAIN_TENTHS / 10);
        Ok(Self {
            train: Tokens::new("training", train, context)?,
            validation: Tokens::new("validation", validation, context)?,
            tokenizer,
            corpus_digest,
            token_digest,
        })
    }
}

/// The files of a preset's corpus, in the data folder below the working directory or where the program was built.
pub fn corpus_files(preset: Preset) -> Vec<PathBuf> {
    let here = Path::new("examples/nanogpt/data");
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let folder = if here.is_dir() { here } else { &built };
    preset
        .corpus()
        .iter()
        .map(|name| folder.join(name))
        .collect()
}

/// One part of the corpus, cut into sequences of one length.
pub struct Tokens {
    ids: Vec<u32>,
    context: usize,
}

impl Tokens {
    fn new(part: &'static str, ids: Vec<u32>, context: usize) -> Result<Self, Error> {
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
