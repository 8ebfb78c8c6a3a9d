//! Properties of the host codec over lengths, kinds of data, profiles and families, and of how values are dealt.

#[path = "common/checks.rs"]
mod checks;
mod common;

use common::*;
use lct_kernels::layout::{
    DirectoryEntry, GRANULE, ROW_VALUES, STREAMS, chunk_of, plane_word, stream_of,
};
use lct_kernels::{CodecConfig, Family, PackedLayout, Profile, host};
use proptest::prelude::*;

fn any_config() -> impl Strategy<Value = CodecConfig> {
    let (profiles, families) = (Profile::ALL.to_vec(), Family::ALL.to_vec());
    (
        prop::sample::select(profiles),
        prop::sample::select(families),
    )
        .prop_map(|(profile, family)| CodecConfig { profile, family })
}

/// Any length, more often one beside a boundary of the format.
fn any_length() -> impl Strategy<Value = usize> {
    let near = (prop::sample::select(LENGTHS.to_vec()), 0..3usize)
        .prop_map(|(length, off)| (length + off).saturating_sub(1));
    prop_oneof![near, 0..70_000usize]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_kind_of_data_survives_at_any_length(
        n in any_length(), kind in 0..9usize, config in any_config(),
    ) {
        let (name, values) = kinds(n).swap_remove(kind);
        checks::round_trip(name, &values, &config);
    }

    #[test]
    fn pieces_of_different_kinds_survive_together(
        pieces in prop::collection::vec((0..9usize, 0..9000usize), 1..6),
        config in any_config(),
    ) {
        let values: Vec<u16> = pieces
            .into_iter()
            .flat_map(|(kind, n)| kinds(n).swap_remove(kind).1)
            .collect();
        checks::round_trip("pieces", &values, &config);
    }

    #[test]
    fn no_data_grows_by_more_than_the_bound(n in any_length(), kind in 0..9usize) {
        let values = kinds(n).swap_remove(kind).1;
        let packed = host::encode(&values, &CodecConfig::default()).unwrap();
        // Two bytes a value in whole pairs of rows and whole sections, header, tables and directory.
        let bound = 2 * n.next_multiple_of(512) + 8 * n.div_ceil(4096) + 1024;
        prop_assert!(packed.bytes() <= bound, "{} bytes for {n} values", packed.bytes());
    }

    #[test]
    fn values_are_dealt_to_places_of_their_own(n in 1..40_000usize, profile in 0..4usize) {
        let layout = PackedLayout::new(n, Profile::ALL[profile]).unwrap();
        let full = layout.block_values();
        let mut taken = vec![false; layout.plane_words() as usize * 4];
        let mut counts = vec![[0u32; STREAMS as usize]; layout.blocks() as usize];
        for value in 0..n as u32 {
            let (block, stream) = layout.place_of(value);
            prop_assert_eq!(block, value / full);
            let (row, chunk) = (value % full / ROW_VALUES, value % ROW_VALUES / GRANULE);
            prop_assert_eq!((stream_of(chunk, row), chunk_of(stream, row)), (stream, chunk));
            let byte = (block * full + 4 * plane_word(stream, row) + value % GRANULE) as usize;
            prop_assert!(!std::mem::replace(&mut taken[byte], true), "value {value}");
            counts[block as usize][stream as usize] += 1;
        }
        for (block, counts) in counts.iter().enumerate() {
            let shape = layout.block(block as u32);
            for stream in 0..STREAMS {
                prop_assert_eq!(counts[stream as usize], shape.stream_count(stream));
            }
        }
    }

    #[test]
    fn directory_entries_survive(
        place in 0..u32::MAX, rows in 0..256u32, extra in 0..16u32, words in 0..1u32 << 20,
    ) {
        let entry = DirectoryEntry { place, rows, extra, words };
        prop_assert_eq!(DirectoryEntry::read(entry.words()), Some(entry));
    }
}
