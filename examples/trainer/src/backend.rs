//! The one place where the backend is chosen. Everything else is generic.

use crate::{
    Error,
    cli::{BackendKind, Checkpointing, DeviceKind, RunArgs, Switch},
    memory::{Forms, Probe, Reading, Usage, human},
    optim::{BaseBackend, TrainBackend},
    place::{Nudge, Place},
    report::Card,
};
use burn::{
    backend::{
        Autodiff, Cuda, autodiff::checkpoint::strategy::BalancedCheckpointing, cuda::CudaDevice,
    },
    tensor::bf16,
};
#[cfg(not(feature = "distributed"))]
use burn::{
    backend::{Flex, flex::FlexDevice},
    tensor::{DType, set_default_dtypes},
};
use burn_backend::StreamId;
use burn_cubecl::CubeBackend;
use burn_fusion::get_client;
use burn_lct::{LctBackend, PackedStore};
use cubecl::{
    Runtime,
    config::{CubeClRuntimeConfig, RuntimeConfig},
    cuda::CudaRuntime,
};
use cudarc::driver::CudaContext;
use serde_json::json;
use std::{fs, sync::Arc};

/// BF16 on a card, with Burn's kernel fusion.
pub(crate) type OnCuda = Cuda<bf16, i32>;
/// BF16 on a card, every operation a kernel of its own.
pub(crate) type OnCudaUnfused = CubeBackend<CudaRuntime, bf16, i32, u8>;
/// The CPU; its type is a setting, see [`flex`].
#[cfg(not(feature = "distributed"))]
pub(crate) type OnCpu = Flex;

/// How a backend is set up on a device, and asked about memory there.
type SetUp<D> = fn(&RunArgs, &D) -> Result<Probe, Error>;

/// What runs on a backend.
pub trait Program {
    /// What comes out.
    type Output;

    /// The settings.
    fn args(&self) -> &RunArgs;

    /// How many devices it runs on at once, each from a thread of its own; `None` for one, from the thread that calls.
    fn devices(&self) -> Option<usize> {
        None
    }

    /// Runs on the devices, as many as it asked for.
    ///
    /// # Errors
    /// Whatever the program meets.
    fn run<B: TrainBackend>(&self, places: Vec<Place<B::Device>>) -> Result<Self::Output, Error>;
}

/// Runs with the backend that the settings ask for.
///
/// # Errors
/// A card that is not there, a backend that is not built in, or what the program reports.
pub fn run<P: Program>(program: &P) -> Result<P::Output, Error> {
    let args = program.args();
    let unfused = args.fusion == Switch::Off;
    match (use_cuda(args)?, args.backend, unfused) {
        #[cfg(not(feature = "distributed"))]
        (false, BackendKind::Plain, _) => flex::<_, OnCpu>(program, plain),
        (true, BackendKind::Plain, false) => cuda::<_, OnCuda>(program, plain),
        #[cfg(feature = "unfused")]
        (true, BackendKind::Plain, true) => cuda::<_, OnCudaUnfused>(program, plain),
        #[cfg(not(feature = "unfused"))]
        (true, _, true) => Err(Error::NotBuilt {
            what: "the unfused CUDA backend",
            remedy: "build it with --features unfused, or leave --fusion on",
        }),
        #[cfg(not(feature = "distributed"))]
        (false, BackendKind::Lct, _) => flex::<_, LctBackend<OnCpu>>(program, lct::<OnCpu>),
        #[cfg(feature = "distributed")]
        (false, _, _) => Err(Error::NotBuilt {
            what: "the CPU",
            remedy: "build it without --features distributed, or use --device cuda",
        }),
        (true, BackendKind::Lct, false) => cuda::<_, LctBackend<OnCuda>>(program, lct::<OnCuda>),
        #[cfg(feature = "unfused")]
        (true, BackendKind::Lct, true) => {
            cuda::<_, LctBackend<OnCudaUnfused>>(program, lct::<OnCudaUnfused>)
        }
    }
}

/// Plain Burn needs nothing and reports nothing.
fn plain<D>(_args: &RunArgs, _device: &D) -> Result<Probe, Error> {
    Ok(Probe::none())
}

