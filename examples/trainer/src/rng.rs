//! Random numbers on the host: the same on every machine and every backend.

/// A SplitMix64 generator. Its whole state is one word, so a key made of (seed, step, row) is a stream of its own.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator keyed by several words; any word that differs gives another stream.
    pub fn keyed(words: &[u64]) -> Self {
        let mut state = Self(0x6A09_E667_F3BC_C908);
        for &word in words {
            state.0 ^= word;
            state.0 = state.next_u64();
        }
        state
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`, from the high half of a 128-bit product; 0 when `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// A number in `[0, 1)` with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}
