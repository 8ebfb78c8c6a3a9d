//! A metric for burn-train's learners and its dashboard (feature `train`).

use std::sync::Arc;

use burn_backend::tensor::Device;
use burn_train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};

use crate::backend::LctBackend;
use crate::report::MemoryReport;
use crate::store::PackedStore;

const MIB: f64 = (1 << 20) as f64;

/// What a [`LctMemoryMetric`] shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quantity {
    /// Bytes that the managed tensors take now, packed and dense.
    Resident,
    /// Bytes that they would take dense.
    Logical,
    /// Logical over packed bytes of all encodes so far.
    Ratio,
}

/// Plots the memory of a device's compressed tensors beside a training's other metrics.
///
/// It reads counters, from whatever thread computes metrics, and never touches the device. Its input is `()`, so it fits
/// every model's output:
///
/// ```
/// use burn_lct::{LctMemoryMetric, PackedStore};
/// use burn_train::{LearningComponentsTypes, SupervisedTraining};
///
/// fn watch<Plain: PackedStore, LC: LearningComponentsTypes>(
///     training: SupervisedTraining<LC>,
///     device: &Plain::Device,
/// ) -> SupervisedTraining<LC> {
///     training
///         .metric_train_numeric(LctMemoryMetric::resident::<Plain>(device))
///         .metric_train_numeric(LctMemoryMetric::ratio::<Plain>(device))
/// }
/// ```
///
/// What it shows is the state at the moment when a batch's metrics are computed, as a rule between two steps. The peaks are in
/// the [memory report](LctBackend::memory_report).
#[derive(Clone)]
pub struct LctMemoryMetric {
    name: MetricName,
    quantity: Quantity,
    report: Arc<dyn Fn() -> MemoryReport + Send + Sync>,
}

impl LctMemoryMetric {
    /// MiB that the device's BF16 tensors take, in whatever form.
    #[must_use]
    pub fn resident<B: PackedStore>(device: &Device<B>) -> Self {
        Self::new::<B>(device, "LCT resident", Quantity::Resident)
    }

    /// MiB that they would take without compression.
    #[must_use]
    pub fn logical<B: PackedStore>(device: &Device<B>) -> Self {
        Self::new::<B>(device, "LCT logical", Quantity::Logical)
    }

    /// Logical over packed bytes, of all encodes so far.
    #[must_use]
    pub fn ratio<B: PackedStore>(device: &Device<B>) -> Self {
        Self::new::<B>(device, "LCT ratio", Quantity::Ratio)
    }

    fn new<B: PackedStore>(device: &Device<B>, name: &str, quantity: Quantity) -> Self {
        Self {
            name: Arc::new(name.to_owned()),
            quantity,
            report: {
                let device = device.clone();
                Arc::new(move || LctBackend::<B>::memory_report(&device))
            },
        }
    }

    fn read(&self) -> f64 {
        let report = (self.report)();
        match self.quantity {
            Quantity::Resident => report.resident_bytes() as f64 / MIB,
            Quantity::Logical => report.logical_bytes as f64 / MIB,
            Quantity::Ratio => report.ratio(),
        }
    }
}

impl Metric for LctMemoryMetric {
    type Input = ();

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn description(&self) -> Option<String> {
        let text = match self.quantity {
            Quantity::Resident => {
                "Memory of the compressed backend's BF16 tensors, packed and dense"
            }
            Quantity::Logical => "Memory that these tensors would take without compression",
            Quantity::Ratio => "Logical over packed bytes",
        };
        Some(text.to_owned())
    }

    fn attributes(&self) -> MetricAttributes {
        let unit = match self.quantity {
            Quantity::Resident | Quantity::Logical => "MiB",
            Quantity::Ratio => "x",
        };
        NumericAttributes {
            unit: Some(unit.to_owned()),
            higher_is_better: self.quantity == Quantity::Ratio,
        }
        .into()
    }

    fn update(&mut self, _item: &(), _metadata: &MetricMetadata) -> SerializedEntry {
        let value = self.read();
        let formatted = match self.quantity {
            Quantity::Resident | Quantity::Logical => format!("{value:.1} MiB"),
            Quantity::Ratio => format!("{value:.3}x"),
        };
        SerializedEntry::new(formatted, value.to_string())
    }

    fn clear(&mut self) {}
}

impl Numeric for LctMemoryMetric {
    fn value(&self) -> NumericEntry {
        NumericEntry::Value(self.read())
    }

    fn running_value(&self) -> NumericEntry {
        self.value()
    }
}
