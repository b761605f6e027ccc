//! What a service manager hears: a socket of ours stands for systemd's.

mod support;

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::mpsc;

use rustix::process::Signal;
use support::{Fixture, PATIENCE, eventually, forebay, is_mounted, signal};

/// Where a process says how it stands.
struct Listener {
    lines: mpsc::Receiver<String>,
    heard: Vec<String>,
}

impl Listener {
    /// Has `command` tell it, and say every 100 ms that it lives.
    fn of(fixture: &Fixture, command: &mut Command) -> Self {
        let path = fixture.path("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        command.env("NOTIFY_SOCKET", path).env("WATCHDOG_USEC", "200000");
        let (send, lines) = mpsc::channel();
        // All the time, as a manager does: the socket holds few messages, and what finds no room is not said again.
        // It ends when nothing is said any more.
        std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            while let Ok(length) = socket.recv(&mut bytes) {
                let said = String::from_utf8_lossy(&bytes[..length]).into_owned();
                said.lines().for_each(|line| drop(send.send(line.to_owned())));
            }
        });
        Self { lines, heard: Vec::new() }
    }

    /// Waits for this line.
    fn hears(&mut self, line: &str) {
        while !self.heard.iter().any(|heard| heard == line) {
            let next = self.lines.recv_timeout(PATIENCE);
            self.heard.push(next.unwrap_or_else(|error| panic!("no {line}: {error}: {self:?}")));
        }
    }

    fn has_heard(&self, line: &str) -> bool {
        self.heard.iter().any(|heard| heard == line)
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.heard.fmt(f)
    }
}

#[test]
fn a_worker_says_that_it_is_ready_that_it_lives_and_that_it_ends() {
    let mut fixture = Fixture::new();
    let mut command = forebay();
    command.arg("worker").arg("-o").arg(format!("mounts=/=file://{}", fixture.source().display()));
    command.args(["-o", "worker.rpc.bind.host=127.0.0.1", "-o", "worker.rpc.port=0"]);
    command.args(["-o", "worker.memory.size=64MiB"]);
    let mut listener = Listener::of(&fixture, &mut command);
    let worker = fixture.spawn(command);
    listener.hears("READY=1");
    listener.hears("WATCHDOG=1");
    assert!(!listener.has_heard("STOPPING=1"), "{listener:?}");
    signal(fixture.child_pid(worker), Signal::TERM);
    listener.hears("STOPPING=1");
    assert!(fixture.wait(worker).success());
}

#[test]
fn a_mount_is_ready_when_it_answers_and_no_sooner() {
    let mut fixture = Fixture::new();
    let mut command = forebay();
    command.arg("up").arg(fixture.source()).arg(fixture.mountpoint()).args(["--memory", "64MiB", "--foreground"]);
    command.args(["-o", &fixture.log_setting(), "-o", &fixture.staging_setting()]);
    let mut listener = Listener::of(&fixture, &mut command);
    let mount = fixture.spawn(command);
    listener.hears("READY=1");
    fixture.assert_mounted_files_are_right();
    signal(fixture.child_pid(mount), Signal::TERM);
    listener.hears("STOPPING=1");
    assert!(fixture.wait(mount).success());
    eventually("the mount is gone", || !is_mounted(&fixture.mountpoint()));
}

#[test]
fn a_worker_that_waits_for_its_cluster_is_not_ready() {
    let mut fixture = Fixture::new();
    let mut command = forebay();
    // Nobody listens there.
    command.args(["worker", "--etcd", "http://127.0.0.1:1", "-o", "worker.memory.size=64MiB"]);
    command.args(["-o", "worker.rpc.bind.host=127.0.0.1", "-o", "worker.rpc.port=0", "-o", "worker.web.port=0"]);
    let mut listener = Listener::of(&fixture, &mut command);
    let worker = fixture.spawn(command);
    listener.hears("STATUS=Started; waits for the cluster's state");
    listener.hears("WATCHDOG=1");
    signal(fixture.child_pid(worker), Signal::TERM);
    listener.hears("STOPPING=1");
    assert!(!listener.has_heard("READY=1"), "{listener:?}");
    assert!(fixture.wait(worker).success());
}
