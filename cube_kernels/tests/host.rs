//! The host codec: every value survives, packed forms are what the format says, and what is
//! malformed is refused.

#[path = "common/checks.rs"]
mod checks;
mod common;

use checks::round_trip;
use common::*;
use lct_kernels::header::{
    CAPACITY_WORD, CODEBOOK_WORD, DIRECTORY_WORD, ESCAPE_WORD, RECORDS_END_WORD, RESERVED_WORD,
    TABLE_WORD,
};
use lct_kernels::{CodecConfig, CodecError, Family, Packed, Profile, host};
use proptest::prelude::*;

#[test]
fn every_kind_length_profile_and_family() {
    for n in LENGTHS {
        for (kind, values) in kinds(n) {
            for config in configs() {
                round_trip(kind, &values, &config);
            }
        }
    }
}

#[test]
fn every_bit_pattern_alone_and_together() {
    let config = CodecConfig::default();
    let all: Vec<u16> = (0..=u16::MAX).collect();
    for config in configs() {
        round_trip("all", &all, &config);
    }
    for exponent in 0..256u16 {
        let kind: Vec<u16> = (0..256)
            .map(|i| (i & 0x80) << 8 | exponent << 7 | i & 0x7f)
            .collect();
        let packed = round_trip("one exponent", &kind, &config);
        assert!(packed.spill.is_empty());
    }
}

#[test]
fn lengths_from_which_streams_are_long() {
    let tile = normal(1 << 20, 73);
    let values: Vec<u16> = tile
        .iter()
        .copied()
        .cycle()
        .take((1 << 25) + 8191)
        .collect();
    for n in [(1 << 25) - 1, 1 << 25, (1 << 25) + 1, values.len()] {
        let packed = round_trip("normal", &values[..n], &CodecConfig::default());
        let long = if n < 1 << 25 { 128 } else { 256 };
        assert_eq!(packed.layout().unwrap().stream_symbols(), long, "{n}");
    }
}

#[test]
fn ratio_on_weights() {
    let values = normal(1 << 20, 23);
    for (profile, least) in [
        (Profile::Auto, 1.48),
        (Profile::Clean, 1.4379),
        (Profile::Medium, 1.391),
        (Profile::High, 1.333),
    ] {
        let packed = round_trip(
            "normal",
            &values,
            &CodecConfig::default().with_profile(profile),
        );
        let ratio = values.len() as f64 * 2.0 / packed.to_bytes().len() as f64;
        assert!(ratio >= least, "{profile:?}: {ratio}");
    }
}

#[test]
fn codes_come_close_to_the_entropy() {
    let values = normal(1 << 20, 29);
    let mut counts = [0u32; 256];
    for value in &values {
        counts[(value >> 7 & 0xff) as usize] += 1;
    }
    let shares = counts.map(|count| count as f64 / values.len() as f64);
    let entropy: f64 = shares
        .iter()
        .filter(|&&p| p > 0.0)
        .map(|p| -p * p.log2())
        .sum();
    for (family, most) in [
        (Family::Sampled, 0.09),
        (Family::Gaussian, 0.11),
        (Family::Best, 0.11),
    ] {
        let config = CodecConfig::default().with_family(family);
        let lengths = host::encode(&values, &config)
            .unwrap()
            .code_lengths()
            .unwrap();
        let codes = lengths.codes();
        let bits: f64 = shares
            .iter()
            .zip(codes)
            .map(|(p, code)| p * code.1 as f64)
            .sum();
        println!("{family:?}: {bits:.4} bits per exponent, entropy {entropy:.4}");
        assert!(bits - entropy < most, "{family:?}: {bits} for {entropy}");
    }
}

#[test]
fn blocks_take_what_they_need() {
    let values = normal(1 << 20, 31);
    for profile in Profile::ALL {
        let config = CodecConfig::default().with_profile(profile);
        let packed = round_trip("normal", &values, &config);
        let layout = packed.layout().unwrap();
        let all = (0..layout.blocks()).map(|block| stored(&packed, block));
        let extra = all
            .filter(|stored| matches!(stored, Stored::Extra(_)))
            .count();
        match profile {
            // Streams end anywhere, so their longest is longer than their shortest.
            Profile::Auto => assert!(extra > layout.blocks() as usize * 9 / 10),
            _ => assert_eq!((extra, packed.spill.len()), (0, 0)),
        }
    }
    let clean = CodecConfig::default().with_profile(Profile::Clean);
    for config in [CodecConfig::default(), clean] {
        let stored = |values: &[u16]| stored(&round_trip("stored", values, &config), 0);
        let n = 8192;
        assert!(matches!(stored(&bursts(n)), Stored::Extra(_)), "{config:?}");
        assert_eq!(stored(&noise(n, 37)), Stored::Raw, "{config:?}");
        assert_eq!(stored(&vec![0x3f80; n]), Stored::Rows, "{config:?}");

        // One stream that is much longer than all others: its words are too many to count.
        let mut values = vec![0x3f80; n];
        for (i, value) in values.iter_mut().enumerate() {
            if (i / 8 % 32 + 5 * (i / 256)).is_multiple_of(32) {
                *value = (i as u16).wrapping_mul(0x9e37);
            }
        }
        assert_eq!(stored(&values), Stored::Raw, "{config:?}");
    }
}

