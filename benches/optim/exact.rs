//! Whether a step has the bits of Burn's optimizer on the same backend without fusion.

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use burn_lct::{HotWindow, LctBackend, LctConfig};
use half::bf16;
use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::device::Unfused;
use super::kinds::{Kind, burns, ours};

/// Values of the parameter.
const VALUES: usize = 1 << 16;

/// Bits that no training has, and some that it has.
const SPECIAL: [u16; 12] = [
    0, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0xffff, 0x7f81, 1, 0x8001, 0x807f, 0x7f7f, 0xff7f,
];

/// What a comparison has found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Difference {
    /// Values whose bits differ, two NaN not counted.
    pub values: usize,
    /// NaN with other bits.
    pub nan_payloads: usize,
}

impl Difference {
    fn add(&mut self, found: &[u16], expected: &[u16]) {
        let nan = |bits: u16| bits & 0x7fff > 0x7f80;
        for (&found, &expected) in found.iter().zip(expected) {
            if found != expected {
                let both = nan(found) && nan(expected);
                self.nan_payloads += both as usize;
                self.values += !both as usize;
            }
        }
    }
}

fn random(rng: &mut SmallRng, deviation: f32) -> Vec<u16> {
    (0..VALUES)
        .map(|_| match rng.random::<u32>() % 64 {
            0 => SPECIAL[rng.random::<u32>() as usize % SPECIAL.len()],
            1 => rng.random(),
            _ => {
                let sum: f32 = (0..4).map(|_| rng.random::<f32>() * 2.0 - 1.0).sum();
                bf16::from_f32(sum * deviation).to_bits()
            }
        })
        .collect()
}

fn tensor<B: Backend>(bits: &[u16], device: &B::Device) -> Tensor<B, 1> {
    let values: Vec<bf16> = bits.iter().map(|&bits| bf16::from_bits(bits)).collect();
    Tensor::from_data(TensorData::new(values, [bits.len()]), (device, DType::BF16))
}

fn bits<B: Backend>(tensor: Tensor<B, 1>) -> Vec<u16> {
    let data = tensor.into_data();
    let values = data.as_slice::<bf16>().expect("the tensor is BF16");
    values.iter().map(|value| value.to_bits()).collect()
}

/// Random steps of Burn's optimizer and of ours, on dense tensors and on packed ones.
pub fn compare(kind: Kind, steps: usize) -> Result<Difference, Box<dyn std::error::Error>> {
    type Packed = LctBackend<Unfused>;
    let device = Default::default();
    let config = LctConfig::default()
        .with_hot_window(HotWindow::Bytes(0))
        .with_min_elements(4096);
    // The second kind finds it configured.
    let _ = Packed::configure(&device, config);
    let mut rng = SmallRng::seed_from_u64(kind as u64);
    let start = random(&mut rng, 0.02);
    let mut burn = (burns::<Unfused>(kind), tensor::<Unfused>(&start, &device));
    let mut dense = (ours::<Unfused>(kind), tensor::<Unfused>(&start, &device));
    let mut packed = (ours::<Packed>(kind), tensor::<Packed>(&start, &device));
    let mut difference = Difference::default();
    for step in 0..steps {
        let slope = random(&mut rng, 1e-3);
        burn.1 = burn.0.step(burn.1, tensor(&slope, &device));
        dense.1 = dense.0.step(dense.1, tensor(&slope, &device));
        packed.1 = packed.0.step(packed.1, tensor(&slope, &device));
        // Reading a packed weight decodes it, and a NaN once there stays: not after every step.
        if step % 16 == 0 || step + 1 == steps {
            let expected = bits(burn.1.clone());
            difference.add(&bits(dense.1.clone()), &expected);
            difference.add(&bits(packed.1.clone()), &expected);
        }
    }
    let states = burn.0.states().into_iter().map(bits);
    let ours = dense.0.states().into_iter().map(bits);
    let at_rest = packed.0.states().into_iter().map(bits);
    for ((expected, dense), packed) in states.zip(ours).zip(at_rest) {
        difference.add(&dense, &expected);
        difference.add(&packed, &expected);
    }
    Ok(difference)
}
