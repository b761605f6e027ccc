//! The bandwidth of one path, measured by what it delivers. Pure: it is told the time.
//!
//! A *window* begins when a path that was idle gets a request, and ends when it is idle again or has delivered much.
//! What it delivered of requests that were sent within the window, by the time that took, is a sample. Requests that
//! were under way when the window began do not count, since a part of them had come before: so a sample is never too
//! large. It is too small when the worker was slow or requests were few, and therefore the largest of the last few
//! counts.

use std::time::{Duration, Instant};

/// How many samples count: a path that has become slow is known as that after so many.
const SAMPLES: usize = 4;
/// With fewer bytes a window says how long a message takes, and not what the path carries.
const MIN_SAMPLE: u64 = 128 << 10;
/// A window of a path that is never idle ends with so many bytes, or with [`CARRIED`] times what was under way when it
/// began.
const MAX_WINDOW: u64 = 4 << 20;
/// What was under way when a window began is what its sample may lack: a fifth at most.
const CARRIED: u64 = 4;

/// A request under way, to be given back when it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    bytes: u64,
    window: u64,
}

/// See above.
#[derive(Debug, Default)]
pub(crate) struct PathSpeed {
    in_flight: u64,
    /// The window, by number.
    window: u64,
    /// When it began; none while the path is idle.
    began: Option<Instant>,
    /// Bytes that were under way then.
    carried: u64,
    /// Bytes that were delivered of requests that were sent since.
    delivered: u64,
    /// Bytes a second; 0 where there is none yet.
    samples: [u64; SAMPLES],
    next: usize,
    /// When the last sample was taken.
    measured: Option<Instant>,
}

impl PathSpeed {
    /// A request whose answer brings `bytes` is sent now.
    pub(crate) fn sent(&mut self, bytes: u32, now: Instant) -> Sent {
        // What brings no bytes keeps no path busy.
        if self.in_flight == 0 {
            self.begin(now);
        }
        let bytes = u64::from(bytes);
        self.in_flight += bytes;
        Sent { bytes, window: self.window }
    }

    /// All of it has come.
    pub(crate) fn delivered(&mut self, sent: Sent, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(sent.bytes);
        if sent.window == self.window {
            self.delivered += sent.bytes;
        }
        if self.in_flight == 0 || self.delivered >= MAX_WINDOW.max(CARRIED * self.carried) {
            self.sample(now);
            self.begin_unless_idle(now);
        }
    }

    /// It brought nothing, or was given up, or came later than the path could have brought it: the window says nothing.
    pub(crate) fn ended(&mut self, sent: Sent, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(sent.bytes);
        self.begin_unless_idle(now);
    }

    /// What is under way has not come although it was waited for so long: it cannot be faster than that.
    pub(crate) fn late(&mut self, waited: Duration, now: Instant) {
        let bound = rate(self.in_flight, waited);
        self.samples = self.samples.map(|sample| sample.min(bound));
        // A path that had no sample has one now.
        if self.bytes_per_second().is_none() {
            self.samples[self.next] = bound;
        }
        self.measured = Some(now);
        self.begin_unless_idle(now);
    }

    fn begin(&mut self, now: Instant) {
        (self.began, self.carried, self.delivered) = (Some(now), self.in_flight, 0);
        self.window += 1;
    }

    fn begin_unless_idle(&mut self, now: Instant) {
        self.begin(now);
        if self.in_flight == 0 {
            self.began = None;
        }
    }

    fn sample(&mut self, now: Instant) {
        let enough = MIN_SAMPLE.max(CARRIED * self.carried);
        let Some(began) = self.began.filter(|_| self.delivered >= enough) else { return };
        self.samples[self.next] = rate(self.delivered, now.saturating_duration_since(began));
        self.next = (self.next + 1) % SAMPLES;
        self.measured = Some(now);
    }

    /// Bytes that are under way.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// What it carries, in bytes a second, if that is known.
    pub(crate) fn bytes_per_second(&self) -> Option<u64> {
        self.samples.into_iter().max().filter(|most| *most > 0)
    }

