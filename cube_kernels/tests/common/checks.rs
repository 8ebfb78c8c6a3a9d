//! What must hold for any input. The property tests, the fuzz targets (`fuzz/`) and the replay of their corpus share it.

#![allow(
    dead_code,
    reason = "each test and fuzz target uses some of the checks"
)]

use lct_kernels::codebook::{CodeLengths, DecodeTable, ESCAPE_SYMBOL, MAX_LENGTH, best_code};
use lct_kernels::header::{
    self, CAPACITY_WORD, DIRECTORY_WORD, RECORDS_END_WORD, RESERVED_WORD, TABLE_WORD, TABLE_WORDS,
};
use lct_kernels::{CodecConfig, CodecError, Family, Packed, PackedLayout, Profile, host};

/// Panics if something does not hold for an input.
pub type Check = fn(&[u8]);

/// The fuzz targets that need nothing but the codec, by name.
pub const TARGETS: [(&str, Check); 4] = [
    ("decode", decode),
    ("values", values),
    ("codebook", codebook),
    ("header", header),
];

/// Through the packed and the serialized form and back; returns the packed form.
pub fn round_trip(what: &str, values: &[u16], config: &CodecConfig) -> Packed {
    let packed = host::encode(values, config).unwrap();
    let layout = packed.validate().unwrap();
    let expected = PackedLayout::new(values.len(), config.profile).unwrap();
    assert_eq!(layout, expected.with_capacity(layout.capacity() as u64));
    assert!(packed.spill.len() as u64 <= layout.spill_bound_words());
    assert!(packed.compact().unwrap() == packed, "the host's order");
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
    assert_eq!(host::verify(&packed, values), Ok(()));
    packed
}

/// Any values survive. The first byte chooses profile and family, the second how often the rest is repeated, as values.
pub fn values(data: &[u8]) {
    let Some((config, [repeat, rest @ ..])) = config(data) else {
        return;
    };
    let pattern = words16(rest);
    let most = 20_000 / pattern.len().max(1);
    let repeat = (1 << (repeat % 16)).min(most.max(1));
    let values: Vec<u16> = (0..repeat)
        .flat_map(|round| pattern.iter().map(move |value| value ^ (round as u16 & 3)))
        .collect();
    round_trip("fuzzed", &values, &config);
}

