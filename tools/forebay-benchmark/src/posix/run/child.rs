//! A program that is run to its end, under a deadline, by its number.
//!
//! * It gets a process group of its own, so that a Ctrl-C on the terminal ends us first, and it then by us.
//! * fio's jobs are sessions of their own (`setsid`), which a signal to its group does not reach. A polite signal to fio ends
//!   them all; its descendants are looked up before, waited for, and killed each by its number if they do not end.
//! * When we are killed ourselves, the kernel asks it to end. (It does when the thread ends that started it: that thread waits
//!   for it.)
//! * A reader in a file system that does not answer cannot be killed. That is told, with its number.
//! * What it leaves running may have its output open for hours: that is not waited for.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::stop::Stop;

/// How often it is looked whether a stop was asked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long it may take to end when it is asked to. fio writes its report then, and tells its servers.
const END_WITHIN: Duration = Duration::from_secs(5);
/// How long the kernel may take to end what was killed.
const DIE_WITHIN: Duration = Duration::from_secs(5);
/// How long what it said last is read after it has ended.
const LISTEN_ON: Duration = Duration::from_secs(2);
/// Bytes that are read at a time.
const CHUNK: usize = 64 << 10;
/// Bytes of its output that are kept; the rest is read and dropped.
const MAX_OUTPUT: usize = 64 << 20;

/// How it ended.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    /// How long it ran.
    pub(super) took: Duration,
}

/// Why it did not come to its own end.
#[derive(Debug)]
pub(super) enum ChildError {
    Start(io::Error),
    TimedOut,
    Interrupted,
    /// This process is still there.
    Stuck(u32),
}

impl fmt::Display for ChildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(error) => write!(f, "it cannot be started: {error}"),
            Self::TimedOut => f.write_str("it did not answer in time"),
            Self::Interrupted => f.write_str("it was interrupted"),
            Self::Stuck(pid) => write!(f, "process {pid} does not end"),
        }
    }
}

/// Runs `command` until it ends, `within` has passed, or `stop` is asked.
pub(super) fn run(command: &mut Command, within: Duration, stop: &Stop) -> Result<Ended, ChildError> {
    run_watched(command, within, stop, &mut || ())
}

/// The same; meanwhile `watch` is called every [`LOOK_EVERY`], and at the beginning and the end.
pub(super) fn run_watched(
    command: &mut Command,
    within: Duration,
    stop: &Stop,
    watch: &mut dyn FnMut(),
) -> Result<Ended, ChildError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let started = Instant::now();
    let mut child = Running::start(command).map_err(ChildError::Start)?;
    let stdout = child.child.stdout.take().map(Collected::start);
    let stderr = child.child.stderr.take().map(Collected::start);
    let said = |collected: Option<Collected>| collected.map(Collected::end).unwrap_or_default();
    let reason = loop {
        watch();
        let left = within.saturating_sub(started.elapsed());
        match child.wait(left.min(LOOK_EVERY)) {
            Ok(Some(status)) => {
                watch();
                let took = started.elapsed();
                return Ok(Ended { status, stdout: said(stdout), stderr: said(stderr), took });
            }
            Ok(None) if stop.is_asked() => break ChildError::Interrupted,
            Ok(None) if left.is_zero() => break ChildError::TimedOut,
            Ok(None) => {}
            Err(error) => break ChildError::Start(error),
        }
    };
    // What it says while it ends is read as well: it may wait for that.
    let stuck = child.end();
    let _ = (said(stdout), said(stderr));
    match stuck {
        Some(pid) => Err(ChildError::Stuck(pid)),
        None => Err(reason),
    }
}

/// A child that is ended when it is dropped.
pub(super) struct Running {
    child: Child,
    descriptor: OwnedFd,
    ended: bool,
}

