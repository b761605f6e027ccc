//! Which processes write through a handle.
//!
//! The kernel tells of each `close(2)` of a descriptor, also when it is not the program's own: a child that runs another program
//! closes what it inherited. A file that is half written must not be uploaded because of that. So a close counts when the process
//! has opened the file or has written through the handle.

use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_locks::Mutex;

/// The processes that opened a handle for writing or have written through it.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    known: Mutex<Known>,
    /// The processes of some threads could not be found out, or are too many to be remembered: any process may be a
    /// writer.
    anybody: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    processes: Vec<u32>,
    /// The thread whose process was looked up last, and when: most of the time it is the one that writes next.
    last: Option<(u32, Instant)>,
}

/// Processes that are remembered of one handle.
const MAX_PROCESSES: usize = 64;

/// How long it is believed that a thread is of the process that was looked up. Ids come again, also as threads of other processes, but
/// only when all others had their turn: 32 thousand at least, which takes the kernel longer than this. A look-up takes 11 µs.
const BELIEVED: Duration = Duration::from_millis(100);

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
        Self { known: Mutex::new(Known { processes, last: None }), anybody }
    }

    /// The processes, for the next process; none where it may be any.
    pub(crate) fn handed(&self) -> Vec<u32> {
        let is_anybody = self.anybody.load(Ordering::Relaxed);
        if is_anybody { Vec::new() } else { self.known.lock().processes.clone() }
    }

    /// The thread `thread` writes.
    pub(crate) fn note(&self, thread: u32) {
        // Whoever it is, it is a writer.
        if !self.anybody.load(Ordering::Relaxed) {
            self.note_at(thread, Instant::now(), process_of);
        }
    }

    /// The thread `thread` writes at `now`; `process_of` tells whose it is.
    fn note_at(&self, thread: u32, now: Instant, process_of: impl FnOnce(u32) -> Option<u32>) {
        let mut known = self.known.lock();
        if known.last.is_some_and(|(last, at)| last == thread && now.saturating_duration_since(at) < BELIEVED) {
            return;
        }
        match process_of(thread) {
            Some(process) if known.processes.contains(&process) => {}
            Some(process) if known.processes.len() < MAX_PROCESSES => known.processes.push(process),
            _ => self.anybody.store(true, Ordering::Relaxed),
        }
        known.last = Some((thread, now));
    }

    /// Whether a close by this thread is one by a writer. It counts as one where its process cannot be found out: in
    /// another PID namespace.
    pub(crate) fn include(&self, thread: u32) -> bool {
        let is_known = |process| self.known.lock().processes.contains(&process);
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

    #[test]
    fn a_thread_whose_id_was_that_of_another_process_is_looked_up_anew() {
        let (writers, began) = (Writers::default(), Instant::now());
        writers.note_at(7, began, |_| Some(1));
        writers.note_at(7, began + BELIEVED / 2, |_| panic!("it was just looked up"));
        writers.note_at(7, began + BELIEVED, |_| Some(2));
        assert_eq!(writers.handed(), [1, 2]);
        writers.note_at(8, began + BELIEVED, |_| Some(1));
        writers.note_at(7, began + BELIEVED, |_| Some(3));
        assert_eq!(writers.handed(), [1, 2, 3]);
    }
}