/// Sets the compressed backend up, if settings are given, and says how to ask it about memory.
fn lct<B: PackedStore>(args: &RunArgs, device: &B::Device) -> Result<Probe, Error> {
    let device = device.clone();
    if let Some(path) = &args.lct_config {
        let text = fs::read_to_string(path).map_err(Error::io("read", path))?;
        let config = serde_json::from_str(&text).map_err(Error::json(path))?;
        LctBackend::<B>::configure(&device, config).map_err(|error| Error::Device {
            action: "configuring the compression",
            message: error.to_string(),
        })?;
    }
    let asked = device.clone();
    let words = move || {
        let report = LctBackend::<B>::memory_report(&asked);
        let (resident, logical) = (report.resident_bytes(), report.logical_bytes);
        Some(format!(
            "{} for {} of tensors",
            human(resident),
            human(logical)
        ))
    };
    let counted = device.clone();
    let forms = move || {
        let report = LctBackend::<B>::memory_report(&counted);
        Some(Forms {
            packed: report.packed_bytes + report.spill_bytes,
            reserve: report.reserved_bytes,
            window: report.window_bytes,
            kept_dense: report.kept_dense_bytes,
        })
    };
    let compression = move || {
        // Waits for the device, which is why it is asked for once, at the end.
        LctBackend::<B>::settle(&device);
        let report = LctBackend::<B>::memory_report(&device);
        let config = LctBackend::<B>::config(&device);
        let record = json!({ "config": config, "ratio": report.ratio(), "report": report });
        Some((report.to_string(), record))
    };
    Ok(Probe {
        compression: Box::new(compression),
        forms: Arc::new(forms),
        words: Box::new(words),
        ..Probe::none()
    })
}

/// Trains on the CPU, in BF16 by the device's settings. All devices are this one.
#[cfg(not(feature = "distributed"))]
fn flex<P: Program, B: BaseBackend<Device = FlexDevice>>(
    program: &P,
    set_up: SetUp<FlexDevice>,
) -> Result<P::Output, Error> {
    let args = program.args();
    set_default_dtypes::<B>(&FlexDevice, DType::BF16, DType::I32)
        .map_err(Error::device("choosing BF16"))?;
    let card = Card {
        device: format!("{FlexDevice:?}"),
        name: processor(),
        ..Card::default()
    };
    let place = |probe| Place::new(FlexDevice, probe, card.clone());
    // It is set up, and reports, once.
    let mut places = vec![place(set_up(args, &FlexDevice)?)];
    let devices = program.devices().unwrap_or(1);
    places.resize_with(devices, || place(Probe::none()));
    differentiate::<_, B>(program, places)
}

/// Trains on the first card, or on several.
fn cuda<P: Program, B: BaseBackend<Device = CudaDevice>>(
    program: &P,
    set_up: SetUp<CudaDevice>,
) -> Result<P::Output, Error> {
    let args = program.args();
    let asked = program.devices().unwrap_or(1);
    let found = CudaContext::device_count().map_err(Error::device("counting cards"))?;
    if asked > found as usize {
        return Err(Error::TooFewCards { asked, found });
    }
    if program.devices().is_some() {
        share_streams();
    }
    if !args.quiet {
        announce_first_start();
    }
    let place = |index| {
        let device = CudaDevice::new(index);
        if let Some(gib) = args.max_memory {
            hold_all_but(gib, &device)?;
        }
        Ok(Place {
            probe: Probe {
                usage: usage(&device),
                ..set_up(args, &device)?
            },
            card: card(&device),
            nudge: nudge(args, &device),
            device,
        })
    };
    let places: Result<Vec<_>, Error> = (0..asked).map(place).collect();
    differentiate::<_, B>(program, places?)
}

/// Lets all threads compute on one stream of each card. CubeCL keeps a pool of memory for each stream, and a training on
/// several devices computes on several threads: so the allocator's figures are those of the card.
fn share_streams() {
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    config.streaming.max_streams = 1;
    CubeClRuntimeConfig::set(config);
}

/// How to ask the allocator and the driver of a card.
fn usage(device: &CudaDevice) -> Reading<Usage> {
    let client = CudaRuntime::client(device);
    // CubeCL keeps one pool of memory for each thread that computes: this one's.
    let stream = StreamId::current();
    let context = CudaContext::new(device.index).ok();
    let taken = move || {
        let context = context.as_ref()?;
        context.bind_to_thread().ok()?;
        let (free, total) = cudarc::driver::result::mem_get_info().ok()?;
        Some((total - free) as u64)
    };
    Arc::new(move || {
        let usage = stream.executes(|| client.memory_usage()).ok()?;
        Some(Usage {
            in_use: usage.bytes_in_use,
            reserved: usage.bytes_reserved,
            process: taken().unwrap_or_default(),
        })
    })
}

