//! The report of `forebay bench posix`: what fio read, by the way of reading.
//!
//! What was measured comes first: for each way of reading (which files, which job reads which, in which order) there
//! are four plots over the number of jobs, a line for each target and state of its cache: throughput, with operations
//! on the right since each has the same size; p99; what serving costs in processors; and the latencies' percentiles at
//! the knee. What it compares with follows, and what it was measured on, folded.

use super::document::{Attached, Cell, Document, Headline, Section, Table};
use super::plot::{Kind, Level, Line, Plot, Right};
use super::sweeps::{Point, Sweep, figures, meaning, names, paired, reading, sweeps, together, topology};
use super::units::{Common, Unit, counted, link, percent, rate, times};
use super::{common, published};
use crate::record::{Access, CacheState, Case, Machine, Record, Step, Target};
use crate::spread::Spread;

mod other_load;

/// The place of p99 among the percentiles.
const P99: usize = 3;

/// How figures are made.
pub(super) const NOTES: &str = "GB and Gb are decimal (10⁹), KiB and MiB binary. Of several rounds the median is shown, in as many digits as they have \
                                in common (two of one round), and bars from the lowest to the highest. Latency is completion latency as \
                                fio counts it; CPU is percent of one processor, as top shows it, without fio's own and without what \
                                other programs went on with meanwhile.";

