//! Processes of a matrix, which end when they are dropped.
//!
//! Each has a process group of its own: a Ctrl-C reaches this program alone, which ends them in order, by their numbers. [`Children`]
//! knows which are left, for when a reader hangs in a mount that does not answer. If this program is killed, the kernel ends them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay_locks::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, pidfd_send_signal};

/// How long a process may take to end in good order; longer than mounts wait for readers.
pub(super) const END_WITHIN: Duration = Duration::from_secs(15);

/// Processes that were started and have not ended.
#[derive(Debug, Default)]
pub(super) struct Children {
    running: Mutex<BTreeMap<u32, Arc<OwnedFd>>>,
}

impl Children {
    /// Kills them: reads of their mounts then fail, whatever they waited for.
    pub(super) fn kill(&self) {
        for process in self.running.lock().values() {
            // One that has ended meanwhile.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

/// A process, which ends when it is dropped.
pub(super) struct Process {
    child: Child,
    /// Names the process for as long as this lives, whatever becomes of its number.
    descriptor: Arc<OwnedFd>,
    children: Arc<Children>,
}

impl Process {
    /// Starts it. It ends with the thread that calls this, at the latest.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(command: &mut Command, children: &Arc<Children>) -> anyhow::Result<Self> {
        let us = getpid();
        let end_with_us = move || {
            // Of a program with capabilities of its own the kernel forgets this. Then the next run finds what is left.
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
            // We may have been killed before that.
            if getppid() == Some(us) { Ok(()) } else { Err(Errno::SRCH.into()) }
        };
        // SAFETY: runs between fork and exec, where only what is safe in a signal handler may be called: a prctl(2) and a getppid(2),
        // which neither allocate nor lock.
        unsafe { command.pre_exec(end_with_us) };
        let mut child = command.process_group(0).spawn()?;
        // It is not waited for yet, so the number is its own.
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(descriptor) => {
                let descriptor = Arc::new(descriptor);
                children.running.lock().insert(child.id(), Arc::clone(&descriptor));
                Ok(Self { child, descriptor, children: Arc::clone(children) })
            }
            Err(error) => {
                let _ = child.kill().and_then(|()| child.wait());
                Err(std::io::Error::from(error)).context("cannot hold a process")
            }
        }
    }

    /// Its number.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended by itself.
    ///
    /// # Errors
    /// When the system does not say.
    pub(super) fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait().context("cannot wait for a process")?.is_some())
    }

    /// Waits until it has ended. Whether it has.
    fn ends_within(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(left) = Timespec::try_from(left) else { return false };
            match rustix::event::poll(&mut [PollFd::new(&self.descriptor, PollFlags::IN)], Some(&left)) {
                Ok(ready) => return ready > 0,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = pidfd_send_signal(&self.descriptor, Signal::TERM);
        if !self.ends_within(END_WITHIN) {
            let _ = pidfd_send_signal(&self.descriptor, Signal::KILL);
        }
        // Ours to bury; one that does not die, in a system call that does not end, is left to the kernel.
        if self.ends_within(END_WITHIN) {
            let _ = self.child.wait();
        }
        self.children.running.lock().remove(&self.child.id());
    }
}
