//! Tables as Markdown, and their place in a page of the documentation.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

const BEGIN: &str = "<!-- simulation: begin -->";
const END: &str = "<!-- simulation: end -->";

/// Sections with a table each.
#[derive(Debug, Default)]
pub(crate) struct Page {
    text: String,
}

impl Page {
    /// Begins a section: what it is about, in a sentence or two, and the heads of its table's columns.
    pub(crate) fn section(&mut self, title: &str, about: &str, heads: &[&str]) {
        eprintln!("{title} …");
        self.text +=
            &format!("\n### {title}\n\n{about}\n\n| {} |\n|{}\n", heads.join(" | "), " --- |".repeat(heads.len()));
    }

    /// A row of the table.
    pub(crate) fn row(&mut self, cells: &[String]) {
        self.text += &format!("| {} |\n", cells.join(" | "));
    }

    /// Puts the sections between the marks of a page.
    pub(crate) fn update(&self, path: &Path) -> anyhow::Result<()> {
        let page = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let place = page.find(BEGIN).zip(page.find(END)).filter(|(begin, end)| begin < end);
        let (begin, end) = place.with_context(|| format!("{} has no `{BEGIN}` and `{END}`", path.display()))?;
        let page = format!("{}{BEGIN}\n{self}\n{}", &page[..begin], &page[end..]);
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A number with thousands set apart.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A share of one, in percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// Bytes with a unit.
pub(crate) fn bytes(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// A time with a unit.
pub(crate) fn time(time: Duration) -> String {
    match time.as_nanos() {
        0..1_000 => format!("{} ns", time.as_nanos()),
        1_000..1_000_000 => format!("{:.1} µs", time.as_nanos() as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", time.as_nanos() as f64 / 1e6),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}
