//! Statistics of operations by stage, for whoever wants to know where the time goes.
//!
//! A [`Trace`] is shared by any number of lanes and threads: counters and histograms that are added to without a lock. Where
//! there is none, an operation costs one look at an `Option`, and no clock is read.
//!
//! | stage | of a client's call | of a server's answer |
//! | --- | --- | --- |
//! | queue | made until sent | arrived until the service is asked |
//! | store | | the service asked until it has answered |
//! | wire | sent until the reply is complete, the server's share included | given to UCX until the peer has taken it |
//!
//! Registering memory belongs to no operation: it happens at start and when a pool grows, and is a line of its own.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_types::ByteSize;
use histogram::{AtomicHistogram, Bucket, Config, Histogram};
use parking_lot::Mutex;

/// Buckets that are 3 % wide, up to 137 s, in nanoseconds: 8 KiB for each histogram.
const GROUPING_POWER: u8 = 5;
const MAX_VALUE_POWER: u8 = 37;

/// What is counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A client's reads.
    Read,
    /// A client's other calls.
    Call,
    /// A server's answers.
    Answer,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Read, Self::Call, Self::Answer];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "client read",
            Self::Call => "client call",
            Self::Answer => "server answer",
        })
    }
}

/// Where operations are recorded.
#[derive(Debug)]
pub struct Trace {
    operations: [Operation; 3],
    registration: Histograms<1>,
    registration_failures: AtomicU64,
    since: Mutex<Instant>,
}

#[derive(Debug)]
struct Operation {
    count: AtomicU64,
    failures: AtomicU64,
    bytes: AtomicU64,
    stages: Histograms<3>,
}

/// Histograms of durations.
#[derive(Debug)]
struct Histograms<const N: usize>([AtomicHistogram; N]);

/// A stage of an operation, by its place among the histograms.
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    Queue = 0,
    Store = 1,
    Wire = 2,
}

impl<const N: usize> Default for Histograms<N> {
    fn default() -> Self {
        // Constants that the type takes: see the test.
        let config = Config::new(GROUPING_POWER, MAX_VALUE_POWER).expect("a valid configuration");
        Self(std::array::from_fn(|_| AtomicHistogram::with_config(&config)))
    }
}

impl<const N: usize> Histograms<N> {
    fn record(&self, index: usize, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).min((1 << MAX_VALUE_POWER) - 1);
        // Never out of range, after the line above.
        let _ = self.0[index].increment(nanos);
    }

    fn take(&self, index: usize) -> Option<StageReport> {
        StageReport::of(&self.0[index].drain())
    }
}

impl Default for Trace {
    fn default() -> Self {
        let operation = || Operation {
            count: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            stages: Histograms::default(),
        };
        Self {
            operations: std::array::from_fn(|_| operation()),
            registration: Histograms::default(),
            registration_failures: AtomicU64::new(0),
            since: Mutex::new(Instant::now()),
        }
    }
}

impl Trace {
    /// Nothing recorded yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn stage(&self, kind: Kind, stage: Stage, took: Duration) {
        self.operations[kind as usize].stages.record(stage as usize, took);
    }

    /// The end of an operation that moved `bytes`, or failed.
    pub(crate) fn ended(&self, kind: Kind, moved: Option<u64>) {
        let operation = &self.operations[kind as usize];
        operation.count.fetch_add(1, Ordering::Relaxed);
        match moved {
            Some(bytes) => operation.bytes.fetch_add(bytes, Ordering::Relaxed),
            None => operation.failures.fetch_add(1, Ordering::Relaxed),
        };
    }

    pub(crate) fn registered(&self, took: Duration, worked: bool) {
        self.registration.record(0, took);
        self.registration_failures.fetch_add(u64::from(!worked), Ordering::Relaxed);
    }

    /// What was recorded since the last report, which begins the next interval. An operation that ends meanwhile may have
    /// its stages in one report and its bytes in the next.
    #[must_use]
    pub fn report(&self) -> TraceReport {
        let now = Instant::now();
        let interval = now.duration_since(std::mem::replace(&mut *self.since.lock(), now));
        let operation = |kind: Kind| {
            let operation = &self.operations[kind as usize];
            OperationReport {
                kind,
                count: operation.count.swap(0, Ordering::Relaxed),
                failures: operation.failures.swap(0, Ordering::Relaxed),
                bytes: ByteSize::bytes(operation.bytes.swap(0, Ordering::Relaxed)),
                queue: operation.stages.take(Stage::Queue as usize),
                store: operation.stages.take(Stage::Store as usize),
                wire: operation.stages.take(Stage::Wire as usize),
            }
        };
        TraceReport {
            interval,
            operations: Kind::ALL.map(operation),
            registration: self.registration.take(0),
            registration_failures: self.registration_failures.swap(0, Ordering::Relaxed),
        }
    }
}

/// The operations of an interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceReport {
    /// How long it was.
    pub interval: Duration,
    /// One for each [`Kind`].
    pub operations: [OperationReport; 3],
    /// Registering memory; `None` when there was none.
    pub registration: Option<StageReport>,
    /// How often that failed.
    pub registration_failures: u64,
}

