//! What more workers and clients give: `xW/yC`, x workers and y clients, against the smallest such topology there is.
//!
//! Ideally bandwidth grows as the side that has grown less: three times the workers serve one client no faster than that client
//! can read. The efficiency is what was measured of that, at the same number of jobs on each client, and for the peaks. Where
//! the number of workers is not known, clients count.

use std::collections::BTreeSet;
use std::fmt;

use crate::record::{Access, CacheState, Case, Finding, Layout, Level, Measured, Pattern, Record, Step};
use crate::spread::Spread;

use super::knee::{Point, points};
use super::words::{block, measured_rate, percent};

/// Efficiency that is near to linear: what the published tables show at best is 96 %.
const LINEAR: f64 = 0.85;
/// From so many jobs a client, published runs of ten workers lost half to locks of shared files.
const MANY_JOBS: u32 = 32;

/// What the published benchmark reached of what one worker and one client promise, with all jobs reading all of 20 files.
const PUBLISHED_SHARED: &str = "published: 3W/3C about 96 % with any number of jobs; 10W/10C 99 to 121 % up to 16 jobs, and 48 to 80 % \
                                from 32 on, where 100 files instead of 20 give more";
/// The same with files of their own for the jobs.
const PUBLISHED_DISTINCT: &str = "published: 3W/3C about 96 % with any number of jobs; 10W/10C 86 to 99 % with most";

/// Workers and clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Topology {
    /// Machines that read.
    pub clients: u32,
    /// Workers that serve them; 0 where that is not known.
    pub workers: u32,
}

impl Topology {
    /// How much faster than `base` this would be if nothing stood in its way.
    #[must_use]
    pub fn ideal(self, base: Self) -> f64 {
        let ratio = |more: u32, less: u32| f64::from(more.max(1)) / f64::from(less.max(1));
        let clients = ratio(self.clients, base.clients);
        if self.workers == 0 || base.workers == 0 { clients } else { clients.min(ratio(self.workers, base.workers)) }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.workers {
            0 => write!(formatter, "?W/{}C", self.clients),
            workers => write!(formatter, "{workers}W/{}C", self.clients),
        }
    }
}

/// A measured bandwidth and what it is of the ideal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaled {
    /// Jobs on each client.
    pub jobs: u32,
    /// Of all clients.
    pub bytes_per_second: f64,
    /// The same, as far as rounds differ.
    pub spread: Spread,
    /// Of what the smallest topology promises: 1 is linear. `None` where that was not measured with so many jobs.
    pub efficiency: Option<f64>,
}

/// A topology's line.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Which.
    pub topology: Topology,
    /// The highest, against the highest of the smallest topology, whatever jobs either had.
    pub peak: Scaled,
    /// For each of [`Table::jobs`]; `None` where it was not measured.
    pub by_jobs: Vec<Option<Scaled>>,
}

/// One kind of reading on all topologies.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// What was measured.
    pub target: String,
    /// The cache.
    pub state: CacheState,
    /// The files.
    pub layout: Layout,
    /// Which job reads which file.
    pub pattern: Pattern,
    /// In which order.
    pub access: Access,
    /// Bytes in a read.
    pub block_bytes: u64,
    /// The numbers of jobs on any topology, ascending.
    pub jobs: Vec<u32>,
    /// The smallest topology first.
    pub rows: Vec<Row>,
}

/// The tables of what was measured on two topologies at least, in one record or in several.
#[must_use]
pub fn tables(records: &[&Record]) -> Vec<Table> {
    let steps: Vec<Step> = records.iter().flat_map(|record| steps(record)).cloned().collect();
    let kinds: BTreeSet<Case> =
        steps.iter().map(|step| Case { jobs: 0, clients: 0, workers: 0, ..step.case.clone() }).collect();
    kinds.iter().filter_map(|kind| table(kind, &steps)).collect()
}

fn steps(record: &Record) -> &[Step] {
    match &record.measured {
        Measured::Posix { steps, .. } => steps,
        Measured::Read { .. } => &[],
    }
}

