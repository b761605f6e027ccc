//! One read that is divided among paths: which parts have come, which is late, and what becomes of one that failed.
//! Pure: it is told the time and what happened, and says which part to ask for again.
//!
//! All parts were cut to be done at the same moment. So when others have come and one takes [`LATE`] times as long, the
//! reason is its path, and not the worker: it is asked for over another path as well, and the first answer counts.
//! While nothing has come there is nothing to compare with; whether the worker is slow, others find out
//! (`crate::hedging`).

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::division::MAX_PATHS;

/// How many times as long as the slowest part that has come another one takes until it is late.
const LATE: u32 = 3;
/// No part is late before this: who has just no processor is not slow. As for reads of other workers
/// (`client.hedge.min_delay`).
const MIN_LATE: Duration = Duration::from_millis(2);
/// How often one part is asked for in all.
const MAX_ASKED: u8 = 4;

/// What is to be done about a part that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    /// Nothing: it is under way over another path, or has come.
    Wait,
    /// It is to be asked for over another path.
    Again,
    /// It was asked for often enough: the read fails.
    GiveUp,
}

#[derive(Debug, Default)]
struct Part {
    has_come: bool,
    /// Whether it was found late: it is not asked for a second time because of that.
    was_late: bool,
    under_way: u8,
    asked: u8,
}

/// See above.
#[derive(Debug)]
pub(crate) struct Stripe {
    began: Instant,
    parts: SmallVec<[Part; MAX_PATHS]>,
    missing: usize,
    /// How long the slowest part took that has come.
    slowest: Option<Duration>,
}

impl Stripe {
    /// A read whose `parts` are all asked for now.
    pub(crate) fn new(parts: usize, now: Instant) -> Self {
        let asked = || Part { under_way: 1, asked: 1, ..Part::default() };
        Self { began: now, parts: (0..parts).map(|_| asked()).collect(), missing: parts, slowest: None }
    }

    /// Whether all has come.
    pub(crate) fn is_done(&self) -> bool {
        self.missing == 0
    }

    /// `part` has come. Whether it had not before.
    pub(crate) fn came(&mut self, part: usize, now: Instant) -> bool {
        let took = now.saturating_duration_since(self.began);
        let Some(part) = self.parts.get_mut(part) else { return false };
        part.under_way = part.under_way.saturating_sub(1);
        if std::mem::replace(&mut part.has_come, true) {
            return false;
        }
        self.missing -= 1;
        // What was asked for again took as long as its first path made it.
        if part.asked == 1 {
            self.slowest = self.slowest.max(Some(took));
        }
        true
    }

    /// A request for `part` failed.
    pub(crate) fn failed(&mut self, part: usize) -> AfterFailure {
        let Some(part) = self.parts.get_mut(part) else { return AfterFailure::GiveUp };
        part.under_way = part.under_way.saturating_sub(1);
        match part {
            Part { has_come: true, .. } => AfterFailure::Wait,
            Part { under_way: 1.., .. } => AfterFailure::Wait,
            Part { asked: MAX_ASKED.., .. } => AfterFailure::GiveUp,
            _ => AfterFailure::Again,
        }
    }

    /// `part` is asked for once more.
    pub(crate) fn asked(&mut self, part: usize) {
        if let Some(part) = self.parts.get_mut(part) {
            part.under_way += 1;
            part.asked += 1;
        }
    }

    /// When to look whether a part is late, unless something happens before.
    pub(crate) fn look_at(&self) -> Option<Instant> {
        let is_watched = self.parts.iter().any(Part::may_be_late);
        let slowest = self.slowest.filter(|_| is_watched)?;
        self.began.checked_add(slowest.saturating_mul(LATE).max(MIN_LATE))
    }

    /// A part that is late now. Each is so once.
    pub(crate) fn late(&mut self, now: Instant) -> Option<usize> {
        self.look_at().filter(|at| now >= *at)?;
        let late = self.parts.iter().position(Part::may_be_late)?;
        self.parts[late].was_late = true;
        Some(late)
    }
}

impl Part {
    /// What failed and was asked for again has begun later than the others.
    fn may_be_late(&self) -> bool {
        !self.has_come && !self.was_late && self.asked == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_read_is_done_when_every_part_has_come_once() {
        let start = Instant::now();
        let mut stripe = Stripe::new(3, start);
        for part in [2, 0, 1] {
            assert!(!stripe.is_done() && stripe.came(part, start));
        }
        assert!(stripe.is_done() && !stripe.came(1, start), "what comes again is nothing new");
        assert_eq!((stripe.look_at(), stripe.late(start + ms(1000))), (None, None));
    }

    #[test]
    fn a_part_that_takes_three_times_as_long_as_the_others_is_late_once() {
        let start = Instant::now();
        let mut stripe = Stripe::new(3, start);
        assert_eq!(stripe.look_at(), None, "nothing to compare with");
        assert!(stripe.came(0, start + ms(1)));
        assert_eq!(stripe.look_at(), Some(start + ms(3)));
        assert!(stripe.came(1, start + ms(2)));
        assert_eq!((stripe.look_at(), stripe.late(start + ms(5))), (Some(start + ms(6)), None));
        assert_eq!((stripe.late(start + ms(6)), stripe.late(start + ms(6))), (Some(2), None));
        stripe.asked(2);
        assert_eq!(stripe.failed(2), AfterFailure::Wait, "the other request is under way");
        assert!(stripe.came(2, start + ms(8)) && stripe.is_done());
        let mut quick = Stripe::new(2, start);
        assert!(quick.came(0, start + Duration::from_micros(50)));
        assert_eq!(quick.look_at(), Some(start + MIN_LATE));
    }

    #[test]
    fn a_part_that_fails_is_asked_for_again_and_not_for_ever() {
        let start = Instant::now();
        let mut stripe = Stripe::new(2, start);
        assert!(stripe.came(0, start + ms(1)));
        for _ in 1..MAX_ASKED {
            assert_eq!(stripe.failed(1), AfterFailure::Again);
            stripe.asked(1);
            assert_eq!(stripe.late(start + ms(1000)), None, "it began later");
        }
        assert_eq!(stripe.failed(1), AfterFailure::GiveUp);
        assert_eq!(stripe.failed(0), AfterFailure::Wait, "which has come");
    }
}
