//! Counters in global memory that the cubes of an encode share. The last cube sets them to zero again.

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
