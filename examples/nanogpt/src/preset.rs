//! Three sizes of the same model.

use crate::{data, model::GptConfig, optim::OptimKind};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A model shape with the settings that fit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// 2 layers, width 64, 64 tokens: learns within half a minute on two CPU cores.
    Tiny,
    /// 6 layers, width 384, 256 tokens: minutes on a small card.
    Small,
    /// The GPT-2 shape with an untied head: 163.1 M parameters, 1,024 tokens.
    #[value(name = "gpt2-162m")]
    #[serde(rename = "gpt2-162m")]
    Gpt2,
}

impl Preset {
    /// The model's shape.
    pub fn model(self) -> GptConfig {
        match self {
            Self::Tiny => GptConfig::new(512, 64, 64, 2, 4),
            Self::Small => GptConfig::new(8192, 256, 384, 6, 6),
            // GPT-2's 50,257 tokens padded to a multiple of 128.
            Self::Gpt2 => GptConfig::new(50_304, 1024, 768, 12, 12),
        }
    }

    /// The tokens that the tokenizer learns; the model's vocabulary may be padded beyond them, as a corpus of a few
    /// megabytes does not hold 50,304 useful tokens.
    pub fn tokens(self) -> usize {
        match self {
            Self::Tiny => 512,
            Self::Small | Self::Gpt2 => 8192,
        }
    }

    /// The files of the corpus.
    pub fn corpus_files(self) -> Vec<PathBuf> {
        data::corpus_files(match self {
            Self::Tiny => &["moby-dick.txt"],
            Self::Small | Self::Gpt2 => &["moby-dick.txt", "state-of-the-union.txt"],
        })
    }

    /// Sequences in a batch, unless `--batch` says otherwise.
    pub fn batch(self) -> usize {
        match self {
            Self::Tiny | Self::Gpt2 => 8,
            Self::Small => 16,
        }
    }

    /// The peak learning rate, unless `--lr` says otherwise.
    pub fn rate(self, optim: OptimKind) -> f64 {
        match (optim, self) {
            // BF16 weights swallow small updates, so SGD wants a large rate.
            (OptimKind::Sgd | OptimKind::LctSgd, Self::Tiny) => 0.5,
            (OptimKind::Sgd | OptimKind::LctSgd, _) => 0.03,
            (OptimKind::AdamW | OptimKind::LctAdamW, Self::Tiny) => 5e-3,
            (OptimKind::AdamW | OptimKind::LctAdamW, Self::Small) => 1e-3,
            (OptimKind::AdamW | OptimKind::LctAdamW, Self::Gpt2) => 6e-4,
        }
    }
}
