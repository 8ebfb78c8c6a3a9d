//! Launching the kernels: validation, launch geometry, and helpers that move packed tensors
//! between host and device.
//!
//! Nothing here waits for the device, except [`read`] and the transfers built on it.

mod bind;
mod compare;
mod decode;
mod encode;
mod error;
mod gelu;
mod quotient;
mod transfer;
mod update;
mod update_packed;

pub use bind::{BUFFER_ALIGNMENT, DenseLayout};
pub use compare::{compare, verdict};
pub use decode::decode;
pub use encode::{Tickets, encode};
pub use error::LaunchError;
pub use gelu::{computes, gelu};
pub use quotient::{divides, quotient};
pub use transfer::{decode_packed, encode_to_host, read, upload};
pub use update::update;
pub use update_packed::{PackedForm, update_packed};

#[cfg(test)]
mod tests {
    use cubecl::prelude::*;
    use cubecl::wgpu::WgpuRuntime;

    use super::decode::decode_with;
    use super::encode::encode_with;
    use super::{DenseLayout, Tickets, read, upload};
    use crate::{CodecConfig, PackedLayout, Profile, host};

    /// Three blocks, the last short: some exponents frequent, all possible, in the first block
    /// none that the code knows well.
    fn values(n: usize) -> Vec<u16> {
        let hash = |index: usize| (index as u32).wrapping_mul(0x9e37_79b9) ^ (index as u32) << 7;
        (0..n)
            .map(|index| {
                let bits = hash(index) >> 8;
                let rare = bits.is_multiple_of(300) || (9000..9400).contains(&index);
                let exponent = if rare {
                    bits >> 9
                } else {
                    120 + bits.count_ones() % 9
                };
                (bits & 0x807f | (exponent & 0xff) << 7) as u16
            })
            .collect()
    }

    /// What is not chosen on this device must give the same bits as what is.
    #[test]
    fn with_and_without_64_bit_integers() {
        let client = WgpuRuntime::client(&Default::default());
        let values = values(140_001);
        let dense = DenseLayout::contiguous(values.len());
        let mut padded = values.clone();
        padded.push(0);
        let input = client.create_from_slice(bytemuck::cast_slice(&padded));
        let choices = match super::bind::has_u64(&client) {
            true => vec![false, true],
            false => vec![false],
        };
        let tickets = Tickets::new(&client);
        for profile in [Profile::Auto, Profile::Clean] {
            let config = CodecConfig::default().with_profile(profile);
            let layout = PackedLayout::new(values.len(), profile).unwrap();
            for &has_u64 in &choices {
                let blob = client.empty(layout.blob_bytes() as usize);
                let spill = client.empty(layout.spill_bound_bytes() as usize);
                let (from, to) = (input.clone(), blob.clone());
                let (family, rest) = (config.family, spill.clone());
                encode_with(
                    &client, from, dense, family, &layout, to, rest, &tickets, has_u64,
                )
                .unwrap();
                let packed = read(&client, &layout, blob, spill).unwrap();
                assert!(host::decode(&packed).unwrap() == values);
                let packed = host::encode(&values, &config).unwrap();
                let layout = packed.layout().unwrap();
                let (blob, spill) = upload(&client, &packed);
                let output =
                    client.create_from_slice(bytemuck::cast_slice(&vec![0u16; padded.len()]));
                decode_with(
                    &client,
                    blob,
                    spill,
                    &layout,
                    output.clone(),
                    dense,
                    has_u64,
                )
                .unwrap();
                let bytes = client.read_one(output).unwrap();
                assert!(bytes[..] == *bytemuck::cast_slice::<u16, u8>(&padded));
            }
        }
    }
}
