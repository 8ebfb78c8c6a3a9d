//! The model: a dense Qwen3. The fields have Hugging Face's names, by which its weights are found.

use crate::{config::Qwen3Config, ops};
use burn::{
    module::{Initializer, Module},
    nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig},
    tensor::{Int, Tensor, TensorData, backend::Backend},
};
use trainer::{differentiable::Differentiable, train::LanguageModel};

/// The standard deviation of the initial weights, about that of the trained ones.
const INIT_STD: f64 = 0.02;
/// The most scores that exist at a time, 64 MiB in f32, unless these are those of [`ROWS`] rows of queries.
const SCORES: usize = 1 << 24;
/// The least rows of queries whose scores exist at a time: fewer would keep a card waiting for work.
const ROWS: usize = 256;
/// The most logits that exist at a time: 64 MiB in f32.
const LOGITS: usize = 1 << 24;

impl Qwen3Config {
    /// A new model, whose weights are drawn when they are first used.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Qwen3<B> {
        Qwen3 {
            embed_tokens: self.table(device),
            layers: (0..self.num_hidden_layers)
                .map(|_| self.layer(device))
                .collect(),
            norm: self.norm(self.hidden_size, device),
            lm_head: (!self.tie_word_embeddings).then(|| self.table(device)),
            theta: self.rope_theta,
        }
    }

    fn layer<B: Backend>(&self, device: &B::Device) -> Layer<B> {
        // Two branches of every layer add to the residual stream; scaled so, its variance does not grow with depth.
        let residual_std = INIT_STD / ((2 * self.num_hidden_layers) as f64).sqrt();
        let (width, queries, keys) = (self.hidden_size, self.queries(), self.keys());
        let inside = self.intermediate_size;
        let linear = |input, output, std| {
            LinearConfig::new(input, output)
                .with_bias(false)
                .with_initializer(normal(std))
                .init(device)
        };
        Layer {
            input_layernorm: self.norm(width, device),
            self_attn: Attention {
                q_proj: linear(width, queries, INIT_STD),
                k_proj: linear(width, keys, INIT_STD),
                v_proj: linear(width, keys, INIT_STD),
                q_norm: self.norm(self.head_dim, device),
                k_norm: self.norm(self.head_dim, device),
                o_proj: linear(queries, width, residual_std),
            },
            post_attention_layernorm: self.norm(width, device),
            mlp: Mlp {
                gate_proj: linear(width, inside, INIT_STD),
                up_proj: linear(width, inside, INIT_STD),
                down_proj: linear(inside, width, residual_std),
            },
        }
    }

    fn norm<B: Backend>(&self, width: usize, device: &B::Device) -> RmsNorm<B> {
        RmsNormConfig::new(width)
            .with_epsilon(self.rms_norm_eps)
            .init(device)
    }

    fn table<B: Backend>(&self, device: &B::Device) -> Embedding<B> {
        EmbeddingConfig::new(self.vocab_size, self.hidden_size)
            .with_initializer(normal(INIT_STD))
            .init(device)
    }
}

fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}

/// Token embedding, layers, a last norm and a head, which may be the embedding.
#[derive(Module, Debug)]
pub struct Qwen3<B: Backend> {
    /// The token embedding: `[vocabulary, width]`.
    pub embed_tokens: Embedding<B>,
    /// The layers.
    pub layers: Vec<Layer<B>>,
    norm: RmsNorm<B>,
    /// The head, `[vocabulary, width]`, unless it is the token embedding.
    pub lm_head: Option<Embedding<B>>,
    theta: f64,
}

impl<B: Differentiable> Qwen3<B> {
    /// Logits of the next token at every position.
    ///
    /// # Shapes
    /// - `tokens`: `[batch, sequence]`, ids below the vocabulary
    /// - result: `[batch, sequence, vocabulary]`
    pub fn forward(&self, tokens: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let x = ops::rms_norm(self.hidden(tokens), &self.norm);
        x.matmul(self.head().weight.val().transpose().unsqueeze())
    }

    /// The residual stream before the last norm: `[batch, sequence, width]`.
    fn hidden(&self, tokens: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let rotation = self.rotation(&tokens);
        let x = self.embed_tokens.forward(tokens);
        let layers = self.layers.iter();
        layers.fold(x, |x, layer| layer.forward(x, &rotation))
    }

    /// The negative log likelihood of each target in nats, in f32, from the residual stream after the last layer.
    ///
    /// # Shapes
    /// - `x`: `[batch, sequence, width]`
    /// - `targets`: `[batch, sequence]`
    /// - result: `[batch * sequence]`
    pub fn surprise_of(&self, x: Tensor<B, 3>, targets: Tensor<B, 2, Int>) -> Tensor<B, 1> {
        let [batch, sequence, width] = x.dims();
        let tokens = batch * sequence;
        let x = ops::rms_norm(x, &self.norm).reshape([tokens, width]);
        let weight = self.head().weight.val();
        ops::surprise(x, weight, targets.reshape([tokens]), LOGITS)
    }

