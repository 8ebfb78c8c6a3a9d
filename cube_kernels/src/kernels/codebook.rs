//! The choice of a code from a sample. Every cube makes it for itself, from at most 2,048 values: a launch of its own would
//! cost more.

use cubecl::prelude::*;

use super::dense::{Access, Granule, Rows, load};
use super::geometry::granule_values;
use super::{UNITS, huffman};
use crate::codebook::{
    ESCAPE_SYMBOL, LEAD, MIX, SAMPLE_VALUES, SAMPLED_ORIGIN, SCALES, SPAN, TEMPLATES,
};
use crate::header::TABLE_WORDS;
use crate::layout::GRANULE;

/// Counters of each exponent.
const TALLIES: u32 = 2;
/// Keys among which the cheapest code is sought.
const KEYS: u32 = 32;

const _: () = assert!(SAMPLE_VALUES == UNITS * GRANULE);

/// Which code is chosen: a template of `first..end`, or, if there is none, the sample's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Choice {
    pub first: u32,
    pub end: u32,
}

/// Eight of a template's lengths, four bits each.
fn template_word(template: u32, word: u32) -> u32 {
    let lengths = &TEMPLATES[template as usize].lengths[word as usize * 8..][..8];
    let pack = |word, &length: &u8| word << 4 | length as u32;
    lengths.iter().rev().fold(0, pack)
}

/// Length of a template's escape.
fn template_escape(template: u32) -> u32 {
    TEMPLATES[template as usize].escape as u32
}

/// What a value in this place of a template costs more than an escaped one, modulo `2^32`.
fn excess(template: u32, place: u32) -> u32 {
    match TEMPLATES[template as usize].lengths[place as usize] as u32 {
        0 => 0,
        length => length.wrapping_sub(template_escape(template) + 8),
    }
}

/// A code for the exponents, as every unit knows it.
#[derive(CubeType)]
pub(crate) struct Chosen {
    /// The header's code table.
    pub table: SharedMemory<u32>,
    /// Length of the escape.
    pub escape: u32,
    /// The header's word on where the code came from.
    pub origin: u32,
}

/// Chooses a code for a tensor that has values: the same in every cube that asks. Of the scratch memory,
/// [`huffman::SCRATCH_WORDS`] are used.
#[cube]
pub(crate) fn choose(
    wide: &Array<Granule>,
    narrow: &Array<u32>,
    values: u32,
    rows: Rows,
    scratch: SharedMemory<u32>,
    #[comptime] choice: Choice,
    #[comptime] access: Access,
) -> Chosen {
    let mut length = 0u32;
    let mut escape = 0u32;
    // A template's, unless the code is the sample's own.
    let mut origin = SAMPLED_ORIGIN.runtime();
    let total = select(values < SAMPLE_VALUES, values, SAMPLE_VALUES);
    let histogram = histogram(wide, narrow, values, total, rows, access);
    if comptime!(choice.first == choice.end) {
        huffman::lengths(histogram[UNIT_POS as usize], total, scratch);
        length = scratch[UNIT_POS as usize];
        escape = scratch[ESCAPE_SYMBOL as usize];
    } else {
        let best = cheapest(&histogram, total, choice);
        let template = best / 256;
        let shift = best % 256;
        let place = UNIT_POS + LEAD - shift;
        let covered = UNIT_POS + LEAD >= shift && place < comptime!(SPAN as u32);
        // Constants as code, as a table of them would be built in every unit's local memory.
        #[unroll]
        for candidate in comptime!(choice.first)..comptime!(choice.end) {
            if template == candidate {
                escape = comptime!(template_escape(candidate)).runtime();
                #[unroll]
                for word in 0..comptime!(SPAN as u32 / 8) {
                    if covered && place / 8 == word {
                        let lengths = comptime!(template_word(candidate, word)).runtime();
                        length = (lengths >> (place % 8 * 4)) & 0xf;
                    }
                }
            }
        }
        origin = (template / SCALES) | ((template % SCALES) << 8) | (shift << 16);
    }
    let mut lengths = scratch;
    let mut table = SharedMemory::<u32>::new(TABLE_WORDS);
    lengths[UNIT_POS as usize] = length;
    sync_cube();
    if UNIT_POS < comptime!(TABLE_WORDS as u32) {
        let mut word = 0u32;
        #[unroll]
        for nibble in 0..8u32 {
            word |= lengths[(UNIT_POS * 8 + nibble) as usize] << (nibble * 4);
        }
        table[UNIT_POS as usize] = word;
    }
    sync_cube();
    Chosen {
        table,
        escape,
        origin,
    }
}

