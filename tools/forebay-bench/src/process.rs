//! What a process uses, from `/proc`.

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;

/// How often memory is looked at.
const EVERY: Duration = Duration::from_millis(100);

/// CPU time that a process and its threads have used, in seconds.
///
/// # Errors
/// When there is no such process.
pub(crate) fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let ticks = ticks_of(&stat).with_context(|| format!("{path} has another form than expected"))?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// CPU time of all threads that a process has now, in seconds, to the nanosecond: [`cpu_seconds`] counts hundredths. Nothing where the
/// kernel does not say, or the process has ended.
pub(crate) fn exact_cpu_seconds(pid: u32) -> Option<f64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let of = |path: std::path::PathBuf| {
        std::fs::read_to_string(path.join("schedstat")).ok()?.split_whitespace().next()?.parse::<u64>().ok()
    };
    // One that ends meanwhile has none.
    let times: Vec<u64> = threads.flatten().filter_map(|thread| of(thread.path())).collect();
    (!times.is_empty()).then(|| times.iter().sum::<u64>() as f64 / 1e9)
}

/// CPU time of some processes together.
///
/// # Errors
/// When one of them has ended.
pub(crate) fn cpu_seconds_of(pids: &[u32]) -> anyhow::Result<f64> {
    pids.iter().map(|pid| cpu_seconds(*pid)).sum()
}

/// CPU time of all programs that this one started and whose end it has seen, in seconds.
///
/// # Errors
/// When `/proc` is not there.
pub(crate) fn cpu_seconds_of_ended_children() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
    let ticks = ticks_at(&stat, CHILDREN).context("/proc/self/stat has another form than expected")?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// A process and all that it started, as of now.
pub(crate) fn with_descendants(pid: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((pid, parent_of(&stat)?))
        })
        .collect();
    let mut family = vec![pid];
    let mut at = 0;
    while let Some(&parent) = family.get(at) {
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(child, _)| child));
        at += 1;
    }
    family
}

/// `ppid`, field 4 of proc_pid_stat(5).
fn parent_of(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Where `utime` and `stime` are in proc_pid_stat(5), counted after the name.
const OWN: usize = 11;
/// Where `cutime` and `cstime` are.
const CHILDREN: usize = 13;

/// Fields 14 and 15 of proc_pid_stat(5).
fn ticks_of(stat: &str) -> Option<u64> {
    ticks_at(stat, OWN)
}

/// Two fields together. The name, field 2, may hold spaces and brackets.
fn ticks_at(stat: &str, first: usize) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(first).map(str::parse::<u64>);
    Some(fields.next()?.ok()? + fields.next()?.ok()?)
}

/// Resident memory of a process, in bytes.
pub(crate) fn resident(pid: u32) -> Option<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// What a process takes of memory that is nobody else's: its own pages, and all shared memory and files on tmpfs of the machine
/// beyond `others` bytes ([`shared_memory`]). What a mount materialises lies there, and mostly in no process.
pub(crate) fn taken(pid: u32, others: u64) -> Option<u64> {
    let own = kibibytes(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "RssAnon:")?;
    Some(own + shared_memory()?.saturating_sub(others))
}

/// All shared memory and files on tmpfs of the machine, in bytes.
pub(crate) fn shared_memory() -> Option<u64> {
    kibibytes(&std::fs::read_to_string("/proc/meminfo").ok()?, "Shmem:")
}

/// The line `name` of a file that has so many kB in it, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// The resident memory of a process over a run, in bytes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Memory {
    /// Which process.
    pub(crate) process: String,
    /// What it may take at times, and give back.
    pub(crate) room: u64,
    /// When the warm-up was over.
    pub(crate) warm: u64,
    /// The most since.
    pub(crate) most: u64,
    /// The most of all, the warm-up included.
    pub(crate) peak: u64,
    /// At the end.
    pub(crate) last: u64,
    /// How often it was looked at.
    pub(crate) looks: u64,
}

impl Memory {
    /// Memory is flat when what is added after the warm-up is less than this: 5 %, or 32 MiB if that is more. Threads
    /// and allocators keep some buffers each, more when more readers come.
    const SLACK: f64 = 0.05;
    const MIN_SLACK: u64 = 32 << 20;

