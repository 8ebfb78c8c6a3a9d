//! Text from a trained model.

use crate::{Error, model::Gpt};
use burn::tensor::{Int, Tensor, TensorData, backend::Backend};
use trainer::rng::SplitMix64;

/// How to sample.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Tokens to write.
    pub tokens: usize,
    /// The logits are divided by this.
    pub temperature: f64,
    /// Seed of the draws.
    pub seed: u64,
    /// Rows of the batch that the model sees.
    pub rows: usize,
    /// The model's context, in tokens.
    pub context: usize,
}

/// Continues a prompt and returns the prompt's tokens with the new ones.
///
/// The model sees one shape throughout, that of the training batches, with the text at its start: a causal model does
/// not look at what follows, and a card tunes its kernels for one shape only.
///
/// # Errors
/// When the device fails.
pub fn continue_text<B: Backend>(
    model: &Gpt<B>,
    prompt: &[u32],
    sampling: Sampling,
    device: &B::Device,
) -> Result<Vec<u32>, Error> {
    let Sampling { rows, context, .. } = sampling;
    let mut rng = SplitMix64::keyed(&[sampling.seed, u64::MAX]);
    let mut text: Vec<u32> = if prompt.is_empty() {
        vec![0]
    } else {
        prompt.to_vec()
    };
    for _ in 0..sampling.tokens {
        let seen = &text[text.len().saturating_sub(context)..];
        let mut ids: Vec<i32> = seen.iter().map(|&id| id as i32).collect();
        ids.resize(rows * context, 0);
        let input = Tensor::<B, 2, Int>::from_data(TensorData::new(ids, [rows, context]), device);

        let last = seen.len() - 1;
        let logits = model.forward(input).narrow(0, 0, 1).narrow(1, last, 1);
        let data = logits
            .try_into_data()
            .map_err(Error::device("reading logits"))?;
        let logits: Vec<f64> = data.iter::<f64>().collect();
        text.push(draw(&logits, sampling.temperature, &mut rng) as u32);
    }
    Ok(text)
}

/// Draws an index with the softmax of the logits; the largest logit when none is finite.
fn draw(logits: &[f64], temperature: f64, rng: &mut SplitMix64) -> usize {
    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits
        .iter()
        .map(|logit| ((logit - top) / temperature).exp())
        .collect();
    let mut left = rng.unit() * weights.iter().sum::<f64>();
    for (index, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return index;
        }
    }
    logits.iter().position(|&logit| logit == top).unwrap_or(0)
}
