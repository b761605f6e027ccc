//! The report of `forebay bench read`: the two plots of the study that it repeats, and what they come to.
//!
//! Both are over the size of a file, a line for each transport and each number of clients and files. A third plot has what both are
//! about: how much of TCP's time the other transport saves.

use super::common;
use super::document::{Attached, Cell as Shown, Document, Headline, Section, Table, grouped};
use super::plot::{Kind, Line, Plot};
use super::units::{Unit, counted, size, times};
use crate::read::statistics::{Mean, Pair, mean, pairs};
use crate::record::{Cell, Record};
use crate::spread::Spread;

/// What others are compared with.
pub(super) const BASE: &str = "tcp";
/// How figures are made.
const NOTES: &str = "MB and GB are decimal, MiB and GiB binary. Figures are means of the rounds, as in the study; ratios are of the rounds that \
                     both transports have, which ran in turn.";

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
}

impl Point {
    /// A file's time by that of [`BASE`].
    fn time_ratio(&self) -> Option<f64> {
        Some(1.0 - self.pair.as_ref()?.faster())
    }

    /// The same of what clients and worker used of the processors. None where that was too little to be counted.
    fn cpu_ratio(&self) -> Option<f64> {
        let pair = self.pair.as_ref()?;
        (pair.base.processors() > 0.0).then(|| 1.0 - pair.cheaper())
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
        let mean = |figure: fn(&Cell) -> f64| mean(rounds.iter().map(|cell| figure(cell))).unwrap_or_default();
        let mean = Mean {
            milliseconds_per_file: mean(|cell| cell.milliseconds_per_file),
            client: mean(|cell| cell.client_percent_seconds),
            worker: mean(|cell| cell.worker_percent_seconds),
        };
        let spread = |middle: f64, figure: fn(&Cell) -> f64| {
            let spread = Spread::of(rounds.iter().map(|cell| figure(cell))).unwrap_or_default();
            Spread { middle, ..spread }
        };
        let rounds = [
            spread(mean.milliseconds_per_file, |cell| cell.milliseconds_per_file),
            spread(mean.processors(), |cell| cell.client_percent_seconds + cell.worker_percent_seconds),
        ];
        points.push(Point { cell: cell.clone(), mean, rounds, pair: None });
    }
    for point in points.iter_mut().filter(|point| point.cell.transport != BASE) {
        let cell = &point.cell;
        point.pair = pairs(cells, BASE, &cell.transport)
            .into_iter()
            .find(|pair| (pair.clients, pair.files, pair.file_bytes) == (cell.clients, cell.files, cell.file_bytes));
    }
    points
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
        let own = || cells.iter().filter(|other| (other.transport.as_str(), other.carried_by.as_str()) == way);
        let checked = match (own().all(|cell| cell.checked), own().any(|cell| cell.checked)) {
            (true, _) => "all",
            (false, true) => "in part",
            (false, false) => "no",
        };
        table.row([way.0, way.1, checked].map(Shown::words).to_vec());
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
    ];
    let mut table = Table::new("Figures", &headings);
    let mut ordered: Vec<&Point> = points.iter().collect();
    ordered.sort_by_key(|point| (point.cell.clients, point.cell.files, point.cell.file_bytes));
    for point in ordered {
        let cell = &point.cell;
        table.row(vec![
            Shown::written(cell.clients.to_string()),
            Shown::written(cell.files.to_string()),
            Shown::written(size(cell.file_bytes)),
            Shown::words(&cell.transport),
            Shown::number(point.mean.milliseconds_per_file),
            Shown::number(point.mean.client),
            Shown::number(point.mean.worker),
            Shown::ratio_of_means(point.time_ratio(), false),
            Shown::ratio_of_means(point.cpu_ratio(), false),
        ]);
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