    pub(crate) fn growth(&self) -> u64 {
        self.most.saturating_sub(self.warm)
    }

    pub(crate) fn is_flat(&self) -> bool {
        self.growth() <= self.room + Self::MIN_SLACK.max((self.warm as f64 * Self::SLACK) as u64)
    }
}

/// Looks at the memory of some processes until it is finished.
pub(crate) struct MemoryWatch {
    tell: mpsc::Sender<Event>,
    thread: JoinHandle<Vec<Memory>>,
}

enum Event {
    Warm,
    Finish,
}

impl MemoryWatch {
    pub(crate) fn start(processes: Vec<(String, u32)>) -> Self {
        Self::start_with_room(processes, 0)
    }

    /// The same for processes that may take `room` bytes at times, and give them back.
    pub(crate) fn start_with_room(processes: Vec<(String, u32)>, room: u64) -> Self {
        Self::looking(processes, room, resident)
    }

    /// The same where `look` says what a process takes.
    pub(crate) fn looking(
        processes: Vec<(String, u32)>,
        room: u64,
        look: impl Fn(u32) -> Option<u64> + Send + 'static,
    ) -> Self {
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut seen: Vec<Memory> = processes
                .iter()
                .map(|(process, _)| Memory {
                    process: process.clone(),
                    room,
                    warm: 0,
                    most: 0,
                    peak: 0,
                    last: 0,
                    looks: 0,
                })
                .collect();
            loop {
                let event = told.recv_timeout(EVERY);
                for ((_, pid), memory) in processes.iter().zip(&mut seen) {
                    let Some(now) = look(*pid) else { continue };
                    memory.last = now;
                    memory.most = memory.most.max(now);
                    memory.peak = memory.peak.max(now);
                    memory.looks += 1;
                    if let Ok(Event::Warm) = event {
                        (memory.warm, memory.most) = (now, now);
                    }
                }
                if matches!(event, Ok(Event::Finish) | Err(mpsc::RecvTimeoutError::Disconnected)) {
                    return seen;
                }
            }
        });
        Self { tell, thread }
    }

    /// What is more than now is growth.
    pub(crate) fn warm(&self) {
        // The thread ends only when it is told to.
        let _ = self.tell.send(Event::Warm);
    }

    pub(crate) fn finish(self) -> Vec<Memory> {
        let _ = self.tell.send(Event::Finish);
        self.thread.join().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_past_a_name_with_brackets() {
        let stat = "42 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 300 45 4 3 20 0 1 0 100";
        assert_eq!(ticks_of(stat), Some(345));
        assert_eq!(ticks_at(stat, CHILDREN), Some(7));
        assert!(cpu_seconds(std::process::id()).is_ok());
        // Where the kernel says it, it is some by now.
        assert!(exact_cpu_seconds(std::process::id()).is_none_or(|seconds| seconds > 0.0));
        assert_eq!(exact_cpu_seconds(u32::MAX), None);
    }

    #[test]
    fn a_child_belongs_to_the_family_and_its_time_counts_when_it_has_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(with_descendants(std::process::id()).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(cpu_seconds_of_ended_children().is_ok());
        assert!(cpu_seconds_of(&[std::process::id(), std::process::id()]).unwrap() >= 0.0);
    }

    #[test]
    fn what_a_process_takes_has_files_on_tmpfs_in_it() {
        let text = "VmRSS:\t  2048 kB\nRssAnon:\t  1024 kB\nRssFile:\t 0 kB\n";
        assert_eq!((kibibytes(text, "RssAnon:"), kibibytes(text, "RssShmem:")), (Some(1 << 20), None));
        // All shared memory of the machine is others'.
        assert!(shared_memory().is_some() && taken(std::process::id(), u64::MAX) > Some(0));
    }

    #[test]
    fn memory_that_is_taken_after_the_warm_up_is_growth() {
        let watch = MemoryWatch::start(vec![("self".to_owned(), std::process::id())]);
        watch.warm();
        let taken = std::hint::black_box(vec![1u8; 300 << 20]);
        let [memory] = &watch.finish()[..] else { panic!("one process was watched") };
        // Other tests of this process give back some, or take more, meanwhile.
        assert!(memory.growth() >= 190 << 20, "{memory:?}");
        assert!(!memory.is_flat());
        drop(taken);
    }
}
