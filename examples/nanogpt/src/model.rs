//! The model: a pre-norm GPT from elementary operations.

use crate::observe::Observer;
use burn::{
    config::Config,
    module::{Initializer, Module},
    nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig},
    tensor::{
        Bool, Int, Tensor,
        activation::{gelu, log_softmax, softmax},
        backend::Backend,
    },
};
use trainer::train;

/// The standard deviation of GPT-2's initial weights.
const INIT_STD: f64 = 0.02;

/// The shape of the model.
#[derive(Config, Debug, PartialEq, Eq)]
pub struct GptConfig {
    /// Rows of the token embedding and columns of the head.
    pub vocabulary: usize,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// The width of the residual stream; a multiple of `heads`.
    pub width: usize,
    /// The number of blocks.
    pub layers: usize,
    /// The attention heads of each block.
    pub heads: usize,
}

impl GptConfig {
    /// The number of parameters, from the shape alone.
    pub fn parameters(&self) -> usize {
        let w = self.width;
        let linear = |input: usize, output: usize| input * output + output;
        let norm = 2 * w;
        let block =
            norm + linear(w, 3 * w) + linear(w, w) + norm + linear(w, 4 * w) + linear(4 * w, w);
        2 * self.vocabulary * w + self.context * w + self.layers * block + norm
    }

    /// A new model with GPT-2's initial weights, drawn in the order of the fields from the device's generator.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Gpt<B> {
        let model = Gpt {
            token: embedding(self.vocabulary, self.width, device),
            position: embedding(self.context, self.width, device),
            blocks: (0..self.layers).map(|_| self.block(device)).collect(),
            norm: LayerNormConfig::new(self.width).init(device),
            head: LinearConfig::new(self.width, self.vocabulary)
                .with_bias(false)
                .with_initializer(normal(INIT_STD))
                .init(device),
        };
        train::draw(&model);
        model
    }

    fn block<B: Backend>(&self, device: &B::Device) -> Block<B> {
        let w = self.width;
        // Two branches of every block add to the residual stream; scaled so, its variance does not grow with depth.
        let residual_std = INIT_STD / ((2 * self.layers) as f64).sqrt();
        Block {
            attention_norm: LayerNormConfig::new(w).init(device),
            attention: Attention {
                qkv: linear(w, 3 * w, INIT_STD, device),
                out: linear(w, w, residual_std, device),
                heads: self.heads,
            },
            mlp_norm: LayerNormConfig::new(w).init(device),
            mlp: Mlp {
                up: linear(w, 4 * w, INIT_STD, device),
                down: linear(4 * w, w, residual_std, device),
            },
        }
    }
}

/// Token and position embeddings, blocks, a last norm and an untied head without bias.
#[derive(Module, Debug)]
pub struct Gpt<B: Backend> {
    token: Embedding<B>,
    position: Embedding<B>,
    blocks: Vec<Block<B>>,
    norm: LayerNorm<B>,
    head: Linear<B>,
}

impl<B: Backend> Gpt<B> {
    /// Logits of the next token at every position.
    ///
    /// # Shapes
    /// - `tokens`: `[batch, sequence]`, ids below the vocabulary, `sequence` at most the context
    /// - result: `[batch, sequence, vocabulary]`
    ///
    /// # Panics
    /// When the sequence is longer than the context.
    pub fn forward(&self, tokens: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        self.forward_observed(tokens, &mut ())
    }

    /// [`forward`](Self::forward), with somebody looking on.
    fn forward_observed<O: Observer<B>>(
        &self,
        tokens: Tensor<B, 2, Int>,
        observer: &mut O,
    ) -> Tensor<B, 3> {
        let [_, sequence] = tokens.dims();
        let device = tokens.device();
        let positions = Tensor::<B, 1, Int>::arange(0..sequence as i64, &device).unsqueeze();
        let future = Tensor::<B, 2, Bool>::tril_mask([sequence, sequence], 0, &device);

        let x = self.token.forward(tokens) + self.position.forward(positions);
        let mut x = observer.pass("residual", "embedding", x);
        for (index, block) in self.blocks.iter().enumerate() {
            observer.enter(Some(index));
            x = block.forward(x, &future, observer);
        }
        observer.enter(None);
        let x = observer.pass("ln_out", "norm", self.norm.forward(x));
        observer.pass("logits", "head", self.head.forward(x))
    }

