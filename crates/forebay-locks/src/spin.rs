//! Busy-polling: how long a thread that waits for a message goes on asking before it sleeps.
//!
//! To be woken costs more than a small message does: on two virtual cores 10 to 20 µs for each thread that sleeps, with three
//! of them in a round trip that takes UCX one. So a thread that waits asks again for a while. Three rules keep that from costing
//! others anything:
//!
//! * a thread that waits gives the core to others that want it, every few rounds ([`Spin::give_way`]);
//! * when another thread kept the core for long, the machine has too much to do, and no thread busy-polls for a hundred
//!   times as long: a thread that gives way is overtaken for a whole time slice by threads that do not, while one that
//!   was asleep is let in at once. With a busy loop on each core a read of 4 KiB took 4 ms instead of 40 µs;
//! * where busy-polling takes more of the processor than sleeping and waking do, because messages come too seldom, the
//!   thread does not busy-poll ([`Patience`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A thread that hands over a call or takes an answer keeps the core for less, one that computes for more: time slices are
/// milliseconds.
const CROWDED: Duration = Duration::from_micros(50);
/// After another thread kept the core, no thread busy-polls for this many times as long: 1 % of the time is lost at
/// most, for each thread.
const CROWDED_FACTOR: u64 = 100;
/// What it costs to sleep and to be woken, in processor time of both threads. Measured on two virtual cores: a read of 4 KiB over
/// shared memory takes 73 µs of both processes together with three sleeps, and 20 without.
const SLEEP: Duration = Duration::from_micros(25);
/// Every so many sleeps it is tried again: while both ends sleep, each takes too long for the other to busy-poll.
const AGAIN: u32 = 64;

/// How long threads that work together may busy-poll, and whether they should now. Shared between them.
#[derive(Debug)]
pub struct Spin {
    most: Duration,
    began: Instant,
    /// Until when the cores have too much to do, in nanoseconds since the beginning.
    crowded_until: AtomicU64,
}

impl Spin {
    /// Up to `most` for each wait; not at all on a machine with one core, where the peer, or the caller, needs it.
    #[must_use]
    pub fn new(most: Duration) -> Self {
        let alone = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
        let most = if alone { Duration::ZERO } else { most };
        Self { most, began: Instant::now(), crowded_until: AtomicU64::new(0) }
    }

    /// Sleeps at once, always.
    #[must_use]
    pub fn off() -> Self {
        Self::new(Duration::ZERO)
    }

    /// The longest wait.
    #[must_use]
    pub fn most(&self) -> Duration {
        self.most
    }

    /// Whether to busy-poll at all.
    #[must_use]
    pub fn is_welcome(&self, now: Instant) -> bool {
        !self.most.is_zero() && self.since_began(now) >= self.crowded_until.load(Ordering::Relaxed)
    }

    /// Lets other threads have the core, and takes note of how long they keep it. Gives the time after that.
    pub fn give_way(&self) -> Instant {
        let before = Instant::now();
        std::thread::yield_now();
        let after = Instant::now();
        self.gave_way(after, after.duration_since(before));
        after
    }

    fn gave_way(&self, now: Instant, kept: Duration) {
        if kept > CROWDED {
            let pause = u64::try_from(kept.as_nanos()).unwrap_or(u64::MAX).saturating_mul(CROWDED_FACTOR);
            self.crowded_until.fetch_max(self.since_began(now).saturating_add(pause), Ordering::Relaxed);
        }
    }

    fn since_began(&self, now: Instant) -> u64 {
        // 584 years.
        u64::try_from(now.duration_since(self.began).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Whether it pays for one thread to busy-poll: only for as long as that takes no more of the processor than sleeping does.
#[derive(Debug)]
pub struct Patience {
    most: Duration,
    /// What may still be lost by busy-polling; at most twice the longest wait.
    credit: Duration,
    sleeps: u32,
}

impl Patience {
    /// Of one that has not waited yet.
    #[must_use]
    pub fn new(spin: &Spin) -> Self {
        Self { most: spin.most, credit: 2 * spin.most, sleeps: 0 }
    }

    /// How long to busy-poll.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.most.min(self.credit)
    }

    /// What was waited for came after `waited`, before the thread slept.
    pub fn caught(&mut self, waited: Duration) {
        self.credit = (self.credit + SLEEP).saturating_sub(waited).min(2 * self.most);
    }

    /// It came after `waited`, of which the thread was awake for the first `awake`.
    pub fn slept(&mut self, waited: Duration, awake: Duration) {
        self.sleeps = self.sleeps.wrapping_add(1);
        // What busy-polling for all of it would have saved.
        let missed = SLEEP.saturating_sub(waited);
        self.credit = (self.credit.saturating_sub(awake) + missed).min(2 * self.most);
        if self.sleeps.is_multiple_of(AGAIN) {
            self.credit = 2 * self.most;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_micros(50);

    fn spin() -> Spin {
        Spin { most: MAX, began: Instant::now(), crowded_until: AtomicU64::new(0) }
    }

    /// What is lost to busy-polling when each message comes `gap` after the one before, in proportion to the sleeps that
    /// it would have taken otherwise.
    fn overhead(gap: Duration) -> f64 {
        let mut patience = Patience::new(&spin());
        let mut awake = Duration::ZERO;
        for _ in 0..10_000 {
            let limit = patience.limit();
            if gap < limit {
                awake += gap;
                patience.caught(gap);
            } else {
                awake += limit + SLEEP;
                patience.slept(gap, limit);
            }
        }
        awake.as_secs_f64() / (10_000.0 * SLEEP.as_secs_f64())
    }

    #[test]
    fn waiting_awake_takes_next_to_no_more_of_the_processor_than_sleeping_whenever_messages_come() {
        for micros in [30, 49, 50, 100, 1000, 1_000_000] {
            let overhead = overhead(Duration::from_micros(micros));
            assert!(overhead < 1.15, "every {micros} µs: {overhead}");
        }
        // And much less where they come soon.
        assert!(overhead(Duration::from_micros(5)) < 0.21);
    }

    #[test]
    fn messages_that_come_soon_after_sleeping_began_are_soon_waited_for_awake() {
        let mut patience = Patience::new(&spin());
        (0..2).for_each(|_| patience.slept(Duration::from_millis(1), MAX));
        assert_eq!(patience.limit(), Duration::ZERO);
        (0..10).for_each(|_| patience.slept(SLEEP / 2, Duration::ZERO));
        assert_eq!(patience.limit(), MAX);
    }

    #[test]
    fn nobody_waits_awake_for_a_hundred_times_as_long_as_somebody_kept_the_core() {
        let spin = spin();
        let now = spin.began + Duration::from_secs(1);
        // The usual: a caller takes its answer.
        spin.gave_way(now, MAX);
        assert!(spin.is_welcome(now));
        spin.gave_way(now, Duration::from_millis(4));
        assert!(!spin.is_welcome(now + Duration::from_millis(399)));
        // A shorter one does not end it earlier.
        spin.gave_way(now, Duration::from_millis(1));
        assert!(!spin.is_welcome(now + Duration::from_millis(399)));
        assert!(spin.is_welcome(now + Duration::from_millis(400)));
    }

    #[test]
    fn off_is_never_welcome() {
        assert!(!Spin::off().is_welcome(Instant::now()));
    }
}
