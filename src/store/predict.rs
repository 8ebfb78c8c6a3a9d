//! How large packed forms become, judged by earlier ones.
//!
//! A device encodes long after the host has had to reserve room for the result. Tensors of the same size are mostly the
//! same tensors of another step: what they took is what they will take.

use std::collections::{HashMap, VecDeque};

use lct_kernels::PackedLayout;

/// How many earlier tensors of a size are remembered.
const REMEMBERED: usize = 8;
/// What is reserved beyond the most that was needed: one of so many parts.
const SLACK_PARTS: u64 = 64;
/// Of tensors that would not shrink, one of so many is packed again, to see whether it does now.
const RETRY: u32 = 16;

/// What is known of earlier tensors, by their number of values.
#[derive(Debug, Default)]
pub(super) struct Predictions(HashMap<usize, History>);

#[derive(Debug, Default)]
struct History {
    /// Words of records of the last tensors.
    words: VecDeque<u32>,
    /// Tensors that were not packed since the last one that was.
    passed: u32,
}

impl Predictions {
    /// The layout with the room that a tensor like the last ones of its size needs.
    pub(super) fn fit(&self, layout: PackedLayout) -> PackedLayout {
        let most = self
            .0
            .get(&layout.values())
            .and_then(|history| history.words.iter().copied().max());
        match most {
            Some(most) => {
                let most = u64::from(most);
                layout.with_capacity(most + most / SLACK_PARTS)
            }
            None => layout,
        }
    }

    /// Remembers how many words of records a tensor took.
    pub(super) fn observe(&mut self, values: usize, words: u32) {
        let history = self.0.entry(values).or_default();
        if history.words.len() == REMEMBERED {
            history.words.pop_front();
        }
        history.words.push_back(words);
    }

    /// Whether a tensor that is not expected to shrink shall be packed all the same.
    pub(super) fn retry(&mut self, values: usize) -> bool {
        let history = self.0.entry(values).or_default();
        history.passed += 1;
        if history.passed < RETRY {
            return false;
        }
        history.passed = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use lct_kernels::Profile;

    use super::*;

    #[test]
    fn room_follows_what_was_needed() {
        let layout = PackedLayout::new(100_000, Profile::Auto).unwrap();
        let mut predictions = Predictions::default();
        assert_eq!(predictions.fit(layout), layout);
        predictions.observe(100_000, 8000);
        predictions.observe(100_000, 6400);
        assert_eq!(predictions.fit(layout).capacity(), 8128);
        for _ in 0..REMEMBERED {
            predictions.observe(100_000, 6400);
        }
        assert_eq!(predictions.fit(layout).capacity(), 6500);
        let other = PackedLayout::new(100_001, Profile::Auto).unwrap();
        assert_eq!(predictions.fit(other), other);
        // What each stream owns is fixed.
        let fixed = PackedLayout::new(100_000, Profile::Clean).unwrap();
        assert_eq!(predictions.fit(fixed), fixed);
    }

    #[test]
    fn what_does_not_shrink_is_tried_again_at_times() {
        let mut predictions = Predictions::default();
        let tried = (0..64).filter(|_| predictions.retry(5)).count();
        assert_eq!(tried, 4);
    }
}
