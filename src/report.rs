//! What the decorator knows about a device's memory, readable from any thread without touching the device.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

mod footprint;

pub(crate) use footprint::{Footprint, KeptDense};

use crate::error::{MemoryState, PackError};

/// The most errors that are kept.
const MOST_ERRORS: usize = 64;
/// The ratio that is counted on before anything has been encoded, and the least that is counted on.
const EXPECTED_RATIO: f64 = 1.4;
const LEAST_RATIO: f64 = 1.05;

/// A snapshot of one device's packed and dense tensors, in bytes unless said otherwise.
///
/// *Logical* bytes are what plain Burn would hold: elements times two for BF16. All `peak_*` values are
/// the largest seen since the device was first used (or since
/// [`reset_peaks`](crate::LctBackend::reset_peaks)), each for itself.
///
/// It prints as a summary of four lines, and is read and written with serde:
///
/// ```
/// use burn_lct::MemoryReport;
///
/// let report = MemoryReport {
///     peak_resident_bytes: 65 << 20,
///     peak_logical_bytes: 100 << 20,
///     encoded_bytes: 3 << 20,
///     encoded_to_bytes: 2 << 20,
///     ..MemoryReport::default()
/// };
/// assert_eq!(report.ratio(), 1.5);
/// let first = "LCT: at most 65.0 MiB resident for 100.0 MiB of BF16 tensors (35.0 % less), packed at 1.500x";
/// assert_eq!(report.to_string().lines().next(), Some(first));
///
/// let json = serde_json::to_string(&report)?;
/// assert_eq!(serde_json::from_str::<MemoryReport>(&json)?, report);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Logical bytes of the living BF16 tensors that the residency manages.
    pub logical_bytes: u64,
    /// Bytes of their packed forms, spill excluded.
    pub packed_bytes: u64,
    /// Bytes that spilled, as far as the host knows yet.
    pub spill_bytes: u64,
    /// Bytes reserved for what encodes may have spilled whose outcome the host has not read yet.
    pub reserved_bytes: u64,
    /// Dense bytes in the hot window: tensors not packed yet, and decoded copies.
    pub window_bytes: u64,
    /// Logical bytes of the tensors that are not stored, as one cheap operation gives them again from others.
    pub derived_bytes: u64,
    /// Dense bytes of tensors that stay so because packing them would not pay or their layout cannot be packed.
    pub kept_dense_bytes: u64,
    /// The largest `logical_bytes`.
    pub peak_logical_bytes: u64,
    /// The largest `packed_bytes`.
    pub peak_packed_bytes: u64,
    /// The largest `spill_bytes`.
    pub peak_spill_bytes: u64,
    /// The largest `reserved_bytes`.
    pub peak_reserved_bytes: u64,
    /// The largest `window_bytes`.
    pub peak_window_bytes: u64,
    /// The largest `derived_bytes`.
    pub peak_derived_bytes: u64,
    /// The largest `kept_dense_bytes`.
    pub peak_kept_dense_bytes: u64,
    /// The largest sum of packed, spill, reserved, window and kept dense bytes.
    pub peak_resident_bytes: u64,
    /// Tensors encoded so far.
    pub encodes: u64,
    /// Logical bytes encoded so far.
    pub encoded_bytes: u64,
    /// Packed bytes, spill included, that those encodes produced.
    pub encoded_to_bytes: u64,
    /// Tensors decoded so far.
    pub decodes: u64,
    /// Logical bytes decoded so far.
    pub decoded_bytes: u64,
    /// Tensors that came from another device in packed form so far.
    #[serde(default)]
    pub moves: u64,
    /// Their logical bytes.
    #[serde(default)]
    pub moved_bytes: u64,
    /// The bytes that they came as, spill included.
    #[serde(default)]
    pub moved_as_bytes: u64,
    /// Tensors computed again so far.
    pub derives: u64,
    /// Logical bytes computed again so far.
    pub rederived_bytes: u64,
    /// Encodes given up because the result would not have been at least 5 % smaller.
    pub incompressible: u64,
    /// Tensors that were not packed because of their memory layout (overlapping or scattered).
    pub unpackable_layouts: u64,
    /// Encodes that failed or whose verification found a difference. Those tensors stayed dense, but for those whose encode the
    /// device did not run and said so too late. [`pack_errors`](crate::LctBackend::pack_errors) says more of each.
    pub failed_encodes: u64,
    /// Those of them whose verification found a difference ([`LctConfig::verify`](crate::LctConfig::verify)).
    #[serde(default)]
    pub mismatched_encodes: u64,
    /// Float tensors of another type than BF16 that passed through untouched.
    pub passed_other_dtype: u64,
    /// BF16 tensors of fewer than 1,024 elements (or `min_elements`, if that is less), or beyond what one packed form can
    /// hold, that passed through untouched.
    pub passed_small: u64,
    /// Int and bool tensors that operations returned, alone or beside a float tensor; they are never touched.
    pub passed_int_bool: u64,
}

