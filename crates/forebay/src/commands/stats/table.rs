//! Intervals as lines of a table that does not move: columns are as wide as their widest number can be.

use super::columns::{Column, Format};
use super::layout::{Cell, Density, Group, Layout};

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

    /// Two lines for each of the layout: groups, and the names of their columns.
    pub(super) fn heading(&self, layout: &Layout) -> String {
        let mut text = String::new();
        for line in &layout.lines {
            let titles = line.iter().map(|group| title(group, layout.density)).collect::<Vec<_>>().join(" ");
            let names = self.joined(line, |cell| {
                let name = layout.density.name_of(&self.columns[cell.at]);
                format!("{name:>width$}", width = cell.width)
            });
            let (blank, letters) = (" ".repeat(layout.margin()), margin(layout, line));
            match self.colours {
                true => text.push_str(&format!("{blank}{DIM}{titles}{PLAIN}\n{letters}{BOLD}{names}{PLAIN}\n")),
                false => text.push_str(&format!("{blank}{titles}\n{letters}{names}\n")),
            }
        }
        text
    }

    /// An interval: the value of each column, on as many lines as the layout has.
    pub(super) fn row(&self, layout: &Layout, values: &[Option<f64>]) -> String {
        let cell = |cell: &Cell| {
            let value = values.get(cell.at).copied().flatten();
            let said =
                value.map_or("-".to_owned(), |value| number(value, self.columns[cell.at].format, layout.density));
            let text = format!("{said:>width$}", width = cell.width);
            let quiet = value.is_none_or(|value| value == 0.0);
            if self.colours && quiet { format!("{DIM}{text}{PLAIN}") } else { text }
        };
        layout.lines.iter().map(|line| format!("{}{}\n", margin(layout, line), self.joined(line, cell))).collect()
    }

    fn joined(&self, line: &[Group], of: impl Fn(&Cell) -> String) -> String {
        let groups = line.iter().map(|group| group.cells.iter().map(&of).collect::<Vec<_>>().join(" "));
        groups.collect::<Vec<_>>().join("|")
    }
}

/// The letters of the groups of a line, where there are several lines.
fn margin(layout: &Layout, line: &[Group]) -> String {
    let letters: String = line.iter().map(|group| group.section.letter()).collect();
    match layout.margin() {
        0 => String::new(),
        width => format!("{letters:<width$}"),
    }
}

fn title(group: &Group, density: Density) -> String {
    let (name, width) = (density.title_of(group.section), group.width());
    let before = width.saturating_sub(name.len()) / 2;
    let after = width.saturating_sub(name.len() + before);
    format!("{}{name}{}", "-".repeat(before), "-".repeat(after))
}

