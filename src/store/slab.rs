//! Memory that is cut into the buffers of packed forms.
//!
//! On a tight device buffers of their own do not do. Those of packed forms have many sizes, and with each page that comes and
//! goes the driver's pool gets more pieces: it has its memory in units of 32 MiB, so that what a page of 33 MiB leaves of its
//! second unit serves smaller ones only. On an H200 of which 24 GiB could be had, 48 MB were refused while 4 GB were free. A slab
//! stays, and what is free in it comes together again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cubecl::server::Handle;

use crate::lock::lock;

/// A larger part of a slab than one of so many is no piece of it.
const LARGEST_PARTS: u64 = 2;

/// The slabs of one stream. A piece that was given up is there for others at once, as what they do comes later on the stream.
#[derive(Debug)]
pub(super) struct Shelf {
    slab_bytes: u64,
    slabs: Mutex<Slabs>,
}

#[derive(Debug, Default)]
struct Slabs {
    list: Vec<Slab>,
    /// Slabs that there ever were.
    made: u64,
}

#[derive(Debug)]
struct Slab {
    number: u64,
    memory: Handle,
    /// What is free: where each part begins, and its bytes. No two touch.
    free: BTreeMap<u64, u64>,
}

/// A part of a slab. Dropping it gives it up.
#[derive(Debug)]
pub(super) struct Piece {
    shelf: Arc<Shelf>,
    slab: u64,
    start: u64,
    bytes: u64,
}

impl Shelf {
    /// With slabs of so many bytes.
    pub(super) fn new(slab_bytes: u64) -> Self {
        Self {
            slab_bytes,
            slabs: Mutex::default(),
        }
    }

    /// Whether no piece is in use.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.slabs).list.is_empty()
    }

    /// A piece of so many bytes, and where it lies; `fresh` makes the memory of another slab, if there is any. `None` if there is
    /// not, or it were too large a part of one.
    pub(super) fn cut(
        self: &Arc<Self>,
        bytes: u64,
        fresh: impl FnOnce(usize) -> Option<Handle>,
    ) -> Option<(Handle, Arc<Piece>)> {
        if bytes > self.slab_bytes / LARGEST_PARTS {
            return None;
        }
        let mut slabs = lock(&self.slabs);
        let fits = slabs.list.iter().enumerate().flat_map(|(index, slab)| {
            let fits = slab.free.iter().filter(|(_, free)| **free >= bytes);
            fits.map(move |(start, free)| (*free, index, *start))
        });
        // The smallest that is large enough, and of those the one in the oldest slab, so that the youngest become free.
        let (index, start) = match fits.min() {
            Some((_, index, start)) => (index, start),
            None => {
                let memory = fresh(self.slab_bytes as usize)?;
                let number = slabs.made;
                slabs.made += 1;
                slabs.list.push(Slab {
                    number,
                    memory,
                    free: BTreeMap::from([(0, self.slab_bytes)]),
                });
                (slabs.list.len() - 1, 0)
            }
        };
        let slab = &mut slabs.list[index];
        let free = slab.free.remove(&start).expect("it was found");
        if free > bytes {
            slab.free.insert(start + bytes, free - bytes);
        }
        let memory = slab.memory.clone();
        let memory = memory
            .offset_start(start)
            .offset_end(self.slab_bytes - start - bytes);
        let piece = Piece {
            shelf: self.clone(),
            slab: slab.number,
            start,
            bytes,
        };
        Some((memory, Arc::new(piece)))
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut slabs = lock(&self.shelf.slabs);
        let of = |slab: &Slab| slab.number == self.slab;
        let index = slabs.list.iter().position(of).expect("it has this piece");
        let free = &mut slabs.list[index].free;
        let (mut start, mut bytes) = (self.start, self.bytes);
        if let Some((before, length)) = free.range(..start).next_back().map(|(a, b)| (*a, *b))
            && before + length == start
        {
            free.remove(&before);
            (start, bytes) = (before, length + bytes);
        }
        if let Some(after) = free.remove(&(self.start + self.bytes)) {
            bytes += after;
        }
        free.insert(start, bytes);
        if bytes == self.shelf.slab_bytes {
            slabs.list.remove(index);
        }
    }
}

#[cfg(all(test, feature = "wgpu"))]
mod tests {
    use burn_wgpu::{WgpuDevice, WgpuRuntime};
    use cubecl::Runtime;
    use proptest::prelude::*;

    use super::*;

    const SMALL: u64 = 64 << 10;

    fn fresh(bytes: usize) -> Option<Handle> {
        Some(WgpuRuntime::client(&WgpuDevice::default()).empty(bytes))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Each step cuts a piece, or gives one up.
        #[test]
        fn pieces_never_overlap_and_come_together_again(
            steps in prop::collection::vec((1..=SMALL / 1024, any::<Option<prop::sample::Index>>()), 1..200)
        ) {
            let shelf = Arc::new(Shelf::new(SMALL));
            let mut pieces: Vec<(Handle, Arc<Piece>)> = Vec::new();
            for (units, given_up) in steps {
                if let Some(index) = given_up.filter(|_| !pieces.is_empty()) {
                    pieces.swap_remove(index.index(pieces.len()));
                    continue;
                }
                let bytes = 512 * units;
                let Some((memory, piece)) = shelf.cut(bytes, fresh) else {
                    prop_assert!(bytes > SMALL / LARGEST_PARTS);
                    continue;
                };
                prop_assert_eq!(memory.size_in_used(), bytes);
                prop_assert_eq!(memory.offset_start, Some(piece.start));
                for (_, other) in &pieces {
                    let apart = piece.start + bytes <= other.start || other.start + other.bytes <= piece.start;
                    prop_assert!(piece.slab != other.slab || apart);
                }
                pieces.push((memory, piece));
            }
            let in_use: u64 = pieces.iter().map(|(_, piece)| piece.bytes).sum();
            let free: u64 = {
                let slabs = lock(&shelf.slabs);
                slabs.list.iter().flat_map(|slab| slab.free.values()).sum()
            };
            prop_assert_eq!(in_use + free, SMALL * lock(&shelf.slabs).list.len() as u64);
            drop(pieces);
            prop_assert!(shelf.is_empty());
        }
    }

    #[test]
    fn the_smallest_gap_that_is_large_enough_is_filled() {
        let shelf = Arc::new(Shelf::new(SMALL));
        let cut = |bytes| shelf.cut(bytes, fresh).unwrap().1;
        let [_a, b, _c, d, _e] = [8192, 16384, 512, 4096, 512].map(cut);
        let (large, small) = (b.start, d.start);
        drop((b, d));
        assert_eq!(cut(4096).start, small);
        assert_eq!(cut(5000).start, large);
        assert_eq!(lock(&shelf.slabs).made, 1);
        let rest = shelf.cut(SMALL / LARGEST_PARTS, |_| None);
        let refused = shelf.cut(SMALL / LARGEST_PARTS, |_| None);
        assert!(rest.is_some() && refused.is_none());
        assert_eq!(lock(&shelf.slabs).made, 1);
    }
}
