//! Code lengths, the canonical codes they stand for, and the table that decodes them.

use crate::CodecError;
use crate::header::TABLE_WORDS;

/// The longest code, in bits.
pub const MAX_LENGTH: u32 = 8;
/// The escape's place among the symbols: after all exponents.
pub const ESCAPE_SYMBOL: u32 = 256;

/// The code length of every exponent; zero stands for "behind the escape".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeLengths {
    /// Length by exponent.
    pub symbols: [u8; 256],
    /// Length of the escape; its code is followed by the exponent itself in 8 bits.
    pub escape: u8,
}

impl CodeLengths {
    /// No codes at all, for a tensor without values.
    pub fn empty() -> Self {
        Self {
            symbols: [0; 256],
            escape: 0,
        }
    }

    /// Code space used, in parts of 1/256.
    pub fn kraft(&self) -> u32 {
        self.all()
            .map(|(_, length)| 256u32.checked_shr(length).unwrap_or(0))
            .sum()
    }

    /// Checks that the codes can be told apart and reach every exponent.
    ///
    /// # Errors
    /// [`CodecError::CodeLength`] or [`CodecError::Kraft`].
    pub fn check(&self) -> Result<(), CodecError> {
        let escape = (ESCAPE_SYMBOL, self.escape as u32);
        for (symbol, length) in self.all().chain([escape]) {
            if length > MAX_LENGTH || length == 0 {
                return Err(CodecError::CodeLength {
                    symbol,
                    length,
                    limit: MAX_LENGTH,
                });
            }
        }
        match self.kraft() {
            sum if sum > 256 => Err(CodecError::Kraft { sum }),
            _ => Ok(()),
        }
    }

    /// The code table's words: eight lengths each, the first in the lowest bits.
    pub fn table_words(&self) -> [u32; TABLE_WORDS] {
        let mut words = [0; TABLE_WORDS];
        for (symbol, &length) in self.symbols.iter().enumerate() {
            words[symbol / 8] |= (length as u32) << (4 * (symbol % 8));
        }
        words
    }

    /// Reads the lengths from a code table and the header's escape word.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn from_table(words: &[u32; TABLE_WORDS], escape: u32) -> Result<Self, CodecError> {
        let mut lengths = Self::empty();
        for (symbol, length) in lengths.symbols.iter_mut().enumerate() {
            *length = (words[symbol / 8] >> (4 * (symbol % 8)) & 0xf) as u8;
        }
        lengths.escape = u8::try_from(escape).map_err(|_| CodecError::CodeLength {
            symbol: ESCAPE_SYMBOL,
            length: escape,
            limit: MAX_LENGTH,
        })?;
        lengths.check()?;
        Ok(lengths)
    }

    /// What the encoder writes for each exponent: bits and their number, escapes included.
    pub fn codes(&self) -> [(u16, u8); 256] {
        let mut codes = [(0, 0); 256];
        let mut escape = 0;
        for (symbol, code, _) in self.canonical() {
            match symbol {
                ESCAPE_SYMBOL => escape = code,
                _ => codes[symbol as usize] = (code, self.symbols[symbol as usize]),
            }
        }
        for (symbol, entry) in codes.iter_mut().enumerate() {
            if entry.1 == 0 {
                *entry = (escape << 8 | symbol as u16, self.escape + 8);
            }
        }
        codes
    }

    /// Symbols with a code, the escape among them, with code and length in canonical order:
    /// by length, then by symbol.
    fn canonical(&self) -> Vec<(u32, u16, u32)> {
        let mut order: Vec<(u32, u32)> = self
            .all()
            .map(|(symbol, length)| (length, symbol))
            .collect();
        order.sort_unstable();
        let (mut code, mut previous) = (0u32, 0);
        order
            .into_iter()
            .map(|(length, symbol)| {
                code <<= length - previous;
                previous = length;
                code += 1;
                (symbol, (code - 1) as u16, length)
            })
            .collect()
    }

    /// Mean bits of exponents that occur as often as `histogram` says, escapes included; 0 without counts.
    pub fn mean_bits(&self, histogram: &[u64; 256]) -> f64 {
        let (mut values, mut bits) = (0u128, 0u128);
        for (&count, &length) in histogram.iter().zip(&self.symbols) {
            let length = match length {
                0 => u32::from(self.escape) + 8,
                length => u32::from(length),
            };
            values += u128::from(count);
            bits += u128::from(count) * u128::from(length);
        }
        match values {
            0 => 0.0,
            _ => bits as f64 / values as f64,
        }
    }

    /// Coded symbols with their lengths, the escape last.
    fn all(&self) -> impl Iterator<Item = (u32, u32)> {
        let symbols = self.symbols.iter().chain([&self.escape]);
        (0..)
            .zip(symbols.map(|&length| length as u32))
            .filter(|&(_, length)| length > 0)
    }
}

