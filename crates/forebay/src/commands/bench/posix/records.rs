//! Results that are there: side by side, and by how many machines they are of.

use std::path::{Path, PathBuf};

use forebay_benchmark::record::Record;
use forebay_benchmark::report::{self, Comparison, RecordError};

use crate::exit::{Exit, Fault};
use crate::output;

/// The pages that they are written to.
const COMPARISON: &str = "compare.html";
const SCALING: &str = "scaling.html";

/// Prints results side by side, and writes a page into `output`, or beside the last of the reports.
///
/// # Errors
/// When one of them cannot be read, or they have nothing in common.
pub(super) fn compare(places: &[PathBuf], output: Option<&Path>) -> anyhow::Result<()> {
    let comparison = report::compare(&load(places)?).map_err(told)?;
    write(output.unwrap_or(beside(places)), COMPARISON, &comparison)
}

/// Prints what more workers and clients give, and writes a page into `output`, or beside the last of the reports.
///
/// # Errors
/// When one of them cannot be read, or all are of as many machines.
pub(super) fn scaling(places: &[PathBuf], output: Option<&Path>) -> anyhow::Result<()> {
    let scaling = report::scaling(&load(places)?).map_err(told)?;
    write(output.unwrap_or(beside(places)), SCALING, &scaling)
}

/// Where the last of the reports is.
fn beside(places: &[PathBuf]) -> &Path {
    let last = places.last().map_or(Path::new("."), PathBuf::as_path);
    if last.is_dir() { last } else { last.parent().unwrap_or(Path::new(".")) }
}

/// Prints it, and writes its page into `directory`.
fn write(directory: &Path, page: &str, comparison: &Comparison) -> anyhow::Result<()> {
    let page = directory.join(page);
    let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&page, comparison.html()));
    written.map_err(|error| anyhow::Error::new(error).context(format!("cannot write {}", page.display())))?;
    output::print(&format!("{}\nwritten to {}\n", comparison.text(), page.display()))
}

/// The records, each by the last part of its place, which is what people tell results apart by.
fn load(places: &[PathBuf]) -> anyhow::Result<Vec<(String, Record)>> {
    let mut records: Vec<(String, Record)> = Vec::with_capacity(places.len());
    for place in places {
        let record = report::load(place).map_err(told)?;
        let directory = if place.is_dir() { Some(place.as_path()) } else { place.parent() };
        let short = directory.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let taken = |name: &str| records.iter().any(|(other, _)| other == name);
        let name = short.filter(|name| !taken(name)).unwrap_or_else(|| place.display().to_string());
        records.push((name, record));
    }
    Ok(records)
}

fn told(error: RecordError) -> anyhow::Error {
    let exit = match &error {
        RecordError::Read { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Exit::NotFound,
        RecordError::Read { .. } => Exit::Failed,
        _ => Exit::Usage,
    };
    let message = error.to_string();
    let (what, next) =
        message.rsplit_once("; ").unwrap_or((&message, "give directories that `forebay bench posix` wrote"));
    Fault::new(exit, what, next).into()
}
