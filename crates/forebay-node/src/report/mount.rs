//! What a mount counts: the requests of the kernel, the files that it keeps whole, and what it writes.

use std::collections::BTreeMap;
use std::fmt;

use forebay_metrics::LatencySnapshot;
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Fuse {
    pub operations: BTreeMap<String, LatencySnapshot>,
    pub failures: BTreeMap<String, u64>,
    pub read_bytes: u64,
    pub read_hits: u64,
    pub read_misses: u64,
    pub written_bytes: u64,
    pub inodes: u64,
    /// Hand-overs whose new process did not serve in time.
    pub taken_back: u64,
    /// How requests come from the kernel.
    pub io: Option<FuseIo>,
}

/// Of rings only where there are some: their counters stay 0 over `/dev/fuse`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct FuseIo {
    /// `device` or `uring`; empty until that is settled.
    pub mode: String,
    pub threads: u64,
    pub queues: u64,
    /// Entries of a queue.
    pub depth: u64,
    /// Why requests do not come over io_uring although that was wanted.
    pub why_not_uring: Option<String>,
    pub passthrough: bool,
    pub requests: u64,
    pub kept: u64,
    pub submits: u64,
    pub bells: u64,
    pub starved: u64,
    pub malformed: u64,
    pub interrupts: u64,
}

/// For people.
impl fmt::Display for FuseIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, threads, queues, depth, why_not_uring, .. } = self;
        match &**mode {
            "uring" => write!(f, "over io_uring: {threads} threads, {queues} queues of {depth} requests"),
            _ => write!(f, "over /dev/fuse: {threads} threads"),
        }?;
        why_not_uring.as_ref().map_or(Ok(()), |why| write!(f, "; not over io_uring: {why}"))
    }
}

/// What a mount keeps whole for the kernel to read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Local {
    pub on: bool,
    pub capacity_bytes: u64,
    pub huge_bytes: u64,
    /// By their state.
    pub files: BTreeMap<String, u64>,
    /// By what they are used for.
    pub bytes: BTreeMap<String, u64>,
    /// Opens for reading, by what was found.
    pub opens: BTreeMap<String, u64>,
    /// Handles for reading, by what serves them.
    pub handles: BTreeMap<String, u64>,
    /// Files that were not taken, by the reason.
    pub refused: BTreeMap<String, u64>,
    pub refused_by_kernel: u64,
    pub splits: u64,
    pub fills: LocalFills,
    pub evictions: u64,
    pub corrupt_sectors: u64,
    pub checked_bytes: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LocalFills {
    pub done: u64,
    pub changed: u64,
    pub cancelled: u64,
    pub no_room: u64,
    pub corrupt: u64,
    pub failed: u64,
    pub bytes: u64,
    pub seconds_sum: f64,
}

/// What a mount writes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Staging {
    pub drafts: Drafts,
    pub space: StagingSpace,
    pub uploads: Uploads,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Drafts {
    pub open: u64,
    pub dirty: u64,
    pub failed: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StagingSpace {
    pub size: u64,
    pub used: u64,
    pub failed: u64,
    pub writers_waiting: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Uploads {
    pub bytes_in_flight: u64,
    pub completed: u64,
    pub aborted: u64,
    pub puts: u64,
    pub parts: u64,
    pub bytes: u64,
    pub failures: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_mount_is_served_is_told_with_what_keeps_io_uring_away() {
        let rings = FuseIo { mode: "uring".into(), threads: 2, queues: 8, depth: 64, ..FuseIo::default() };
        assert_eq!(rings.to_string(), "over io_uring: 2 threads, 8 queues of 64 requests");
        let device = FuseIo { mode: "device".into(), threads: 4, ..FuseIo::default() };
        assert_eq!(device.to_string(), "over /dev/fuse: 4 threads");
        let instead = FuseIo { why_not_uring: Some("it is switched off".into()), ..device };
        assert_eq!(instead.to_string(), "over /dev/fuse: 4 threads; not over io_uring: it is switched off");
    }
}
