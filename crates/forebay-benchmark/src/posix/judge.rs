//! What a record means, in sentences with figures: the rules of thumb of the published benchmark, applied.
//!
//! | rule | finds |
//! | --- | --- |
//! | `headline` | the highest of all patterns, which the published rule takes for the ceiling |
//! | `against` | ratios to other targets, case by case of one run |
//! | `warm` | what was to be warm and came from the origin; or that nothing did |
//! | `knee` | per sweep: the number of jobs to work with, and what is full then |
//! | `cold` | cold steps in which a byte is counted more than once |
//! | `flat` | more jobs give nothing from the first step on |
//! | `network` | a FUSE client reaches 55 to 65 % of its card with a warm cache in memory |
//! | `patterns` | shared against distinct files, and at how many jobs each has its peak |
//! | `layouts` | several files against a single one: 10 to 15 % more is usual |
//! | `cold-warm` | warm is 10 to 50 times cold; less, and the warm run may have missed |
//! | `tail` | p99 above ten times the mean |
//! | `files` | fewer files than jobs: locks |
//! | `rounding` | jobs that the distinct pattern does not run |
//! | `block` | blocks over 1 MiB |
//! | `short` | steps that read for less than a second |
//! | `neighbours` | steps beside which the processors did much else |
//! | `cpu` | what a gigabyte a second costs in processors |
//! | `noise` | rounds of the same that differ |
//! | `scaling` | more workers and clients ([`super::scaling`]) |
//! | `unfinished` | a run that did not come to its end |

mod between;
mod sweep;
mod warm;

use crate::record::{Case, Finding, Level, Measured, Record, Step, Target};

use super::knee::{self, Point, points};
use super::plan::same_sweep;
use super::scaling;

/// A sweep as it was measured.
struct Sweep<'a> {
    /// One of its cases.
    case: &'a Case,
    /// Ascending.
    points: Vec<Point>,
    /// All rounds.
    steps: Vec<&'a Step>,
    /// With more jobs, some read what others have just brought into the cache.
    most_jobs: u32,
}

impl Sweep<'_> {
    /// The points in which no byte is counted that was cold for another job only.
    fn once(&self) -> &[Point] {
        let beyond = self.points.iter().position(|point| point.jobs > self.most_jobs);
        self.points.get(..beyond.unwrap_or(self.points.len())).unwrap_or_default()
    }
}

/// What the rules look at.
struct Evidence<'a> {
    record: &'a Record,
    targets: &'a [Target],
    sweeps: Vec<Sweep<'a>>,
}

impl Evidence<'_> {
    /// The target of interest.
    fn first(&self) -> &str {
        self.targets.first().map(|target| target.name.as_str()).unwrap_or_default()
    }

    /// Whether a target is a mount of ours, whose counters have names that are known.
    fn is_ours(&self, target: &str) -> bool {
        self.targets.iter().any(|known| known.name == target && known.file_system.contains("forebay"))
    }

    /// A setting that is a number.
    fn number(&self, name: &str) -> Option<u32> {
        self.record.settings.get(name)?.parse().ok()
    }
}

/// What the record means; nothing of a record of another benchmark.
#[must_use]
pub fn findings(record: &Record) -> Vec<Finding> {
    let Measured::Posix { targets, steps } = &record.measured else { return Vec::new() };
    let evidence = Evidence { record, targets, sweeps: sweeps(record, steps) };
    [
        between::headline(&evidence),
        warm::proof(&evidence),
        between::against(&evidence),
        sweep::knees(&evidence),
        sweep::cold(&evidence),
        between::network(&evidence),
        between::patterns(&evidence),
        between::layouts(&evidence),
        between::cold_and_warm(&evidence),
        sweep::tails(&evidence),
        sweep::files(&evidence),
        sweep::blocks(&evidence),
        sweep::short(&evidence),
        sweep::neighbours(&evidence),
        sweep::processors(&evidence),
        sweep::noise(&evidence),
        scaling::findings(&scaling::tables(&[record])),
        unfinished(record),
    ]
    .concat()
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
                most_jobs: knee::most_jobs(&step.case, &record.settings),
            }),
        }
    }
    sweeps
}

fn unfinished(record: &Record) -> Vec<Finding> {
    if record.finished {
        return Vec::new();
    }
    let text = "The run did not come to its end: what follows from steps that are missing is not known.".to_owned();
    let next = "The same command with `--output` and this directory goes on after the last step.".to_owned();
    vec![finding("unfinished", Level::Info, text).next(next)]
}

fn finding(rule: &str, level: Level, text: String) -> Finding {
    Finding { rule: rule.to_owned(), level, text, next: None }
}

/// Adds what to do.
trait Next {
    fn next(self, next: impl Into<String>) -> Self;
}

impl Next for Finding {
    fn next(self, next: impl Into<String>) -> Self {
        Self { next: Some(next.into()), ..self }
    }
}

#[cfg(test)]
mod tests;
