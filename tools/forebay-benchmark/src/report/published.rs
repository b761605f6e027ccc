//! Figures that are compared across machines: what more machines give, and what others have published, both as fractions.

use super::document::{Cell, Section, Table};
use super::plot::{Kind, Line, Plot};
use super::units::{Unit, counted, percent, size};
use crate::posix::baseline::{self, Beside, Fractions, Published};
use crate::posix::scaling::{self, Row, Scaled};
use crate::record::{Layout, Record};

/// What workers and clients give together, in one record or several. Empty where there is one topology only.
pub(super) fn scaling(records: &[&Record]) -> Section {
    let words = "xW/yC is x workers and y clients. The efficiency is what was measured of what the smallest topology promises, with \
                 as many jobs on each client; that of the peak holds one peak against the other.";
    let mut section = Section::new("Scaling").says(words);
    for table in scaling::tables(records) {
        section = section.plot(efficiency(&table)).table(efficiencies(&table));
        if let Some(published) = table.published() {
            section = section.says(format!("{}: {published}.", table.title()));
        }
    }
    section
}

fn efficiencies(table: &scaling::Table) -> Table {
    let jobs: Vec<String> = table.jobs.iter().map(|jobs| counted(*jobs, "job")).collect();
    let unit = Unit::Rate.common(table.rows.iter().map(|row| row.peak.bytes_per_second));
    let peak = format!("peak, {}", unit.name());
    let mut headings = vec!["topology", &*peak, "with jobs", "of ideal"];
    headings.extend(jobs.iter().map(String::as_str));
    let mut shown = Table::new(table.title(), &headings);
    let efficiency = |scaled: Option<&Scaled>| {
        Cell::written(scaled.and_then(|scaled| scaled.efficiency).map_or("-".to_owned(), percent))
    };
    for Row { topology, peak, by_jobs } in &table.rows {
        let mut cells = vec![
            Cell::words(topology.to_string()),
            Cell::spread(Some(peak.spread), unit),
            Cell::written(peak.jobs.to_string()),
            efficiency(Some(peak)),
        ];
        cells.extend(by_jobs.iter().map(|scaled| efficiency(scaled.as_ref())));
        shown.row(cells);
    }
    shown
}

fn efficiency(table: &scaling::Table) -> Plot {
    let lines = table.rows.iter().enumerate().map(|(number, row)| {
        let points = row.by_jobs.iter().flatten();
        let points = points.filter_map(|scaled| Some((f64::from(scaled.jobs), scaled.efficiency? * 100.0)));
        let name = row.topology.to_string();
        Line { name, colour: number, shape: number, points: points.collect(), ..Line::default() }
    });
    Plot {
        title: format!("Efficiency: {}", table.title()),
        along: "jobs on each client (numjobs)".to_owned(),
        x: Kind::log(Unit::Number),
        y: Kind::linear(Unit::Percent),
        lines: lines.collect(),
        ..Plot::default()
    }
}

/// What the terminal says of what was published and has no figure of ours beside it.
const ELSEWHERE: &str = "report.html has the other published figures, which nothing that was measured here is like.";

/// Published figures beside those of `record`.
pub(super) fn baselines(record: &Record) -> Section {
    let headings = [
        "published by",
        "hardware",
        "reading",
        "jobs",
        "GB/s",
        "of network",
        "of disk",
        "here: GB/s",
        "of network",
        "of disk",
    ];
    let beside = baseline::beside(record);
    let (both, theirs): (Vec<_>, Vec<_>) = beside.iter().partition(|beside| beside.measured.is_some());
    let mut ours = Table::new("", &headings);
    both.iter().for_each(|beside| ours.row(row(beside)));
    let mut others = Table::new("Published figures of what was not measured here", &headings[..7]).folded();
    theirs.iter().for_each(|beside| others.row(row(beside)[..7].to_vec()));
    others.on_page = Some((others.rows.len(), ELSEWHERE));
    let words = "Warm reads through FUSE as others have published them, beside what was read in the same way here: the same files, \
                 pattern, order, blocks, depth, jobs, workers and clients. (Of 256 KiB and of 1 MiB, or of one client and of ten, nothing is \
                 held against one another.) Their files are larger, and their hardware is not this: compare the parts of the \
                 network card and of the disks, not the GB/s.";
    Section::new("Published figures, as parts of the hardware").says(words).table(ours).table(others)
}

fn row(Beside { published, published_fractions, measured }: &Beside) -> Vec<Cell> {
    let mut cells = vec![
        Cell::words(published.system),
        Cell::words(format!("{}, {}", topology(published), published.hardware)),
        Cell::words(reading(published)),
        Cell::written(published.jobs.map_or("peak".to_owned(), |jobs| jobs.to_string())),
        Cell::number(published.bytes_per_second / 1e9),
    ];
    cells.extend(parts(Some(published_fractions)));
    cells.push(Cell::spread(measured.map(|measured| measured.spread), Unit::Rate.common([1e9])));
    cells.extend(parts(measured.as_ref().map(|measured| &measured.fractions)));
    cells
}

fn topology(published: &Published) -> String {
    match published.workers {
        0 => counted(published.clients, "client"),
        workers => format!("{workers}W/{}C", published.clients),
    }
}

fn reading(published: &Published) -> String {
    let files = match published.layout {
        Layout::Single => "one file".to_owned(),
        Layout::Multiple | Layout::Small => format!("{} files, {}", published.layout.name(), published.pattern.name()),
    };
    format!("{files}, {}, {}", published.access.name(), size(published.block_bytes))
}

fn parts(fractions: Option<&Fractions>) -> [Cell; 2] {
    let part = |part: Option<f64>| Cell::written(part.map_or("-".to_owned(), percent));
    [part(fractions.and_then(|fractions| fractions.network)), part(fractions.and_then(|fractions| fractions.disk))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing;

    #[test]
    fn one_topology_does_not_scale_and_two_have_efficiencies() {
        assert!(scaling(&[&testing::posix()]).is_empty());
        let (one, three) = (testing::posix_on(1), testing::posix_on(3));
        let section = scaling(&[&one, &three]);
        let table = &section.tables[0];
        assert_eq!(table.rows.iter().map(|row| row[0].text.as_str()).collect::<Vec<_>>(), ["1W/1C", "3W/3C"]);
        assert_eq!(table.rows[0][3].text, "100 %");
        // 0.98³ / 0.98.
        assert_eq!(table.rows[1][3].text, "96 %");
        assert_eq!(section.plots.len(), section.tables.len());
    }

    #[test]
    fn what_was_measured_stands_first_and_in_parts_of_the_same_things() {
        let section = baselines(&testing::posix());
        let [ours, others] = section.tables.as_slice() else { panic!("{section:?}") };
        assert_eq!(ours.rows.len() + others.rows.len(), baseline::PUBLISHED.len());
        assert!(ours.rows[0][7].text != "-" && ours.rows[0][8].text.ends_with(" %"), "{:?}", ours.rows[0]);
        assert!(others.folded && others.headings.len() == 7);
    }
}
