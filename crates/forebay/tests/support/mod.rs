//! The binary as a person runs it, a tree of files to mount, and mounts that are gone when the test ends, however it ends.
#![allow(dead_code, reason = "each test file uses a part of this")]

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// Longer than anything here takes on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The binary, without the settings of whoever runs the tests.
pub(crate) fn forebay() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"FOREBAY_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// What a run of the binary gave.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs the binary to its end.
pub(crate) fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Ran {
    ran(forebay().args(arguments).output().unwrap())
}

pub(crate) fn ran(output: Output) -> Ran {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

/// Runs it; it must succeed. What it printed.
pub(crate) fn succeed<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> String {
    let ran = run(arguments);
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.out
}

/// Waits for a condition, with a deadline.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

pub(crate) fn is_running(pid: u32) -> bool {
    let descriptor = match pidfd_open(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), PidfdFlags::empty()) {
        Ok(descriptor) => descriptor,
        Err(Errno::SRCH) => return false,
        Err(error) => panic!("cannot look at process {pid}: {error}"),
    };
    // A zombie has ended, and its parent has not looked yet; but only when the last of its threads has let go of its files, which
    // `/proc` does not tell.
    let mut poll = [PollFd::new(&descriptor, PollFlags::IN)];
    rustix::event::poll(&mut poll, Some(&Timespec::default())).unwrap() == 0
}

pub(crate) fn is_mounted(mountpoint: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == mountpoint.to_str())
}

/// A directory of files to mount, a place to mount them, and what mounts there.
pub(crate) struct Fixture {
    directory: tempfile::TempDir,
    pids: Vec<u32>,
    children: Vec<Child>,
}

/// More than two blocks.
pub(crate) const BIG: usize = 9_000_000;

impl Fixture {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let fixture = Self { directory, pids: Vec::new(), children: Vec::new() };
        for name in ["source/dir/deep", "mnt"] {
            std::fs::create_dir_all(fixture.path(name)).unwrap();
        }
        fixture.write("small", b"hello\n");
        fixture.write("empty", b"");
        fixture.write("name with spaces", b"one\ntwo\nthree\n");
        fixture.write("dir/größe", b"utf-8");
        fixture.write("dir/deep/big", &bytes(BIG));
        fixture
    }

    /// Where `name` is, below the directory of this fixture.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join(name)
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.path("source")
    }

    pub(crate) fn mountpoint(&self) -> PathBuf {
        self.path("mnt")
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) {
        std::fs::write(self.source().join(name), content).unwrap();
    }

    /// The setting that keeps the log in the fixture.
    pub(crate) fn log_setting(&self) -> String {
        format!("log.file={}", self.path("log").display())
    }

    /// The setting that keeps there what is written, too.
    pub(crate) fn staging_setting(&self) -> String {
        format!("write.staging_dir={}", self.path("staging").display())
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// `forebay up` of the source, with more arguments; what it said. The process ends with the fixture.
    pub(crate) fn up(&mut self, more: &[&str]) -> Ran {
        let mut command = forebay();
        command.arg("up").arg(self.source()).arg(self.mountpoint()).args(["--memory", "64MiB", "--json"]);
        command.args(["-o", &self.log_setting(), "-o", &self.staging_setting()]).args(more);
        self.remember(ran(command.output().unwrap()))
    }

    /// As [`Fixture::up`]; it must succeed. The process.
    pub(crate) fn must_up(&mut self, more: &[&str]) -> u32 {
        let ran = self.up(more);
        assert_eq!(ran.code, 0, "{ran:?}\n{}", self.log());
        *self.pids.last().unwrap()
    }

    /// `forebay mount` of workers; it must succeed. The process.
    pub(crate) fn must_mount(&mut self, workers: &str) -> u32 {
        self.must_mount_with(workers, &[])
    }

    /// The same, with more options.
    pub(crate) fn must_mount_with(&mut self, workers: &str, more: &[&str]) -> u32 {
        let mut command = forebay();
        command.arg("mount").arg(self.mountpoint()).args(["--workers", workers, "--json"]);
        command.args(["-o", &self.log_setting(), "-o", &self.staging_setting()]).args(more);
        let ran = self.remember(ran(command.output().unwrap()));
        assert_eq!(ran.code, 0, "{ran:?}\n{}", self.log());
        *self.pids.last().unwrap()
    }

    /// Ends the process of a mount with the fixture.
    pub(crate) fn remember(&mut self, ran: Ran) -> Ran {
        if let Ok(summary) = serde_json::from_str::<serde_json::Value>(&ran.out) {
            self.pids.extend(summary["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()));
        }
        ran
    }

    /// Starts a command that stays in the foreground, and ends with the fixture. Its number among those.
    pub(crate) fn spawn(&mut self, mut command: Command) -> usize {
        self.children.push(command.stdout(Stdio::null()).spawn().unwrap());
        self.children.len() - 1
    }

    pub(crate) fn child_pid(&self, child: usize) -> u32 {
        self.children[child].id()
    }

    /// Waits for the end of a child.
    pub(crate) fn wait(&mut self, child: usize) -> ExitStatus {
        let mut status = None;
        eventually("the end of a process", || {
            status = self.children[child].try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// A worker of the source, on a free port. Its number among the children, and its address.
    pub(crate) fn worker(&mut self, more: &[&str]) -> (usize, String) {
        let mut command = forebay();
        command.arg("worker").arg("-o").arg(format!("mounts=/=file://{}", self.source().display()));
        command.args(["-o", "worker.rpc.bind.host=127.0.0.1", "-o", "worker.rpc.port=0"]);
        command.args(["-o", "worker.memory.size=64MiB"]).args(more);
        command.stderr(Stdio::piped());
        let child = self.spawn(command);
        let mut lines = BufReader::new(self.children[child].stderr.take().unwrap()).lines().map_while(Result::ok);
        let address = lines
            .by_ref()
            .find_map(|line| line.split_once("worker listening on ").map(|(_, address)| address.trim().to_owned()))
            .expect("the worker says where it listens");
        // A pipe that is not read blocks the writer.
        std::thread::spawn(move || lines.for_each(drop));
        (child, address)
    }

    pub(crate) fn assert_mounted_files_are_right(&self) {
        let mounted = |name: &str| std::fs::read(self.mountpoint().join(name)).unwrap();
        assert_eq!(mounted("small"), b"hello\n");
        assert_eq!(mounted("empty"), b"");
        assert_eq!(mounted("name with spaces"), b"one\ntwo\nthree\n");
        assert_eq!(mounted("dir/größe"), b"utf-8");
        assert!(mounted("dir/deep/big") == bytes(BIG));
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // As a person would, so that nothing stays in the run directory; then by force.
        if is_mounted(&self.mountpoint()) {
            let _ = forebay().args(["umount", "--lazy"]).arg(self.mountpoint()).output();
        }
        let _ = rustix::mount::unmount(self.mountpoint(), rustix::mount::UnmountFlags::DETACH);
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        for pid in self.pids.drain(..) {
            if is_running(pid) && is_ours(pid) {
                let _ = kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL);
            }
        }
    }
}

/// The number may be another process's by now.
fn is_ours(pid: u32) -> bool {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    exe.starts_with(Path::new(env!("CARGO_BIN_EXE_forebay")).parent().unwrap())
}

/// Bytes in which nothing repeats soon.
pub(crate) fn bytes(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}
