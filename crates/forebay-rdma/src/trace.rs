//! Statistics of operations by stage, which say where the time goes.
//!
//! A [`Trace`] is shared by any number of I/O threads and other threads: counters and histograms that are added to without a
//! lock. Where there is none, an operation costs one look at an `Option`, and no clock is read.
//!
//! | stage | of a client's call | of a server's answer |
//! | --- | --- | --- |
//! | queue | made until sent | arrived until the service is asked |
//! | store | | the service asked until it has answered |
//! | wire | sent until the reply is complete, the server's share included | given to UCX until the peer has taken it |
//!
//! Registering memory belongs to no operation: it happens at start and when a pool grows, and is a line of its own.
//!
//! Of each peer there is less: how much went, how much failed and the longest wait, for histograms take room. A worker that asks
//! for the description of a file answers as it should: that is no failure, and has a number of its own.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use forebay_transport::{CallError, LinkError};
use forebay_types::{ByteSize, FailureKind};
use histogram::{AtomicHistogram, Bucket, Config, Histogram};

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

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// So many bytes of payload were moved.
    Moved(u64),
    /// The worker asks for the file's description first.
    NeedsDescription,
    /// Why it failed, in a word or two.
    Failed(String),
}

impl Outcome {
    /// That of a service's answer with a failure.
    pub(crate) fn of_service(kind: FailureKind) -> Self {
        match kind {
            FailureKind::NeedsDescription => Self::NeedsDescription,
            kind => Self::Failed(format!("service: {kind:?}")),
        }
    }

    /// That of a call without a reply.
    pub(crate) fn of_error(error: &CallError) -> Self {
        let link = |what: &str| Self::Failed(format!("link: {what}"));
        match error {
            CallError::Service(failure) => Self::of_service(failure.kind()),
            CallError::Link(LinkError::Connect { .. }) => link("not connected"),
            CallError::Link(LinkError::Refused { .. } | LinkError::Unproved { .. }) => link("refused"),
            CallError::Link(LinkError::NotAllowed { .. }) => link("not allowed"),
            CallError::Link(LinkError::Lost { .. } | LinkError::OtherPath { .. }) => link("lost"),
            CallError::Link(LinkError::TimedOut { .. }) => link("timed out"),
            CallError::Link(LinkError::Protocol { .. }) => link("broke the protocol"),
        }
    }

    /// That of a call whose caller had left when its answer came, or could not come any more.
    pub(crate) fn abandoned() -> Self {
        Self::Failed("abandoned by its caller".to_owned())
    }
}

/// Where operations are recorded.
#[derive(Debug)]
pub struct Trace {
    operations: [Operation; 3],
    peers: Mutex<Vec<Weak<Peer>>>,
    registration: Histograms<1>,
    registration_failures: AtomicU64,
    since: Mutex<Instant>,
}

#[derive(Debug)]
struct Operation {
    count: AtomicU64,
    described: AtomicU64,
    /// By kind. A failure can afford the lock.
    failures: Mutex<BTreeMap<String, u64>>,
    bytes: AtomicU64,
    stages: Histograms<3>,
}

/// What is known of one peer, for as long as it is talked to.
#[derive(Debug)]
struct Peer {
    name: String,
    count: AtomicU64,
    failures: AtomicU64,
    bytes: AtomicU64,
    longest_wire_nanos: AtomicU64,
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
    #[expect(clippy::expect_used, reason = "constants that the type takes: see the test")]
    fn default() -> Self {
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
            described: AtomicU64::new(0),
            failures: Mutex::default(),
            bytes: AtomicU64::new(0),
            stages: Histograms::default(),
        };
        Self {
            operations: std::array::from_fn(|_| operation()),
            peers: Mutex::default(),
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

    fn stage(&self, kind: Kind, stage: Stage, took: Duration) {
        self.operations[kind as usize].stages.record(stage as usize, took);
    }

    /// The end of an operation.
    fn ended(&self, kind: Kind, outcome: Outcome) {
        let operation = &self.operations[kind as usize];
        operation.count.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Outcome::Moved(bytes) => {
                operation.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Outcome::NeedsDescription => {
                operation.described.fetch_add(1, Ordering::Relaxed);
            }
            Outcome::Failed(why) => *operation.failures.lock().entry(why).or_default() += 1,
        }
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
                described: operation.described.swap(0, Ordering::Relaxed),
                failures: std::mem::take(&mut *operation.failures.lock()),
                bytes: ByteSize::bytes(operation.bytes.swap(0, Ordering::Relaxed)),
                queue: operation.stages.take(Stage::Queue as usize),
                store: operation.stages.take(Stage::Store as usize),
                wire: operation.stages.take(Stage::Wire as usize),
            }
        };
        TraceReport {
            interval,
            operations: Kind::ALL.map(operation),
            peers: self.peers_since(),
            registration: self.registration.take(0),
            registration_failures: self.registration_failures.swap(0, Ordering::Relaxed),
        }
    }
}