/// How to have the queues of a card begun: that of burn-fusion, where there is one, and CubeCL's.
fn nudge(args: &RunArgs, device: &CudaDevice) -> Nudge {
    let client = CudaRuntime::client(device);
    let fusion = (args.fusion == Switch::On).then(|| get_client::<OnCudaUnfused>(device));
    Arc::new(move || {
        if let Some(fusion) = &fusion {
            fusion.flush_queue();
        }
        // Whatever is asked for at once has all before it begun.
        let _ = client.memory_usage();
    })
}

/// Adds automatic differentiation with the strategy asked for.
fn differentiate<P: Program, B: BaseBackend>(
    program: &P,
    places: Vec<Place<B::Device>>,
) -> Result<P::Output, Error> {
    match program.args().checkpointing {
        Checkpointing::None => program.run::<Autodiff<B>>(places),
        Checkpointing::Balanced => program.run::<Autodiff<B, BalancedCheckpointing>>(places),
    }
}

/// Whether to train on a card.
fn use_cuda(args: &RunArgs) -> Result<bool, Error> {
    let found = find_cuda();
    match args.device {
        DeviceKind::Cpu => Ok(false),
        DeviceKind::Auto => Ok(found.is_ok()),
        DeviceKind::Cuda => found
            .map(|()| true)
            .map_err(|reason| Error::NoCuda { reason }),
    }
}

/// Says why no card can be used, without the panic that a missing driver would cause later.
fn find_cuda() -> Result<(), String> {
    // SAFETY: this loads the driver's library, whose start-up code is sound to run at any time, and unloads it.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err("no NVIDIA driver was found".into());
    }
    match CudaContext::device_count() {
        Ok(0) => Err("the NVIDIA driver sees no card".into()),
        Ok(_) => Ok(()),
        Err(error) => Err(format!("the NVIDIA driver does not start: {error:?}")),
    }
}

/// Holds the memory that a card of so many GiB would not have, as long as the program runs.
fn hold_all_but(gib: f64, device: &CudaDevice) -> Result<(), Error> {
    let failed = |error: &dyn std::fmt::Debug| Error::Device {
        action: "holding the rest of the card's memory",
        message: format!("{error:?}"),
    };
    let context = CudaContext::new(device.index).map_err(|error| failed(&error))?;
    context.bind_to_thread().map_err(|error| failed(&error))?;
    let (free, total) = cudarc::driver::result::mem_get_info().map_err(|error| failed(&error))?;
    // What is taken already, this program's context above all, would be taken on the smaller card too.
    let rest = total.saturating_sub((gib * (1u64 << 30) as f64) as usize);
    if rest > free {
        return Err(failed(&format!(
            "{rest} bytes are to be held, {free} are free"
        )));
    }
    if rest > 0 {
        // SAFETY: the context is current; the memory is never written, read or given back.
        unsafe { cudarc::driver::result::malloc_sync(rest) }.map_err(|error| failed(&error))?;
    }
    // The last owner of the context gives all of its memory back.
    std::mem::forget(context);
    Ok(())
}

/// Name, memory and driver of a card, as far as the driver tells.
fn card(device: &CudaDevice) -> Card {
    let context = CudaContext::new(device.index).ok();
    Card {
        device: format!("{device:?}"),
        name: context.as_ref().and_then(|context| context.name().ok()),
        driver: std::fs::read_to_string("/sys/module/nvidia/version")
            .ok()
            .map(|version| version.trim().into()),
        total_bytes: context
            .and_then(|context| context.total_mem().ok())
            .map(|bytes| bytes as u64),
    }
}

/// The processor's name, where Linux tells it.
#[cfg(not(feature = "distributed"))]
fn processor() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// Says why the first step takes minutes on a card that has not run this program before.
fn announce_first_start() {
    let root = CubeClRuntimeConfig::get().autotune.cache.root();
    if !root.join("autotune").exists() {
        eprintln!(
            "first start on this card: tuning and compiling kernels, some minutes; cached under {}",
            root.display()
        );
    }
}