/// What the next 12 bits of a stream say.
///
/// | bits | meaning |
/// |------|---------|
/// | 0 to 3 | bits that two symbols take together; 0 if the 12 bits do not hold two |
/// | 7 to 14 | first exponent, where the lower BF16 of a pair has it |
/// | 15 | the first code is the escape |
/// | 16 to 19 | bits that the first code takes; 0 if no code begins so |
/// | 23 to 30 | second exponent, where the upper BF16 of a pair has it |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub u32);

impl Entry {
    /// Where a pair's two exponents lie.
    pub const PAIR_MASK: u32 = 0x7f80_7f80;
    /// Marks the escape.
    pub const ESCAPE: u32 = 1 << 15;

    /// Bits that both symbols take, or 0.
    #[inline]
    pub fn pair_bits(self) -> u32 {
        self.0 & 0xf
    }

    /// Bits that the first code takes, or 0.
    #[inline]
    pub fn first_bits(self) -> u32 {
        self.0 >> 16 & 0xf
    }

    /// The first exponent.
    #[inline]
    pub fn first(self) -> u32 {
        self.0 >> 7 & 0xff
    }

    /// Whether the first code is the escape.
    #[inline]
    pub fn is_escape(self) -> bool {
        self.0 & Self::ESCAPE != 0
    }
}

/// Entries for every 12 bits a stream can go on with.
#[derive(Clone, Debug)]
pub struct DecodeTable {
    entries: Box<[Entry; 4096]>,
}

impl DecodeTable {
    /// Builds the table for lengths that pass [`CodeLengths::check`].
    pub fn new(lengths: &CodeLengths) -> Self {
        // One symbol by the next 8 bits, in an entry's bits 7 to 19.
        let mut single = [0u32; 256];
        for (symbol, code, length) in lengths.canonical() {
            let entry = match symbol {
                ESCAPE_SYMBOL => Entry::ESCAPE,
                _ => symbol << 7,
            } | length << 16;
            let first = (code as usize) << (MAX_LENGTH - length);
            single[first..][..256 >> length].fill(entry);
        }
        let entry = |index: usize| {
            let first = Entry(single[index >> 4]);
            let mut entry = first.0;
            if first.first_bits() > 0 && !first.is_escape() {
                let second = Entry(single[index << first.first_bits() >> 4 & 0xff]);
                let both = first.first_bits() + second.first_bits();
                if second.first_bits() > 0 && !second.is_escape() && both <= 12 {
                    entry |= second.first() << 23 | both;
                }
            }
            Entry(entry)
        };
        let entries: Vec<Entry> = (0..4096).map(entry).collect();
        let entries = entries.into_boxed_slice().try_into();
        Self {
            entries: entries.unwrap_or_else(|_| unreachable!("4096 entries were collected")),
        }
    }

    /// The entry for 12 bits.
    ///
    /// # Panics
    /// If `bits` has more than 12 bits.
    #[inline]
    pub fn get(&self, bits: usize) -> Entry {
        self.entries[bits]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_canonical() {
        let mut lengths = CodeLengths::empty();
        lengths.symbols[10] = 2;
        lengths.symbols[3] = 2;
        lengths.symbols[200] = 1;
        lengths.escape = 2;
        lengths.check().unwrap_err();
        lengths.symbols[3] = 3;
        lengths.escape = 3;
        lengths.check().unwrap();
        let codes = lengths.codes();
        assert_eq!(codes[200], (0b0, 1));
        assert_eq!(codes[10], (0b10, 2));
        assert_eq!(codes[3], (0b110, 3));
        assert_eq!(codes[77], (0b111 << 8 | 77, 11));
        let back = CodeLengths::from_table(&lengths.table_words(), 3).unwrap();
        assert_eq!(back, lengths);
    }

    #[test]
    fn the_mean_counts_escapes_with_their_literals() {
        let mut lengths = CodeLengths::empty();
        lengths.symbols[200] = 1;
        lengths.symbols[10] = 2;
        lengths.symbols[3] = 3;
        lengths.escape = 3;
        let mut histogram = [0; 256];
        for (exponent, count) in [(200, 4), (10, 2), (3, 1), (77, 1)] {
            histogram[exponent] = count;
        }
        assert_eq!(lengths.mean_bits(&histogram), (4 + 4 + 3 + 11) as f64 / 8.0);
    }

    #[test]
    fn bad_lengths_are_named() {
        let mut table = [0; TABLE_WORDS];
        assert_eq!(
            CodeLengths::from_table(&table, 0),
            Err(CodecError::CodeLength {
                symbol: 256,
                length: 0,
                limit: 8
            })
        );
        table[0] = 0x9;
        assert!(matches!(
            CodeLengths::from_table(&table, 8),
            Err(CodecError::CodeLength { symbol: 0, .. })
        ));
        table[0] = 0x111;
        assert_eq!(
            CodeLengths::from_table(&table, 8),
            Err(CodecError::Kraft { sum: 385 })
        );
    }
}
