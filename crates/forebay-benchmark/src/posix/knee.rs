//! How many jobs are worth it, and what is full when no more are.
//!
//! The 99th percentile of latency degrades before the bandwidth does, so the number of jobs to work with is at the knee and not
//! where the bandwidth is highest: that is the published rule. As steps of a sweep:
//!
//! Going from k jobs to m > k is *worth it* if the bandwidth grows, by [`GAIN`] for each doubling of the jobs at least, and p99 not much
//! more than the bandwidth:
//! * [`SLACK`] times as much for each doubling, in general. Throughput by response time is what Kleinrock calls power; its maximum is
//!   the knee of a queueing system. The slack makes up for what two runs of the same differ by. Where jobs only queue, so that the
//!   time they wait is their number by the bandwidth, a doubling is worth it if it brings 27 % or more.
//! * [`LEAP`] times as much, while the bandwidth still gains half of what jobs that do not hinder one another would bring.
//!   p99 of few jobs is a small number that a single neighbour can treble; this is no reason to stop when all scales.
//!
//! Where the mean is above p99 it takes p99's place. With more jobs than processors it often is: of a hundred operations fewer than
//! one waits, but for as long as the scheduler leaves the job aside. Sixteen jobs on two processors reading 256 KiB of tmpfs had
//! a p99 of 39 µs, as one job had, and a mean of 111 instead of 18.
//!
//! The knee is found by walking up: a point that is worth it from the best so far is the best from then on. So one bad point in
//! between changes nothing, and a knee is one when *all* later points say so. Where the last point is the best, there is no knee in
//! sight.
//!
//! What is full is then read off: the network at [`FULL_LINK`] of its speed (TCP carries that much of a fast card's), the disk
//! likewise, the processors at [`BUSY`]; and if half or more of those is fio's own, it is the readers. If nothing is full, then
//! requests wait for one another: a lock, or a queue that is too short, in the file system or below.

use std::collections::BTreeMap;

use crate::median;
use crate::record::{Case, Cpu, Layout, Machine, Pattern, State, Step};

use super::plan::same_sweep;
use super::words::{bits, jobs, percent, rate, time, times};

/// Growth of the bandwidth that is one, for twice the jobs.
pub const GAIN: f64 = 1.05;
/// How much more than the bandwidth p99 may grow, for twice the jobs.
pub const SLACK: f64 = 1.25;
/// How much more, for any number, while the bandwidth keeps up with the jobs.
pub const LEAP: f64 = 4.0;
/// The part of a card's or disk's speed that is all of it.
pub const FULL_LINK: f64 = 0.85;
/// The part of the processors' time that is all of it.
pub const BUSY: f64 = 0.90;
/// Above this part of its speed, bytes did not come from there: from this machine's memory, rather.
const ELSEWHERE: f64 = 1.10;
/// So many points past the knee, and a sweep may end.
const POINTS_PAST: usize = 2;

/// A point of a sweep: the medians of its rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Jobs on each client.
    pub jobs: u32,
    /// Of all.
    pub bytes_per_second: f64,
    /// Of all.
    pub operations_per_second: f64,
    /// Mean completion latency in microseconds.
    pub mean: f64,
    /// Its 99th percentile.
    pub p99: f64,
    /// What processors did.
    pub cpu: Cpu,
}

impl Point {
    /// What an operation takes: p99, or the mean where that is more.
    fn wait(&self) -> f64 {
        self.p99.max(self.mean)
    }
}

/// What is full at the knee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The network card.
    Network,
    /// The disk of the cache.
    Disk,
    /// The processors.
    Processors,
    /// The processors, with fio's own work: it cannot read faster.
    Readers,
    /// Nothing that can be seen: requests wait for one another.
    FileSystem,
}

/// Where more jobs are not worth it any more.
#[derive(Clone, Debug, PartialEq)]
pub struct Knee {
    /// The number of jobs to work with.
    pub jobs: u32,
    /// What was measured there.
    pub point: Point,
    /// What is full.
    pub reason: Reason,
    /// That in sentences, with the figures.
    pub text: String,
}

