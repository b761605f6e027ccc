//! How many reads may be sent twice: a bucket of tokens that each read fills by a part of one.
//!
//! So over any span of time there are no more hedges than that part of the reads, and a bucketful. A bucketful is what
//! readers need that wait at the moment at which a worker stops. When that worker has been found slow, those that still
//! wait for it leave it whatever the bucket has, as do readers that have waited for very long: the debt is paid back by
//! later reads before there are hedges again.

use std::sync::atomic::{AtomicI64, Ordering};

/// Parts of a token: one read is worth as many as the budget has percent.
const TOKEN: i64 = 100;
/// What a bucket holds at most, and has at first: as many readers as wait for one worker of a busy mount.
const FULL: i64 = 32 * TOKEN;
/// How far it goes into debt: readers, and what is fetched ahead of them.
const MAX_DEBT: i64 = 256 * TOKEN;

/// The bucket. All of its verbs may be called at once from many threads.
#[derive(Debug)]
pub struct HedgeBudget {
    percent: i64,
    level: AtomicI64,
}

impl HedgeBudget {
    /// A full bucket that each read fills by so many hundredths of a token; none at all with 0.
    #[must_use]
    pub fn new(percent: u32) -> Self {
        let percent = i64::from(percent.min(100));
        Self { percent, level: AtomicI64::new(if percent == 0 { 0 } else { FULL }) }
    }

    /// A read is sent. A full bucket is only looked at, so that threads that read share its line of memory.
    #[inline]
    pub fn read(&self) {
        // Threads that meet here may fill it a little over the brim, by one read each.
        if self.level.load(Ordering::Relaxed) < FULL {
            self.level.fetch_add(self.percent, Ordering::Relaxed);
        }
    }

    /// Takes a token for a hedge; `urgent`: the bucket may go into debt for it. Whether there was one.
    #[must_use]
    pub fn take(&self, urgent: bool) -> bool {
        let least = if urgent { -MAX_DEBT } else { 0 };
        let taken = |level: i64| (self.percent > 0 && level - TOKEN >= least).then_some(level - TOKEN);
        self.level.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }

    /// Puts a token back that was not used.
    pub fn give_back(&self) {
        self.level.fetch_add(TOKEN, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn taken(budget: &HedgeBudget, urgent: bool) -> usize {
        (0..10_000).take_while(|_| budget.take(urgent)).count()
    }

    #[test]
    fn a_bucketful_is_there_at_first_and_then_five_for_a_hundred_reads() {
        let budget = HedgeBudget::new(5);
        assert_eq!(taken(&budget, false), 32);
        (0..100).for_each(|_| budget.read());
        assert_eq!(taken(&budget, false), 5);
        (0..100_000).for_each(|_| budget.read());
        assert_eq!(taken(&budget, false), 32, "it does not save for long");
    }

    #[test]
    fn who_must_leave_a_slow_worker_may_though_the_bucket_is_empty_and_others_pay_for_it() {
        let budget = HedgeBudget::new(5);
        assert_eq!((taken(&budget, false), taken(&budget, true)), (32, 256));
        (0..5120).for_each(|_| budget.read());
        assert!(!budget.take(false), "the debt is paid first");
        (0..20).for_each(|_| budget.read());
        assert!(budget.take(false));
        budget.give_back();
        assert!(budget.take(false));
    }

    #[test]
    fn without_a_budget_there_is_no_hedge() {
        let budget = HedgeBudget::new(0);
        (0..1000).for_each(|_| budget.read());
        assert!(!budget.take(false) && !budget.take(true));
    }

    proptest! {
        #[test]
        fn there_are_never_more_hedges_than_the_budget_allows(
            percent in 1u32..=100,
            steps in prop::collection::vec((0usize..200, 0usize..50, any::<bool>()), 1..100),
        ) {
            let budget = HedgeBudget::new(percent);
            let (mut reads, mut hedges) = (0, 0);
            for (more, wanted, urgent) in steps {
                (0..more).for_each(|_| budget.read());
                reads += more;
                hedges += (0..wanted).filter(|_| budget.take(urgent)).count();
                prop_assert!(hedges * 100 <= reads * percent as usize + (32 + 256) * 100);
            }
        }
    }
}
