//! `make bench`: Forebay on this machine, against what the machine does without it, in one run.
//!
//! Each number stands beside one of something else that was measured in turn with it: the same `fio` on a tmpfs file,
//! `iperf3` over the same loopback, plain GETs from the same server. A busy or a slow machine then changes both, and
//! the ratio says something where the number alone does not.
//!
//! * `settings.rs`: how much is measured; `rounds.rs`: the order of the measurements, and what is made of their
//!   samples;
//! * `fixture.rs`: the data and the S3 server; `machine.rs`: what the numbers depend on; `process.rs`: what a process uses;
//! * `fio.rs`, `iperf.rs`, `perftest.rs`, `copying.rs`: the programs that are compared with and measured by; `through.rs`: fio
//!   on a mount; `reading.rs`: plain reads; `gets.rs`: plain GETs; `huge.rs`: a tmpfs in huge pages; `null.rs`: a FUSE server
//!   that does nothing;
//! * `peer.rs`: file systems of others, started and ended; `far.rs`: a worker some time away; `relay.rs`: one whose answers come late
//!   for a while; `materialised.rs`: files that the kernel reads by itself;
//! * `mount.rs`, `mount_rdma.rs`, `depth.rs`, `local.rs`, `again.rs`, `remote.rs`, `shared.rs`, `small.rs`, `listing.rs`, `peers.rs`,
//!   `model.rs`, `client.rs`, `tail.rs`, `transport.rs`, `security.rs`, `rdma.rs`, `cold.rs`, `writing.rs`, `tuning.rs`: what is
//!   measured, a section each;
//! * `report.rs`: Markdown, JSON, and whether the targets are met.
//!
//! Tables go to standard output, progress to standard error.

mod again;
mod amplification;
mod client;
mod cold;
mod copying;
mod counters;
mod depth;
mod far;
mod fio;
mod fixture;
mod gets;
mod huge;
mod iperf;
mod latencies;
mod library;
mod listing;
mod local;
mod machine;
mod materialised;
mod model;
mod mount;
mod mount_rdma;
mod null;
mod peer;
mod peers;
mod perftest;
mod process;
mod progress;
mod rdma;
mod reading;
mod relay;
mod remote;
mod report;
mod rounds;
mod security;
mod server;
mod settings;
mod shared;
mod small;
mod tail;
mod through;
mod transport;
mod tuning;
mod writing;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Parser, ValueEnum};
use forebay_types::{ByteSize, parse_duration};
use tokio::runtime::Runtime;

use crate::fixture::Fixture;
use crate::machine::Machine;
use crate::progress::Progress;
use crate::report::Report;
use crate::settings::Settings;

/// Measure Forebay on this machine, against what the machine does without it.
#[derive(Parser)]
#[command(after_help = "\
Example:
  forebay-bench --update docs/benchmarks/run.md
  forebay-bench --only mount --repeat 9 --json mount.json
  forebay-bench --quick")]
struct Arguments {
    /// Short runs on little data: shows that everything works, not how fast
    #[arg(long)]
    quick: bool,
    /// Measure only this; may be repeated [default: all but tuning]
    #[arg(long, value_enum)]
    only: Vec<Section>,
    /// Measurements that count of each number, after one that does not; with 0 that one does [default: 5, quick: 0]
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
    /// A worker that is some time away
    #[command(hide = true)]
    ServeWorker(far::Arguments),
    /// A FUSE file system that does nothing
    #[command(hide = true)]
    MountNull(null::Arguments),
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Warm reads through the mount of `forebay up`
    Mount,
    /// Warm reads through a mount, from a worker in another process
    Worker,
    /// The same through shared memory: the window onto a worker's memory, and UCX
    MountRdma,
    /// Small reads one at a time and many at once, over /dev/fuse and over io_uring
    Depth,
    /// Files that the kernel reads without asking the mount
    Local,
    /// Files that are read for the second time, by `forebay up` as it comes, and the memory that it takes
    Again,
    /// A worker 300 µs away
    Remote,
    /// Sixteen jobs on one file and on sixteen
    Shared,
    /// Ten thousand small files, against the file systems of others
    Small,
    /// Ten thousand names in one directory, against the file systems of others
    Listing,
    /// Warm reads against the file systems of others
    Peers,
    /// Loading a model with safetensors
    Model,
    /// The client library without FUSE, and what integrity costs
    Client,
    /// The slowest reads while one of three workers stands still or is late
    Tail,
    /// The TCP transport alone
    Transport,
    /// What proofs and encryption cost over TCP, and how long many connections at once take
    Security,
    /// The RDMA transport alone, on what UCX offers without a card
    Rdma,
    /// Cold reads
    Cold,
    /// What is fetched for what is read
    Amplification,
    /// Writes through the mount
    Write,
    /// What the settings of a mount do
    Tuning,
}

