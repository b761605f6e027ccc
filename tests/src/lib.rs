//! What the end-to-end tests in `tests/` are made of: the real `forebay` binary in processes of its own, a real S3
//! server, real FUSE mounts.
//!
//! * [`Bucket`]: an S3 server and, in front of it, a proxy that counts and fails on command;
//! * [`Tree`]: the files that a test puts into a bucket, and what they must read as;
//! * [`Setup`]: how to start a [`Worker`] or a [`Mount`], the two guards that end their process, unmount, and, when the
//!   test fails, show the log;
//! * [`Cluster`]: an etcd and a bucket, and how to start the processes of one cluster; [`Coordinator`]: one of them;
//!   [`Fleet`]: workers of it that nobody can reach;
//! * [`Container`]: namespaces that processes run in; [`intrude`]: a process that tries to get at what is another's;
//! * [`S3Endpoint`]: a process that serves S3 clients, who sign with [`S3Keys`]; [`S3Scene`]: one with
//!   all that it serves;
//! * [`Client`]: a program that asks a worker whatever there is to ask; [`member`]: who it may be;
//! * [`ruled_out_by_mode`]: the mode of `security.mode` that processes run in, as `FOREBAY_TEST_SECURITY` says;
//! * [`installed`], [`script`]: programs of others;
//! * [`Opened`]: a file, a directory and a mapping that stay open while a mount goes to another process;
//! * [`passing`]: files that the kernel reads by itself;
//! * [`Tmpfs`], [`HangingDisk`]: disks that are small, fail, or hang;
//! * [`terminal`]: what a program takes for one; [`browser()`], [`page`]: what a browser shows;
//! * [`reading`]: the ways in which programs read: buffered, direct, mapped, many at once;
//! * [`eventually`]: waiting for a condition, with a deadline. Nothing here sleeps to wait for something.
//!
//! Everything lives in temporary directories and on free ports, so tests run beside each other. A test that this
//! machine cannot run says so by [`skipped`] and passes.

mod bench;
mod browser;
mod bucket;
mod client;
mod closing;
mod cluster;
mod container;
mod coordinator;
mod disks;
mod fio;
mod fleet;
mod hanging_disk;
pub mod mapping;
mod mount;
mod network;
mod opened;
pub mod passing;
mod program;
pub mod reading;
mod s3_endpoint;
mod s3_scene;
mod security;
mod setup;
mod starting;
mod stranger;
mod suites;
mod terminal;
mod tree;
mod two_mounts;
mod upload;
mod wait;
mod worker;

pub use bench::{bench, run_bench};
pub use browser::{browser, page};
pub use bucket::{BUCKET, Bucket};
pub use client::{Client, LISTENS_OVER_UCX};
pub use closing::close;
pub use cluster::{BLOCK, Cluster, Running};
pub use container::{Attempt, Container, Outcome, attempts, intrude, intrude_from_container, intruder};
pub use coordinator::Coordinator;
pub use disks::{Tmpfs, is_root};
pub use fio::Fio;
pub use fleet::Fleet;
pub use hanging_disk::HangingDisk;
pub use mount::{Mount, is_mounted};
pub use network::{Host, Network, Relay, TcpSocket, Traffic};
pub use opened::Opened;
pub use program::{
    Finished, UCX_ON_LOOPBACK, beside_tests, ended, finish, forebay, forebay_as, resident, resident_shared, signal,
    wrapped,
};
pub use s3_endpoint::{S3Endpoint, S3Key, S3Keys, credentials};
pub use s3_scene::{S3Scene, assert_s3_refused, at, s3_status};
pub use security::{member, ruled_out_by_mode};
pub use setup::Setup;
pub use stranger::{STRANGER, as_stranger};
pub use suites::{installed, script};
pub use terminal::terminal;
pub use tree::{Tree, TreeFile};
pub use two_mounts::TwoMounts;
pub use upload::upload;
pub use wait::{Ends, eventually, once};
pub use worker::Worker;

/// Says why a test does not run here; `make test` collects these lines, which the test harness does not capture. The test
/// returns right after.
pub fn skipped(reason: &str) {
    forebay_testkit::skipped(reason);
}

/// Whether a mount outlives a crash here, for the kernel hands requests out again; says so if not.
#[must_use]
pub fn can_survive() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    let can = (numbers.next(), numbers.next()) >= (Some(6), Some(9));
    if !can {
        skipped("a mount outlives a crash from Linux 6.9 on");
    }
    can
}

/// Whether the tests that take long are to run; says so if not.
#[must_use]
pub fn is_long_run() -> bool {
    let long = forebay_testkit::is_long_run();
    if !long {
        skipped("needs FOREBAY_TEST_LONG=1");
    }
    long
}

/// Whether there is a libucp; says so if not.
#[must_use]
pub fn has_ucx() -> bool {
    let version =
        finish(forebay(&[]).args(["version", "--json"]), std::time::Duration::from_secs(60)).succeeded().text();
    let version: serde_json::Value = serde_json::from_str(&version).expect("JSON");
    let found = version["ucx"]["version"].is_string();
    if !found {
        skipped(&format!("UCX: {}", version["ucx"]["error"]));
        return false;
    }
    // `1.22.0`. An older one can abort a process with connections over sockets (docs/adr/0008).
    let text = version["ucx"]["version"].as_str().unwrap_or_default();
    let mut numbers = text.split('.').map(|number| number.parse().unwrap_or(0));
    let is_sound = (numbers.next(), numbers.next()) >= (Some(1), Some(18));
    if !is_sound {
        skipped(&format!("UCX {text} can abort a process with connections over sockets"));
    }
    is_sound
}
