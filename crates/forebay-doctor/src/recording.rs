//! A machine in a folder, to be looked at elsewhere: `forebay doctor --record DIR` makes one, `--root DIR` looks at it.
//!
//! Files are copied as they are read, see [`Root::recorded_to`]. What no file tells, and what a copy of a file cannot, is in one
//! JSON document beside them. A tree without it, put together by hand, is looked at as well; what is then not known is said.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::facts::{Outside, Recording};
use crate::root::{Answers, Root};

/// The document's name in the folder.
pub const DOCUMENT: &str = "forebay-doctor.json";
/// The document's form. It goes up when an older program would read a newer document wrongly.
const FORMAT: u32 = 1;
/// No document is longer.
const MAX_BYTES: u64 = 64 << 20;

#[derive(Serialize, Deserialize)]
struct Document {
    format: u32,
    /// The release that made it.
    forebay: String,
    /// When, as RFC 3339 has it.
    at: String,
    outside: Outside,
    answers: Answers,
}

/// Writes what no file told beside what was copied from `root` to `folder`. Call it when the facts have been gathered.
///
/// # Errors
/// When something could not be written, now or before.
pub fn write(root: &Root, folder: &Path, outside: Outside, at: String) -> io::Result<()> {
    let forebay = env!("CARGO_PKG_VERSION").to_owned();
    let document = Document { format: FORMAT, forebay, at, outside, answers: root.recorded()? };
    let text = serde_json::to_string_pretty(&document).map_err(io::Error::other)?;
    fs::write(folder.join(DOCUMENT), text + "\n")
}

/// The recorded tree in `folder`, and what was recorded besides files.
///
/// # Errors
/// When there is no such folder, or its document cannot be read.
pub fn open(folder: &Path) -> io::Result<(Root, Outside)> {
    if !fs::metadata(folder)?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is no directory"));
    }
    let place = folder.join(DOCUMENT);
    let text = match fs::metadata(&place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Ok(found) if found.is_file() && found.len() <= MAX_BYTES => Some(fs::read_to_string(place)?),
        Ok(_) => return Err(invalid(format!("{DOCUMENT} is too long, or no file"))),
        Err(error) => return Err(error),
    };
    read(Root::new(folder), folder.display().to_string(), text.as_deref())
}

/// The tree below `root`, which is of `folder`, and what was recorded besides files, as its document says, if there is one.
pub(crate) fn read(root: Root, folder: String, document: Option<&str>) -> io::Result<(Root, Outside)> {
    let recording = Recording { folder, ..Recording::default() };
    let Some(text) = document else {
        return Ok((root, Outside { recording: Some(recording), ..Outside::default() }));
    };
    let wrong = |error: serde_json::Error| invalid(format!("{DOCUMENT} is not what `doctor --record` writes: {error}"));
    // Its form first: a newer one has other fields.
    let document: serde_json::Value = serde_json::from_str(text).map_err(wrong)?;
    let format = document.get("format").and_then(serde_json::Value::as_u64);
    if format.is_some_and(|format| format > FORMAT.into()) {
        return Err(invalid(format!("{DOCUMENT} was made by a newer release of forebay")));
    }
    let Document { forebay, at, outside, answers, .. } = serde_json::from_value(document).map_err(wrong)?;
    let recording = Recording { by: Some(forebay), at: Some(at), ..recording };
    Ok((root.with_answers(answers), Outside { recording: Some(recording), ..outside }))
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