impl Section {
    /// What is measured unless something is asked for.
    fn by_default() -> Vec<Self> {
        Self::value_variants().iter().copied().filter(|section| *section != Self::Tuning).collect()
    }
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    match &arguments.command {
        Some(Command::ServeTransport { transports }) => return server::run(transports),
        Some(Command::ServeWorker(arguments)) => return far::run(arguments),
        Some(Command::MountNull(arguments)) => return null::run(arguments),
        None => {}
    }
    let settings = Settings::new(arguments.quick, arguments.repeat, arguments.size, arguments.time);
    let sections = if arguments.only.is_empty() { Section::by_default() } else { arguments.only.clone() };
    let runtime = Runtime::new()?;
    let interrupted = interruption(&runtime);
    let progress = Progress::new(Arc::clone(&interrupted));
    let base = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    // Before it makes the machine busy itself.
    let machine = Machine::look(settings, &progress);
    let fixture = Fixture::prepare(&base, &arguments.tmpfs, settings, &progress)?;
    let mut report = Report::new(settings, machine);
    let mut failed = Vec::new();
    for section in sections {
        if let Err(error) = measure(section, &fixture, &runtime, &progress, &mut report) {
            progress.say(&format!("failed: {section:?}: {error:#}"));
            failed.push(section);
            if interrupted.load(Ordering::Relaxed) {
                break;
            }
        }
    }
    print!("{}", report.markdown());
    // Tables of a file stand for a whole run.
    if let Some(path) = arguments.update.as_ref().filter(|_| failed.is_empty()) {
        report.update(path)?;
    }
    if let Some(path) = &arguments.json {
        let json = serde_json::to_vec_pretty(&report)?;
        std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    ensure!(failed.is_empty(), "not measured, for what is said above: {failed:?}");
    Ok(())
}

/// Measures a section. What others found stays where it fails.
fn measure(
    section: Section,
    fixture: &Fixture,
    runtime: &Runtime,
    progress: &Progress,
    report: &mut Report,
) -> anyhow::Result<()> {
    match section {
        Section::Mount => mount::up(fixture, progress, report),
        Section::Worker => mount::worker(fixture, progress, report),
        Section::MountRdma => mount_rdma::measure(fixture, progress, report),
        Section::Depth => depth::measure(fixture, progress, report),
        Section::Local => local::measure(fixture, progress, report),
        Section::Again => again::measure(fixture, progress, report),
        Section::Remote => remote::measure(fixture, progress, report),
        Section::Shared => shared::measure(fixture, progress, report),
        Section::Small => small::measure(fixture, runtime, progress, report),
        Section::Listing => listing::measure(fixture, progress, report),
        Section::Peers => peers::measure(fixture, progress, report),
        Section::Model => model::measure(fixture, progress, report),
        Section::Client => client::measure(fixture, runtime, progress, report),
        Section::Tail => tail::measure(fixture, progress, report),
        Section::Transport => transport::measure(fixture, runtime, progress, report),
        Section::Security => security::measure(fixture, runtime, progress, report),
        Section::Rdma => rdma::measure(fixture, runtime, progress, report),
        Section::Cold => cold::measure(fixture, runtime, progress, report),
        Section::Amplification => amplification::measure(fixture, progress, report),
        Section::Write => writing::measure(fixture, runtime, progress, report),
        Section::Tuning => tuning::measure(fixture, progress, report),
    }
}

/// Set by Ctrl-C and SIGTERM: the run ends after the measurement under way, and takes its mounts with it.
fn interruption(runtime: &Runtime) -> Arc<AtomicBool> {
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
