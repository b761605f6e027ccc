//! The report of `forebay bench read`: the two plots of the study that it repeats, and what they come to.
//!
//! Both are over the size of a file, a line for each transport and each number of clients and files. A third plot has what both are
//! about: how much of TCP's time the other transport saves.

use super::common;
use super::document::{Attached, Cell as Shown, Document, Headline, Section, Table, grouped};
use super::plot::{Kind, Line, Plot};
use super::units::{Unit, counted, size, times};
use crate::read::counted::doubt;
use crate::read::statistics::{Mean, Pair, pairs};
use crate::record::{Cell, Compared, Record};
use crate::spread::Spread;

/// What others are compared with.
pub(super) const BASE: &str = "tcp";
/// How figures are made.
const NOTES: &str = "MB and GB are decimal, MiB and GiB binary. Figures are means of the rounds that count, as in the study; ratios are of the \
                     rounds that both transports have, which ran in turn. What does not count, and why, is in the last column of the figures.";

/// Cells that differ in their round only.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point {
    /// One of them.
    pub(super) cell: Cell,
    /// Their means, as the study has it.
    pub(super) mean: Mean,
    /// The rounds' times of a file, and their use of processors.
    pub(super) rounds: [Spread; 2],
    /// Against [`BASE`], of the rounds that both have.
    pub(super) pair: Option<Pair>,
    /// What of it does not count, of any round, and why.
    not_counted: Vec<String>,
}

impl Point {
    /// A file's time by that of [`BASE`].
    fn time_ratio(&self) -> Option<f64> {
        Some(1.0 - self.pair.as_ref()?.faster())
    }

    /// The same of what clients and worker used of the processors. None where that was too little to be counted.
    fn cpu_ratio(&self) -> Option<f64> {
        let pair = self.pair.as_ref()?;
        pair.has_processors().then(|| 1.0 - pair.cheaper())
    }

    fn time_saved(&self) -> Option<f64> {
        Some(self.pair.as_ref()?.faster() * 100.0)
    }

    fn cpu_saved(&self) -> Option<f64> {
        Some((1.0 - self.cpu_ratio()?) * 100.0)
    }
}

/// Clients and the files of each.
type Matrix = (u32, u32);

/// The document of `record`, which is of these cells.
pub(super) fn document(record: &Record, cells: &[Cell]) -> Document {
    let points = points(cells);
    let lines = lines(&points);
    let mut compared = transports(&points);
    compared.sort_by_key(|transport| *transport == BASE);
    let plot = |title: &str, y: Kind, figure: fn(&Point) -> Option<f64>| Plot {
        title: title.to_owned(),
        along: "size of a file".to_owned(),
        x: Kind::log(Unit::Size),
        y,
        lines: lines
            .iter()
            .map(|(line, points)| with_points(line, points, figure))
            .filter(|line| !line.points.is_empty())
            .collect(),
        ..Plot::default()
    };
    let section = Section::new("Time and processors")
        .says("Each client reads its files one after the other, from open to the last byte; all clients read at once.")
        .says(
            "CPU is percent of a processor × seconds, clients and worker together, as the study reckons it: 100 is one processor for \
             a second.",
        )
        .plot(plot("Mean time of a file", Kind::log(Unit::Millis), |point| Some(point.mean.milliseconds_per_file)))
        .plot(plot("CPU of clients and worker", Kind::log(Unit::PercentSeconds), |point| Some(point.mean.processors())))
        .plot(plot("Time saved against TCP", Kind::linear(Unit::Percent), Point::time_saved))
        .plot(plot("CPU saved against TCP", Kind::linear(Unit::Percent), Point::cpu_saved))
        .table(figures(&points));
    let mut sections = vec![section, common::conditions(record, ways(cells)).folded()];
    sections.retain(|section| !section.is_empty());
    Document {
        title: format!("Reading whole files: {}", compared.join(" against ")),
        lead: common::lead(record),
        caution: common::caution(record),
        headlines: headlines(&points),
        // In the order of the study's conclusions.
        findings: grouped(&record.findings),
        sections,
        notes: NOTES,
        attached: vec![Attached { name: "cells.csv", kind: "text/csv", text: super::csv::csv(record) }],
        ..Document::default()
    }
}

