//! What the processors do while fio reads.
//!
//! fio takes some tenths of a second to start and to end, in which it does nothing; counted in, they would make busy processors
//! look idle in short steps. And it does not tell when it begins to read. So the kernel's counters (`/proc/stat`) are looked at
//! all the time that fio runs, and what counts is the busiest stretch that is as long as fio read. Of it, what fio's jobs took is
//! fio's own; the rest is what serving them cost: the mount, the worker, the kernel, and whatever else this machine does.
//!
//! A stretch begins and ends where it was looked, up to a tenth of a second away from where fio began and ended. In a step that
//! is not much longer than that, fio's idle time would be a good part of it: of such a step it is not known.

use std::time::{Duration, Instant};

use crate::record::Cpu;

/// Ticks in a second of every `/proc` file, on every machine that Linux runs on (`USER_HZ`).
const TICKS: f64 = 100.0;
/// How long an idle machine is looked at: it counts in ticks.
const LOOK_FOR: Duration = Duration::from_millis(500);
/// Seconds of reading from which on the ends of a stretch matter little: they are a fifth of it at most.
const SHORTEST: f64 = 0.5;

/// The busy ticks of the machine at some moments, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    moments: Vec<(Instant, u64)>,
}

impl Watch {
    /// Looks now.
    pub(super) fn look(&mut self) {
        let busy = std::fs::read_to_string("/proc/stat").ok().and_then(|stat| busy_ticks(&stat));
        self.moments.extend(busy.map(|busy| (Instant::now(), busy)));
    }

    /// What the machine did in its busiest stretch of `seconds`, or in all that was looked at if that is shorter; `fio` of it is
    /// what fio says of itself. `None` where that is too short to tell, or `/proc` does not.
    pub(super) fn busiest(&self, seconds: f64, fio: f64) -> Option<Cpu> {
        if seconds < SHORTEST {
            return None;
        }
        let ends = self.moments.iter();
        let stretches = ends.filter_map(|(end, after)| {
            // The shortest that is long enough, up to this moment.
            let long_enough = |(begin, _): &&(Instant, u64)| end.duration_since(*begin).as_secs_f64() >= seconds;
            let (begin, before) = self.moments.iter().take_while(long_enough).last()?;
            percent(after.saturating_sub(*before), end.duration_since(*begin))
        });
        let all = || {
            let ((begin, before), (end, after)) = (self.moments.first()?, self.moments.last()?);
            percent(after.saturating_sub(*before), end.duration_since(*begin))
        };
        let machine = stretches.reduce(f64::max).or_else(all)?;
        Some(Cpu { machine, fio: fio.min(machine) })
    }

    /// What the machine does by itself, while nothing is measured: percent of one processor.
    pub(super) fn idle_load() -> Option<f64> {
        let mut watch = Self::default();
        watch.look();
        std::thread::sleep(LOOK_FOR);
        watch.look();
        watch.busiest(LOOK_FOR.as_secs_f64(), 0.0).map(|cpu| cpu.machine)
    }
}

/// Of one processor.
fn percent(ticks: u64, time: Duration) -> Option<f64> {
    (!time.is_zero()).then(|| ticks as f64 / TICKS / time.as_secs_f64() * 100.0)
}

/// Of the line `cpu`: user, nice, system, interrupts of both kinds. Not idle, waiting for disks, or what a hypervisor took.
/// (Guests are counted within user and nice.)
fn busy_ticks(stat: &str) -> Option<u64> {
    let fields = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = fields.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, _wait, interrupts, soft, ..] = fields[..] else { return None };
    Some(user + nice + system + interrupts + soft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_and_the_hypervisors_are_not_counted() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 2000 8 16 4000 8000 0\ncpu0 1 1 1 1\n"), Some(31));
        assert_eq!(busy_ticks("cpu  1 2\n"), None);
        let mut here = Watch::default();
        here.look();
        assert_eq!(here.moments.len(), 1);
        assert!(Watch::idle_load().is_some_and(|percent| percent >= 0.0));
    }

    /// Looked at every tenth of a second: idle, two processors busy for a second, idle.
    fn a_step() -> Watch {
        let (start, mut busy) = (Instant::now(), 1000);
        let moments = (0..=20).map(|tenths| {
            busy += if (6..16).contains(&tenths) { 20 } else { 0 };
            (start + Duration::from_millis(100 * tenths), busy)
        });
        Watch { moments: moments.collect() }
    }

    #[test]
    fn the_time_in_which_fio_only_starts_and_ends_does_not_count() {
        let near = |cpu: Option<Cpu>, machine: f64, fio: f64| {
            let cpu = cpu.unwrap();
            assert!((cpu.machine - machine).abs() < 1.0 && (cpu.fio - fio).abs() < 1.0, "{cpu:?}");
        };
        near(a_step().busiest(1.0, 50.0), 200.0, 50.0);
        near(a_step().busiest(0.5, 250.0), 200.0, 200.0);
        // Longer than it was looked at: all of it.
        near(a_step().busiest(9.0, 10.0), 100.0, 10.0);
        assert_eq!(Watch::default().busiest(1.0, 0.0), None);
        // 44 ms of reading in a tenth of a second that was looked at would be half of what it took.
        assert_eq!(a_step().busiest(0.044, 100.0), None);
        let cpu = a_step().busiest(1.0, 100.0).unwrap();
        assert!((cpu.per_gigabyte(4e9) - 25.0).abs() < 1.0);
    }
}
