//! What workers served over time, for plots: the last quarter of an hour finely, the last day coarsely, in bounded
//! memory.
//!
//! Workers count bytes since they started. A sample takes the difference to the one before; a counter that went back
//! was started anew, and counts from nothing. Where a worker did not answer there is a gap, not a zero.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// How often workers are asked.
pub(crate) const STEP: Duration = Duration::from_secs(5);
/// The fine ring: 15 minutes.
const FINE: usize = 180;
/// Samples in a point of the coarse ring: 2 minutes.
const COARSE_EVERY: u32 = 24;
/// The coarse ring: a day.
const COARSE: usize = 720;
/// Workers that have a series of their own; more are in the totals only.
const MAX_WORKERS: usize = 512;

/// Which ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Window {
    /// The last 15 minutes, a point each 5 seconds.
    #[default]
    Recent,
    /// The last 24 hours, a point each 2 minutes.
    Day,
}

/// Bytes a second, by where they came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Throughput {
    /// The workers' memory.
    pub memory: f64,
    /// The workers' disks.
    pub disk: f64,
    /// The origins.
    pub origin: f64,
}

/// A point of a plot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Point {
    /// When it ends, in milliseconds since 1970.
    pub at_ms: u64,
    /// Of all workers that answered.
    pub all: Throughput,
    /// The part of the bytes that came from memory or disk; absent when there were none.
    pub hit_ratio: Option<f64>,
    /// By worker; one that did not answer is absent.
    pub workers: BTreeMap<String, Throughput>,
}

/// Points, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Plot {
    /// Seconds between points.
    pub step_seconds: u64,
    /// The points.
    pub points: Vec<Point>,
}

/// What a worker has served since it started, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Served {
    memory: u64,
    disk: u64,
    origin: u64,
}

/// A point as it is kept: names are shared with all others.
#[derive(Debug, Default)]
struct Sample {
    at_ms: u64,
    all: Throughput,
    workers: BTreeMap<Arc<str>, Throughput>,
}

#[derive(Debug, Default)]
pub(crate) struct Series {
    /// The last answer of each worker, and when it came.
    last: BTreeMap<Arc<str>, (u64, Served)>,
    fine: VecDeque<Sample>,
    coarse: VecDeque<Sample>,
    /// Fine points since the last coarse one.
    since_coarse: u32,
}

impl Series {
    /// Takes what the workers answered at `now`, milliseconds since 1970.
    pub(crate) fn sample<'a>(&mut self, now: u64, answers: impl IntoIterator<Item = (&'a Arc<str>, &'a Value)>) {
        let mut point = Sample { at_ms: now, ..Sample::default() };
        let mut last = BTreeMap::new();
        for (name, stats) in answers {
            let Some(served) = served(stats) else { continue };
            if let Some((before, so_far)) = self.last.get(name)
                && now > *before
            {
                let throughput = served.since(*so_far, now - before);
                point.all = point.all.and(throughput);
                if point.workers.len() < MAX_WORKERS {
                    let name = self.last.get_key_value(name).map_or(name, |(name, _)| name);
                    point.workers.insert(Arc::clone(name), throughput);
                }
            }
            let name = self.last.get_key_value(name).map_or(name, |(name, _)| name);
            last.insert(Arc::clone(name), (now, served));
        }
        // One that did not answer goes on from its last answer, unless that is long ago.
        let forgotten = now.saturating_sub(FINE as u64 * STEP.as_millis() as u64);
        for (name, (at, served)) in std::mem::take(&mut self.last) {
            if at >= forgotten {
                last.entry(name).or_insert((at, served));
            }
        }
        self.last = last;
        push(&mut self.fine, point, FINE);
        self.since_coarse += 1;
        if self.since_coarse == COARSE_EVERY {
            self.since_coarse = 0;
            let recent = self.fine.len().saturating_sub(COARSE_EVERY as usize);
            let point = mean(self.fine.range(recent..));
            push(&mut self.coarse, point, COARSE);
        }
    }

    pub(crate) fn plot(&self, window: Window) -> Plot {
        let step = STEP.as_secs();
        match window {
            Window::Recent => Plot { step_seconds: step, points: self.fine.iter().map(Point::from).collect() },
            Window::Day => {
                let step_seconds = step * u64::from(COARSE_EVERY);
                Plot { step_seconds, points: self.coarse.iter().map(Point::from).collect() }
            }
        }
    }
}

impl From<&Sample> for Point {
    fn from(sample: &Sample) -> Self {
        let workers = sample.workers.iter().map(|(name, throughput)| (name.to_string(), *throughput)).collect();
        Self { at_ms: sample.at_ms, all: sample.all, hit_ratio: sample.all.hit_ratio(), workers }
    }
}

