//! Workers that are registered and cannot be reached, in a process of their own.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::{BLOCK, Cluster, beside_tests, eventually, once, program};

/// The program that registers them.
const FLEET: &str = "forebay-e2e-fleet";
const REGISTERED_WITHIN: Duration = Duration::from_secs(60);
const END_WITHIN: Duration = Duration::from_secs(60);

/// Workers of which the cluster knows and nobody listens. Dropping it kills its process: their records go with their
/// leases.
#[derive(Debug)]
pub struct Fleet {
    names: Vec<String>,
    process: Child,
    _directory: TempDir,
}

impl Cluster {
    /// Registers so many workers, `fleet-1` and so on, at addresses of this machine at which nothing listens.
    ///
    /// # Panics
    /// When they are not registered in time.
    #[must_use]
    #[track_caller]
    pub fn fleet(&self, workers: usize) -> Fleet {
        let directory = tempfile::tempdir().expect("a directory for what the fleet says");
        let (said, log) = (directory.path().join("said"), directory.path().join("log"));
        let names: Vec<String> = (1..=workers).map(|number| format!("fleet-{number}")).collect();
        let mut lines = String::new();
        for (number, name) in names.iter().enumerate() {
            // All of 127.0.0.0/8 is this machine, and port 9 is that of a service that nobody has any more.
            writeln!(lines, "{name} 127.77.{}.{}:9", number / 250, number % 250 + 1).expect("a line");
        }
        let mut process = Command::new(beside_tests(FLEET))
            .args([self.etcd.endpoints()[0].as_str(), "forebay", "default", BLOCK.to_string().as_str()])
            .stdin(Stdio::piped())
            .stdout(File::create(&said).expect("a file for what the fleet says"))
            .stderr(File::create(&log).expect("a file for the log of the fleet"))
            .spawn()
            .expect("starting the fleet");
        let mut input = process.stdin.take().expect("its standard input");
        input.write_all(lines.as_bytes()).expect("the fleet reads who it is");
        drop(input);
        let mut fleet = Fleet { names, process, _directory: directory };
        eventually("the fleet is registered", REGISTERED_WITHIN, || {
            let read = |file| std::fs::read_to_string(file).unwrap_or_default();
            let ended = fleet.process.try_wait().expect("looking after the fleet");
            assert!(ended.is_none(), "the fleet ended with {ended:?}: {}", read(&log));
            read(&said).contains("registered")
        });
        fleet
    }
}

impl Fleet {
    /// The names of its workers.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Has all of them leave the cluster.
    ///
    /// # Panics
    /// When that takes too long.
    #[track_caller]
    pub fn leave(mut self) {
        program::signal(self.process.id(), Signal::TERM);
        let status = once("the fleet ends", END_WITHIN, || self.process.try_wait().expect("waiting for the fleet"));
        assert!(status.success(), "the fleet ended with {status}");
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill().and_then(|()| self.process.wait());
    }
}
