//! What the optimizers step on.

use half::bf16;
use rand::{SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution, Normal};

use super::kinds::Kind;

/// The sizes of the parameters of `nanogpt --preset gpt2-162m`.
pub fn gpt2() -> Vec<usize> {
    const WIDTH: usize = 768;
    let linear = |from: usize, to: usize| [from * WIDTH * to * WIDTH, to * WIDTH];
    let norm = [WIDTH, WIDTH];
    let layer = [
        norm,
        linear(1, 3),
        linear(1, 1),
        norm,
        linear(1, 4),
        linear(4, 1),
    ]
    .concat();
    let mut sizes = vec![50_304 * WIDTH, 1_024 * WIDTH];
    (0..12).for_each(|_| sizes.extend(&layer));
    sizes.extend(norm);
    sizes.push(50_304 * WIDTH);
    sizes
}

/// Weight, gradient and states in the scales of a training.
pub struct Data {
    pub weight: Vec<bf16>,
    pub gradient: Vec<bf16>,
    states: Vec<Vec<bf16>>,
}

impl Data {
    pub fn new(kind: Kind, values: usize) -> Self {
        let mut rng = SmallRng::seed_from_u64(7);
        let mut draw = |deviation: f32| -> Vec<bf16> {
            let normal = Normal::new(0.0, deviation).expect("a deviation is positive");
            // Repeated after 16 Mi values: drawing more takes longer than measuring.
            let drawn: Vec<bf16> = (0..values.min(1 << 24))
                .map(|_| bf16::from_f32(normal.sample(&mut rng)))
                .collect();
            drawn.iter().copied().cycle().take(values).collect()
        };
        let mut states = Vec::new();
        let (weight, gradient) = (draw(0.02), draw(1e-3));
        for state in 0..kind.states() {
            let drawn = draw(3e-4);
            states.push(match state {
                0 => drawn,
                // Squares.
                _ => drawn
                    .iter()
                    .map(|x| bf16::from_f32(x.to_f32().powi(2)))
                    .collect(),
            });
        }
        Self {
            weight,
            gradient,
            states,
        }
    }

    /// The weight, the states.
    pub fn tensors(&self) -> impl Iterator<Item = &[bf16]> {
        std::iter::once(&self.weight[..]).chain(self.states.iter().map(|state| &state[..]))
    }
}