/// The points of the sweep that `sweep` is a case of, ascending.
#[must_use]
pub fn points(steps: &[Step], sweep: &Case) -> Vec<Point> {
    let mut own: Vec<&Step> = steps.iter().filter(|step| same_sweep(&step.case, sweep)).collect();
    own.sort_by_key(|step| step.case.jobs);
    own.chunk_by(|one, other| one.case.jobs == other.case.jobs).map(point).collect()
}

fn point(rounds: &[&Step]) -> Point {
    let middle = |figure: &dyn Fn(&Step) -> f64| median(rounds.iter().map(|step| figure(step))).unwrap_or_default();
    Point {
        jobs: rounds.first().map_or(0, |step| step.case.jobs),
        bytes_per_second: middle(&|step| step.outcome.bytes_per_second),
        operations_per_second: middle(&|step| step.outcome.operations_per_second),
        mean: middle(&|step| step.outcome.latency.mean),
        p99: middle(&|step| step.outcome.latency.p99),
        cpu: Cpu { machine: middle(&|step| step.outcome.cpu.machine), fio: middle(&|step| step.outcome.cpu.fio) },
    }
}

/// The index of the knee: of the best point, which is the last one when there is no knee yet.
fn best(points: &[Point]) -> usize {
    (1..points.len()).fold(0, |best, next| if is_worth_it(&points[best], &points[next]) { next } else { best })
}

fn is_worth_it(from: &Point, to: &Point) -> bool {
    let growth = |before: f64, after: f64| if before > 0.0 { after / before } else { f64::INFINITY };
    let bandwidth = growth(from.bytes_per_second, to.bytes_per_second);
    let ideal = growth(f64::from(from.jobs), f64::from(to.jobs));
    let doublings = ideal.log2();
    let slack = SLACK.powf(doublings);
    let scales = bandwidth - 1.0 >= (ideal - 1.0) / 2.0;
    let allowed = bandwidth * if scales { slack.max(LEAP) } else { slack };
    bandwidth >= GAIN.powf(doublings) && growth(from.wait(), to.wait()) <= allowed
}

/// The most jobs of a sweep with which each byte is read once. Warm it does not matter; cold, a job that reads what another has
/// just brought reads it from the cache. The settings, as a record has them, know how many files there are.
#[must_use]
pub fn most_jobs(sweep: &Case, settings: &BTreeMap<String, String>) -> u32 {
    let files = match sweep.layout {
        Layout::Single => return if sweep.state == State::Cold { 1 } else { u32::MAX },
        Layout::Multiple => "files",
        Layout::Small => "small-files",
    };
    match (sweep.state, sweep.pattern) {
        (State::Warm | State::Partial, _) => u32::MAX,
        (State::Cold, Pattern::Shared) => 1,
        (State::Cold, Pattern::Distinct) => settings.get(files).and_then(|files| files.parse().ok()).unwrap_or(1),
    }
}

/// Whether the sweep of `next` needs to go no further: the points with fewer jobs than it hold a knee and two more.
#[must_use]
pub fn is_past(steps: &[Step], next: &Case) -> bool {
    let mut before = points(steps, next);
    before.retain(|point| point.jobs < next.jobs);
    best(&before) + POINTS_PAST < before.len()
}

/// The knee of a sweep. `None` where the last point is the best one, or there are fewer than two.
#[must_use]
pub fn knee(points: &[Point], sweep: &Case, machine: &Machine) -> Option<Knee> {
    let at = best(points);
    let past = points.get(at + 1..).filter(|past| !past.is_empty())?;
    let point = points[at];
    let (reason, why) = bound(&points[at..], sweep, machine);
    let next =
        past.iter().max_by(|one, other| one.bytes_per_second.total_cmp(&other.bytes_per_second)).unwrap_or(&point);
    let (is, gives) = (if point.jobs == 1 { "is" } else { "are" }, if next.jobs == 1 { "gives" } else { "give" });
    let (rate, p99) = (rate(point.bytes_per_second), time(point.p99));
    let more = compared(next.bytes_per_second / point.bytes_per_second);
    let longer = longer(&point, next);
    let text = format!(
        "{} {is} the knee: {rate}, p99 {p99}. {} {gives} {more}, and {longer}. {why}",
        jobs(point.jobs),
        jobs(next.jobs)
    );
    Some(Knee { jobs: point.jobs, point, reason, text })
}

