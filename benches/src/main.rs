//! `make bench`: Forebay on this machine, against what the machine does without it, in one run.
//!
//! Each number stands beside one of something else that was measured in turn with it: the same `fio` on a tmpfs file,
//! `iperf3` over the same loopback, plain GETs from the same server. A busy or a slow machine then changes both, and
//! the ratio says something where the number alone does not.
//!
//! * `rounds.rs`: the order of the measurements, and what is made of their samples;
//! * `fixture.rs`: the data, the S3 server, the machine; `process.rs`: what a process uses;
//! * `fio.rs`, `iperf.rs`, `perftest.rs`: the programs that are compared with and measured by;
//! * `mount.rs`, `client.rs`, `transport.rs`, `rdma.rs`, `cold.rs`, `writing.rs`: what is measured, a section each;
//! * `report.rs`: Markdown, JSON, and whether the targets are met.
//!
//! Tables go to standard output, progress to standard error.

mod client;
mod cold;
mod fio;
mod fixture;
mod iperf;
mod latencies;
mod library;
mod mount;
mod perftest;
mod process;
mod progress;
mod rdma;
mod report;
mod rounds;
mod server;
mod transport;
mod writing;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use forebay_types::{ByteSize, parse_duration};

use crate::fixture::Fixture;
use crate::progress::Progress;
use crate::report::Report;

/// Measure Forebay on this machine, against what the machine does without it.
#[derive(Parser)]
#[command(after_help = "\
Example:
  forebay-bench --update docs/BENCHMARKS.md
  forebay-bench --only mount --repeat 9 --json mount.json
  forebay-bench --quick")]
struct Arguments {
    /// Short runs on little data: shows that everything works, not how fast
    #[arg(long)]
    quick: bool,
    /// Measure only this; may be repeated
    #[arg(long, value_enum)]
    only: Vec<Section>,
    /// Measurements that count of each number, after one that does not [default: 5, quick: 1]
    #[arg(long)]
    repeat: Option<usize>,
    /// The file that is read [default: 1GiB, quick: 32MiB]
    #[arg(long)]
    size: Option<ByteSize>,
    /// How long one measurement reads [default: 2s, quick: 200ms]
    #[arg(long, value_parser = parse_duration)]
    time: Option<Duration>,
    /// Write everything that was measured to this file too
    #[arg(long)]
    json: Option<PathBuf>,
    /// Put the tables into this Markdown file too, in the place of those that it has
    #[arg(long)]
    update: Option<PathBuf>,
    /// Where to put the bucket and the mounts; they are removed at the end [default: the temporary directory]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// A directory on tmpfs, for the file that is compared with
    #[arg(long, default_value = "/dev/shm")]
    tmpfs: PathBuf,
    #[command(subcommand)]
    command: Option<Command>,
}

/// What this program starts itself as.
#[derive(clap::Subcommand)]
enum Command {
    /// The server of the transport sections, in a process of its own
    #[command(hide = true)]
    ServeTransport {
        /// UCX's transports; none is TCP without UCX
        transports: Vec<String>,
    },
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Warm reads through the mount of `forebay up`
    Mount,
    /// Warm reads through a mount, from a worker in another process
    Worker,
    /// The client library without FUSE, and what integrity costs
    Client,
    /// The TCP transport alone
    Transport,
    /// The RDMA transport alone, on what UCX offers without a card
    Rdma,
    /// Cold reads
    Cold,
    /// Writes through the mount
    Write,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Whether only the harness is being tried.
    pub(crate) quick: bool,
    /// Rounds that count.
    pub(crate) repeat: usize,
    /// Bytes of the large file.
    pub(crate) size: u64,
    /// How long one measurement reads.
    pub(crate) time: Duration,
}

impl Settings {
    fn of(arguments: &Arguments) -> Self {
        let quick = arguments.quick;
        let (size, time) = if quick {
            (ByteSize::mib(32), Duration::from_millis(200))
        } else {
            (ByteSize::gib(1), Duration::from_secs(2))
        };
        Self {
            quick,
            repeat: arguments.repeat.unwrap_or(if quick { 1 } else { 5 }).max(1),
            // Sixteen jobs read a part of whole MiB each.
            size: arguments.size.unwrap_or(size).as_u64().next_multiple_of(16 << 20),
            time: arguments.time.unwrap_or(time),
        }
    }

    /// How many fio jobs and threads read at once, in turn.
    pub(crate) fn jobs(&self) -> &'static [u32] {
        if self.quick { &[1, 4] } else { &[1, 4, 16] }
    }
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(Command::ServeTransport { transports }) = &arguments.command {
        return server::run(transports);
    }
    let settings = Settings::of(&arguments);
    let sections: &[Section] = if arguments.only.is_empty() { Section::value_variants() } else { &arguments.only };
    let runtime = tokio::runtime::Runtime::new()?;
    let progress = Progress::new(interruption(&runtime));
    let base = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    let fixture = Fixture::prepare(&base, &arguments.tmpfs, settings, &progress)?;
    let mut report = Report::new(settings);
    for section in sections {
        match section {
            Section::Mount => mount::up(&fixture, &progress, &mut report)?,
            Section::Worker => mount::worker(&fixture, &progress, &mut report)?,
            Section::Client => client::measure(&fixture, &runtime, &progress, &mut report)?,
            Section::Transport => transport::measure(&fixture, &runtime, &progress, &mut report)?,
            Section::Rdma => rdma::measure(&fixture, &runtime, &progress, &mut report)?,
            Section::Cold => cold::measure(&fixture, &runtime, &progress, &mut report)?,
            Section::Write => writing::measure(&fixture, &runtime, &progress, &mut report)?,
        }
    }
    print!("{}", report.markdown());
    if let Some(path) = &arguments.update {
        report.update(path)?;
    }
    if let Some(path) = &arguments.json {
        let json = serde_json::to_vec_pretty(&report)?;
        std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Set by Ctrl-C and SIGTERM: the run ends after the measurement under way, and takes its mounts with it.
fn interruption(runtime: &tokio::runtime::Runtime) -> Arc<AtomicBool> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    runtime.spawn(async move {
        let terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
        let Ok(mut terminated) = terminated else { return };
        loop {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminated.recv() => {}
            }
            flag.store(true, Ordering::Relaxed);
        }
    });
    interrupted
}
