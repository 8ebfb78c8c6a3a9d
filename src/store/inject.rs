//! Faults on demand: tests have encodes go wrong in ways that sound devices rarely do.

use std::cell::Cell;
use std::marker::PhantomData;

use lct_kernels::{CodecError, Packed};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A bit of the packed form flips: the lowest fraction bit of value [`FLIPPED`].
    FlippedBit,
    /// The codec or the launch refuses.
    Refused,
    /// The allocator has no memory for the packed form.
    #[cfg_attr(not(feature = "wgpu"), expect(dead_code))]
    NoMemory,
    /// The device does not run the encode, and says so nowhere.
    #[cfg_attr(not(feature = "wgpu"), expect(dead_code))]
    NotRun,
}

/// The value of which a bit flips. It lies in the second block under Auto, and is the first of a stream's granule.
pub(crate) const FLIPPED: u32 = 4096 + 256 * 3 + 8 * 11;

thread_local! {
    static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// While it lives, the encodes that this thread asks for go wrong.
#[must_use]
pub(crate) struct Faulty(PhantomData<*const ()>);

/// Lets the encodes that this thread asks for go wrong, until the returned guard is dropped.
#[cfg_attr(not(feature = "wgpu"), expect(dead_code))]
pub(crate) fn faulty(fault: Fault) -> Faulty {
    FAULT.set(Some(fault));
    Faulty(PhantomData)
}

impl Drop for Faulty {
    fn drop(&mut self) {
        FAULT.set(None);
    }
}

/// What shall go wrong in this thread's encodes.
pub(crate) fn current() -> Option<Fault> {
    FAULT.get()
}

/// The blob's word in which the bit lies, and the bit.
pub(crate) fn flipped_bit(layout: &lct_kernels::PackedLayout) -> (usize, u32) {
    let (block, stream) = layout.place_of(FLIPPED);
    let row = FLIPPED % layout.block_values() / lct_kernels::layout::ROW_VALUES;
    let own = lct_kernels::layout::plane_word(stream, row);
    let word = layout.plane_offset_words() + u64::from(block * layout.block_values() / 4 + own);
    (word as usize, 1)
}

/// What the host codec returned, with the fault.
pub(crate) fn into_packed(
    packed: Result<Packed, CodecError>,
    fault: Option<Fault>,
) -> Result<Packed, CodecError> {
    let mut packed = packed?;
    match fault {
        Some(Fault::Refused) => Err(CodecError::TooManyValues {
            values: 2,
            limit: 1,
        }),
        Some(Fault::FlippedBit) => {
            let (word, bit) = flipped_bit(&packed.layout()?);
            packed.blob[word] ^= bit;
            Ok(packed)
        }
        _ => Ok(packed),
    }
}
