//! Tensors beyond 2^31 values and 4 GiB, and streams' contents across threads, on the first CUDA card.
//!
//! Run them one at a time, on a card with 60 GiB free and a host with 40 GiB:
//! `cargo test --release -p lct-kernels --features cuda --test huge -- --ignored --test-threads 1`.
#![cfg(feature = "cuda")]

mod common;

use common::*;
use cubecl::cuda::CudaRuntime;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::stream_id::StreamId;
use lct_kernels::launch::{self, DenseLayout, Tickets};
use lct_kernels::{CodecConfig, Family, PackedLayout, Profile, host};

type Client = ComputeClient<CudaRuntime>;

fn client() -> Client {
    CudaRuntime::client(&Default::default())
}

/// Weights, a tile again and again with other fractions, and in every hundredth tile anything at all.
fn values(n: usize) -> Vec<u16> {
    const TILE: usize = 1 << 20;
    let (tile, odd) = (normal(TILE, 61), noise(TILE, 62));
    let mut values = Vec::with_capacity(n);
    for index in 0..n.div_ceil(TILE) {
        let kind = if index % 100 == 99 { &odd } else { &tile };
        let length = TILE.min(n - values.len());
        values.extend(
            kind[..length]
                .iter()
                .map(|value| value ^ (index as u16 & 0x3f)),
        );
    }
    values
}

