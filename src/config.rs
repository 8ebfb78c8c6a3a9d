//! What a user may choose, with a default for each choice.

use lct_kernels::{CodecConfig, Family, Profile};
use serde::{Deserialize, Serialize};

use crate::error::ConfigError;

/// How many bytes of dense tensors stay in the hot window of a device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HotWindow {
    /// As many as keep the tensors of the device, in all forms together, within this share of the most logical bytes that
    /// lived there at one time so far.
    ///
    /// While few tensors live, as in most of the backward pass, all of them may be dense; when as many live as ever did, the
    /// share says how much less memory they take than plain Burn's. It may be out of reach, as where weights, gradients and
    /// optimizer state are nearly all there is, and none of them can be computed again: then the least that was reached is
    /// the limit. A share's limit grows during a program's first step and then stays. Tensors of less than 1/8192 of the most
    /// logical bytes are not packed for a share.
    Share(f64),
    /// A fixed number of bytes. Zero packs every tensor as soon as it exists.
    Bytes(u64),
}

/// The configuration of [`LctBackend`](crate::LctBackend) on one device.
///
/// Every field has a default that needs no choice. Set it with
/// [`LctBackend::configure`](crate::LctBackend::configure) before the device is first used.
///
/// ```
/// use burn_lct::{HotWindow, LctConfig};
///
/// let config = LctConfig::default()
///     .with_hot_window(HotWindow::Bytes(64 << 20))
///     .with_min_elements(4096);
/// assert!(config.validate().is_ok());
/// ```
///
/// As JSON, what is missing has its default, and what is unknown is an error:
///
/// ```
/// use burn_lct::{HotWindow, LctConfig};
///
/// let config: LctConfig = serde_json::from_str(r#"{"hot_window": {"share": 0.5}}"#)?;
/// assert_eq!(config, LctConfig::default().with_hot_window(HotWindow::Share(0.5)));
/// assert!(serde_json::from_str::<LctConfig>(r#"{"window": 1}"#).is_err());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LctConfig {
    /// Dense bytes that the hot window may hold before its oldest living tensors are packed.
    pub hot_window: HotWindow,
    /// The smallest tensor, in elements, that is ever packed. Smaller ones stay dense.
    pub min_elements: usize,
    /// How much room the packed form gives to exponents: what they need, or a fixed number of bits.
    pub profile: Profile,
    /// Where the Huffman code comes from.
    pub family: Family,
    /// Bytes of worst-case spill that may be reserved for encodes whose outcome the host has not read yet, and at most an
    /// eighth of the most bytes that ever lived (a thirty-second where the device is tight; but 8 MiB). It bounds how far the
    /// host runs ahead of the accelerator. While reserved, a tensor takes about what it took dense; outcomes are read first
    /// where a share would be exceeded otherwise.
    pub spill_reserve: u64,
    /// Decode every packed tensor at once and compare it with the original, bit for bit, where both are: on the device. The
    /// original stays until the comparison has been read, and for good if it found a difference, which is
    /// [reported](crate::LctBackend::pack_errors).
    ///
    /// A verified encode costs an encode, a decode and a comparison, and as long as its outcome has not been read the bytes
    /// of the dense tensor, which count as reserved. Optimizers' steps work on dense tensors then.
    pub verify: bool,
}

impl Default for LctConfig {
    fn default() -> Self {
        Self {
            hot_window: HotWindow::Share(0.6),
            min_elements: 16_384,
            profile: Profile::default(),
            family: Family::default(),
            spill_reserve: 2 << 30,
            verify: false,
        }
    }
}

impl LctConfig {
    /// Sets the [hot window](Self::hot_window).
    #[must_use]
    pub fn with_hot_window(mut self, hot_window: HotWindow) -> Self {
        self.hot_window = hot_window;
        self
    }

    /// Sets the [smallest tensor](Self::min_elements) that is packed, in elements.
    #[must_use]
    pub fn with_min_elements(mut self, min_elements: usize) -> Self {
        self.min_elements = min_elements;
        self
    }

    /// Sets the codec's [profile](Self::profile).
    #[must_use]
    pub fn with_profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// Sets the [family](Self::family) from which the codebook is taken.
    #[must_use]
    pub fn with_family(mut self, family: Family) -> Self {
        self.family = family;
        self
    }

    /// Sets the [spill reserve](Self::spill_reserve), in bytes.
    #[must_use]
    pub fn with_spill_reserve(mut self, bytes: u64) -> Self {
        self.spill_reserve = bytes;
        self
    }

    /// Sets the [verify mode](Self::verify).
    #[must_use]
    pub fn with_verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// Checks that the configuration can be used.
    ///
    /// # Errors
    /// Says which field is out of range, with its value and the range.
    ///
    /// ```
    /// use burn_lct::{HotWindow, LctConfig};
    ///
    /// let config = LctConfig::default().with_hot_window(HotWindow::Share(1.5));
    /// let error = config.validate().unwrap_err();
    /// assert_eq!(error.to_string(), "hot_window is 1.5, but must lie between 0 and 1, both excluded");
    /// ```
    pub fn validate(&self) -> Result<(), ConfigError> {
        if let HotWindow::Share(given) = self.hot_window
            && !(given > 0.0 && given < 1.0)
        {
            return Err(ConfigError::Share {
                name: "hot_window",
                given,
            });
        }
        if self.min_elements == 0 {
            return Err(ConfigError::MinElements { given: 0 });
        }
        // A block holds at most 8,192 values, and none spills more than a byte for each.
        let needed = 8192;
        if self.spill_reserve < needed {
            return Err(ConfigError::SpillReserve {
                given: self.spill_reserve,
                needed,
            });
        }
        Ok(())
    }

    /// The part of the configuration that the codec takes.
    pub(crate) fn codec(&self) -> CodecConfig {
        CodecConfig {
            profile: self.profile,
            family: self.family,
        }
    }
}