impl Running {
    pub(super) fn start(command: &mut Command) -> io::Result<Self> {
        let die_with_us = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?);
        // SAFETY: runs between fork and exec, where only what is safe in a signal handler may be called: a single prctl(2), which
        // neither allocates nor locks.
        unsafe { command.pre_exec(die_with_us) };
        let mut child = command.spawn()?;
        // It is not waited for yet, so the number is its own.
        match rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(descriptor) => Ok(Self { child, descriptor, ended: false }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error.into())
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end, at most so long.
    pub(super) fn wait(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let limit = Timespec::try_from(limit).unwrap_or_default();
        let mut descriptors = [PollFd::new(&self.descriptor, PollFlags::IN)];
        match rustix::event::poll(&mut descriptors, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let status = self.child.try_wait()?;
        self.ended |= status.is_some();
        Ok(status)
    }

    /// Ends it and what it started: politely, then not. A process that does not end, if there is one.
    pub(super) fn end(&mut self) -> Option<u32> {
        self.end_after(END_WITHIN)
    }

    fn end_after(&mut self, politely: Duration) -> Option<u32> {
        if self.ended {
            return None;
        }
        // Before it ends: afterwards it is unknown whose they were.
        let descendants = descendants(self.pid());
        let pid = Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, Signal::TERM);
        let deadline = Instant::now() + politely;
        let all_end = |deadline: Instant| descendants.iter().find(|descendant| !descendant.ends_before(deadline));
        if self.ends_within(politely) && all_end(deadline).is_none() {
            return None;
        }
        if !self.ended {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        for descendant in &descendants {
            let _ = rustix::process::pidfd_send_signal(&descendant.descriptor, Signal::KILL);
        }
        if !self.ends_within(DIE_WITHIN) {
            return Some(self.pid());
        }
        all_end(Instant::now() + DIE_WITHIN).map(|descendant| descendant.pid)
    }

    fn ends_within(&mut self, limit: Duration) -> bool {
        if self.ended {
            return true;
        }
        let deadline = Instant::now() + limit;
        loop {
            match self.wait(deadline.saturating_duration_since(Instant::now())) {
                Ok(Some(_)) => return true,
                Ok(None) if Instant::now() < deadline => {}
                _ => return false,
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

struct Descendant {
    pid: u32,
    descriptor: OwnedFd,
}

impl Descendant {
    fn ends_before(&self, deadline: Instant) -> bool {
        loop {
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).unwrap_or_default();
            let mut descriptors = [PollFd::new(&self.descriptor, PollFlags::IN)];
            match rustix::event::poll(&mut descriptors, Some(&left)) {
                Ok(ready) => return ready > 0,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}

/// The processes that `pid` started, and those that these did.
fn descendants(pid: u32) -> Vec<Descendant> {
    let mut found = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for child in children(parent) {
            parents.push(child);
            let descriptor = i32::try_from(child).ok().and_then(Pid::from_raw);
            let descriptor = descriptor.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
            // A number may be another process's by the time it is opened: then that one is no child of this parent.
            if let Some(descriptor) = descriptor.filter(|_| children(parent).contains(&child)) {
                found.push(Descendant { pid: child, descriptor });
            }
        }
    }
    found
}

fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let listed = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    listed.flat_map(|line| line.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// What comes out of a pipe, until its end or until no more of it is needed.
struct Collected {
    reader: JoinHandle<Vec<u8>>,
    enough: Arc<AtomicBool>,
}

impl Collected {
    fn start(pipe: impl Read + AsFd + Send + 'static) -> Self {
        let enough = Arc::new(AtomicBool::new(false));
        let reader = std::thread::spawn({
            let enough = Arc::clone(&enough);
            move || collect(pipe, &enough)
        });
        Self { reader, enough }
    }

    /// All that was said until now.
    fn end(self) -> Vec<u8> {
        self.enough.store(true, Ordering::Relaxed);
        self.reader.join().unwrap_or_default()
    }
}

/// Reads until the end; once it is enough, until there is nothing more for the moment, and for [`LISTEN_ON`] at most.
fn collect(mut pipe: impl Read + AsFd, enough: &AtomicBool) -> Vec<u8> {
    let look_every = Timespec::try_from(LOOK_EVERY).unwrap_or_default();
    let (mut bytes, mut chunk, mut until) = (Vec::new(), vec![0; CHUNK], None);
    loop {
        let is_enough = enough.load(Ordering::Relaxed);
        if is_enough && Instant::now() > *until.get_or_insert_with(|| Instant::now() + LISTEN_ON) {
            return bytes;
        }
        match rustix::event::poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&look_every)) {
            Ok(0) if is_enough => return bytes,
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return bytes,
        }
        match pipe.read(&mut chunk) {
            // Whatever came before a broken pipe is all there is.
            Ok(0) | Err(_) => return bytes,
            Ok(count) => bytes.extend(chunk.iter().take(count.min(MAX_OUTPUT - bytes.len()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_it_says_and_how_it_ends_is_kept() {
        let ended = run(&mut shell("echo out; echo err >&2; exit 3"), LONG, &Stop::default()).ok().unwrap();
        assert_eq!(
            (ended.status.code(), &ended.stdout[..], &ended.stderr[..]),
            (Some(3), &b"out\n"[..], &b"err\n"[..])
        );
        assert!(ended.took < LONG);
        let missing = run(&mut Command::new("/no/such/program"), LONG, &Stop::default());
        assert!(matches!(missing, Err(ChildError::Start(_))));
    }

    #[test]
    fn a_deadline_and_a_stop_end_it() {
        let started = Instant::now();
        let late = run(&mut shell("exec sleep 600"), Duration::from_millis(50), &Stop::default());
        assert!(matches!(late, Err(ChildError::TimedOut)));
        let stop = Stop::default();
        stop.ask();
        assert!(matches!(run(&mut shell("exec sleep 600"), LONG, &stop), Err(ChildError::Interrupted)));
        assert!(started.elapsed() < END_WITHIN, "it ends when it is asked politely");
    }

    #[test]
    fn what_it_leaves_in_the_background_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        // It has our pipes, says something now and then, and would for longer than the test may take.
        let script = format!("(while :; do echo on; sleep 0.2; done) & echo $! >{}; echo done", file.display());
        let started = Instant::now();
        let ended = run(&mut shell(&script), LONG, &Stop::default()).ok().unwrap();
        let took = started.elapsed();
        let left: u32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        let left = Pid::from_raw(left.cast_signed()).unwrap();
        rustix::process::kill_process(left, Signal::KILL).unwrap();
        assert!(String::from_utf8_lossy(&ended.stdout).contains("done\n"));
        assert!(took < LISTEN_ON * 2, "{took:?}");
    }

    #[test]
    fn what_does_not_listen_is_killed_with_what_it_started_in_sessions_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let script = format!(
            "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ > {0}.new; mv {0}.new {0}; while :; do sleep 1; done' & \
             while :; do sleep 1; done",
            file.display()
        );
        let mut command = shell(&script);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut running = Running::start(&mut command).unwrap();
        let deadline = Instant::now() + LONG;
        while !file.exists() {
            assert!(Instant::now() < deadline, "it starts");
            assert!(running.wait(Duration::from_millis(10)).unwrap().is_none());
        }
        let inner: u32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        let found: Vec<u32> = descendants(running.pid()).iter().map(|descendant| descendant.pid).collect();
        assert!(found.contains(&inner), "{inner} is not in {found:?}");
        assert_eq!(running.end_after(Duration::from_millis(50)), None);
        // A child of a child is buried by init, or stays as a corpse where that does not.
        let state = std::fs::read_to_string(format!("/proc/{inner}/stat")).unwrap_or_default();
        let state = state.rsplit_once(')').map_or("", |(_, fields)| fields.trim());
        assert!(state.is_empty() || state.starts_with(['Z', 'X']), "{state}");
    }
}
