//! What a mount counts.
//!
//! Several threads count several times for each read, so the counters are spread over shards, each on cache lines of
//! its own; a snapshot adds them up.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_fuse_io::{Channel, Served};
use forebay_metrics::{LatencyHistogram, LatencySnapshot};
use forebay_types::FailureKind;
use serde_json::{Map, Value, json};

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
    /// Write to a file.
    Write,
    /// Take what was written to the origin: `fsync(2)`, and `close(2)` of what is open for writing.
    Sync,
    /// Whatever else changes something: names, sizes, attributes.
    Change,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 12] = [
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
        Self::Sync,
        Self::Change,
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
            Self::Sync => "sync",
            Self::Change => "change",
        }
    }
}

/// Beyond the highest number of a [`FailureKind`].
const KINDS: usize = 23;
/// More than the threads that serve a mount on most machines.
const SHARDS: usize = 16;

/// The counters of one mount.
pub(crate) struct Counters {
    shards: [Shard; SHARDS],
}

/// Two cache lines: adjacent ones are fetched in pairs.
#[repr(align(128))]
struct Shard {
    latencies: [LatencyHistogram; Operation::ALL.len()],
    failures: [Counter; KINDS],
    read_bytes: Counter,
    read_hits: Counter,
    read_misses: Counter,
    read_landed: Counter,
    read_driven: Counter,
    written_bytes: Counter,
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
    /// How long it took, from the request's arrival to its answer.
    pub latency: LatencySnapshot,
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
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Inodes that the kernel holds.
    pub inodes: u64,
}

impl MountStats {
    /// How often `operation` was asked for.
    #[must_use]
    pub fn count(&self, operation: Operation) -> u64 {
        self.operations.iter().filter(|stats| stats.operation == operation).map(|stats| stats.latency.count()).sum()
    }

    /// The same as a JSON object.
    #[must_use]
    pub fn report(&self) -> Value {
        let operations = self.operations.iter().map(|stats| (stats.operation.name().to_owned(), json!(stats.latency)));
        let mut failures = Map::new();
        for (kind, count) in &self.failures {
            let so_far = failures.entry(errno_name(kind.errno())).or_insert(json!(0));
            *so_far = json!(so_far.as_u64().unwrap_or(0) + count);
        }
        json!({
            "operations": operations.collect::<Map<_, _>>(),
            "failures": failures,
            "read_bytes": self.read_bytes,
            "read_hits": self.read_hits,
            "read_misses": self.read_misses,
            "written_bytes": self.written_bytes,
            "inodes": self.inodes,
        })
    }
}

/// The name of an error that a mount answers with.
pub(crate) fn errno_name(errno: i32) -> &'static str {
    match errno {
        libc::ENOENT => "ENOENT",
        libc::ENOTDIR => "ENOTDIR",
        libc::EISDIR => "EISDIR",
        libc::EACCES => "EACCES",
        libc::ESTALE => "ESTALE",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::EINVAL => "EINVAL",
        libc::EROFS => "EROFS",
        libc::ENOMEM => "ENOMEM",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::ENAMETOOLONG => "ENAMETOOLONG",
        libc::EEXIST => "EEXIST",
        libc::ENOTEMPTY => "ENOTEMPTY",
        libc::ENOSPC => "ENOSPC",
        libc::EFBIG => "EFBIG",
        libc::EPERM => "EPERM",
        libc::EXDEV => "EXDEV",
        libc::EINTR => "EINTR",
        _ => "EIO",
    }
}

