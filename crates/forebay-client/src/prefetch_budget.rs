//! The prefetch budget, which all handles share.
//!
//! A handle reserves what was fetched ahead of its readers and has not been read yet. Many handles are left open by readers that
//! stopped in the middle of a file, whose buffers were reused long ago; they must not hold the budget for as long as they are open.
//! So each read that looks at a reservation renews it, and it expires when that has not happened for an [`EPOCH`] or two.

use std::time::Duration;

use forebay_locks::Mutex;
use tokio::time::Instant;

/// A reservation made in one epoch expires at the end of the next one.
const EPOCH: Duration = Duration::from_secs(1);

/// What one handle has reserved of the budget.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    bytes: u64,
    epoch: u64,
}

/// The budget: the reservations of all handles.
#[derive(Debug)]
pub(crate) struct PrefetchBudget {
    started: Instant,
    epochs: Mutex<Epochs>,
}

/// What was reserved in this epoch and in the one before. Pure.
#[derive(Debug, Default)]
struct Epochs {
    now: u64,
    recent: u64,
    older: u64,
}

impl PrefetchBudget {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), epochs: Mutex::default() }
    }

    /// What all handles have reserved but the one of `reservation`.
    pub(crate) fn reserved_by_others(&self, reservation: &Reservation) -> u64 {
        let epoch = self.epoch();
        let mut epochs = self.epochs.lock();
        epochs.advance(epoch);
        epochs.recent + epochs.older - epochs.counted(reservation)
    }

    /// A handle reserves so many bytes now.
    pub(crate) fn renew(&self, reservation: &mut Reservation, bytes: u64) {
        // Most readers reserve nothing, and share nothing then.
        if bytes == 0 && reservation.bytes == 0 {
            return;
        }
        let epoch = self.epoch();
        self.epochs.lock().renew(epoch, reservation, bytes);
    }

    fn epoch(&self) -> u64 {
        self.started.elapsed().as_secs() / EPOCH.as_secs()
    }
}

impl Epochs {
    /// How much of a reservation is still counted.
    fn counted(&self, reservation: &Reservation) -> u64 {
        if reservation.epoch + 1 >= self.now { reservation.bytes } else { 0 }
    }

    fn advance(&mut self, epoch: u64) {
        if epoch > self.now {
            self.older = if epoch == self.now + 1 { self.recent } else { 0 };
            (self.now, self.recent) = (epoch, 0);
        }
    }

    fn renew(&mut self, epoch: u64, reservation: &mut Reservation, bytes: u64) {
        self.advance(epoch);
        let counted = self.counted(reservation);
        if reservation.epoch == self.now {
            self.recent -= counted;
        } else {
            self.older -= counted;
        }
        // Another thread may have looked at the clock later and come first.
        self.recent += bytes;
        *reservation = Reservation { bytes, epoch: self.now };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[tokio::test(start_paused = true)]
    async fn a_handle_that_nobody_reads_reserves_nothing_for_long() {
        let budget = PrefetchBudget::new();
        let (mut idle, mut busy) = (Reservation::default(), Reservation::default());
        budget.renew(&mut idle, 100);
        budget.renew(&mut busy, 10);
        assert_eq!((budget.reserved_by_others(&idle), budget.reserved_by_others(&busy)), (10, 100));
        tokio::time::advance(EPOCH).await;
        budget.renew(&mut busy, 20);
        assert_eq!((budget.reserved_by_others(&idle), budget.reserved_by_others(&busy)), (20, 100));
        tokio::time::advance(EPOCH).await;
        assert_eq!((budget.reserved_by_others(&idle), budget.reserved_by_others(&busy)), (20, 0));
        budget.renew(&mut idle, 5);
        assert_eq!(budget.reserved_by_others(&busy), 5);
        tokio::time::advance(5 * EPOCH).await;
        assert_eq!(budget.reserved_by_others(&Reservation::default()), 0);
    }

    proptest! {
        #[test]
        fn what_is_reserved_is_the_sum_of_what_was_reserved_in_the_last_two_epochs(
            steps in prop::collection::vec((0usize..4, 0u64..1 << 40, 0u64..3), 1..100),
        ) {
            let (mut epochs, mut epoch) = (Epochs::default(), 0);
            let mut reservations: [Reservation; 4] = Default::default();
            let mut model = [(0, 0); 4];
            for (handle, bytes, passes) in steps {
                epoch += passes;
                epochs.renew(epoch, &mut reservations[handle], bytes);
                model[handle] = (epoch, bytes);
                let expected: u64 = model.iter().filter(|(at, _)| at + 1 >= epoch).map(|(_, bytes)| bytes).sum();
                prop_assert_eq!(epochs.recent + epochs.older, expected);
                for (reservation, (at, bytes)) in reservations.iter().zip(model) {
                    prop_assert_eq!(epochs.counted(reservation), if at + 1 >= epoch { bytes } else { 0 });
                }
            }
        }
    }
}