impl Trace {
    /// The peers with operations that ended since the last report, those that most came from or went to first.
    fn peers_since(&self) -> Vec<PeerReport> {
        let known: Vec<_> = {
            let mut peers = self.peers.lock();
            peers.retain(|peer| peer.strong_count() > 0);
            peers.iter().filter_map(Weak::upgrade).collect()
        };
        let report = |peer: Arc<Peer>| PeerReport {
            count: peer.count.swap(0, Ordering::Relaxed),
            failures: peer.failures.swap(0, Ordering::Relaxed),
            bytes: ByteSize::bytes(peer.bytes.swap(0, Ordering::Relaxed)),
            longest_wire: Duration::from_nanos(peer.longest_wire_nanos.swap(0, Ordering::Relaxed)),
            peer: peer.name.clone(),
        };
        let mut peers: Vec<_> = known.into_iter().map(report).filter(|peer| peer.count > 0).collect();
        peers.sort_by_key(|peer| std::cmp::Reverse((peer.bytes, peer.count)));
        peers
    }
}

/// The operations of an interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceReport {
    /// How long it was.
    pub interval: Duration,
    /// One for each [`Kind`].
    pub operations: [OperationReport; 3],
    /// The peers that they were with, the busiest first.
    pub peers: Vec<PeerReport>,
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
    /// How many of them the worker answered by asking for the file's description, with which they were sent again.
    pub described: u64,
    /// How many of them failed, by the link or by the service, by kind.
    pub failures: BTreeMap<String, u64>,
    /// Payload that was moved.
    pub bytes: ByteSize,
    /// See the table of the module, also for the next ones; `None` when nothing came to this stage.
    pub queue: Option<StageReport>,
    /// Of a server's answers only.
    pub store: Option<StageReport>,
    /// The network, and the peer.
    pub wire: Option<StageReport>,
}

/// The operations with one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReport {
    /// Its address.
    pub peer: String,
    /// How many ended.
    pub count: u64,
    /// How many of them failed.
    pub failures: u64,
    /// Payload that was moved.
    pub bytes: ByteSize,
    /// No operation was longer on the wire.
    pub longest_wire: Duration,
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

/// Where the operations with one peer are recorded.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    trace: Arc<Trace>,
    peer: Arc<Peer>,
}

impl Recorder {
    pub(crate) fn new(trace: &Arc<Trace>, peer: &str) -> Self {
        let peer = Arc::new(Peer {
            name: peer.to_owned(),
            count: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            longest_wire_nanos: AtomicU64::new(0),
        });
        trace.peers.lock().push(Arc::downgrade(&peer));
        Self { trace: Arc::clone(trace), peer }
    }

