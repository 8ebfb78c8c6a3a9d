//! What the caller chooses: block profile and code family.

use serde::{Deserialize, Serialize};

/// How many words the streams of a block may fill.
///
/// | profile | symbols per stream | words per stream | bits per exponent |
/// |---------|-------------------:|-----------------:|------------------:|
/// | Auto    | 128 or 256         | as many as it needs | its code's mean + 0.06 or 0.12 |
/// | Clean   | 256                | 25               | 3.125             |
/// | Medium  | 128                | 14               | 3.5               |
/// | High    | 128                | 16               | 4.0               |
///
/// The last three are the paper's way: the packed size is known before the data, but for what overflows. The words of
/// Medium and High are our choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Every stream takes the words that it needs.
    #[default]
    Auto,
    /// For data that its code fits well, such as weights.
    Clean,
    /// Some slack, for data of mixed scale.
    Medium,
    /// Most slack, for data of high exponent entropy.
    High,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Profile; 4] = [
        Profile::Auto,
        Profile::Clean,
        Profile::Medium,
        Profile::High,
    ];

    /// Symbols in each stream of a full block, for a tensor of so many values.
    ///
    /// Short streams let more threads work on a small tensor; long ones waste less at their ends.
    pub const fn stream_symbols(self, values: u32) -> u32 {
        match self {
            Profile::Auto if values < LONG_STREAMS_FROM => 128,
            Profile::Auto | Profile::Clean => 256,
            Profile::Medium | Profile::High => 128,
        }
    }

    /// 32-bit words that each stream of a full block owns, or 0 if that is not fixed.
    pub const fn stream_words(self) -> u32 {
        match self {
            Profile::Auto => 0,
            Profile::Clean => 25,
            Profile::Medium => 14,
            Profile::High => 16,
        }
    }

    /// The profile's number in the header.
    pub const fn code(self) -> u8 {
        match self {
            Profile::Clean => 0,
            Profile::Medium => 1,
            Profile::High => 2,
            Profile::Auto => 3,
        }
    }

    /// The profile with this number, if there is one.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Profile::Clean),
            1 => Some(Profile::Medium),
            2 => Some(Profile::High),
            3 => Some(Profile::Auto),
            _ => None,
        }
    }
}

/// From so many values on, `Auto` has long streams.
pub const LONG_STREAMS_FROM: u32 = 1 << 25;

/// Where the code for the exponents comes from. Every choice reads at most
/// [`SAMPLE_VALUES`](crate::codebook::SAMPLE_VALUES) values, and none affects correctness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// The precomputed codes for a normal distribution, at the cheapest scale.
    Gaussian,
    /// The precomputed codes for a Laplace distribution, at the cheapest scale.
    Laplace,
    /// The precomputed codes for a power-law distribution, at the cheapest scale.
    PowerLaw,
    /// The cheapest precomputed code of all families.
    Best,
    /// A Huffman code built from the sample itself.
    #[default]
    Sampled,
}

impl Family {
    /// Every family, in the order of their numbers in the format.
    pub const ALL: [Family; 5] = [
        Family::Gaussian,
        Family::Laplace,
        Family::PowerLaw,
        Family::Best,
        Family::Sampled,
    ];
}

/// The codec's settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct CodecConfig {
    /// Block profile.
    pub profile: Profile,
    /// Code family.
    pub family: Family,
}

impl CodecConfig {
    /// The settings with this profile.
    #[must_use]
    pub fn with_profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// The settings with this family.
    #[must_use]
    pub fn with_family(mut self, family: Family) -> Self {
        self.family = family;
        self
    }
}
