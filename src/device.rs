//! What a user may ask of a device: its configuration and its memory report.

use burn_backend::tensor::Device;

use crate::backend::LctBackend;
use crate::config::LctConfig;
use crate::error::{ConfigError, PackError};
use crate::report::MemoryReport;
use crate::residency::Residency;
use crate::store::PackedStore;

impl<B: PackedStore> LctBackend<B> {
    /// Sets the configuration of a device, before its first tensor is created.
    ///
    /// # Errors
    /// If the configuration is [not usable](LctConfig::validate), or the device is in use already: each device is configured
    /// once, and by its first tensor at the latest.
    ///
    /// ```
    /// # #[cfg(feature = "flex")] {
    /// use burn_flex::{Flex, FlexDevice};
    /// use burn_lct::{ConfigError, HotWindow, LctBackend, LctConfig};
    ///
    /// let device = FlexDevice;
    /// let config = LctConfig::default().with_hot_window(HotWindow::Share(0.5));
    /// LctBackend::<Flex>::configure(&device, config.clone())?;
    /// assert_eq!(LctBackend::<Flex>::config(&device), config);
    ///
    /// let late = LctBackend::<Flex>::configure(&device, LctConfig::default());
    /// assert!(matches!(late, Err(ConfigError::InUse { .. })));
    /// # }
    /// # Ok::<(), burn_lct::ConfigError>(())
    /// ```
    pub fn configure(device: &Device<B>, config: LctConfig) -> Result<(), ConfigError> {
        Residency::<B>::configure(device, config)
    }

    /// The configuration that the device has: the default one, unless another was [set](Self::configure).
    #[must_use]
    pub fn config(device: &Device<B>) -> LctConfig {
        Residency::<B>::find(device)
            .map_or_else(LctConfig::default, |residency| residency.config().clone())
    }

    /// A snapshot of the device's counters.
    ///
    /// Reads atomics only: any thread may call it at any time, and the device is not touched. Spill that the host has
    /// not been told of yet is missing; [`settle`](Self::settle) asks for it.
    ///
    /// ```
    /// # #[cfg(feature = "flex")] {
    /// use burn::tensor::{DType, Distribution, Tensor};
    /// use burn_flex::{Flex, FlexDevice};
    /// use burn_lct::{HotWindow, LctBackend, LctConfig};
    ///
    /// type B = LctBackend<Flex>;
    ///
    /// let device = FlexDevice;
    /// // No dense bytes at all, to see something packed.
    /// B::configure(&device, LctConfig::default().with_hot_window(HotWindow::Bytes(0))).unwrap();
    /// let tensor = Tensor::<B, 2>::random([256, 256], Distribution::Default, (&device, DType::BF16));
    ///
    /// let report = B::memory_report(&device);
    /// assert_eq!(report.logical_bytes, 256 * 256 * 2);
    /// assert!(report.resident_bytes() < report.logical_bytes);
    /// println!("{report}");
    /// # drop(tensor);
    /// # }
    /// ```
    #[must_use]
    pub fn memory_report(device: &Device<B>) -> MemoryReport {
        Residency::<B>::find(device).map_or_else(MemoryReport::default, |residency| {
            residency.stats().report()
        })
    }

    /// The first tensors that could not be packed or did not [verify](LctConfig::verify), at most 64.
    ///
    /// [`MemoryReport::failed_encodes`] counts all of them. What an encode on the device came to is known once its outcome
    /// has been read; [`settle`](Self::settle) asks for it.
    ///
    /// ```
    /// # #[cfg(feature = "flex")] {
    /// use burn_flex::{Flex, FlexDevice};
    /// use burn_lct::LctBackend;
    ///
    /// for error in LctBackend::<Flex>::pack_errors(&FlexDevice) {
    ///     eprintln!("{error}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn pack_errors(device: &Device<B>) -> Vec<PackError> {
        Residency::<B>::find(device).map_or_else(Vec::new, |residency| residency.stats().errors())
    }

    /// Sets every peak of the [report](Self::memory_report) to the level of now.
    ///
    /// For the peaks of a part of a program, say of the training without its first step.
    ///
    /// ```
    /// # #[cfg(feature = "flex")] {
    /// use burn::tensor::{DType, Tensor};
    /// use burn_flex::{Flex, FlexDevice};
    /// use burn_lct::LctBackend;
    ///
    /// type B = LctBackend<Flex>;
    ///
    /// let device = FlexDevice;
    /// drop(Tensor::<B, 1>::zeros([1 << 20], (&device, DType::BF16)));
    /// assert_eq!(B::memory_report(&device).peak_logical_bytes, 2 << 20);
    /// B::reset_peaks(&device);
    /// assert_eq!(B::memory_report(&device).peak_logical_bytes, 0);
    /// # }
    /// ```
    pub fn reset_peaks(device: &Device<B>) {
        if let Some(residency) = Residency::<B>::find(device) {
            residency.stats().reset_peaks();
        }
    }

    /// Waits for the outcome of every encode, so that all reserves are given back and the report is exact.
    ///
    /// Blocks until the device has done what was asked of it, and under burn-fusion executes what is queued. Call it once, at
    /// the end, before the report is read; nothing else needs it.
    ///
    /// ```
    /// # #[cfg(feature = "flex")] {
    /// use burn_flex::{Flex, FlexDevice};
    /// use burn_lct::LctBackend;
    ///
    /// let device = FlexDevice;
    /// // ... train ...
    /// LctBackend::<Flex>::settle(&device);
    /// assert_eq!(LctBackend::<Flex>::memory_report(&device).reserved_bytes, 0);
    /// # }
    /// ```
    pub fn settle(device: &Device<B>) {
        B::settle(device);
    }
}
