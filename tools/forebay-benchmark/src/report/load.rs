//! Reading a record back.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Deserialize;

use crate::record::{FORMAT, Record};

/// The record in a directory of results.
const FILE: &str = "record.json";

/// Why a record cannot be read, or records not be compared: what is wrong and, behind a semicolon, what to do.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// There is none, or it may not be read.
    #[error("cannot read {path}: {source}; give a directory that `forebay bench` wrote, or the {FILE} in it")]
    Read {
        /// What was to be read.
        path: PathBuf,
        /// Why it was not.
        source: io::Error,
    },
    /// It is something else, or damaged.
    #[error("{path} is not a record of `forebay bench`: {source}; give a directory that it wrote")]
    Malformed {
        /// What was read.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A later version of Forebay wrote it.
    #[error(
        "{path} is a record of format {format}, and this program knows up to {FORMAT}; read it with forebay {version}, \
         which wrote it"
    )]
    Newer {
        /// What was read.
        path: PathBuf,
        /// Its format.
        format: u32,
        /// What wrote it.
        version: String,
    },
    /// One record, or none.
    #[error("a comparison needs two records or more, and there is {0}; name another")]
    Few(usize),
    /// No two topologies among them.
    #[error("all of this was measured with as many workers and clients; name records of other numbers of machines")]
    OneTopology,
    /// They measured different things.
    #[error(
        "{first_name} is a record of `forebay bench {first}` and {other_name} of `forebay bench {other}`; name \
         records of one benchmark"
    )]
    Different {
        /// What the first goes by.
        first_name: String,
        /// Its benchmark.
        first: &'static str,
        /// What the other goes by.
        other_name: String,
        /// Its benchmark.
        other: &'static str,
    },
}

/// What tells whether the rest will be understood.
#[derive(Deserialize)]
struct Head {
    format: u32,
    #[serde(default)]
    version: String,
}

/// The record at `path`: the file itself, or the directory that it is in.
///
/// # Errors
/// When it cannot be read, is none, or is of a later version.
pub fn load(path: &Path) -> Result<Record, RecordError> {
    let path = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
    let bytes = fs::read(&path).map_err(|source| RecordError::Read { path: path.clone(), source })?;
    let malformed = |source| RecordError::Malformed { path: path.clone(), source };
    // The head alone first: what a later version has added would be reported as damage otherwise.
    let head: Head = serde_json::from_slice(&bytes).map_err(malformed)?;
    if head.format > FORMAT {
        return Err(RecordError::Newer { path, format: head.format, version: head.version });
    }
    serde_json::from_slice(&bytes).map_err(malformed)
}