/// The points, in the order in which they were measured.
pub(super) fn points(cells: &[Cell]) -> Vec<Point> {
    let key = |cell: &Cell| (cell.transport.clone(), cell.clients, cell.files, cell.file_bytes);
    let mut points: Vec<Point> = Vec::new();
    for cell in cells {
        if points.iter().any(|point| key(&point.cell) == key(cell)) {
            continue;
        }
        let rounds: Vec<&Cell> = cells.iter().filter(|other| key(other) == key(cell)).collect();
        let counted: Vec<&Cell> = rounds.iter().copied().filter(|cell| doubt(cell).is_none()).collect();
        let not_counted = not_counted(&rounds);
        let counted = if counted.is_empty() { &rounds } else { &counted };
        let mean = Mean::of(counted);
        let spread = |middle: f64, figure: fn(&Cell) -> f64| {
            let spread = Spread::of(counted.iter().map(|cell| figure(cell))).unwrap_or_default();
            Spread { middle, ..spread }
        };
        let rounds = [
            spread(mean.milliseconds_per_file, |cell| cell.milliseconds_per_file),
            spread(mean.processors(), |cell| cell.client_percent_seconds + cell.worker_percent_seconds),
        ];
        points.push(Point { cell: cell.clone(), mean, rounds, pair: None, not_counted });
    }
    for point in points.iter_mut().filter(|point| point.cell.transport != BASE) {
        let cell = &point.cell;
        point.pair = pairs(cells, BASE, &cell.transport)
            .into_iter()
            .find(|pair| (pair.clients, pair.files, pair.file_bytes) == (cell.clients, cell.files, cell.file_bytes));
    }
    points
}

/// Why some of the rounds, or all, do not count.
fn not_counted(rounds: &[&Cell]) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    for reason in rounds.iter().flat_map(|cell| &cell.not_counted) {
        let of: Vec<String> = rounds
            .iter()
            .filter(|cell| cell.not_counted.contains(reason))
            .map(|cell| (cell.round + 1).to_string())
            .collect();
        let whole = match of.len() == rounds.len() {
            true => reason.clone(),
            false => format!("round {}, {reason}", of.join(" and ")),
        };
        if !told.contains(&whole) {
            told.push(whole);
        }
    }
    told
}

/// The transports, in the order in which they were measured.
fn transports(points: &[Point]) -> Vec<&str> {
    let mut transports: Vec<&str> = Vec::new();
    for point in points {
        if !transports.contains(&point.cell.transport.as_str()) {
            transports.push(&point.cell.transport);
        }
    }
    transports
}

/// A line for each transport and each number of clients and files: these have a colour and a shape, and TCP's is dashed.
fn lines(points: &[Point]) -> Vec<(Line, Vec<&Point>)> {
    let transports = transports(points);
    let mut matrix: Vec<Matrix> = Vec::new();
    for Point { cell, .. } in points {
        if !matrix.contains(&(cell.clients, cell.files)) {
            matrix.push((cell.clients, cell.files));
        }
    }
    let mut lines = Vec::new();
    for (shape, (clients, files)) in matrix.into_iter().enumerate() {
        for transport in &transports {
            let own = |point: &&Point| {
                point.cell.transport == *transport && (point.cell.clients, point.cell.files) == (clients, files)
            };
            let own: Vec<&Point> = points.iter().filter(own).collect();
            let name = format!("{transport}, {} × {}", counted(clients, "client"), counted(files, "file"));
            let line = Line { name, colour: shape, shape, dashed: *transport == BASE, ..Line::default() };
            lines.push((line, own));
        }
    }
    lines
}

fn with_points(line: &Line, points: &[&Point], figure: fn(&Point) -> Option<f64>) -> Line {
    let points = points.iter().filter_map(|point| Some((point.cell.file_bytes as f64, figure(point)?)));
    Line { points: points.collect(), ..line.clone() }
}

