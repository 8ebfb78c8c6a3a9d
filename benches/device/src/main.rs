//! `lct-bench`: encode and decode of N(0, 0.02) data on the first CUDA card, beside a copy in the same run.
//!
//! Each figure is the median of rounds. A round queues one pass over several buffers that together exceed the L2 cache by
//! far, so that no run finds its data there, and divides the time from the first launch to the end of the last by their
//! number. The decoded bits are compared before anything is timed.

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl::prelude::*;
use cubecl::server::Handle;
use half::bf16;
use indicatif::{ProgressBar, ProgressStyle};
use lct_kernels::launch::{self, DenseLayout};
use lct_kernels::{CodecConfig, Family, PackedLayout, Profile};
use rand::{SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution, Normal};
use serde::Serialize;

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
    /// Rounds, of which the median counts.
    #[arg(long, default_value_t = 25)]
    rounds: usize,
    /// Where the JSON goes.
    #[arg(long)]
    report: Option<PathBuf>,
}

/// One measured size and configuration.
#[derive(Debug, Serialize)]
struct Row {
    values: usize,
    profile: Profile,
    family: Family,
    ratio: f64,
    copy_gb_s: f64,
    encode_us: f64,
    decode_us: f64,
    encode_gb_s: f64,
    decode_gb_s: f64,
    encode_samples_us: Vec<f64>,
    decode_samples_us: Vec<f64>,
}

/// Buffers of one tensor.
struct Set {
    dense: Handle,
    blob: Handle,
    spill: Handle,
    output: Handle,
}

/// Twice the H200's L2.
const COLD_BYTES: usize = 120 << 20;

#[cube(launch_unchecked)]
fn copy(
    input: &Array<Vector<u32, Const<4>>>,
    output: &mut Array<Vector<u32, Const<4>>>,
    vectors: u32,
) {
    if ABSOLUTE_POS < vectors as usize {
        output[ABSOLUTE_POS] = input[ABSOLUTE_POS];
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let client = CudaRuntime::client(&CudaDevice::default());
    let configs = [
        CodecConfig {
            profile: Profile::Clean,
            family: Family::Sampled,
        },
        CodecConfig {
            profile: Profile::Clean,
            family: Family::Gaussian,
        },
        CodecConfig {
            profile: Profile::High,
            family: Family::Sampled,
        },
    ];
    let style = ProgressStyle::with_template("{msg:40} {bar:30} {pos}/{len}")?;
    let progress = ProgressBar::new((args.values.len() * configs.len()) as u64).with_style(style);
    let mut rows = Vec::new();
    for &values in &args.values {
        for config in configs {
            progress.set_message(format!("{values} values, {config:?}"));
            rows.push(measure(&client, values, config, args.rounds)?);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    for row in &rows {
        println!(
            "{:>11} {:?}/{:?}: ratio {:.4}, encode {:.1} us {:.0} GB/s, decode {:.1} us {:.0} GB/s, copy {:.0} GB/s",
            row.values,
            row.profile,
            row.family,
            row.ratio,
            row.encode_us,
            row.encode_gb_s,
            row.decode_us,
            row.decode_gb_s,
            row.copy_gb_s,
        );
    }
    if let Some(path) = args.report {
        std::fs::write(path, serde_json::to_string_pretty(&rows)?)?;
    }
    Ok(())
}

fn measure(
    client: &Client,
    values: usize,
    config: CodecConfig,
    rounds: usize,
) -> Result<Row, Box<dyn std::error::Error>> {
    let layout = PackedLayout::new(values, config.profile)?;
    let dense = DenseLayout::contiguous(values);
    let data = gaussian(values);
    let count = (COLD_BYTES / (2 * values)).clamp(2, 64);
    let sets: Vec<Set> = (0..count)
        .map(|_| Set {
            dense: client.create_from_slice(bytemuck::cast_slice(&data)),
            blob: client.empty(layout.blob_bytes() as usize),
            spill: client.empty(layout.spill_bound_bytes() as usize),
            output: client.empty(2 * values),
        })
        .collect();

    let encode = |set: &Set| {
        launch::encode(
            client,
            set.dense.clone(),
            dense,
            &config,
            set.blob.clone(),
            set.spill.clone(),
        )
        .map(|_| ())
    };
    let decode = |set: &Set| {
        let spill = Some(set.spill.clone());
        launch::decode(
            client,
            set.blob.clone(),
            spill,
            &layout,
            set.output.clone(),
            dense,
        )
    };
    let mut spilled = 0;
    for set in &sets {
        encode(set)?;
        decode(set)?;
    }
    for set in sets.iter().take(2) {
        let packed = launch::read(client, &layout, set.blob.clone(), set.spill.clone())?;
        spilled = 4 * packed.spill.len();
        let decoded = client.read_one_unchecked(set.output.clone());
        if *decoded != *bytemuck::cast_slice::<_, u8>(&data) {
            return Err(format!("{values} values with {config:?}: the decoded bits differ").into());
        }
    }

    copy_into(client, &sets[0].dense, &sets[1].output, values);
    let copied = client.read_one_unchecked(sets[1].output.clone());
    if *copied != *bytemuck::cast_slice::<_, u8>(&data) {
        return Err("the copy does not copy".into());
    }
    let copies = time(client, &sets, rounds, |set| {
        copy_into(client, &set.dense, &set.output, values);
        Ok::<(), launch::LaunchError>(())
    })?;
    let encode_samples_us = time(client, &sets, rounds, encode)?;
    let decode_samples_us = time(client, &sets, rounds, decode)?;
    let gb_s = |moved: usize, us: f64| moved as f64 / us * 1e-3;
    let (encode_us, decode_us) = (median(&encode_samples_us), median(&decode_samples_us));
    Ok(Row {
        values,
        profile: config.profile,
        family: config.family,
        ratio: (2 * values) as f64 / (layout.blob_bytes() as usize + spilled) as f64,
        copy_gb_s: gb_s(4 * values, median(&copies)),
        encode_us,
        decode_us,
        encode_gb_s: gb_s(2 * values, encode_us),
        decode_gb_s: gb_s(2 * values, decode_us),
        encode_samples_us,
        decode_samples_us,
    })
}

fn copy_into(client: &Client, from: &Handle, to: &Handle, values: usize) {
    let vectors = values / 8;
    let cubes = vectors.div_ceil(256) as u32;
    // SAFETY: both buffers hold `values` values, that is at least `vectors` vectors; the kernel checks the end.
    unsafe {
        copy::launch_unchecked::<CudaRuntime>(
            client,
            CubeCount::Static(cubes, 1, 1),
            CubeDim::new_1d(256),
            ArrayArg::from_raw_parts(from.clone(), vectors),
            ArrayArg::from_raw_parts(to.clone(), vectors),
            vectors as u32,
        );
    }
}

/// Microseconds for one set, once for each round.
fn time<E>(
    client: &Client,
    sets: &[Set],
    rounds: usize,
    run: impl Fn(&Set) -> Result<(), E>,
) -> Result<Vec<f64>, E> {
    let sync = || cubecl::future::block_on(client.sync()).expect("the device runs");
    for set in sets {
        run(set)?;
    }
    (0..rounds)
        .map(|_| {
            sync();
            let start = Instant::now();
            for set in sets {
                run(set)?;
            }
            sync();
            Ok(start.elapsed().as_secs_f64() * 1e6 / sets.len() as f64)
        })
        .collect()
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
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
