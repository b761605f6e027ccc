//! Which of several replicas to read from: the one that is expected to answer first.
//!
//! A client keeps, for each worker, a moving average of how long it takes to answer and how many of its own requests wait
//! there now. What a further request will take is the one times one more than the other, as in Envoy's and Finagle's least
//! loaded balancing. A record is believed less the older it is: every so often a request goes to the next best, so that a
//! worker that was slow once is not slow for ever.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The weight of a new answer: the last ten or so count.
const SHARE: f64 = 0.1;
/// One request in so many goes to another replica than the best, to learn how that one is now.
const EXPLORE: u64 = 32;

/// What a client knows of a worker's speed. All of its verbs may be called at once from many threads: they are statistics.
#[derive(Debug, Default)]
pub struct LatencyRecord {
    /// Moving average in nanoseconds, as the bits of an f64; 0 before the first answer.
    average: AtomicU64,
    waiting: AtomicU32,
}

impl LatencyRecord {
    /// A request was sent.
    pub fn sent(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// A request has ended; with `answered`, after how long a good answer came.
    pub fn ended(&self, answered: Option<Duration>) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Some(took) = answered {
            let new = took.as_nanos() as f64;
            let old = f64::from_bits(self.average.load(Ordering::Relaxed));
            let average = if old == 0.0 { new } else { old + SHARE * (new - old) };
            self.average.store(average.to_bits(), Ordering::Relaxed);
        }
    }

    /// The moving average; `None` before the first answer.
    #[must_use]
    pub fn average(&self) -> Option<Duration> {
        let nanos = f64::from_bits(self.average.load(Ordering::Relaxed));
        (nanos > 0.0).then(|| Duration::from_nanos(nanos as u64))
    }

    /// What a further request is expected to take, in nanoseconds. Nothing for a worker that was never asked: it is tried.
    fn expected(&self) -> f64 {
        let average = f64::from_bits(self.average.load(Ordering::Relaxed));
        average * (1.0 + f64::from(self.waiting.load(Ordering::Relaxed)))
    }
}

/// Puts the replica to ask to the front of `replicas`, which come in rendezvous order; `turn` counts requests.
pub fn favour<'a>(replicas: &mut [usize], turn: u64, record: impl Fn(usize) -> &'a LatencyRecord) {
    if replicas.len() < 2 {
        return;
    }
    let expected = |at: &usize| record(replicas[*at]).expected();
    let best = (0..replicas.len()).min_by(|a, b| expected(a).total_cmp(&expected(b))).unwrap_or(0);
    // The others in turn, so that with many replicas each is tried.
    let others = replicas.len() as u64 - 1;
    let chosen = match turn % EXPLORE {
        0 => (best + 1 + (turn / EXPLORE % others) as usize) % replicas.len(),
        _ => best,
    };
    replicas[..=chosen].rotate_right(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(average: Duration, waiting: u32) -> LatencyRecord {
        let record = LatencyRecord::default();
        record.sent();
        record.ended(Some(average));
        (0..waiting).for_each(|_| record.sent());
        record
    }

    #[test]
    fn the_faster_and_less_busy_replica_is_asked_and_the_others_stay_in_order() {
        let us = Duration::from_micros;
        let records = [record(us(100), 0), record(us(20), 9), record(us(90), 0)];
        let mut replicas = [0, 1, 2];
        favour(&mut replicas, 1, |at| &records[at]);
        assert_eq!(replicas, [2, 0, 1], "20 us ten times over is more than 90 us");
    }

    #[test]
    fn one_that_was_slow_once_is_tried_again() {
        let ms = Duration::from_millis;
        let records = [record(ms(1), 0), record(ms(500), 0), record(ms(400), 0)];
        let mut asked = [0; 3];
        for turn in 0..EXPLORE * 10 {
            let mut replicas = [0, 1, 2];
            favour(&mut replicas, turn, |at| &records[at]);
            asked[replicas[0]] += 1;
        }
        assert_eq!(asked, [EXPLORE * 10 - 10, 5, 5]);
    }

    #[test]
    fn an_average_follows_what_is_observed_and_failures_do_not_count() {
        let record = LatencyRecord::default();
        assert_eq!(record.average(), None);
        for _ in 0..100 {
            record.sent();
            record.ended(Some(Duration::from_micros(50)));
        }
        record.sent();
        record.ended(None);
        assert_eq!(record.average(), Some(Duration::from_micros(50)));
        for _ in 0..100 {
            record.sent();
            record.ended(Some(Duration::from_micros(150)));
        }
        assert!(record.average().unwrap() > Duration::from_micros(149));
    }
}
