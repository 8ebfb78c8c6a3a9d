//! Measures the codec on the CUDA card and writes the result as JSON: a list of rows, which `scripts/collect` completes.
//!
//! Before each run 256 MiB are written, so that the L2 holds nothing of the tensors. CUDA events enclose the launch alone;
//! the flush before it takes longer than the host needs to submit it, so no launch waits for the host.

use std::path::PathBuf;

use clap::Parser;
use cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl::prelude::*;
use cubecl::server::Handle;
use half::bf16;
use indicatif::{ProgressBar, ProgressStyle};
use lct_kernels::launch::{self, DenseLayout, Tickets};
use lct_kernels::{Family, PackedLayout, Profile};
use rand::{SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution, Normal};
use serde::Serialize;

use super::baseline::{copy_into, median};

type Client = ComputeClient<CudaRuntime>;

/// What to measure, and where to write it.
#[derive(Debug, Parser)]
struct Args {
    /// Tensor sizes in values.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "2359296,16777216,67108864,268435456"
    )]
    values: Vec<usize>,
    /// Only this profile.
    #[arg(long, value_parser = profile)]
    profile: Option<Profile>,
    /// Runs, of which the median counts; 0: no timing, for a profiler.
    #[arg(long, default_value_t = 25)]
    rounds: usize,
    /// Measure the CUDA card, not the host.
    #[arg(long, required = true)]
    device: bool,
    /// What `cargo bench` passes to every bench.
    #[arg(long, hide = true)]
    bench: bool,
    /// Where the JSON goes.
    #[arg(long)]
    report: Option<PathBuf>,
}

fn profile(name: &str) -> Result<Profile, String> {
    serde_json::from_value(name.into()).map_err(|error| error.to_string())
}

/// One measured size and configuration.
#[derive(Debug, Serialize)]
struct Row {
    values: usize,
    data: String,
    profile: Profile,
    family: Family,
    ratio: f64,
    exact: bool,
    copy_gbps: f64,
    encode_us: f64,
    decode_us: f64,
    encode_samples_us: Vec<f64>,
    decode_samples_us: Vec<f64>,
}

/// Several times the H200's L2.
const FLUSH_BYTES: usize = 256 << 20;

#[cube(launch_unchecked)]
fn fill(output: &mut Array<Vector<u32, Const<4>>>, vectors: u32) {
    if ABSOLUTE_POS < vectors as usize {
        output[ABSOLUTE_POS] = Vector::new(ABSOLUTE_POS as u32);
    }
}

/// Measures what the command line asks for.
pub fn run() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    if args.rounds > 0 {
        super::events::listen()?;
    }
    let client = CudaRuntime::client(&CudaDevice::default());
    let configs: Vec<(Profile, Family)> = [
        (Profile::Auto, Family::Sampled),
        (Profile::Clean, Family::Sampled),
        (Profile::Clean, Family::Gaussian),
        (Profile::High, Family::Sampled),
    ]
    .into_iter()
    .filter(|(profile, _)| args.profile.is_none_or(|only| only == *profile))
    .collect();
    let style = ProgressStyle::with_template("{msg:40} {bar:30} {pos}/{len}")?;
    let progress = ProgressBar::new((args.values.len() * configs.len()) as u64).with_style(style);
    let bench = Bench::new(&client, &args)?;
    let mut rows = Vec::new();
    for &values in &args.values {
        for &(profile, family) in &configs {
            progress.set_message(format!("{values} values, {profile:?}, {family:?}"));
            rows.extend(bench.measure(values, profile, family)?);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    for row in &rows {
        let gbps = |us: f64| (2 * row.values) as f64 / us * 1e-3;
        let roof = |us: f64| {
            let moved = (2 * row.values) as f64 * (1.0 + 1.0 / row.ratio);
            moved / us * 1e-3 / row.copy_gbps * 100.0
        };
        println!(
            "{:>11} {:?}/{:?}: ratio {:.4}, encode {:.1} us {:.0} GB/s ({:.0} %), decode {:.1} us {:.0} GB/s ({:.0} %), copy {:.0} GB/s",
            row.values,
            row.profile,
            row.family,
            row.ratio,
            row.encode_us,
            gbps(row.encode_us),
            roof(row.encode_us),
            row.decode_us,
            gbps(row.decode_us),
            roof(row.decode_us),
            row.copy_gbps,
        );
    }
    if let Some(path) = args.report {
        std::fs::write(path, serde_json::to_string_pretty(&rows)?)?;
    }
    Ok(())
}

struct Bench<'a> {
    client: &'a Client,
    rounds: usize,
    flushed: Handle,
    tickets: Tickets,
    timer: Option<super::events::Timer>,
}