impl Served {
    fn since(self, before: Self, millis: u64) -> Throughput {
        let restarted = self.memory < before.memory || self.disk < before.disk || self.origin < before.origin;
        let before = if restarted { Self::default() } else { before };
        let rate = |now: u64, before: u64| (now - before) as f64 * 1000.0 / millis as f64;
        Throughput {
            memory: rate(self.memory, before.memory),
            disk: rate(self.disk, before.disk),
            origin: rate(self.origin, before.origin),
        }
    }
}

impl Throughput {
    fn and(self, other: Self) -> Self {
        Self { memory: self.memory + other.memory, disk: self.disk + other.disk, origin: self.origin + other.origin }
    }

    fn over(self, count: f64) -> Self {
        Self { memory: self.memory / count, disk: self.disk / count, origin: self.origin / count }
    }

    fn hit_ratio(self) -> Option<f64> {
        let hits = self.memory + self.disk;
        let all = hits + self.origin;
        (all > 0.0).then(|| hits / all)
    }
}

/// The counters in what a worker answers to `Op::Stats`.
fn served(stats: &Value) -> Option<Served> {
    let count = |name: &str| stats.pointer(&format!("/worker/{name}"))?.as_u64();
    Some(Served { memory: count("bytes_memory")?, disk: count("bytes_disk")?, origin: count("bytes_origin")? })
}

fn mean<'a>(points: impl ExactSizeIterator<Item = &'a Sample>) -> Sample {
    let count = points.len().max(1) as f64;
    let mut mean = Sample::default();
    let mut counts: BTreeMap<Arc<str>, f64> = BTreeMap::new();
    for point in points {
        mean.at_ms = point.at_ms;
        mean.all = mean.all.and(point.all);
        for (name, throughput) in &point.workers {
            let sum = mean.workers.entry(Arc::clone(name)).or_default();
            *sum = sum.and(*throughput);
            *counts.entry(Arc::clone(name)).or_default() += 1.0;
        }
    }
    mean.all = mean.all.over(count);
    for (name, sum) in &mut mean.workers {
        *sum = sum.over(counts.get(name).copied().unwrap_or(1.0));
    }
    while mean.workers.len() > MAX_WORKERS {
        mean.workers.pop_last();
    }
    mean
}

fn push(ring: &mut VecDeque<Sample>, point: Sample, capacity: usize) {
    if ring.len() == capacity {
        ring.pop_front();
    }
    ring.push_back(point);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(memory: u64, origin: u64) -> Value {
        serde_json::json!({ "worker": { "bytes_memory": memory, "bytes_disk": 0, "bytes_origin": origin } })
    }

    fn sample(series: &mut Series, second: u64, answers: &[(&str, Value)]) {
        let answers: Vec<(Arc<str>, Value)> =
            answers.iter().map(|(name, value)| ((*name).into(), value.clone())).collect();
        series.sample(second * 1000, answers.iter().map(|(name, value)| (name, value)));
    }

    #[test]
    fn throughput_is_the_difference_of_counters_and_a_restart_counts_from_nothing() {
        let mut series = Series::default();
        sample(&mut series, 0, &[("a", stats(100, 0))]);
        sample(&mut series, 5, &[("a", stats(1100, 1000))]);
        sample(&mut series, 10, &[("a", stats(50, 0))]);
        let points = series.plot(Window::Recent).points;
        assert_eq!((points[0].hit_ratio, points[0].workers.len()), (None, 0));
        assert_eq!((points[1].all.memory, points[1].all.origin, points[1].hit_ratio), (200.0, 200.0, Some(0.5)));
        assert_eq!((points[2].all.memory, points[2].hit_ratio), (10.0, Some(1.0)));
    }

    #[test]
    fn a_worker_that_does_not_answer_leaves_a_gap() {
        let mut series = Series::default();
        sample(&mut series, 0, &[("a", stats(0, 0)), ("b", stats(0, 0))]);
        sample(&mut series, 5, &[("a", stats(500, 0)), ("b", Value::Null)]);
        sample(&mut series, 10, &[("a", stats(500, 0)), ("b", stats(1000, 0))]);
        let points = series.plot(Window::Recent).points;
        assert_eq!(points[1].workers.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(points[2].workers["b"].memory, 100.0);
    }

    #[test]
    fn rings_are_bounded_and_the_coarse_one_is_the_mean() {
        let mut series = Series::default();
        for step in 0..40_000u64 {
            sample(&mut series, step * 5, &[("a", stats(step * 50, 0))]);
        }
        let (recent, day) = (series.plot(Window::Recent), series.plot(Window::Day));
        assert_eq!((recent.points.len(), day.points.len(), day.step_seconds), (FINE, COARSE, 120));
        assert!(day.points.iter().all(|point| (point.all.memory - 10.0).abs() < 1e-9));
        assert_eq!(day.points[1].at_ms - day.points[0].at_ms, 120_000);
    }
}