#[test]
fn all_escapes() {
    // The code is made from one tensor's sample and applied to data it misses: every value but the sampled.
    let n = 300_000;
    let mut values = vec![0x0080u16; n];
    for index in 0..lct_kernels::codebook::SAMPLE_VALUES {
        let position = lct_kernels::codebook::sample_position(index, n as u32);
        values[position as usize] = 0x4100;
    }
    let packed = round_trip("escapes", &values, &CodecConfig::default());
    let lengths = packed.code_lengths().unwrap();
    assert_eq!(lengths.symbols[1], 0);
    assert!((0..4).all(|block| stored(&packed, block) == Stored::Raw));
}

#[test]
fn noise_grows_by_little() {
    for profile in Profile::ALL {
        let config = CodecConfig::default().with_profile(profile);
        let values = noise(1 << 20, 53);
        let grown = round_trip("noise", &values, &config).bytes() as f64 / (2 << 20) as f64;
        match profile {
            Profile::Auto => assert!(grown < 1.002, "{grown}"),
            // What the streams own stays empty.
            _ => assert!(grown < 1.26, "{profile:?}: {grown}"),
        }
    }
}

fn sample() -> Packed {
    host::encode(&noise(70_000, 41), &CodecConfig::default()).unwrap()
}

/// One with a spill.
fn clean_noise() -> Packed {
    let config = CodecConfig::default().with_profile(Profile::Clean);
    host::encode(&noise(70_000, 41), &config).unwrap()
}

/// What validation says to a packed form after a change.
fn refused(change: impl FnOnce(&mut Packed)) -> CodecError {
    let mut packed = sample();
    change(&mut packed);
    let error = packed.validate().unwrap_err();
    assert_eq!(host::decode(&packed).unwrap_err(), error);
    assert_eq!(Packed::from_bytes(&packed.to_bytes()).unwrap_err(), error);
    error
}

#[test]
fn malformed_headers_are_named() {
    use CodecError::*;
    assert!(matches!(refused(|p| p.blob[0] ^= 1), BadMagic { .. }));
    assert!(matches!(
        refused(|p| p.blob[1] += 1),
        UnknownVersion {
            found: 3,
            supported: 2
        }
    ));
    assert!(matches!(
        refused(|p| p.blob[1] |= 7 << 16),
        UnknownProfile { found: 7 }
    ));
    assert!(matches!(refused(|p| p.blob[3] = 1), TooManyValues { .. }));
    assert!(matches!(
        refused(|p| p.blob[1] |= 3 << 24),
        UnknownDtype { found: 3 }
    ));
    for word in [4, 5, 6, 7, CAPACITY_WORD, RESERVED_WORD] {
        let error = refused(|p| p.blob[word] ^= 1 << 31);
        assert!(matches!(error, HeaderField { .. }), "{word}: {error}");
    }
    assert!(matches!(
        refused(|p| p.blob[ESCAPE_WORD] = 0),
        CodeLength {
            symbol: 256,
            length: 0,
            ..
        }
    ));
    assert!(matches!(
        refused(|p| p.blob[TABLE_WORD] = 9),
        CodeLength {
            symbol: 0,
            length: 9,
            ..
        }
    ));
    assert!(matches!(
        refused(|p| p.blob[TABLE_WORD] = 0x1111_1111),
        Kraft { .. }
    ));
    assert!(matches!(
        refused(|p| p.blob[DIRECTORY_WORD] = 1 << 30),
        Directory { block: 0, place, .. } if place == 1 << 30
    ));
    assert!(matches!(
        refused(|p| p.blob[DIRECTORY_WORD] = u32::MAX),
        Directory { block: 0, .. }
    ));
    assert!(matches!(
        refused(|p| p.blob[DIRECTORY_WORD + 1] += 1 << 12),
        Record { block: 0, .. } | Directory { block: 0, .. }
    ));
    let normal = || host::encode(&normal(70_000, 41), &CodecConfig::default()).unwrap();
    for (word, change) in [(DIRECTORY_WORD + 1, 1), (DIRECTORY_WORD + 1, 1 << 8)] {
        let mut packed = normal();
        packed.blob[word] += change;
        assert!(matches!(packed.validate(), Err(Record { block: 0, .. })));
    }
    // Nothing at all is no record either.
    let mut packed = normal();
    packed.blob[DIRECTORY_WORD + 1] = 3;
    assert!(matches!(packed.validate(), Err(Record { words: 0, .. })));
    assert!(Packed::from_bytes(&packed.to_bytes()).is_err());
    let mut packed = normal();
    let first = packed.layout().unwrap().streams_offset_words() as usize;
    packed.blob[first] ^= 0xf;
    assert!(matches!(packed.validate(), Err(Record { block: 0, .. })));
    let mut packed = clean_noise();
    packed.blob[RECORDS_END_WORD] = u32::MAX;
    let found = packed.spill.len() as u64;
    assert!(matches!(
        packed.validate(),
        Err(SpillLength { found: words, .. }) if words == found
    ));
    assert!(matches!(
        Packed::from_bytes(&packed.to_bytes()),
        Err(SpillLength { .. })
    ));
    // Where the code came from only informs.
    let mut packed = sample();
    packed.blob[CODEBOOK_WORD] = 0xdead;
    packed.validate().unwrap();
}