/// What carried the bytes, when that was asked for.
fn ways(cells: &[Cell]) -> Table {
    let mut table = Table::new("Transports", &["asked for", "carried by", "bytes compared"]);
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for cell in cells {
        let way = (cell.transport.as_str(), cell.carried_by.as_str());
        if seen.contains(&way) {
            continue;
        }
        seen.push(way);
        let mut own = cells.iter().filter(|other| (other.transport.as_str(), other.carried_by.as_str()) == way);
        let compared = match own.all(|cell| cell.compared == Compared::While || cell.checked) {
            true => "all, before and in the time measured",
            false => "all, before they were measured",
        };
        table.row([way.0, way.1, compared].map(Shown::words).to_vec());
    }
    table
}

fn figures(points: &[Point]) -> Table {
    let headings = [
        "clients",
        "files of each",
        "size",
        "transport",
        "ms a file",
        "client CPU %·s",
        "worker CPU %·s",
        "time, of TCP's",
        "CPU, of TCP's",
        "does not count",
    ];
    // A column of nothing is none.
    let has_reasons = points.iter().any(|point| !point.not_counted.is_empty());
    let headings = if has_reasons { &headings[..] } else { &headings[..headings.len() - 1] };
    let mut table = Table::new("Figures", headings);
    let mut ordered: Vec<&Point> = points.iter().collect();
    ordered.sort_by_key(|point| (point.cell.clients, point.cell.files, point.cell.file_bytes));
    for point in ordered {
        let cell = &point.cell;
        let mut row = vec![
            Shown::written(cell.clients.to_string()),
            Shown::written(cell.files.to_string()),
            Shown::written(size(cell.file_bytes)),
            Shown::words(&cell.transport),
            Shown::number(point.mean.milliseconds_per_file),
            Shown::number(point.mean.client),
            Shown::number(point.mean.worker),
            Shown::ratio_of_means(point.time_ratio(), false),
            Shown::ratio_of_means(point.cpu_ratio(), false),
        ];
        if has_reasons {
            row.push(Shown::words(point.not_counted.join("; ")));
        }
        table.row(row);
    }
    table
}

