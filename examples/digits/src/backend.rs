//! The one place where the backend is chosen. Everything else is generic.

use burn::backend::flex::FlexDevice;
use burn::backend::{Autodiff, Flex};
use burn::tensor::{DType, set_default_dtypes};
use burn_lct::{LctBackend, LctConfig, LctMemoryMetric, PackedStore};
use digits::Error;
use digits::cli::{BackendKind, DeviceKind, Settings};
use digits::train::{Outcome, train};
use std::fs;

/// Trains with the backend that the settings ask for. Returns the memory report too, if there is one.
///
/// # Errors
/// A card that is not there, a backend that is not built in, settings that cannot be used.
pub fn run(settings: &Settings) -> Result<(Outcome, Option<String>), Error> {
    match settings.device {
        DeviceKind::Cpu => {
            let device = FlexDevice;
            // Flex computes in whatever type its tensors have; this makes new ones BF16.
            set_default_dtypes::<Flex>(&device, DType::BF16, DType::I32).map_err(|error| {
                Error::NoBf16 {
                    message: error.to_string(),
                }
            })?;
            on::<Flex>(settings, &device)
        }
        DeviceKind::Cuda => cuda(settings),
    }
}

#[cfg(feature = "cuda")]
fn cuda(settings: &Settings) -> Result<(Outcome, Option<String>), Error> {
    use burn::backend::{Cuda, cuda::CudaDevice};
    use burn::tensor::bf16;

    find_cuda().map_err(|reason| Error::NoCuda { reason })?;
    on::<Cuda<bf16, i32>>(settings, &CudaDevice::default())
}

#[cfg(not(feature = "cuda"))]
fn cuda(_settings: &Settings) -> Result<(Outcome, Option<String>), Error> {
    Err(Error::NotBuilt {
        what: "CUDA",
        remedy: "build it with --features cuda, or use --device cpu",
    })
}

/// Says why no card can be used, without the panic that a missing driver would cause later.
#[cfg(feature = "cuda")]
fn find_cuda() -> Result<(), String> {
    // SAFETY: this loads the driver's library, whose start-up code is sound to run at any time, and unloads it.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err("no NVIDIA driver was found".into());
    }
    match cudarc::driver::CudaContext::device_count() {
        Ok(0) => Err("the NVIDIA driver sees no card".into()),
        Ok(_) => Ok(()),
        Err(error) => Err(format!("the NVIDIA driver does not start: {error:?}")),
    }
}

/// Trains on plain `B`, or on `B` compressed.
fn on<B: PackedStore>(
    settings: &Settings,
    device: &B::Device,
) -> Result<(Outcome, Option<String>), Error> {
    if settings.backend == BackendKind::Plain {
        let none = Vec::<LctMemoryMetric>::new();
        return Ok((train::<Autodiff<B>, _>(settings, device, none)?, None));
    }
    if let Some(path) = &settings.lct_config {
        let text = fs::read_to_string(path).map_err(Error::io("read", path))?;
        let config: LctConfig = serde_json::from_str(&text).map_err(|source| Error::Json {
            path: path.clone(),
            source,
        })?;
        LctBackend::<B>::configure(device, config)?;
    }
    let metrics = vec![
        LctMemoryMetric::resident::<B>(device),
        LctMemoryMetric::logical::<B>(device),
        LctMemoryMetric::ratio::<B>(device),
    ];
    let outcome = train::<Autodiff<LctBackend<B>>, _>(settings, device, metrics)?;
    LctBackend::<B>::settle(device);
    let report = LctBackend::<B>::memory_report(device).to_string();
    Ok((outcome, Some(report)))
}
