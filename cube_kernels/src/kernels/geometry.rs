//! Where blocks, rows and granules lie: the device's twin of [`crate::layout`].

use cubecl::prelude::*;

use crate::PackedLayout;
use crate::layout::{GRANULE, ROTATION, ROW_VALUES, STREAMS};

/// A layout's constants, known when a kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Geometry {
    /// Symbols in a full block's streams.
    pub symbols: u32,
    /// Words that each of a full block's streams owns; 0 if they take what they need.
    pub words: u32,
    /// The most words that a coded stream takes.
    pub limit: u32,
}

impl From<&PackedLayout> for Geometry {
    fn from(layout: &PackedLayout) -> Self {
        Self {
            symbols: layout.stream_symbols(),
            words: layout.profile().stream_words(),
            limit: layout.max_stream_words(),
        }
    }
}

impl Geometry {
    /// Whether each stream's place is fixed.
    pub(crate) fn is_fixed(self) -> bool {
        self.words > 0
    }

    /// Values in a full block.
    pub(crate) fn block_values(self) -> u32 {
        self.symbols * STREAMS
    }

    /// Granules in a full block.
    pub(crate) fn block_granules(self) -> u32 {
        self.block_values() / GRANULE
    }

    /// Rows of a full block.
    pub(crate) fn rows(self) -> u32 {
        self.symbols / GRANULE
    }
}

/// One block's shape.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Block {
    /// Index of its first value in the tensor.
    pub first: u32,
    /// Number of values.
    pub values: u32,
    /// Rows, the last perhaps partial.
    pub rows: u32,
    /// Words that each stream owns.
    pub words: u32,
}

#[cube]
pub(crate) fn block_count(values: u32, #[comptime] geometry: Geometry) -> u32 {
    let full = comptime!(geometry.block_values());
    // Not `(values + full - 1) / full`, which overflows.
    let rest = u32::cast_from(values % full > 0);
    values / full + rest
}

#[cube]
pub(crate) fn block_at(index: u32, values: u32, #[comptime] geometry: Geometry) -> Block {
    let full = comptime!(geometry.block_values());
    let first = index * full;
    let left = values - first;
    let size = select(left < full, left, full);
    let rows = (size + comptime!(ROW_VALUES - 1)) / ROW_VALUES;
    let words = (rows * comptime!(geometry.words * GRANULE) + comptime!(geometry.symbols - 1))
        / comptime!(geometry.symbols);
    Block {
        first,
        values: size,
        rows,
        words,
    }
}

/// Which of the block's granules stream `stream` has in row `row`.
#[cube]
pub(crate) fn granule_index(stream: u32, row: u32) -> u32 {
    let chunk = (stream - row * ROTATION) & comptime!(STREAMS - 1);
    row * STREAMS + chunk
}

/// Offset in the block of that granule's first value.
#[cube]
pub(crate) fn granule_offset(stream: u32, row: u32) -> u32 {
    granule_index(stream, row) * GRANULE
}

/// Which of the plane's vectors, from its block's first on, holds a stream's granules of row `row` and the next.
#[cube]
pub(crate) fn plane_index(stream: u32, row: u32) -> u32 {
    row / 2 * STREAMS + stream
}

/// Values of a granule that exist: 8, or fewer at the end of the tensor.
#[cube]
pub(crate) fn granule_values(offset: u32, values: u32) -> u32 {
    let mut present = 0u32;
    if offset < values {
        let left = values - offset;
        present = select(left < GRANULE, left, GRANULE);
    }
    present
}
