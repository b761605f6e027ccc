//! `forebay fs cat`, `head` and `tail`: bytes to standard output.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_client::OpenFile;
use forebay_types::ByteSize;
use futures::StreamExt as _;

use crate::commands::fs::stream::chunks;
use crate::commands::fs::target::{Target, Targets, WorkersArgs};
use crate::exit::Failures;
use crate::output;

const DEFAULT_LINES: u64 = 10;

/// Print files
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs cat /mnt/data/part-0 /mnt/data/part-1 > whole")]
pub(crate) struct CatArgs {
    /// Files
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    workers: WorkersArgs,
}

/// How much of a file's start or end.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(multiple = false)]
struct Amount {
    /// Print this many bytes
    #[arg(short = 'c', long, value_name = "SIZE")]
    bytes: Option<ByteSize>,
    /// Print this many lines [default: 10]
    #[arg(short = 'n', long, value_name = "COUNT")]
    lines: Option<u64>,
}

/// Print the start of files
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs head -n 3 /mnt/data/log.txt
  forebay fs head -c 8 /mnt/data/model.safetensors | xxd")]
pub(crate) struct HeadArgs {
    /// Files
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    amount: Amount,
    #[command(flatten)]
    workers: WorkersArgs,
}

/// Print the end of files
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs tail -n 3 /mnt/data/log.txt
  forebay fs tail -c 4KiB /mnt/data/log.txt")]
pub(crate) struct TailArgs {
    /// Files
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    amount: Amount,
    #[command(flatten)]
    workers: WorkersArgs,
}

#[derive(Clone, Copy)]
enum Part {
    Whole,
    FirstBytes(u64),
    FirstLines(u64),
    LastBytes(u64),
    LastLines(u64),
}

/// Runs `cat`.
///
/// # Errors
/// When a file is not there or cannot be read.
pub(crate) async fn cat(args: CatArgs) -> anyhow::Result<()> {
    print(&args.paths, &args.workers, Part::Whole).await
}

/// Runs `head`.
///
/// # Errors
/// When a file is not there or cannot be read.
pub(crate) async fn head(args: HeadArgs) -> anyhow::Result<()> {
    let lines = Part::FirstLines(args.amount.lines.unwrap_or(DEFAULT_LINES));
    let part = args.amount.bytes.map_or(lines, |bytes| Part::FirstBytes(bytes.as_u64()));
    print(&args.paths, &args.workers, part).await
}

/// Runs `tail`.
///
/// # Errors
/// When a file is not there or cannot be read.
pub(crate) async fn tail(args: TailArgs) -> anyhow::Result<()> {
    let lines = Part::LastLines(args.amount.lines.unwrap_or(DEFAULT_LINES));
    let part = args.amount.bytes.map_or(lines, |bytes| Part::LastBytes(bytes.as_u64()));
    print(&args.paths, &args.workers, part).await
}

async fn print(paths: &[PathBuf], workers: &WorkersArgs, part: Part) -> anyhow::Result<()> {
    let mut targets = Targets::new(workers)?;
    let mut failures = Failures::default();
    for path in paths {
        let printed = async {
            let target = targets.find(path).await?;
            print_part(&target, part).await
        };
        if let Err(error) = printed.await {
            failures.tell(error)?;
        }
    }
    targets.close().await;
    failures.finish()
}

async fn print_part(target: &Target, part: Part) -> anyhow::Result<()> {
    let version = target.version().await?;
    let size = version.size;
    let file = target.client.open(version);
    let named = |failure: forebay_types::Failure| failure.context(target.shown());
    let (range, mut lines_left) = match part {
        Part::Whole => (0..size, None),
        Part::FirstBytes(bytes) => (0..bytes.min(size), None),
        Part::FirstLines(lines) => (0..size, Some(lines)),
        Part::LastBytes(bytes) => (size.saturating_sub(bytes)..size, None),
        Part::LastLines(lines) => (start_of_last_lines(&file, lines).await.map_err(named)?..size, None),
    };
    let mut out = output::stdout();
    let mut pieces = chunks(file, range);
    while lines_left != Some(0) {
        let Some(piece) = pieces.next().await else { break };
        let (_, spans) = piece.map_err(named)?;
        for span in &spans {
            let wanted = lines_left.as_mut().map_or(span.len(), |lines| end_of_lines(span, lines));
            // Blocks this thread and no other: the reads ahead go on.
            out.write_all(&span[..wanted])?;
        }
    }
    Ok(out.flush()?)
}

/// Where `lines` lines end in `bytes`; what is left of `lines` afterwards are those that did not.
fn end_of_lines(bytes: &[u8], lines: &mut u64) -> usize {
    if *lines == 0 {
        return 0;
    }
    for (at, byte) in bytes.iter().enumerate() {
        if *byte == b'\n' {
            *lines -= 1;
            if *lines == 0 {
                return at + 1;
            }
        }
    }
    bytes.len()
}

/// Where the last `lines` lines of a file start. Reads backwards, and no more than it must.
async fn start_of_last_lines(file: &Arc<OpenFile>, lines: u64) -> Result<u64, forebay_types::Failure> {
    const STEP: u64 = 256 << 10;
    let size = file.version().size;
    if lines == 0 {
        return Ok(size);
    }
    // The newline at the very end closes the last line and starts no further one.
    let mut newlines_left = lines;
    let mut end = size;
    let mut is_last_byte = true;
    while end > 0 {
        let start = end.saturating_sub(STEP);
        // At most `STEP`.
        let spans = file.read(start, (end - start) as u32).await?;
        let mut at = end;
        for byte in spans.iter().rev().flat_map(|span| span.iter().rev()) {
            if *byte == b'\n' && !is_last_byte {
                newlines_left -= 1;
                if newlines_left == 0 {
                    return Ok(at);
                }
            }
            is_last_byte = false;
            at -= 1;
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_across_pieces() {
        let mut lines = 3;
        assert_eq!(end_of_lines(b"a\nb", &mut lines), 3);
        assert_eq!(end_of_lines(b"b\ncc\ndd\n", &mut lines), 5);
        assert_eq!(lines, 0);
        assert_eq!(end_of_lines(b"more\n", &mut lines), 0);
    }
}
