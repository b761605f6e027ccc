//! Which processes write through a handle.
//!
//! The kernel tells of each `close(2)` of a descriptor, also when it is not the program's own: a child that runs another program
//! closes what it inherited. A file that is half written must not be uploaded because of that. So a close counts when the process
//! has opened the file or has written through the handle.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

/// The processes that opened a handle for writing or have written through it.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    /// The thread that wrote last: most of the time it is the one that writes next.
    last: AtomicU32,
    processes: Mutex<Vec<u32>>,
}

impl Writers {
    /// The thread `thread` opens the file.
    pub(crate) fn of(thread: u32) -> Self {
        let writers = Self::default();
        writers.note(thread);
        writers
    }

    /// The thread `thread` writes.
    pub(crate) fn note(&self, thread: u32) {
        if thread == 0 || self.last.swap(thread, Ordering::Relaxed) == thread {
            return;
        }
        let Some(process) = process_of(thread) else { return };
        let mut processes = self.processes.lock();
        if !processes.contains(&process) {
            processes.push(process);
        }
    }

    /// Whether a close by this thread is one by a writer. So it is where nobody can tell: in another namespace of processes.
    pub(crate) fn include(&self, thread: u32) -> bool {
        match process_of(thread) {
            Some(process) => self.processes.lock().contains(&process),
            None => true,
        }
    }
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
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(writers.include(0), "of another namespace");
    }
}
