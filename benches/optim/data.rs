//! What the optimizers step on.

use burn_lct::kernels::optim::{Values, apply};
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

/// Values that are trained; longer parameters repeat them, and no codec sees that.
const POOL: usize = 1 << 22;

/// Steps before the one that is measured: as many as it takes until the moments no longer depend on where they began.
pub const WARM_UP: usize = 64;

/// A parameter in the middle of a training: moments and gradients in the scales that belong together, so that one more step
/// leaves them as they are. Drawn apart from one another, the first step would change the moments' exponents, and a packed
/// form would grow under the code of the form before.
pub struct Data {
    pub weight: Vec<bf16>,
    pub gradient: Vec<bf16>,
    states: Vec<Vec<bf16>>,
}

impl Data {
    /// [`WARM_UP`] steps of the optimizer, on the host, each with a gradient of its own.
    pub fn trained(kind: Kind, values: usize) -> Self {
        let values = values.min(POOL);
        let mut rng = SmallRng::seed_from_u64(7);
        let mut draw = |deviation: f32| -> Vec<bf16> {
            let normal = Normal::new(0.0, deviation).expect("a deviation is positive");
            let draws = (0..values).map(|_| bf16::from_f32(normal.sample(&mut rng)));
            draws.collect()
        };
        let mut weight = draw(0.02);
        let mut states = vec![vec![bf16::ZERO; values]; kind.states()];
        for time in 1..=WARM_UP {
            let gradient = draw(1e-3);
            let mut each = states.iter_mut().map(|state| bits(state));
            let states = std::array::from_fn(|_| each.next().unwrap_or_default());
            let weight = bits(&mut weight);
            let values = Values { weight, states };
            apply(&kind.update(time), bytemuck::cast_slice(&gradient), values);
        }
        Self {
            weight,
            gradient: draw(1e-3),
            states,
        }
    }

    /// A parameter of so many values, out of these over and over.
    pub fn of(&self, values: usize) -> Self {
        let repeat = |from: &Vec<bf16>| from.iter().copied().cycle().take(values).collect();
        Self {
            weight: repeat(&self.weight),
            gradient: repeat(&self.gradient),
            states: self.states.iter().map(repeat).collect(),
        }
    }

    /// The weight, the states.
    pub fn tensors(&self) -> impl Iterator<Item = &[bf16]> {
        std::iter::once(&self.weight[..]).chain(self.states.iter().map(|state| &state[..]))
    }
}

fn bits(values: &mut [bf16]) -> &mut [u16] {
    bytemuck::cast_slice_mut(values)
}
