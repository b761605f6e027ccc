//! What the rules look at: a record, and its steps by sweeps.

use crate::posix::knee::{self, Point, points};
use crate::posix::plan::same_sweep;
use crate::record::{Case, Record, Step, Target};

/// What the rules look at.
pub(super) struct Evidence<'a> {
    pub(super) record: &'a Record,
    pub(super) targets: &'a [Target],
    pub(super) sweeps: Vec<Sweep<'a>>,
}

/// A sweep as it was measured.
pub(super) struct Sweep<'a> {
    /// One of its cases.
    pub(super) case: &'a Case,
    /// Ascending.
    pub(super) points: Vec<Point>,
    /// All rounds.
    pub(super) steps: Vec<&'a Step>,
    /// With more jobs, some read what others have just brought into the cache.
    pub(super) max_jobs: u32,
}

impl<'a> Evidence<'a> {
    pub(super) fn new(record: &'a Record, targets: &'a [Target], steps: &'a [Step]) -> Self {
        Self { record, targets, sweeps: sweeps(record, steps) }
    }

    /// The target of interest.
    pub(super) fn first(&self) -> &str {
        self.targets.first().map(|target| target.name.as_str()).unwrap_or_default()
    }

    /// Whether a target is a mount of ours, whose counters have names that are known.
    pub(super) fn is_ours(&self, target: &str) -> bool {
        self.targets.iter().any(|known| known.name == target && known.file_system.contains("forebay"))
    }

    /// A setting that is a number.
    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.record.settings.get(name)?.parse().ok()
    }
}

impl Sweep<'_> {
    /// The points in which no byte is counted that was cold for another job only.
    pub(super) fn once(&self) -> &[Point] {
        let beyond = self.points.iter().position(|point| point.jobs > self.max_jobs);
        self.points.get(..beyond.unwrap_or(self.points.len())).unwrap_or_default()
    }
}

fn sweeps<'a>(record: &Record, steps: &'a [Step]) -> Vec<Sweep<'a>> {
    let mut sweeps: Vec<Sweep<'_>> = Vec::new();
    for step in steps {
        match sweeps.iter_mut().find(|sweep| same_sweep(sweep.case, &step.case)) {
            Some(sweep) => sweep.steps.push(step),
            None => sweeps.push(Sweep {
                case: &step.case,
                points: points(steps, &step.case),
                steps: vec![step],
                max_jobs: knee::max_jobs(&step.case, &record.settings),
            }),
        }
    }
    sweeps
}
