//! What the kernel counts of this process, under the names that every Prometheus client gives them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::family::Families;

/// What the kernel says of a process now. What it does not say is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStats {
    /// Seconds of CPU used, by the program and by the kernel for it.
    pub cpu_seconds: f64,
    /// Bytes of memory that are present, shared ones included.
    pub resident_bytes: u64,
    /// Bytes of address space.
    pub virtual_bytes: u64,
    /// Descriptors that are open.
    pub open_fds: u64,
    /// Descriptors that may be open.
    pub max_fds: u64,
    /// Threads.
    pub threads: u64,
    /// When it started, in seconds since 1970.
    pub start_time_seconds: f64,
}

impl ProcessStats {
    /// This process, now.
    #[must_use]
    pub fn now() -> Self {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
        let ticks = rustix::param::clock_ticks_per_second();
        let mut stats = from_stat(&read("stat"), ticks, rustix::param::page_size() as u64);
        // In nanoseconds, where `stat` has hundredths of a second.
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        stats.cpu_seconds = used.tv_sec as f64 + used.tv_nsec as f64 / 1e9;
        stats.open_fds = std::fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64);
        stats.max_fds = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(0);
        // The kernel counts from its own start.
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
        let uptime: f64 = uptime.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64();
        stats.start_time_seconds = (now - uptime + stats.start_time_seconds).max(0.0);
        stats
    }

    /// Adds them.
    pub fn collect(&self, families: &mut Families) {
        families.counter("process_cpu_seconds_total", "CPU time used, of program and kernel").add([], self.cpu_seconds);
        families.gauge("process_resident_memory_bytes", "Memory that is present").add([], self.resident_bytes);
        families.gauge("process_virtual_memory_bytes", "Address space").add([], self.virtual_bytes);
        families.gauge("process_open_fds", "Descriptors that are open").add([], self.open_fds);
        families.gauge("process_max_fds", "Descriptors that may be open").add([], self.max_fds);
        families.gauge("process_threads", "Threads").add([], self.threads);
        families
            .gauge("process_start_time_seconds", "When the process started, since 1970")
            .add([], self.start_time_seconds);
    }
}

/// When a process started, in clock ticks since boot, which tells it from a later one of its number. `None` when there is none, or only
/// what its parent has not reaped yet: in a container, that may be for ever.
#[must_use]
pub fn process_started(pid: u32) -> Option<u64> {
    started_field(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Field 22 of `/proc/PID/stat`. The second is the name, in parentheses, and may hold spaces and parentheses.
fn started_field(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

/// What `/proc/self/stat` says (see proc(5)); the start is still counted from the kernel's, and processor time in another way.
fn from_stat(stat: &str, ticks_per_second: u64, page: u64) -> ProcessStats {
    // The program's name, in parentheses, may hold anything. What follows it are fields from the third on.
    let Some((_, fields)) = stat.rsplit_once(')') else { return ProcessStats::default() };
    let fields: Vec<u64> = fields.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
    let seconds = |ticks: u64| ticks as f64 / ticks_per_second.max(1) as f64;
    ProcessStats {
        threads: field(20),
        start_time_seconds: seconds(field(22)),
        virtual_bytes: field(23),
        resident_bytes: field(24) * page,
        ..ProcessStats::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_parentheses_in_its_name_has_a_start_and_a_dead_one_none() {
        let fields: Vec<String> = (4..=25).map(|field| field.to_string()).collect();
        assert_eq!(started_field(&format!("7 (a) b (c)) S {}", fields.join(" "))), Some(22));
        assert_eq!(started_field(&format!("7 (a) Z {}", fields.join(" "))), None);
        assert_eq!(started_field("7 (a"), None);
        assert!(process_started(std::process::id()).is_some());
        assert_eq!(process_started(u32::MAX), None);
    }

    #[test]
    fn a_line_of_the_kernels_is_understood_whatever_the_program_is_called() {
        let stat = "12 (a) b( c) S 1 12 12 0 -1 4194304 1 2 3 4 250 50 7 8 20 0 9 0 10000 8192 3 18446744073709551615";
        let stats = from_stat(stat, 100, 4096);
        assert_eq!((stats.threads, stats.start_time_seconds), (9, 100.0));
        assert_eq!((stats.virtual_bytes, stats.resident_bytes), (8192, 3 * 4096));
        assert_eq!(from_stat("", 100, 4096), ProcessStats::default());
        assert_eq!(from_stat("1 (a) S", 0, 4096), ProcessStats::default());
    }

    #[test]
    fn this_process_has_memory_descriptors_and_a_start_in_the_past() {
        let before = ProcessStats::now();
        let stats = ProcessStats::now();
        assert!(stats.cpu_seconds > before.cpu_seconds, "to look takes less than a tick, and is counted: {stats:?}");
        assert!(stats.resident_bytes > 1 << 20 && stats.open_fds > 2 && stats.max_fds >= stats.open_fds, "{stats:?}");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((now - 3600.0..=now + 1.0).contains(&stats.start_time_seconds), "{stats:?} at {now}");
    }
}
