//! What `forebay bench read` is told on the command line.

use std::num::NonZeroU32;
use std::path::PathBuf;

use forebay_benchmark::read::How;
use forebay_types::ByteSize;

use crate::config_args::ConfigArgs;
use crate::output::JsonArg;

/// More clients than this are more mounts than a machine should have to begin with.
const MAX_CLIENTS: u32 = 64;
/// A name for each is all that a file of a list costs, and a directory should stay readable.
const MAX_FILES: u32 = 10_000;

/// Read whole files: files that you name, or a matrix of clients, files and sizes over TCP, UCX and verbs
///
/// With --write and --files the command writes and reads the files that you name, on any mount. It prints the time of
/// each file. With --against it does the same in another directory, in turn, and prints the ratio.
///
/// Without these options it repeats the study that RDMA in such caches began with. In the study, 1 and 4 clients read 1
/// and 20 files of 50 MB to 2 GB, and one client reads one file of up to 40 GB. The command multiplies all sizes by
/// --scale, and reads over TCP and over UCX in turn. It starts its own worker and mounts, and writes the files. It
/// reads each file once over both transports and checks every byte. Then it measures, removes everything, and says
/// which of the study's conclusions hold here. With --workers it reads an existing cluster, as another host does.
///
/// The time of a file is from open to its last byte. Processor time is percent × seconds: 100 is one processor for one
/// second. One figure covers the clients' mounts and this program's own reading, another covers the worker. The same
/// command with the same --output resumes a run that was cut off.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay bench read                                                   # the matrix, small
  forebay bench read --scale 1 --repeat 3 --workers node1:29999        # as the study had it
  forebay bench read /mnt/data/tmp --write a,b,c --size 100MB
  forebay bench read /mnt/data/tmp --files a,b,c --check
  forebay bench read /mnt/data --files model.safetensors --against /mnt/other --repeat 5")]
pub(crate) struct Args {
    /// The directory of the files of --write and --files [default: here]
    pub(super) directory: Option<PathBuf>,
    /// Write these files, of --size bytes each
    #[arg(long, value_name = "FILE,...", value_delimiter = ',', requires = "size", help_heading = "Files")]
    pub(super) write: Vec<PathBuf>,
    /// Overwrite existing files, even those that --write did not write
    #[arg(long, requires = "write", help_heading = "Files")]
    pub(super) overwrite: bool,
    /// Read these files, one after the other
    #[arg(long, value_name = "FILE,...", value_delimiter = ',', help_heading = "Files")]
    pub(super) files: Vec<PathBuf>,
    /// The size to write; files to read must have it
    #[arg(long, value_name = "SIZE", help_heading = "Files")]
    pub(super) size: Option<ByteSize>,
    /// Compare every byte with what was written; the measured time includes this
    #[arg(long)]
    pub(super) check: bool,
    /// Do the same in this directory of another file system; may be repeated
    #[arg(long, value_name = "PATH")]
    pub(super) against: Vec<PathBuf>,
    /// How often to measure everything [default: 2; 1 for --files without --against]
    #[arg(long, value_name = "N")]
    pub(super) repeat: Option<NonZeroU32>,
    /// Clients that read at once, each with its own mount; with --files one number, and they share the mount [default:
    /// 1,4]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CLIENTS)))]
    pub(super) clients: Vec<u32>,
    /// Bytes read at a time
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = buffer)]
    pub(super) buffer: ByteSize,
    /// Read through the page cache instead of bypassing it
    #[arg(long)]
    pub(super) buffered: bool,
    #[command(flatten)]
    pub(super) matrix: MatrixArgs,
    #[command(flatten)]
    pub(super) json: JsonArg,
    #[command(flatten)]
    pub(super) config: ConfigArgs,
}

/// What the matrix alone takes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Matrix")]
pub(super) struct MatrixArgs {
    /// Multiply all sizes of the study by this
    #[arg(long, value_name = "FACTOR", default_value_t = 0.02, value_parser = scale)]
    pub(super) scale: f64,
    /// Use these sizes in place of the study's, without scaling
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',')]
    pub(super) sizes: Vec<ByteSize>,
    /// Numbers of files that each client reads [default: 1,20]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_FILES)))]
    pub(super) file_counts: Vec<u32>,
    /// The transports for data. `verbs` needs a card
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "tcp,ucx")]
    pub(super) transports: Vec<TransportArg>,
    /// The origin of the worker that the command starts [default: a temporary directory]
    #[arg(long, value_name = "URL", conflicts_with = "workers")]
    pub(super) origin: Option<String>,
    /// Read from these workers instead of starting one here
    #[arg(long, value_name = "[NAME=]HOST:PORT,...", value_delimiter = ',')]
    pub(super) workers: Vec<String>,
    /// With --workers: the directory of their namespace to put the files into
    #[arg(long, value_name = "PATH", default_value = "/", requires = "workers")]
    pub(super) below: PathBuf,
    /// Where record.json, report.html, cells.csv and run.log go [default: ./forebay-bench-DATE-TIME]
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) output: Option<PathBuf>,
    /// Say what would be measured, and how much it needs
    #[arg(long)]
    pub(super) dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum TransportArg {
    /// TCP
    Tcp,
    /// OpenUCX: RDMA where there is a card for it, shared memory where not
    Ucx,
    /// libibverbs and librdmacm
    Verbs,
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
    pub(super) fn how(&self) -> How {
        How { buffer: self.buffer.as_u64() as usize, direct: !self.buffered, check: self.check }
    }
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