/// The operations of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationReport {
    /// Which.
    pub kind: Kind,
    /// How many ended.
    pub count: u64,
    /// How many of them failed, by the link or by the service.
    pub failures: u64,
    /// Payload that was moved.
    pub bytes: ByteSize,
    /// See the table of the module, also for the next ones; `None` when nothing came to this stage.
    pub queue: Option<StageReport>,
    /// Of a server's answers only.
    pub store: Option<StageReport>,
    /// The network, and the peer.
    pub wire: Option<StageReport>,
}

/// How long a stage took, to 3 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageReport {
    /// How many came through it.
    pub count: u64,
    /// Half of them took no longer.
    pub p50: Duration,
    /// 99 of 100 took no longer.
    pub p99: Duration,
    /// None took longer.
    pub max: Duration,
}

impl StageReport {
    fn of(histogram: &Histogram) -> Option<Self> {
        let end = |bucket: &Bucket| Duration::from_nanos(bucket.end());
        let at = |percentile: f64| histogram.quantile_bucket(percentile).ok().flatten().map(|bucket| end(&bucket));
        let count = histogram.as_slice().iter().sum();
        Some(Self { count, p50: at(0.5)?, p99: at(0.99)?, max: at(1.0)? })
    }
}

impl fmt::Display for StageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |duration: Duration| duration.as_secs_f64() * 1e6;
        write!(f, "{:.1}/{:.1}/{:.1}", micros(self.p50), micros(self.p99), micros(self.max))
    }
}

/// `count=12 failures=0 bytes=48KiB queue_us=1.2/3.4/5.6 store_us=- wire_us=20.1/44.0/71.5`: p50, p99 and maximum of each
/// stage in microseconds.
impl fmt::Display for OperationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "count={} failures={} bytes={}", self.count, self.failures, self.bytes)?;
        for (name, stage) in [("queue", self.queue), ("store", self.store), ("wire", self.wire)] {
            match stage {
                Some(stage) => write!(f, " {name}_us={stage}")?,
                None => write!(f, " {name}_us=-")?,
            }
        }
        Ok(())
    }
}

/// A client's call on its way through the stages.
pub(crate) struct Timing {
    trace: std::sync::Arc<Trace>,
    kind: Kind,
    made: Instant,
    sent: Option<Instant>,
}

impl Timing {
    pub(crate) fn new(trace: &std::sync::Arc<Trace>, kind: Kind) -> Self {
        Self { trace: std::sync::Arc::clone(trace), kind, made: Instant::now(), sent: None }
    }

    pub(crate) fn sent(&mut self) {
        let now = Instant::now();
        self.trace.stage(self.kind, Stage::Queue, now.duration_since(self.made));
        self.sent = Some(now);
    }

    pub(crate) fn ended(self, moved: Option<u64>) {
        if let Some(sent) = self.sent {
            self.trace.stage(self.kind, Stage::Wire, sent.elapsed());
        }
        self.trace.ended(self.kind, moved);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_report_says_what_happened_since_the_last_one() {
        let trace = Arc::new(Trace::new());
        assert_eq!(trace.report().registration, None);
        for micros in 1..=100 {
            trace.stage(Kind::Answer, Stage::Store, Duration::from_micros(micros));
            trace.ended(Kind::Answer, (micros > 1).then_some(1024));
        }
        trace.registered(Duration::from_millis(3), true);
        let report = trace.report();
        let answers = &report.operations[Kind::Answer as usize];
        assert_eq!((answers.count, answers.failures, answers.bytes), (100, 1, ByteSize::bytes(99 << 10)));
        let store = answers.store.unwrap();
        let about = |found: Duration, micros: f64| (found.as_secs_f64() * 1e6 / micros - 1.0).abs() < 0.04;
        assert!(about(store.p50, 50.0) && about(store.p99, 99.0) && about(store.max, 100.0), "{store:?}");
        assert_eq!((answers.queue, answers.wire), (None, None));
        let text = answers.to_string();
        assert!(text.starts_with("count=100 failures=1 bytes=99KiB queue_us=- store_us="), "{text}");
        assert_eq!((report.registration.unwrap().count, report.registration_failures), (1, 0));
        let next = trace.report();
        assert!(next.operations.iter().all(|operation| operation.count == 0 && operation.store.is_none()));
    }

    #[test]
    fn no_duration_is_too_long_or_too_short() {
        let trace = Trace::new();
        for took in [Duration::ZERO, Duration::from_secs(1 << 40), Duration::MAX] {
            trace.stage(Kind::Read, Stage::Wire, took);
        }
        let wire = trace.report().operations[Kind::Read as usize].wire.unwrap();
        assert_eq!(wire.count, 3);
        assert_eq!(wire.max, Duration::from_nanos((1 << MAX_VALUE_POWER) - 1));
    }

    #[test]
    fn a_call_that_was_never_sent_counts_as_failed() {
        let trace = Arc::new(Trace::new());
        Timing::new(&trace, Kind::Call).ended(None);
        let mut timing = Timing::new(&trace, Kind::Read);
        timing.sent();
        timing.ended(Some(10));
        let report = trace.report();
        let [reads, calls, _] = &report.operations;
        assert_eq!((calls.count, calls.failures, calls.wire), (1, 1, None));
        assert_eq!((reads.count, reads.failures, reads.bytes), (1, 0, ByteSize::bytes(10)));
        assert!(reads.queue.is_some() && reads.wire.is_some());
    }
}
