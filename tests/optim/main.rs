//! The optimizers of one operation against Burn's own, bit for bit, on Flex.
#![cfg(all(feature = "flex", feature = "optim"))]

mod bits;
mod records;
mod types;

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use burn_flex::Flex;
use burn_flex::FlexDevice;
use burn_lct::{HotWindow, LctBackend, LctConfig};
use half::bf16;

/// The backend with its tensors packed as soon as they are made.
type Lct = LctBackend<Flex>;

/// Values of a tensor: enough that it is packed.
const VALUES: usize = 4096;

/// Packs every tensor at once.
fn configure() {
    let config = LctConfig::default()
        .with_hot_window(HotWindow::Bytes(0))
        .with_min_elements(1024);
    // Another test of this process may have been first.
    let _ = Lct::configure(&FlexDevice, config);
}

fn tensor<B: Backend>(bits: &[u16], device: &B::Device) -> Tensor<B, 2> {
    let values: Vec<bf16> = bits.iter().map(|&bits| bf16::from_bits(bits)).collect();
    let rows = bits.len() / 64;
    Tensor::from_data(TensorData::new(values, [rows, 64]), (device, DType::BF16))
}

fn bits<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<u16> {
    let data = tensor.into_data();
    let values = data.as_slice::<bf16>().expect("the tensor is BF16");
    values.iter().map(|value| value.to_bits()).collect()
}

/// A small generator: reproducible, and no dependency.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Near a normal distribution.
    fn values(&mut self, count: usize, deviation: f32) -> Vec<u16> {
        (0..count)
            .map(|_| {
                let sum: f32 = (0..4)
                    .map(|_| (self.bits() as u32) as f32 / 2f32.powi(31) - 1.0)
                    .sum();
                bf16::from_f32(sum * deviation).to_bits()
            })
            .collect()
    }

    /// Any bits at all: infinities, NaN, subnormals and zeros among them, each eighth value.
    fn special(&mut self, count: usize, deviation: f32) -> Vec<u16> {
        const KINDS: [u16; 8] = [0, 0x8000, 0x7f80, 0xff80, 0x7fc0, 1, 0x8070, 0x7f7f];
        let mut values = self.values(count, deviation);
        for value in &mut values {
            let bits = self.bits();
            match bits % 16 {
                0 => *value = bits as u16 ^ (bits >> 16) as u16,
                1 => *value = KINDS[(bits >> 8) as usize % KINDS.len()],
                _ => {}
            }
        }
        values
    }
}

/// Panics unless all bits are equal. Two NaN count as equal: which of two operands' payloads a sum keeps is for the compiler
/// to choose.
fn assert_bits(what: &str, found: &[u16], expected: &[u16]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let nan = |bits: u16| bits & 0x7fff > 0x7f80;
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            found == expected || nan(found) && nan(expected),
            "{what}: value {index} is {found:#06x} instead of {expected:#06x}"
        );
    }
}