impl MemoryReport {
    /// Logical bytes over packed bytes, spill and metadata included, of all encodes so far; 1 if there was none.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        if self.encoded_to_bytes == 0 {
            1.0
        } else {
            self.encoded_bytes as f64 / self.encoded_to_bytes as f64
        }
    }

    /// Bytes now on the device for the managed tensors, in whatever form.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.packed_bytes
            + self.spill_bytes
            + self.reserved_bytes
            + self.window_bytes
            + self.kept_dense_bytes
    }
}

impl std::fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const MIB: f64 = (1 << 20) as f64;
        let mib = |bytes: u64| bytes as f64 / MIB;
        // Where little lives, packed forms and their decoded copies may take more together than the tensors would.
        let saved = match self.peak_logical_bytes {
            0 => 0.0,
            logical => 1.0 - self.peak_resident_bytes as f64 / logical as f64,
        };
        writeln!(
            f,
            "LCT: at most {:.1} MiB resident for {:.1} MiB of BF16 tensors ({:.1} % {}), packed at {:.3}x",
            mib(self.peak_resident_bytes),
            mib(self.peak_logical_bytes),
            100.0 * saved.abs(),
            if saved < 0.0 { "more" } else { "less" },
            self.ratio(),
        )?;
        writeln!(
            f,
            "  peaks    packed {:.1} MiB, hot window {:.1} MiB, derived {:.1} MiB, spill {:.1} MiB, reserved {:.1} MiB, kept dense {:.1} MiB",
            mib(self.peak_packed_bytes),
            mib(self.peak_window_bytes),
            mib(self.peak_derived_bytes),
            mib(self.peak_spill_bytes),
            mib(self.peak_reserved_bytes),
            mib(self.peak_kept_dense_bytes),
        )?;
        writeln!(
            f,
            "  encoded  {} tensors, {:.1} MiB; decoded {} tensors, {:.1} MiB; computed again {} tensors, {:.1} MiB",
            self.encodes,
            mib(self.encoded_bytes),
            self.decodes,
            mib(self.decoded_bytes),
            self.derives,
            mib(self.rederived_bytes),
        )?;
        write!(
            f,
            "  passed   {} small, {} of another float type, {} int or bool; incompressible {}, unpackable layout {}, failed {} (mismatched {})",
            self.passed_small,
            self.passed_other_dtype,
            self.passed_int_bool,
            self.incompressible,
            self.unpackable_layouts,
            self.failed_encodes,
            self.mismatched_encodes,
        )?;
        // What a program meets that took over everything but the type.
        if self.peak_logical_bytes == 0 && self.passed_other_dtype > 0 {
            write!(
                f,
                "\n  note     only BF16 tensors are compressed, and there was none large enough: take `Cuda<bf16, i32>` for the backend, \
                 or on Flex `set_default_dtypes` (docs/guide.md, Getting started)",
            )?;
        }
        Ok(())
    }
}

/// A level that goes up and down, with the highest it ever was.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    now: AtomicU64,
    peak: AtomicU64,
    /// The highest ever, which resetting the peak leaves.
    most: AtomicU64,
}

impl Gauge {
    pub(crate) fn add(&self, amount: u64) {
        let now = self.now.fetch_add(amount, Relaxed) + amount;
        self.peak.fetch_max(now, Relaxed);
        self.most.fetch_max(now, Relaxed);
    }

    pub(crate) fn sub(&self, amount: u64) {
        self.now.fetch_sub(amount, Relaxed);
    }

