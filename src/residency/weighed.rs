//! How many pages the allocator holds.
//!
//! Asking it takes as long as all that was asked of it before. The driver says at once what it has given out, to all threads,
//! and the books say what is managed; both change by what the allocator's pages and their use change by, if nobody makes what
//! is not managed meanwhile. So the allocator is asked seldom, and in between its last answer is brought up to date.

use std::thread::{self, ThreadId};

use crate::store::Pages;

/// Estimates between two answers.
const ESTIMATES: u32 = 15;

/// The allocator's last answer.
#[derive(Debug, Default)]
pub(super) struct Weighed {
    known: Option<Known>,
    /// Estimates since.
    estimates: u32,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    /// Whose pages they are: each thread has its own.
    thread: ThreadId,
    pages: Pages,
    /// What the driver had given out then.
    drawn: u64,
    /// The managed bytes then.
    managed: u64,
}

impl Known {
    fn now(&self, drawn: u64, managed: u64) -> Pages {
        let moved = |then: u64, from: u64, to: u64| (then + to).saturating_sub(from);
        Pages {
            held: moved(self.pages.held, self.drawn, drawn),
            used: moved(self.pages.used, self.managed, managed),
        }
    }
}

impl Weighed {
    /// The pages that the allocator holds for this thread now, as far as its last answer tells. `drawn` bytes are given out by the
    /// driver now, and `managed` are counted by the books. `None` if the allocator is to be asked.
    pub(super) fn estimate(&mut self, drawn: Option<u64>, managed: u64) -> Option<Pages> {
        let known = self.known?;
        if known.thread != thread::current().id() || self.estimates == ESTIMATES {
            return None;
        }
        self.estimates += 1;
        Some(known.now(drawn?, managed))
    }

    /// The allocator has answered.
    pub(super) fn answered(&mut self, pages: Pages, drawn: Option<u64>, managed: u64) {
        self.estimates = 0;
        self.known = drawn.map(|drawn| Known {
            thread: thread::current().id(),
            pages,
            drawn,
            managed,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_brought_up_to_date() {
        let known = Known {
            thread: thread::current().id(),
            pages: Pages {
                held: 1000,
                used: 700,
            },
            drawn: 1500,
            managed: 600,
        };
        let now = known.now(1800, 550);
        assert_eq!((now.held, now.used, now.free()), (1300, 650, 650));
        assert_eq!(known.now(100, 0).held, 0);
        assert_eq!(known.now(1500, 2000).free(), 0);
    }

    #[test]
    fn the_allocator_is_asked_now_and_then() {
        let pages = Pages {
            held: 1000,
            used: 700,
        };
        let mut weighed = Weighed::default();
        assert!(weighed.estimate(Some(1000), 700).is_none());
        weighed.answered(pages, Some(1000), 700);
        let estimates = (0..100).take_while(|_| weighed.estimate(Some(1100), 700).is_some());
        assert_eq!(estimates.count(), ESTIMATES as usize);
        // Another thread's pages are others.
        weighed.answered(pages, Some(1000), 700);
        let elsewhere = thread::scope(|scope| {
            let other = scope.spawn(|| weighed.estimate(Some(1100), 700).is_some());
            other.join().unwrap()
        });
        assert!(!elsewhere);
        assert!(weighed.estimate(Some(1100), 700).is_some());
        // Where the driver does not tell, it is asked each time.
        weighed.answered(pages, None, 700);
        assert!(weighed.estimate(None, 700).is_none());
    }
}
