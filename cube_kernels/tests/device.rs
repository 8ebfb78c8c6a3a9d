//! The kernels against the host codec, on whatever wgpu finds (lavapipe where there is no GPU), or
//! with the feature `cuda` on the first CUDA card.

#![cfg(feature = "cube")]

mod common;

use common::*;
use cubecl::prelude::*;
use cubecl::server::Handle;
use lct_kernels::launch::{self, DenseLayout, LaunchError, Tickets};
use lct_kernels::{CodecConfig, CodecError, Family, Mismatch, Packed, PackedLayout, Profile, host};

#[cfg(feature = "cuda")]
type Tested = cubecl::cuda::CudaRuntime;
#[cfg(not(feature = "cuda"))]
type Tested = cubecl::wgpu::WgpuRuntime;

type Client = ComputeClient<Tested>;

fn client() -> Client {
    Tested::client(&Default::default())
}

/// A dense buffer with these rows; gaps and the rest of the last word hold a pattern.
fn place(values: &[u16], dense: DenseLayout) -> Vec<u16> {
    let mut buffer = vec![0x5a5a; span(dense).next_multiple_of(2).max(2)];
    for (row, values) in values.chunks(dense.row_len.max(1)).enumerate() {
        buffer[row * dense.row_pitch..][..values.len()].copy_from_slice(values);
    }
    buffer
}

fn span(dense: DenseLayout) -> usize {
    match dense.values() {
        0 => 0,
        _ => (dense.rows - 1) * dense.row_pitch + dense.row_len,
    }
}

fn upload(client: &Client, buffer: &[u16]) -> Handle {
    client.create_from_slice(bytemuck::cast_slice(buffer))
}