    pub(crate) fn now(&self) -> u64 {
        self.now.load(Relaxed)
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    /// The highest that it ever was, on which decisions rest.
    pub(crate) fn most(&self) -> u64 {
        self.most.load(Relaxed)
    }

    fn reset_peak(&self) {
        self.peak.store(self.now(), Relaxed);
    }
}

/// The counters behind a [`MemoryReport`]; one set per device.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) logical: Gauge,
    /// Logical bytes of all tensors that there ever were.
    entered: AtomicU64,
    largest: AtomicU64,
    packed: Gauge,
    spill: Gauge,
    reserved: Gauge,
    window: Gauge,
    /// Dense bytes of tensors whose pack is queued.
    queued: Gauge,
    pub(crate) derived: Gauge,
    kept_dense: Gauge,
    resident: Gauge,
    encodes: AtomicU64,
    encoded: AtomicU64,
    encoded_to: AtomicU64,
    decodes: AtomicU64,
    decoded: AtomicU64,
    moves: AtomicU64,
    moved: AtomicU64,
    moved_as: AtomicU64,
    derives: AtomicU64,
    rederived: AtomicU64,
    incompressible: AtomicU64,
    unpackable: AtomicU64,
    failed: AtomicU64,
    mismatched: AtomicU64,
    passed_other_dtype: AtomicU64,
    passed_small: AtomicU64,
    passed_int_bool: AtomicU64,
    /// The first errors.
    errors: Mutex<Vec<PackError>>,
}

impl Stats {
    /// Logs an error and keeps it, if it is one of the first.
    pub(crate) fn on_error(&self, error: PackError) {
        tracing::error!(%error, "a tensor could not be packed");
        if matches!(error, PackError::Mismatch { .. }) {
            self.mismatched.fetch_add(1, Relaxed);
        }
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.len() < MOST_ERRORS {
            errors.push(error);
        }
    }

    /// The first errors.
    pub(crate) fn errors(&self) -> Vec<PackError> {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.clone()
    }

    /// What the device has to give, of which `needed` bytes were asked for and `free` can be had.
    pub(crate) fn memory(&self, needed: Option<u64>, free: Option<u64>) -> MemoryState {
        MemoryState {
            needed,
            free,
            resident: self.resident.now(),
            logical: self.logical.now(),
        }
    }

    pub(crate) fn window_add(&self, bytes: u64) {
        self.window.add(bytes);
        self.resident.add(bytes);
    }

    pub(crate) fn window_sub(&self, bytes: u64) {
        self.window.sub(bytes);
        self.resident.sub(bytes);
    }

    /// Dense bytes of a pack that is queued: they have left the window, but are still there.
    #[cfg(feature = "cube")]
    pub(crate) fn queue_add(&self, bytes: u64) {
        self.queued.add(bytes);
        self.resident.add(bytes);
    }

    /// The queued pack has run.
    #[cfg(feature = "cube")]
    pub(crate) fn queue_sub(&self, bytes: u64) {
        self.queued.sub(bytes);
        self.resident.sub(bytes);
    }

    /// Bytes reserved for what may have spilled.
    pub(crate) fn reserved_now(&self) -> u64 {
        self.reserved.now()
    }

    /// The most bytes that all forms ever took together.
    pub(crate) fn most_resident(&self) -> u64 {
        self.resident.most()
    }

    pub(crate) fn window_now(&self) -> u64 {
        self.window.now()
    }

    /// Bytes of the tensors that are packed or could be: all forms but those that stay dense and unread reserves. One whose
    /// pack is queued counts with what it is going to take.
    pub(crate) fn managed_now(&self) -> u64 {
        let queued = (self.queued.now() as f64 / self.expected_ratio()) as u64;
        self.packed.now() + self.spill.now() + self.window.now() + queued
    }

    /// Counts the logical bytes of a new tensor.
    pub(crate) fn on_enter(&self, bytes: u64) {
        self.entered.fetch_add(bytes, Relaxed);
        self.largest.fetch_max(bytes, Relaxed);
    }

    /// Logical bytes of the largest tensor so far.
    pub(crate) fn largest(&self) -> u64 {
        self.largest.load(Relaxed)
    }

    /// Logical bytes of all tensors so far.
    pub(crate) fn entered(&self) -> u64 {
        self.entered.load(Relaxed)
    }

