//! How large packed forms become, judged by earlier ones.
//!
//! A device encodes long after the host has had to reserve room for the result. Tensors of the same size are mostly the
//! same tensors of another step: what they took is what they will take.

use std::collections::{HashMap, VecDeque};

use lct_kernels::{PackedLayout, Profile};

use super::PackRequest;

/// How many earlier tensors of a size are remembered.
const REMEMBERED: usize = 8;
/// What is reserved beyond the most that was needed: one of so many parts.
const SLACK_PARTS: u64 = 64;
/// Room is given in steps of one word for so many values, 1/16 bit for a value: in few sizes, so that the pages of one step serve
/// the next.
const GRAINS: u64 = 512;
/// After so many tensors of a size in succession that did not shrink, the next ones are not packed,
const HOPELESS: u32 = 4;
/// except one of so many, to see whether it does now.
const RETRY: u32 = 16;

/// What is known of earlier tensors, by profile and number of values.
#[derive(Debug, Default)]
pub(super) struct Predictions(HashMap<(Profile, usize), History>);

#[derive(Debug, Default)]
struct History {
    /// Words of records of the last tensors that shrank.
    words: VecDeque<u32>,
    /// Tensors that did not shrink since the last one that did.
    refused: u32,
    /// Tensors that were not packed since the last one that was tried.
    passed: u32,
}

impl Predictions {
    /// The layout with the room that a tensor like the last ones of its size needs, as long as that pays.
    pub(super) fn fit(&self, layout: PackedLayout) -> PackedLayout {
        let history = self.0.get(&key(&layout));
        let most = history.and_then(|history| history.words.iter().copied().max());
        match most {
            Some(most) => {
                let most = u64::from(most);
                let grain = (layout.values() as u64 / GRAINS).max(1);
                let slack = most + most / SLACK_PARTS;
                let pays = |words: &u64| {
                    let roomy = layout.with_capacity(*words);
                    PackRequest::pays(roomy.blob_bytes(), roomy.dense_bytes())
                };
                let rooms = [slack.next_multiple_of(grain), slack];
                layout.with_capacity(rooms.into_iter().find(pays).unwrap_or(most))
            }
            None => layout,
        }
    }

    /// Remembers that a tensor shrank to a form with so many words of records.
    pub(super) fn shrank(&mut self, layout: &PackedLayout, words: u32) {
        let history = self.0.entry(key(layout)).or_default();
        history.refused = 0;
        if history.words.len() == REMEMBERED {
            history.words.pop_front();
        }
        history.words.push_back(words);
    }

    /// Remembers that a tensor did not shrink.
    pub(super) fn did_not_shrink(&mut self, layout: &PackedLayout) {
        self.0.entry(key(layout)).or_default().refused += 1;
    }

    /// Whether a tensor with this layout is worth a try.
    pub(super) fn worth_a_try(&mut self, layout: &PackedLayout) -> bool {
        let Some(history) = self.0.get_mut(&key(layout)) else {
            return true;
        };
        if history.refused < HOPELESS {
            return true;
        }
        history.passed = (history.passed + 1) % RETRY;
        history.passed == 0
    }
}

fn key(layout: &PackedLayout) -> (Profile, usize) {
    (layout.profile(), layout.values())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_follows_what_was_needed() {
        let layout = PackedLayout::new(100_000, Profile::Auto).unwrap();
        let mut predictions = Predictions::default();
        assert_eq!(predictions.fit(layout), layout);
        predictions.shrank(&layout, 8000);
        predictions.shrank(&layout, 6400);
        // 8,125 words, in steps of 195, in fours.
        assert_eq!(predictions.fit(layout).capacity(), 8192);
        for _ in 0..REMEMBERED {
            predictions.shrank(&layout, 6400);
        }
        assert_eq!(predictions.fit(layout).capacity(), 6632);
        // What just paid is not refused for its slack.
        let barely = layout.with_capacity(u64::from(layout.capacity()) * 236 / 100);
        assert!(PackRequest::pays(barely.blob_bytes(), barely.dense_bytes()));
        predictions.shrank(&layout, barely.capacity());
        assert_eq!(predictions.fit(layout), barely);
        let other = PackedLayout::new(100_001, Profile::Auto).unwrap();
        assert_eq!(predictions.fit(other), other);
        // What each stream owns is fixed.
        let fixed = PackedLayout::new(100_000, Profile::Clean).unwrap();
        assert_eq!(predictions.fit(fixed), fixed);
    }

    #[test]
    fn what_never_shrinks_is_tried_again_at_times() {
        let layout = |values| PackedLayout::new(values, Profile::Auto).unwrap();
        let (five, six) = (layout(5), layout(6));
        let mut predictions = Predictions::default();
        for _ in 0..HOPELESS {
            assert!(predictions.worth_a_try(&five));
            predictions.did_not_shrink(&five);
        }
        let tried = (0..64).filter(|_| predictions.worth_a_try(&five)).count();
        assert_eq!(tried, 4);
        assert!(predictions.worth_a_try(&six));
        predictions.shrank(&five, 100);
        assert!(predictions.worth_a_try(&five));
    }
}