/// How requests come from the kernel, as a JSON object.
pub(crate) fn channel_report(served: &Served) -> Value {
    let (major, minor) = served.kernel();
    let mut report = json!({
        "kernel": format!("{major}.{minor}"),
        "malformed": served.malformed(),
        "interrupts": served.interrupts(),
        "passthrough": served.passthrough().is_ok(),
    });
    let Some(carried) = served.carried() else { return report };
    report["mode"] = carried.channel.name().into();
    match carried.channel {
        Channel::Device { threads, own_descriptors } => {
            report["threads"] = threads.into();
            report["own_descriptors"] = own_descriptors.into();
        }
        Channel::Uring(shape) => {
            report["threads"] = shape.threads.into();
            report["queues"] = shape.queues.into();
            report["depth"] = shape.depth.into();
        }
    }
    if let Some(rings) = served.rings() {
        for (name, count) in [
            ("requests", rings.requests),
            ("kept", rings.kept),
            ("submits", rings.submits),
            ("bells", rings.bells),
            ("starved", rings.starved),
        ] {
            report[name] = count.into();
        }
    }
    if let Some(why_not) = carried.why_not {
        report["why_not_uring"] = why_not.into();
    }
    report
}

impl Shard {
    fn zero() -> Self {
        Self {
            latencies: std::array::from_fn(|_| LatencyHistogram::new()),
            failures: [const { Counter::zero() }; KINDS],
            read_bytes: Counter::zero(),
            read_hits: Counter::zero(),
            read_misses: Counter::zero(),
            read_landed: Counter::zero(),
            read_driven: Counter::zero(),
            written_bytes: Counter::zero(),
        }
    }
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Shard::zero()) }
    }

    /// One answered request.
    pub(crate) fn answered(&self, operation: Operation, took: Duration) {
        self.shard().latencies[operation as usize].record(took);
    }

    /// One read that returned `bytes`; `hit`: at once.
    pub(crate) fn read(&self, bytes: usize, hit: bool) {
        let shard = self.shard();
        shard.read_bytes.add(bytes as u64);
        if hit { &shard.read_hits } else { &shard.read_misses }.add(1);
    }

    /// One read landed where the kernel takes the answer from.
    pub(crate) fn read_landed(&self) {
        self.shard().read_landed.add(1);
    }

    /// How many did.
    pub(crate) fn landed(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read_landed.get()).sum()
    }

    /// The thread that took one read had the answer of a worker itself.
    pub(crate) fn read_driven(&self) {
        self.shard().read_driven.add(1);
    }

    /// How often that was so.
    pub(crate) fn driven(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read_driven.get()).sum()
    }

    /// One write of `bytes`.
    pub(crate) fn wrote(&self, bytes: u64) {
        self.shard().written_bytes.add(bytes);
    }

    /// One request that failed.
    pub(crate) fn failed(&self, kind: FailureKind) {
        self.shard().failures[kind as usize % KINDS].add(1);
    }

    pub(crate) fn snapshot(&self, inodes: usize) -> MountStats {
        let sum = |of: &dyn Fn(&Shard) -> u64| self.shards.iter().map(of).sum::<u64>();
        let operations = Operation::ALL.map(|operation| {
            let of = |shard: &Shard| shard.latencies[operation as usize].snapshot();
            let latency = self.shards.iter().map(of).reduce(|sum, latency| sum.and(&latency)).unwrap_or_default();
            OperationStats { operation, latency }
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
            written_bytes: sum(&|shard| shard.written_bytes.get()),
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
        assert_eq!(stats.operations[Operation::Read as usize].latency.mean(), Some(Duration::from_nanos(1000)));
        assert_eq!(stats.failures, [(FailureKind::Internal, 20)]);
    }

    #[test]
    fn a_report_names_operations_and_errors() {
        let counters = Counters::new();
        counters.answered(Operation::Open, Duration::from_micros(5));
        // Both are EIO to a program.
        counters.failed(FailureKind::Internal);
        counters.failed(FailureKind::NotCached);
        counters.failed(FailureKind::VersionChanged);
        let report = counters.snapshot(1).report();
        assert_eq!(report["operations"]["open"]["count"], 1);
        assert_eq!(report["operations"]["read"]["count"], 0);
        assert_eq!(report["failures"], json!({ "EIO": 2, "ESTALE": 1 }));
        assert_eq!(report["inodes"], 1);
    }
}
