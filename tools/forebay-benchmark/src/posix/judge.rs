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
mod evidence;
mod finding;
mod sweep;
mod warm;

use crate::record::{Finding, Level, Measured, Record};

use self::evidence::Evidence;
use self::finding::{Next as _, finding};
use super::scaling;

/// What the record means; nothing of a record of another benchmark.
#[must_use]
pub fn findings(record: &Record) -> Vec<Finding> {
    let Measured::Posix { targets, steps } = &record.measured else { return Vec::new() };
    let evidence = Evidence::new(record, targets, steps);
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

fn unfinished(record: &Record) -> Vec<Finding> {
    if record.finished {
        return Vec::new();
    }
    let text = "The run did not come to its end: what follows from steps that are missing is not known.".to_owned();
    let next = "The same command with `--output` and this directory goes on after the last step.".to_owned();
    vec![finding("unfinished", Level::Info, text).next(next)]
}

#[cfg(test)]
mod tests;
