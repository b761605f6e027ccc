//! The command lines and job files of fio.
//!
//! The options are those of the published benchmark, so that figures can be held against its figures. Where this differs, its
//! recipe would have measured something else:
//!
//! * One large file is written by one job to its end. Sixteen jobs of 100 GiB on one file write every byte sixteen times, and a
//!   limit of 120 s leaves the file short.
//! * There is no `--size` where files are read: of several files it is the sum, so `--size=5G` of 20 files of 5 GiB would read
//!   the first 256 MiB of each, again and again.
//! * Cold steps are not `time_based`: what is read for the second time is not cold.
//! * Small files are opened, read to their end and closed one by one, as training does. (By default fio has all files of a list
//!   open and takes a block of each in turn.)
//!
//! Sections of the distinct pattern follow the published rule to the letter.
//!
//! fio takes 4096 bytes for the value of an option, and `:` separates paths. So a list that is longer is written as names
//! below a directory, and one that is longer still is refused; colons in paths are escaped, and what cannot be written for fio is
//! refused.

use std::path::Path;

use crate::record::{Access, CacheState, Case, Layout, Pattern};

use super::settings::{Engine, Settings};
use super::sizes::{DataFile, LONGEST_OPTION, Sizes};

/// A run of fio, without the program's own name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Its arguments. Where there is a job file, its path is to be added behind them.
    pub arguments: Vec<String>,
    /// The text of its job file, where it needs one.
    pub job_file: Option<String>,
}

