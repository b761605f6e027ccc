//! The report of `forebay bench posix`: what fio read, by the way of reading.
//!
//! For each way of reading (which files, who reads which, in which order) there are four plots over the number of jobs, a line for each
//! target and state of its cache: throughput, with operations on the right since each has the same size; p99; what serving costs in
//! processors; and the latencies' percentiles at the knee.

use super::document::{Cell, Document, Headline, Section, Table};
use super::plot::{Kind, Level, Line, Plot, Right};
use super::sweeps::{Point, Sweep, figures, meaning, names, paired, reading, sweeps, together, topology};
use super::units::{PERCENTILES, Unit, count, counted, figure, link, micros, percent, rate, times};
use super::{common, published};
use crate::record::{Access, Case, Machine, Record, State, Step, Target};

/// How figures are made.
pub(super) const NOTES: &str = "GB and Gb are decimal (10⁹), KiB and MiB binary. Of several rounds the median is shown. Latency is completion \
                                latency as fio counts it; CPU is percent of one processor, as top shows it, without fio's own.";

/// The document of `record`, which is of these targets and steps.
pub(super) fn document(record: &Record, targets: &[Target], steps: &[Step]) -> Document {
    let sweeps = sweeps(steps, record);
    let main = targets.first().map_or("", |target| target.name.as_str());
    let report = Report { machine: &record.machine, steps, sweeps: &sweeps, main };
    let mut sections = vec![common::conditions(record, targets_table(targets)), report.against()];
    sections.extend(groups(&sweeps).iter().map(|group| report.group(group)));
    sections.extend([published::scaling(&[record]), published::baselines(record), report.clients()]);
    sections.retain(|section| !section.is_empty());
    let names: Vec<_> = targets.iter().map(|target| target.name.as_str()).collect();
    let document = Document {
        title: format!("Reading with fio: {}", names.join(" against ")),
        lead: common::lead(record),
        caution: common::caution(record),
        headlines: report.headlines(),
        findings: Vec::new(),
        sections,
        notes: NOTES,
    };
    document.with_findings(&record.findings)
}

fn targets_table(targets: &[Target]) -> Table {
    let mut table = Table::new("What was read", &["name", "directory", "file system", "cache filled by"]);
    for Target { name, path, file_system, cache, .. } in targets {
        table.row([name, path, file_system, cache].map(Cell::words).to_vec());
    }
    table
}

/// Sweeps by the way of reading, in the order in which they began.
pub(super) fn groups(sweeps: &[Sweep]) -> Vec<Vec<&Sweep>> {
    let mut groups: Vec<Vec<&Sweep>> = Vec::new();
    for sweep in sweeps {
        match groups.iter_mut().find(|group| together(&group[0].case, &sweep.case)) {
            Some(group) => group.push(sweep),
            None => groups.push(vec![sweep]),
        }
    }
    groups
}

/// How lines of a plot look: a colour and a shape for each target, dashes for a cold cache.
fn line(group: &[&Sweep], sweep: &Sweep, name: &str) -> Line {
    let mut kinds: Vec<(&str, String)> = Vec::new();
    for (target, topology) in group.iter().map(|sweep| (sweep.case.target.as_str(), topology(&sweep.case))) {
        if !kinds.contains(&(target, topology.clone())) {
            kinds.push((target, topology));
        }
    }
    let own = (sweep.case.target.as_str(), topology(&sweep.case));
    let colour = kinds.iter().position(|kind| *kind == own).unwrap_or(0);
    let dashed = sweep.case.state != State::Warm;
    let marked = sweep.knee.as_ref().map(|knee| (f64::from(knee.jobs), "knee".to_owned()));
    Line { name: name.to_owned(), colour, shape: colour, dashed, points: Vec::new(), marked }
}

struct Report<'a> {
    machine: &'a Machine,
    steps: &'a [Step],
    sweeps: &'a [Sweep],
    /// The name of the target of interest.
    main: &'a str,
}

