//! What processes used of the processors.
//!
//! `/proc/PID/stat` counts in ticks of 10 ms, which is longer than a small file takes to be read; each thread's `schedstat`
//! counts nanoseconds, and forgets threads that have ended. So both are looked at: the nanoseconds count where they agree with the
//! ticks, and the ticks where they do not.

use std::path::Path;

/// What a process had used at some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    /// By `stat`, in seconds.
    ticks: f64,
    /// By its threads' `schedstat`, in seconds; none where the kernel does not keep it.
    threads: Option<f64>,
}

/// What process `pid` has used until now, all its threads. Nothing, when there is none.
#[must_use]
pub fn used(pid: u32) -> Used {
    let process = Path::new("/proc").join(pid.to_string());
    let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
    let ticks = ticks_of(&stat).unwrap_or_default() as f64 / rustix::param::clock_ticks_per_second() as f64;
    let threads = std::fs::read_dir(process.join("task")).ok().and_then(|threads| {
        // A thread that ends meanwhile is one of those that are forgotten.
        let files =
            threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok());
        let mut known = false;
        let nanoseconds: u64 = files
            .filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok())
            .inspect(|_| known = true)
            .sum();
        known.then_some(nanoseconds as f64 / 1e9)
    });
    Used { ticks, threads }
}

impl Used {
    /// Seconds of a processor between then and now. 1.0 is a processor for a second.
    #[must_use]
    pub fn until(self, now: Self) -> f64 {
        let ticks = (now.ticks - self.ticks).max(0.0);
        let threads = self.threads.zip(now.threads).map(|(then, now)| now - then);
        let tick = 1.0 / rustix::param::clock_ticks_per_second() as f64;
        // Each of the two moments is cut to a tick, and user and kernel time apart.
        threads.filter(|threads| (threads - ticks).abs() <= 4.0 * tick && *threads >= 0.0).unwrap_or(ticks)
    }
}

/// `utime` and `stime`, fields 14 and 15 of proc_pid_stat(5). The name, field 2, may hold spaces and brackets.
fn ticks_of(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11).map(str::parse::<u64>);
    Some(fields.next()?.ok()? + fields.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn ticks_are_read_past_a_name_with_brackets() {
        let stat = "42 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 300 45 0 0 20 0 1 0 100";
        assert_eq!(ticks_of(stat), Some(345));
        assert_eq!(ticks_of(""), None);
    }

    #[test]
    fn what_this_process_computes_is_counted_and_a_process_that_is_not_there_used_nothing() {
        let before = used(std::process::id());
        let until = Instant::now() + Duration::from_millis(60);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        // A loaded machine may have given us little of the time, but never nothing.
        assert!(before.until(used(std::process::id())) > 0.0);
        assert_eq!(used(u32::MAX), Used::default());
        assert_eq!(Used::default().until(Used::default()), 0.0);
    }

    #[test]
    fn nanoseconds_count_unless_a_thread_has_taken_its_own_along() {
        let at = |ticks, threads| Used { ticks, threads };
        assert_eq!(at(1.00, Some(5.0)).until(at(1.01, Some(5.003))), 5.003 - 5.0);
        assert_eq!(at(1.00, Some(5.0)).until(at(3.00, Some(4.0))), 2.0);
        assert_eq!(at(1.00, None).until(at(1.25, None)), 0.25);
    }
}