impl Command {
    /// The line to type; `job_file` is where that would be.
    #[must_use]
    pub fn line(&self, job_file: &str) -> String {
        let file = self.job_file.as_ref().map(|_| job_file);
        let words = self.arguments.iter().map(String::as_str).chain(file);
        words.fold("fio".to_owned(), |line, word| format!("{line} {}", quoted(word)))
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=./:,%+@".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Why there is no command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// fio has no way to write the path.
    #[error("fio cannot be given the path {0:?}; use one in UTF-8 without any of `;#$\\` and line ends")]
    Path(std::path::PathBuf),
    /// A list of files is too long.
    #[error("the names of {files} files take {bytes} bytes, and fio takes {LONGEST_OPTION}; measure fewer files")]
    TooManyFiles {
        /// How many.
        files: usize,
        /// How long their list is.
        bytes: usize,
    },
}

/// What writes those files of a layout that are `needed`, by name, below a directory, where the directories of
/// [`Sizes::files`] are already. One after the other; each writes whole files, and no others.
///
/// # Errors
/// [`JobError`].
pub fn preparation(
    layout: Layout,
    directory: &Path,
    settings: &Settings,
    needed: impl Fn(&str) -> bool,
) -> Result<Vec<Command>, JobError> {
    let files = settings.sizes.files(layout);
    let files = files.iter().enumerate().filter(|(_, file)| needed(&file.name));
    let write = |name: &str, options: Vec<(&'static str, String)>, bytes: u64| {
        let mut all = vec![
            ("name", name.to_owned()),
            // Whatever reads: of a sync that fails in a queue, as io_uring's, fio says nothing, and ends as if all were written.
            ("ioengine", Engine::Psync.name().to_owned()),
            ("direct", u8::from(settings.direct).to_string()),
            ("rw", "write".to_owned()),
            ("bs", WRITE_BLOCK.to_string()),
            ("numjobs", "1".to_owned()),
            ("size", bytes.to_string()),
        ];
        // A mount of an object store takes a file from its front to its end and has no blocks to allocate; whether all went well
        // it says when the file is closed, or synced before.
        all.extend([("create_on_open", "1"), ("fallocate", "none"), ("fsync_on_close", "1")].map(owned));
        all.extend(options);
        Command { arguments: flags(all), job_file: None }
    };
    if layout == Layout::Small {
        let (names, sizes): (Vec<&str>, Vec<u64>) = files.map(|(_, file)| (file.name.as_str(), file.bytes)).unzip();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let options = [file_options(directory, &names)?, one_by_one()].concat();
        return Ok(vec![write("prep_small", options, sizes.iter().sum())]);
    }
    let prepare = |(index, file): (usize, &DataFile)| {
        let name = if layout == Layout::Single { "data_prep".to_owned() } else { format!("prep_{index:02}") };
        Ok(write(&name, file_options(directory, &[file.name.as_str()])?, file.bytes))
    };
    files.map(prepare).collect()
}

/// Bytes that preparation writes at a time.
const WRITE_BLOCK: u64 = 1 << 20;

/// What measures a case. `hosts` is a file with a client's address a line, where the readers are other machines with a
/// `fio --server` each; then the job is in a file in any case, as fio sends files only.
///
/// # Errors
/// [`JobError`].
pub fn command(case: &Case, directory: &Path, settings: &Settings, hosts: Option<&Path>) -> Result<Command, JobError> {
    let sections = sections(case, directory, settings)?;
    let mut arguments: Vec<String> =
        ["--readonly", "--output-format=json+", "--eta=never"].map(ToOwned::to_owned).into();
    if let Some(hosts) = hosts {
        // `--client` once for each host would give the job to the last one only.
        let path = hosts.to_str().ok_or_else(|| JobError::Path(hosts.to_owned()))?;
        arguments.insert(0, format!("--client={path}"));
    }
    match (case.pattern, hosts, sections.as_slice()) {
        (Pattern::Shared, None, [only]) => {
            arguments.push("--name=shared".to_owned());
            arguments.extend(flags(only.options.clone()));
            Ok(Command { arguments, job_file: None })
        }
        _ => Ok(Command { arguments, job_file: Some(sections.iter().map(Section::text).collect()) }),
    }
}

/// How many jobs of a case really run: the distinct pattern's rule rounds down to what its files share evenly.
#[must_use]
pub fn running(case: &Case, sizes: &Sizes) -> u32 {
    let files = sizes.count(case.layout).max(1);
    match case.pattern {
        Pattern::Distinct if case.jobs > files => case.jobs / files * files,
        _ => case.jobs,
    }
}

struct Section {
    name: String,
    options: Vec<(&'static str, String)>,
}

impl Section {
    fn text(&self) -> String {
        let line = |(name, value): &(&str, String)| {
            if value.is_empty() { format!("{name}\n") } else { format!("{name}={value}\n") }
        };
        format!("[{}]\n{}\n", self.name, self.options.iter().map(line).collect::<String>())
    }
}

/// The sections of a case, by the published rule: the shared pattern has one, of all jobs and all files. The distinct one has as
/// many as jobs, of one each, to which files are dealt in turn (section s of n has the files s, s + n, s + 2n …); or, with more
/// jobs than files, as many as files, of jobs ÷ files each, which have that file to themselves.
fn sections(case: &Case, directory: &Path, settings: &Settings) -> Result<Vec<Section>, JobError> {
    let files = settings.sizes.files(case.layout);
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    let (jobs, count) = (case.jobs.max(1) as usize, names.len().max(1));
    let (sections, jobs_each) = match case.pattern {
        Pattern::Shared => (1, jobs),
        Pattern::Distinct if jobs <= count => (jobs, 1),
        Pattern::Distinct => (count, jobs / count),
    };
    let section = |index: usize| {
        let dealt: Vec<&str> = names.iter().copied().skip(index).step_by(sections).collect();
        let name = match case.pattern {
            Pattern::Shared => "shared".to_owned(),
            Pattern::Distinct => format!("section-{index}"),
        };
        Ok(Section { name, options: [reading(case, jobs_each, settings), file_options(directory, &dealt)?].concat() })
    };
    (0..sections).map(section).collect()
}

fn reading(case: &Case, jobs: usize, settings: &Settings) -> Vec<(&'static str, String)> {
    let rw = match case.access {
        Access::Sequential => "read",
        Access::Random => "randread",
    };
    let mut options = vec![
        ("ioengine", settings.engine.name().to_owned()),
        ("direct", u8::from(settings.direct).to_string()),
        ("iodepth", case.depth.to_string()),
        ("rw", rw.to_owned()),
        ("bs", case.block_bytes.to_string()),
        ("numjobs", jobs.to_string()),
        ("runtime", settings.runtime.as_secs().to_string()),
    ];
    if case.state == CacheState::Warm {
        options.push(("time_based", String::new()));
    }
    if !settings.direct {
        // On other machines nothing else does. (It is fio's default; the file says what is meant.)
        options.push(("invalidate", "1".to_owned()));
    }
    options.push(("group_reporting", String::new()));
    if case.layout == Layout::Small {
        options.extend(one_by_one());
    }
    options
}

fn one_by_one() -> Vec<(&'static str, String)> {
    [("openfiles", "1"), ("file_service_type", "sequential")].map(owned).into()
}

fn owned((name, value): (&'static str, &str)) -> (&'static str, String) {
    (name, value.to_owned())
}

/// The options that name these files below a directory: their paths; or, when that is more than fio takes, their names.
fn file_options(directory: &Path, names: &[&str]) -> Result<Vec<(&'static str, String)>, JobError> {
    let path = |name: &str| escaped(&directory.join(name));
    let paths = names.iter().map(|name| path(name)).collect::<Result<Vec<_>, _>>()?.join(":");
    if paths.len() < LONGEST_OPTION {
        return Ok(vec![("filename", paths)]);
    }
    // All names of a layout have the same directory in front.
    let (below, names): (&str, Vec<&str>) = match names.first().and_then(|name| name.rsplit_once('/')) {
        Some((below, _)) => (below, names.iter().filter_map(|name| Some(name.rsplit_once('/')?.1)).collect()),
        None => ("", names.to_vec()),
    };
    let list = names.join(":");
    if list.len() >= LONGEST_OPTION {
        return Err(JobError::TooManyFiles { files: names.len(), bytes: list.len() });
    }
    Ok(vec![("directory", escaped(&directory.join(below))?), ("filename", list)])
}

fn escaped(path: &Path) -> Result<String, JobError> {
    let refused = || JobError::Path(path.to_owned());
    let text = path.to_str().ok_or_else(refused)?;
    // fio takes `;` and `#` for the beginning of a comment, on the command line as well, and `$` for that of a variable.
    let unfit = |letter: char| letter.is_control() || "\\;#$".contains(letter);
    if text.contains(unfit) || text.trim() != text { Err(refused()) } else { Ok(text.replace(':', r"\:")) }
}

fn flags(options: Vec<(&'static str, String)>) -> Vec<String> {
    let flag = |(name, value): (&str, String)| {
        if value.is_empty() { format!("--{name}") } else { format!("--{name}={value}") }
    };
    options.into_iter().map(flag).collect()
}

#[cfg(test)]
mod tests;
