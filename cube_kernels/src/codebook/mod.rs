//! Codes for the exponents: their choice from a sample, and their canonical form.

mod best;
mod family;
mod huffman;
mod lengths;
mod sample;
mod templates;

pub use best::best_code;
pub use lengths::{CodeLengths, DecodeTable, ESCAPE_SYMBOL, Entry, MAX_LENGTH};
pub use sample::{SAMPLE_VALUES, sample_position};

#[cfg(feature = "cube")]
pub(crate) use family::templates;
#[cfg(feature = "cube")]
pub(crate) use huffman::DROP_SHIFT;
#[cfg(feature = "cube")]
pub(crate) use sample::MIX;
pub(crate) use sample::mix;
#[cfg(feature = "cube")]
pub(crate) use templates::{LEAD, SCALES, SPAN, TEMPLATES};

use crate::Family;

/// A code and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Codebook {
    /// The code.
    pub lengths: CodeLengths,
    /// The header's informative word: family, scale and shift.
    pub origin: u32,
}

impl Codebook {
    /// Chooses a code for `values` (BF16 bit patterns) from a sample of them.
    pub fn choose(values: &[u16], family: Family) -> Self {
        if values.is_empty() {
            return Self {
                lengths: CodeLengths::empty(),
                origin: 0,
            };
        }
        let histogram = sample::histogram(values);
        match family::templates(family) {
            Some(range) => family::cheapest(&histogram, range),
            None => Self {
                lengths: huffman::lengths(&histogram),
                origin: origin(SAMPLED_ORIGIN, 0, 0),
            },
        }
    }
}

/// Number of the sampled family in the header.
pub(crate) const SAMPLED_ORIGIN: u32 = 4;

/// The header's codebook word.
pub(crate) fn origin(family: u32, scale: u32, shift: u32) -> u32 {
    family | scale << 8 | shift << 16
}

#[cfg(test)]
mod density;
