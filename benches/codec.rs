//! The host codec against a copy of the same bytes: `cargo bench -p burn-lct`.

use criterion::{Criterion, Throughput, criterion_main};
use half::bf16;
use lct_kernels::{CodecConfig, Family, host};

/// Values that are near enough to N(0, 0.02).
fn weights(len: usize) -> Vec<u16> {
    let mut state = 1u32;
    let mut uniform = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..len)
        .map(|_| bf16::from_f32((0..6).map(|_| uniform()).sum::<f32>() * 0.028).to_bits())
        .collect()
}

fn codec(criterion: &mut Criterion) {
    for values in [1 << 16, 1 << 22] {
        let data = weights(values);
        let mut group = criterion.benchmark_group(format!("{values} values"));
        group.throughput(Throughput::Bytes(2 * values as u64));
        group.sample_size(20);
        group.bench_function("copy", |bencher| bencher.iter(|| data.clone()));
        for family in [Family::Sampled, Family::Gaussian] {
            let config = CodecConfig::default().with_family(family);
            let packed = host::encode(&data, &config).expect("any values can be encoded");
            assert_eq!(host::decode(&packed).as_deref(), Ok(data.as_slice()));
            group.bench_function(format!("encode {family:?}"), |bencher| {
                bencher.iter(|| host::encode(&data, &config))
            });
            let mut output = vec![0; values];
            group.bench_function(format!("decode {family:?}"), |bencher| {
                bencher.iter(|| host::decode_into(&packed, &mut output))
            });
        }
        group.finish();
    }
}

mod group {
    #![allow(missing_docs, reason = "the macro makes a public function")]
    use super::codec;

    criterion::criterion_group!(benches, codec);
}
criterion_main!(group::benches);