    /// Logical over packed bytes of all encodes, once there was one.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let packed = self.encoded_to.load(Relaxed);
        (packed > 0).then(|| self.encoded.load(Relaxed) as f64 / packed as f64)
    }

    /// What a tensor is expected to shrink by: as those so far did.
    pub(crate) fn expected_ratio(&self) -> f64 {
        self.ratio().unwrap_or(EXPECTED_RATIO).max(LEAST_RATIO)
    }

    pub(crate) fn on_decode(&self, logical: u64) {
        self.decodes.fetch_add(1, Relaxed);
        self.decoded.fetch_add(logical, Relaxed);
    }

    pub(crate) fn on_derive(&self, logical: u64) {
        self.derives.fetch_add(1, Relaxed);
        self.rederived.fetch_add(logical, Relaxed);
    }

    pub(crate) fn on_other_dtype(&self) {
        self.passed_other_dtype.fetch_add(1, Relaxed);
    }

    pub(crate) fn on_small(&self) {
        self.passed_small.fetch_add(1, Relaxed);
    }

    pub(crate) fn on_int_bool(&self) {
        self.passed_int_bool.fetch_add(1, Relaxed);
    }

    pub(crate) fn reset_peaks(&self) {
        for gauge in [
            &self.logical,
            &self.packed,
            &self.spill,
            &self.reserved,
            &self.window,
            &self.derived,
            &self.kept_dense,
            &self.resident,
        ] {
            gauge.reset_peak();
        }
    }

    pub(crate) fn report(&self) -> MemoryReport {
        MemoryReport {
            logical_bytes: self.logical.now(),
            packed_bytes: self.packed.now(),
            spill_bytes: self.spill.now(),
            reserved_bytes: self.reserved.now(),
            window_bytes: self.window.now(),
            derived_bytes: self.derived.now(),
            kept_dense_bytes: self.kept_dense.now(),
            peak_logical_bytes: self.logical.peak(),
            peak_packed_bytes: self.packed.peak(),
            peak_spill_bytes: self.spill.peak(),
            peak_reserved_bytes: self.reserved.peak(),
            peak_window_bytes: self.window.peak(),
            peak_derived_bytes: self.derived.peak(),
            peak_kept_dense_bytes: self.kept_dense.peak(),
            peak_resident_bytes: self.resident.peak(),
            encodes: self.encodes.load(Relaxed),
            encoded_bytes: self.encoded.load(Relaxed),
            encoded_to_bytes: self.encoded_to.load(Relaxed),
            decodes: self.decodes.load(Relaxed),
            decoded_bytes: self.decoded.load(Relaxed),
            moves: self.moves.load(Relaxed),
            moved_bytes: self.moved.load(Relaxed),
            moved_as_bytes: self.moved_as.load(Relaxed),
            derives: self.derives.load(Relaxed),
            rederived_bytes: self.rederived.load(Relaxed),
            incompressible: self.incompressible.load(Relaxed),
            unpackable_layouts: self.unpackable.load(Relaxed),
            failed_encodes: self.failed.load(Relaxed),
            mismatched_encodes: self.mismatched.load(Relaxed),
            passed_other_dtype: self.passed_other_dtype.load(Relaxed),
            passed_small: self.passed_small.load(Relaxed),
            passed_int_bool: self.passed_int_bool.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_says_whether_memory_was_saved() {
        let first_line = |peak_resident_bytes, peak_logical_bytes| {
            let report = MemoryReport {
                peak_resident_bytes,
                peak_logical_bytes,
                ..MemoryReport::default()
            };
            report.to_string().lines().next().unwrap().to_owned()
        };
        assert!(first_line(3 << 20, 4 << 20).contains("(25.0 % less)"));
        assert!(first_line(5 << 20, 4 << 20).contains("(25.0 % more)"));
        assert!(first_line(0, 0).contains("(0.0 % less)"));
    }

    #[test]
    fn a_program_without_bf16_is_told_so() {
        let has_note = |peak_logical_bytes, passed_other_dtype| {
            let report = MemoryReport {
                peak_logical_bytes,
                passed_other_dtype,
                ..MemoryReport::default()
            };
            report.to_string().contains("only BF16")
        };
        assert!(has_note(0, 9));
        assert!(!has_note(1 << 20, 9) && !has_note(0, 0));
    }
}
