//! Real tensors: pieces of what a training held in memory, captured after 1,000 steps (`tests/data/README.md`).

mod common;

use common::*;
use lct_kernels::codebook::best_code;
use lct_kernels::{CodecConfig, Profile, host};

/// Every captured tensor by name, as bit patterns.
fn captured() -> Vec<(String, Vec<u16>)> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/data/captured.safetensors"
    );
    let bytes = std::fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| {
            assert_eq!(tensor.dtype(), safetensors::Dtype::BF16, "{name}");
            let values = tensor.data().chunks_exact(2);
            let values = values.map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
            (name.to_owned(), values.collect())
        })
        .collect();
    all.sort();
    assert_eq!(all.len(), 28);
    all
}

#[test]
fn real_tensors_survive_and_come_close_to_the_best_code() {
    let (mut over, mut large) = (0.0, 0);
    for (name, values) in captured() {
        for profile in Profile::ALL {
            let config = CodecConfig::default().with_profile(profile);
            let packed = host::encode(&values, &config).unwrap();
            assert!(
                host::decode(&packed).unwrap() == values,
                "{name}, {profile:?}"
            );
            if profile != Profile::Auto || values.len() < 1 << 16 {
                continue;
            }
            let mut counts = [0u64; 256];
            for value in &values {
                counts[(value >> 7 & 0xff) as usize] += 1;
            }
            let best = best_code(&counts).mean_bits(&counts);
            let bits = (packed.bytes() * 8) as f64 / values.len() as f64 - 8.0;
            println!("{name}: {bits:.3} bits per exponent, best Huffman code {best:.3}");
            // Header and tables alone are 0.08 bit of pieces as small as these.
            assert!(bits < best + 0.30, "{name}: {bits} for {best}");
            over += bits - best;
            large += 1;
        }
    }
    assert!(large > 20);
    let mean = over / large as f64;
    assert!(mean < 0.20, "{mean} bits above the best code in the mean");
}

#[cfg(feature = "cube")]
#[test]
fn the_device_packs_real_tensors_like_the_host() {
    use cubecl::prelude::*;
    use lct_kernels::launch::{self, DenseLayout};

    #[cfg(feature = "cuda")]
    type Tested = cubecl::cuda::CudaRuntime;
    #[cfg(not(feature = "cuda"))]
    type Tested = cubecl::wgpu::WgpuRuntime;

    let client = Tested::client(&Default::default());
    for (name, values) in captured() {
        let config = CodecConfig::default();
        let dense = DenseLayout::contiguous(values.len());
        let input = client.create_from_slice(bytemuck::cast_slice(&values));
        let device = launch::encode_to_host(&client, input, dense, &config).unwrap();
        let reference = host::encode(&values, &config).unwrap();
        assert_same(&name, &device, &reference);
        let output = client.empty(2 * values.len());
        launch::decode_packed(&client, &device, output.clone(), dense).unwrap();
        let decoded = client.read_one(output).unwrap();
        assert!(
            decoded[..] == *bytemuck::cast_slice::<_, u8>(&values),
            "{name}"
        );
    }
}
