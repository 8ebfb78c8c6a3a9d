//! What unit tests compute with.

use burn_backend::TensorData;
use half::bf16;

/// BF16 values that shrink when they are packed, others for each seed.
pub(crate) fn data<const D: usize>(seed: usize, shape: [usize; D]) -> TensorData {
    let value = |i: usize| bf16::from_f32(((i * 31 + seed * 7) % 97) as f32 * 0.01 - 0.4);
    let count = shape.iter().product();
    TensorData::new((0..count).map(value).collect(), shape)
}
