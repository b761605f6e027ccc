//! How long a peer may take: to take what is there for it, and to send a large body. Pure.

use std::time::Duration;

use tokio::time::Instant;

use crate::options::ServerOptions;

/// Bytes that count as getting on: a peer that sends less of a message, or takes less of its replies, within the time
/// for it holds memory that others wait for.
pub(crate) const PROGRESS: usize = 64 << 10;
/// A peer that takes none of its replies has only this part of the time for it while others wait for the places that
/// they have. With the default that is ten seconds, in which TCP comes through what a network loses while it changes
/// its routes.
const HURRY: u32 = 3;

/// How the peer takes what is there to be sent.
#[derive(Debug, Default)]
pub(crate) struct Taking {
    /// Since when it has not got on; `None` while there is nothing for it.
    since: Option<Instant>,
    /// Bytes that it has taken since then.
    bytes: usize,
    /// How many parts of its time were over when that was looked at.
    parts: u32,
}

impl Taking {
    /// It took `bytes`, and there is more for it unless that `was_all`.
    pub(crate) fn took(&mut self, bytes: usize, was_all: bool) {
        if was_all {
            *self = Self::default();
            return;
        }
        self.bytes += bytes;
        if self.since.is_none() || self.bytes >= PROGRESS {
            *self = Self { since: Some(Instant::now()), ..Self::default() };
        }
    }

    /// When it is to be looked at, with so much time for it.
    pub(crate) fn due(&self, timeout: Duration) -> Option<Instant> {
        self.since.map(|since| since + (timeout / HURRY * (self.parts + 1)).min(timeout))
    }

    /// How long it took next to nothing, if that is too long. `is_wanted`: others wait for what it holds.
    pub(crate) fn overdue(&mut self, timeout: Duration, is_wanted: bool, now: Instant) -> Option<Duration> {
        let passed = now.checked_duration_since(self.since?)?;
        if passed >= timeout {
            return Some(timeout);
        }
        let part = timeout / HURRY;
        if passed < part * (self.parts + 1) {
            return None;
        }
        self.parts += 1;
        is_wanted.then_some(part * self.parts)
    }
}

/// How a message arrives, or as much of it as shows that its sender gets on.
#[derive(Debug)]
pub(crate) struct Arriving {
    since: Instant,
    bytes: usize,
}

impl Arriving {
    /// Its time begins.
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: now, bytes: 0 }
    }

    /// So many bytes came. The time for more of it begins again with enough of them.
    pub(crate) fn got(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= PROGRESS {
            *self = Self::new(Instant::now());
        }
    }

    /// When more of it must be here, with so much time for it.
    pub(crate) fn due(&self, timeout: Duration) -> Instant {
        self.since + timeout
    }
}

/// The time that a large body has to arrive as a whole. It does not pass while the server does not read.
#[derive(Debug)]
pub(crate) struct BodyTime {
    whole: Duration,
    due: Instant,
    paused_at: Option<Instant>,
}

impl BodyTime {
    /// Of a body of `length` bytes that may be sent from `now` on.
    pub(crate) fn new(length: u32, options: &ServerOptions, now: Instant) -> Self {
        let rate = options.body_rate.as_u64().max(1);
        let whole = options.body_grace + Duration::from_secs_f64(f64::from(length) / rate as f64);
        Self { whole, due: now + whole, paused_at: None }
    }

    /// It is not read from `now` on.
    pub(crate) fn pause(&mut self, now: Instant) {
        self.paused_at.get_or_insert(now);
    }

    /// It is read again.
    pub(crate) fn resume(&mut self, now: Instant) {
        if let Some(paused_at) = self.paused_at.take() {
            self.due += now.saturating_duration_since(paused_at);
        }
    }

    /// When it must be here.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// How long that is from its beginning, pauses aside.
    pub(crate) fn whole(&self) -> Duration {
        self.whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::ByteSize;

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_a_byte_now_and_then_does_not_get_on() {
        let mut taking = Taking::default();
        assert_eq!(taking.due(TIMEOUT), None, "there is nothing for it");
        taking.took(0, false);
        let start = Instant::now();
        for _ in 0..29 {
            tokio::time::advance(Duration::from_secs(1)).await;
            taking.took(1, false);
            assert_eq!(taking.overdue(TIMEOUT, false, Instant::now()), None);
        }
        assert_eq!(taking.due(TIMEOUT), Some(start + TIMEOUT));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(taking.overdue(TIMEOUT, false, Instant::now()), Some(TIMEOUT));
        taking.took(PROGRESS, false);
        assert_eq!(taking.overdue(TIMEOUT, false, Instant::now()), None, "it got on");
        taking.took(1, true);
        assert_eq!(taking.due(TIMEOUT), None);
    }

    #[tokio::test(start_paused = true)]
    async fn it_has_less_time_while_others_wait_for_what_it_holds() {
        let (mut taking, start) = (Taking::default(), Instant::now());
        taking.took(10, false);
        assert_eq!(taking.due(TIMEOUT), Some(start + TIMEOUT / 3));
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(taking.overdue(TIMEOUT, true, after(9)), None);
        assert_eq!(taking.overdue(TIMEOUT, false, after(10)), None, "nobody waits");
        assert_eq!(taking.due(TIMEOUT), Some(after(20)));
        assert_eq!(taking.overdue(TIMEOUT, true, after(11)), None, "it is looked at now and then");
        assert_eq!(taking.overdue(TIMEOUT, true, after(20)), Some(Duration::from_secs(20)));
    }

    #[test]
    fn a_body_has_a_while_and_the_time_for_its_length_and_none_passes_while_it_is_not_read() {
        let mut options = ServerOptions::new(([127, 0, 0, 1], 0).into(), "test", 1 << 20);
        (options.body_grace, options.body_rate) = (Duration::from_secs(30), ByteSize::mib(1));
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut time = BodyTime::new(64 << 20, &options, start);
        assert_eq!((time.due(), time.whole()), (after(94), Duration::from_secs(94)));
        time.resume(after(1));
        time.pause(after(10));
        time.pause(after(11));
        time.resume(after(20));
        assert_eq!(time.due(), after(104));
    }
}
