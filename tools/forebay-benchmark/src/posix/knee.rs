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
//! That is of the medians of the rounds. A knee is *shown* if all later points are past it even so far as rounds
//! differ: with the highest bandwidth and the shortest wait of theirs against the lowest and the longest of its own.
//! Else there may be none, and it is not marked. With one round each this cannot be known ([`Certainty`]).
//!
//! What is full is then read off: the network at [`FULL_LINK`] of its speed (TCP carries that much of a fast card's), the disk
//! likewise, the processors at [`BUSY`]; and if half or more of those is fio's own, it is the readers. If nothing is full, then
//! requests wait for one another: a lock, or a queue that is too short, in the file system or below.

use std::collections::BTreeMap;

use crate::record::{CacheState, Case, Cpu, Layout, Machine, Pattern, Step};
use crate::spread::Spread;

use super::plan::same_sweep;
use super::words::{self, bits, jobs, percent, rate, times};

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
/// Steps that read for less, in seconds, say more of starting than of reading. (fio ends a step of a second some milliseconds early.)
pub const SHORTEST_STEP: f64 = 0.95;
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
    /// How long the shortest of the rounds read.
    pub seconds: f64,
    /// How the rounds differ.
    pub spreads: Spreads,
}

/// What rounds differ by.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spreads {
    /// [`Point::bytes_per_second`].
    pub bytes: Spread,
    /// [`Point::operations_per_second`].
    pub operations: Spread,
    /// [`Point::p99`].
    pub p99: Spread,
    /// p99 or the mean, whichever is more.
    wait: Spread,
}

impl Point {
    /// What an operation takes: p99, or the mean where that is more.
    fn wait(&self) -> f64 {
        self.p99.max(self.mean)
    }

    /// Whether it read for so long that fio's start and end are little of it.
    pub(super) fn is_long(&self) -> bool {
        self.seconds >= SHORTEST_STEP
    }

    /// As good as its worst round.
    fn at_worst(&self) -> Measure {
        Measure { jobs: self.jobs, bytes: self.spreads.bytes.low, wait: self.spreads.wait.high }
    }

    /// As good as its best round.
    fn at_best(&self) -> Measure {
        Measure { jobs: self.jobs, bytes: self.spreads.bytes.high, wait: self.spreads.wait.low }
    }
}

/// What of a point decides.
#[derive(Clone, Copy)]
struct Measure {
    jobs: u32,
    bytes: f64,
    wait: f64,
}

impl From<&Point> for Measure {
    fn from(point: &Point) -> Self {
        Self { jobs: point.jobs, bytes: point.bytes_per_second, wait: point.wait() }
    }
}

/// Whether a knee is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// By more than rounds of the same differ.
    Shown,
    /// Of one round each, so that it is unknown what two of them would differ by.
    OneRound,
    /// Rounds of the same differ by as much.
    WithinSpread,
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
    /// Whether it is more than chance.
    pub certainty: Certainty,
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
    let spread = |figure: &dyn Fn(&Step) -> f64| Spread::of(rounds.iter().map(|step| figure(step))).unwrap_or_default();
    let middle = |figure: &dyn Fn(&Step) -> f64| spread(figure).middle;
    Point {
        jobs: rounds.first().map_or(0, |step| step.case.jobs),
        bytes_per_second: middle(&|step| step.outcome.bytes_per_second),
        operations_per_second: middle(&|step| step.outcome.operations_per_second),
        mean: middle(&|step| step.outcome.latency.mean),
        p99: middle(&|step| step.outcome.latency.p99),
        cpu: Cpu::median_of(rounds.iter().map(|step| step.outcome.cpu)),
        seconds: spread(&|step| step.outcome.seconds).low,
        spreads: Spreads {
            bytes: spread(&|step| step.outcome.bytes_per_second),
            operations: spread(&|step| step.outcome.operations_per_second),
            p99: spread(&|step| step.outcome.latency.p99),
            wait: spread(&|step| step.outcome.latency.p99.max(step.outcome.latency.mean)),
        },
    }
}

