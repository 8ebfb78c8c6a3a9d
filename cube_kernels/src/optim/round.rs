//! Rounding `f32` to BF16.

use crate::codebook::mix;

/// The NaN that kernels write for every NaN that they compute, as CUDA does. The host keeps sign and upper payload, as the
/// CPU does, with the quiet bit set.
pub const QUIET_NAN: u16 = 0x7fff;

/// The nearest BF16 bits, ties to even; a NaN keeps its sign and upper payload and becomes quiet.
#[inline]
pub fn nearest(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// BF16 bits of `x` or of its neighbour further from zero, the latter with the probability of what is cut off: `noise` is
/// uniform, of which 16 bits are used. Infinities and NaN as [`nearest`] has them.
#[inline]
pub fn stochastic(x: f32, noise: u32) -> u16 {
    if !x.is_finite() {
        return nearest(x);
    }
    ((x.to_bits() + (noise & 0xffff)) >> 16) as u16
}

/// 32 bits for value `index` of tensor `tensor` of the update with this salt.
#[inline]
pub fn noise(salt: u32, tensor: u32, index: u32) -> u32 {
    mix(index ^ mix(salt.wrapping_add(tensor.wrapping_mul(STRIDE))))
}

/// Sets the tensors' salts apart.
pub(crate) const STRIDE: u32 = 0x9e37_79b9;

/// The number that BF16 bits stand for.
#[inline]
pub(super) fn widen(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The nearest number that BF16 has.
#[inline]
pub(super) fn nearest_f32(x: f32) -> f32 {
    widen(nearest(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_is_what_half_does() {
        let mut x = 1u32;
        for _ in 0..2_000_000 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Ties are half of them.
            let bits = if x & 1 == 0 { x & 0xffff_8000 } else { x };
            let value = f32::from_bits(bits);
            assert_eq!(
                nearest(value),
                half::bf16::from_f32(value).to_bits(),
                "{bits:#x}"
            );
        }
    }

    #[test]
    fn stochastic_keeps_the_expectation() {
        let x = f32::from_bits(0x3f80_4000);
        let ups = (0..100_000).filter(|&index| stochastic(x, noise(7, 1, index)) == 0x3f81);
        let share = ups.count() as f64 / 1e5;
        assert!((share - 0.25).abs() < 0.01, "{share}");
        assert_eq!(stochastic(f32::INFINITY, u32::MAX), 0x7f80);
        assert_eq!(stochastic(1.0, u32::MAX), 0x3f80, "what BF16 has stays");
    }
}