fn compared(factor: f64) -> String {
    match (factor - 1.0) * 100.0 {
        more if more >= 0.5 => format!("{more:.0} % more"),
        less if less <= -0.5 => format!("{:.0} % less", -less),
        _ => "the same".to_owned(),
    }
}

/// Which latency has grown, and how much.
fn longer(from: &Point, to: &Point) -> String {
    let (p99, mean) = (to.p99 / from.p99, to.mean / from.mean);
    match p99.max(mean) {
        factor if factor < 1.05 => "operations take no longer".to_owned(),
        factor if factor > p99 => format!("the mean is {} as long", times(factor)),
        factor => format!("p99 is {} as long", times(factor)),
    }
}

/// What is full, from the knee on.
fn bound(points: &[Point], sweep: &Case, machine: &Machine) -> (Reason, String) {
    let most = |figure: &dyn Fn(&Point) -> f64| points.iter().map(figure).fold(0.0, f64::max);
    let bytes = most(&|point| point.bytes_per_second);
    let full = |used: f64| (FULL_LINK..=ELSEWHERE).contains(&used);
    let mut seen = Vec::new();
    if let Some(link) = &machine.network {
        let used = bytes * 8.0 / f64::from(sweep.clients.max(1)) / link.bits_per_second;
        if full(used) {
            let (name, speed) = (&link.name, bits(link.bits_per_second));
            return (Reason::Network, format!("The network is full: {} of {name} ({speed}).", percent(used)));
        }
        let note = if used > ELSEWHERE {
            "much of it did not cross the network".into()
        } else {
            format!("the network carries {} of its speed", percent(used))
        };
        seen.push(note);
    }
    if let Some(disk) = machine.disk_bytes_per_second {
        let used = bytes / f64::from(sweep.workers.max(1)) / disk;
        if full(used) {
            return (Reason::Disk, format!("The disk is full: {} of {}.", percent(used), rate(disk)));
        }
        seen.push(format!("the disk gives {} of its speed", percent(used)));
    }
    // Other machines' processors are not seen from here.
    let all = f64::from(machine.processors) * 100.0;
    let busiest = points.iter().max_by(|one, other| one.cpu.machine.total_cmp(&other.cpu.machine));
    if let Some(Cpu { machine: busy, fio }) = busiest.map(|point| point.cpu).filter(|_| sweep.clients <= 1 && all > 0.0)
    {
        let share = percent(busy / all);
        if busy >= BUSY * all && fio >= busy / 2.0 {
            let fio = percent(fio / busy);
            return (
                Reason::Readers,
                format!(
                    "The processors are full ({share}), {fio} of it with fio's own work: it cannot read faster here."
                ),
            );
        }
        if busy >= BUSY * all {
            return (Reason::Processors, format!("The processors are full: {share}."));
        }
        let first = &points[0];
        let readers = f64::from(first.jobs.min(machine.processors)) * 100.0;
        if first.cpu.fio >= BUSY * readers {
            return (
                Reason::Readers,
                format!(
                    "fio's own jobs keep {} of a processor each busy: they cannot read faster.",
                    percent(first.cpu.fio / readers)
                ),
            );
        }
        if busy > 0.0 {
            seen.push(format!("the processors are {share} busy"));
        }
    }
    (Reason::FileSystem, waiting(sweep, &seen))
}

