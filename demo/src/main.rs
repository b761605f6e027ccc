//! `make demo`: Forebay on one machine, with nothing pretended.
//!
//! A real S3 server on loopback, a bucket of mixed files uploaded to it, `forebay up` on that bucket, and every file read
//! through the kernel mount, cold and again warm, past the page cache, its checksum compared with the source. It ends
//! with a table and a clean unmount; whatever happens, it leaves no mount and no process behind.

mod bucket;
mod counters;
mod passes;
mod progress;
mod report;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use counters::Counters;
use forebay_testkit::{MountProcess, Programs, S3Process};
use forebay_types::ByteSize;

/// Forebay on this machine: a bucket, a cache, a mount, every byte checked.
#[derive(Parser)]
struct Arguments {
    /// The size of the largest file.
    #[arg(long, default_value = "1GiB")]
    large: ByteSize,
    /// How many files of about 100 KiB.
    #[arg(long, default_value_t = 3000)]
    small: u64,
    /// The cache's memory.
    #[arg(long, default_value = "2GiB")]
    memory: ByteSize,
    /// Readers at once.
    #[arg(long, default_value_t = 8)]
    readers: usize,
    /// Where to put the bucket and the mount; they are removed at the end.
    #[arg(long)]
    dir: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let base = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    let work = tempfile::Builder::new()
        .prefix("forebay-demo-")
        .tempdir_in(&base)
        .with_context(|| format!("cannot make a directory in {}; name another with --dir", base.display()))?;
    let programs = Programs::of_this_build()?;
    let runtime = tokio::runtime::Runtime::new()?;

    report::step("Starting an S3 server on loopback");
    let server = S3Process::start(&programs, &work.path().join("s3"), bucket::NAME)?;
    println!("  {}", server.url());

    let objects = bucket::plan(arguments.large.as_u64(), arguments.small);
    report::step(&format!("Uploading {} files, {}", objects.len(), report::size(bucket::bytes(&objects))));
    let objects = runtime.block_on(bucket::upload(&server, objects))?;

    report::step("Mounting the bucket");
    let (origin, memory) = (format!("s3://{}", bucket::NAME), arguments.memory.to_string());
    let mountpoint = work.path().join("mnt");
    let mount = MountProcess::up(&programs, &origin, &mountpoint, ["--memory", &memory], server.environment())?;
    println!("  forebay up {origin} {}", mount.path().display());

    let mut passes = Vec::new();
    for name in ["cold", "warm"] {
        report::step(&format!("Reading everything {name}, with {} readers, past the page cache", arguments.readers));
        let before = Counters::of(&mount)?;
        let pass = passes::read_all(mount.path(), &objects, arguments.readers)?;
        passes.push((name, pass, Counters::of(&mount)?.since(&before)));
    }

    report::step("Unmounting");
    mount.unmount()?;
    server.stop()?;
    report::table(&passes);
    let wrong: usize = passes.iter().map(|(_, pass, _)| pass.wrong.len()).sum();
    anyhow::ensure!(wrong == 0, "{wrong} files did not read back as they were uploaded");
    println!("Every checksum is that of the source.");
    Ok(())
}