fn table(kind: &Case, steps: &[Step]) -> Option<Table> {
    let on = |topology: Topology| Case { clients: topology.clients, workers: topology.workers, ..kind.clone() };
    let all: BTreeSet<Topology> =
        steps.iter().map(|step| Topology { clients: step.case.clients, workers: step.case.workers }).collect();
    let measured: Vec<(Topology, Vec<Point>)> = all
        .into_iter()
        .map(|topology| (topology, points(steps, &on(topology))))
        .filter(|(_, points)| !points.is_empty())
        .collect();
    let [(base, base_points), _, ..] = measured.as_slice() else { return None };
    let jobs: BTreeSet<u32> = measured.iter().flat_map(|(_, points)| points.iter().map(|point| point.jobs)).collect();
    let row = |(topology, points): &(Topology, Vec<Point>)| {
        let ideal = topology.ideal(*base);
        let scaled = |point: &Point, base: Option<&Point>| Scaled {
            jobs: point.jobs,
            bytes_per_second: point.bytes_per_second,
            spread: point.spreads.bytes,
            efficiency: base
                .filter(|base| base.bytes_per_second > 0.0)
                .map(|base| point.bytes_per_second / base.bytes_per_second / ideal),
        };
        let with = |points: &[Point], jobs: u32| points.iter().find(|point| point.jobs == jobs).copied();
        let by_jobs = jobs.iter().map(|jobs| {
            let point = with(points, *jobs)?;
            Some(scaled(&point, with(base_points, *jobs).as_ref()))
        });
        Some(Row { topology: *topology, peak: scaled(peak(points)?, peak(base_points)), by_jobs: by_jobs.collect() })
    };
    Some(Table {
        target: kind.target.clone(),
        state: kind.state,
        layout: kind.layout,
        pattern: kind.pattern,
        access: kind.access,
        block_bytes: kind.block_bytes,
        rows: measured.iter().filter_map(row).collect(),
        jobs: jobs.into_iter().collect(),
    })
}

/// The point with the highest bandwidth: of those that read for a second, if there are any.
pub(super) fn peak(points: &[Point]) -> Option<&Point> {
    let any_long = points.iter().any(Point::is_long);
    points
        .iter()
        .filter(|point| point.is_long() || !any_long)
        .max_by(|one, other| one.bytes_per_second.total_cmp(&other.bytes_per_second))
}

impl Table {
    /// What is measured, in words.
    #[must_use]
    pub fn title(&self) -> String {
        let (state, layout, pattern) = (self.state.name(), self.layout.name(), self.pattern.name());
        format!("{}, {state}, {layout}, {pattern}, {}, {}", self.target, self.access.name(), block(self.block_bytes))
    }

    /// What others have published of as many workers as clients, in efficiencies, where this is what they read: several files from
    /// front to back, warm.
    #[must_use]
    pub fn published(&self) -> Option<&'static str> {
        match (self.state, self.layout, self.access, self.pattern) {
            (CacheState::Warm, Layout::Multiple, Access::Sequential, Pattern::Shared) => Some(PUBLISHED_SHARED),
            (CacheState::Warm, Layout::Multiple, Access::Sequential, Pattern::Distinct) => Some(PUBLISHED_DISTINCT),
            _ => None,
        }
    }

    /// As lines of text: peak, its efficiency, and the efficiency at each number of jobs.
    #[must_use]
    pub fn text(&self) -> String {
        let efficiency = |scaled: &Scaled| scaled.efficiency.map_or_else(|| "-".to_owned(), percent);
        let headings: String = self.jobs.iter().map(|jobs| format!("{jobs:>8}")).collect();
        let mut text =
            format!("{}\n  {:<10}{:>12}{:>8}{:>8}{headings}\n", self.title(), "topology", "peak", "jobs", "of it");
        for row in &self.rows {
            let cell =
                |scaled: &Option<Scaled>| format!("{:>8}", scaled.as_ref().map_or_else(|| "-".to_owned(), efficiency));
            let cells: String = row.by_jobs.iter().map(cell).collect();
            let (peak, jobs, of) = (measured_rate(&row.peak.spread), row.peak.jobs, efficiency(&row.peak));
            text.push_str(&format!("  {:<10}{peak:>12}{jobs:>8}{of:>8}{cells}\n", row.topology.to_string()));
        }
        text
    }
}

/// What the tables mean.
#[must_use]
pub fn findings(tables: &[Table]) -> Vec<Finding> {
    tables.iter().flat_map(|table| table.rows.iter().skip(1).map(|row| finding(table, row))).collect()
}