    /// [`surprise`](trainer::train::LanguageModel::surprise), with somebody looking on.
    pub fn surprise_observed<O: Observer<B>>(
        &self,
        tokens: Tensor<B, 2, Int>,
        targets: Tensor<B, 2, Int>,
        observer: &mut O,
    ) -> Tensor<B, 1> {
        let logits = self.forward_observed(tokens, observer);
        let [batch, sequence, vocabulary] = logits.dims();
        let rows = batch * sequence;
        let log_probs = log_softmax(logits.reshape([rows, vocabulary]), 1);
        observer
            .pass("log_softmax", "loss", log_probs)
            .gather(1, targets.reshape([rows, 1]))
            .reshape([rows])
            .neg()
    }
}

/// One block: attention and a feed-forward layer, each behind a norm and added to the residual stream.
#[derive(Module, Debug)]
pub struct Block<B: Backend> {
    attention_norm: LayerNorm<B>,
    attention: Attention<B>,
    mlp_norm: LayerNorm<B>,
    mlp: Mlp<B>,
}

impl<B: Backend> Block<B> {
    /// `[batch, sequence, width]` to the same.
    fn forward<O: Observer<B>>(
        &self,
        x: Tensor<B, 3>,
        future: &Tensor<B, 2, Bool>,
        observer: &mut O,
    ) -> Tensor<B, 3> {
        let residual = x.clone();
        let x = observer.pass("ln_out", "attention_norm", self.attention_norm.forward(x));
        let x = residual + self.attention.forward(x, future, observer);
        let x = observer.pass("residual", "attention", x);

        let residual = x.clone();
        let x = observer.pass("ln_out", "mlp_norm", self.mlp_norm.forward(x));
        let x = residual + self.mlp.forward(x, observer);
        observer.pass("residual", "mlp", x)
    }
}

/// Causal attention with several heads.
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    qkv: Linear<B>,
    out: Linear<B>,
    heads: usize,
}

impl<B: Backend> Attention<B> {
    /// `[batch, sequence, width]` to the same; `future` is true where a query may not look.
    fn forward<O: Observer<B>>(
        &self,
        x: Tensor<B, 3>,
        future: &Tensor<B, 2, Bool>,
        observer: &mut O,
    ) -> Tensor<B, 3> {
        let [batch, sequence, width] = x.dims();
        let head = width / self.heads;

        let qkv = self.qkv.forward(x);
        let part = |i: usize| -> Tensor<B, 4> {
            qkv.clone()
                .narrow(2, i * width, width)
                .reshape([batch, sequence, self.heads, head])
                .swap_dims(1, 2)
        };
        let (query, key, value) = (part(0), part(1), part(2));
        let query = observer.pass("q", "attention", query);
        let key = observer.pass("k", "attention", key);
        let value = observer.pass("v", "attention", value);

        let scores = query
            .matmul(key.swap_dims(2, 3))
            .div_scalar((head as f64).sqrt());
        let scores = observer.pass("scores", "attention", scores);
        let scores = scores.mask_fill(future.clone().unsqueeze(), f32::NEG_INFINITY);
        let probs = observer.pass("probs", "attention", softmax(scores, 3));
        let mixed = probs.matmul(value);

        let mixed = mixed.swap_dims(1, 2).reshape([batch, sequence, width]);
        self.out
            .forward(observer.pass("attn_out", "attention", mixed))
    }
}

/// The feed-forward layer, four times as wide inside.
#[derive(Module, Debug)]
pub struct Mlp<B: Backend> {
    up: Linear<B>,
    down: Linear<B>,
}

impl<B: Backend> Mlp<B> {
    /// `[batch, sequence, width]` to the same.
    fn forward<O: Observer<B>>(&self, x: Tensor<B, 3>, observer: &mut O) -> Tensor<B, 3> {
        let x = observer.pass("gelu_in", "mlp", self.up.forward(x));
        let x = observer.pass("gelu_out", "mlp", gelu(x));
        self.down.forward(x)
    }
}

fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}

fn embedding<B: Backend>(rows: usize, width: usize, device: &B::Device) -> Embedding<B> {
    EmbeddingConfig::new(rows, width)
        .with_initializer(normal(INIT_STD))
        .init(device)
}

fn linear<B: Backend>(input: usize, output: usize, std: f64, device: &B::Device) -> Linear<B> {
    let mut linear = LinearConfig::new(input, output)
        .with_bias(false)
        .with_initializer(normal(std))
        .init(device);
    // Burn's own bias would be drawn like the weight; GPT-2's starts at zero.
    linear.bias = Some(Initializer::Zeros.init([output], device));
    linear
}
