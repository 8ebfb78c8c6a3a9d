//! The host codec beside zstd, on the same bytes and with the same threads: zstd gets a chunk for each block of 1 MiB.

use criterion::{Criterion, Throughput};
use half::bf16;
use lct_kernels::{CodecConfig, Profile, host};
use rand::{SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution, Normal};
use rayon::prelude::*;

/// Values in the tensor: 32 MiB.
const VALUES: usize = 1 << 24;
/// Bytes that one call of zstd compresses.
const CHUNK: usize = 1 << 20;

/// N(0, 0.02), as weights are.
fn weights() -> Vec<u16> {
    let normal = Normal::new(0.0f32, 0.02).expect("0.02 is a deviation");
    let mut rng = SmallRng::seed_from_u64(7);
    (0..VALUES)
        .map(|_| bf16::from_f32(normal.sample(&mut rng)).to_bits())
        .collect()
}

/// Runs the benches and prints what the packed forms take.
pub fn run() {
    let mut criterion = Criterion::default().configure_from_args();
    let data = weights();
    let bytes: &[u8] = bytemuck::cast_slice(&data);
    let mut group = criterion.benchmark_group("host");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.sample_size(10);
    let mut output = vec![0u16; VALUES];
    group.bench_function("copy", |bencher| {
        bencher.iter(|| output.copy_from_slice(&data));
    });
    for profile in [Profile::Auto, Profile::Clean] {
        let name = format!("{profile:?}").to_lowercase();
        let config = CodecConfig::default().with_profile(profile);
        let packed = host::encode(&data, &config).expect("any values can be encoded");
        host::decode_into(&packed, &mut output).expect("it was just packed");
        assert!(output == data, "{name}: the bits differ");
        report(&name, packed.bytes());
        group.bench_function(format!("encode {name}"), |bencher| {
            bencher.iter(|| host::encode(&data, &config));
        });
        group.bench_function(format!("decode {name}"), |bencher| {
            bencher.iter(|| host::decode_into(&packed, &mut output));
        });
    }
    for level in [1, 3] {
        let compress = || -> Vec<Vec<u8>> {
            bytes
                .par_chunks(CHUNK)
                .map(|chunk| zstd::bulk::compress(chunk, level).expect("zstd takes any bytes"))
                .collect()
        };
        let decompress = |compressed: &[Vec<u8>], output: &mut [u16]| {
            let output: &mut [u8] = bytemuck::cast_slice_mut(output);
            output
                .par_chunks_mut(CHUNK)
                .zip(compressed)
                .for_each(|(output, chunk)| {
                    zstd::bulk::decompress_to_buffer(chunk, output)
                        .expect("it was just compressed");
                });
        };
        let compressed = compress();
        decompress(&compressed, &mut output);
        assert!(output == data, "zstd -{level}: the bits differ");
        report(
            &format!("zstd -{level}"),
            compressed.iter().map(Vec::len).sum(),
        );
        group.bench_function(format!("encode zstd-{level}"), |bencher| {
            bencher.iter(compress)
        });
        group.bench_function(format!("decode zstd-{level}"), |bencher| {
            bencher.iter(|| decompress(&compressed, &mut output));
        });
    }
    group.finish();
    criterion.final_summary();
}

fn report(name: &str, packed: usize) {
    println!(
        "ratio of {name}: {:.4}",
        (2 * VALUES) as f64 / packed as f64
    );
}
