//! Which processes write through a handle.
//!
//! The kernel tells of each `close(2)` of a descriptor, also when it is not the program's own: a child that runs another program
//! closes what it inherited. A file that is half written must not be uploaded because of that. So a close counts when the process
//! has opened the file or has written through the handle.

use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use forebay_locks::Mutex;

/// The processes that opened a handle for writing or have written through it.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    /// The thread that wrote last: most of the time it is the one that writes next.
    last: AtomicU32,
    processes: Mutex<Vec<u32>>,
    /// The processes of some threads could not be found out, or are too many to be remembered: any process may be a
    /// writer.
    anybody: AtomicBool,
}

/// Processes that are remembered of one handle.
const MAX_PROCESSES: usize = 64;

impl Writers {
    /// The thread `thread` opens the file.
    pub(crate) fn of(thread: u32) -> Self {
        let writers = Self::default();
        writers.note(thread);
        writers
    }

    /// Those of a handle that the process before this one had, in this PID namespace. None: it may be any.
    pub(crate) fn known(processes: Vec<u32>) -> Self {
        let anybody = AtomicBool::new(processes.is_empty());
        Self { processes: Mutex::new(processes), anybody, ..Self::default() }
    }

    /// The processes, for the next process; none where it may be any.
    pub(crate) fn handed(&self) -> Vec<u32> {
        let is_anybody = self.anybody.load(Ordering::Relaxed);
        if is_anybody { Vec::new() } else { self.processes.lock().clone() }
    }

    /// The thread `thread` writes.
    pub(crate) fn note(&self, thread: u32) {
        if self.last.load(Ordering::Relaxed) == thread && thread != 0 {
            return;
        }
        let mut processes = self.processes.lock();
        match process_of(thread) {
            Some(process) if processes.contains(&process) => {}
            Some(process) if processes.len() < MAX_PROCESSES => processes.push(process),
            _ => self.anybody.store(true, Ordering::Relaxed),
        }
        self.last.store(thread, Ordering::Relaxed);
    }

    /// Whether a close by this thread is one by a writer. It counts as one where its process cannot be found out: in
    /// another PID namespace.
    pub(crate) fn include(&self, thread: u32) -> bool {
        let is_known = |process| self.processes.lock().contains(&process);
        self.anybody.load(Ordering::Relaxed) || process_of(thread).is_none_or(is_known)
    }
}

/// The PID namespace of this process: the number of its file.
pub(crate) fn pid_namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|namespace| namespace.ino())
}

/// The process that a thread belongs to; `None` when there is no such thread, or none that can be seen.
fn process_of(thread: u32) -> Option<u32> {
    if thread == 0 {
        return None;
    }
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_process_are_one_writer_and_a_child_is_none() {
        let me = std::process::id();
        let writers = Writers::of(me);
        let other = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        assert!(writers.include(me));
        assert!(writers.include(other.join().unwrap()), "a thread that is gone cannot be told");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!writers.include(child.id()));
        writers.note(child.id());
        assert!(writers.include(child.id()), "it has written");
        let next = Writers::known(vec![me]);
        assert!(next.include(me) && !next.include(child.id()));
        assert_eq!((next.handed(), writers.handed()), (vec![me], vec![me, child.id()]));
        assert!(Writers::known(Vec::new()).include(child.id()), "it may be any");
        writers.note(0);
        assert!(writers.handed().is_empty() && pid_namespace().is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(writers.include(0), "of another namespace");
    }
}
