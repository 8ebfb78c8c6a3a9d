//! The 32 units that work on one block, and what they tell each other.

use cubecl::prelude::*;

use crate::layout::{COUNT_WORDS, STREAMS};

/// What the device allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Means {
    /// Blocks that a cube can work on at a time, as many as shared memory has room for.
    pub teams: u32,
    /// A team is one plane, so it need not wait for the whole cube.
    pub planes: bool,
    /// 64-bit integers exist.
    pub has_u64: bool,
}

impl Means {
    /// Units that work on blocks.
    pub(crate) fn units(self) -> u32 {
        self.teams * STREAMS
    }
}

/// Waits until the team's writes to shared memory are seen by all of it.
#[cube]
pub(crate) fn sync_team(#[comptime] means: Means) {
    if comptime!(means.planes) {
        sync_plane();
    } else {
        sync_cube();
    }
}

/// Four bits for each stream of a block.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Counts {
    pub words: Vector<u32, Const<4>>,
}

#[cube]
impl Counts {
    /// Word `place`.
    pub(crate) fn word(&self, place: u32) -> u32 {
        let mut word = self.words[0];
        #[unroll]
        for index in 1..COUNT_WORDS {
            word = select(place == index, self.words[index as usize], word);
        }
        word
    }

    /// The count of stream `stream`.
    pub(crate) fn of(&self, stream: u32) -> u32 {
        (self.word(stream / 8) >> (stream % 8 * 4)) & 0xf
    }

    /// The sum of the counts of the streams before `stream`; of all of them if that is 32.
    pub(crate) fn before(&self, stream: u32) -> u32 {
        let mut sums = 0u32;
        #[unroll]
        for index in 0..COUNT_WORDS {
            let word = self.words[index as usize];
            let below = (1u32 << (stream % 8 * 4)) - 1;
            let part = select(stream / 8 == index, word & below, 0u32);
            let counted = select(stream / 8 > index, word, part);
            // Two counts of up to 15 in each byte: at most 120 after four words.
            sums += (counted & 0x0f0f_0f0f) + ((counted >> 4) & 0x0f0f_0f0f);
        }
        // The sum of the four bytes needs more than one: 480.
        let halves = (sums & 0x00ff_00ff) + ((sums >> 8) & 0x00ff_00ff);
        (halves + (halves >> 16)) & 0xffff
    }
}