impl<'a> Bench<'a> {
    fn new(client: &'a Client, args: &Args) -> Result<Self, Box<dyn std::error::Error>> {
        let mut bench = Self {
            client,
            rounds: args.rounds,
            flushed: client.empty(FLUSH_BYTES),
            tickets: Tickets::new(client),
            timer: None,
        };
        if args.rounds > 0 {
            bench.timer = Some(super::events::Timer::find(|| {
                (0..20).for_each(|_| bench.flush())
            })?);
        }
        Ok(bench)
    }

    fn measure(
        &self,
        values: usize,
        profile: Profile,
        family: Family,
    ) -> Result<Option<Row>, Box<dyn std::error::Error>> {
        let client = self.client;
        let layout = PackedLayout::new(values, profile)?;
        let dense = DenseLayout::contiguous(values);
        let data = gaussian(values);
        let bytes: &[u8] = bytemuck::cast_slice(&data);
        let input = client.create_from_slice(bytes);
        let output = client.empty(2 * values);
        let blob = client.empty(layout.blob_bytes() as usize);
        let spill = client.empty((layout.spill_bound_bytes() as usize).max(4));
        let encode = || {
            let (from, to, rest) = (input.clone(), blob.clone(), spill.clone());
            launch::encode(
                client,
                from,
                dense,
                family,
                &layout,
                to,
                rest,
                &self.tickets,
            )
            .map(drop)
        };
        let decode = || {
            let (from, rest) = (blob.clone(), Some(spill.clone()));
            launch::decode(client, from, rest, &layout, output.clone(), dense)
        };
        encode()?;
        decode()?;
        let packed = launch::read(client, &layout, blob.clone(), spill.clone())?.compact()?;
        let decoded = client.read_one_unchecked(output.clone());
        if decoded[..] != *bytes {
            return Err(format!("{values} values, {profile:?}: the decoded bits differ").into());
        }
        let Some(timer) = &self.timer else {
            return Ok(None);
        };
        let copies = self.time(timer, || {
            copy_into(self.client, &input, &output, values);
            Ok(())
        })?;
        let encode_samples_us = self.time(timer, encode)?;
        let decode_samples_us = self.time(timer, decode)?;
        Ok(Some(Row {
            values,
            data: "gaussian 0.02".into(),
            profile,
            family,
            ratio: (2 * values) as f64 / packed.bytes() as f64,
            exact: true,
            copy_gbps: (4 * values) as f64 / median(&copies) * 1e-3,
            encode_us: median(&encode_samples_us),
            decode_us: median(&decode_samples_us),
            encode_samples_us,
            decode_samples_us,
        }))
    }

    /// Microseconds of a run, once for each round.
    fn time(
        &self,
        timer: &super::events::Timer,
        run: impl Fn() -> Result<(), launch::LaunchError>,
    ) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
        for _ in 0..3 {
            run()?;
        }
        (0..self.rounds)
            .map(|_| {
                self.flush();
                timer.start()?;
                run()?;
                self.submit();
                timer.stop()
            })
            .collect()
    }

    /// Returns when all that was asked of CubeCL has been submitted to the device.
    fn submit(&self) {
        // The answer comes from the thread that submits, after everything before.
        let _ = self.client.memory_usage();
    }

    fn flush(&self) {
        let vectors = FLUSH_BYTES / 16;
        // SAFETY: the buffer holds as many vectors, and the kernel checks the end.
        unsafe {
            fill::launch_unchecked::<CudaRuntime>(
                self.client,
                CubeCount::Static(vectors.div_ceil(256) as u32, 1, 1),
                CubeDim::new_1d(256),
                ArrayArg::from_raw_parts(self.flushed.clone(), vectors),
                vectors as u32,
            );
        }
        self.submit();
    }
}

/// N(0, 0.02), repeated after 16 Mi values: drawing more takes longer than measuring.
fn gaussian(values: usize) -> Vec<bf16> {
    let normal = Normal::new(0.0f32, 0.02).expect("0.02 is a deviation");
    let mut rng = SmallRng::seed_from_u64(7);
    let drawn: Vec<bf16> = (0..values.min(1 << 24))
        .map(|_| bf16::from_f32(normal.sample(&mut rng)))
        .collect();
    drawn.iter().copied().cycle().take(values).collect()
}
