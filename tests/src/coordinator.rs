//! A coordinator in a process of its own, and the commands that ask it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use forebay_types::Role;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::{Finished, Setup, eventually, finish, forebay, once, program, security};

const START_WITHIN: Duration = Duration::from_secs(60);
const END_WITHIN: Duration = Duration::from_secs(30);
/// How long a command may take: a job that it watches, at most.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// How a coordinator says where it listens.
const LISTENING: &str = "coordinator listening on ";

/// A running coordinator. Dropping it kills it.
#[derive(Debug)]
pub struct Coordinator {
    directory: TempDir,
    process: Option<Child>,
    address: SocketAddr,
    /// What commands that ask it are told in their environment: who they are.
    identity: Vec<(String, String)>,
}

impl Coordinator {
    #[track_caller]
    pub(crate) fn start(setup: &Setup) -> Self {
        let directory = tempfile::tempdir().expect("a directory for the coordinator's log");
        let log = std::fs::File::create(directory.path().join("log")).expect("the coordinator's log");
        let child = setup
            .forebay(Role::Coordinator)
            .arg("coordinator")
            .args(&setup.arguments)
            .args(["-o", "coordinator.bind.host=127.0.0.1", "-o", "coordinator.port=0"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let process = Some(child.expect("starting a coordinator"));
        let (address, identity) = (SocketAddr::from(([127, 0, 0, 1], 0)), setup.identity());
        let mut coordinator = Self { directory, process, address, identity };
        coordinator.address = once("the coordinator listens", START_WITHIN, || {
            let log = coordinator.log_text();
            assert!(!program::ended(coordinator.pid()), "the coordinator ended: {log}");
            let address = log.lines().find_map(|line| line.split_once(LISTENING))?.1;
            address.split_whitespace().next()?.parse().ok()
        });
        coordinator
    }

    /// `HOST:PORT`.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// `kill -9`.
    ///
    /// # Panics
    /// When it was ended before.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("the coordinator runs");
        process.kill().and_then(|()| process.wait()).expect("killing the coordinator");
    }

    /// Ends it in good order.
    ///
    /// # Panics
    /// When it does not end in time.
    #[track_caller]
    pub fn terminate(&mut self) {
        program::signal(self.pid(), Signal::TERM);
        let mut process = self.process.take().expect("the coordinator runs");
        let status = once("the coordinator ends", END_WITHIN, || process.try_wait().expect("waiting for it"));
        assert!(status.success(), "the coordinator ended with {status}: {}", self.log_text());
    }

    /// Runs `forebay COMMAND --coordinator ADDRESS`, with the settings of its identity.
    ///
    /// # Panics
    /// When that takes too long.
    #[must_use]
    #[track_caller]
    pub fn ask<T: AsRef<std::ffi::OsStr>>(&self, command: &[T]) -> Finished {
        let mut asking = forebay(&[]);
        // Not all of these commands take settings.
        asking.envs(self.identity.iter().map(|(name, value)| (name, value)));
        finish(asking.args(command).args(["--coordinator", &self.address()]), ANSWER_WITHIN)
    }

    /// `forebay cluster status --json`.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    #[track_caller]
    pub fn status(&self) -> Value {
        let answer = self.ask(&["cluster", "status", "--json"]).succeeded();
        serde_json::from_slice(&answer.stdout).expect("the status as JSON")
    }

    /// What the status says of the worker `name`.
    ///
    /// # Panics
    /// When the coordinator does not answer.
    #[must_use]
    #[track_caller]
    pub fn member(&self, name: &str) -> Option<Value> {
        let status = self.status();
        let members = status["cluster"]["members"].as_array().expect("the members");
        members.iter().find(|member| member["name"] == name).cloned()
    }

    /// Waits until exactly these workers are active.
    ///
    /// # Panics
    /// When that takes too long.
    #[track_caller]
    pub fn wait_for_active(&self, names: &[&str]) {
        eventually(&format!("{names:?} are the active workers"), END_WITHIN, || {
            let status = self.status();
            let members = status["cluster"]["members"].as_array().expect("the members");
            let active = members.iter().filter(|member| member["state"] == "active");
            let mut active: Vec<&str> = active.filter_map(|member| member["name"].as_str()).collect();
            active.sort_unstable();
            active == names
        });
    }

    /// Runs a job to its end: `forebay job KIND --path PATH --submit --watch` and `more`. Gives the exit code and the last
    /// report.
    ///
    /// # Panics
    /// When there is no report.
    #[track_caller]
    pub fn job(&self, kind: &str, path: &str, more: &[&str]) -> (i32, Value) {
        self.job_of(&[&["job", kind, "--path", path, "--submit", "--watch"], more].concat())
    }

    /// Runs a command of `forebay job` that ends with a report. Gives the exit code and the report.
    ///
    /// # Panics
    /// When there is no report.
    #[track_caller]
    pub fn job_of(&self, command: &[&str]) -> (i32, Value) {
        let answer = self.ask(&[command, &["--format", "json"]].concat());
        let text = answer.text();
        let report = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
        let report = report.unwrap_or_else(|| panic!("no report: {text}\n{}", answer.stderr));
        (answer.code.expect("an exit code"), report)
    }

    /// The status and the body of the answer to `GET path`: in plain text, unless `FOREBAY_TEST_SECURITY` names a mode and
    /// the test none.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    pub fn get(&self, path: &str) -> (u16, String) {
        let tcp = TcpStream::connect(self.address).expect("connecting to the coordinator");
        tcp.set_read_timeout(Some(END_WITHIN)).expect("a timeout");
        let plain = !self.identity.is_empty();
        let mut stream: Box<dyn security::Stream> = if plain { Box::new(tcp) } else { security::to_http(tcp) };
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address).expect("asking the coordinator");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the coordinator answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
        (status.expect("a status"), body.to_owned())
    }

    /// What it logged.
    #[must_use]
    pub fn log_text(&self) -> String {
        let log: PathBuf = self.directory.path().join("log");
        std::fs::read_to_string(log).unwrap_or_default()
    }

    fn pid(&self) -> u32 {
        self.process.as_ref().expect("the coordinator runs").id()
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the coordinator at {}\n{}", self.address, self.log_text());
        }
        if let Some(mut process) = self.process.take() {
            // It may have ended by itself.
            let _ = process.kill().and_then(|()| process.wait());
        }
    }
}
