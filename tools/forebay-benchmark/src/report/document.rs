//! What a report says, before it is drawn: headings, figures at the top, findings, sections with plots and tables. Plain values,
//! so that the page and the terminal have the same words.

use super::plot::Plot;
use super::units::{Common, figure, times};
use crate::record::{Finding, Level};
use crate::spread::{Spread, Verdict};

/// A report.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Document {
    /// What it is about.
    pub(super) title: String,
    /// When, where and by what.
    pub(super) lead: String,
    /// What every figure is to be seen with: `quick`. It stands at every heading.
    pub(super) mark: Option<String>,
    /// What must be known before anything else: that the run is not complete.
    pub(super) caution: Option<String>,
    /// The figures that people come for.
    pub(super) headlines: Vec<Headline>,
    /// What the measurements mean, the troubling first, those of one rule together.
    pub(super) findings: Vec<Group>,
    /// The rest.
    pub(super) sections: Vec<Section>,
    /// How figures are made and written: said once, at the end.
    pub(super) notes: &'static str,
    /// What the page has with it, to be saved as a file.
    pub(super) attached: Vec<Attached>,
}

/// A file within the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attached {
    /// Its name.
    pub(super) name: &'static str,
    /// What it is, for a browser.
    pub(super) kind: &'static str,
    /// What is in it.
    pub(super) text: String,
}

/// Findings of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// What the rule looks at.
    pub(super) title: String,
    /// The most troubling of its findings'.
    pub(super) level: Level,
    /// Those first that trouble more.
    pub(super) findings: Vec<Finding>,
}

/// What each rule looks at, in the words of a heading.
const RULES: [(&str, &str); 29] = [
    ("headline", "Highest figures"),
    ("warm", "Was warm warm"),
    ("against", "Against others"),
    ("knee", "Jobs to work with"),
    ("flat", "More jobs give nothing"),
    ("cold", "Cold reads"),
    ("network", "Part of the network"),
    ("patterns", "Shared or own files"),
    ("layouts", "One file or several"),
    ("cold-warm", "Warm against cold"),
    ("tail", "Tail of latencies"),
    ("files", "Files and jobs"),
    ("rounding", "Jobs that were run"),
    ("block", "Size of blocks"),
    ("short", "Short steps"),
    ("neighbours", "Other load"),
    ("cpu", "Cost in processors"),
    ("noise", "Rounds that differ"),
    ("scaling", "Scaling"),
    ("prerequisite", "The conditions"),
    ("cache", "Filling and emptying"),
    ("unfinished", "Not at its end"),
    ("single-client", "One client"),
    ("several-clients-cpu", "Several clients"),
    ("larger-files", "Larger files"),
    ("many-files", "Many files"),
    ("carried-by", "What carried it"),
    ("no-ucx", "Without UCX"),
    ("bytes", "Bytes compared"),
];

impl Document {
    /// Sets the findings, by rule, in the order in which they are to be read: what to look into, then what is good, then the rest.
    pub(super) fn with_findings(mut self, findings: &[Finding]) -> Self {
        self.findings = grouped(findings);
        self.findings.iter_mut().for_each(|group| group.findings.sort_by_key(|finding| urgency(finding.level)));
        self.findings.sort_by_key(|group| urgency(group.level));
        self
    }
}

