//! A block's words in shared memory, where each unit has a column of its own.

use cubecl::prelude::*;

use super::source::Source;
use super::team::Means;
use crate::layout::STREAMS;

/// Words of a stream whose loads are in flight together.
const BATCH: u32 = 12;
/// How many words beyond a stream's end a reader looks.
const LOOKAHEAD: u32 = 3;

/// The rows of shared memory that a block's words take, with what the reader looks ahead.
#[cube]
pub(crate) fn staged_rows(words: &Source) -> u32 {
    words.rows + (words.most_extra + 1) / 2 + LOOKAHEAD
}

/// Copies a block's words to shared memory, from row `first` on. Each unit copies and reads its own column only, so nothing
/// has to be awaited.
#[cube]
pub(crate) fn stage(
    staged: SharedMemory<u32>,
    first: u32,
    words: &Source,
    streams: &Array<u32>,
    spill: &Array<u32>,
    #[comptime] means: Means,
) {
    if words.rows_spilled {
        stage_rows(staged, first, spill, words.rows_at, words.rows, means);
    } else {
        stage_rows(staged, first, streams, words.rows_at, words.rows, means);
    }
    let mut staged = staged;
    for word in 0..(words.extra + 1) / 2 {
        let place = (first + words.rows + word) * means.units() + UNIT_POS;
        staged[place as usize] = words.extra_word(streams, spill, word, means.has_u64);
    }
}

#[cube]
fn stage_rows(
    staged: SharedMemory<u32>,
    first: u32,
    from: &Array<u32>,
    at: u32,
    rows: u32,
    #[comptime] means: Means,
) {
    let mut staged = staged;
    let mut row = 0u32;
    while row < rows {
        let mut batch = Array::<u32>::new(comptime!(BATCH as usize));
        #[unroll]
        for step in 0..BATCH {
            // Without a condition, or they would follow one another; the last row again is no harm.
            let place = select(row + step < rows, row + step, rows - 1);
            batch[step as usize] = from[(at + place * STREAMS) as usize];
        }
        #[unroll]
        for step in 0..BATCH {
            let place = select(row + step < rows, row + step, rows - 1);
            staged[((first + place) * means.units() + UNIT_POS) as usize] = batch[step as usize];
        }
        row += BATCH;
    }
}
