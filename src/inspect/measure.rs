//! How many bits a tensor's exponents hold, and how many the codec gives them.

use lct_kernels::codebook::best_code;
use lct_kernels::{CodecConfig, Profile, host};
use serde::Serialize;

use super::CodingError;
use crate::store::PackRequest;

/// What coding one tensor came to, or several together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Values.
    pub values: u64,
    /// Entropy of the exponents, in bits per value, from all of them.
    pub entropy: f64,
    /// Bits per exponent of a Huffman code of at most 8 bits with an escape, built from all of them.
    pub huffman: f64,
    /// What each profile takes.
    pub profiles: Vec<Allocation>,
}

/// What a tensor takes under one profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Allocation {
    /// The profile.
    pub profile: Profile,
    /// Bytes of the packed form: header, tables, padding and spill included.
    pub packed_bytes: u64,
    /// Bytes of them that are spill.
    pub spill_bytes: u64,
    /// All bits but the sign-fraction byte's, per value.
    pub bits_per_exponent: f64,
    /// Bytes as BF16 over packed bytes.
    pub ratio: f64,
    /// Whether it is packed at all: it shrinks by at least 5 %.
    pub worth_it: bool,
}

impl Measurement {
    /// Codes BF16 bit patterns, at least one, under each profile and checks that they come back.
    ///
    /// # Errors
    /// A profile under which the codec fails, or returns other values.
    pub fn of(values: &[u16], profiles: &[Profile]) -> Result<Self, CodingError> {
        let histogram = histogram(values);
        let mut decoded = vec![0; values.len()];
        let measure = |&profile: &Profile| -> Result<Allocation, CodingError> {
            let config = CodecConfig::default().with_profile(profile);
            let failed = |source| CodingError::Codec { profile, source };
            let packed = host::encode(values, &config).map_err(failed)?;
            host::decode_into(&packed, &mut decoded).map_err(failed)?;
            compare(profile, values, &decoded)?;
            Ok(Allocation::new(
                profile,
                values.len() as u64,
                packed.bytes() as u64,
                4 * packed.spill.len() as u64,
            ))
        };
        Ok(Self {
            values: values.len() as u64,
            entropy: entropy(&histogram),
            huffman: best_code(&histogram).mean_bits(&histogram),
            profiles: profiles.iter().map(measure).collect::<Result<_, _>>()?,
        })
    }

    /// Several measurements under the same profiles as one: bytes are added up, bits are means by value. `None` of none.
    pub fn together<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        parts.into_iter().cloned().reduce(|a, b| a.and(&b))
    }

    /// Whether it is packed under the default profile; `None` if that was not measured.
    pub fn worth_it(&self) -> Option<bool> {
        let default = |part: &&Allocation| part.profile == Profile::default();
        self.profiles.iter().find(default).map(|part| part.worth_it)
    }

    fn and(&self, other: &Self) -> Self {
        let values = self.values + other.values;
        let mean =
            |a: f64, b: f64| (a * self.values as f64 + b * other.values as f64) / values as f64;
        let profiles = self.profiles.iter().zip(&other.profiles);
        Self {
            values,
            entropy: mean(self.entropy, other.entropy),
            huffman: mean(self.huffman, other.huffman),
            profiles: profiles
                .map(|(a, b)| {
                    Allocation::new(
                        a.profile,
                        values,
                        a.packed_bytes + b.packed_bytes,
                        a.spill_bytes + b.spill_bytes,
                    )
                })
                .collect(),
        }
    }
}

impl Allocation {
    /// The sizes of so many values, at least one.
    fn new(profile: Profile, values: u64, packed_bytes: u64, spill_bytes: u64) -> Self {
        let dense_bytes = 2 * values;
        Self {
            profile,
            packed_bytes,
            spill_bytes,
            bits_per_exponent: 8.0 * packed_bytes as f64 / values as f64 - 8.0,
            ratio: dense_bytes as f64 / packed_bytes as f64,
            worth_it: PackRequest::pays(packed_bytes, dense_bytes),
        }
    }
}

