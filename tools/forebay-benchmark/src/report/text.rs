//! A document for a terminal: its words and tables, without the plots.

use std::fmt::Write as _;

use super::document::{Document, Table, Tone};
use crate::record::{Finding, Level};

/// `document` in lines.
pub(super) fn text(document: &Document) -> String {
    // A reader who copies a part of it copies that as well.
    let mark = document.mark.as_ref().map(|mark| format!(" [{}]", printable(mark))).unwrap_or_default();
    let mut out = format!("{}{mark}\n{}\n", printable(&document.title), printable(&document.lead));
    if let Some(caution) = &document.caution {
        let _ = writeln!(out, "\n{}", printable(caution));
    }
    if !document.headlines.is_empty() {
        out.push('\n');
    }
    let width = document.headlines.iter().map(|headline| headline.name.chars().count()).max().unwrap_or(0);
    let figures = document.headlines.iter().map(|headline| headline.value.chars().count()).max().unwrap_or(0);
    for headline in &document.headlines {
        let of = format!("{}{mark}", printable(&headline.of));
        let _ = writeln!(out, "{:width$}  {:>figures$}  {of}", headline.name, headline.value);
    }
    if !document.findings.is_empty() {
        out.push('\n');
    }
    for finding in document.findings.iter().flat_map(|group| &group.findings) {
        finding_lines(&mut out, finding);
    }
    for section in document.sections.iter().filter(|section| !section.tables.is_empty()) {
        // Not in capitals: units are in headings.
        let heading = format!("{}{mark}", printable(&section.heading));
        let _ = writeln!(out, "\n{heading}\n{}", "-".repeat(heading.chars().count()));
        for paragraph in &section.paragraphs {
            let _ = writeln!(out, "{}", printable(paragraph));
        }
        for table in &section.tables {
            out.push('\n');
            table_lines(&mut out, table);
        }
    }
    out
}

fn finding_lines(out: &mut String, finding: &Finding) {
    let word = match finding.level {
        Level::Warn => "warn",
        Level::Good => "good",
        Level::Info => "info",
    };
    let _ = writeln!(out, "{word}  {}", printable(&finding.text));
    if let Some(next) = &finding.next {
        let _ = writeln!(out, "      {}", printable(next));
    }
}

/// Each column as wide as its widest cell, figures with their ends in line.
fn table_lines(out: &mut String, table: &Table) {
    if !table.caption.is_empty() {
        let _ = writeln!(out, "{}", printable(&table.caption));
    }
    let shown = table.rows.len().saturating_sub(table.on_page.map_or(0, |(rows, _)| rows));
    let mut lines: Vec<Vec<String>> = Vec::new();
    if shown > 0 && table.headings.iter().any(|heading| !heading.is_empty()) {
        lines.push(table.headings.iter().map(|heading| printable(heading)).collect());
    }
    let cells = table.rows.iter().take(shown).map(|row| row.iter());
    lines.extend(cells.map(|row| row.map(|cell| printable(&marked(&cell.text, cell.tone))).collect()));
    let columns = table.headings.len();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for line in &lines {
        let mut text = String::new();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let _ = match table.is_figures(column) {
                true => write!(text, "{cell:>width$}  "),
                false => write!(text, "{cell:width$}  "),
            };
        }
        let _ = writeln!(out, "{}", text.trim_end());
    }
    if let Some((_, instead)) = table.on_page {
        let _ = writeln!(out, "{instead}");
    }
}

fn marked(text: &str, tone: Tone) -> String {
    match tone {
        Tone::Marked => format!("*{text}"),
        Tone::Doubtful => format!("!{text}"),
        Tone::Plain | Tone::Better | Tone::Worse | Tone::Unjudged => text.to_owned(),
    }
}

/// Names come from paths and other machines: what would steer the terminal is written out.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::document::{Cell, Section};

    #[test]
    fn figures_end_in_line_and_words_begin_in_line() {
        let mut table = Table::new("Sweep", &["target", "GB/s"]);
        table.row(vec![Cell::words("forebay"), Cell::number(12.0)]);
        table.row(vec![Cell::words("é"), Cell::number(1234.0).marked(true)]);
        let mut out = String::new();
        table_lines(&mut out, &table);
        assert_eq!(out, "Sweep\ntarget    GB/s\nforebay   12.0\né        *1234\n");
    }

    #[test]
    fn rows_that_are_on_the_page_only_are_told_of_in_a_sentence() {
        let mut table = Table::new("", &["target", "GB/s"]);
        table.row(vec![Cell::words("forebay"), Cell::number(12.0)]);
        table.row(vec![Cell::words("others"), Cell::number(13.0)]);
        let lines = |table: &Table| {
            let mut out = String::new();
            table_lines(&mut out, table);
            out
        };
        table.on_page = Some((1, "The page has more."));
        assert_eq!(lines(&table), "target   GB/s\nforebay  12.0\nThe page has more.\n");
        table.on_page = Some((2, "The page has all."));
        assert_eq!(lines(&table), "The page has all.\n");
    }

    #[test]
    fn a_name_does_not_steer_the_terminal() {
        let mut table = Table::new("", &["", ""]);
        table.row(vec![Cell::words("a\x1b[2Jb"), Cell::words("c\nd")]);
        let document = Document { sections: vec![Section::new("Machine").table(table)], ..Document::default() };
        let text = text(&document);
        assert!(text.ends_with("\nMachine\n-------\n\na\\u{1b}[2Jb  c\\nd\n"), "{text:?}");
    }

    #[test]
    fn a_finding_says_what_to_do_below_it() {
        let finding = Finding {
            rule: "tail".into(),
            level: Level::Warn,
            text: "p99 is 12 × the mean.".into(),
            next: Some("Look at the origin.".into()),
        };
        let document =
            Document { title: "T".into(), lead: "L".into(), ..Document::default() }.with_findings(&[finding]);
        assert_eq!(text(&document), "T\nL\n\nwarn  p99 is 12 × the mean.\n      Look at the origin.\n");
    }

    #[test]
    fn every_heading_of_a_quick_run_says_so() {
        let mut table = Table::new("", &["", ""]);
        table.row(vec![Cell::words("a"), Cell::words("b")]);
        let section = || Section::new("S").table(table.clone());
        let document = Document {
            title: "T".into(),
            mark: Some("quick".into()),
            sections: vec![section(), section()],
            ..Document::default()
        };
        let text = text(&document);
        assert!(text.starts_with("T [quick]\n") && text.matches("\nS [quick]\n---------\n").count() == 2, "{text}");
    }
}
