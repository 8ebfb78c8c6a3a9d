//! How much is going to be made before tensors can go to rest again.
//!
//! With a lazy backend tensors go to rest at natural breaks as a rule. Between two of them the bytes may rise a lot: from the
//! head of a language model to the gradient of its loss by several times the logits. Training repeats itself, so what
//! rose after a break in the last step will rise after it in the next one. A break is known again by the logical bytes
//! that live there, which are the same in every step.

use std::collections::HashMap;

/// Breaks that are remembered; a program with more repeats nothing.
const MOST_BREAKS: usize = 4096;

/// What rose after each break.
#[derive(Debug, Default)]
pub(super) struct Growth {
    risen: HashMap<u64, u64>,
    /// The break that was last, by its logical bytes, and the bytes in all forms that it left.
    last: Option<(u64, u64)>,
    /// The break after which most was there.
    summit: Option<Summit>,
    /// Whether the summit of this step has been passed.
    passed: bool,
    /// Breaks since the summit was met.
    since: usize,
}

#[derive(Debug, Clone, Copy)]
struct Summit {
    logical: u64,
    rise: u64,
    highest: u64,
}

impl Growth {
    /// A break where so many `logical` bytes live has come; `highest` is what all forms together rose to since the last
    /// one.
    ///
    /// Returns what is going to rise until the next one, if such a break has been seen before. On the way to the summit that
    /// is at least what rises there: what has to rest by then may as well rest at once, and leaves its memory to others.
    /// Whether this is the summit, [`at_summit`](Self::at_summit) says.
    pub(super) fn at_break(&mut self, logical: u64, highest: u64) -> Option<u64> {
        if let Some((key, level)) = self.last {
            if self.risen.len() == MOST_BREAKS {
                self.risen.clear();
            }
            let rise = highest.saturating_sub(level);
            self.risen.insert(key, rise);
            let higher = |summit: &Summit| summit.logical == key || summit.highest < level + rise;
            if self.summit.as_ref().is_none_or(higher) {
                self.summit = Some(Summit {
                    logical: key,
                    rise,
                    highest: level + rise,
                });
            }
        }
        // One that does not come again was not of a step that repeats.
        self.since += 1;
        if self.summit.is_some_and(|summit| summit.logical == logical) {
            self.since = 0;
        } else if self.since > 4 * self.risen.len() {
            self.summit = None;
            self.since = 0;
        }
        let known = self.risen.get(&logical).copied()?;
        let Some(summit) = self.summit else {
            return Some(known);
        };
        // Half of it gone, and another step has begun.
        self.passed = logical == summit.logical || self.passed && logical > summit.logical / 2;
        if self.passed || logical > summit.logical {
            Some(known)
        } else {
            Some(known.max(summit.rise))
        }
    }

    /// Whether the last break was the summit.
    pub(super) fn at_summit(&self) -> bool {
        self.since == 0 && self.summit.is_some()
    }

    /// The logical bytes that live at the summit, if one is known.
    pub(super) fn summit(&self) -> Option<u64> {
        self.summit.map(|summit| summit.logical)
    }

    /// The break has left so many bytes in all forms.
    pub(super) fn leave(&mut self, logical: u64, level: u64) {
        self.last = Some((logical, level));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_known_from_the_one_before() {
        let mut growth = Growth::default();
        let mut step = || {
            let breaks = [(90, 90, 0), (200, 180, 90), (150, 140, 290), (60, 60, 140)];
            breaks.map(|(logical, level, highest)| {
                let rise = growth.at_break(logical, highest);
                growth.leave(logical, level);
                rise
            })
        };
        assert_eq!(step(), [None; 4]);
        // 110 rise at the summit, and count before it too.
        assert_eq!(step(), [Some(110), Some(110), Some(0), Some(110)]);
        assert_eq!((growth.summit(), growth.at_summit()), (Some(200), false));
        growth.at_break(90, 0);
        assert!(!growth.at_summit());
        growth.at_break(200, 180);
        assert!(growth.at_summit());
    }

    #[test]
    fn a_summit_that_does_not_come_again_is_forgotten() {
        let mut growth = Growth::default();
        let mut at = |logical, level, highest| {
            let rise = growth.at_break(logical, highest);
            growth.leave(logical, level);
            rise
        };
        at(900, 900, 0);
        at(100, 90, 5000);
        at(200, 180, 90);
        assert_eq!(at(100, 90, 200), Some(4100), "the summit is still ahead");
        for _ in 0..20 {
            at(200, 180, 90);
            at(100, 90, 200);
        }
        assert_eq!(at(200, 180, 90), Some(20));
        assert_ne!(growth.summit(), Some(900));
    }

    #[test]
    fn what_never_repeats_is_forgotten() {
        let mut growth = Growth::default();
        for logical in 0..3 * MOST_BREAKS as u64 {
            assert_eq!(growth.at_break(logical, 1), None);
            growth.leave(logical, 0);
        }
        assert!(growth.risen.len() <= MOST_BREAKS);
    }
}