impl Report<'_> {
    /// What is read off first: the most that there was, what it takes, and how that compares.
    fn headlines(&self) -> Vec<Headline> {
        let own = || self.sweeps.iter().filter(|sweep| sweep.case.target == self.main);
        let states = [State::Warm, State::Cold, State::Partial];
        let state = states.into_iter().find(|state| own().any(|sweep| sweep.case.state == *state));
        let state = state.unwrap_or(State::Warm);
        let most = |access: Access| {
            let of_access = own().filter(move |sweep| sweep.case.state == state && sweep.case.access == access);
            let highest = of_access.filter_map(|sweep| Some((sweep, sweep.highest()?)));
            let figure = |point: &Point| match access {
                Access::Sequential => point.outcome.bytes_per_second,
                Access::Random => point.outcome.operations_per_second,
            };
            highest.max_by(|one, other| figure(one.1).total_cmp(&figure(other.1)))
        };
        let of = |sweep: &Sweep, point: &Point| format!("{}, {}", reading(&sweep.case), counted(point.jobs, "job"));
        let mut headlines = Vec::new();
        let mut headline = |name: String, value: String, of: String| headlines.push(Headline { name, value, of });
        if let Some((sweep, point)) = most(Access::Sequential) {
            let network = self.machine.network.as_ref().zip(point.of_network(&sweep.case, self.machine));
            let network = network.map(|(net, part)| format!("; {} of {}", percent(part), link(net.bits_per_second)));
            headline(
                format!("Highest throughput, {}", state.name()),
                rate(point.outcome.bytes_per_second),
                format!("{}{}", of(sweep, point), network.unwrap_or_default()),
            );
        }
        if let Some((sweep, point)) = most(Access::Random) {
            let value = format!("{} IOPS", count(point.outcome.operations_per_second));
            headline(format!("Highest rate of random reads, {}", state.name()), value, of(sweep, point));
        }
        let leading = most(Access::Sequential).or_else(|| most(Access::Random));
        let Some((sweep, best)) = leading.and_then(|(sweep, _)| Some((sweep, sweep.best()?))) else { return headlines };
        let jobs = counted(best.jobs, "job");
        let place = if sweep.is_knee(best.jobs) { format!("at the knee, {jobs}") } else { format!("with {jobs}") };
        let sustained = format!("{place}: {}", rate(best.outcome.bytes_per_second));
        headline("p99 latency".to_owned(), micros(best.outcome.latency.p99), sustained);
        if let Some(cpu) = best.cpu_per_gigabyte(&sweep.case) {
            headline("CPU for each GB/s".to_owned(), format!("{} %", figure(cpu)), place);
        }
        for other in self.others(sweep) {
            let case = Case { jobs: best.jobs, ..sweep.case.clone() };
            if let Some(ratio) = paired(self.steps, &case, &other.case, figures::throughput) {
                let of = format!("of its throughput, with {jobs} each");
                headline(format!("Against {}", other.case.target), times(ratio), of);
            }
        }
        headlines
    }

    /// The same sweep of other targets.
    fn others(&self, sweep: &Sweep) -> impl Iterator<Item = &Sweep> {
        let alike = |other: &&Sweep| {
            let named_alike = Case { target: sweep.case.target.clone(), ..other.case.clone() };
            other.case.target != sweep.case.target && crate::posix::plan::same_sweep(&named_alike, &sweep.case)
        };
        self.sweeps.iter().filter(alike)
    }

    /// Ratios to the other targets at the number of jobs that is best for the first.
    fn against(&self) -> Section {
        let mut table = Table::new(
            "",
            &["reading", "cache", "jobs", "against", "GB/s", "its GB/s", "throughput", "p99", "CPU per GB/s"],
        );
        for sweep in self.sweeps.iter().filter(|sweep| sweep.case.target == self.main) {
            let Some(best) = sweep.best() else { continue };
            for other in self.others(sweep) {
                let case = Case { jobs: best.jobs, ..sweep.case.clone() };
                let theirs = other.points.iter().find(|point| point.jobs == best.jobs);
                let mut cells = vec![
                    Cell::words(reading(&sweep.case)),
                    Cell::words(sweep.case.state.name()),
                    Cell::written(best.jobs.to_string()),
                    Cell::words(&other.case.target),
                    Cell::number(best.outcome.bytes_per_second / 1e9),
                    Cell::known(theirs.map(|point| point.outcome.bytes_per_second / 1e9)),
                ];
                cells.extend(self.compared(&case, &other.case));
                table.row(cells);
            }
        }
        let words = format!(
            "{} divided by the other, at the number of jobs that is best for {}. Both were read in turn, round by round: each figure is \
             the median of the rounds' ratios.",
            self.main, self.main
        );
        Section::new("Ratios").says(words).table(table)
    }

    /// All of one way of reading.
    fn group(&self, group: &[&Sweep]) -> Section {
        let names = names(group);
        let case = &group[0].case;
        let lines = |points: &dyn Fn(&Sweep) -> Vec<(f64, f64)>| -> Vec<Line> {
            let lines = group.iter().zip(&names);
            let lines = lines.map(|(sweep, name)| Line { points: points(sweep), ..line(group, sweep, name) });
            lines.filter(|line| !line.points.is_empty()).collect()
        };
        let over_jobs = |title: &str, y: Kind, figure: &dyn Fn(&Sweep, &Point) -> Option<f64>| Plot {
            title: title.to_owned(),
            along: "jobs (numjobs)".to_owned(),
            x: Kind::log(Unit::Number),
            y,
            lines: lines(&|sweep| {
                let point = |point: &Point| Some((f64::from(point.jobs), figure(sweep, point)?));
                sweep.points.iter().filter_map(point).collect()
            }),
            ..Plot::default()
        };
        let throughput = Plot {
            right: Some(Right { unit: Unit::Count, of: case.block_bytes.max(1) as f64 }),
            levels: self.levels(group),
            ..over_jobs("Throughput, and IOPS on the right", Kind::linear(Unit::Rate), &|_, point| {
                Some(point.outcome.bytes_per_second)
            })
        };
        let p99 = over_jobs("p99 latency", Kind::log(Unit::Micros), &|_, point| Some(point.outcome.latency.p99));
        let cpu = over_jobs("CPU for each GB/s, without fio's own", Kind::linear(Unit::Percent), &|sweep, point| {
            point.cpu_per_gigabyte(&sweep.case)
        });
        let mut knees = Table::new("The knee: the number of jobs to work with, and why", &["", ""]);
        for (sweep, name) in group.iter().zip(&names) {
            let text = sweep.knee.as_ref().map_or_else(|| sweep.no_knee().to_owned(), |knee| knee.text.clone());
            knees.row(vec![Cell::words(name), Cell::words(text)]);
        }
        Section::new(reading(case))
            .says(meaning(case))
            .plot(throughput)
            .plot(p99)
            .plot(percentiles(group, &names))
            .plot(cpu)
            .table(knees)
            .table(self.figures(group))
            .table(self.ratios(group))
    }

    /// What the network and the disk could carry, of all clients and workers.
    fn levels(&self, group: &[&Sweep]) -> Vec<Level> {
        let case = &group[0].case;
        if group.iter().any(|sweep| topology(&sweep.case) != topology(case)) {
            return Vec::new();
        }
        let network = self.machine.network.as_ref().map(|net| Level {
            name: format!("network, {}", link(net.bits_per_second * f64::from(case.clients.max(1)))),
            y: net.bits_per_second / 8.0 * f64::from(case.clients.max(1)),
        });
        let disk = self.machine.disk_bytes_per_second.map(|disk| disk * f64::from(case.workers.max(1)));
        let disk = disk.map(|disk| Level { name: format!("disk, {}", rate(disk)), y: disk });
        network.into_iter().chain(disk).collect()
    }

    /// Every point in figures.
    fn figures(&self, group: &[&Sweep]) -> Table {
        let network = self.machine.network.is_some();
        let rounds = group.iter().any(|sweep| sweep.points.iter().any(|point| point.spread.is_some()));
        let cpu =
            group.iter().any(|sweep| sweep.points.iter().any(|point| point.cpu_per_gigabyte(&sweep.case).is_some()));
        let mut headings = vec!["line", "jobs", "GB/s"];
        headings.extend(rounds.then_some("±"));
        headings.extend(network.then_some("of network"));
        headings.extend(["IOPS", "mean", "p50", "p90", "p99", "p99.9", "max"]);
        headings.extend(cpu.then_some("CPU % per GB/s"));
        let mut table = Table::new("Figures; the knee is marked", &headings);
        for (sweep, name) in group.iter().zip(names(group)) {
            for point in &sweep.points {
                let latency = point.outcome.latency;
                let mut cells = vec![
                    Cell::words(&name),
                    Cell::written(point.jobs.to_string()).marked(sweep.is_knee(point.jobs)),
                    Cell::number(point.outcome.bytes_per_second / 1e9),
                ];
                cells.extend(rounds.then(|| {
                    Cell::written(point.spread.map_or("-".to_owned(), |part| format!("{:.0} %", part * 100.0)))
                }));
                let part = point.of_network(&sweep.case, self.machine);
                cells.extend(network.then(|| Cell::written(part.map_or("-".to_owned(), percent))));
                cells.push(Cell::written(count(point.outcome.operations_per_second)));
                let [p50, p90, _, p99, p999, max] = point.percentiles();
                cells.extend([latency.mean, p50, p90, p99, p999, max].map(Cell::micros));
                cells.extend(cpu.then(|| Cell::known(point.cpu_per_gigabyte(&sweep.case))));
                table.row(cells);
            }
        }
        table
    }

    /// The ratios to the other targets at every number of jobs.
    fn ratios(&self, group: &[&Sweep]) -> Table {
        let caption = format!("{} divided by the other, round by round", self.main);
        let mut table = Table::new(caption, &["against", "cache", "jobs", "throughput", "p99", "CPU per GB/s"]);
        for sweep in group.iter().filter(|sweep| sweep.case.target == self.main) {
            for other in self.others(sweep) {
                for point in &sweep.points {
                    let case = Case { jobs: point.jobs, ..sweep.case.clone() };
                    let mut cells = vec![
                        Cell::words(&other.case.target),
                        Cell::words(sweep.case.state.name()),
                        Cell::written(point.jobs.to_string()),
                    ];
                    cells.extend(self.compared(&case, &other.case));
                    table.row(cells);
                }
            }
        }
        table
    }

    /// Throughput, p99 and CPU of `case` by those of `other` with as many jobs.
    fn compared(&self, case: &Case, other: &Case) -> [Cell; 3] {
        [
            Cell::ratio(paired(self.steps, case, other, figures::throughput), true),
            Cell::ratio(paired(self.steps, case, other, figures::p99), false),
            Cell::ratio(paired(self.steps, case, other, figures::cpu), false),
        ]
    }

    /// What each client had of the whole, at the knee: whether they share it evenly.
    fn clients(&self) -> Section {
        let mut table = Table::new("", &["reading", "cache", "jobs", "client", "GB/s", "p99"]);
        for sweep in self.sweeps {
            let Some(best) = sweep.best() else { continue };
            let case = Case { jobs: best.jobs, ..sweep.case.clone() };
            let Some(step) = self.steps.iter().find(|step| step.case == case) else { continue };
            for client in &step.outcome.clients {
                table.row(vec![
                    Cell::words(format!("{}: {}", sweep.case.target, reading(&sweep.case))),
                    Cell::words(sweep.case.state.name()),
                    Cell::written(best.jobs.to_string()),
                    Cell::words(&client.host),
                    Cell::number(client.bytes_per_second / 1e9),
                    Cell::micros(client.latency.p99),
                ]);
            }
        }
        Section::new("Clients").says("What each client read, in the first round at the knee.").table(table)
    }
}

/// The latencies of each sweep at its knee.
fn percentiles(group: &[&Sweep], names: &[String]) -> Plot {
    let lines = group.iter().zip(names).filter_map(|(sweep, name)| {
        let best = sweep.best()?;
        let points = (0..).map(f64::from).zip(best.percentiles()).take(PERCENTILES.len()).collect();
        let name = format!("{name}, {}", counted(best.jobs, "job"));
        Some(Line { points, marked: None, ..line(group, sweep, &name) })
    });
    Plot {
        title: "Latency at the knee".to_owned(),
        along: "percentile".to_owned(),
        x: Kind::linear(Unit::Percentile),
        y: Kind::log(Unit::Micros),
        lines: lines.collect(),
        ..Plot::default()
    }
}
