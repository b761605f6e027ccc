//! `forebay bench read`: whole files, read as the study of Tachyon over RDMA read them.
//!
//! With names of files it is ReadTest, on any mount: [`lists`]. Without, it is that study's matrix: [`plan`] makes it of what
//! the command line says ([`args`]), [`matrix`] goes through it, if there is [`room`], and [`cells`] measures it, with the
//! processes that [`site`] starts, as [`process`]es of ours in a [`place`] of theirs; [`carried`] asks a mount what its reads
//! went over, [`meter`] what processes used.
//!
//! **What is fair.** The study's clients were processes of their own, which read through the client library from another one's
//! memory. Ours are mounts, since that is how Forebay is used: each client is a `forebay mount` and a thread that reads. Each
//! measurement has mounts of its own, as each of the study's had new processes: nothing is left in a page cache or a client's
//! memory, and what a connection costs is in the first file, which two of the four conclusions are about. The worker stays,
//! with all files in memory, and serves both transports, so the same bytes come from the same place.

mod args;
mod carried;
mod cells;
mod figures;
mod lists;
mod matrix;
mod meter;
mod place;
mod plan;
mod process;
mod progress;
mod room;
mod site;

pub(crate) use args::Args;

use crate::exit::{Exit, Fault};

/// Runs it.
///
/// # Errors
/// When a part does not start, or a file cannot be read or is wrong.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if !args.write.is_empty() || !args.files.is_empty() {
        return lists::run(args);
    }
    let alone = [("DIRECTORY", args.directory.is_some()), ("--size", args.size.is_some())];
    if let Some((what, _)) = alone.iter().find(|(_, given)| *given) {
        let next = "name files with `--write` or `--files`, or leave it away to measure the matrix";
        return Err(Fault::new(Exit::Usage, format!("{what} is given, and no files are named"), next).into());
    }
    matrix::run(args)
}
