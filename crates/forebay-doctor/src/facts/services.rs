//! What etcd and coordinators answered, and the mounts of this machine.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a member of etcd answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdProbe {
    /// Its URL.
    pub endpoint: String,
    /// How long a read that the whole cluster agrees on took, in microseconds: it takes a leader.
    pub took_us: u64,
    /// Its version, where it tells.
    pub version: Option<String>,
    /// The leader that it knows, by etcd's number; where it tells.
    pub leader: Option<String>,
    /// Why there was no answer.
    pub error: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// What a coordinator answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoordinatorProbe {
    /// Its address.
    pub address: String,
    /// How long its answer took, in microseconds.
    pub took_us: u64,
    /// The release that it runs.
    pub version: Option<String>,
    /// The coordinator that runs jobs, as it knows.
    pub leader: Option<String>,
    /// Why it does not reach the cluster's state, if it does not.
    pub without_state: Option<String>,
    /// What it says that a person should know.
    pub warnings: Vec<String>,
    /// Why there was no answer.
    pub error: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// A mount of Forebay on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountProbe {
    /// Where it is mounted.
    pub path: String,
    /// The process that serves it.
    pub process: Option<u32>,
    /// Why it does not answer.
    pub error: Option<String>,
    /// How often a reader waited for a buffer.
    pub buffer_waits: u64,
    /// How often one waited in vain.
    pub buffer_failures: u64,
    /// How often it fell back from RDMA to TCP.
    pub fell_back: u64,
    /// Workers to which RDMA is down now, in part or wholly, and that are read all the same: over other cards, or TCP.
    pub rdma_down: Vec<String>,
    /// Workers to which RDMA is down now and TCP is not allowed, each with the reason: reads fail.
    #[serde(default)]
    pub unreachable: Vec<String>,
    /// What brings it the kernel's requests, for people.
    #[serde(default)]
    pub io: Option<String>,
    /// Workers on this machine whose memory it sees, or should.
    #[serde(default)]
    pub windows: Vec<WindowProbe>,
    /// Disks of its process that hang, and are not used.
    #[serde(default)]
    pub disks_out: Vec<String>,
}

/// A worker on the machine of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowProbe {
    /// Its address.
    pub worker: String,
    /// Why its memory is not seen, if it is not.
    pub why: Option<String>,
}

/// The whole microseconds of a time.
#[must_use]
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