/// The document of `record`, which is of these targets and steps.
pub(super) fn document(record: &Record, targets: &[Target], steps: &[Step]) -> Document {
    let sweeps = sweeps(steps, record);
    let main = targets.first().map_or("", |target| target.name.as_str());
    let report = Report { machine: &record.machine, steps, sweeps: &sweeps, main };
    let mut sections: Vec<Section> = groups(&sweeps).iter().map(|group| report.group(group)).collect();
    sections.extend([report.against(), published::scaling(&[record]), published::baselines(record), report.clients()]);
    sections.extend([other_load::section(steps), common::conditions(record, targets_table(targets)).folded()]);
    sections.retain(|section| !section.is_empty());
    let names: Vec<_> = targets.iter().map(|target| target.name.as_str()).collect();
    let document = Document {
        title: format!("Reading with fio: {}", names.join(" against ")),
        lead: common::lead(record),
        mark: common::mark(record),
        caution: common::caution(record),
        headlines: report.headlines(),
        sections,
        notes: NOTES,
        attached: vec![Attached { name: "steps.csv", kind: "text/csv", text: super::csv::csv(record) }],
        ..Document::default()
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
    let hollow = sweep.case.state != CacheState::Warm;
    Line { name: name.to_owned(), colour, shape: colour, hollow, marked: sweep.mark(), ..Line::default() }
}

/// The line of a sweep, and one of what of it counts for nothing, which goes on where the other ends: each point has its jobs, and a
/// figure of its rounds.
pub(super) fn lines_of(line: Line, sweep: &Sweep, points: &[(u32, Spread)]) -> Vec<Line> {
    let counted = points.iter().take_while(|(jobs, _)| sweep.discounts(*jobs).is_none()).count();
    let of = |points: &[(u32, Spread)], line: Line| Line {
        points: points.iter().map(|(jobs, spread)| (f64::from(*jobs), spread.middle)).collect(),
        bars: points.iter().map(|(jobs, spread)| (f64::from(*jobs), spread.low, spread.high)).collect(),
        ..line
    };
    let rest = Line { name: format!("{} (does not count)", line.name), discounted: true, marked: None, ..line.clone() };
    let mut lines = vec![of(&points[..counted], line), of(&points[counted..], rest)];
    lines.retain(|line| !line.points.is_empty());
    lines
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
        let states = [CacheState::Warm, CacheState::Cold, CacheState::Partial];
        let state = states.into_iter().find(|state| own().any(|sweep| sweep.case.state == *state));
        let state = state.unwrap_or(CacheState::Warm);
        let most = |access: Access| {
            let of_access = own().filter(move |sweep| sweep.case.state == state && sweep.case.access == access);
            let highest = of_access.filter_map(|sweep| Some((sweep, sweep.highest()?)));
            let figure = |point: &Point| match access {
                Access::Sequential => point.outcome.bytes_per_second,
                Access::Random => point.outcome.operations_per_second,
            };
            highest.max_by(|one, other| figure(one.1).total_cmp(&figure(other.1)))
        };
        let of = |sweep: &Sweep, point: &Point| {
            let rounds = point.throughput().map(|spread| rounds(&spread)).unwrap_or_default();
            let short = if point.is_short() { "; read for less than a second" } else { "" };
            format!("{}, {}; {rounds}{short}", reading(&sweep.case), counted(point.jobs, "job"))
        };
        let mut headlines = Vec::new();
        let mut headline = |name: String, value: String, of: String| headlines.push(Headline { name, value, of });
        if let Some((sweep, point)) = most(Access::Sequential) {
            let network = self.machine.network.as_ref().zip(point.of_network(&sweep.case, self.machine));
            let network = network.map(|(net, part)| format!("; {} of {}", percent(part), link(net.bits_per_second)));
            headline(
                format!("Highest throughput, {}", state.name()),
                measured(Unit::Rate, point.throughput()),
                format!("{}{}", of(sweep, point), network.unwrap_or_default()),
            );
        }
        if let Some((sweep, point)) = most(Access::Random) {
            let value =
                format!("{} IOPS", measured(Unit::Count, point.spread(|outcome| outcome.operations_per_second)));
            headline(format!("Highest rate of random reads, {}", state.name()), value, of(sweep, point));
        }
        let leading = most(Access::Sequential).or_else(|| most(Access::Random));
        let Some((sweep, best)) = leading.and_then(|(sweep, _)| Some((sweep, sweep.best()?))) else { return headlines };
        let jobs = counted(best.jobs, "job");
        let place = if sweep.is_knee(best.jobs) { format!("at the knee, {jobs}") } else { format!("with {jobs}") };
        let sustained = format!("{}, {place}: {}", reading(&sweep.case), measured(Unit::Rate, best.throughput()));
        headline("p99 latency".to_owned(), measured(Unit::Micros, best.percentiles()[P99]), sustained);
        if let Some(cpu) = best.cpu_per_gigabyte(&sweep.case) {
            headline("CPU for each GB/s".to_owned(), format!("{} %", cpu.written(1.0)), place);
        }
        for other in self.others(sweep) {
            let case = Case { jobs: best.jobs, ..sweep.case.clone() };
            if let Some(ratio) = paired(self.steps, &case, &other.case, figures::throughput) {
                let of = format!("of its throughput, with {jobs} each");
                headline(format!("Against {}", other.case.target), times(&ratio), of);
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
        let own = self.sweeps.iter().filter(|sweep| sweep.case.target == self.main);
        let unit = Unit::Rate.common(own.filter_map(|sweep| Some(sweep.best()?.outcome.bytes_per_second)));
        let rates = [unit.name().to_owned(), format!("its {}", unit.name())];
        let headings =
            ["reading", "cache", "jobs", "against", &rates[0], &rates[1], "throughput", "p99", "CPU per GB/s"];
        let mut table = Table::new("", &headings);
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
                    Cell::spread(best.throughput(), unit),
                    Cell::spread(theirs.and_then(Point::throughput), unit),
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
        let over_jobs = |title: &str, y: Kind, figure: &dyn Fn(&Sweep, &Point) -> Option<Spread>| Plot {
            title: title.to_owned(),
            along: "jobs (numjobs)".to_owned(),
            x: Kind::log(Unit::Number),
            y,
            lines: group
                .iter()
                .zip(&names)
                .flat_map(|(sweep, name)| {
                    let point = |point: &Point| Some((point.jobs, figure(sweep, point)?));
                    let points: Vec<_> = sweep.points.iter().filter_map(point).collect();
                    lines_of(line(group, sweep, name), sweep, &points)
                })
                .collect(),
            ..Plot::default()
        };
        let throughput = Plot {
            right: Some(Right { unit: Unit::Count, of: case.block_bytes.max(1) as f64 }),
            levels: self.levels(group),
            ..over_jobs("Throughput, and IOPS on the right", Kind::linear(Unit::Rate), &|_, point| point.throughput())
        };
        let p99 = over_jobs("p99 latency", Kind::log(Unit::Micros), &|_, point| point.percentiles()[P99]);
        let cpu = over_jobs("CPU for each GB/s, without fio's own", Kind::linear(Unit::Percent), &|sweep, point| {
            point.cpu_per_gigabyte(&sweep.case)
        });
        let mut knees = Table::new("The knee: the number of jobs to work with, and why", &["", ""]);
        for (sweep, name) in group.iter().zip(&names) {
            let text = sweep.told_knee().map_or_else(|| sweep.no_knee().to_owned(), |knee| knee.text.clone());
            knees.row(vec![Cell::words(name), Cell::words(text)]);
        }
        let mut why: Vec<&str> = Vec::new();
        for sweep in group {
            let own = sweep.points.iter().filter_map(|point| sweep.discounts(point.jobs));
            own.for_each(|reason| {
                if !why.contains(&reason) {
                    why.push(reason)
                }
            });
        }
        let why = why.into_iter().map(|reason| format!("What is grey and dashed counts for nothing: {reason}."));
        let section = Section::new(reading(case)).says(meaning(case));
        why.fold(section, Section::says)
            .plot(throughput)
            .plot(p99)
            .plot(percentiles(group, &names))
            .plot(cpu)
            .table(knees)
            .table(self.figures(group).folded())
            .table(self.ratios(group).folded())
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
        let points = || group.iter().flat_map(|sweep| &sweep.points);
        let network = self.machine.network.is_some();
        let rounds = points().any(|point| point.rounds.len() > 1);
        let short = points().any(Point::is_short);
        let cpu =
            group.iter().any(|sweep| sweep.points.iter().any(|point| point.cpu_per_gigabyte(&sweep.case).is_some()));
        let throughput = Unit::Rate.common(points().map(|point| point.outcome.bytes_per_second));
        let operations = Unit::Count.common(points().map(|point| point.outcome.operations_per_second));
        let times = points().flat_map(Point::percentiles).flatten().map(|spread| spread.middle);
        let times = Unit::Micros.common(times);
        let [iops, mean] = [format!("IOPS{}", thousands(operations)), format!("mean, {}", times.name())];
        let mut headings = vec!["line", "jobs", throughput.name()];
        headings.extend(rounds.then_some("±"));
        headings.extend(network.then_some("of network"));
        headings.extend([&*iops, &*mean, "p50", "p90", "p99", "p99.9", "max"]);
        headings.extend(cpu.then_some("CPU % per GB/s"));
        headings.extend(short.then_some("s"));
        let caption = format!("Figures; the knee is marked; latencies in {}", times.name());
        let mut table = Table::new(caption, &headings);
        for (sweep, name) in group.iter().zip(names(group)) {
            for point in &sweep.points {
                let mut cells = vec![
                    Cell::words(&name),
                    Cell::written(point.jobs.to_string()).marked(sweep.is_knee(point.jobs)),
                    Cell::spread(point.throughput(), throughput),
                ];
                let half = point.throughput().and_then(|spread| spread.part());
                cells.extend(rounds.then(|| Cell::written(half.map_or("-".to_owned(), percent))));
                let part = point.of_network(&sweep.case, self.machine);
                cells.extend(network.then(|| Cell::written(part.map_or("-".to_owned(), percent))));
                cells.push(Cell::spread(point.spread(|outcome| outcome.operations_per_second), operations));
                let [p50, p90, _, p99, p999, max] = point.percentiles();
                let mean = point.spread(|outcome| outcome.latency.mean);
                cells.extend([mean, p50, p90, p99, p999, max].map(|time| Cell::spread(time, times)));
                cells.extend(cpu.then(|| Cell::spread(point.cpu_per_gigabyte(&sweep.case), Unit::Percent.common([]))));
                let seconds = point.rounds.iter().map(|outcome| outcome.seconds).fold(f64::INFINITY, f64::min);
                cells.extend(short.then(|| Cell::written(format!("{seconds:.1}")).doubtful(point.is_short())));
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
        let all = || self.steps.iter().flat_map(|step| &step.outcome.clients);
        let throughput = Unit::Rate.common(all().map(|client| client.bytes_per_second));
        let times = Unit::Micros.common(all().map(|client| client.latency.p99));
        let p99 = format!("p99, {}", times.name());
        let mut table = Table::new("", &["reading", "cache", "jobs", "client", throughput.name(), &p99]);
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
                    Cell::spread(Some(Spread::once(client.bytes_per_second)), throughput),
                    Cell::spread(Some(Spread::once(client.latency.p99)), times),
                ]);
            }
        }
        Section::new("Clients").says("What each client read, in the first round at the knee.").table(table)
    }
}

