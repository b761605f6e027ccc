//! Real parts for tests, the demo and benchmarks. Nothing here is in the product.
//!
//! * [`S3Server`]: a real S3 server (SigV4, ranges, multipart, ListObjectsV2) on loopback, in this process; the binary
//!   `forebay-testkit-s3` is the same in a process of its own;
//! * [`VersityGw`]: the `versitygw` server, where it is installed: an independent implementation of the S3 protocol;
//! * [`FaultProxy`]: stands in front of an S3 server and does, on command, what bad networks and bad servers do;
//! * [`CannedServer`]: answers http with whatever a test hands out;
//! * [`Etcd`]: a real etcd, of one member or several that can be killed, paused and started again;
//! * [`Authority`]: a certificate authority of a test's own;
//! * [`ReservedPort`]: a port that only the servers of a test listen at;
//! * [`DataSet`]: file contents that can be checked at any offset;
//! * [`stop_process`]: a process that hangs, from then on;
//! * [`Telling`]: an allocator that tells of each allocation;
//! * [`Programs`]: this workspace's programs as processes: [`S3Process`], [`WorkerProcess`], [`MountProcess`].
//!
//! Servers run on threads of their own, so they serve under any runtime of the test, or none, and stop when dropped.

mod allocations;
mod authority;
mod canned;
mod data_set;
mod etcd;
mod loopback;
mod port;
mod programs;
mod proxy;
mod s3;
mod stopped;
mod versity;

pub use allocations::Telling;
pub use authority::{Authority, Issued};
pub use canned::{CannedRequest, CannedResponse, CannedServer};
pub use data_set::DataSet;
pub use etcd::{Etcd, EtcdSetup};
pub use port::ReservedPort;
pub use programs::{MountProcess, Programs, S3Process, WorkerProcess};
pub use proxy::{Fault, FaultProxy, ProxyCounts};
pub use s3::{S3Server, S3ServerOptions};
pub use stopped::stop_process;
pub use versity::VersityGw;

/// Says why a test does not run here; `make test` collects these lines. The test harness captures `println!` and
/// `eprintln!`, and shows them of failed tests only: this goes past it.
pub fn skipped(reason: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}

/// Whether this is `make test-long`, on a machine that does nothing else: what takes long runs, and bounds on time are tight.
#[must_use]
pub fn is_long_run() -> bool {
    std::env::var_os("FOREBAY_TEST_LONG").is_some_and(|value| value == "1")
}

/// How long something may take that takes `tight` on a machine which does nothing else, and for ever, or much longer than `loose`, where
/// it is broken: a busy machine stretches every time, and a test that is about the defect must not be about the machine.
#[must_use]
pub fn bound(tight: std::time::Duration, loose: std::time::Duration) -> std::time::Duration {
    if is_long_run() { tight } else { loose }
}
