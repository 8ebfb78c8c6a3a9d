#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod backend;
mod config;
mod device;
#[cfg(feature = "distributed")]
mod distributed;
mod error;
#[cfg(feature = "cli")]
pub mod inspect;
mod lock;
#[cfg(feature = "train")]
mod metric;
mod ops;
#[cfg(feature = "optim")]
pub mod optim;
mod per_device;
mod report;
mod residency;
#[cfg(all(test, any(feature = "flex", feature = "wgpu")))]
mod samples;
mod store;
mod tensor;

pub use backend::LctBackend;
pub use config::{HotWindow, LctConfig};
pub use error::{ConfigError, MemoryState, PackError};
pub use lct_kernels as kernels;
pub use lct_kernels::{Family, Profile};
#[cfg(feature = "train")]
pub use metric::LctMemoryMetric;
#[cfg(feature = "optim")]
pub use optim::{LctAdamConfig, LctAdamWConfig, LctSgdConfig};
pub use report::MemoryReport;
pub use store::{Operands, PackRequest, PackedStore};
pub use tensor::LctTensor;

/// The guide's programs, as tests.
#[cfg(all(doctest, feature = "flex"))]
#[doc = include_str!("../docs/guide.md")]
struct Guide;
