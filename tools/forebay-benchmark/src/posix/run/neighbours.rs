//! What other programs of this machine do while fio reads.
//!
//! A process that serves a mount cannot be told from one that does something else: it may be any program, or the kernel. But the
//! former has nothing to do before fio begins, and the latter goes on with what it does. So each process is looked at before a step
//! and over the step, and the lower of its two rates is counted: that of a busy neighbour, also where fio takes processors from it;
//! and next to nothing of a mount, however much it does for fio. What begins within a step is seen before the next one.
//!
//! A compiler is many processes, none of which lives for long: those that have ended are counted with the parent that waited for them, less
//! what they had done before it was looked.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Ticks in a second of every `/proc` file (`USER_HZ`).
const TICKS: f64 = 100.0;
/// How long it is looked before a step.
pub(super) const LOOK_FOR: Duration = Duration::from_millis(250);

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    /// When it began: numbers are used again.
    began: u64,
    parent: u32,
    /// What it took, and what those of its children took that it waited for.
    ticks: u64,
}

/// All processes at a moment by their numbers, our own aside: it waits for fio.
#[derive(Clone, Debug)]
pub(super) struct Processes {
    at: Instant,
    all: HashMap<u32, Process>,
}

impl Processes {
    /// Now. Those that cannot be read are left out.
    pub(super) fn now() -> Self {
        let own = std::process::id();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).filter(|pid| *pid != own);
        let at = Instant::now();
        let one = |pid: u32| Some((pid, of_line(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?));
        Self { at, all: pids.filter_map(one).collect() }
    }

    /// Percent of a processor that each took from then on until `later`, of those that are still there.
    fn rates(&self, later: &Self) -> HashMap<(u32, u64), f64> {
        let seconds = later.at.duration_since(self.at).as_secs_f64();
        let mut before: HashMap<u32, u64> = HashMap::new();
        for (pid, process) in &self.all {
            if let Some(counted_with) = self.counted_with(*pid, later) {
                *before.entry(counted_with).or_default() += process.ticks;
            }
        }
        let rate = |(pid, ticks): (&u32, &u64)| {
            let process = later.all.get(pid)?;
            let percent = process.ticks.saturating_sub(*ticks) as f64 / TICKS / seconds * 100.0;
            (percent > 0.0 && percent.is_finite()).then_some(((*pid, process.began), percent))
        };
        before.iter().filter_map(rate).collect()
    }

    /// The process itself, if it is there later, or the nearest of those above it that is: it, or one that it waited for, has waited
    /// for this one.
    fn counted_with(&self, pid: u32, later: &Self) -> Option<u32> {
        let mut found = pid;
        // As many as there are at most: a number that is used again may make a ring of them.
        for _ in 0..=self.all.len() {
            let process = self.all.get(&found)?;
            if later.all.get(&found).is_some_and(|other| other.began == process.began) {
                return Some(found);
            }
            found = process.parent;
        }
        None
    }
}

/// What processes did from `before` until `begin` and went on with until `end`: percent of a processor.
pub(super) fn went_on(before: &Processes, begin: &Processes, end: &Processes) -> f64 {
    let during = begin.rates(end);
    before.rates(begin).iter().filter_map(|(key, rate)| Some(rate.min(*during.get(key)?))).sum()
}

/// Of a line of `/proc/PID/stat`.
fn of_line(line: &str) -> Option<Process> {
    // Its name is in brackets, and may have anything in it.
    let fields: Vec<&str> = line.rsplit_once(") ")?.1.split_whitespace().collect();
    // The third field of all is the first here.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let ticks = number(14)? + number(15)? + number(16)? + number(17)?;
    Some(Process { began: number(22)?, parent: number(4)?.try_into().ok()?, ticks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number_and_its_beginning_whatever_its_name() {
        let line = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 10 20 3 4 20 0 1 0 12345 1000 100 18446744073709551615";
        assert_eq!(of_line(line), Some(Process { began: 12345, parent: 1, ticks: 37 }));
        assert_eq!(of_line("7 (a"), None);
        assert!(!Processes::now().all.contains_key(&std::process::id()));
    }

    /// Seconds after `start`: processes by number, beginning, parent and ticks.
    fn at(start: Instant, seconds: u64, all: &[(u32, u64, u32, u64)]) -> Processes {
        let all = all.iter().map(|(pid, began, parent, ticks)| {
            let (began, parent, ticks) = (*began, *parent, *ticks);
            (*pid, Process { began, parent, ticks })
        });
        Processes { at: start + Duration::from_secs(seconds), all: all.collect() }
    }

    #[test]
    fn a_neighbour_counts_as_far_as_it_goes_on_and_a_mount_as_little_as_before() {
        let start = Instant::now();
        let all = |seconds, [neighbour, mount, late]: [u64; 3]| {
            at(start, seconds, &[(11, 0, 1, neighbour), (12, 0, 1, mount), (13, 0, 1, late)])
        };
        // A neighbour that takes 100 %, and 60 % beside fio; a mount that takes 1 %, and 150 % for fio; one that begins with fio.
        let (before, begin, end) = (all(0, [0, 0, 0]), all(1, [100, 1, 0]), all(11, [700, 1501, 900]));
        assert!((went_on(&before, &begin, &end) - 61.0).abs() < 1e-9);
        assert_eq!(went_on(&end, &end, &end), 0.0, "no time has passed");
        // Another process of the same number.
        assert_eq!(went_on(&before, &begin, &at(start, 11, &[(11, 5, 1, 700)])), 0.0);
    }

    #[test]
    fn a_child_that_ends_counts_with_its_parent_for_what_it_did_since_it_was_looked() {
        let start = Instant::now();
        // It has worked for a minute, has a child that has as well, and both end within the next second.
        let before = at(start, 0, &[(10, 0, 1, 5), (11, 1, 10, 6000), (12, 2, 11, 6000)]);
        let after = at(start, 1, &[(10, 0, 1, 5 + 6000 + 6000 + 80)]);
        let rates = before.rates(&after);
        assert_eq!(rates.len(), 1);
        assert!((rates[&(10, 0)] - 80.0).abs() < 1e-9, "{rates:?}");
        // No process is left to ask; and numbers that are used again may make a ring.
        assert!(before.rates(&at(start, 1, &[])).is_empty());
        assert_eq!(at(start, 0, &[(10, 0, 11, 0), (11, 0, 10, 0)]).counted_with(10, &at(start, 1, &[])), None);
    }
}
