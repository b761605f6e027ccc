//! What a report says, before it is drawn: headings, figures at the top, findings, sections with plots and tables. Plain values,
//! so that the page and the terminal have the same words.

use super::plot::Plot;
use super::units::{figure, micros, times};
use crate::record::{Finding, Level};

/// A report.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Document {
    /// What it is about.
    pub(super) title: String,
    /// When, where and by what.
    pub(super) lead: String,
    /// What must be known before anything else: that the run is not complete.
    pub(super) caution: Option<String>,
    /// The figures that people come for.
    pub(super) headlines: Vec<Headline>,
    /// What the measurements mean, the troubling first.
    pub(super) findings: Vec<Finding>,
    /// The rest.
    pub(super) sections: Vec<Section>,
    /// How figures are made and written: said once, at the end.
    pub(super) notes: &'static str,
}

impl Document {
    /// Sets the findings, in the order in which they are to be read: what to look into, then what is good, then the rest.
    pub(super) fn with_findings(mut self, findings: &[Finding]) -> Self {
        self.findings = findings.to_vec();
        self.findings.sort_by_key(|finding| match finding.level {
            Level::Warn => 0,
            Level::Good => 1,
            Level::Info => 2,
        });
        self
    }
}

/// A figure in large type.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Headline {
    /// What it is.
    pub(super) name: String,
    /// The figure with its unit.
    pub(super) value: String,
    /// Of what it is the figure.
    pub(super) of: String,
}

/// A part under a heading.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Section {
    /// The heading.
    pub(super) heading: String,
    /// What is to be known for reading it.
    pub(super) paragraphs: Vec<String>,
    /// Only on the page.
    pub(super) plots: Vec<Plot>,
    pub(super) tables: Vec<Table>,
}

impl Section {
    /// A section with nothing in it yet.
    pub(super) fn new(heading: impl Into<String>) -> Self {
        Self { heading: heading.into(), ..Self::default() }
    }

    /// Adds a paragraph.
    pub(super) fn says(mut self, paragraph: impl Into<String>) -> Self {
        self.paragraphs.push(paragraph.into());
        self
    }

    /// Adds a plot, if there is anything in it.
    pub(super) fn plot(mut self, plot: Plot) -> Self {
        if !plot.is_empty() {
            self.plots.push(plot);
        }
        self
    }

    /// Adds a table, if there is anything in it.
    pub(super) fn table(mut self, table: Table) -> Self {
        if !table.rows.is_empty() {
            self.tables.push(table);
        }
        self
    }

    /// Whether nothing is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.plots.is_empty() && self.tables.is_empty()
    }
}

/// Rows under headings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Table {
    /// What it shows; nothing where the heading above says it.
    pub(super) caption: String,
    /// Above the columns.
    pub(super) headings: Vec<String>,
    /// Each with as many cells as there are headings.
    pub(super) rows: Vec<Vec<Cell>>,
    /// So many of the rows, the last, are on the page only, and what the terminal says instead.
    pub(super) on_page: Option<(usize, &'static str)>,
}

impl Table {
    /// A table with these headings.
    pub(super) fn new(caption: impl Into<String>, headings: &[&str]) -> Self {
        Self {
            caption: caption.into(),
            headings: headings.iter().map(|heading| (*heading).to_owned()).collect(),
            rows: Vec::new(),
            on_page: None,
        }
    }

    /// Adds a row.
    pub(super) fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.headings.len(), "{}", self.caption);
        self.rows.push(cells);
    }

    /// Whether a column holds figures, which are written below each other with their ends in line.
    pub(super) fn is_figures(&self, column: usize) -> bool {
        self.rows.iter().filter_map(|row| row.get(column)).any(|cell| cell.is_figure)
    }
}

/// A cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) text: String,
    /// Whether it is a figure.
    pub(super) is_figure: bool,
    /// How it compares.
    pub(super) tone: Tone,
}

/// How a figure compares with another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    /// It does not, or they are the same.
    #[default]
    Plain,
    Better,
    Worse,
    /// It stands out among its like: the knee.
    Marked,
}

/// How far two measurements must be apart to be called different. Runs on one machine differ by as much.
const NOTICEABLE: f64 = 0.05;

impl Cell {
    /// Words.
    pub(super) fn words(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A figure that has been written already.
    pub(super) fn written(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_figure: true, tone: Tone::Plain }
    }

    /// A number.
    pub(super) fn number(value: f64) -> Self {
        Self::written(figure(value))
    }

    /// A time. With its unit: from microseconds to seconds, figures of one unit would be hard to read.
    pub(super) fn micros(value: f64) -> Self {
        Self::written(micros(value))
    }

    /// A number that may not be known.
    pub(super) fn known(value: Option<f64>) -> Self {
        value.map_or_else(|| Self::written("-"), Self::number)
    }

    /// How often `than` a value is; of throughput more is better, of time less.
    pub(super) fn ratio(ratio: Option<f64>, more_is_better: bool) -> Self {
        let Some(ratio) = ratio.filter(|ratio| ratio.is_finite()) else { return Self::written("-") };
        let tone = match ratio {
            _ if (ratio - 1.0).abs() < NOTICEABLE => Tone::Plain,
            _ if (ratio > 1.0) == more_is_better => Tone::Better,
            _ => Tone::Worse,
        };
        Self { tone, ..Self::written(times(ratio)) }
    }

    /// The same, standing out.
    pub(super) fn marked(self, marked: bool) -> Self {
        if marked { Self { tone: Tone::Marked, ..self } } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_throughput_and_less_time_are_better_unless_it_is_within_the_noise() {
        assert_eq!(Cell::ratio(Some(1.5), true).tone, Tone::Better);
        assert_eq!(Cell::ratio(Some(1.5), false).tone, Tone::Worse);
        assert_eq!(Cell::ratio(Some(0.5), false).tone, Tone::Better);
        assert_eq!(Cell::ratio(Some(1.03), true).tone, Tone::Plain);
        assert_eq!(Cell::ratio(None, true).text, "-");
        assert_eq!(Cell::ratio(Some(f64::NAN), true).text, "-");
    }

    #[test]
    fn what_is_to_be_looked_into_comes_first() {
        let finding = |level, rule: &str| Finding { rule: rule.to_owned(), level, text: String::new(), next: None };
        let findings = [
            finding(Level::Info, "a"),
            finding(Level::Good, "b"),
            finding(Level::Warn, "c"),
            finding(Level::Info, "d"),
        ];
        let rules: Vec<_> = Document::default().with_findings(&findings).findings.into_iter().map(|f| f.rule).collect();
        assert_eq!(rules, ["c", "b", "a", "d"]);
    }
}