#[test]
fn wrong_lengths_are_named() {
    let mut packed = sample();
    packed.blob.pop();
    assert!(matches!(
        packed.validate(),
        Err(CodecError::BlobLength { .. })
    ));
    let mut packed = clean_noise();
    packed.spill.pop();
    assert!(matches!(
        packed.validate(),
        Err(CodecError::SpillLength { .. })
    ));
    let bytes = sample().to_bytes();
    assert!(matches!(
        Packed::from_bytes(&[]),
        Err(CodecError::Truncated { found: 0, .. })
    ));
    for end in [1, 63, 191, 192, 1000, bytes.len() - 1] {
        assert!(Packed::from_bytes(&bytes[..end]).is_err(), "{end}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(
        Packed::from_bytes(&longer),
        Err(CodecError::ByteLength { .. })
    ));
    let mut altered = bytes.clone();
    altered[5000] ^= 1;
    assert!(matches!(
        Packed::from_bytes(&altered),
        Err(CodecError::Checksum { .. })
    ));
    let found = host::decode_into(&sample(), &mut [0; 9]);
    assert_eq!(
        found,
        Err(CodecError::OutputLength {
            expected: 70_000,
            found: 9
        })
    );
}

#[test]
fn coded_bits_are_checked_while_decoding() {
    // A code with a hole, and streams of ones, which lie in it.
    let config = CodecConfig::default().with_profile(Profile::High);
    let mut packed = host::encode(&vec![0x3f80; 2048], &config).unwrap();
    let layout = packed.layout().unwrap();
    packed.blob[TABLE_WORD..TABLE_WORD + 32].fill(0);
    packed.blob[TABLE_WORD + 127 / 8] = 2 << (4 * (127 % 8));
    packed.blob[ESCAPE_WORD] = 2;
    let streams = layout.streams_offset_words() as usize;
    packed.blob[streams..].fill(u32::MAX);
    assert!(matches!(
        host::decode(&packed),
        Err(CodecError::InvalidCode {
            block: 0,
            symbol: 0,
            ..
        })
    ));
    // Escapes only: ten bits for each of the 64 symbols, in streams of eight words.
    packed.blob[streams..].fill(0x5555_5555);
    assert!(matches!(
        host::decode(&packed),
        Err(CodecError::StreamOverrun {
            block: 0,
            stream: 0,
            used,
            capacity: 256
        }) if used > 256
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_values_survive(
        values in prop::collection::vec(any::<u16>(), 0..6000),
        profile in 0..4usize,
        family in 0..5usize,
    ) {
        let config = CodecConfig { profile: Profile::ALL[profile], family: Family::ALL[family] };
        round_trip("any", &values, &config);
    }

    #[test]
    fn few_exponents_survive(
        exponents in prop::collection::vec(any::<u8>(), 1..6),
        n in 1..80_000usize,
        seed in any::<u64>(),
    ) {
        let mut random = Random(seed);
        let values: Vec<u16> = (0..n)
            .map(|_| {
                let bits = random.bits();
                let exponent = exponents[(bits >> 32) as usize % exponents.len()] as u16;
                bits as u16 & 0x807f | exponent << 7
            })
            .collect();
        round_trip("few", &values, &CodecConfig::default());
    }

    #[test]
    fn flipped_bytes_never_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1..=255u8), 1..4),
        normal_data in any::<bool>(),
    ) {
        let values = if normal_data { normal(5000, 43) } else { noise(5000, 43) };
        let packed = host::encode(&values, &CodecConfig::default()).unwrap();
        let mut bytes = packed.to_bytes();
        for (index, flip) in &flips {
            let at = index.index(bytes.len());
            bytes[at] ^= flip;
        }
        match Packed::from_bytes(&bytes) {
            Ok(same) => prop_assert_eq!(host::decode(&same).unwrap(), values),
            Err(_) => {
                // Past the checksum, decoding must still end in values or an error.
                let body = bytes.len() - 4;
                let checksum = crc32fast::hash(&bytes[..body]);
                bytes[body..].copy_from_slice(&checksum.to_le_bytes());
                if let Ok(forged) = Packed::from_bytes(&bytes) {
                    let _ = host::decode(&forged);
                }
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert!(Packed::from_bytes(&bytes).is_err());
    }
}
