//! Data that every suite round-trips, and how packed forms are compared.

#![allow(dead_code)]

use lct_kernels::header::DIRECTORY_WORD;
use lct_kernels::layout::{DirectoryEntry, RAW};
use lct_kernels::{CodecConfig, Family, Packed, Profile};

/// Every profile with every family.
pub fn configs() -> impl Iterator<Item = CodecConfig> {
    Profile::ALL.into_iter().flat_map(|profile| {
        Family::ALL
            .into_iter()
            .map(move |family| CodecConfig { profile, family })
    })
}

/// Lengths around every boundary of the format.
pub const LENGTHS: [usize; 22] = [
    0, 1, 2, 7, 8, 9, 255, 256, 257, 2047, 2048, 2049, 4095, 4096, 4097, 8191, 8192, 8193, 32_769,
    65_536, 65_537, 200_003,
];

/// A small generator: reproducible, and no dependency.
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits (splitmix64's structure).
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Uniform in (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// BF16 bits of a number, rounded to nearest even.
pub fn bf16(x: f64) -> u16 {
    half::bf16::from_f64(x).to_bits()
}

/// N(0, 0.02), as weights are.
pub fn normal(n: usize, seed: u64) -> Vec<u16> {
    let mut random = Random(seed);
    (0..n).map(|_| bf16(0.02 * random.normal())).collect()
}

/// Uniform bits, which do not compress.
pub fn noise(n: usize, seed: u64) -> Vec<u16> {
    let mut random = Random(seed);
    (0..n).map(|_| random.bits() as u16).collect()
}

/// Attention probabilities under a causal mask: zeros above the diagonal.
pub fn causal_softmax(n: usize) -> Vec<u16> {
    let width = 256;
    let mut random = Random(7);
    (0..n)
        .map(|i| {
            let (row, column) = (i / width % width, i % width);
            let probability = (2.0 * random.normal()).exp() / (8.0 * (row + 1) as f64);
            if column > row { 0 } else { bf16(probability) }
        })
        .collect()
}

/// Blocks of another scale than the first: the sample's code misses most of them.
pub fn escapes(n: usize) -> Vec<u16> {
    let mut random = Random(11);
    (0..n)
        .map(|i| match i % 97 {
            // One exponent holds nearly all the weight, the others share the escape.
            0 => (random.bits() as u16 & 0x7fff) | 0x4000,
            _ => 0x3f80,
        })
        .collect()
}

/// Frequent exponents with sudden stretches of rare ones, which overflow some streams only.
pub fn bursts(n: usize) -> Vec<u16> {
    let mut random = Random(13);
    let mut values = normal(n, 17);
    for (i, value) in values.iter_mut().enumerate() {
        // One value of one granule in 32, always the same stream's.
        let (row, chunk) = (i / 256, i / 8 % 32);
        if (chunk + 5 * row).is_multiple_of(32) && i.is_multiple_of(8) {
            *value = random.bits() as u16;
        }
    }
    values
}

/// What no number is: every NaN payload, infinities, zeros and subnormals of both signs.
pub fn specials(n: usize) -> Vec<u16> {
    let mut random = Random(19);
    (0..n)
        .map(|_| {
            let bits = random.bits();
            let sign_fraction = (bits as u16 & 0x807f) * (bits >> 20 & 1) as u16;
            sign_fraction | if bits >> 21 & 1 == 0 { 0x7f80 } else { 0 }
        })
        .collect()
}

/// Every kind of data, by name.
pub fn kinds(n: usize) -> Vec<(&'static str, Vec<u16>)> {
    vec![
        ("zeros", vec![0; n]),
        ("constant", vec![0xbf3a; n]),
        ("normal", normal(n, 1)),
        ("noise", noise(n, 2)),
        ("softmax", causal_softmax(n)),
        ("escapes", escapes(n)),
        ("bursts", bursts(n)),
        ("specials", specials(n)),
        ("counting", (0..n).map(|i| i as u16).collect()),
    ]
}

/// Panics unless both packed forms are equal byte for byte once the records stand in the order of the blocks: an atomic
/// addition places them on the device.
pub fn assert_same(what: &str, left: &Packed, right: &Packed) {
    let (left, right) = (left.compact().unwrap(), right.compact().unwrap());
    let layout = left.layout().unwrap();
    assert_eq!(right.layout().unwrap(), layout, "{what}");
    for (name, left, right) in [
        ("blob", &left.blob, &right.blob),
        ("spill", &left.spill, &right.spill),
    ] {
        assert_eq!(left.len(), right.len(), "{what}: {name}");
        for (index, (a, b)) in left.iter().zip(right).enumerate() {
            assert_eq!(a, b, "{what}: {name} word {index}, {layout:?}");
        }
    }
}

/// How a block is stored.
#[derive(Debug, PartialEq, Eq)]
pub enum Stored {
    /// In its rows alone.
    Rows,
    /// With at most so many extra words in a stream.
    Extra(u32),
    /// A byte for each exponent.
    Raw,
}

/// How block `block` is stored.
pub fn stored(packed: &Packed, block: u32) -> Stored {
    let layout = packed.layout().unwrap();
    let directory = match layout.profile() {
        Profile::Auto => &packed.blob[DIRECTORY_WORD..],
        _ => &packed.spill[..],
    };
    let entry = directory
        .get(2 * block as usize..)
        .and_then(|words| DirectoryEntry::read([*words.first()?, *words.get(1)?]));
    match entry {
        None => Stored::Rows,
        Some(entry) if entry.rows == RAW => Stored::Raw,
        Some(entry) if entry.extra == 0 => Stored::Rows,
        Some(entry) => Stored::Extra(entry.extra),
    }
}