/// How often each exponent occurs.
fn histogram(values: &[u16]) -> [u64; 256] {
    let mut histogram = [0; 256];
    for value in values {
        histogram[usize::from(value >> 7 & 0xff)] += 1;
    }
    histogram
}

/// Entropy in bits per value.
fn entropy(histogram: &[u64; 256]) -> f64 {
    let total: u64 = histogram.iter().sum();
    let bits = |&count: &u64| count as f64 * (total as f64 / count as f64).log2();
    let sum: f64 = histogram.iter().filter(|&&count| count > 0).map(bits).sum();
    sum / total as f64
}

/// Compares what went in with what came back.
fn compare(profile: Profile, values: &[u16], decoded: &[u16]) -> Result<(), CodingError> {
    let mut pairs = values.iter().zip(decoded).enumerate();
    match pairs.find(|(_, (expected, found))| expected != found) {
        None => Ok(()),
        Some((position, (&expected, &found))) => Err(CodingError::Differs {
            profile,
            position,
            values: values.len(),
            expected,
            found,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same number of values with each of `count` exponents.
    fn uniform(count: u16) -> Vec<u16> {
        (0..40_000)
            .map(|i| ((100 + i % count) << 7) | (i % 128))
            .collect()
    }

    #[test]
    fn entropy_of_equal_shares_is_their_logarithm() {
        for (count, bits) in [(1, 0.0), (2, 1.0), (4, 2.0), (16, 4.0)] {
            let measured = entropy(&histogram(&uniform(count)));
            assert!((measured - bits).abs() < 1e-9, "{count}: {measured}");
        }
    }

    #[test]
    fn sizes_agree_with_each_other() {
        let measured = Measurement::of(&uniform(4), &Profile::ALL).unwrap();
        assert_eq!(measured.values, 40_000);
        assert!((2.0..2.5).contains(&measured.huffman), "{measured:?}");
        assert_eq!(measured.profiles.len(), Profile::ALL.len());
        for part in &measured.profiles {
            let ratio = 16.0 / (8.0 + part.bits_per_exponent);
            assert!((part.ratio - ratio).abs() < 1e-9, "{part:?}");
            assert!(
                part.worth_it && part.spill_bytes < part.packed_bytes,
                "{part:?}"
            );
            assert!(part.bits_per_exponent >= measured.entropy, "{part:?}");
        }
        assert_eq!(measured.worth_it(), Some(true));
    }

    #[test]
    fn noise_is_not_worth_it() {
        let noise: Vec<u16> = (0..40_000u32)
            .map(|i| (i.wrapping_mul(0x9e37_79b9) >> 16) as u16)
            .collect();
        let measured = Measurement::of(&noise, &Profile::ALL).unwrap();
        assert!(measured.entropy > 7.9, "{measured:?}");
        assert_eq!(measured.worth_it(), Some(false));
    }

    #[test]
    fn the_larger_tensor_counts_more() {
        let profiles = [Profile::High];
        let small = Measurement::of(&uniform(1)[..10_000], &profiles).unwrap();
        let large = Measurement::of(&uniform(4)[..30_000], &profiles).unwrap();
        let both = Measurement::together([&small, &large]).unwrap();
        assert_eq!(both.values, 40_000);
        assert!((both.entropy - 1.5).abs() < 1e-9, "{both:?}");
        let bytes = small.profiles[0].packed_bytes + large.profiles[0].packed_bytes;
        assert_eq!(both.profiles[0].packed_bytes, bytes);
        assert_eq!(both.worth_it(), None);
        assert_eq!(Measurement::together([]), None);
    }

    #[test]
    fn a_changed_bit_is_named() {
        let before = uniform(4);
        let mut after = before.clone();
        after[1234] ^= 0x80;
        let expected = CodingError::Differs {
            profile: Profile::Clean,
            position: 1234,
            values: 40_000,
            expected: before[1234],
            found: after[1234],
        };
        assert_eq!(compare(Profile::Clean, &before, &after), Err(expected));
        assert_eq!(compare(Profile::Clean, &before, &before), Ok(()));
    }
}
