//! First launch of an encode: one cube samples the tensor, chooses the code and writes header,
//! code table and the padding behind the directory. Reads at most 4,096 values.

use cubecl::prelude::*;

use super::dense::{Access, Rows, load_index};
use super::geometry::{Geometry, block_count};
use super::huffman;
use crate::codebook::{
    ESCAPE_SYMBOL, LEAD, MIX, SAMPLE_VALUES, SAMPLED_ORIGIN, SCALES, SPAN, TEMPLATES,
};
use crate::header::{
    CODEBOOK_WORD, DIRECTORY_WORD, ESCAPE_WORD, MAGIC, TABLE_WORD, TABLE_WORDS, VERSION,
};
use crate::layout::STREAMS;

/// Counters of each exponent.
const TALLIES: u32 = 8;
/// Keys among which the cheapest code is sought.
const KEYS: u32 = 32;

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

#[cube(launch_unchecked)]
pub(crate) fn choose(
    head: &mut Array<u32>,
    narrow: &Array<u32>,
    values: u32,
    row_length: u32,
    row_pitch: u32,
    #[comptime] profile: u32,
    #[comptime] geometry: Geometry,
    #[comptime] choice: Choice,
    #[comptime] access: Access,
) {
    let rows = Rows {
        length: row_length,
        pitch: row_pitch,
    };
    let mut length = 0u32;
    let mut escape = 0u32;
    let mut origin = 0u32;
    if values > 0 {
        let total = select(values < SAMPLE_VALUES, values, SAMPLE_VALUES);
        let histogram = histogram(narrow, values, total, rows, access);
        if comptime!(choice.first == choice.end) {
            let lengths = huffman::lengths(histogram[UNIT_POS as usize], total);
            length = lengths[UNIT_POS as usize];
            escape = lengths[ESCAPE_SYMBOL as usize];
            origin = SAMPLED_ORIGIN;
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
    }
    write_head(head, length, escape, origin, values, profile, geometry);
}

/// How often each exponent occurs in the sample. Neighbouring units count apart, as most values
/// share a few exponents and atomics on one address queue.
#[cube]
fn histogram(
    narrow: &Array<u32>,
    values: u32,
    total: u32,
    rows: Rows,
    #[comptime] access: Access,
) -> SharedMemory<u32> {
    const STEPS: u32 = SAMPLE_VALUES / STREAMS;
    let tally = SharedMemory::<Atomic<u32>>::new(comptime!((256 * TALLIES) as usize));
    let mut histogram = SharedMemory::<u32>::new(256usize);
    #[unroll]
    for copy in 0..TALLIES {
        tally[(copy * 256 + UNIT_POS) as usize].store(0u32);
    }
    // All loads before the first atomic, so that their latencies overlap.
    let mut exponents = Array::<u32>::new(comptime!(STEPS as usize));
    #[unroll]
    for step in 0..STEPS {
        let index = step * STREAMS + UNIT_POS;
        let mut exponent = 0u32;
        if index < total {
            let position = sample_position(index, values);
            exponent = (load_index(narrow, position, rows, access) >> 7) & 0xff;
        }
        exponents[step as usize] = exponent;
    }
    sync_cube();
    #[unroll]
    for step in 0..STEPS {
        if step * STREAMS + UNIT_POS < total {
            let place = exponents[step as usize] * TALLIES + UNIT_POS % TALLIES;
            tally[place as usize].fetch_add(1u32);
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

#[cube]
fn sample_position(index: u32, values: u32) -> u32 {
    let mut position = index;
    if values > SAMPLE_VALUES {
        position = mix(index ^ mix(values)) % values;
    }
    position
}

#[cube]
fn mix(x: u32) -> u32 {
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

/// Writes header and code table, of which unit `u` knows exponent `u`'s length.
#[cube]
fn write_head(
    head: &mut Array<u32>,
    length: u32,
    escape: u32,
    origin: u32,
    values: u32,
    #[comptime] profile: u32,
    #[comptime] geometry: Geometry,
) {
    let mut lengths = SharedMemory::<u32>::new(256usize);
    lengths[UNIT_POS as usize] = length;
    sync_cube();
    let blocks = block_count(values, geometry);
    if UNIT_POS < comptime!(TABLE_WORDS as u32) {
        let mut word = 0u32;
        #[unroll]
        for nibble in 0..8u32 {
            word |= lengths[(UNIT_POS * 8 + nibble) as usize] << (nibble * 4);
        }
        head[TABLE_WORD + UNIT_POS as usize] = word;
    }
    if UNIT_POS == 0 {
        head[0] = MAGIC;
        head[1] = comptime!(VERSION as u32 | profile << 16);
        head[2] = values;
        head[3] = 0u32;
        head[4] = comptime!(geometry.block_values());
        head[5] = comptime!(geometry.symbols);
        head[6] = comptime!(geometry.words);
        head[7] = blocks;
        head[8] = 0u32;
        head[CODEBOOK_WORD] = origin;
        head[ESCAPE_WORD] = escape;
        #[unroll]
        for word in 11..TABLE_WORD {
            head[word] = 0u32;
        }
    }
    let padding = DIRECTORY_WORD + (blocks + UNIT_POS) as usize;
    if padding < head.len() {
        head[padding] = 0u32;
    }
}