/// How often each exponent occurs in the sample. Neighbouring units count apart, as most values
/// share a few exponents and atomics on one address queue.
#[cube]
fn histogram(
    wide: &Array<Granule>,
    narrow: &Array<u32>,
    values: u32,
    total: u32,
    rows: Rows,
    #[comptime] access: Access,
) -> SharedMemory<u32> {
    let tally = SharedMemory::<Atomic<u32>>::new(comptime!((256 * TALLIES) as usize));
    let mut histogram = SharedMemory::<u32>::new(256usize);
    #[unroll]
    for copy in 0..TALLIES {
        tally[(copy * 256 + UNIT_POS) as usize].store(0u32);
    }
    let mut first = UNIT_POS * GRANULE;
    if values > SAMPLE_VALUES {
        first = mix(UNIT_POS ^ mix(values)).mul_hi(values / GRANULE) * GRANULE;
    }
    let count = granule_values(UNIT_POS * GRANULE, total);
    let granule = load(wide, narrow, first, count, rows, access);
    sync_cube();
    #[unroll]
    for symbol in 0..GRANULE {
        if symbol < count {
            let pair = granule[comptime!((symbol / 2) as usize)];
            let exponent = (pair >> comptime!(symbol % 2 * 16 + 7)) & 0xff;
            tally[(exponent * TALLIES + UNIT_POS % TALLIES) as usize].fetch_add(1u32);
        }
    }
    sync_cube();
    let mut count = 0u32;
    #[unroll]
    for copy in 0..TALLIES {
        // In another order from unit to unit, to spread the banks.
        let place = UNIT_POS * TALLIES + (copy + UNIT_POS) % TALLIES;
        count += tally[place as usize].load();
    }
    histogram[UNIT_POS as usize] = count;
    sync_cube();
    histogram
}

/// The hash of [`crate::codebook`]'s sample.
#[cube]
pub(super) fn mix(x: u32) -> u32 {
    let x = x ^ (x >> 16);
    let x = x * comptime!(MIX[0]);
    let x = x ^ (x >> 15);
    let x = x * comptime!(MIX[1]);
    x ^ (x >> 16)
}

/// `template * 256 + shift` of the cheapest pair; unit `u` tries shift `u` of every template.
#[cube]
fn cheapest(histogram: &SharedMemory<u32>, total: u32, #[comptime] choice: Choice) -> u32 {
    // Several keys, as atomics on one address queue.
    let keys = SharedMemory::<Atomic<u32>>::new(comptime!(KEYS as usize));
    if UNIT_POS < KEYS {
        keys[UNIT_POS as usize].store(u32::MAX);
    }
    let mut costs = Array::<u32>::new(comptime!((choice.end - choice.first) as usize));
    #[unroll]
    for template in comptime!(choice.first)..comptime!(choice.end) {
        costs[comptime!((template - choice.first) as usize)] =
            total * comptime!(template_escape(template) + 8);
    }
    #[unroll]
    for place in 0..comptime!(SPAN as u32) {
        // Wraps below zero, beyond 255.
        let exponent = UNIT_POS + place - LEAD;
        let mut count = 0u32;
        if exponent < 256 {
            count = histogram[exponent as usize];
        }
        #[unroll]
        for template in comptime!(choice.first)..comptime!(choice.end) {
            if comptime!(excess(template, place) != 0) {
                costs[comptime!((template - choice.first) as usize)] +=
                    count * comptime!(excess(template, place));
            }
        }
    }
    // Cost above 12 bits of index: the least key is the cheapest, then the first.
    let mut key = u32::MAX.runtime();
    #[unroll]
    for template in comptime!(choice.first)..comptime!(choice.end) {
        let cost = costs[comptime!((template - choice.first) as usize)];
        let other = cost << 12 | comptime!(template << 8) | UNIT_POS;
        key = select(other < key, other, key);
    }
    sync_cube();
    keys[(UNIT_POS % KEYS) as usize].fetch_min(key);
    sync_cube();
    let mut best = u32::MAX.runtime();
    #[unroll]
    for other in 0..KEYS {
        let key = keys[other as usize].load();
        best = select(key < best, key, best);
    }
    best & 0xfff
}
