//! Counters in global memory that the cubes of an encode share. The last cube sets them to zero again.

use cubecl::prelude::*;

/// Which counts the words of the records.
pub(crate) const PLACES: usize = 0;
/// Which counts the cubes that are done.
pub(crate) const DONE: usize = 1;
/// Which counts the blocks that were taken after the first of each team.
pub(crate) const TAKEN: usize = 2;
/// How many there are, for a launch that encodes up to four tensors.
pub(crate) const TICKETS: usize = 6;

/// Which counts the words of the records of tensor `tensor`, where a launch encodes several.
pub(crate) fn places(tensor: usize) -> usize {
    match tensor {
        0 => PLACES,
        other => TAKEN + other,
    }
}

/// Whether this cube is the last one to be done: it knows where the records end.
#[cube]
pub(crate) fn is_last_cube(tickets: &Array<Atomic<u32>>) -> bool {
    let last = SharedMemory::<Atomic<u32>>::new(1usize);
    sync_cube();
    if UNIT_POS == 0 {
        let done = tickets[DONE].fetch_add(1u32);
        last[0].store(u32::cast_from(done + 1 == CUBE_COUNT as u32));
    }
    sync_cube();
    last[0].load() == 1
}
