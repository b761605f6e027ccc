//! What other programs of this machine do while fio reads.
//!
//! Who serves a mount cannot be told from who does something else: it may be any program, or the kernel. But who serves has nothing to do
//! before fio begins, and a program that does something else goes on with it. So each process is looked at before a step and over the step,
//! and the lower of its two rates is counted: that of a busy neighbour, also where fio takes processors from it; and next to nothing of
//! a mount, however much it does for fio. What begins within a step is seen before the next one. Of processes that end, what their
//! parents have waited for counts as theirs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Ticks in a second of every `/proc` file (`USER_HZ`).
const TICKS: f64 = 100.0;
/// How long it is looked before a step.
pub(super) const LOOK_FOR: Duration = Duration::from_millis(250);

/// A process: its number, and when it began, as numbers are used again.
type Key = (u32, u64);

/// The ticks of all processes at a moment, our own aside: it waits for fio.
#[derive(Clone, Debug)]
pub(super) struct Processes {
    at: Instant,
    ticks: HashMap<Key, u64>,
}

impl Processes {
    /// Now. Those that cannot be read are left out.
    pub(super) fn now() -> Self {
        let own = std::process::id();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).filter(|pid| *pid != own);
        let at = Instant::now();
        let one = |pid: u32| {
            let (began, ticks) = of_line(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
            Some(((pid, began), ticks))
        };
        Self { at, ticks: pids.filter_map(one).collect() }
    }

    /// Percent of a processor that each took from then on until `later`.
    fn rates(&self, later: &Self) -> HashMap<Key, f64> {
        let seconds = later.at.duration_since(self.at).as_secs_f64();
        let rate = |(key, after): (&Key, &u64)| {
            let percent = after.saturating_sub(*self.ticks.get(key)?) as f64 / TICKS / seconds * 100.0;
            (percent > 0.0 && percent.is_finite()).then_some((*key, percent))
        };
        later.ticks.iter().filter_map(rate).collect()
    }
}

/// What processes did from `before` until `begin` and went on with until `end`: percent of a processor.
pub(super) fn went_on(before: &Processes, begin: &Processes, end: &Processes) -> f64 {
    let during = begin.rates(end);
    before.rates(begin).iter().filter_map(|(key, rate)| Some(rate.min(*during.get(key)?))).sum()
}

/// When it began, and what it and the children that it waited for took, of a line of `/proc/PID/stat`.
fn of_line(line: &str) -> Option<(u64, u64)> {
    // Its name is in brackets, and may have anything in it.
    let fields: Vec<&str> = line.rsplit_once(") ")?.1.split_whitespace().collect();
    // The third field of all is the first here.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some((number(22)?, number(14)? + number(15)? + number(16)? + number(17)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number_and_its_beginning_whatever_its_name() {
        let line = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 10 20 3 4 20 0 1 0 12345 1000 100 18446744073709551615";
        assert_eq!(of_line(line), Some((12345, 37)));
        assert_eq!(of_line("7 (a"), None);
        assert!(Processes::now().ticks.keys().all(|(pid, _)| *pid != std::process::id()));
    }

    #[test]
    fn a_neighbour_counts_as_far_as_it_goes_on_and_a_mount_as_little_as_before() {
        let start = Instant::now();
        let at = |seconds: u64, ticks: [u64; 3]| {
            let ticks = (1..).zip(ticks).map(|(pid, ticks)| ((pid, 0), ticks)).collect();
            Processes { at: start + Duration::from_secs(seconds), ticks }
        };
        // A neighbour that takes 100 %, and 60 % beside fio; a mount that takes 1 %, and 150 % for fio; one that begins with fio.
        let (before, begin, end) = (at(0, [0, 0, 0]), at(1, [100, 1, 0]), at(11, [700, 1501, 900]));
        assert!((went_on(&before, &begin, &end) - 61.0).abs() < 1e-9);
        assert_eq!(went_on(&end, &end, &end), 0.0, "no time has passed");
        // Another process of the same number.
        let mut other = at(11, [700, 0, 0]);
        other.ticks = HashMap::from([((1, 5), 700)]);
        assert_eq!(went_on(&before, &begin, &other), 0.0);
    }
}