/// Three digits and a unit; where there is little room, in four characters.
fn number(value: f64, format: Format, density: Density) -> String {
    match (format, density) {
        // 100 cores are 10000 %.
        (Format::Percent, Density::Full) if value >= 999.95 => format!("{}%", scaled(value, 1000.0, &["", "k"])),
        (Format::Percent, Density::Full) if value >= 99.95 => format!("{value:.0}%"),
        (Format::Percent, Density::Full) => format!("{value:.1}%").replace(".0%", "%"),
        (Format::Percent, Density::Tight) if value >= 999.5 => scaled(value, 1000.0, &["", "k"]),
        (Format::Percent, Density::Tight) if value < 9.95 => format!("{value:.1}%").replace(".0%", "%"),
        // What is not all is not told as all.
        (Format::Percent, Density::Tight) => format!("{:.0}%", value.floor()),
        (Format::Bytes, _) => scaled(value, 1024.0, &["B", "K", "M", "G", "T", "P"]),
        (Format::Count, _) => scaled(value, 1000.0, &["", "k", "m", "g"]),
        (Format::Millis, _) if value >= 99.95 => scaled(value, 1000.0, &["", "k", "m"]),
        (Format::Millis, _) if value >= 9.995 => format!("{value:.1}"),
        (Format::Millis, _) if value == 0.0 => "0".to_owned(),
        (Format::Millis, _) => format!("{value:.2}"),
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
    use crate::commands::stats::columns::{Interval, Section, chosen, counted, tests::reports};
    use forebay_node::report::sample::everything;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let bytes = |value| number(value, Format::Bytes, Density::Full);
        assert_eq!([0.0, 999.0, 1023.0, 4096.0].map(bytes), ["0B", "999B", "1.0K", "4.0K"]);
        assert_eq!([20480.0, 1e9, 5e12, 999.0 * 1048576.0].map(bytes), ["20K", "954M", "4.5T", "999M"]);
        let count = |value| number(value, Format::Count, Density::Full);
        assert_eq!([0.0, 12.4, 999.4, 999.6, 123_456.0].map(count), ["0", "12", "999", "1.0k", "123k"]);
        let millis = |value| number(value, Format::Millis, Density::Full);
        assert_eq!([0.0, 0.012, 1.5, 99.9, 150.0, 30_000.0].map(millis), ["0", "0.01", "1.50", "99.9", "150", "30k"]);
        let percent = |value| number(value, Format::Percent, Density::Full);
        assert_eq!([0.0, 99.9, 100.0, 1600.0].map(percent), ["0%", "99.9%", "100%", "1.6k%"]);
    }

    #[test]
    fn no_number_takes_more_than_its_place() {
        for (density, most) in [(Density::Full, 5), (Density::Tight, 4)] {
            for format in [Format::Percent, Format::Bytes, Format::Count, Format::Millis] {
                for exponent in -40..90 {
                    let value = 1.6f64.powi(exponent);
                    let limit = match format {
                        Format::Percent => 99_000.0,
                        Format::Bytes => 1e17,
                        Format::Count => 1e11,
                        Format::Millis => 1e8,
                    };
                    let text = number(value.min(limit), format, density);
                    assert!(text.len() <= most, "{value} is {text}");
                }
            }
        }
        let percent = |value| number(value, Format::Percent, Density::Tight);
        assert_eq!([0.0, 5.25, 99.9, 100.0, 1600.0].map(percent), ["0%", "5.2%", "99%", "100%", "1.6k"]);
    }

    #[test]
    fn heading_and_lines_are_of_one_width_and_without_colour_in_a_file() {
        let sections: Vec<Section> = Section::LETTERS.chars().filter_map(Section::of).collect();
        let (before, after) = (reports(everything(1)), reports(everything(1 << 12)));
        let interval = Interval::new(&before, &after, Duration::from_secs(1));
        for verbosity in [0, 1] {
            let columns = chosen(&sections, verbosity);
            let values: Vec<Option<f64>> = columns.iter().map(|column| column.value(&interval)).collect();
            for width in [None, Some(235), Some(143), Some(100), Some(80)] {
                let layout = Layout::of(&columns, &counted(&columns, &after), true, width);
                let table = Table::new(columns.clone(), false);
                let text = format!("{}{}", table.heading(&layout), table.row(&layout, &values));
                let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
                assert_eq!(widest, layout.width(), "{text}");
                assert!(!text.contains('\x1b') && text.contains("remote"), "{text}");
                // Group by group, heading and numbers end at the same places.
                let (heading, row) = text.split_at(table.heading(&layout).len());
                for (names, numbers) in heading.lines().skip(1).step_by(2).zip(row.lines()) {
                    let bars = |line: &str| line.match_indices('|').map(|(at, _)| at).collect::<Vec<_>>();
                    assert_eq!(bars(names), bars(numbers), "{text}");
                    assert_eq!(names.len(), numbers.len(), "{text}");
                }
            }
            let layout = Layout::of(&columns, &counted(&columns, &after), true, None);
            let coloured = Table::new(columns, true).heading(&layout);
            assert!(coloured.contains(BOLD) && coloured.contains(PLAIN));
        }
    }
}
