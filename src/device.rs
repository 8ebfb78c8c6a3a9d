//! What a user may ask of a device: its configuration and its memory report.

use burn_backend::tensor::Device;

use crate::backend::LctBackend;
use crate::config::LctConfig;
use crate::error::ConfigError;
use crate::report::MemoryReport;
use crate::residency::Residency;
use crate::store::PackedStore;

impl<B: PackedStore> LctBackend<B> {
    /// Sets the configuration of a device, before its first tensor is created.
    ///
    /// # Errors
    /// If the configuration is [not usable](LctConfig::validate), or the device is in use already.
    pub fn configure(device: &Device<B>, config: LctConfig) -> Result<(), ConfigError> {
        Residency::<B>::configure(device, config)
    }

    /// The configuration that the device has.
    #[must_use]
    pub fn config(device: &Device<B>) -> LctConfig {
        Residency::<B>::find(device)
            .map_or_else(LctConfig::default, |residency| residency.config().clone())
    }

    /// A snapshot of the device's counters.
    ///
    /// Reads atomics only: any thread may call it at any time, and the device is not touched. Spill that the host has
    /// not been told of yet is missing; [`settle`](Self::settle) asks for it.
    #[must_use]
    pub fn memory_report(device: &Device<B>) -> MemoryReport {
        Residency::<B>::find(device).map_or_else(MemoryReport::default, |residency| {
            residency.stats().report()
        })
    }

    /// Sets every peak of the [report](Self::memory_report) to the level of now.
    pub fn reset_peaks(device: &Device<B>) {
        if let Some(residency) = Residency::<B>::find(device) {
            residency.stats().reset_peaks();
        }
    }

    /// Waits for the outcome of every encode, so that all reserves are given back and the report is exact.
    ///
    /// Blocks until the device has done what was asked of it, and under burn-fusion executes what is queued.
    pub fn settle(device: &Device<B>) {
        B::settle(device);
    }
}
