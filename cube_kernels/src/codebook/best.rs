//! The code for a whole tensor: what a sampled code is measured against.

use super::huffman::{self, DROP_SHIFT};
use super::lengths::CodeLengths;

/// The builder takes weights whose sum has at most this many bits.
const WEIGHT_BITS: u32 = u32::BITS - DROP_SHIFT;

/// The code that [`Family::Sampled`](crate::Family::Sampled) would build if its sample were the whole tensor, whose
/// exponents occur as often as `histogram` says: Huffman's, of at most [`MAX_LENGTH`](super::MAX_LENGTH) bits, with an
/// escape for rare exponents. Without counts there are no codes.
pub fn best_code(histogram: &[u64; 256]) -> CodeLengths {
    let total: u128 = histogram.iter().map(|&count| u128::from(count)).sum();
    if total == 0 {
        return CodeLengths::empty();
    }
    let shift = (u128::BITS - total.leading_zeros()).saturating_sub(WEIGHT_BITS);
    // What a shift rounds to zero is far too rare for a code of its own.
    huffman::lengths(&histogram.map(|count| (count >> shift) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts that halve from exponent to exponent, the first `1 << top`.
    fn halving(top: u32) -> [u64; 256] {
        let mut histogram = [0; 256];
        for (place, bit) in (top - 7..=top).rev().enumerate() {
            histogram[100 + place] = 1 << bit;
        }
        histogram
    }

    #[test]
    fn counts_of_any_size_give_the_same_code() {
        let small = best_code(&halving(12));
        small.check().unwrap();
        assert_eq!(small.symbols[100..104], [1, 2, 3, 4]);
        for top in [20, 30, 40, 63] {
            assert_eq!(best_code(&halving(top)), small, "{top}");
        }
    }

    #[test]
    fn the_largest_counts_fit() {
        best_code(&[u64::MAX; 256]).check().unwrap();
    }

    #[test]
    fn no_counts_no_codes() {
        let code = best_code(&[0; 256]);
        assert_eq!(code, CodeLengths::empty());
        assert_eq!(code.mean_bits(&[0; 256]), 0.0);
    }

    #[test]
    fn the_mean_lies_between_entropy_and_a_bit_more() {
        let histogram = halving(30);
        let mean = best_code(&histogram).mean_bits(&histogram);
        let total: u64 = histogram.iter().sum();
        let entropy: f64 = histogram
            .iter()
            .filter(|&&count| count > 0)
            .map(|&count| count as f64 / total as f64)
            .map(|share| -share * share.log2())
            .sum();
        assert!((entropy..entropy + 0.1).contains(&mean), "{mean} {entropy}");
    }
}
