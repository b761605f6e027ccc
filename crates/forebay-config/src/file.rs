//! Settings in a `forebay.toml`: nested tables and dotted keys alike.

use std::ops::Range;

use toml_edit::{Document, Item, TableLike};

use crate::assignment::{Assignment, is_section, unknown_key};
use crate::error::Problem;
use crate::key::Key;
use crate::origin::Origin;
use crate::value::Raw;

/// Reads all settings of the file called `name`.
pub(crate) fn assignments(name: &str, text: &str, assignments: &mut Vec<Assignment>, problems: &mut Vec<Problem>) {
    // Some editors on Windows start a file with this mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let breaks = text.match_indices('\n').map(|(at, _)| at).collect();
    let mut reader = Reader { name, breaks, assignments, problems };
    match Document::parse(text) {
        Ok(document) => reader.table(&mut Vec::new(), document.as_table()),
        Err(error) => {
            let at = reader.at(error.span());
            reader.problems.push(Problem::Syntax { at, error: error.message().trim().replace('\n', ", ") });
        }
    }
}

struct Reader<'a> {
    name: &'a str,
    /// Where lines end: each setting is told with the number of its line.
    breaks: Vec<usize>,
    assignments: &'a mut Vec<Assignment>,
    problems: &'a mut Vec<Problem>,
}

impl Reader<'_> {
    fn table(&mut self, path: &mut Vec<String>, table: &dyn TableLike) {
        for (key, item) in table.iter() {
            let span = table.key(key).and_then(toml_edit::Key::span).or_else(|| item.span());
            path.push(key.to_owned());
            self.item(path, item, span);
            path.pop();
        }
    }

    fn item(&mut self, path: &mut Vec<String>, item: &Item, span: Option<Range<usize>>) {
        let name = path.join(".");
        if let Some(key) = Key::find(&name) {
            let raw = item.as_value().map_or(Raw::Other("a table"), Raw::of);
            self.assignments.push(Assignment { key, raw, at: self.at(span) });
            return;
        }
        match item.as_table_like() {
            // An empty table of a name that we know is a heading whose keys are commented out.
            Some(table) if !table.is_empty() || is_section(&name) => self.table(path, table),
            _ => self.problems.push(unknown_key(self.at(span), &name)),
        }
    }

    fn at(&self, span: Option<Range<usize>>) -> Origin {
        let offset = span.map_or(0, |span| span.start);
        let line = self.breaks.partition_point(|end| *end < offset) + 1;
        Origin::File { name: self.name.to_owned(), line }
    }
}
