//! The shape of the model, from Hugging Face's `config.json` or a preset.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::{fs, path::Path};
use trainer::Error;

/// The shape of a dense Qwen3. The names are those of `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Qwen3Config {
    /// Rows of the token embedding.
    pub vocab_size: usize,
    /// The width of the residual stream.
    pub hidden_size: usize,
    /// The width inside the feed-forward layer.
    pub intermediate_size: usize,
    /// The number of layers.
    pub num_hidden_layers: usize,
    /// The query heads of each layer; a multiple of the key-value heads.
    pub num_attention_heads: usize,
    /// The key-value heads of each layer.
    pub num_key_value_heads: usize,
    /// The width of a head; even.
    pub head_dim: usize,
    /// What keeps the norms from dividing by zero.
    pub rms_norm_eps: f64,
    /// The base of the rotation's frequencies.
    pub rope_theta: f64,
    /// Whether the head's weight is the token embedding.
    pub tie_word_embeddings: bool,
}

/// `config.json` as far as it says something of the shape, or asks for what this model is not.
#[derive(Deserialize)]
struct File {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    rms_norm_eps: f64,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    use_sliding_window: bool,
    hidden_act: Option<String>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Rope>,
    /// Where newer versions write the two fields above.
    rope_parameters: Option<Rope>,
}

#[derive(Deserialize)]
struct Rope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
}

impl Qwen3Config {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// A file that cannot be read, or a model that is not a dense Qwen3 with plain rotations.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(path).map_err(Error::io("read", path))?;
        let file: File = serde_json::from_str(&text).map_err(|error| Error::Model {
            path: path.into(),
            message: format!("{error}; give the config.json of a Qwen3"),
        })?;
        let refuse = |what: &str| Error::Model {
            path: path.into(),
            message: format!("it asks for {what}, which this model does not have"),
        };
        let ropes = || {
            [&file.rope_parameters, &file.rope_scaling]
                .into_iter()
                .flatten()
        };
        let plain = |rope: &Rope| rope.rope_type.as_deref().is_none_or(|it| it == "default");
        let theta = file.rope_theta.or(ropes().find_map(|rope| rope.rope_theta));
        let even = file.head_dim.is_multiple_of(2);
        let groups = file.num_key_value_heads > 0
            && file
                .num_attention_heads
                .is_multiple_of(file.num_key_value_heads);
        for (wrong, what) in [
            (file.attention_bias, "attention_bias"),
            (file.use_sliding_window, "use_sliding_window"),
            (
                file.hidden_act.is_some_and(|it| it != "silu"),
                "a hidden_act other than silu",
            ),
            (!ropes().all(plain), "scaled rotations"),
            (!even, "an odd head_dim"),
            (
                !groups,
                "query heads that are no multiple of the key-value heads",
            ),
        ] {
            if wrong {
                return Err(refuse(what));
            }
        }
        Ok(Self {
            vocab_size: file.vocab_size,
            hidden_size: file.hidden_size,
            intermediate_size: file.intermediate_size,
            num_hidden_layers: file.num_hidden_layers,
            num_attention_heads: file.num_attention_heads,
            num_key_value_heads: file.num_key_value_heads,
            head_dim: file.head_dim,
            rms_norm_eps: file.rms_norm_eps,
            rope_theta: theta.unwrap_or(10_000.0),
            tie_word_embeddings: file.tie_word_embeddings,
        })
    }

    /// The number of parameters, from the shape alone.
    pub fn parameters(&self) -> usize {
        let (width, head) = (self.hidden_size, self.head_dim);
        let (queries, keys) = (self.queries(), self.keys());
        let attention = 2 * width * queries + 2 * width * keys + 2 * head;
        let feed_forward = 3 * width * self.intermediate_size;
        let layer = attention + feed_forward + 2 * width;
        let tables = if self.tie_word_embeddings { 1 } else { 2 };
        tables * self.vocab_size * width + self.num_hidden_layers * layer + width
    }

    /// The width of all query heads together.
    pub fn queries(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// The width of all key heads together, and of all value heads.
    pub fn keys(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }
}

/// A shape that needs no files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Preset {
    /// 2 layers, width 128: for a CPU.
    #[value(name = "tiny")]
    #[serde(rename = "tiny")]
    Tiny,
    /// Qwen3-0.6B.
    #[value(name = "0.6b")]
    #[serde(rename = "0.6b")]
    Small,
    /// Qwen3-4B: 4.02 G parameters.
    #[value(name = "4b")]
    #[serde(rename = "4b")]
    Large,
}

impl Preset {
    /// The model's shape.
    pub fn model(self) -> Qwen3Config {
        let shape = |vocabulary, width, inside, layers, heads, key_heads, head| Qwen3Config {
            vocab_size: vocabulary,
            hidden_size: width,
            intermediate_size: inside,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            num_key_value_heads: key_heads,
            head_dim: head,
            rms_norm_eps: 1e-6,
            rope_theta: 1e6,
            tie_word_embeddings: true,
        };
        match self {
            Self::Tiny => shape(512, 128, 384, 2, 4, 2, 32),
            Self::Small => shape(151_936, 1024, 3072, 28, 16, 8, 128),
            Self::Large => shape(151_936, 2560, 9728, 36, 32, 8, 128),
        }
    }
}