    /// When that was last found out.
    pub(crate) fn measured(&self) -> Option<Instant> {
        self.measured
    }
}

/// Bytes a second, at least one. Faster than a thousandth of a microsecond nothing is measured.
fn rate(bytes: u64, took: Duration) -> u64 {
    let per_second = u128::from(bytes) * 1_000_000_000 / took.as_nanos().max(1);
    u64::try_from(per_second).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u32 = 1 << 20;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_request_on_an_idle_path_is_a_sample() {
        let (mut speed, start) = (PathSpeed::default(), Instant::now());
        assert_eq!(speed.bytes_per_second(), None);
        let sent = speed.sent(MIB, start);
        assert_eq!(speed.in_flight(), u64::from(MIB));
        speed.delivered(sent, start + ms(1));
        assert_eq!((speed.bytes_per_second(), speed.in_flight()), (Some(1000 << 20), 0));
        // Much later, as fast: that it was idle meanwhile does not count.
        let sent = speed.sent(MIB, start + ms(5000));
        speed.delivered(sent, start + ms(5001));
        assert_eq!((speed.bytes_per_second(), speed.measured()), (Some(1000 << 20), Some(start + ms(5001))));
    }

    #[test]
    fn small_requests_and_those_that_bring_nothing_say_nothing() {
        let (mut speed, start) = (PathSpeed::default(), Instant::now());
        let sent = speed.sent(4096, start);
        speed.delivered(sent, start + ms(1));
        let sent = speed.sent(MIB, start + ms(2));
        speed.ended(sent, start + ms(900));
        assert_eq!((speed.bytes_per_second(), speed.in_flight()), (None, 0));
    }

    #[test]
    fn a_path_that_has_become_slow_is_known_as_that_after_four_samples_or_when_it_is_late() {
        let start = Instant::now();
        let after = |took: u64, samples: u64| {
            let mut speed = PathSpeed::default();
            for sample in 0..4 + samples {
                let sent = speed.sent(MIB, start + ms(1000 * sample));
                speed.delivered(sent, start + ms(1000 * sample) + ms(if sample < 4 { 1 } else { took }));
            }
            speed
        };
        assert_eq!(after(4, 3).bytes_per_second(), Some(1000 << 20));
        assert_eq!(after(4, 4).bytes_per_second(), Some(250 << 20));
        let mut speed = after(1, 0);
        let sent = speed.sent(MIB, start + ms(9000));
        speed.late(ms(10), start + ms(9010));
        assert_eq!(speed.bytes_per_second(), Some(100 << 20));
        speed.delivered(sent, start + ms(9011));
        assert_eq!((speed.bytes_per_second(), speed.in_flight()), (Some(100 << 20), 0), "that window says nothing");
    }

    proptest! {
        /// Requests of any size, any number at once, over a path that carries 1 byte a microsecond in the order of
        /// sending.
        #[test]
        fn a_path_is_never_thought_faster_than_it_is_and_found_to_be_nearly_as_fast_when_it_is_busy(
            requests in prop::collection::vec((MIN_SAMPLE as u32..4 * MIB, 0u64..3_000_000), 20..100),
        ) {
            let (mut speed, start) = (PathSpeed::default(), Instant::now());
            let (mut at, mut free, mut under_way) = (0u64, 0u64, std::collections::VecDeque::new());
            for (bytes, pause) in requests {
                at += pause;
                while let Some((ends, sent)) = under_way.front().copied().filter(|(ends, _)| *ends <= at) {
                    speed.delivered(sent, start + Duration::from_micros(ends));
                    under_way.pop_front();
                }
                free = free.max(at) + u64::from(bytes);
                under_way.push_back((free, speed.sent(bytes, start + Duration::from_micros(at))));
                prop_assert!(speed.bytes_per_second().is_none_or(|found| found <= 1_000_001));
            }
            for (ends, sent) in under_way {
                speed.delivered(sent, start + Duration::from_micros(ends));
            }
            let found = speed.bytes_per_second().unwrap_or_default();
            prop_assert!(speed.in_flight() == 0 && (500_000..=1_000_001).contains(&found), "{found}");
        }
    }
}
