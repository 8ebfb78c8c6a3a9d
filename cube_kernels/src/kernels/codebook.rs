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

/// Which code is chosen: a template of `first..end`, or, if there is none, the sample's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Choice {
    pub first: u32,
    pub end: u32,
}

/// Words of a template in the kernel's constants: 32 lengths of four bits, then the escape's.
const TEMPLATE_WORDS: u32 = SPAN as u32 / 8 + 1;

fn template_words() -> Vec<u32> {
    let words = TEMPLATES.iter().flat_map(|template| {
        let nibbles = template.lengths.chunks(8).map(|lengths| {
            let pack = |word, &length: &u8| word << 4 | length as u32;
            lengths.iter().rev().fold(0, pack)
        });
        nibbles.chain([template.escape as u32])
    });
    words.collect()
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
            let templates = Array::<u32>::from_data(comptime!(template_words()));
            let best = cheapest(&histogram, &templates, total, choice);
            let template = best / 256;
            let shift = best % 256;
            escape = templates[(template * TEMPLATE_WORDS + TEMPLATE_WORDS - 1) as usize];
            let place = UNIT_POS + LEAD - shift;
            if UNIT_POS + LEAD >= shift && place < comptime!(SPAN as u32) {
                length = template_length(&templates, template, place);
            }
            origin = (template / SCALES) | ((template % SCALES) << 8) | (shift << 16);
        }
    }
    write_head(head, length, escape, origin, values, profile, geometry);
}

/// How often each exponent occurs in the sample.
#[cube]
fn histogram(
    narrow: &Array<u32>,
    values: u32,
    total: u32,
    rows: Rows,
    #[comptime] access: Access,
) -> SharedMemory<u32> {
    const STEPS: u32 = SAMPLE_VALUES / STREAMS;
    let tally = SharedMemory::<Atomic<u32>>::new(256usize);
    let mut histogram = SharedMemory::<u32>::new(256usize);
    tally[UNIT_POS as usize].store(0u32);
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
            tally[exponents[step as usize] as usize].fetch_add(1u32);
        }
    }
    sync_cube();
    histogram[UNIT_POS as usize] = tally[UNIT_POS as usize].load();
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
fn cheapest(
    histogram: &SharedMemory<u32>,
    templates: &Array<u32>,
    total: u32,
    #[comptime] choice: Choice,
) -> u32 {
    // Cost above 12 bits of index: the least key is the cheapest, then the first.
    let best = SharedMemory::<Atomic<u32>>::new(1usize);
    if UNIT_POS == 0 {
        best[0].store(u32::MAX);
    }
    sync_cube();
    for template in comptime!(choice.first)..comptime!(choice.end) {
        let mut cost = 0u32;
        let mut covered = 0u32;
        for place in 0..comptime!(SPAN as u32) {
            let exponent = UNIT_POS + place - LEAD;
            if UNIT_POS + place >= LEAD && exponent < 256 {
                let length = template_length(templates, template, place);
                if length > 0 {
                    let count = histogram[exponent as usize];
                    cost += count * length;
                    covered += count;
                }
            }
        }
        let escape = templates[(template * TEMPLATE_WORDS + TEMPLATE_WORDS - 1) as usize];
        cost += (total - covered) * (escape + 8);
        best[0].fetch_min(cost << 12 | template << 8 | UNIT_POS);
    }
    sync_cube();
    best[0].load() & 0xfff
}

#[cube]
fn template_length(templates: &Array<u32>, template: u32, place: u32) -> u32 {
    (templates[(template * TEMPLATE_WORDS + place / 8) as usize] >> (place % 8 * 4)) & 0xf
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