fn finding(table: &Table, row: &Row) -> Finding {
    let base = table.rows.first().map_or(row.topology, |base| base.topology);
    let peak = row.peak.efficiency.unwrap_or_default();
    let of = |jobs: &dyn Fn(u32) -> bool| {
        let scaled = row.by_jobs.iter().flatten().filter(|scaled| jobs(scaled.jobs));
        scaled.filter_map(|scaled| scaled.efficiency).reduce(f64::min)
    };
    let (few, many) = (of(&|jobs| jobs < MANY_JOBS), of(&|jobs| jobs >= MANY_JOBS));
    let mut text = format!(
        "{}: {} reach {}, {} of what {base} promises",
        table.title(),
        row.topology,
        measured_rate(&row.peak.spread),
        percent(peak)
    );
    for (worst, which) in [(few, "fewer than"), (many, "at least")] {
        if let Some(worst) = worst {
            text.push_str(&format!("; with {which} {MANY_JOBS} jobs {} or better", percent(worst)));
        }
    }
    let locks =
        table.pattern == Pattern::Shared && many.is_some_and(|many| many < LINEAR && few.is_none_or(|few| few > many));
    let next = match (peak >= LINEAR, locks) {
        (true, false) => None,
        (_, true) => Some(
            "Many jobs on few shared files wait for each other's locks: take 100 files or more (`--files 100`), and compare \
             with the distinct pattern."
                .to_owned(),
        ),
        (false, false) => Some(
            "Measure the network between all pairs of machines (`forebay bench rdma`, `iperf3`): one that is slow holds up all."
                .to_owned(),
        ),
    };
    let level = if next.is_none() { Level::Good } else { Level::Warn };
    Finding { rule: "scaling".to_owned(), level, text: format!("{text}."), next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::posix::testing::{case, record, sweep};

    fn on(workers: u32, clients: u32, pattern: Pattern, points: &[(u32, f64, f64)]) -> Record {
        record(&["forebay"], sweep(&Case { workers, clients, pattern, ..case(0) }, points))
    }

    #[test]
    fn the_published_peaks_give_the_published_efficiencies() {
        let peaks = [(1, 115.3), (3, 331.6), (10, 1050.0)];
        let records: Vec<_> = peaks
            .iter()
            .map(|(nodes, gigabits)| on(*nodes, *nodes, Pattern::Distinct, &[(8, gigabits / 8.0, 100.0)]))
            .collect();
        let tables = tables(&records.iter().collect::<Vec<_>>());
        let [table] = tables.as_slice() else { panic!("{tables:?}") };
        let rows: Vec<_> =
            table.rows.iter().map(|row| (row.topology.to_string(), row.peak.efficiency.unwrap())).collect();
        assert_eq!(rows.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["1W/1C", "3W/3C", "10W/10C"]);
        let percents: Vec<_> = rows.iter().map(|(_, efficiency)| percent(*efficiency)).collect();
        assert_eq!(percents, ["100 %", "96 %", "91 %"]);
    }

    #[test]
    fn efficiencies_are_of_the_same_number_of_jobs() {
        let small = on(1, 1, Pattern::Shared, &[(8, 10.0, 100.0), (32, 12.0, 100.0)]);
        let large = on(10, 10, Pattern::Shared, &[(8, 121.0, 100.0), (32, 57.6, 100.0), (64, 50.0, 100.0)]);
        let tables = tables(&[&small, &large]);
        assert_eq!(tables[0].jobs, [8, 32, 64]);
        let cells: Vec<_> =
            tables[0].rows[1].by_jobs.iter().map(|scaled| scaled.and_then(|scaled| scaled.efficiency)).collect();
        assert_eq!(
            cells.iter().map(|cell| cell.map(percent)).collect::<Vec<_>>(),
            [Some("121 %".into()), Some("48 %".into()), None]
        );
        assert_eq!(tables[0].rows[0].by_jobs[2], None);
        let text = tables[0].text();
        assert_eq!(
            text,
            "forebay, warm, multiple, shared, sequential, 256 KiB\n  \
             topology          peak    jobs   of it       8      32      64\n  \
             1W/1C          12 GB/s      32   100 %   100 %   100 %       -\n  \
             10W/10C       120 GB/s       8   101 %   121 %    48 %       -\n"
        );
    }

    #[test]
    fn shared_files_that_lose_with_many_jobs_are_told_to_be_more() {
        let small = on(1, 1, Pattern::Shared, &[(8, 10.0, 100.0), (32, 12.0, 100.0)]);
        let large = on(10, 10, Pattern::Shared, &[(8, 110.0, 100.0), (32, 57.6, 100.0)]);
        let found = findings(&tables(&[&small, &large]));
        assert_eq!((found.len(), found[0].level), (1, Level::Warn));
        assert!(found[0].text.contains("10W/10C reach 110 GB/s, 92 % of what 1W/1C promises"), "{}", found[0].text);
        assert!(found[0].next.as_ref().unwrap().contains("--files 100"), "{found:?}");
        let even = on(10, 10, Pattern::Shared, &[(8, 98.0, 100.0), (32, 115.0, 100.0)]);
        assert_eq!(findings(&tables(&[&small, &even]))[0].level, Level::Good);
    }

    #[test]
    fn the_side_that_has_grown_less_is_what_is_expected() {
        let topology = |workers, clients| Topology { workers, clients };
        assert_eq!(topology(3, 1).ideal(topology(1, 1)), 1.0);
        assert_eq!(topology(3, 6).ideal(topology(1, 1)), 3.0);
        assert_eq!(topology(0, 6).ideal(topology(0, 2)), 3.0);
        assert_eq!(topology(0, 2).to_string(), "?W/2C");
    }

    #[test]
    fn one_topology_is_no_table() {
        assert_eq!(tables(&[&on(1, 1, Pattern::Shared, &[(1, 1.0, 1.0)])]), []);
        assert_eq!(tables(&[]), []);
    }
}