/// `, k` where operations are counted in thousands.
fn thousands(operations: Common) -> String {
    if operations.name().is_empty() { String::new() } else { format!(", {}", operations.name()) }
}

/// A figure with the unit that fits it, in as many digits as are known.
fn measured(unit: Unit, value: Option<Spread>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    let common = unit.common([value.middle]);
    let gap = if unit == Unit::Count { "" } else { " " };
    format!("{}{gap}{}", value.written(1.0 / common.size()), common.name())
}

/// `±3 % of 3 rounds`.
fn rounds(spread: &Spread) -> String {
    match spread.part() {
        Some(part) => format!("±{} of {} rounds", percent(part), spread.rounds),
        None => "one round".to_owned(),
    }
}

/// The latencies of each sweep at its knee.
fn percentiles(group: &[&Sweep], names: &[String]) -> Plot {
    let lines = group.iter().zip(names).filter_map(|(sweep, name)| {
        let best = sweep.best()?;
        let places = || (0..).map(f64::from).zip(best.percentiles()).filter_map(|(place, time)| Some((place, time?)));
        let discounted = sweep.discounts(best.jobs).is_some();
        let counts = if discounted { " (does not count)" } else { "" };
        let name = format!("{name}, {}{counts}", counted(best.jobs, "job"));
        Some(Line {
            points: places().map(|(place, time)| (place, time.middle)).collect(),
            bars: places().map(|(place, time)| (place, time.low, time.high)).collect(),
            marked: None,
            discounted,
            ..line(group, sweep, &name)
        })
    });
    Plot {
        title: "Latency at the knee, or at the peak".to_owned(),
        along: "percentile".to_owned(),
        x: Kind::linear(Unit::Percentile),
        y: Kind::log(Unit::Micros),
        lines: lines.collect(),
        ..Plot::default()
    }
}
