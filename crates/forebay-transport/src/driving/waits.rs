//! How a thread waits for an answer: it looks for it again and again for a moment, where that pays, and sleeps then.

use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use forebay_locks::spin::{Patience, Spin};

/// For all threads that wait on one link.
#[derive(Debug)]
pub struct Waits {
    spin: Spin,
    patience: Mutex<Patience>,
}

impl Waits {
    /// Threads busy-poll for up to `spin`.
    #[must_use]
    pub fn new(spin: Duration) -> Self {
        let spin = Spin::new(spin);
        Self { patience: Mutex::new(Patience::new(&spin)), spin }
    }

    /// What `look` finds, which does not wait; nothing when it has not by then. `sleep` sleeps until there may be something, but for
    /// no longer than it is told.
    pub fn wait<T>(
        &self,
        until: Instant,
        mut look: impl FnMut() -> Option<T>,
        mut sleep: impl FnMut(Duration),
    ) -> Option<T> {
        let began = Instant::now();
        let limit = if self.spin.is_welcome(began) { self.patience.lock().limit() } else { Duration::ZERO };
        let mut now = began;
        loop {
            if let Some(found) = look() {
                self.patience.lock().caught(now.duration_since(began));
                return Some(found);
            }
            if now >= until || now.duration_since(began) >= limit || !self.spin.is_welcome(now) {
                break;
            }
            now = self.spin.give_way();
        }
        let awake = now.duration_since(began);
        let mut found = None;
        while found.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            sleep(left);
            found = look();
        }
        self.patience.lock().slept(began.elapsed(), awake);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn what_is_there_is_found_without_sleeping() {
        let waits = Waits::new(Duration::ZERO);
        let found = waits.wait(Instant::now() + LONG, || Some(7), |_| panic!("it sleeps"));
        assert_eq!(found, Some(7));
        // Also when its time is over already.
        assert_eq!(waits.wait(Instant::now(), || Some(8), |_| panic!("it sleeps")), Some(8));
    }

    #[test]
    fn a_thread_that_may_not_busy_poll_sleeps_until_there_is_something() {
        let (waits, mut looks, mut sleeps) = (Waits::new(Duration::ZERO), 0, 0);
        let look = || {
            looks += 1;
            (looks == 4).then_some(())
        };
        let sleep = |left: Duration| {
            sleeps += 1;
            assert!(left <= LONG);
        };
        assert!(waits.wait(Instant::now() + LONG, look, sleep).is_some());
        assert_eq!((looks, sleeps), (4, 3));
    }

    #[test]
    fn it_waits_no_longer_than_it_may() {
        let waits = Waits::new(Duration::from_micros(20));
        let until = Instant::now() + Duration::from_millis(5);
        let found: Option<()> = waits.wait(until, || None, std::thread::sleep);
        assert!(found.is_none() && Instant::now() >= until);
    }
}
