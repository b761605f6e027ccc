//! What a mount counts.
//!
//! Several threads count several times for each read, so the counters are spread over shards, each on cache lines of
//! its own; a snapshot adds them up.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_types::FailureKind;

/// What the kernel asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Operation {
    /// Find a name in a directory.
    Lookup,
    /// Attributes of an inode.
    GetAttr,
    /// Open a file.
    Open,
    /// Read from a file.
    Read,
    /// Close a file.
    Release,
    /// Open a directory.
    OpenDir,
    /// Names of a directory, with or without attributes.
    ReadDir,
    /// Close a directory.
    ReleaseDir,
    /// Everything else that is answered with success.
    Other,
    /// Whatever would change something.
    Write,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Lookup,
        Self::GetAttr,
        Self::Open,
        Self::Read,
        Self::Release,
        Self::OpenDir,
        Self::ReadDir,
        Self::ReleaseDir,
        Self::Other,
        Self::Write,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::GetAttr => "getattr",
            Self::Open => "open",
            Self::Read => "read",
            Self::Release => "release",
            Self::OpenDir => "opendir",
            Self::ReadDir => "readdir",
            Self::ReleaseDir => "releasedir",
            Self::Other => "other",
            Self::Write => "write",
        }
    }
}

/// Latencies are counted by the position of their highest bit in nanoseconds; the last bucket is 2^38 ns (275 s) and
/// more.
pub const LATENCY_BUCKETS: usize = 40;
const KINDS: usize = 16;
/// More than the threads that serve a mount on most machines.
const SHARDS: usize = 16;

/// The counters of one mount.
pub(crate) struct Counters {
    shards: [Shard; SHARDS],
}

/// Two cache lines: adjacent ones are fetched in pairs.
#[repr(align(128))]
struct Shard {
    latencies: [[Counter; LATENCY_BUCKETS]; Operation::ALL.len()],
    failures: [Counter; KINDS],
    read_bytes: Counter,
    read_hits: Counter,
    read_misses: Counter,
}

struct Counter(AtomicU64);

impl Counter {
    const fn zero() -> Self {
        Self(AtomicU64::new(0))
    }

    fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one operation counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationStats {
    /// Which.
    pub operation: Operation,
    /// How often.
    pub count: u64,
    /// How often it took `2^(i-1)..2^i` nanoseconds, from the request's arrival to its answer.
    pub latency: [u64; LATENCY_BUCKETS],
}

/// What a mount counted since it was mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountStats {
    /// By operation, in the order of [`Operation::ALL`].
    pub operations: Vec<OperationStats>,
    /// Failures by kind; only those that occurred. A name that is not there is not a failure.
    pub failures: Vec<(FailureKind, u64)>,
    /// Bytes that reads returned.
    pub read_bytes: u64,
    /// Reads that were answered at once from memory.
    pub read_hits: u64,
    /// Reads that had to wait for a worker.
    pub read_misses: u64,
    /// Inodes that the kernel holds.
    pub inodes: u64,
}

impl MountStats {
    /// How often `operation` was asked for.
    #[must_use]
    pub fn count(&self, operation: Operation) -> u64 {
        self.operations.iter().filter(|stats| stats.operation == operation).map(|stats| stats.count).sum()
    }
}

impl Shard {
    const fn zero() -> Self {
        Self {
            latencies: [const { [const { Counter::zero() }; LATENCY_BUCKETS] }; Operation::ALL.len()],
            failures: [const { Counter::zero() }; KINDS],
            read_bytes: Counter::zero(),
            read_hits: Counter::zero(),
            read_misses: Counter::zero(),
        }
    }
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self { shards: [const { Shard::zero() }; SHARDS] }
    }

    /// One answered request.
    pub(crate) fn answered(&self, operation: Operation, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - nanos.leading_zeros()) as usize;
        self.shard().latencies[operation as usize][bucket.min(LATENCY_BUCKETS - 1)].add(1);
    }

    /// One read that returned `bytes`; `hit`: at once.
    pub(crate) fn read(&self, bytes: usize, hit: bool) {
        let shard = self.shard();
        shard.read_bytes.add(bytes as u64);
        if hit { &shard.read_hits } else { &shard.read_misses }.add(1);
    }

    /// One request that failed.
    pub(crate) fn failed(&self, kind: FailureKind) {
        self.shard().failures[kind as usize % KINDS].add(1);
    }

    pub(crate) fn snapshot(&self, inodes: usize) -> MountStats {
        let sum = |of: &dyn Fn(&Shard) -> u64| self.shards.iter().map(of).sum::<u64>();
        let operations = Operation::ALL.map(|operation| {
            let latency: [u64; LATENCY_BUCKETS] =
                std::array::from_fn(|bucket| sum(&|shard| shard.latencies[operation as usize][bucket].get()));
            OperationStats { operation, count: latency.iter().sum(), latency }
        });
        let failures = (1..KINDS)
            .map(|number| (number, sum(&|shard| shard.failures[number].get())))
            .filter(|(_, count)| *count > 0)
            // Below `KINDS`, so it is a wire number.
            .map(|(number, count)| (FailureKind::from_wire(number as u16), count));
        MountStats {
            operations: operations.to_vec(),
            failures: failures.collect(),
            read_bytes: sum(&|shard| shard.read_bytes.get()),
            read_hits: sum(&|shard| shard.read_hits.get()),
            read_misses: sum(&|shard| shard.read_misses.get()),
            inodes: inodes as u64,
        }
    }

    fn shard(&self) -> &Shard {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        &self.shards[MINE.with(Cell::get)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_many_threads_count_adds_up() {
        let counters = Counters::new();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    counters.answered(Operation::Read, Duration::from_nanos(1000));
                    counters.read(10, true);
                    counters.failed(FailureKind::Internal);
                });
            }
        });
        let stats = counters.snapshot(3);
        assert_eq!((stats.read_bytes, stats.read_hits, stats.read_misses, stats.inodes), (200, 20, 0, 3));
        assert_eq!(stats.count(Operation::Read), 20);
        assert_eq!(stats.operations[Operation::Read as usize].latency[10], 20);
        assert_eq!(stats.failures, [(FailureKind::Internal, 20)]);
    }

    #[test]
    fn the_shortest_and_the_longest_have_a_bucket() {
        let counters = Counters::new();
        counters.answered(Operation::Open, Duration::ZERO);
        counters.answered(Operation::Open, Duration::MAX);
        let latency = &counters.snapshot(0).operations[Operation::Open as usize].latency;
        assert_eq!((latency[0], latency[LATENCY_BUCKETS - 1]), (1, 1));
    }
}
