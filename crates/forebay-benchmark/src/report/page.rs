//! The page: a document as HTML, by templates that are compiled in and escape whatever they write.

use askama::Template;

use super::document::{Cell, Document, Section, Table, Tone};
use super::plot::Drawn;
use crate::record::{Finding, Level};

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    document: &'a Document,
    findings: Vec<Shown<'a>>,
    sections: Vec<Part<'a>>,
    version: &'static str,
}

/// A finding with its word and its colour.
struct Shown<'a> {
    word: &'static str,
    class: &'static str,
    text: &'a str,
    next: &'a Option<String>,
}

/// A section, with its plots on paper.
struct Part<'a> {
    anchor: String,
    heading: &'a str,
    paragraphs: &'a [String],
    plots: Vec<Drawn>,
    tables: &'a [Table],
}

/// `document` as one page.
pub(super) fn page(document: &Document) -> String {
    let sections = document.sections.iter().enumerate();
    let page = Page {
        document,
        findings: document.findings.iter().map(shown).collect(),
        sections: sections.map(|(number, section)| part(number, section)).collect(),
        version: env!("CARGO_PKG_VERSION"),
    };
    page.render().expect("a template of strings, written to memory")
}

fn shown(finding: &Finding) -> Shown<'_> {
    let (word, class) = match finding.level {
        Level::Warn => ("Look into", "warn"),
        Level::Good => ("Good", "good"),
        Level::Info => ("Note", "info"),
    };
    Shown { word, class, text: &finding.text, next: &finding.next }
}

fn part(number: usize, section: &Section) -> Part<'_> {
    Part {
        anchor: format!("section-{number}"),
        heading: &section.heading,
        paragraphs: &section.paragraphs,
        plots: section.plots.iter().map(super::plot::Plot::drawn).collect(),
        tables: &section.tables,
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
            Tone::Marked => "marked",
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
            headlines: Vec::new(),
            findings: vec![finding],
            notes: "",
            sections: vec![Section::new(HOSTILE).says(HOSTILE).plot(plot).table(table)],
        }
    }

    #[test]
    fn no_name_becomes_markup() {
        let page = page(&hostile());
        assert!(!page.contains("<script") && !page.contains("alert(1)<"), "{page}");
        assert!(page.contains("alert(1)"));
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
