//! What a matrix measures, and by which ways.

use std::num::NonZeroU32;
use std::path::PathBuf;

use forebay_benchmark::read::{How, Settings};
use forebay_types::ByteSize;

use super::args::{Args, TransportArg};
use super::site::Transport;
use crate::exit::{Exit, Fault};

/// Memory that a worker has beside the files, so that nothing is evicted.
const SPARE_MEMORY: u64 = 256 << 20;

/// A way to read the same files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// What it is called: `tcp`, `ucx`, `verbs`, or the last part of another file system's path.
    pub(super) name: String,
    /// How it is done.
    pub(super) by: By,
}

/// How files are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// Through mounts of Forebay.
    Mounts(Transport),
    /// In a directory of another file system.
    Directory(PathBuf),
}

/// What is to be measured.
pub(super) struct Plan {
    /// The matrix.
    pub(super) settings: Settings,
    /// The ways that are compared.
    pub(super) ways: Vec<Way>,
    /// How files are read.
    pub(super) how: How,
    /// Where in the namespace, without the `/` at its beginning.
    pub(super) below: PathBuf,
    /// The origin of a worker that is started.
    pub(super) origin: Option<String>,
    /// Workers that exist.
    pub(super) workers: Vec<String>,
}

/// What the command line comes to, without the transports that are missing.
///
/// # Errors
/// When there is no way to measure, or what is compared with is no directory.
pub(super) fn plan(args: &Args, missing: &[(TransportArg, String)]) -> anyhow::Result<Plan> {
    let matrix = &args.matrix;
    let mut settings = Settings::study(matrix.scale);
    if !matrix.sizes.is_empty() {
        (settings.sizes, settings.large) = (matrix.sizes.iter().map(|size| size.as_u64()).collect(), Vec::new());
    }
    if !args.clients.is_empty() {
        settings.clients.clone_from(&args.clients);
    }
    if !matrix.file_counts.is_empty() {
        settings.files.clone_from(&matrix.file_counts);
    }
    settings.repeat = args.repeat.map_or(settings.repeat, NonZeroU32::get);
    let mut ways = Vec::new();
    for (asked, name, transport) in [
        (TransportArg::Tcp, "tcp", Transport::Tcp),
        (TransportArg::Ucx, "ucx", Transport::Ucx),
        (TransportArg::Verbs, "verbs", Transport::Verbs),
    ] {
        if matrix.transports.contains(&asked) && missing.iter().all(|(missing, _)| *missing != asked) {
            ways.push(Way { name: name.to_owned(), by: By::Mounts(transport) });
        }
    }
    if ways.is_empty() {
        let what = match missing {
            [(TransportArg::Verbs, _)] => "only verbs are to be measured, and they are not here",
            [_] => "only UCX is to be measured, and it is not here",
            _ => "only UCX and verbs are to be measured, and neither is here",
        };
        let next = "install libucp, or libibverbs and librdmacm where there is a card; or measure `--transports tcp`";
        return Err(Fault::new(Exit::Failed, what, next).into());
    }
    for path in &args.against {
        if !path.is_dir() {
            let next = "name a directory of a mounted file system";
            return Err(Fault::new(Exit::NotFound, format!("{} is no directory", path.display()), next).into());
        }
        let last =
            path.canonicalize()?.file_name().map_or_else(|| "/".to_owned(), |name| name.to_string_lossy().into_owned());
        let taken = |name: &String| ways.iter().any(|way| way.name == *name);
        let name = std::iter::once(last.clone()).chain((2..).map(|number| format!("{last}-{number}")));
        let name = name.into_iter().find(|name| !taken(name)).unwrap_or(last);
        ways.push(Way { name, by: By::Directory(path.clone()) });
    }
    Ok(Plan {
        settings,
        ways,
        how: args.how(),
        below: matrix.below.strip_prefix("/").unwrap_or(&matrix.below).to_owned(),
        origin: matrix.origin.clone(),
        workers: matrix.workers.clone(),
    })
}

/// What a worker needs to keep so many bytes of files.
pub(super) fn worker_memory(bytes: u64) -> ByteSize {
    ByteSize::bytes((bytes + bytes / 4 + SPARE_MEMORY).next_multiple_of(1 << 20))
}
