//! `forebay bench read`: whole files, read as the study of Tachyon over RDMA read them.
//!
//! With names of files it is ReadTest, on any mount: [`lists`]. Without, it is that study's matrix: [`matrix`] plans it,
//! [`cells`] measures it, if there is [`room`], with the processes that [`site`] starts, as [`process`]es of ours in a [`place`]
//! of theirs; [`carried`] asks a mount what its reads went over, [`meter`] what processes used.
//!
//! **What is fair.** The study's clients were processes of their own, which read through the client library from another one's
//! memory. Ours are mounts, since that is how Forebay is used: each client is a `forebay mount` and a thread that reads. Each
//! measurement has mounts of its own, as each of the study's had new processes: nothing is left in a page cache or a client's
//! memory, and what a connection costs is in the first file, which two of the four conclusions are about. The worker stays,
//! with all files in memory, and serves both transports, so the same bytes come from the same place.

mod carried;
mod cells;
mod lists;
mod matrix;
mod meter;
mod place;
mod process;
mod room;
mod site;

use std::num::NonZeroU32;
use std::path::PathBuf;

use forebay_benchmark::read::How;
use forebay_types::ByteSize;

use crate::config_args::ConfigArgs;
use crate::exit::{Exit, Fault};
use crate::output::JsonArg;

/// More clients than this are more mounts than a machine should have to begin with.
const MOST_CLIENTS: u32 = 64;
/// A name for each is all that a file of a list costs, and a directory should stay readable.
const MOST_FILES: u32 = 10_000;

/// Read whole files: any that you name, or a matrix of clients, files and sizes over TCP and UCX
///
/// With --write and --files it writes and reads the files that you name, on any mount, and prints the time of each; with
/// --against the same files elsewhere too, in turn, and the ratio.
///
/// Without, it repeats the study that RDMA in such caches began with: 1 and 4 clients read 1 and 20 files of 50 MB to 2 GB, and one
/// client one file of up to 40 GB, all times --scale, over TCP and over UCX in turn. It starts a worker and mounts of its own,
/// writes the files, reads each once over both with every byte checked, measures, removes everything, and says which of the
/// study's conclusions hold here. With --workers an existing cluster is read, as from another host.
///
/// Time of a file is from open to its last byte. Processor time is percent × seconds, 100 being a processor for a second: of
/// the clients' mounts and this program's own reading, and of the worker. The same command with the same --output goes on
/// where it was cut off.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay bench read                                                   # the matrix, small
  forebay bench read --scale 1 --repeat 3 --workers node1:29999        # as the study had it
  forebay bench read /mnt/data/tmp --write a,b,c --size 100MB
  forebay bench read /mnt/data/tmp --files a,b,c --check
  forebay bench read /mnt/data --files model.safetensors --against /mnt/other --repeat 5")]
pub(crate) struct Args {
    /// Where the files of --write and --files are [default: here]
    directory: Option<PathBuf>,
    /// Write these files, of --size bytes each
    #[arg(long, value_name = "FILE,...", value_delimiter = ',', requires = "size", help_heading = "Files")]
    write: Vec<PathBuf>,
    /// Write over files that are there, also those that --write has not written
    #[arg(long, requires = "write", help_heading = "Files")]
    overwrite: bool,
    /// Read these files, one after the other
    #[arg(long, value_name = "FILE,...", value_delimiter = ',', help_heading = "Files")]
    files: Vec<PathBuf>,
    /// The size to write; files that are read must have it
    #[arg(long, value_name = "SIZE", help_heading = "Files")]
    size: Option<ByteSize>,
    /// Compare every byte with what was written, in the time that is measured
    #[arg(long)]
    check: bool,
    /// Do the same in this directory of another file system; may be repeated
    #[arg(long, value_name = "PATH")]
    against: Vec<PathBuf>,
    /// How often everything is measured [default: 2; 1 for --files without --against]
    #[arg(long, value_name = "N")]
    repeat: Option<NonZeroU32>,
    /// Clients that read at once, a mount each; one number with --files, where they share the mount [default: 1,4]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_CLIENTS)))]
    clients: Vec<u32>,
    /// Bytes read at a time
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = buffer)]
    buffer: ByteSize,
    /// Read through the page cache, and not past it
    #[arg(long)]
    buffered: bool,
    #[command(flatten)]
    matrix: MatrixArgs,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    config: ConfigArgs,
}

/// What the matrix alone takes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Matrix")]
struct MatrixArgs {
    /// All sizes of the study times this
    #[arg(long, value_name = "FACTOR", default_value_t = 0.02, value_parser = scale)]
    scale: f64,
    /// These sizes in place of the study's, not scaled
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',')]
    sizes: Vec<ByteSize>,
    /// Numbers of files that each client reads [default: 1,20]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_FILES)))]
    file_counts: Vec<u32>,
    /// What carries the bytes
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "tcp,ucx")]
    transports: Vec<TransportArg>,
    /// The origin of the worker that is started [default: a temporary directory]
    #[arg(long, value_name = "URL", conflicts_with = "workers")]
    origin: Option<String>,
    /// Read from these workers, in place of one that is started here
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',')]
    workers: Vec<String>,
    /// With --workers: the directory of their namespace to put the files into
    #[arg(long, value_name = "PATH", default_value = "/", requires = "workers")]
    below: PathBuf,
    /// Where record.json, report.html, cells.csv and run.log go [default: ./forebay-bench-DATE-TIME]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    /// Say what would be measured, and how much it needs
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum TransportArg {
    /// TCP
    Tcp,
    /// OpenUCX: RDMA where there is a card for it, shared memory where not
    Ucx,
}

/// A size for a buffer.
fn buffer(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|error: forebay_types::QuantityError| error.to_string())?;
    let allowed = ByteSize::kib(4)..=ByteSize::gib(1);
    if allowed.contains(&size) && size.as_u64().is_multiple_of(4096) {
        Ok(size)
    } else {
        Err(format!("give {} to {}, a multiple of 4KiB, as direct reads want it", allowed.start(), allowed.end()))
    }
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if (1e-6..=100.0).contains(&scale) => Ok(scale),
        _ => Err("give a number from 0.000001 to 100; 1 is what the study had".to_owned()),
    }
}

impl Args {
    fn how(&self) -> How {
        How { buffer: self.buffer.as_u64() as usize, direct: !self.buffered, check: self.check }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_whole_pages_and_scales_are_positive() {
        assert_eq!(buffer("1MiB"), Ok(ByteSize::mib(1)));
        assert!(buffer("5000").is_err() && buffer("0").is_err() && buffer("2GiB").is_err() && buffer("x").is_err());
        assert_eq!(scale("0.5"), Ok(0.5));
        for wrong in ["0", "-1", "nan", "inf", "101", "x"] {
            assert!(scale(wrong).is_err(), "{wrong}");
        }
    }
}