/// Whether these are past a point by more than rounds differ.
fn certainty(point: &Point, past: &[Point]) -> Certainty {
    if std::iter::once(point).chain(past).any(|point| point.spreads.bytes.rounds < 2) {
        Certainty::OneRound
    } else if past.iter().any(|past| is_worth_it(point.at_worst(), past.at_best())) {
        Certainty::WithinSpread
    } else {
        Certainty::Shown
    }
}

/// The index of the knee: of the best point, which is the last one when there is no knee yet.
fn best(points: &[Point]) -> usize {
    (1..points.len())
        .fold(0, |best, next| if is_worth_it((&points[best]).into(), (&points[next]).into()) { next } else { best })
}

fn is_worth_it(from: Measure, to: Measure) -> bool {
    let growth = |before: f64, after: f64| if before > 0.0 { after / before } else { f64::INFINITY };
    let bandwidth = growth(from.bytes, to.bytes);
    let ideal = growth(f64::from(from.jobs), f64::from(to.jobs));
    let doublings = ideal.log2();
    let slack = SLACK.powf(doublings);
    let scales = bandwidth - 1.0 >= (ideal - 1.0) / 2.0;
    let allowed = bandwidth * if scales { slack.max(LEAP) } else { slack };
    bandwidth >= GAIN.powf(doublings) && growth(from.wait, to.wait) <= allowed
}

/// The most jobs of a sweep with which each byte is read once. Warm it does not matter; cold, a job that reads what another has
/// just brought reads it from the cache. The settings, as a record has them, know how many files there are.
#[must_use]
pub fn max_jobs(sweep: &Case, settings: &BTreeMap<String, String>) -> u32 {
    let files = match sweep.layout {
        Layout::Single => return if sweep.state == CacheState::Cold { 1 } else { u32::MAX },
        Layout::Multiple => "files",
        Layout::Small => "small-files",
    };
    match (sweep.state, sweep.pattern) {
        (CacheState::Warm | CacheState::Partial, _) => u32::MAX,
        (CacheState::Cold, Pattern::Shared) => 1,
        (CacheState::Cold, Pattern::Distinct) => settings.get(files).and_then(|files| files.parse().ok()).unwrap_or(1),
    }
}

/// Whether the sweep of `next` needs to go no further: the points with fewer jobs than it hold a knee and two more, by more than rounds differ.
#[must_use]
pub fn is_past(steps: &[Step], next: &Case) -> bool {
    let mut before = points(steps, next);
    before.retain(|point| point.jobs < next.jobs);
    let at = best(&before);
    // Where rounds differ by as much, what follows may yet be worth it.
    at + POINTS_PAST < before.len() && certainty(&before[at], &before[at + 1..]) != Certainty::WithinSpread
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
    let certainty = certainty(&point, past);
    let (is, gives) = (if point.jobs == 1 { "is" } else { "are" }, if next.jobs == 1 { "gives" } else { "give" });
    let (rate, p99) = (words::measured_rate(&point.spreads.bytes), words::measured_time(&point.spreads.p99));
    let more = compared(next.bytes_per_second / point.bytes_per_second);
    let longer = longer(&point, next);
    let text = format!(
        "{} {is} the knee: {rate}, p99 {p99}. {} {gives} {more}, and {longer}. {why}",
        jobs(point.jobs),
        jobs(next.jobs)
    );
    Some(Knee { jobs: point.jobs, point, reason, certainty, text })
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
    if let Some(Cpu { machine: busy, fio, others, .. }) =
        busiest.map(|point| point.cpu).filter(|_| sweep.clients <= 1 && all > 0.0)
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
            let others = if others >= busy / 10.0 {
                format!(", {} of it with what other programs do", percent(others / busy))
            } else {
                String::new()
            };
            return (Reason::Processors, format!("The processors are full: {share}{others}."));
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
        (CacheState::Cold | CacheState::Partial, _, _) => "requests wait for the origin",
        (CacheState::Warm, Layout::Single, _) => "requests for one file wait for one another",
        (CacheState::Warm, _, Pattern::Shared) => "requests wait for a lock or in a queue of the file system",
        (CacheState::Warm, _, Pattern::Distinct) => "so many requests under way only wait longer in a queue",
    };
    match seen {
        [] => format!("Nothing was measured that could be full; likely {place}."),
        seen => format!("Nothing is full ({}): {place}.", seen.join(", ")),
    }
}

#[cfg(test)]
mod tests;
