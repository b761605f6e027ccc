//! Intervals as lines of a table that never moves: columns are as wide as their widest number can be.

use super::columns::{Column, Format, Interval, Section};

/// `1023`, `9.9K`, `150M`: with their unit, five places.
const WIDTH: usize = 5;
const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// The table.
pub(super) struct Table {
    columns: Vec<Column>,
    colours: bool,
}

impl Table {
    /// Of `columns`; with `colours`, for a terminal.
    pub(super) fn new(columns: Vec<Column>, colours: bool) -> Self {
        Self { columns, colours }
    }

    /// Two lines: sections, and the names of their columns.
    pub(super) fn heading(&self) -> String {
        let sections = self.sections().map(|(section, columns)| {
            let width: usize = columns.iter().map(|column| width(column) + 1).sum::<usize>() - 1;
            let name = section.name();
            let before = width.saturating_sub(name.len()) / 2;
            let after = width.saturating_sub(name.len() + before);
            format!("{}{name}{}", "-".repeat(before), "-".repeat(after))
        });
        let names = self.sections().map(|(_, columns)| {
            let names = columns.iter().map(|column| format!("{:>width$}", column.name, width = width(column)));
            names.collect::<Vec<_>>().join(" ")
        });
        let (sections, names) = (sections.collect::<Vec<_>>().join(" "), names.collect::<Vec<_>>().join("|"));
        match self.colours {
            true => format!("{DIM}{sections}{PLAIN}\n{BOLD}{names}{PLAIN}\n"),
            false => format!("{sections}\n{names}\n"),
        }
    }

    /// The line of an interval.
    pub(super) fn line(&self, interval: &Interval<'_>) -> String {
        let cell = |column: &Column| {
            let value = column.value(interval);
            let text = format!(
                "{:>width$}",
                value.map_or("-".to_owned(), |value| number(value, column.format)),
                width = width(column)
            );
            let quiet = value.is_none_or(|value| value == 0.0);
            if self.colours && quiet { format!("{DIM}{text}{PLAIN}") } else { text }
        };
        let sections = self.sections().map(|(_, columns)| columns.iter().map(cell).collect::<Vec<_>>().join(" "));
        sections.collect::<Vec<_>>().join("|")
    }

    fn sections(&self) -> impl Iterator<Item = (Section, &[Column])> {
        self.columns.chunk_by(|a, b| a.section == b.section).map(|columns| (columns[0].section, columns))
    }
}

fn width(column: &Column) -> usize {
    column.name.len().max(WIDTH)
}

/// Three digits and a unit.
fn number(value: f64, format: Format) -> String {
    match format {
        // 100 cores are 10000 %.
        Format::Percent if value >= 999.95 => format!("{}%", scaled(value, 1000.0, &["", "k"])),
        Format::Percent => format!("{value:.1}%").replace(".0%", "%"),
        Format::Bytes => scaled(value, 1024.0, &["B", "K", "M", "G", "T", "P"]),
        Format::Count => scaled(value, 1000.0, &["", "k", "m", "g"]),
        Format::Millis if value >= 99.95 => scaled(value, 1000.0, &["", "k", "m"]),
        Format::Millis if value == 0.0 => "0".to_owned(),
        Format::Millis => format!("{value:.2}"),
    }
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    // 999.6 would be written with four digits.
    while value >= 999.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = if unit > 0 && value < 9.95 { 1 } else { 0 };
    format!("{value:.digits$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::commands::stats::columns::{chosen, tests::reports};
    use crate::metrics::tests::everything;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let bytes = |value| number(value, Format::Bytes);
        assert_eq!([0.0, 999.0, 1023.0, 4096.0].map(bytes), ["0B", "999B", "1.0K", "4.0K"]);
        assert_eq!([20480.0, 1e9, 5e12, 999.0 * 1048576.0].map(bytes), ["20K", "954M", "4.5T", "999M"]);
        let count = |value| number(value, Format::Count);
        assert_eq!([0.0, 12.4, 999.4, 999.6, 123_456.0].map(count), ["0", "12", "999", "1.0k", "123k"]);
        let millis = |value| number(value, Format::Millis);
        assert_eq!([0.0, 0.012, 1.5, 99.9, 150.0, 30_000.0].map(millis), ["0", "0.01", "1.50", "99.90", "150", "30k"]);
        assert_eq!(
            [0.0, 99.9, 100.0, 1600.0].map(|value| number(value, Format::Percent)),
            ["0%", "99.9%", "100%", "1.6k%"]
        );
    }

    #[test]
    fn heading_and_lines_are_of_one_width_and_without_colour_in_a_file() {
        let sections: Vec<Section> = Section::LETTERS.chars().filter_map(Section::of).collect();
        let (before, after) = (reports(everything(1)), reports(everything(1 << 12)));
        for verbosity in [0, 1] {
            let table = Table::new(chosen(&sections, verbosity), false);
            let text =
                format!("{}{}\n", table.heading(), table.line(&Interval::new(&before, &after, Duration::from_secs(1))));
            let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
            assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
            assert!(!text.contains('\x1b'));
            assert!(text.lines().next().unwrap().contains("remotecache"), "{text}");
        }
        let coloured = Table::new(chosen(&sections, 0), true).heading();
        assert!(coloured.contains(BOLD) && coloured.contains(PLAIN));
    }
}
