//! Windows of 32 bits on two adjacent words: one instruction where 64-bit integers exist, as they
//! then are a funnel shift.

use cubecl::prelude::*;

/// The 32 bits that begin `offset` bits into `high`, then `low`; zeros follow.
///
/// `offset` is below 64 with 64-bit integers, below 32 without.
#[cube]
pub(crate) fn window(high: u32, low: u32, offset: u32, #[comptime] has_u64: bool) -> u32 {
    if comptime!(has_u64) {
        u32::cast_from((joined(high, low) << u64::cast_from(offset)) >> 32u64)
    } else {
        // A shift by 32 is undefined, so the second one is split.
        high << offset | low >> 1 >> (31 - offset)
    }
}

/// The low 32 bits of `high`, then `low`, moved right by `distance`, which is below 32.
#[cube]
pub(crate) fn window_before(high: u32, low: u32, distance: u32, #[comptime] has_u64: bool) -> u32 {
    if comptime!(has_u64) {
        u32::cast_from(joined(high, low) >> u64::cast_from(distance))
    } else {
        high << 1 << (31 - distance) | low >> distance
    }
}

#[cube]
fn joined(high: u32, low: u32) -> u64 {
    (u64::cast_from(high) << 32u64) | u64::cast_from(low)
}
