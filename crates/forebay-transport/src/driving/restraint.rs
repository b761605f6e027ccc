//! Whether answers of a link come soon enough to be waited for by the thread that asks. Pure but for its atomics, whose updates
//! may be lost where threads meet: then one read more or less is waited for.
//!
//! What is late costs the time that was waited in vain, and a thread that could have done something else. So after a late
//! answer some reads are not waited for, twice as many each time: of a link whose answers are all late, such as one to a cold
//! worker or to a far one, every thousandth is. What is prompt halves that. It is counted in reads and not in time, so it is the
//! same share of them whatever their rate.

use std::sync::atomic::{AtomicU32, Ordering};

/// Reads that are not waited for after the first late answer.
const FIRST: u32 = 8;
/// And at most.
const MAX: u32 = 1024;

/// See above. It holds nothing back at first.
#[derive(Debug, Default)]
pub struct Restraint {
    /// Reads that are still not waited for.
    left: AtomicU32,
    /// How many there were last.
    last: AtomicU32,
}

impl Restraint {
    /// Whether the next read is not to be waited for, which it counts.
    pub fn holds_back(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// An answer came in time.
    pub fn prompt(&self) {
        let last = self.last.load(Ordering::Relaxed);
        if last > 0 {
            self.last.store(last / 2, Ordering::Relaxed);
        }
    }

    /// One did not.
    pub fn late(&self) {
        let last = self.last.load(Ordering::Relaxed).saturating_mul(2).clamp(FIRST, MAX);
        self.last.store(last, Ordering::Relaxed);
        self.left.store(last, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `reads` are waited for, when the answer to the one of each number is late or not.
    fn waited_for(restraint: &Restraint, reads: u32, is_late: impl Fn(u32) -> bool) -> u32 {
        let mut waited = 0;
        for read in 0..reads {
            if !restraint.holds_back() {
                waited += 1;
                if is_late(read) { restraint.late() } else { restraint.prompt() }
            }
        }
        waited
    }

    #[test]
    fn all_reads_are_waited_for_where_answers_are_prompt_and_hardly_any_where_they_are_late() {
        let restraint = Restraint::default();
        assert_eq!(waited_for(&restraint, 10_000, |_| false), 10_000);
        assert!(waited_for(&restraint, 100_000, |_| true) < 120);
    }

    #[test]
    fn a_link_that_is_prompt_again_is_waited_for_again() {
        let restraint = Restraint::default();
        waited_for(&restraint, 100_000, |_| true);
        assert!(waited_for(&restraint, 3000, |_| false) > 1900);
        assert_eq!(waited_for(&restraint, 1000, |_| false), 1000);
    }

    #[test]
    fn a_miss_now_and_then_keeps_most_reads_from_nothing() {
        let restraint = Restraint::default();
        let waited = waited_for(&restraint, 10_000, |read| read % 100 == 50);
        assert!(waited > 9000, "{waited}");
    }
}