/// What to say where nothing is full.
fn waiting(sweep: &Case, seen: &[String]) -> String {
    let place = match (sweep.state, sweep.layout, sweep.pattern) {
        (State::Cold | State::Partial, _, _) => "requests wait for the origin",
        (State::Warm, Layout::Single, _) => "requests for one file wait for one another",
        (State::Warm, _, Pattern::Shared) => "requests wait for a lock or in a queue of the file system",
        (State::Warm, _, Pattern::Distinct) => "so many requests under way only wait longer in a queue",
    };
    match seen {
        [] => format!("Nothing was measured that could be full; likely {place}."),
        seen => format!("Nothing is full ({}): {place}.", seen.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::posix::testing::{case, machine, step, sweep};

    fn found(steps: &[Step], machine: &Machine) -> Option<Knee> {
        knee(&points(steps, &case(0)), &case(0), machine)
    }

    fn quiet() -> Machine {
        Machine { network: None, disk_bytes_per_second: None, ..machine() }
    }

    /// c servers, each of 1 GB/s: what n jobs get of them, and how long they wait then.
    fn saturating(servers: u32, jobs: &[u32]) -> Vec<Step> {
        let point = |jobs: &u32| {
            let (jobs, servers) = (f64::from(*jobs), f64::from(servers));
            (jobs as u32, jobs.min(servers), 100.0 * (jobs / servers).max(1.0))
        };
        sweep(&case(0), &jobs.iter().map(point).collect::<Vec<_>>())
    }

    #[test]
    fn the_published_sweep_has_its_knee_where_the_bandwidth_stops_and_not_at_more() {
        // 2101, 9519 and 8089 MiB/s with 1, 32 and 128 jobs; the latencies that follow from them for blocks of 1 MiB.
        let steps = sweep(&case(0), &[(1, 2.2, 600.0), (32, 9.98, 4000.0), (128, 8.48, 19000.0)]);
        let knee = found(&steps, &machine()).unwrap();
        assert_eq!((knee.jobs, knee.reason), (32, Reason::Disk));
        let network =
            Machine { network: Some(crate::record::Link { name: "ens5".into(), bits_per_second: 90e9 }), ..machine() };
        let knee = found(&steps, &network).unwrap();
        assert_eq!(knee.reason, Reason::Network);
        assert_eq!(
            knee.text,
            "32 jobs are the knee: 9.98 GB/s, p99 4.00 ms. 128 jobs give 15 % less, and p99 is 4.8 times as long. The network is \
             full: 89 % of ens5 (90 Gb/s)."
        );
    }

    #[test]
    fn p99_that_leaps_while_the_bandwidth_still_creeps_up_is_past_the_knee() {
        let steps =
            sweep(&case(0), &[(1, 1.0, 100.0), (2, 1.9, 120.0), (4, 3.5, 150.0), (8, 4.0, 900.0), (16, 4.1, 2500.0)]);
        assert_eq!(found(&steps, &quiet()).unwrap().jobs, 4);
    }

    #[test]
    fn a_small_p99_that_trebles_while_all_scales_is_no_knee() {
        let steps = sweep(&case(0), &[(1, 1.0, 10.0), (2, 1.9, 35.0), (4, 3.7, 40.0), (8, 3.7, 85.0)]);
        assert_eq!(found(&steps, &quiet()).unwrap().jobs, 4);
    }

    #[test]
    fn a_wait_that_only_the_mean_shows_counts_as_well() {
        let mut steps = sweep(&case(0), &[(1, 10.0, 40.0), (2, 16.0, 40.0), (4, 17.2, 39.0), (8, 18.4, 39.0)]);
        let means = [20.0, 30.0, 60.0, 110.0];
        steps.iter_mut().zip(means).for_each(|(step, mean)| step.outcome.latency.mean = mean);
        let knee = found(&steps, &quiet()).unwrap();
        assert_eq!(knee.jobs, 2);
        assert!(knee.text.contains("8 jobs give 15 % more, and the mean is 3.7 times as long"), "{}", knee.text);
    }

    #[test]
    fn one_bad_point_in_between_is_no_knee() {
        let steps = sweep(&case(0), &[(1, 1.0, 100.0), (2, 0.9, 400.0), (4, 3.6, 120.0), (8, 7.0, 130.0)]);
        assert_eq!(found(&steps, &quiet()), None);
    }

    #[test]
    fn there_is_no_knee_while_the_last_point_is_the_best() {
        assert_eq!(found(&saturating(16, &[1, 2, 4, 8, 16]), &quiet()), None);
        assert_eq!(found(&saturating(16, &[4]), &quiet()), None);
        assert_eq!(found(&[], &quiet()), None);
    }

    #[test]
    fn a_sweep_ends_two_points_past_the_knee_and_never_within_a_number_of_jobs() {
        let steps = saturating(4, &[1, 2, 4, 8, 16]);
        assert!(!is_past(&steps[..4], &case(16)));
        assert!(is_past(&steps, &case(32)));
        // The rounds of 16 that follow the first one are still made.
        assert!(!is_past(&steps, &case(16)));
        assert!(!is_past(&saturating(64, &[1, 2, 4, 8, 16]), &case(32)));
        assert!(!is_past(&steps, &Case { target: "other".into(), ..case(32) }));
    }

    #[test]
    fn rounds_count_with_their_median() {
        let rounds = [(1.0, 100.0), (9.0, 9000.0), (1.2, 110.0)];
        let steps: Vec<_> = rounds.iter().map(|(rate, p99)| step(case(1), *rate, *p99)).collect();
        let points = points(&steps, &case(0));
        assert_eq!((points.len(), points[0].bytes_per_second, points[0].p99), (1, 1.2e9, 110.0));
    }

    #[test]
    fn what_is_full_is_read_off_the_knee_and_what_follows() {
        let cpu = |machine: f64, fio: f64| {
            let mut steps = saturating(4, &[1, 2, 4, 8]);
            steps.iter_mut().for_each(|step| step.outcome.cpu = Cpu { machine, fio });
            found(&steps, &quiet()).unwrap()
        };
        assert_eq!(cpu(780.0, 100.0).reason, Reason::Processors);
        assert_eq!(cpu(780.0, 500.0).reason, Reason::Readers);
        assert_eq!(cpu(500.0, 395.0).reason, Reason::Readers);
        let waiting = cpu(300.0, 100.0);
        assert_eq!(waiting.reason, Reason::FileSystem);
        assert!(waiting.text.contains("Nothing is full (the processors are 38 % busy)"), "{}", waiting.text);
    }

    #[test]
    fn several_clients_have_a_card_each_and_several_workers_a_disk_each() {
        let topology = Case { clients: 4, workers: 2, ..case(0) };
        let reason = |rate: f64| {
            let steps = sweep(&topology, &[(1, rate, 100.0), (2, rate, 200.0)]);
            knee(&points(&steps, &topology), &topology, &machine()).unwrap().reason
        };
        assert_eq!(reason(45.0), Reason::Network);
        assert_eq!(reason(18.0), Reason::Disk);
        assert_eq!(reason(30.0), Reason::FileSystem);
    }

    #[test]
    fn more_than_the_card_carries_came_another_way() {
        let steps = sweep(&case(0), &[(1, 40.0, 100.0), (2, 40.0, 200.0)]);
        let machine = Machine { disk_bytes_per_second: None, ..machine() };
        let knee = found(&steps, &machine).unwrap();
        assert_eq!(knee.reason, Reason::FileSystem);
        assert!(knee.text.contains("much of it did not cross the network"), "{}", knee.text);
    }

    proptest! {
        #[test]
        fn so_many_jobs_as_there_are_servers_are_the_knee(power in 0_u32..8, noise in prop::collection::vec(0.97_f64..1.03, 20)) {
            let servers = 1 << power;
            let mut steps = saturating(servers, &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
            for (step, noise) in steps.iter_mut().zip(noise.chunks(2)) {
                step.outcome.bytes_per_second *= noise[0].min(1.0);
                step.outcome.latency.p99 *= noise[1];
                step.outcome.latency.mean *= noise[1];
            }
            let knee = found(&steps, &quiet()).unwrap();
            prop_assert_eq!(knee.jobs, servers);
        }

        #[test]
        fn the_knee_is_a_point_and_stays_one_when_the_sweep_is_cut_past_it(
            figures in prop::collection::vec((0.001_f64..100.0, 1.0_f64..1e6), 1..10),
        ) {
            let jobs = (0..).map(|power| 1_u32 << power);
            let all: Vec<_> = figures.iter().zip(jobs).map(|((rate, p99), jobs)| (jobs, *rate, *p99)).collect();
            let steps = sweep(&case(0), &all);
            if let Some(knee) = found(&steps, &machine()) {
                let at = steps.iter().position(|step| step.case.jobs == knee.jobs).unwrap();
                prop_assert!(at + 1 < steps.len());
                let cut = found(&steps[..at + 2], &machine()).unwrap();
                prop_assert_eq!(cut.jobs, knee.jobs);
            }
        }
    }
}
