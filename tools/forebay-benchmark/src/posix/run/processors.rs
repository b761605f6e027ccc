//! What the processors do while fio reads, and what they do anyway.
//!
//! fio takes some tenths of a second to start and to end, in which it does nothing; counted in, they would make busy processors
//! look idle in short steps. And it does not tell when it begins to read. So the kernel's counters (`/proc/stat`) are looked at
//! all the time that fio runs, and what counts is the busiest stretch that is as long as fio read. Of it, what fio's jobs took is
//! fio's own, and what other programs did before and went on with ([`neighbours`](super::neighbours)) is theirs. What is left is what
//! serving cost: the mount, the worker, the kernel. What a hypervisor gave to other machines meanwhile is counted apart; it explains a
//! slow step.
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
/// How far apart samples of the load are that are kept.
const KEPT_EVERY: Duration = Duration::from_secs(1);

/// What the kernel has counted, of all processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    /// At work.
    busy: u64,
    /// Ready to work, and the hypervisor ran another machine.
    stolen: u64,
}

/// What processors did for a while: percent of one processor.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Load {
    pub(super) busy: f64,
    pub(super) stolen: f64,
}

/// The load of a machine at some time: a line of `load.csv`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// How long before the end of what was looked at.
    pub(super) ago: Duration,
    pub(super) load: Load,
}

/// What was counted at some moments, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    moments: Vec<(Instant, Ticks)>,
}

impl Watch {
    /// Looks now.
    pub(super) fn look(&mut self) {
        let ticks = std::fs::read_to_string("/proc/stat").ok().and_then(|stat| ticks(&stat));
        self.moments.extend(ticks.map(|ticks| (Instant::now(), ticks)));
    }

    /// What the machine did in its busiest stretch of `seconds`, or in all that was looked at if that is shorter; `fio` of it is
    /// what fio says of itself, and `others` what other programs took. `None` where that is too short to tell, or `/proc` does not.
    pub(super) fn busiest(&self, seconds: f64, fio: f64, others: f64) -> Option<Cpu> {
        if seconds < SHORTEST {
            return None;
        }
        let ends = self.moments.iter();
        let stretches = ends.filter_map(|end| {
            // The shortest that is long enough, up to this moment.
            let long_enough = |begin: &&(Instant, Ticks)| end.0.duration_since(begin.0).as_secs_f64() >= seconds;
            between(self.moments.iter().take_while(long_enough).last()?, end)
        });
        let Load { busy, stolen } = stretches.reduce(busier).or_else(|| self.all())?;
        let fio = fio.min(busy);
        Some(Cpu { machine: busy, fio, others: others.min(busy - fio), stolen })
    }

    fn all(&self) -> Option<Load> {
        between(self.moments.first()?, self.moments.last()?)
    }

    /// A sample a second, as far as it was looked at.
    pub(super) fn samples(&self) -> Vec<Sample> {
        let (Some(mut begin), Some(last)) = (self.moments.first(), self.moments.last()) else { return Vec::new() };
        let mut samples = Vec::new();
        for moment in &self.moments {
            if moment.0.duration_since(begin.0) < KEPT_EVERY && moment.0 < last.0 {
                continue;
            }
            samples.extend(between(begin, moment).map(|load| Sample { ago: last.0.duration_since(moment.0), load }));
            begin = moment;
        }
        samples
    }

    /// What the machine does by itself, while nothing is measured: percent of one processor.
    pub(super) fn idle_load() -> Option<f64> {
        Self::look_for(LOOK_FOR).map(|load| load.busy)
    }

    /// What is seen in so long from now.
    pub(super) fn look_for(time: Duration) -> Option<Load> {
        let mut watch = Self::default();
        watch.look();
        std::thread::sleep(time);
        watch.look();
        watch.all()
    }
}

fn busier(one: Load, other: Load) -> Load {
    if other.busy > one.busy { other } else { one }
}

fn between((begin, before): &(Instant, Ticks), (end, after): &(Instant, Ticks)) -> Option<Load> {
    let time = end.duration_since(*begin);
    let part = |before: u64, after: u64| percent(after.saturating_sub(before), time);
    Some(Load { busy: part(before.busy, after.busy)?, stolen: part(before.stolen, after.stolen)? })
}

/// Of one processor.
fn percent(ticks: u64, time: Duration) -> Option<f64> {
    (!time.is_zero()).then(|| ticks as f64 / TICKS / time.as_secs_f64() * 100.0)
}

/// Of the line `cpu`: user, nice, system, interrupts of both kinds are work. Not idle, or waiting for disks. (Guests are counted within
/// user and nice.)
fn ticks(stat: &str) -> Option<Ticks> {
    let fields = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = fields.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, _wait, interrupts, soft, ..] = fields[..] else { return None };
    let stolen = fields.get(7).copied().unwrap_or(0);
    Some(Ticks { busy: user + nice + system + interrupts + soft, stolen })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_not_counted_and_the_hypervisors_is_counted_apart() {
        let found = ticks("cpu  1 2 4 1000 2000 8 16 4000 8000 0\ncpu0 1 1 1 1\n");
        assert_eq!(found, Some(Ticks { busy: 31, stolen: 4000 }));
        assert_eq!(ticks("cpu  1 2\n"), None);
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
            (start + Duration::from_millis(100 * tenths), Ticks { busy, stolen: 2 * tenths })
        });
        Watch { moments: moments.collect() }
    }

    #[test]
    fn the_time_in_which_fio_only_starts_and_ends_does_not_count() {
        let near = |cpu: Option<Cpu>, machine: f64, fio: f64| {
            let cpu = cpu.unwrap();
            assert!((cpu.machine - machine).abs() < 1.0 && (cpu.fio - fio).abs() < 1.0, "{cpu:?}");
        };
        near(a_step().busiest(1.0, 50.0, 0.0), 200.0, 50.0);
        near(a_step().busiest(0.5, 250.0, 0.0), 200.0, 200.0);
        // Longer than it was looked at: all of it.
        near(a_step().busiest(9.0, 10.0, 0.0), 100.0, 10.0);
        assert_eq!(Watch::default().busiest(1.0, 0.0, 0.0), None);
        // 44 ms of reading in a tenth of a second that was looked at would be half of what it took.
        assert_eq!(a_step().busiest(0.044, 100.0, 0.0), None);
        let cpu = a_step().busiest(1.0, 100.0, 0.0).unwrap();
        assert!((cpu.per_gigabyte(4e9) - 25.0).abs() < 1.0);
    }

    #[test]
    fn what_the_machine_does_anyway_is_not_what_serving_cost() {
        let cpu = a_step().busiest(1.0, 100.0, 60.0).unwrap();
        assert!((cpu.per_gigabyte(4e9) - 10.0).abs() < 1.0 && (cpu.stolen - 20.0).abs() < 1.0, "{cpu:?}");
        // No more than there is.
        assert_eq!(a_step().busiest(1.0, 150.0, 500.0).unwrap().per_gigabyte(4e9), 0.0);
    }

    #[test]
    fn of_all_that_was_seen_a_sample_a_second_is_kept() {
        let samples = a_step().samples();
        let seen: Vec<_> = samples.iter().map(|sample| (sample.ago.as_millis(), sample.load.busy.round())).collect();
        assert_eq!(seen, [(1000, 100.0), (0, 100.0)]);
        assert_eq!(Watch::default().samples(), []);
    }
}
