//! Records of `forebay bench posix` side by side.

use super::ratios::{headings_with_ratios, with_ratios};
use crate::posix::plan::same_sweep;
use crate::record::{CacheState, Case, Measured, Outcome, Record, Step};
use crate::report::document::{Cell, Section, Table};
use crate::report::plot::{Kind, Line, Plot};
use crate::report::posix::{groups, lines_of};
use crate::report::sweeps::{Point, Sweep, reading, sweeps};
use crate::report::units::Unit;
use crate::spread::Spread;

/// A section for each way of reading that all records have, and which targets are compared if that is not plain.
pub(super) fn sections(records: &[(String, Record)]) -> (Vec<Section>, Option<String>) {
    let (steps, note) = comparable(records);
    let all: Vec<Vec<Sweep>> = steps.iter().zip(records).map(|(steps, (_, record))| sweeps(steps, record)).collect();
    let mut sections = Vec::new();
    for group in groups(&all[0]) {
        let sides: Vec<Vec<&Sweep>> = group.iter().filter_map(|sweep| alike(sweep, &all)).collect();
        let section = Section::new(reading(&group[0].case))
            .plot(over_jobs("Throughput", Kind::linear(Unit::Rate), records, &sides, |sweep, jobs| {
                at(sweep, jobs)?.throughput()
            }))
            .plot(over_jobs("p99 latency", Kind::log(Unit::Micros), records, &sides, |sweep, jobs| {
                at(sweep, jobs)?.spread(p99)
            }))
            .table(side_by_side(records, &sides));
        sections.push(section);
    }
    (sections, note)
}

/// The sweep of each record that is like `sweep`; none, if one of them lacks it.
fn alike<'a>(sweep: &Sweep, all: &'a [Vec<Sweep>]) -> Option<Vec<&'a Sweep>> {
    let own = |sweeps: &'a Vec<Sweep>| sweeps.iter().find(|other| same_sweep(&sweep.case, &other.case));
    all.iter().map(own).collect()
}

fn at(sweep: &Sweep, jobs: u32) -> Option<&Point> {
    sweep.points.iter().find(|point| point.jobs == jobs)
}

fn p99(outcome: &Outcome) -> f64 {
    outcome.latency.p99
}

fn over_jobs(
    title: &str,
    y: Kind,
    records: &[(String, Record)],
    sides: &[Vec<&Sweep>],
    figure: impl Fn(&Sweep, u32) -> Option<Spread>,
) -> Plot {
    let cases: Vec<&Case> = sides.iter().map(|side| &side[0].case).collect();
    let several_targets = cases.iter().any(|case| case.target != cases[0].target);
    let several_states = cases.iter().any(|case| case.state != cases[0].state);
    let mut lines = Vec::new();
    for side in sides {
        let case = &side[0].case;
        for (number, ((name, _), sweep)) in records.iter().zip(side).enumerate() {
            let mut name = name.clone();
            if several_targets {
                name = format!("{name}, {}", case.target);
            }
            if several_states {
                name = format!("{name}, {}", case.state.name());
            }
            let shape = cases.iter().position(|other| other.target == case.target).unwrap_or(0) + number;
            let points = sweep.points.iter().filter_map(|point| Some((point.jobs, figure(sweep, point.jobs)?)));
            let hollow = case.state != CacheState::Warm;
            let line = Line { name, colour: number, shape, hollow, marked: sweep.mark(), ..Line::default() };
            lines.extend(lines_of(line, sweep, &points.collect::<Vec<_>>()));
        }
    }
    let along = "jobs (numjobs)".to_owned();
    Plot { title: title.to_owned(), along, x: Kind::log(Unit::Number), y, lines, ..Plot::default() }
}

/// Every number of jobs that all records have.
fn side_by_side(records: &[(String, Record)], sides: &[Vec<&Sweep>]) -> Table {
    let mut headings = vec!["target".to_owned(), "cache".to_owned(), "jobs".to_owned()];
    let points = || sides.iter().flatten().flat_map(|sweep| &sweep.points);
    let rates = Unit::Rate.common(points().map(|point| point.outcome.bytes_per_second));
    let times = Unit::Micros.common(points().map(|point| point.outcome.latency.p99));
    let tails = format!("p99, {}", times.name());
    headings.extend(headings_with_ratios(&[rates.name(), &tails, "CPU % per GB/s"], records));
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut table = Table::new("", &headings);
    for side in sides {
        for point in &side[0].points {
            let outcomes: Option<Vec<_>> =
                side.iter().map(|sweep| sweep.points.iter().find(|other| other.jobs == point.jobs)).collect();
            let Some(outcomes) = outcomes else { continue };
            let case = &side[0].case;
            let mut cells =
                vec![Cell::words(&case.target), Cell::words(case.state.name()), Cell::written(point.jobs.to_string())];
            let throughput = outcomes.iter().map(|point| point.throughput());
            cells.extend(with_ratios(throughput.collect(), rates, true));
            let tails = outcomes.iter().map(|point| point.spread(p99));
            cells.extend(with_ratios(tails.collect(), times, false));
            let cpu = outcomes.iter().map(|point| point.cpu_per_gigabyte(case));
            cells.extend(with_ratios(cpu.collect(), Unit::Percent.common([]), false));
            table.row(cells);
        }
    }
    table
}

/// The steps of each record under names that can be compared. Targets that all records have keep their names. If there is none, the
/// first of each stand against each other. Of records with one topology each, that is no part of the case: it is named above.
fn comparable(records: &[(String, Record)]) -> (Vec<Vec<Step>>, Option<String>) {
    let parts: Vec<(Vec<&str>, &[Step])> = records
        .iter()
        .filter_map(|(_, record)| match &record.measured {
            Measured::Posix { targets, steps } => {
                Some((targets.iter().map(|target| target.name.as_str()).collect(), steps.as_slice()))
            }
            Measured::Read { .. } => None,
        })
        .collect();
    let Some((first, _)) = parts.first() else { return (Vec::new(), None) };
    let common: Vec<&str> =
        first.iter().copied().filter(|name| parts.iter().all(|(names, _)| names.contains(name))).collect();
    let one_topology = parts.iter().all(|(_, steps)| {
        let of = |step: &Step| (step.case.clients, step.case.workers);
        steps.iter().all(|step| of(step) == of(&steps[0]))
    });
    let renamed = |(names, steps): &(Vec<&str>, &[Step])| {
        let kept = steps.iter().filter(|step| {
            let target = step.case.target.as_str();
            if common.is_empty() { names.first() == Some(&target) } else { common.contains(&target) }
        });
        let renamed = kept.map(|step| {
            let mut step = step.clone();
            if common.is_empty() {
                step.case.target = first.first().copied().unwrap_or_default().to_owned();
            }
            if one_topology {
                (step.case.clients, step.case.workers) = (1, 0);
            }
            step
        });
        renamed.collect()
    };
    let firsts: Vec<&str> = parts.iter().filter_map(|(names, _)| names.first().copied()).collect();
    let note = format!("The first target of each is compared: {}.", firsts.join(", "));
    (parts.iter().map(renamed).collect(), common.is_empty().then_some(note))
}
