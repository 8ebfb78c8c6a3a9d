//! Where a block's words lie.

use cubecl::CubeTypeMut;
use cubecl::prelude::*;

use super::bits::window;
use super::geometry::{Geometry, block_at};
use super::team::Counts;
use crate::header::DIRECTORY_WORD;
use crate::layout::{COUNT_WORDS, ENTRY_WORDS, NO_RECORD, RAW, STREAMS};

/// One stream's words: rows that all of the block's streams have, and what the stream has beyond.
#[derive(CubeType, CubeTypeMut, Clone, Copy)]
pub(crate) struct Source {
    /// Rows of words, or [`RAW`].
    pub rows: u32,
    /// Where this stream's word of the first row lies.
    pub rows_at: u32,
    /// Whether that is in the spill.
    pub rows_spilled: bool,
    /// The most half-words that a stream has beyond the rows.
    pub most_extra: u32,
    /// How many this one has.
    pub extra: u32,
    /// Where those of all streams lie.
    extra_at: u32,
    /// Where this one's begin among them, in half-words.
    before: u32,
    /// How many words they all take.
    extra_words: u32,
    /// Whether that is in the spill.
    pub extra_spilled: bool,
    /// Where the streams' counts of extra half-words lie, if there are any.
    counts_at: u32,
}

/// A directory entry.
#[derive(CubeType, CubeTypeMut, Clone, Copy)]
pub(crate) struct Entry {
    /// Place of the record, or [`NO_RECORD`].
    place: u32,
    /// Rows, extra half-words and size.
    info: u32,
}

/// Loads the directory entry of block `index`, if there is such a block. Where places are fixed, the directory is in the
/// spill, if that is used.
#[cube]
pub(crate) fn load_entry(
    head: &Array<u32>,
    spill: &Array<u32>,
    index: u32,
    blocks: u32,
    records_end: u32,
    #[comptime] geometry: Geometry,
) -> Entry {
    let mut entry = Entry {
        place: NO_RECORD.runtime(),
        info: 0u32.runtime(),
    };
    if index < blocks {
        let at = index * ENTRY_WORDS;
        if comptime!(geometry.is_fixed()) {
            if records_end > 0 {
                entry.place = spill[at as usize];
                entry.info = spill[(at + 1) as usize];
            }
        } else {
            entry.place = head[DIRECTORY_WORD + at as usize];
            entry.info = head[DIRECTORY_WORD + (at + 1) as usize];
        }
    }
    entry
}

/// The source of stream `stream` of block `index`, still without its counts.
#[cube]
pub(crate) fn source(
    entry: Entry,
    index: u32,
    stream: u32,
    values: u32,
    capacity: u32,
    blocks: u32,
    #[comptime] geometry: Geometry,
) -> Source {
    let mut source = Source {
        rows: 0u32.runtime(),
        rows_at: 0u32.runtime(),
        rows_spilled: false.runtime(),
        most_extra: 0u32.runtime(),
        extra: 0u32.runtime(),
        extra_at: 0u32.runtime(),
        before: 0u32.runtime(),
        extra_words: 0u32.runtime(),
        extra_spilled: true.runtime(),
        counts_at: 0u32.runtime(),
    };
    if comptime!(geometry.is_fixed()) {
        source.rows = block_at(index, values, geometry).words;
        source.rows_at = index * comptime!(geometry.words * STREAMS) + stream;
        if entry.place != NO_RECORD {
            source.counts_at = blocks * ENTRY_WORDS + entry.place;
            source.most_extra = (entry.info >> 8) & 0xf;
            source.extra_at = source.counts_at + COUNT_WORDS;
            if entry.info & 0xff == RAW {
                source.rows = RAW.runtime();
                source.rows_at = source.counts_at + stream;
                source.rows_spilled = true.runtime();
            }
        }
    } else {
        source.rows = entry.info & 0xff;
        source.most_extra = (entry.info >> 8) & 0xf;
        source.rows_spilled = entry.place >= capacity;
        source.extra_spilled = source.rows_spilled;
        source.counts_at = select(source.rows_spilled, entry.place - capacity, entry.place);
        let counts = select(source.rows == RAW, 0u32, COUNT_WORDS.runtime());
        source.rows_at = source.counts_at + counts + stream;
        source.extra_at = source.counts_at + COUNT_WORDS + source.rows * STREAMS;
    }
    source
}

#[cube]
impl Source {
    /// Whether the words hold the exponents themselves.
    pub(crate) fn is_raw(&self) -> bool {
        self.rows == RAW
    }

    /// Reads how many extra half-words this stream has, and thereby where they lie.
    pub(crate) fn load_counts(&mut self, streams: &Array<u32>, spill: &Array<u32>, stream: u32) {
        if self.most_extra > 0 {
            let mut counts = Counts {
                words: Vector::empty(),
            };
            #[unroll]
            for word in 0..COUNT_WORDS {
                let place = self.counts_at + word;
                counts.words[word as usize] = pick(streams, spill, self.extra_spilled, place);
            }
            self.extra = counts.of(stream);
            self.before = counts.before(stream);
            self.extra_words = (counts.before(STREAMS.runtime()) + 1) / 2;
        }
    }

    /// The stream's word `word` beyond the rows. What follows the stream's end in it is not the stream's.
    pub(crate) fn extra_word(
        &self,
        streams: &Array<u32>,
        spill: &Array<u32>,
        word: u32,
        #[comptime] has_u64: bool,
    ) -> u32 {
        let first = self.before / 2 + word;
        let last = self.extra_words - 1;
        let second = select(first < last, first + 1, last);
        let high = pick(streams, spill, self.extra_spilled, self.extra_at + first);
        let low = pick(streams, spill, self.extra_spilled, self.extra_at + second);
        window(high, low, (self.before & 1) * 16, has_u64)
    }

    /// The stream's word `word`; zero beyond its end.
    pub(crate) fn word(
        &self,
        streams: &Array<u32>,
        spill: &Array<u32>,
        word: u32,
        #[comptime] has_u64: bool,
    ) -> u32 {
        let mut found = 0u32;
        if word < self.rows {
            if !self.is_raw() {
                found = self.raw_word(streams, spill, word);
            }
        } else if (word - self.rows) * 2 < self.extra {
            found = self.extra_word(streams, spill, word - self.rows, has_u64);
        }
        found
    }

    /// The stream's word `word` among the rows.
    pub(crate) fn raw_word(&self, streams: &Array<u32>, spill: &Array<u32>, word: u32) -> u32 {
        let place = self.rows_at + word * STREAMS;
        pick(streams, spill, self.rows_spilled, place)
    }
}

/// A word of the blob's streams, or of the spill.
#[cube]
fn pick(streams: &Array<u32>, spill: &Array<u32>, spilled: bool, place: u32) -> u32 {
    if spilled {
        spill[place as usize]
    } else {
        streams[place as usize]
    }
}
