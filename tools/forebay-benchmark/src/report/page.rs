//! The page: a document as HTML, by templates that are compiled in and escape whatever they write.

use askama::Template;

use super::document::{Attached, Cell, Document, Group, Section, Table, Tone};
use super::plot::Drawn;
use crate::record::{Finding, Level};

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    document: &'a Document,
    findings: Vec<Shown<'a>>,
    /// Those that can wait until the reader asks.
    more_findings: Vec<Shown<'a>>,
    /// Whether some of those trouble.
    more_urgent: bool,
    attached: Vec<Saved>,
    sections: Vec<Part<'a>>,
    version: &'static str,
}

/// The findings of a rule.
struct Shown<'a> {
    word: &'static str,
    class: &'static str,
    title: &'a str,
    first: &'a str,
    findings: &'a [Finding],
}

/// A file in the page.
struct Saved {
    name: &'static str,
    size: String,
    /// A `data:` address, as a link has it.
    address: String,
}

/// A section, with its plots on paper.
struct Part<'a> {
    anchor: String,
    heading: &'a str,
    paragraphs: &'a [String],
    plots: Vec<Drawn>,
    tables: Vec<&'a Table>,
    /// Tables of which only captions are seen.
    folded_tables: Vec<&'a Table>,
    folded: bool,
}

/// So many rules' findings stand above the first plot, at least and at most: all of it is on one screen.
const FINDINGS_AT_ONCE: (usize, usize) = (3, 4);

/// `document` as one page.
#[expect(clippy::expect_used, reason = "a template of strings, written to memory")]
pub(super) fn page(document: &Document) -> String {
    let sections = document.sections.iter().enumerate();
    let mut findings: Vec<Shown<'_>> = document.findings.iter().map(shown).collect();
    let urgent = document.findings.iter().take_while(|group| group.level == Level::Warn).count();
    let at_once = urgent.clamp(FINDINGS_AT_ONCE.0, FINDINGS_AT_ONCE.1).min(findings.len());
    let page = Page {
        document,
        more_urgent: urgent > at_once,
        more_findings: findings.split_off(at_once),
        findings,
        attached: document.attached.iter().map(saved).collect(),
        sections: sections.map(|(number, section)| part(number, section)).collect(),
        version: env!("CARGO_PKG_VERSION"),
    };
    page.render().expect("the template renders")
}

fn shown(group: &Group) -> Shown<'_> {
    let (word, class) = in_words(group.level);
    let first = group.findings.first().map_or("", |finding| finding.text.as_str());
    Shown { word, class, title: &group.title, first, findings: &group.findings }
}

fn in_words(level: Level) -> (&'static str, &'static str) {
    match level {
        Level::Warn => ("Look into", "warn"),
        Level::Good => ("Good", "good"),
        Level::Info => ("Note", "info"),
    }
}

impl Finding {
    /// Its class in the style sheet.
    fn class(&self) -> &'static str {
        in_words(self.level).1
    }
}

fn saved(attached: &Attached) -> Saved {
    let Attached { name, kind, text } = attached;
    Saved { name, size: super::units::size(text.len() as u64), address: format!("data:{kind},{}", escaped(text)) }
}

/// As a part of an address (RFC 3986): all but letters, digits and some marks by their numbers.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 5 / 4);
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b',' => out.push(byte as char),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn part(number: usize, section: &Section) -> Part<'_> {
    Part {
        anchor: format!("section-{number}"),
        heading: &section.heading,
        paragraphs: &section.paragraphs,
        plots: section.plots.iter().map(super::plot::Plot::drawn).collect(),
        tables: section.tables.iter().filter(|table| !table.folded).collect(),
        folded_tables: section.tables.iter().filter(|table| table.folded).collect(),
        folded: section.folded,
    }
}

impl Table {
    /// Whether its columns have names: facts have none.
    fn has_headings(&self) -> bool {
        self.headings.iter().any(|heading| !heading.is_empty())
    }

    /// What stands above each column, and its class in the style sheet.
    fn columns(&self) -> Vec<(&str, &'static str)> {
        let class = |column| if self.is_figures(column) { "figure" } else { "" };
        self.headings.iter().enumerate().map(|(column, heading)| (heading.as_str(), class(column))).collect()
    }
}

impl Cell {
    /// Its classes in the style sheet.
    fn class(&self) -> String {
        let tone = match self.tone {
            Tone::Plain => "",
            Tone::Better => "better",
            Tone::Worse => "worse",
            Tone::Unjudged => "unjudged",
            Tone::Marked => "marked",
            Tone::Doubtful => "doubtful",
        };
        let figure = if self.is_figure { "figure" } else { "" };
        [figure, tone].into_iter().filter(|class| !class.is_empty()).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::plot::{Kind, Line, Plot};
    use crate::report::units::Unit;

    const HOSTILE: &str = "<script>alert(1)</script>&\"'";

    fn hostile() -> Document {
        let mut table = Table::new(HOSTILE, &[HOSTILE]);
        table.row(vec![Cell::words(HOSTILE)]);
        let line = Line { name: HOSTILE.into(), points: vec![(1.0, 1.0)], ..Line::default() };
        let kind = Kind::linear(Unit::Number);
        let plot = Plot {
            title: HOSTILE.into(),
            along: HOSTILE.into(),
            x: kind,
            y: kind,
            lines: vec![line],
            ..Plot::default()
        };
        let finding =
            Finding { rule: HOSTILE.into(), level: Level::Warn, text: HOSTILE.into(), next: Some(HOSTILE.into()) };
        Document {
            title: HOSTILE.into(),
            lead: HOSTILE.into(),
            caution: Some(HOSTILE.into()),
            mark: Some(HOSTILE.into()),
            attached: vec![Attached { name: "steps.csv", kind: "text/csv", text: HOSTILE.into() }],
            sections: vec![
                Section::new(HOSTILE).says(HOSTILE).plot(plot).table(table.clone()).table(table.clone().folded()),
                Section::new(HOSTILE).table(table).folded(),
            ],
            ..Document::default()
        }
        .with_findings(&[finding])
    }

    #[test]
    fn no_name_becomes_markup() {
        let page = page(&hostile());
        assert!(!page.contains("<script") && !page.contains("alert(1)<"), "{page}");
        assert!(page.contains("alert(1)"));
    }

    #[test]
    fn what_is_attached_is_in_the_page_and_every_heading_has_the_mark() {
        let page = page(&hostile());
        assert!(page.contains("data:text/csv,%3Cscript%3Ealert%281%29%3C%2Fscript%3E%26%22%27"), "{page}");
        assert_eq!(page.matches("class=\"mark\"").count(), 1 + 2, "the title's and both sections'");
        assert_eq!(escaped("a,b\r\n1.5 µs"), "a,b%0D%0A1.5%20%C2%B5s");
    }

    #[test]
    fn templates_never_leave_out_escaping() {
        for template in [include_str!("../../templates/report.html"), include_str!("../../templates/plot.svg")] {
            assert!(!template.contains("safe") && !template.contains("escape"), "a filter that writes as it is");
        }
    }

    #[test]
    fn a_page_needs_nothing_but_itself() {
        let page = page(&hostile());
        for foreign in ["http://", "https://", "url(", "@import", "src=", "<link", "<script", "javascript:"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }
}