/// Any bytes decode to values or to an error. The first byte says what the others are: a serialized form; one whose checksum
/// is put right; or changes to a sound one, whose checksum is put right, too.
pub fn decode(data: &[u8]) {
    let Some((&mode, rest)) = data.split_first() else {
        return;
    };
    let mut bytes = rest.to_vec();
    match mode % 3 {
        0 => {}
        1 => put_right(&mut bytes),
        _ => {
            let Some((config, [length, many, rest @ ..])) = config(rest) else {
                return;
            };
            let changes = (*many as usize % 8) * 4;
            let Some((changes, rest)) = rest.split_at_checked(changes) else {
                return;
            };
            let pattern = words16(rest);
            let length = if pattern.is_empty() {
                0
            } else {
                *length as usize * 37
            };
            let values: Vec<u16> = pattern.iter().copied().cycle().take(length).collect();
            bytes = round_trip("sound", &values, &config).to_bytes();
            for change in changes.chunks_exact(4) {
                let at = u16::from_le_bytes([change[0], change[1]]) as usize * 3 % bytes.len();
                bytes[at] ^= change[2];
                // Header and directory are where most can go wrong.
                let at = change[3] as usize % bytes.len();
                bytes[at] = bytes[at].wrapping_add(change[2]);
            }
            put_right(&mut bytes);
        }
    }
    match Packed::from_bytes(&bytes) {
        Ok(packed) => decodes_or_says_why(&packed),
        // A forged length must not have cost memory.
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A packed form that passed validation decodes to as many values as it states, or to an error; in any order of its records.
fn decodes_or_says_why(packed: &Packed) {
    let layout = packed.layout().unwrap();
    let decoded = host::decode(packed);
    match &decoded {
        Ok(values) => {
            assert_eq!(values.len(), layout.values());
            assert_eq!(host::verify(packed, values), Ok(()));
        }
        Err(error) => assert!(matches!(
            error,
            CodecError::InvalidCode { .. } | CodecError::StreamOverrun { .. }
        )),
    }
    let compact = packed.compact().unwrap();
    assert_eq!(host::decode(&compact).ok(), decoded.ok());
    let other = host::decode_into(packed, &mut vec![0; layout.values() + 1]);
    assert!(matches!(other, Err(CodecError::OutputLength { .. })));
}

/// Every code that is built or read can be told apart and decodes what it codes. The first byte chooses between weights and
/// a code table.
pub fn codebook(data: &[u8]) {
    let Some((&mode, rest)) = data.split_first() else {
        return;
    };
    if mode % 2 == 0 {
        let mut histogram = [0u64; 256];
        for pair in rest.chunks_exact(2) {
            let count = &mut histogram[pair[0] as usize];
            *count = count.saturating_add(1 << (pair[1] % 64));
        }
        let lengths = best_code(&histogram);
        if histogram == [0; 256] {
            assert_eq!(lengths, CodeLengths::empty());
            return;
        }
        tells_apart(&lengths);
        assert!(lengths.mean_bits(&histogram) <= (MAX_LENGTH + 8) as f64);
    } else {
        let mut words = [0u32; TABLE_WORDS];
        let mut given = rest.chunks_exact(4);
        for (word, bytes) in words.iter_mut().zip(&mut given) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let escape = given.next().map_or(1, |bytes| u32::from(bytes[0]));
        if let Ok(lengths) = CodeLengths::from_table(&words, escape) {
            assert_eq!(lengths.table_words(), words);
            tells_apart(&lengths);
        }
    }
}

/// The decode table finds each exponent by its code, whatever follows.
fn tells_apart(lengths: &CodeLengths) {
    lengths.check().unwrap();
    assert!(lengths.kraft() <= 256);
    let table = DecodeTable::new(lengths);
    for (exponent, (code, bits)) in lengths.codes().into_iter().enumerate() {
        for rest in [0u32, u32::MAX] {
            let bits = u32::from(bits);
            // Left in a window of 32 bits, the rest behind it.
            let window = (u32::from(code) << (32 - bits)) | (rest >> bits);
            let entry = table.get((window >> 20) as usize);
            if entry.is_escape() {
                assert_eq!(lengths.symbols[exponent], 0);
                assert_eq!(entry.first_bits(), u32::from(lengths.escape));
                let literal = window << lengths.escape >> 24;
                assert_eq!(literal, exponent as u32);
            } else {
                assert_eq!((entry.first(), entry.first_bits()), (exponent as u32, bits));
            }
        }
    }
    assert_eq!(ESCAPE_SYMBOL, 256);
}

/// Any header is a layout or an error. The first byte says how many of the fields that follow from others are put right.
pub fn header(data: &[u8]) {
    let Some((&right, rest)) = data.split_first() else {
        return;
    };
    let mut words = vec![0u32; DIRECTORY_WORD];
    for (word, bytes) in words.iter_mut().zip(rest.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    if right % 4 > 0 {
        let profile = Profile::from_code(words[1] as u8 % 4).unwrap();
        let values = words[2] as usize;
        if let Ok(layout) = PackedLayout::new(values, profile) {
            let layout = layout.with_capacity(u64::from(words[CAPACITY_WORD]));
            words[..8].copy_from_slice(&header::fixed_words(&layout));
            if right % 4 > 1 {
                words[CAPACITY_WORD] = layout.capacity();
            }
            if right % 4 > 2 {
                words[RESERVED_WORD..TABLE_WORD].fill(0);
            }
        }
    }
    let Ok(layout) = header::read_layout(&words) else {
        return;
    };
    assert_eq!(header::fixed_words(&layout), words[..8]);
    assert!(layout.plane_offset_words().is_multiple_of(64));
    assert!(layout.streams_offset_words().is_multiple_of(64));
    assert!(layout.blob_words() >= layout.streams_offset_words() + u64::from(layout.capacity()));
    let bound = layout.spill_bound_words();
    let raw = 64 * (layout.values() as u64).div_ceil(256);
    assert!(bound <= 2 * u64::from(layout.blocks()) + 2 * raw);
    let used = layout.spill_words(words[RECORDS_END_WORD]);
    assert!(used <= u64::from(u32::MAX) + 2 * u64::from(layout.blocks()));
    if let Some(last) = (layout.values() as u32).checked_sub(1) {
        let (block, stream) = layout.place_of(last);
        assert_eq!(block, layout.blocks() - 1);
        assert!(stream < 32 && layout.block(block).stream_count(stream) > 0);
    }
    // Too short for what it states, which is said before any of it is allocated.
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert!(Packed::from_bytes(&bytes).is_err());
}

/// Profile and family by the first byte, and what follows it.
fn config(data: &[u8]) -> Option<(CodecConfig, &[u8])> {
    let (&choice, rest) = data.split_first()?;
    let config = CodecConfig {
        profile: Profile::ALL[choice as usize % 4],
        family: Family::ALL[choice as usize / 4 % 5],
    };
    Some((config, rest))
}

fn words16(bytes: &[u8]) -> Vec<u16> {
    let pairs = bytes.chunks_exact(2);
    pairs
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        .collect()
}

/// Makes the last four bytes the checksum of those before them.
fn put_right(bytes: &mut [u8]) {
    if let Some(body) = bytes.len().checked_sub(4) {
        let checksum = crc32fast::hash(&bytes[..body]);
        bytes[body..].copy_from_slice(&checksum.to_le_bytes());
    }
}
