//! Reading and writing granules of the dense tensor, whose rows may be pitched.
//!
//! The dense buffer is bound twice: as vectors of four words, eight values, for granules that are
//! aligned, and as single words for all others.

use cubecl::prelude::*;

use crate::layout::GRANULE;

/// Eight BF16 values.
pub(crate) type Granule = Vector<u32, Const<4>>;

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Access {
    /// Rows follow one another without gaps.
    pub contiguous: bool,
    /// Every whole granule is 16-byte aligned and lies in one row.
    pub aligned: bool,
}

/// Lengths of the rows, in values.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Rows {
    /// Values in a row.
    pub length: u32,
    /// Distance between the starts of rows.
    pub pitch: u32,
}

/// Where a value lies in the buffer.
#[cube]
fn address(index: u32, rows: Rows, #[comptime] access: Access) -> u32 {
    if comptime!(access.contiguous) {
        index
    } else {
        index / rows.length * rows.pitch + index % rows.length
    }
}

/// Where a whole granule lies among the buffer's vectors, if the access is aligned.
#[cube]
pub(crate) fn granule_address(granule: u32, rows: Rows, #[comptime] access: Access) -> u32 {
    if comptime!(access.contiguous) {
        granule
    } else {
        address(granule * GRANULE, rows, access) / GRANULE
    }
}

/// The granule that starts at logical index `first`; values beyond `count` are zero.
#[cube]
pub(crate) fn load(
    wide: &Array<Granule>,
    narrow: &Array<u32>,
    first: u32,
    count: u32,
    rows: Rows,
    #[comptime] access: Access,
) -> Granule {
    if comptime!(access.aligned) {
        if count == GRANULE {
            wide[granule_address(first / GRANULE, rows, access) as usize]
        } else {
            load_values(narrow, first, count, rows, access)
        }
    } else {
        load_values(narrow, first, count, rows, access)
    }
}

#[cube]
fn load_values(
    narrow: &Array<u32>,
    first: u32,
    count: u32,
    rows: Rows,
    #[comptime] access: Access,
) -> Granule {
    let mut granule = Granule::empty();
    #[unroll]
    for word in 0..4u32 {
        let mut pair = 0u32;
        if word * 2 < count {
            pair = load_value(narrow, address(first + word * 2, rows, access));
        }
        if word * 2 + 1 < count {
            pair |= load_value(narrow, address(first + word * 2 + 1, rows, access)) << 16;
        }
        granule[word as usize] = pair;
    }
    granule
}

/// One value.
#[cube]
pub(crate) fn load_value(narrow: &Array<u32>, address: u32) -> u32 {
    (narrow[(address / 2) as usize] >> ((address & 1) * 16)) & 0xffff
}

/// One value by its logical index.
#[cube]
pub(crate) fn load_index(
    narrow: &Array<u32>,
    index: u32,
    rows: Rows,
    #[comptime] access: Access,
) -> u32 {
    load_value(narrow, address(index, rows, access))
}

/// Writes the first `count` values of a granule. A word that it shares with a neighbour, who may
/// be written at the same time, is changed atomically, each half by its owner.
#[cube]
pub(crate) fn store(
    wide: &mut Array<Granule>,
    narrow: &Array<Atomic<u32>>,
    granule: Granule,
    first: u32,
    count: u32,
    rows: Rows,
    #[comptime] access: Access,
) {
    if comptime!(access.aligned) {
        if count == GRANULE {
            wide[granule_address(first / GRANULE, rows, access) as usize] = granule;
        } else {
            store_values(narrow, granule, first, count, rows, access);
        }
    } else {
        store_values(narrow, granule, first, count, rows, access);
    }
}

#[cube]
fn store_values(
    narrow: &Array<Atomic<u32>>,
    granule: Granule,
    first: u32,
    count: u32,
    rows: Rows,
    #[comptime] access: Access,
) {
    #[unroll]
    for word in 0..4u32 {
        let pair = granule[word as usize];
        let index = first + word * 2;
        if word * 2 + 1 < count {
            let low = address(index, rows, access);
            let high = address(index + 1, rows, access);
            if low % 2 == 0 && high == low + 1 {
                narrow[(low / 2) as usize].store(pair);
            } else {
                store_half(narrow, low, pair & 0xffff);
                store_half(narrow, high, pair >> 16);
            }
        } else if word * 2 < count {
            store_half(narrow, address(index, rows, access), pair & 0xffff);
        }
    }
}

#[cube]
fn store_half(narrow: &Array<Atomic<u32>>, address: u32, value: u32) {
    let shift = (address & 1) * 16;
    let word = (address / 2) as usize;
    narrow[word].fetch_and(0xffff_0000u32 >> shift);
    narrow[word].fetch_or(value << shift);
}
