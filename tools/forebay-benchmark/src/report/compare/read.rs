//! Records of `forebay bench read` side by side.

use super::ratios::{headings_with_ratios, with_ratios};
use crate::record::{Measured, Record};
use crate::report::document::{Cell, Section, Table};
use crate::report::plot::{Kind, Line, Plot};
use crate::report::read;
use crate::report::units::{Unit, counted, size};

/// What all records read in the same way.
pub(super) fn section(records: &[(String, Record)]) -> Section {
    let points: Vec<Vec<read::Point>> = records
        .iter()
        .map(|(_, record)| match &record.measured {
            Measured::Read { cells } => read::points(cells),
            Measured::Posix { .. } => Vec::new(),
        })
        .collect();
    let mut headings =
        vec!["transport".to_owned(), "clients".to_owned(), "files of each".to_owned(), "size".to_owned()];
    headings.extend(headings_with_ratios(&["ms a file", "CPU %·s"], records));
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut table = Table::new("", &headings);
    let mut times: Vec<(String, Vec<Line>)> = Vec::new();
    for first in &points[0] {
        let cell = &first.cell;
        let key = |point: &read::Point| {
            let cell = &point.cell;
            (cell.transport.clone(), cell.clients, cell.files, cell.file_bytes)
        };
        let same: Option<Vec<&read::Point>> =
            points.iter().map(|points| points.iter().find(|point| key(point) == key(first))).collect();
        let Some(same) = same else { continue };
        let mut cells = vec![
            Cell::words(&cell.transport),
            Cell::written(cell.clients.to_string()),
            Cell::written(cell.files.to_string()),
            Cell::written(size(cell.file_bytes)),
        ];
        cells.extend(with_ratios(
            same.iter().map(|point| Some(point.rounds[0])).collect(),
            Unit::Number.common([]),
            false,
        ));
        cells.extend(with_ratios(
            same.iter().map(|point| Some(point.rounds[1])).collect(),
            Unit::Number.common([]),
            false,
        ));
        table.row(cells);
        let title =
            format!("Mean time of a file, {} × {}", counted(cell.clients, "client"), counted(cell.files, "file"));
        let at = times.iter().position(|(known, _)| *known == title).unwrap_or_else(|| {
            times.push((title, Vec::new()));
            times.len() - 1
        });
        for (number, (point, (name, _))) in same.iter().zip(records).enumerate() {
            let name = format!("{name}, {}", cell.transport);
            let lines = &mut times[at].1;
            let dashed = cell.transport == read::BASE;
            let line = lines.iter().position(|line| line.name == name).unwrap_or_else(|| {
                lines.push(Line { name, colour: number, shape: number, dashed, ..Line::default() });
                lines.len() - 1
            });
            lines[line].points.push((cell.file_bytes as f64, point.mean.milliseconds_per_file));
        }
    }
    let mut section = Section::new("Time and processors");
    for (title, lines) in times {
        let (x, y) = (Kind::log(Unit::Size), Kind::log(Unit::Millis));
        section = section.plot(Plot { title, along: "size of a file".to_owned(), x, y, lines, ..Plot::default() });
    }
    section.table(table)
}
