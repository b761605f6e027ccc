//! Which processes write through a handle.
//!
//! The kernel tells of each `close(2)` of a descriptor, also when it is not the program's own: a child that runs another program
//! closes what it inherited. A file that is half written must not be uploaded because of that. So a close counts when the process
//! has opened the file or has written through the handle.
//!
//! Ids of processes come again, also to one that has inherited the handle from the writer. So it is remembered when a writer was
//! seen, and a process that has started since is another one. That costs a look at the clock where a writer is looked up, and one
//! more file of `/proc` where a writer closes.

use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use forebay_metrics::process_started;

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
    processes: Vec<Writer>,
    /// The thread whose process was looked up last, and when: most of the time it is the one that writes next.
    last: Option<(u32, Instant)>,
}

impl Known {
    /// Notes a writer. False: there are too many.
    fn note(&mut self, writer: Writer) -> bool {
        let known = self.processes.iter().position(|known| known.process == writer.process);
        let may_be_added = self.processes.len() < MAX_PROCESSES;
        match known {
            Some(place) => self.processes[place] = writer,
            None if may_be_added => self.processes.push(writer),
            None => return false,
        }
        true
    }
}

/// A process, when it was looked up.
#[derive(Clone, Copy, Debug)]
struct Writer {
    process: u32,
    /// In clock ticks since boot, as the kernel says when a process has started.
    seen: u64,
}

impl Writer {
    /// A process that is there now.
    fn now(process: u32) -> Self {
        Self { process, seen: ticks_since_boot() }
    }

    /// The process of a thread; `None` when there is no such thread, or none that can be seen.
    fn of(thread: u32) -> Option<Self> {
        process_of(thread).map(Self::now)
    }
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
        // When that process has seen them is not told: whoever has the id of one by now counts as that.
        let processes = processes.into_iter().map(Writer::now).collect();
        Self { known: Mutex::new(Known { processes, last: None }), anybody }
    }

    /// The processes, for the next process; none where it may be any.
    pub(crate) fn handed(&self) -> Vec<u32> {
        let is_anybody = self.anybody.load(Ordering::Relaxed);
        if is_anybody {
            return Vec::new();
        }
        self.known.lock().processes.iter().map(|writer| writer.process).collect()
    }

    /// The thread `thread` writes.
    pub(crate) fn note(&self, thread: u32) {
        // Whoever it is, it is a writer.
        if !self.anybody.load(Ordering::Relaxed) {
            self.note_at(thread, Instant::now(), Writer::of);
        }
    }

    /// The thread `thread` writes at `now`; `writer_of` tells whose it is.
    fn note_at(&self, thread: u32, now: Instant, writer_of: impl FnOnce(u32) -> Option<Writer>) {
        let mut known = self.known.lock();
        if known.last.is_some_and(|(last, at)| last == thread && now.saturating_duration_since(at) < BELIEVED) {
            return;
        }
        let is_noted = writer_of(thread).is_some_and(|writer| known.note(writer));
        if !is_noted {
            self.anybody.store(true, Ordering::Relaxed);
        }
        known.last = Some((thread, now));
    }

    /// Whether a close by this thread is one by a writer. It counts as one where its process cannot be found out: in
    /// another PID namespace.
    pub(crate) fn include(&self, thread: u32) -> bool {
        let has_written = |process| self.has_written(process, process_started);
        self.anybody.load(Ordering::Relaxed) || process_of(thread).is_none_or(has_written)
    }

    /// Whether a process is one of them. `started` tells when that began which has the id now: a writer was there when it was seen
    /// last. Where that is not told, it counts as one.
    fn has_written(&self, process: u32, started: impl FnOnce(u32) -> Option<u64>) -> bool {
        let seen = {
            let known = self.known.lock();
            known.processes.iter().find(|writer| writer.process == process).map(|writer| writer.seen)
        };
        seen.is_some_and(|seen| started(process).is_none_or(|started| started <= seen))
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

/// As [`process_started`] counts.
fn ticks_since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let per_second = rustix::param::clock_ticks_per_second();
    // Neither is negative. The kernel rounds down, too.
    now.tv_sec as u64 * per_second + now.tv_nsec as u64 * per_second / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That a process was found, at this time.
    fn found(process: u32, seen: u64) -> impl FnOnce(u32) -> Option<Writer> {
        move |_| Some(Writer { process, seen })
    }

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
        writers.note_at(7, began, found(1, 0));
        writers.note_at(7, began + BELIEVED / 2, |_| panic!("it was just looked up"));
        writers.note_at(7, began + BELIEVED, found(2, 0));
        assert_eq!(writers.handed(), [1, 2]);
        writers.note_at(8, began + BELIEVED, found(1, 0));
        writers.note_at(7, began + BELIEVED, found(3, 0));
        assert_eq!(writers.handed(), [1, 2, 3]);
    }

    #[test]
    fn a_process_that_has_got_the_id_of_a_writer_is_none_until_it_writes() {
        let (writers, began) = (Writers::default(), Instant::now());
        writers.note_at(1, began, found(1, 100));
        assert!(writers.has_written(1, |_| Some(100)));
        assert!(writers.has_written(1, |_| None), "it cannot be told");
        assert!(!writers.has_written(1, |_| Some(101)), "it has started since");
        assert!(!writers.has_written(2, |_| panic!("it has written nothing")));
        writers.note_at(1, began + BELIEVED, found(1, 200));
        assert!(writers.has_written(1, |_| Some(101)));
        assert_eq!(writers.handed(), [1]);
    }

    #[test]
    fn a_process_has_started_before_it_is_seen() {
        let me = std::process::id();
        let started = process_started(me).unwrap();
        let seen = Writer::of(me).unwrap().seen;
        assert!((started..started + 1_000_000_000).contains(&seen), "{started} {seen}");
    }
}