    /// How queries and keys are turned at the positions of some tokens.
    pub fn rotation(&self, tokens: &Tensor<B, 2, Int>) -> Rotation<B> {
        let [_, sequence] = tokens.dims();
        let head = self.layers[0].head();
        let angles: Vec<f64> = (0..sequence)
            .flat_map(|position| {
                (0..head).map(move |index| {
                    let pair = (index % (head / 2)) as f64;
                    position as f64 * self.theta.powf(-2.0 * pair / head as f64)
                })
            })
            .collect();
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f32> = angles.iter().map(|&angle| of(angle) as f32).collect();
            let data = TensorData::new(values, [sequence, head]);
            Tensor::from_data(data, (&tokens.device(), burn::tensor::DType::F32))
        };
        Rotation {
            cos: table(f64::cos),
            sin: table(f64::sin),
        }
    }

    fn head(&self) -> &Embedding<B> {
        self.lm_head.as_ref().unwrap_or(&self.embed_tokens)
    }
}

impl<B: Differentiable> LanguageModel<B> for Qwen3<B> {
    fn surprise(&self, tokens: Tensor<B, 2, Int>, targets: Tensor<B, 2, Int>) -> Tensor<B, 1> {
        self.surprise_of(self.hidden(tokens), targets)
    }
}

/// Cosines and sines by position, `[sequence, head]` in f32.
pub struct Rotation<B: Backend> {
    cos: Tensor<B, 2>,
    sin: Tensor<B, 2>,
}

/// One layer: attention and a gated feed-forward layer, each behind a norm and added to the residual stream.
#[derive(Module, Debug)]
pub struct Layer<B: Backend> {
    input_layernorm: RmsNorm<B>,
    self_attn: Attention<B>,
    post_attention_layernorm: RmsNorm<B>,
    mlp: Mlp<B>,
}

impl<B: Differentiable> Layer<B> {
    /// `[batch, sequence, width]` to the same.
    pub fn forward(&self, x: Tensor<B, 3>, rotation: &Rotation<B>) -> Tensor<B, 3> {
        let normal = ops::rms_norm(x.clone(), &self.input_layernorm);
        let x = x + self.self_attn.forward(normal, rotation);
        let normal = ops::rms_norm(x.clone(), &self.post_attention_layernorm);
        x + self.mlp.forward(normal)
    }

    /// The width of a head.
    fn head(&self) -> usize {
        self.self_attn.q_norm.gamma.lazy_shape()[0]
    }
}

/// Causal attention with grouped heads and a norm of each query and key.
#[derive(Module, Debug)]
struct Attention<B: Backend> {
    q_proj: Linear<B>,
    k_proj: Linear<B>,
    v_proj: Linear<B>,
    q_norm: RmsNorm<B>,
    k_norm: RmsNorm<B>,
    o_proj: Linear<B>,
}

impl<B: Differentiable> Attention<B> {
    /// `[batch, sequence, width]` to the same.
    fn forward(&self, x: Tensor<B, 3>, rotation: &Rotation<B>) -> Tensor<B, 3> {
        let [batch, sequence, _] = x.dims();
        let head = self.q_norm.gamma.lazy_shape()[0];
        let by_head = |x: Tensor<B, 3>| {
            let heads = x.dims()[2] / head;
            x.reshape([batch, sequence, heads, head])
        };
        let turned = |x, norm| {
            let Rotation { cos, sin } = rotation;
            ops::rms_norm_rotated(by_head(x), norm, cos.clone(), sin.clone())
        };
        let query = turned(self.q_proj.forward(x.clone()), &self.q_norm);
        let key = turned(self.k_proj.forward(x.clone()), &self.k_norm);
        let value = by_head(self.v_proj.forward(x));
        let heads = query.dims()[2];
        let rows = (SCORES / (batch * heads * sequence)).max(ROWS);
        self.o_proj.forward(ops::attention(query, key, value, rows))
    }
}

/// The feed-forward layer, behind a gate.
#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    gate_proj: Linear<B>,
    up_proj: Linear<B>,
    down_proj: Linear<B>,
}

impl<B: Differentiable> Mlp<B> {
    /// `[batch, sequence, width]` to the same.
    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let gate = self.gate_proj.forward(x.clone());
        let up = self.up_proj.forward(x);
        self.down_proj.forward(ops::swiglu(gate, up))
    }
}
