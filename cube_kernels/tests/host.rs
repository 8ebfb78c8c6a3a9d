//! The host codec: every value survives, packed forms are what the format says, and what is
//! malformed is refused.

mod common;

use common::*;
use lct_kernels::header::{
    CODEBOOK_WORD, DIRECTORY_WORD, ESCAPE_WORD, RESERVED_WORD, SPILL_WORDS_WORD, TABLE_WORD,
};
use lct_kernels::{CodecConfig, CodecError, Family, Packed, PackedLayout, Profile, host};
use proptest::prelude::*;

/// Through the packed and the serialized form and back; returns the packed form.
fn round_trip(what: &str, values: &[u16], config: &CodecConfig) -> Packed {
    let packed = host::encode(values, config).unwrap();
    let layout = packed.validate().unwrap();
    assert_eq!(
        layout,
        PackedLayout::new(values.len(), config.profile).unwrap()
    );
    assert!(packed.spill.len() as u64 <= layout.spill_bound_words());
    let back = Packed::from_bytes(&packed.to_bytes()).unwrap();
    assert!(
        back == packed,
        "{what}, {} values, {config:?}",
        values.len()
    );
    let mut output = vec![0xffff; values.len()];
    host::decode_into(&packed, &mut output).unwrap();
    assert!(
        output == values,
        "{what}, {} values, {config:?}",
        values.len()
    );
    packed
}

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
fn ratio_on_weights() {
    let values = normal(1 << 20, 23);
    for (profile, least) in [
        (Profile::Clean, 1.43),
        (Profile::Medium, 1.39),
        (Profile::High, 1.33),
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
fn spills_of_no_one_many_and_all_streams() {
    let config = CodecConfig::default();
    let spilled = |values: &[u16]| {
        let packed = round_trip("spill", values, &config);
        spilled_streams(&packed, 0)
    };
    let n = config.profile.block_values() as usize;
    assert_eq!(spilled(&normal(n, 31)), 0);
    assert_eq!(spilled(&bursts(n)), 1);
    assert_eq!(spilled(&noise(n, 37)), 256);

    // Rare exponents in one row of two: every second stream has enough of them to spill.
    let mut values = vec![0x3f80; n];
    for (i, value) in values.iter_mut().enumerate() {
        let stream = (i / 8 % 256 + 37 * (i / 2048)) % 256;
        if stream.is_multiple_of(2) && i % 8 < 5 {
            *value = (i as u16).wrapping_mul(0x9e37);
        }
    }
    assert_eq!(spilled(&values), 128);
}

#[test]
fn all_escapes() {
    // The first 4,096 positions the sample sees are not known to the caller, so the code is made
    // from one tensor's sample and applied to data it misses: every value but the sampled.
    let n = 300_000;
    let mut values = vec![0x0080u16; n];
    for index in 0..lct_kernels::codebook::SAMPLE_VALUES {
        let position = lct_kernels::codebook::sample_position(index, n as u32);
        values[position as usize] = 0x4100;
    }
    let packed = round_trip("escapes", &values, &CodecConfig::default());
    let lengths = packed.code_lengths().unwrap();
    assert_eq!(lengths.symbols[1], 0);
    assert!((0..4).all(|block| spilled_streams(&packed, block) == 256));
}

fn sample() -> Packed {
    host::encode(&noise(70_000, 41), &CodecConfig::default()).unwrap()
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
            found: 2,
            supported: 1
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
    for word in [4, 5, 6, 7, RESERVED_WORD] {
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
        Directory { block: 0, offset, .. } if offset == 1 << 30
    ));
    let mut packed = sample();
    packed.blob[SPILL_WORDS_WORD] = u32::MAX;
    let found = packed.spill.len() as u64;
    assert!(matches!(
        packed.validate(),
        Err(SpillLength { declared: 0xffff_ffff, found: words, .. }) if words == found
    ));
    assert!(matches!(
        Packed::from_bytes(&packed.to_bytes()),
        Err(SpillLength { .. })
    ));
    let offset = sample().blob[DIRECTORY_WORD] as usize;
    assert!(matches!(
        refused(|p| p.spill[offset] = 0xffff),
        Marker {
            block: 0,
            stream: 0,
            marker: 0xffff,
            count: 256
        }
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
    let mut packed = sample();
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
    let mut packed = host::encode(&vec![0x3f80; 2048], &CodecConfig::default()).unwrap();
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
    // Escapes only: three of ten bits fill the one word, zeros follow and complete a fourth, and
    // the other four symbols take two bits each.
    packed.blob[streams..].fill(0x5555_5555);
    assert_eq!(
        host::decode(&packed),
        Err(CodecError::StreamOverrun {
            block: 0,
            stream: 0,
            used: 48,
            capacity: 32
        })
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_values_survive(
        values in prop::collection::vec(any::<u16>(), 0..6000),
        profile in 0..3usize,
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