/// By rule, in the order in which the rules come first.
pub(super) fn grouped(findings: &[Finding]) -> Vec<Group> {
    let mut groups: Vec<(&str, Group)> = Vec::new();
    for finding in findings {
        match groups.iter_mut().find(|(rule, _)| *rule == finding.rule) {
            Some((_, group)) => {
                if urgency(finding.level) < urgency(group.level) {
                    group.level = finding.level;
                }
                group.findings.push(finding.clone());
            }
            None => {
                let title =
                    RULES.iter().find(|(rule, _)| *rule == finding.rule).map_or(&*finding.rule, |(_, title)| title);
                let group = Group { title: title.to_owned(), level: finding.level, findings: vec![finding.clone()] };
                groups.push((&finding.rule, group));
            }
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

fn urgency(level: Level) -> u8 {
    match level {
        Level::Warn => 0,
        Level::Good => 1,
        Level::Info => 2,
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
    /// On the page, only its heading is seen until the reader asks.
    pub(super) folded: bool,
}

impl Section {
    /// A section with nothing in it yet.
    pub(super) fn new(heading: impl Into<String>) -> Self {
        Self { heading: heading.into(), ..Self::default() }
    }

    /// The same, folded.
    pub(super) fn folded(self) -> Self {
        Self { folded: true, ..self }
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
    /// On the page, only its caption is seen until the reader asks.
    pub(super) folded: bool,
}

impl Table {
    /// A table with these headings.
    pub(super) fn new(caption: impl Into<String>, headings: &[&str]) -> Self {
        Self {
            caption: caption.into(),
            headings: headings.iter().map(|heading| (*heading).to_owned()).collect(),
            rows: Vec::new(),
            on_page: None,
            folded: false,
        }
    }

    /// The same, folded.
    pub(super) fn folded(self) -> Self {
        Self { folded: true, ..self }
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
    /// Of one round each: how it compares is not known.
    Unjudged,
    /// It stands out among its like: the knee.
    Marked,
    /// It is to be taken with care: a step that was too short.
    Doubtful,
}

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

    /// A figure of some rounds in this unit, in as many digits as they have in common.
    pub(super) fn spread(value: Option<Spread>, unit: Common) -> Self {
        Self::written(value.map_or_else(|| "-".to_owned(), |value| value.written(1.0 / unit.size())))
    }

    /// How many times another a value is, judged by the rounds of both; of throughput more is better, of time less.
    pub(super) fn ratio(ratio: Option<Spread>, more_is_better: bool) -> Self {
        let Some(ratio) = ratio.filter(|ratio| ratio.middle.is_finite()) else { return Self::written("-") };
        let tone = match ratio.verdict() {
            Verdict::Same => Tone::Plain,
            Verdict::Unknown => Tone::Unjudged,
            verdict if (verdict == Verdict::More) == more_is_better => Tone::Better,
            _ => Tone::Worse,
        };
        Self { tone, ..Self::written(times(&ratio)) }
    }

    /// The same of what is a mean already, of rounds that are not known: by the middle alone.
    pub(super) fn ratio_of_means(ratio: Option<f64>, more_is_better: bool) -> Self {
        let certain = |ratio| Spread { middle: ratio, low: ratio, high: ratio, rounds: usize::MAX };
        Self::ratio(ratio.map(certain), more_is_better)
    }

    /// The same, to be taken with care.
    pub(super) fn doubtful(self, doubtful: bool) -> Self {
        if doubtful { Self { tone: Tone::Doubtful, ..self } } else { self }
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
        let tone =
            |rounds: &[f64], more_is_better| Cell::ratio(Spread::of(rounds.iter().copied()), more_is_better).tone;
        assert_eq!(tone(&[1.5, 1.6], true), Tone::Better);
        assert_eq!(tone(&[1.5, 1.6], false), Tone::Worse);
        assert_eq!(tone(&[0.5, 0.6], false), Tone::Better);
        assert_eq!(tone(&[1.03, 1.03], true), Tone::Plain);
        assert_eq!(tone(&[1.9, 0.9, 1.8], true), Tone::Plain, "one round says otherwise");
        assert_eq!(tone(&[1.5], true), Tone::Unjudged);
        assert_eq!(Cell::ratio(None, true).text, "-");
        assert_eq!(Cell::ratio_of_means(Some(f64::NAN), true).text, "-");
        assert_eq!(Cell::ratio_of_means(Some(1.5), true).tone, Tone::Better);
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
        let titles: Vec<_> =
            Document::default().with_findings(&findings).findings.into_iter().map(|group| group.title).collect();
        assert_eq!(titles, ["c", "b", "a", "d"]);
    }

    #[test]
    fn findings_of_one_rule_stand_together_and_the_group_is_as_urgent_as_the_most_urgent() {
        let finding =
            |level, rule: &str, text: &str| Finding { rule: rule.to_owned(), level, text: text.to_owned(), next: None };
        let findings = [
            finding(Level::Info, "headline", "1"),
            finding(Level::Good, "tail", "2"),
            finding(Level::Warn, "tail", "3"),
            finding(Level::Info, "headline", "4"),
        ];
        let groups = Document::default().with_findings(&findings).findings;
        let shown: Vec<_> =
            groups.iter().map(|group| (group.title.as_str(), group.level, group.findings.len())).collect();
        assert_eq!(shown, [("Tail of latencies", Level::Warn, 2), ("Highest figures", Level::Info, 2)]);
        assert_eq!(groups[0].findings[0].text, "3");
    }

    #[test]
    fn every_rule_has_words_for_its_heading() {
        let head = include_str!("../posix/judge.rs");
        let rules = head.lines().filter_map(|line| line.strip_prefix("//! | `")?.split_once('`')).map(|(rule, _)| rule);
        for rule in rules {
            assert!(RULES.iter().any(|(known, _)| *known == rule), "{rule}");
        }
    }
}