fn download(client: &Client, handle: Handle) -> Vec<u16> {
    let bytes = client.read_one(handle).unwrap();
    bytes
        .chunks_exact(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        .collect()
}

/// Encodes on the device, compares with the host, decodes both ways and compares every bit.
fn check(client: &Client, what: &str, values: &[u16], dense: DenseLayout, config: &CodecConfig) {
    let what = format!("{what}, {} values, {dense:?}, {config:?}", values.len());
    let buffer = place(values, dense);
    let input = upload(client, &buffer);
    let device = launch::encode_to_host(client, input, dense, config).unwrap();
    let reference = host::encode(values, config).unwrap();
    assert_same(&what, &device, &reference);
    device.validate().unwrap();
    assert!(
        host::decode(&device).unwrap() == values,
        "{what}: host decodes device"
    );
    let blank = place(&vec![0xffff; values.len()], dense);
    let output = upload(client, &blank);
    launch::decode_packed(client, &reference, output.clone(), dense).unwrap();
    assert!(
        download(client, output) == buffer,
        "{what}: device decodes host"
    );
}

#[test]
fn every_length() {
    let client = client();
    for n in LENGTHS {
        for profile in Profile::ALL {
            let config = CodecConfig::default().with_profile(profile);
            check(
                &client,
                "normal",
                &normal(n, 3),
                DenseLayout::contiguous(n),
                &config,
            );
        }
    }
}

#[test]
fn every_kind_profile_and_family() {
    let client = client();
    for (kind, values) in kinds(70_001) {
        for config in configs() {
            let dense = DenseLayout::contiguous(values.len());
            check(&client, kind, &values, dense, &config);
        }
    }
}

#[test]
fn pitched_and_odd_rows() {
    let client = client();
    let config = CodecConfig::default();
    let shapes = [
        (8, 8, 1000),
        (8, 16, 1000),
        (300, 512, 240),
        (304, 512, 240),
        (1, 8, 3000),
        (1, 1, 3001),
        (3, 5, 2500),
        (7, 9, 5000),
        (2049, 2050, 33),
        (513, 513, 130),
    ];
    for (row_len, row_pitch, rows) in shapes {
        let dense = DenseLayout {
            row_len,
            row_pitch,
            rows,
        };
        for (kind, values) in [
            ("normal", normal(row_len * rows, 5)),
            ("noise", noise(row_len * rows, 6)),
        ] {
            check(&client, kind, &values, dense, &config);
        }
    }
}

#[test]
fn buffers_may_start_anywhere_aligned() {
    let client = client();
    let values = normal(5000, 8);
    let config = CodecConfig::default();
    let dense = DenseLayout::contiguous(values.len());
    let reference = host::encode(&values, &config).unwrap();
    let mut buffer = vec![0; 128];
    buffer.extend_from_slice(&values);
    let input = upload(&client, &buffer).offset_start(256);
    let device = launch::encode_to_host(&client, input, dense, &config).unwrap();
    assert_same("offset", &device, &reference);
}

#[test]
fn bad_requests_are_refused() {
    let client = client();
    let config = CodecConfig::default();
    let dense = DenseLayout::contiguous(1000);
    let config = config.with_profile(Profile::Clean);
    let layout = PackedLayout::new(1000, config.profile).unwrap();
    let blob = || client.empty(layout.blob_bytes() as usize);
    let spill = || client.empty(layout.spill_bound_bytes() as usize);
    let input = || client.empty(2000);
    let tickets = Tickets::new(&client);
    let encode = |input, dense, blob, spill| {
        let family = config.family;
        launch::encode(
            &client, input, dense, family, &layout, blob, spill, &tickets,
        )
    };

    assert!(encode(input(), dense, blob(), spill()).is_ok());
    assert!(matches!(
        encode(client.empty(1998), dense, blob(), spill()),
        Err(LaunchError::BufferSize {
            buffer: "dense",
            needed: 2000,
            found: 1998
        })
    ));
    assert!(matches!(
        encode(input(), dense, client.empty(64), spill()),
        Err(LaunchError::BufferSize {
            buffer: "blob",
            found: 64,
            ..
        })
    ));
    assert!(matches!(
        encode(input(), dense, blob(), client.empty(64)),
        Err(LaunchError::BufferSize {
            buffer: "spill",
            found: 64,
            ..
        })
    ));
    assert!(matches!(
        encode(client.empty(3000).offset_start(2), dense, blob(), spill()),
        Err(LaunchError::BufferOffset {
            buffer: "dense",
            offset: 2,
            alignment: 4
        })
    ));
    assert!(matches!(
        encode(
            input(),
            dense,
            client.empty(1 << 16).offset_start(64),
            spill()
        ),
        Err(LaunchError::BufferOffset {
            buffer: "blob",
            offset: 64,
            alignment: 256
        })
    ));
    let overlapping = DenseLayout {
        row_len: 10,
        row_pitch: 9,
        rows: 100,
    };
    assert_eq!(
        encode(input(), overlapping, blob(), spill()),
        Err(LaunchError::RowPitch {
            row_len: 10,
            row_pitch: 9
        })
    );
    let vast = DenseLayout {
        row_len: 1,
        row_pitch: 1 << 32,
        rows: 1000,
    };
    assert!(matches!(
        encode(input(), vast, blob(), spill()),
        Err(LaunchError::Span { .. })
    ));
    let endless = DenseLayout {
        row_len: usize::MAX,
        row_pitch: usize::MAX,
        rows: 2,
    };
    assert!(matches!(
        encode(input(), DenseLayout::contiguous(999), blob(), spill()),
        Err(LaunchError::ValueCount {
            dense: 999,
            packed: 1000
        })
    ));
    assert!(matches!(
        encode(input(), endless, blob(), spill()),
        Err(LaunchError::Codec(CodecError::TooManyValues { .. }))
    ));
    assert_eq!(
        launch::decode(
            &client,
            blob(),
            None,
            &layout,
            input(),
            DenseLayout::contiguous(999)
        ),
        Err(LaunchError::ValueCount {
            dense: 999,
            packed: 1000
        })
    );
    let broken = Packed {
        blob: vec![0; 64],
        spill: vec![],
    };
    assert!(matches!(
        launch::decode_packed(&client, &broken, input(), dense),
        Err(LaunchError::Codec(CodecError::BadMagic { .. }))
    ));
}

#[test]
fn every_bit_pattern() {
    let client = client();
    let values: Vec<u16> = (0..=u16::MAX).collect();
    for family in Family::ALL {
        let config = CodecConfig::default().with_family(family);
        check(
            &client,
            "patterns",
            &values,
            DenseLayout::contiguous(values.len()),
            &config,
        );
    }
}

#[test]
fn records_go_on_in_the_spill() {
    let client = client();
    let tickets = Tickets::new(&client);
    let family = Family::Sampled;
    for (kind, values) in kinds(70_001) {
        let dense = DenseLayout::contiguous(values.len());
        let mut padded = values.clone();
        padded.push(0);
        let reference = host::encode(&values, &CodecConfig::default()).unwrap();
        let needed = reference.layout().unwrap().capacity() as u64;
        // None, less, just as much, more than any data can need.
        for capacity in [0, 4, needed / 2, needed - 4, needed, u64::MAX] {
            let what = format!("{kind}, room for {capacity} of {needed} words");
            let layout = PackedLayout::new(values.len(), Profile::Auto).unwrap();
            let layout = layout.with_capacity(capacity);
            let blob = client.empty(layout.blob_bytes() as usize);
            let spill = client.empty((layout.spill_bound_bytes() as usize).max(4));
            let (input, to) = (upload(&client, &padded), blob.clone());
            launch::encode(
                &client,
                input,
                dense,
                family,
                &layout,
                to,
                spill.clone(),
                &tickets,
            )
            .unwrap();
            let device = launch::read(&client, &layout, blob.clone(), spill.clone()).unwrap();
            assert_eq!(device.spill.is_empty(), capacity >= needed, "{what}");
            assert_same(&what, &device, &reference);
            let output = upload(&client, &vec![0; padded.len()]);
            launch::decode(&client, blob, Some(spill), &layout, output.clone(), dense).unwrap();
            assert!(download(&client, output) == padded, "{what}: decoded");
        }
    }
}

#[test]
fn a_comparison_finds_every_difference() {
    let client = client();
    let shapes = [
        (5001, 5001, 1),
        (300, 512, 17),
        (304, 512, 17),
        (7, 9, 500),
        (1, 1, 1),
    ];
    for (row_len, row_pitch, rows) in shapes {
        let dense = DenseLayout {
            row_len,
            row_pitch,
            rows,
        };
        let layout = PackedLayout::new(dense.values(), Profile::Auto).unwrap();
        let values = normal(dense.values(), 71);
        let compare = |left: &[u16], right: &[u16]| {
            let [left, right] = [left, right].map(|buffer| upload(&client, buffer));
            let verdict = launch::compare(&client, left, right, dense).unwrap();
            let verdict = client.read_one(verdict).unwrap();
            launch::verdict(&verdict, &layout).expect("the device has compared")
        };
        let buffer = place(&values, dense);
        assert_eq!(compare(&buffer, &buffer), Ok(()), "{dense:?}");
        // Gaps do not count.
        let mut other = vec![0x1111; buffer.len()];
        for row in 0..rows {
            let row = row * row_pitch..row * row_pitch + row_len;
            other[row.clone()].copy_from_slice(&buffer[row]);
        }
        assert_eq!(compare(&buffer, &other), Ok(()), "{dense:?}");
        let last = dense.values() - 1;
        for changed in [
            vec![0],
            vec![last],
            vec![last / 2, last, last / 2 + last / 4],
        ] {
            let mut changed = changed;
            changed.sort_unstable();
            changed.dedup();
            let mut altered = values.clone();
            for (bit, &index) in changed.iter().enumerate() {
                altered[index] ^= 1 << (7 * bit);
            }
            let found = compare(&buffer, &place(&altered, dense));
            let expected = Mismatch::new(&layout, changed[0] as u32, changed.len() as u32);
            assert_eq!(found, Err(expected), "{dense:?}");
        }
    }
    // A buffer that no kernel has written, or that is not one.
    let layout = PackedLayout::new(5000, Profile::Auto).unwrap();
    assert_eq!(launch::verdict(&[0; 16], &layout), None);
    assert_eq!(launch::verdict(&[1; 3], &layout), None);
    let nothing = DenseLayout::contiguous(0);
    let [left, right] = [upload(&client, &[1, 2]), upload(&client, &[3, 4])];
    let verdict = launch::compare(&client, left, right, nothing).unwrap();
    let verdict = client.read_one(verdict).unwrap();
    assert_eq!(launch::verdict(&verdict, &layout), Some(Ok(())));
    assert!(matches!(
        launch::compare(
            &client,
            client.empty(4),
            client.empty(64),
            DenseLayout::contiguous(9)
        ),
        Err(LaunchError::BufferSize {
            buffer: "dense",
            ..
        })
    ));
}