    pub(crate) fn stage(&self, kind: Kind, stage: Stage, took: Duration) {
        self.trace.stage(kind, stage, took);
        if matches!(stage, Stage::Wire) {
            let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            self.peer.longest_wire_nanos.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    pub(crate) fn ended(&self, kind: Kind, outcome: Outcome) {
        self.peer.count.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Outcome::Moved(bytes) => {
                self.peer.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Outcome::NeedsDescription => {}
            Outcome::Failed(_) => {
                self.peer.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.trace.ended(kind, outcome);
    }
}

/// A client's call on its way through the stages.
pub(crate) struct Timing {
    recorder: Recorder,
    kind: Kind,
    made: Instant,
    sent: Option<Instant>,
}

impl Timing {
    pub(crate) fn new(recorder: &Recorder, kind: Kind) -> Self {
        Self { recorder: recorder.clone(), kind, made: Instant::now(), sent: None }
    }

    pub(crate) fn sent(&mut self) {
        let now = Instant::now();
        self.recorder.stage(self.kind, Stage::Queue, now.duration_since(self.made));
        self.sent = Some(now);
    }

    pub(crate) fn ended(self, outcome: Outcome) {
        if let Some(sent) = self.sent {
            self.recorder.stage(self.kind, Stage::Wire, sent.elapsed());
        }
        self.recorder.ended(self.kind, outcome);
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::Failure;

    use super::*;

    #[test]
    fn a_report_says_what_happened_since_the_last_one() {
        let trace = Arc::new(Trace::new());
        let recorder = Recorder::new(&trace, "node1:59999");
        assert_eq!(trace.report().registration, None);
        for micros in 1..=100 {
            recorder.stage(Kind::Answer, Stage::Store, Duration::from_micros(micros));
            let outcome = if micros > 1 { Outcome::Moved(1024) } else { Outcome::of_service(FailureKind::NotFound) };
            recorder.ended(Kind::Answer, outcome);
        }
        trace.registered(Duration::from_millis(3), true);
        let report = trace.report();
        let answers = &report.operations[Kind::Answer as usize];
        assert_eq!((answers.count, answers.bytes), (100, ByteSize::bytes(99 << 10)));
        assert_eq!(answers.failures, BTreeMap::from([("service: NotFound".to_owned(), 1)]));
        let store = answers.store.unwrap();
        let about = |found: Duration, micros: f64| (found.as_secs_f64() * 1e6 / micros - 1.0).abs() < 0.04;
        assert!(about(store.p50, 50.0) && about(store.p99, 99.0) && about(store.max, 100.0), "{store:?}");
        assert_eq!((answers.queue, answers.wire), (None, None));
        assert_eq!((report.registration.unwrap().count, report.registration_failures), (1, 0));
        let next = trace.report();
        assert!(next.operations.iter().all(|operation| operation.count == 0 && operation.store.is_none()));
        assert_eq!(next.peers, []);
    }

    #[test]
    fn a_worker_that_asks_for_a_description_has_not_failed_and_failures_are_told_apart() {
        let trace = Arc::new(Trace::new());
        let recorder = Recorder::new(&trace, "node1:59999");
        let asks = Failure::new(FailureKind::NeedsDescription, "of what?");
        recorder.ended(Kind::Read, Outcome::of_error(&CallError::Service(asks)));
        let peer = || "node1:59999".to_owned();
        let timed_out = LinkError::TimedOut { peer: peer(), waited: Duration::ZERO };
        let lost = LinkError::Lost { peer: peer(), reason: "gone".to_owned() };
        for error in [timed_out, lost.clone(), lost] {
            recorder.ended(Kind::Read, Outcome::of_error(&error.into()));
        }
        recorder.ended(Kind::Read, Outcome::abandoned());
        let reads = trace.report().operations[Kind::Read as usize].clone();
        assert_eq!((reads.count, reads.described), (5, 1));
        let failures: Vec<_> = reads.failures.iter().map(|(why, count)| (why.as_str(), *count)).collect();
        assert_eq!(failures, [("abandoned by its caller", 1), ("link: lost", 2), ("link: timed out", 1)]);
    }

    #[test]
    fn each_peer_has_numbers_of_its_own_while_somebody_talks_to_it() {
        let trace = Arc::new(Trace::new());
        let [busy, failing, idle] = ["node1:59999", "node2:59999", "node3:59999"].map(|it| Recorder::new(&trace, it));
        busy.stage(Kind::Read, Stage::Wire, Duration::from_micros(70));
        busy.stage(Kind::Read, Stage::Wire, Duration::from_micros(20));
        busy.ended(Kind::Read, Outcome::Moved(4096));
        failing.ended(Kind::Read, Outcome::abandoned());
        let peers = trace.report().peers;
        let told: Vec<_> =
            peers.iter().map(|peer| (&*peer.peer, peer.count, peer.failures, peer.bytes.as_u64())).collect();
        assert_eq!(told, [("node1:59999", 1, 0, 4096), ("node2:59999", 1, 1, 0)]);
        assert_eq!(peers[0].longest_wire, Duration::from_micros(70));
        drop((busy, failing, idle));
        assert!(trace.report().peers.is_empty() && trace.peers.lock().is_empty());
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
        let recorder = Recorder::new(&trace, "node1:59999");
        Timing::new(&recorder, Kind::Call).ended(Outcome::abandoned());
        let mut timing = Timing::new(&recorder, Kind::Read);
        timing.sent();
        timing.ended(Outcome::Moved(10));
        let report = trace.report();
        let [reads, calls, _] = &report.operations;
        assert_eq!((calls.count, calls.failures.len(), calls.wire), (1, 1, None));
        assert_eq!((reads.count, reads.failures.len(), reads.bytes), (1, 0, ByteSize::bytes(10)));
        assert!(reads.queue.is_some() && reads.wire.is_some());
    }
}
