//! How long the client of a connection is still waited for. Pure.
//!
//! A client that takes nothing is given up after a while. One that takes a byte now and then would begin that while anew
//! with each: so it is spent by waiting, and comes back by what is taken, at a least rate. Whoever reads faster than
//! that, on the average, is waited for without end.

use std::time::Duration;

const NANOS: u64 = 1_000_000_000;

/// What is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    most: Duration,
    /// In bytes a second; 0: whatever is taken brings back all of it.
    rate: u64,
    left: Duration,
}

impl Patience {
    /// `most` at once, and for a client that takes `rate` bytes a second, always.
    pub(crate) fn new(most: Duration, rate: u64) -> Self {
        Self { most, rate, left: most }
    }

    /// How long the client may take nothing from now on.
    pub(crate) fn left(&self) -> Duration {
        self.left
    }

    /// It was waited for.
    pub(crate) fn waited(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(time);
    }

    /// It has taken so many bytes.
    pub(crate) fn took(&mut self, bytes: u64) {
        let back = bytes.saturating_mul(NANOS).checked_div(self.rate).map_or(self.most, Duration::from_nanos);
        self.left = self.left.saturating_add(back).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_FIRST: Duration = Duration::from_secs(30);

    #[test]
    fn a_byte_now_and_then_is_not_waited_for_without_end() {
        let mut patience = Patience::new(AT_FIRST, 1024);
        let mut waited = 0;
        while patience.left() > Duration::from_secs(1) {
            patience.waited(Duration::from_secs(1));
            patience.took(1);
            waited += 1;
        }
        assert_eq!(waited, 30);
        let mut lenient = Patience::new(AT_FIRST, 0);
        lenient.waited(AT_FIRST);
        assert_eq!(lenient.left(), Duration::ZERO);
        lenient.took(0);
        assert_eq!(lenient.left(), AT_FIRST, "whatever it is");
    }

    #[test]
    fn who_is_as_fast_as_the_rate_is_waited_for_as_long_as_it_takes() {
        let mut patience = Patience::new(AT_FIRST, 1024);
        for _ in 0..1000 {
            patience.waited(Duration::from_secs(20));
            patience.took(20 * 1024);
            assert_eq!(patience.left(), AT_FIRST);
        }
        patience.took(u64::MAX);
        assert_eq!(patience.left(), AT_FIRST, "what was taken before is no reason to wait for longer");
        patience.waited(AT_FIRST * 2);
        patience.took(5 * 1024);
        assert_eq!(patience.left(), Duration::from_secs(5));
    }
}
