//! A worker in a process of its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use forebay_testkit::ReservedPort;
use forebay_types::Role;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::{Finished, Setup, UCX_ON_LOOPBACK, eventually, finish, forebay, once, program};

const START_WITHIN: Duration = Duration::from_secs(60);
const END_WITHIN: Duration = Duration::from_secs(30);
/// How a worker says where it listens.
const LISTENING: &str = "worker listening on ";

/// A running worker. Dropping it kills it.
#[derive(Debug)]
pub struct Worker {
    setup: Setup,
    directory: TempDir,
    process: Option<Child>,
    /// No other process gets it while the worker is away.
    port: ReservedPort,
    address: SocketAddr,
    starts: u32,
}

impl Worker {
    #[track_caller]
    pub(crate) fn start(setup: Setup, watch: impl FnMut(&str)) -> Self {
        let directory = tempfile::tempdir().expect("a directory for the worker's log");
        let port = ReservedPort::new().expect("a port");
        let address = port.address();
        let mut worker = Self { setup, directory, process: None, port, address, starts: 0 };
        worker.start_watched(watch);
        worker
    }

    /// Starts it at the address that it had.
    ///
    /// # Panics
    /// When it does not listen in time.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.start_watched(|_| ());
    }

    /// The same; `watch` sees the log meanwhile.
    #[track_caller]
    fn start_watched(&mut self, mut watch: impl FnMut(&str)) {
        self.starts += 1;
        let log = std::fs::File::create(self.log()).expect("the worker's log");
        let child = self
            .setup
            .forebay(Role::Worker)
            .envs([UCX_ON_LOOPBACK])
            .arg("worker")
            .args(&self.setup.arguments)
            .args(["-o", &format!("worker.rpc.port={}", self.port.address().port())])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.process = Some(child.expect("starting a worker"));
        self.address = once("the worker listens", START_WITHIN, || {
            let log = std::fs::read_to_string(self.log()).unwrap_or_default();
            assert!(!program::ended(self.pid()), "the worker ended: {log}");
            watch(&log);
            let address = log.lines().find_map(|line| line.split_once(LISTENING))?.1;
            address.split_whitespace().next()?.parse().ok()
        });
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of its process.
    ///
    /// # Panics
    /// When it was ended.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the worker runs").id()
    }

    /// `kill -9`.
    ///
    /// # Panics
    /// When it was ended before.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("the worker runs");
        process.kill().and_then(|()| process.wait()).expect("killing the worker");
    }

    /// Ends it in good order.
    ///
    /// # Panics
    /// When it does not end in time.
    #[track_caller]
    pub fn terminate(&mut self) {
        program::signal(self.pid(), Signal::TERM);
        let mut process = self.process.take().expect("the worker runs");
        let status = once("the worker ends", END_WITHIN, || process.try_wait().expect("waiting for the worker"));
        assert!(status.success(), "the worker ended with {status}: {}", self.log_text());
    }

    /// Stops it where it is: connections stay open, and requests get no answer.
    ///
    /// # Panics
    /// When it does not stop.
    #[track_caller]
    pub fn freeze(&self) {
        forebay_testkit::stop_process(self.pid()).expect("the worker stops");
    }

    /// Lets it go on after [`Worker::freeze`].
    pub fn thaw(&self) {
        program::signal(self.pid(), Signal::CONT);
    }

    /// Its counters. A worker that has no processor for a moment may not answer as fast as a command expects it.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    #[track_caller]
    pub fn stats(&self) -> Value {
        let answer = once("it tells its counters", END_WITHIN, || {
            let answer = self.ask(&["stats", "--all", "--json"]);
            (answer.code == Some(0)).then_some(answer)
        });
        serde_json::from_slice(&answer.stdout).expect("the counters as JSON")
    }

    /// One of its counters, by its place, as in `/worker/bytes_memory`.
    ///
    /// # Panics
    /// When it does not answer, or there is no such counter.
    #[must_use]
    #[track_caller]
    pub fn counter(&self, pointer: &str) -> u64 {
        let stats = self.stats();
        stats.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {pointer} in {stats}"))
    }

    /// Bytes that it served, wherever they came from.
    ///
    /// # Panics
    /// As [`Worker::counter`].
    #[must_use]
    #[track_caller]
    pub fn bytes_served(&self) -> u64 {
        let stats = self.stats();
        ["bytes_memory", "bytes_disk", "bytes_origin"].iter().filter_map(|name| stats["worker"][name].as_u64()).sum()
    }

    /// Waits until its first disk holds `bytes`, and nothing is left to be written.
    ///
    /// # Panics
    /// When that takes too long.
    #[track_caller]
    pub fn wait_for_disk(&self, bytes: u64) {
        let mut stats = Value::Null;
        eventually(&format!("{bytes} bytes are on disk"), END_WITHIN, || {
            stats = self.stats();
            stats["store"]["disk_queue_bytes"] == 0
                && stats["store"]["disks"][0]["run_bytes"].as_u64().is_some_and(|held| held >= bytes)
        });
    }

    /// Waits until it knows this path of the namespace.
    ///
    /// # Panics
    /// When that takes too long.
    #[track_caller]
    pub fn wait_for(&self, path: &str) {
        eventually(&format!("the worker shows {path}"), END_WITHIN, || self.ask(&["fs", "stat", path]).code == Some(0));
    }

    /// Runs `forebay COMMAND --workers ADDRESS`, with the worker's block size and the settings of its identity: it answers
    /// no client that has another size, or proves less.
    ///
    /// # Panics
    /// When that takes too long.
    #[must_use]
    #[track_caller]
    pub fn ask(&self, command: &[&str]) -> Finished {
        let mut asking = forebay(&[]);
        asking.envs(self.setup.identity()).args(command).args(["--workers", &self.address.to_string()]);
        if let Some(setting) = self.setup.arguments.iter().rfind(|setting| setting.starts_with("block.size=")) {
            asking.args(["-o", setting]);
        }
        finish(&mut asking, END_WITHIN)
    }

    /// Where its latest process logs.
    fn log(&self) -> PathBuf {
        self.directory.path().join(format!("worker-{}.log", self.starts))
    }

    /// What its latest process logged.
    #[must_use]
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the worker at {}\n{}", self.address, self.log_text());
        }
        if let Some(mut process) = self.process.take() {
            // It may have ended by itself.
            let _ = process.kill().and_then(|()| process.wait());
        }
    }
}
