//! Printing: tables for people, one JSON object a line for programs, and names that may be any bytes.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};

use serde_json::{Map, Value};

/// `--json`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct JsonArg {
    /// Print JSON, one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Prints `value` as one line of JSON.
///
/// # Errors
/// When standard output takes no more.
pub(crate) fn json_line(out: &mut impl io::Write, value: &Value) -> io::Result<()> {
    writeln!(out, "{value}")
}

/// Standard output, buffered. Flush it at the end: a drop would hide the error.
pub(crate) fn stdout() -> io::BufWriter<io::StdoutLock<'static>> {
    io::BufWriter::with_capacity(64 << 10, io::stdout().lock())
}

/// Prints `text` as it is.
///
/// # Errors
/// When standard output takes no more.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = stdout();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Puts a name into a JSON object: as text under `field`, and, where it is not UTF-8, exactly under `field_hex`.
pub(crate) fn put_name(object: &mut Map<String, Value>, field: &str, name: &[u8]) {
    object.insert(field.to_owned(), String::from_utf8_lossy(name).into());
    if std::str::from_utf8(name).is_err() {
        let hex = name.iter().fold(String::new(), |mut hex, byte| {
            // Writing to a string cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        object.insert(format!("{field}_hex"), hex.into());
    }
}

/// How names are printed: as they are into a file or pipe, and with control characters escaped on a terminal, where
/// they could do harm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    escape: bool,
}

impl Names {
    /// For standard output as it is.
    pub(crate) fn for_stdout() -> Self {
        Self { escape: io::stdout().is_terminal() }
    }

    /// The bytes to print for `name`.
    pub(crate) fn show(self, name: &[u8]) -> Vec<u8> {
        if !self.escape {
            return name.to_vec();
        }
        let text = String::from_utf8_lossy(name);
        let escaped: String =
            text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect();
        escaped.into_bytes()
    }
}

/// Rows under headings, each column as wide as its widest cell. For what is bounded: all rows are in memory.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(|heading| (*heading).to_owned()).collect()] }
    }

    /// Adds a row, of as many cells as there are headings.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Prints it.
    ///
    /// # Errors
    /// When the writer takes no more.
    pub(crate) fn print(&self, out: &mut impl io::Write) -> io::Result<()> {
        let columns = self.rows[0].len();
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                // Writing to a string cannot fail.
                let _ = write!(line, "{cell:width$}  ");
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// `1.50 GiB`.
pub(crate) fn human(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// A time in nanoseconds since 1970 as RFC 3339 in UTC; `-` where the origin knows none.
pub(crate) fn time(nanos: i64) -> String {
    match u64::try_from(nanos) {
        Ok(0) | Err(_) => "-".to_owned(),
        Ok(nanos) => {
            let at = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(nanos);
            humantime::format_rfc3339_seconds(at).to_string()
        }
    }
}

/// Tells a person something besides the data, on standard error.
pub(crate) fn say(line: &str) {
    // If standard error is closed, no reader wants the line.
    let _ = writeln!(io::stderr(), "forebay: {line}");
}

/// Whether standard input has something to read, or gets it within this time.
///
/// # Errors
/// When that cannot be known.
pub(crate) fn has_input(within: std::time::Duration) -> io::Result<bool> {
    let limit = rustix::event::Timespec::try_from(within).map_err(io::Error::other)?;
    let stdin = io::stdin();
    let waits = rustix::event::PollFd::new(&stdin, rustix::event::PollFlags::IN);
    Ok(rustix::event::poll(&mut [waits], Some(&limit))? > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["KEY", "V"]);
        table.row(vec!["a".into(), "1".into()]);
        table.row(vec!["é-long".into(), String::new()]);
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "KEY     V\na       1\né-long\n");
    }

    #[test]
    fn a_name_that_is_not_text_keeps_its_bytes_in_json() {
        let mut object = Map::new();
        put_name(&mut object, "path", b"/a\xff");
        assert_eq!(object["path_hex"], "2f61ff");
        let mut object = Map::new();
        put_name(&mut object, "path", "/ä".as_bytes());
        assert!(!object.contains_key("path_hex"));
    }

    #[test]
    fn a_terminal_gets_no_control_characters() {
        assert_eq!(Names { escape: true }.show(b"a\x1b[2Jb\n"), b"a\\u{1b}[2Jb\\n");
        assert_eq!(Names { escape: false }.show(b"a\n"), b"a\n");
    }

    #[test]
    fn a_time_that_is_not_known_is_a_dash() {
        assert_eq!(time(0), "-");
        assert_eq!(time(-5), "-");
        assert_eq!(time(1_700_000_000_000_000_000), "2023-11-14T22:13:20Z");
    }
}