fn bytes(values: &[u16]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// Encodes and decodes on the card; compares there, and on the host both packed form and values.
fn check(client: &Client, n: usize, dense: DenseLayout, profile: Profile, on_host: bool) {
    assert_eq!(dense.values(), n);
    let what = format!("{n} values, {dense:?}, {profile:?}");
    let given = values(n);
    let mut buffer =
        vec![0u16; ((dense.rows - 1) * dense.row_pitch + dense.row_len).next_multiple_of(8)];
    for (row, values) in given.chunks(dense.row_len).enumerate() {
        buffer[row * dense.row_pitch..][..values.len()].copy_from_slice(values);
    }
    let input = client.create_from_slice(bytes(&buffer));
    let layout = PackedLayout::new(n, profile).unwrap();
    let blob = client.empty(layout.blob_bytes() as usize);
    let spill = client.empty((layout.spill_bound_bytes() as usize).max(4));
    launch::encode(
        client,
        input.clone(),
        dense,
        Family::Sampled,
        &layout,
        blob.clone(),
        spill.clone(),
        &Tickets::new(client),
    )
    .unwrap();
    let output = match dense.rows {
        1 => client.empty(2 * buffer.len()),
        // With the same in the gaps.
        _ => client.create_from_slice(bytes(&vec![0u16; buffer.len()])),
    };
    let rest = Some(spill.clone());
    launch::decode(client, blob.clone(), rest, &layout, output.clone(), dense).unwrap();
    let verdict = launch::compare(client, input.clone(), output.clone(), dense).unwrap();
    let verdict = client.read_one(verdict).unwrap();
    assert_eq!(launch::verdict(&verdict, &layout), Some(Ok(())), "{what}");
    drop(input);
    let read = client.read_one(output).unwrap();
    let span = 2 * ((dense.rows - 1) * dense.row_pitch + dense.row_len);
    assert!(read[..span] == bytes(&buffer)[..span], "{what}: decoded");
    drop((read, buffer));
    if on_host {
        let device = launch::read(client, &layout, blob, spill).unwrap();
        let config = CodecConfig::default().with_profile(profile);
        assert_same(&what, &device, &host::encode(&given, &config).unwrap());
    }
    println!("{what}: equal");
}

#[test]
#[ignore = "takes 60 GiB of a card"]
fn beyond_2_31_values_and_4_gib() {
    let client = client();
    let contiguous = DenseLayout::contiguous;
    for n in [(1 << 31) - 1, 1 << 31, (1 << 31) + 4097] {
        check(
            &client,
            n,
            contiguous(n),
            Profile::Auto,
            n == (1 << 31) + 4097,
        );
        client.memory_cleanup();
    }
    let most = u32::MAX as usize;
    check(&client, most, contiguous(most), Profile::Auto, false);
    client.memory_cleanup();
    check(&client, most, contiguous(most), Profile::Clean, false);
    client.memory_cleanup();
    // Rows of which the last begins beyond 2^31 values and 4 GiB.
    let (row_len, row_pitch, rows) = (768, 1024, 2_200_000);
    let pitched = DenseLayout {
        row_len,
        row_pitch,
        rows,
    };
    check(&client, row_len * rows, pitched, Profile::Auto, false);
}

#[test]
#[ignore = "takes a card"]
fn around_the_length_from_which_streams_are_long() {
    let client = client();
    for n in [(1 << 25) - 1, 1 << 25, (1 << 25) + 1, (1 << 25) + 8191] {
        for profile in Profile::ALL {
            check(&client, n, DenseLayout::contiguous(n), profile, true);
        }
    }
}

/// A stream that is busy for long: what is queued on it now runs late.
fn keep_busy(client: &Client) {
    let n = 1 << 27;
    let layout = PackedLayout::new(n, Profile::Auto).unwrap();
    let (input, dense) = (client.empty(2 * n), DenseLayout::contiguous(n));
    let blob = client.empty(layout.blob_bytes() as usize);
    let spill = client.empty((layout.spill_bound_bytes() as usize).max(4));
    let tickets = Tickets::new(client);
    for _ in 0..200 {
        let (input, blob, spill) = (input.clone(), blob.clone(), spill.clone());
        launch::encode(
            client,
            input,
            dense,
            Family::Sampled,
            &layout,
            blob,
            spill,
            &tickets,
        )
        .unwrap();
    }
}

/// CubeCL 0.10 gives memory that was given up on one stream to that stream's next buffer, though a kernel of another stream
/// that reads it has not run yet. A decode on the stream whose memory it reads cannot be overtaken.
#[test]
#[ignore = "takes a card"]
fn a_decode_on_its_owners_stream_is_not_overtaken() {
    let client = client();
    let values = normal(1 << 20, 67);
    // All but the signs is the same, so that a decode that is overtaken reads sound streams of other values.
    let others: Vec<u16> = values.iter().map(|value| value ^ 0x8000).collect();
    let dense = DenseLayout::contiguous(values.len());
    let packed = host::encode(&values, &CodecConfig::default()).unwrap();
    let overtaking = host::encode(&others, &CodecConfig::default()).unwrap();
    assert_eq!(overtaking.blob.len(), packed.blob.len());
    assert!(packed.spill.is_empty() && overtaking.spill.is_empty());
    let layout = packed.layout().unwrap();
    let owner = StreamId::current();
    let mut wrong = [0, 0];
    for (own_stream, wrong) in wrong.iter_mut().enumerate() {
        for _ in 0..20 {
            let (blob, _) = launch::upload(&client, &packed);
            let reader = std::thread::spawn({
                let client = client.clone();
                move || -> Handle {
                    keep_busy(&client);
                    let decode = || {
                        let output = client.empty(2 * (1 << 20));
                        launch::decode(&client, blob, None, &layout, output.clone(), dense)
                            .unwrap();
                        output
                    };
                    if own_stream == 1 {
                        owner.executes(decode)
                    } else {
                        decode()
                    }
                }
            });
            let output = reader.join().unwrap();
            // The blob is given up; this takes its place.
            let (other, _) = launch::upload(&client, &overtaking);
            let decoded = client.read_one(output).unwrap();
            *wrong += usize::from(decoded[..] != *bytes(&values));
            drop(other);
        }
    }
    println!(
        "of 20 decodes, {} on the reader's stream and {} on the owner's gave other bits",
        wrong[0], wrong[1]
    );
    assert_eq!(wrong[1], 0);
}
