//! A tokenizer from a file, or a byte-level BPE learned from the corpus and cached.

use crate::Error;
use std::path::{Path, PathBuf};
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, TokenizerBuilder,
    models::bpe::{BPE, BpeTrainerBuilder},
    pre_tokenizers::byte_level::ByteLevel,
};

/// Text to token ids and back.
#[derive(Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    path: PathBuf,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// A file that cannot be read or is no tokenizer.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let inner = tokenizers::Tokenizer::from_file(path).map_err(|error| Error::Model {
            path: path.into(),
            message: format!("{error}; give the model's own tokenizer.json"),
        })?;
        Ok(Self {
            inner,
            path: path.into(),
        })
    }

    /// Reads the tokenizer that was learned from this corpus before, or learns and caches it.
    ///
    /// `corpus_digest` names the corpus in the cached file's name, so another text never meets this one's tokens.
    pub fn cached(
        text: &str,
        corpus_digest: &str,
        tokens: usize,
        cache_dir: &Path,
    ) -> Result<Self, Error> {
        let path = cache_dir.join(format!("tokenizer-{corpus_digest}-{tokens}.json"));
        let inner = if path.exists() {
            tokenizers::Tokenizer::from_file(&path).map_err(error("be read", &path))?
        } else {
            std::fs::create_dir_all(cache_dir).map_err(Error::io("create", cache_dir))?;
            let learned = learn(text, tokens).map_err(error("be learned", &path))?;
            let json = learned
                .to_string(false)
                .map_err(error("be written", &path))?;
            // Another process may be reading: the file appears whole or not at all.
            let partial = path.with_extension(format!("{}.partial", std::process::id()));
            std::fs::write(&partial, json).map_err(Error::io("write", &partial))?;
            std::fs::rename(&partial, &path).map_err(Error::io("write", &path))?;
            learned
        };
        Ok(Self { inner, path })
    }

    /// The token ids of a text. Lines are encoded apart, on all cores.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let encodings = self
            .inner
            .encode_batch_fast(lines, false)
            .map_err(error("encode the text", &self.path))?;
        Ok(encodings
            .iter()
            .flat_map(|encoding| encoding.get_ids().iter().copied())
            .collect())
    }

    /// The text of token ids; ids beyond the learned ones, which pad the model's vocabulary, give nothing.
    pub fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        self.inner
            .decode(ids, false)
            .map_err(error("decode tokens", &self.path))
    }

    /// The number of tokens that it knows.
    pub fn len(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Whether it knows none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn learn(text: &str, tokens: usize) -> tokenizers::Result<tokenizers::Tokenizer> {
    let mut trainer = BpeTrainerBuilder::new()
        .vocab_size(tokens)
        .show_progress(false)
        // All 256 bytes, so that every text can be encoded.
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(Vec::<AddedToken>::new())
        .build();
    let bytes = ByteLevel::new(false, true, true);
    let mut tokenizer = TokenizerBuilder::<
        BPE,
        NormalizerWrapper,
        PreTokenizerWrapper,
        PostProcessorWrapper,
        DecoderWrapper,
    >::new()
    .with_model(BPE::default())
    .with_pre_tokenizer(Some(bytes.into()))
    .with_decoder(Some(bytes.into()))
    .build()?;
    tokenizer.train(&mut trainer, text.split_inclusive('\n'))?;

    let mut whole = tokenizers::Tokenizer::new(ModelWrapper::BPE(tokenizer.get_model().clone()));
    whole
        .with_pre_tokenizer(Some(bytes))
        .with_decoder(Some(bytes));
    Ok(whole)
}

fn error(action: &'static str, path: &Path) -> impl FnOnce(tokenizers::Error) -> Error {
    let path = path.to_path_buf();
    move |error| Error::Tokenizer {
        action,
        message: error.to_string(),
        path,
    }
}