/// The best that the other transport did for time and for processors, as the study's headline has it, and the middle.
fn headlines(points: &[Point]) -> Vec<Headline> {
    let Some(other) = transports(points).into_iter().find(|transport| *transport != BASE) else { return Vec::new() };
    let own: Vec<&Point> = points.iter().filter(|point| point.cell.transport == other).collect();
    let of = |point: &Point| {
        let Cell { clients, files, file_bytes, .. } = &point.cell;
        format!("{other}, {} × {} of {}", counted(*clients, "client"), counted(*files, "file"), size(*file_bytes))
    };
    let best = |name: &str, ratio: fn(&Point) -> Option<f64>| {
        let known = own.iter().filter_map(|point| Some((point, ratio(point)?)));
        let (point, ratio) = known.min_by(|one, other| one.1.total_cmp(&other.1))?;
        let value =
            if ratio < 1.0 { format!("{:.0} % less", (1.0 - ratio) * 100.0) } else { times(&Spread::once(ratio)) };
        Some(Headline { name: format!("{name} against TCP, at best"), value, of: of(point) })
    };
    let middle = |name: &str, ratio: fn(&Point) -> Option<f64>| {
        let value = times(&Spread::of(own.iter().filter_map(|point| ratio(point)))?);
        Some(Headline { name: format!("{name} against TCP, median"), value, of: "of all cells".to_owned() })
    };
    let figures = [
        best("Time", Point::time_ratio),
        best("CPU", Point::cpu_ratio),
        middle("Time", Point::time_ratio),
        middle("CPU", Point::cpu_ratio),
    ];
    figures.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Measured;
    use crate::report::testing;

    fn cells() -> Vec<Cell> {
        match testing::read().measured {
            Measured::Read { cells } => cells,
            Measured::Posix { .. } => Vec::new(),
        }
    }

    #[test]
    fn ratios_are_by_tcp_of_the_same_round() {
        let points = points(&cells());
        let large =
            |transport| points.iter().find(|p| p.cell.file_bytes == 10_000_000_000 && p.cell.transport == transport);
        assert_eq!(large("tcp").unwrap().time_ratio(), None);
        let ratio = large("ucx").unwrap().time_ratio().unwrap();
        assert!((ratio - 0.5).abs() < 0.01, "{ratio}");
        // No pair, no ratio.
        let alone: Vec<Cell> = cells().into_iter().filter(|cell| cell.transport == "ucx").collect();
        assert!(super::points(&alone).iter().all(|point| point.time_ratio().is_none()));
    }

    #[test]
    fn what_does_not_count_is_said_beside_it_and_is_in_no_mean() {
        let mut cells = cells();
        let is_cold = |cell: &Cell| cell.transport == "ucx" && cell.file_bytes == 10_000_000_000 && cell.round == 1;
        for cell in cells.iter_mut().filter(|cell| is_cold(cell)) {
            cell.origin_bytes = Some(cell.file_bytes);
            cell.milliseconds_per_file *= 100.0;
        }
        crate::read::counted::judge(&mut cells, BASE);
        let points = points(&cells);
        let cold = points.iter().find(|point| is_cold(&Cell { round: 1, ..point.cell.clone() })).unwrap();
        assert_eq!(cold.mean.milliseconds_per_file, cold.cell.milliseconds_per_file, "the first round alone");
        let record = Record { measured: Measured::Read { cells: cells.clone() }, ..testing::read() };
        let why = "round 2, all: 10 GB came from the origin meanwhile, of 10 GB";
        for told in [crate::report::text(&record), crate::report::html(&record)] {
            assert!(told.contains("does not count") && told.contains(why), "{told}");
        }
        assert!(crate::report::csv(&record).contains(why.trim_start_matches("round 2, ")));
        let json = serde_json::to_string(&record).unwrap();
        assert!(json.contains(r#""not_counted":["all: 10 GB came from the origin"#), "{json}");
        // Where all counts there is no such column.
        assert!(!crate::report::text(&testing::read()).contains("does not count  "));
    }

    #[test]
    fn a_report_says_when_bytes_were_compared() {
        let said = |compared, checked| {
            let one = |cell: Cell| Cell { compared, checked, ..cell };
            let cells: Vec<Cell> = cells().into_iter().map(one).collect();
            ways(&cells).rows.into_iter().map(|row| row[2].text.clone()).collect::<Vec<_>>()
        };
        assert_eq!(said(Compared::Before, false), ["all, before they were measured"; 2]);
        assert_eq!(said(Compared::While, true), ["all, before and in the time measured"; 2]);
        // A record of an earlier version: it compared, too, and did not write it down.
        let mut old = serde_json::to_value(&cells()[0]).unwrap();
        old.as_object_mut().unwrap().remove("compared");
        old["checked"] = false.into();
        let old: Cell = serde_json::from_value(old).unwrap();
        assert_eq!(ways(&[old]).rows[0][2].text, "all, before they were measured");
    }

    #[test]
    fn there_is_a_line_for_each_transport_and_each_number_of_clients_and_files() {
        let document = document(&testing::read(), &cells());
        let section = document.sections.iter().find(|section| !section.plots.is_empty()).unwrap();
        let names = |plot: &Plot| plot.lines.iter().map(|line| line.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&section.plots[0]).len(), 8);
        assert_eq!(names(&section.plots[0])[..2], ["tcp, 1 client × 1 file", "ucx, 1 client × 1 file"]);
        assert_eq!(names(&section.plots[1]), names(&section.plots[0]));
        assert!(names(&section.plots[2]).iter().all(|name| name.starts_with("ucx")));
    }

    #[test]
    fn a_transport_that_saves_nothing_is_not_said_to_save() {
        let mut cells = cells();
        for cell in cells.iter_mut().filter(|cell| cell.transport == "ucx") {
            cell.milliseconds_per_file *= 3.0;
        }
        let headlines = headlines(&points(&cells));
        assert!(headlines[0].value.ends_with('×') && headlines[1].value.ends_with(" % less"), "{headlines:?}");
    }
}
