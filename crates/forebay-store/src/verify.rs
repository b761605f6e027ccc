//! When reads from memory check what they return: never, each time, or once an interval (ADR 0013).
//!
//! For the last, the store counts *epochs*, each as long as the interval. A run has a bit for each of its sectors:
//! found right in this epoch. A task moves on to the next epoch, so a hit looks at no clock. The bits of 32 sectors
//! stand in one word with the epoch that they belong to: bits of another epoch do not count, so no thread has to clear
//! them, and a check that began in one epoch and ended in the next counts for neither. Nothing but a check writes to
//! the words, so that readers of a hot run share them without a cache line going back and forth.

pub(crate) mod checked;
#[cfg(test)]
mod model;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::run::MemoryRun;

/// What `checked` needs of threads.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};
}

/// When reads from memory are checked. On cache lines of its own: each hit looks at the epoch.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Verify {
    when: When,
    epoch: AtomicU32,
}

#[derive(Clone, Copy, Debug)]
enum When {
    Never,
    EachRead,
    Once { interval: Duration },
}

impl Verify {
    /// With `interval` zero, each read checks.
    pub(crate) fn new(reads: bool, interval: Duration) -> Self {
        let when = match (reads, interval) {
            (false, _) => When::Never,
            (true, Duration::ZERO) => When::EachRead,
            (true, interval) => When::Once { interval },
        };
        // Words start as zeros: no epoch has that number.
        Self { when, epoch: AtomicU32::new(1) }
    }

    /// Checks the sectors that hold `offset..end` of a block, which are bytes of `copy`, if they are to be checked now.
    ///
    /// # Errors
    /// The first sector whose bytes are not the ones that were published.
    #[inline]
    pub(crate) fn check(&self, copy: &MemoryRun, offset: u32, end: u32) -> Result<(), u32> {
        let epoch = match self.when {
            When::Never => return Ok(()),
            When::EachRead => return copy.check(offset, end),
            When::Once { .. } => self.epoch.load(Ordering::Relaxed),
        };
        let sectors = copy.run.positions_of(offset, end);
        if copy.checked.has(sectors.clone(), epoch) {
            return Ok(());
        }
        copy.check(offset, end)?;
        copy.checked.note(sectors, epoch);
        Ok(())
    }

    /// All of `copy` was compared with its checksums just now, or these were computed from it.
    pub(crate) fn was_checked(&self, copy: &MemoryRun) {
        if let When::Once { .. } = self.when {
            let epoch = self.epoch.load(Ordering::Relaxed);
            copy.checked.note(0..copy.run.sectors.len(), epoch);
        }
    }

    /// Moves on to the next epoch whenever the interval is over, until it is told to stop.
    pub(crate) async fn count_epochs(&self, stop: CancellationToken) {
        let When::Once { interval } = self.when else { return };
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(interval) => {}
            }
            self.epoch.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::checked::Checked;
    use forebay_types::MAX_SECTORS;
    use proptest::prelude::*;

    #[test]
    fn bits_count_in_their_own_epoch_only() {
        let checked = Checked::default();
        assert!(!checked.has(0..1, 1), "a new run was never checked");
        checked.note(30..70, 1);
        assert!(checked.has(30..70, 1) && checked.has(31..33, 1) && checked.has(64..65, 1));
        assert!(!checked.has(29..31, 1) && !checked.has(69..71, 1) && !checked.has(30..70, 2));
        checked.note(40..41, 2);
        assert!(checked.has(40..41, 2) && !checked.has(40..42, 2));
        assert!(!checked.has(40..41, 1), "the bits of the epoch before have gone");
        assert!(checked.has(30..32, 1), "those in other words stand until they are needed");
    }

    #[test]
    fn a_check_that_began_in_an_earlier_epoch_does_not_count_in_this_one() {
        let checked = Checked::default();
        checked.note(0..1, 2);
        checked.note(0..32, 1);
        assert!(checked.has(0..1, 2) && !checked.has(1..2, 2) && !checked.has(1..2, 1));
    }

    proptest! {
        #[test]
        fn it_is_a_set_of_sectors_that_each_epoch_starts_anew(
            steps in prop::collection::vec((1u32..5, 0u32..MAX_SECTORS, 1u32..=MAX_SECTORS), 1..40)
        ) {
            let (checked, mut epoch) = (Checked::default(), 1);
            let mut right = [0; MAX_SECTORS as usize];
            for (kind, start, length) in steps {
                let sectors = start..(start + length).min(MAX_SECTORS);
                if kind == 1 {
                    epoch += 1;
                }
                checked.note(sectors.clone(), epoch);
                right[sectors.start as usize..sectors.end as usize].fill(epoch);
                for sector in 0..MAX_SECTORS {
                    prop_assert_eq!(checked.has(sector..sector + 1, epoch), right[sector as usize] == epoch);
                }
                prop_assert_eq!(checked.has(0..MAX_SECTORS, epoch), right.iter().all(|at| *at == epoch));
            }
        }
    }
}
