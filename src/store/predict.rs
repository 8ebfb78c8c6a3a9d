//! How large packed forms become, judged by earlier ones.
//!
//! A device encodes long after the host has had to reserve room for the result. Tensors of the same size are mostly the
//! same tensors of another step: what they took is what they will take.

use std::collections::{HashMap, VecDeque};

use lct_kernels::{PackedLayout, Profile};

use super::{Origin, PackRequest};

/// How many earlier tensors of an origin and size are remembered.
const REMEMBERED: usize = 16;
/// So many parts of [`QUARTERS`] of them have found room enough; what the others needed beyond it was cut out of their spill.
const ROOMY: usize = 3;
const QUARTERS: usize = 4;
/// Room is given in steps of one word for so many values, 1/16 bit for a value: in few sizes, so that the pages of one step serve
/// the next.
const GRAINS: u64 = 512;
/// After so many of them in succession that did not shrink, the next ones are not packed,
const HOPELESS: u32 = 4;
/// except one of so many, to see whether it does now.
const RETRY: u32 = 16;

/// What is known of earlier tensors, by origin, profile and number of values.
#[derive(Debug, Default)]
pub(super) struct Predictions(HashMap<Key, History>);

type Key = (Origin, Profile, usize);

#[derive(Debug, Default)]
struct History {
    /// Words of records of the last tensors that shrank.
    words: VecDeque<u32>,
    /// Tensors that did not shrink since the last one that did.
    refused: u32,
    /// Tensors that were not packed since the last one that was tried.
    passed: u32,
}

impl History {
    /// The words that are enough for most.
    fn usual(&self) -> Option<u64> {
        let mut words: Vec<u32> = self.words.iter().copied().collect();
        words.sort_unstable();
        let enough = (words.len() * ROOMY).div_ceil(QUARTERS);
        words.get(enough.checked_sub(1)?).copied().map(u64::from)
    }
}

impl Predictions {
    /// The layout with the room that a tensor like the last ones of its size needs, as long as that pays.
    pub(super) fn fit(&self, origin: Origin, layout: PackedLayout) -> PackedLayout {
        let history = self.0.get(&key(origin, &layout));
        let Some(usual) = history.and_then(History::usual) else {
            return layout;
        };
        let grain = (layout.values() as u64 / GRAINS).max(1);
        let roomy = layout.with_capacity(usual.next_multiple_of(grain));
        if PackRequest::pays(roomy.blob_bytes(), roomy.dense_bytes()) {
            roomy
        } else {
            layout.with_capacity(usual)
        }
    }

    /// Remembers that a tensor shrank to a form with so many words of records.
    pub(super) fn shrank(&mut self, origin: Origin, layout: &PackedLayout, words: u32) {
        let history = self.0.entry(key(origin, layout)).or_default();
        history.refused = 0;
        if history.words.len() == REMEMBERED {
            history.words.pop_front();
        }
        history.words.push_back(words);
    }

    /// Remembers that a tensor did not shrink.
    pub(super) fn did_not_shrink(&mut self, origin: Origin, layout: &PackedLayout) {
        self.0.entry(key(origin, layout)).or_default().refused += 1;
    }

    /// Whether a tensor with this layout is worth a try.
    pub(super) fn worth_a_try(&mut self, origin: Origin, layout: &PackedLayout) -> bool {
        let Some(history) = self.0.get_mut(&key(origin, layout)) else {
            return true;
        };
        if history.refused < HOPELESS {
            return true;
        }
        history.passed = (history.passed + 1) % RETRY;
        history.passed == 0
    }
}

fn key(origin: Origin, layout: &PackedLayout) -> Key {
    (origin, layout.profile(), layout.values())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: Origin = Origin {
        operation: "add",
        result: 0,
    };

    #[test]
    fn room_follows_what_was_needed() {
        let layout = PackedLayout::new(100_000, Profile::Auto).unwrap();
        let mut predictions = Predictions::default();
        assert_eq!(predictions.fit(SOME, layout), layout);
        predictions.shrank(SOME, &layout, 6000);
        predictions.shrank(SOME, &layout, 8000);
        assert_eq!(predictions.fit(SOME, layout).capacity(), 8192);
        for words in 0..REMEMBERED as u32 {
            predictions.shrank(SOME, &layout, 8000 - 100 * words);
        }
        // Enough for 12 of 16: 7,600 words, in steps of 195, in fours.
        assert_eq!(predictions.fit(SOME, layout).capacity(), 7608);
        for _ in 0..REMEMBERED {
            predictions.shrank(SOME, &layout, 6400);
        }
        assert_eq!(predictions.fit(SOME, layout).capacity(), 6436);
        // What just paid is not refused for its slack.
        let pays = |it: &PackedLayout| PackRequest::pays(it.blob_bytes(), it.dense_bytes());
        let larger = (20_000..)
            .step_by(4)
            .map(|words| layout.with_capacity(words));
        let barely = larger.take_while(pays).last().unwrap();
        for _ in 0..REMEMBERED {
            predictions.shrank(SOME, &layout, barely.capacity());
        }
        assert_eq!(predictions.fit(SOME, layout), barely);
        let other = PackedLayout::new(100_001, Profile::Auto).unwrap();
        assert_eq!(predictions.fit(SOME, other), other);
        assert_eq!(predictions.fit(Origin::of("sub"), layout), layout);
        let second = Origin { result: 1, ..SOME };
        assert_eq!(predictions.fit(second, layout), layout);
        // What each stream owns is fixed.
        let fixed = PackedLayout::new(100_000, Profile::Clean).unwrap();
        assert_eq!(predictions.fit(SOME, fixed), fixed);
    }

    #[test]
    fn what_never_shrinks_is_tried_again_at_times() {
        let layout = |values| PackedLayout::new(values, Profile::Auto).unwrap();
        let (five, six) = (layout(5), layout(6));
        let mut predictions = Predictions::default();
        for _ in 0..HOPELESS {
            assert!(predictions.worth_a_try(SOME, &five));
            predictions.did_not_shrink(SOME, &five);
        }
        let tried = (0..64)
            .filter(|_| predictions.worth_a_try(SOME, &five))
            .count();
        assert_eq!(tried, 4);
        assert!(predictions.worth_a_try(SOME, &six));
        predictions.shrank(SOME, &five, 100);
        assert!(predictions.worth_a_try(SOME, &five));
    }
}
