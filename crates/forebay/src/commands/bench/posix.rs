//! `forebay bench posix`: the command line of [`forebay_benchmark::posix`], the caches of Forebay's mounts, and signals.
//!
//! A run takes a thread of its own, which waits for fio, files and jobs. Here it is waited for: an interruption asks it to end
//! and waits until it has cleaned up, a second one does not; a lost terminal is none of its business.

mod cache;
mod fault;
mod mounted;
mod network;
mod plan;
mod progress;
mod records;
mod serve;
mod targets;
pub(super) mod terminal;
mod unfinished;
mod workers;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::ArgGroup;
use forebay_benchmark::posix::run::{self, Fio, Host, Run, RunError, Stop};
use forebay_benchmark::record::Record;
use forebay_benchmark::report;
use forebay_config::Loaded;
use forebay_types::ByteSize;
use tokio::runtime::Handle;

use self::fault::told;
use self::plan::PlanArgs;
use self::progress::Shown;
use self::targets::{Caches, Targets};
use self::terminal::Terminal;
use crate::config_args::ConfigArgs;
use crate::exit::{Exit, Fault};
use crate::output::{self, JsonArg};
use crate::signals::Signals;
use crate::{logging, runtime};

/// Measure with fio how fast programs read files in a directory, and explain the results
///
/// The command writes its own files into a subdirectory `forebay-bench`. It fills or empties the cache and drops the
/// page cache. It runs fio with more and more jobs until more jobs bring little gain. Then it removes the files. The
/// results are a page with plots, a table and a JSON document in a results directory. On a Forebay mount, jobs of the
/// coordinator fill and empty the cache. Without DIRECTORY the command measures the only mount of this machine.
///
/// By default it takes some minutes, and its figures are called quick. It takes an hour with --plan reference and ten
/// with --plan full. It continues when the terminal is lost. Ctrl-C ends it, keeps the measurements, and removes the
/// files. A second Ctrl-C ends it without removing them. The same command with --output DIR then continues after the
/// last step.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("mode"))]
#[command(after_help = "\
Example:
  forebay bench posix /mnt/data
  forebay bench posix /mnt/data --against /mnt/juicefs --against /srv/nvme --states warm --repeat 3
  forebay bench posix /mnt/data --plan reference --nic-speed 100Gbps --yes
  forebay bench posix /mnt/data --plan full --nic-speed 200Gbps --output results
  forebay bench posix --serve 10.0.1.11               # on each machine that is to read
  forebay bench posix /mnt/data --clients 10.0.1.11,10.0.1.12 --output 3w2c
  forebay bench posix --compare before after
  forebay bench posix --scaling 1w1c 3w3c 10w10c")]
pub(crate) struct Args {
    /// The directory to measure, on a mount [default: the only forebay mount of this machine]
    directory: Option<PathBuf>,
    /// Also measure this directory, in turn with DIRECTORY, and print ratios; may be repeated
    #[arg(long, value_name = "PATH")]
    against: Vec<PathBuf>,
    /// Machines that read, each with a `fio --server` and this directory at the same path; @FILE lists one on each line
    #[arg(long, value_name = "HOST[:PORT],...|@FILE")]
    clients: Option<String>,
    /// How many workers serve the directory [default: as many as the coordinator says]
    #[arg(long, value_name = "N")]
    workers: Option<u32>,
    /// The coordinator that fills and empties the cache [default: that of the mount, else coordinator.hostname]
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,
    /// Empty other caches with this shell command; $FOREBAY_BENCH_DIRECTORY names the directory for it
    #[arg(long, value_name = "COMMAND")]
    cold_command: Option<String>,
    /// The directory for results; a run that ended early there is resumed [default: ./forebay-bench-DATE-TIME]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    /// Keep the measured files for another run
    #[arg(long)]
    keep: bool,
    /// Write at most this much; a run that needs more is refused
    #[arg(long, value_name = "SIZE")]
    budget: Option<ByteSize>,
    /// Do not ask before writing more than 1 GiB, or before writing anything without DIRECTORY
    #[arg(short, long)]
    yes: bool,
    /// Print what would be run
    #[arg(long)]
    dry_run: bool,
    /// Print these results side by side, and write compare.html into --output, or else beside the last report
    #[arg(long, value_name = "RESULTS", num_args = 2.., group = "mode", conflicts_with_all = ["directory", "against", "clients", "dry_run"])]
    compare: Vec<PathBuf>,
    /// Print how these results scale with workers and clients, and write scaling.html as --compare does
    #[arg(long, value_name = "RESULTS", num_args = 1.., group = "mode", conflicts_with_all = ["directory", "against", "clients", "dry_run"])]
    scaling: Vec<PathBuf>,
    /// Act as one of the --clients: run `fio --server` at this private address until Ctrl-C. Any host that can reach it
    /// can run anything as this user
    #[arg(
        long,
        value_name = "ADDRESS[:PORT]",
        value_parser = serve::address,
        group = "mode",
        conflicts_with_all = ["directory", "against", "clients", "dry_run"]
    )]
    serve: Option<std::net::SocketAddr>,
    /// Let --serve listen on every address, or on a public one
    #[arg(long, requires = "serve")]
    insecure: bool,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    plan: PlanArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs it.
///
/// # Errors
/// Whatever keeps it from being measured.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if !args.compare.is_empty() {
        return records::compare(&args.compare, args.output.as_deref());
    }
    if !args.scaling.is_empty() {
        return records::scaling(&args.scaling, args.output.as_deref());
    }
    args.plan.check()?;
    let loaded = args.config.load([])?;
    logging::start_quiet(&loaded.config)?;
    runtime::block_on(async {
        match args.serve {
            Some(address) => serve::run(address, args.insecure).await,
            None => measure(args, loaded).await,
        }
    })
}

/// More than so many bytes are not written without asking.
const ASKS_ABOVE: u64 = 1 << 30;

/// What a run leaves.
enum Done {
    Measured(Box<Record>, PathBuf),
    /// Nothing was run: these lines would have been.
    Shown(Vec<String>),
}

async fn measure(args: Args, loaded: Loaded) -> anyhow::Result<()> {
    let mut signals = Signals::take()?;
    let (stop, json, terminal) = (Stop::default(), args.json.json, Terminal::now());
    let output = args.output.clone().unwrap_or_else(run::default_output);
    let mut running = tokio::task::spawn_blocking({
        let (stop, runtime, output) = (stop.clone(), Handle::current(), output.clone());
        move || work(&args, &loaded, output, runtime, &stop)
    });
    let mut interrupted = None;
    let done = loop {
        tokio::select! {
            done = &mut running => break done.context("the benchmark panicked")?,
            signal = signals.next() => match signal {
                "SIGHUP" => terminal.leave(),
                signal if interrupted.is_some() => end_at_once(signal, &output),
                signal => {
                    interrupted = Some(signal);
                    stop.ask();
                }
            },
        }
    };
    match (done, interrupted) {
        (Err(error), Some(signal)) if is_interruption(&error) => {
            if output.exists() {
                let output = output.display();
                output::say(&format!(
                    "what was measured is in {output}; the same with --output {output} goes on from there"
                ));
            }
            Err(Fault::interrupted(signal).into())
        }
        (Err(error), _) => Err(error),
        (Ok(Done::Shown(lines)), _) => lines.iter().try_for_each(|line| output::print(&format!("{line}\n"))),
        (Ok(Done::Measured(record, _)), _) if json => output::print(&format!("{}\n", serde_json::to_value(&*record)?)),
        (Ok(Done::Measured(record, output)), _) => {
            let place = format!("\nreport.html, steps.csv and record.json are in {}\n", output.display());
            output::print(&(report::text(&record) + &place))
        }
    }
}

/// A user who asks twice does not want to wait for a file system, which may never answer. So this process does not wait
/// either; its thread cannot be ended then.
fn end_at_once(signal: &str, output: &Path) -> ! {
    let output = output.display();
    output::say(&format!(
        "ended at once by another {signal}: files that were made are left, as {output}/made.json lists them; the same with \
         --output {output} goes on, and removes them at its end"
    ));
    std::process::exit(Exit::Interrupted as i32)
}

/// All of a run that waits.
fn work(args: &Args, loaded: &Loaded, output: PathBuf, runtime: Handle, stop: &Stop) -> anyhow::Result<Done> {
    let fio = Fio::find().map_err(told)?;
    let directory = args.directory.clone().map_or_else(targets::only_mount, Ok)?;
    let hosts = args.clients.as_deref().map(Host::parse).transpose().map_err(told)?.unwrap_or_default();
    let caches = Caches {
        loaded,
        coordinator: args.coordinator.as_deref(),
        cold_command: args.cold_command.as_deref(),
        runtime,
    };
    let targets = Targets::find(&directory, &args.against, &caches)?;
    let way = network::way(&loaded.config, &hosts, &targets.addresses);
    let capacity = targets.measures.iter().filter_map(|measure| measure.cache.capacity());
    let (settings, fitted) =
        args.plan.fitted(engine(args, &fio, stop)?, capacity.min_by_key(|capacity| capacity.usable));
    fitted.iter().for_each(|text| output::say(text));
    let run = Run {
        settings,
        targets: targets.measures,
        hosts,
        workers: args.workers.unwrap_or(targets.workers),
        machine: args.plan.machine(run::machine_by(way.as_ref())),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        way,
        more: more(args),
        output: output.clone(),
        keep: args.keep,
        full_sweep: args.plan.full_sweep(),
        budget: args.budget.map(ByteSize::as_u64),
        asks_above: match (args.yes, &args.directory) {
            (true, _) => u64::MAX,
            // The user has not named the place.
            (false, None) => 0,
            (false, Some(_)) => ASKS_ABOVE,
        },
        fio: &fio,
    };
    if args.dry_run {
        return run.command_lines().map(Done::Shown).map_err(told);
    }
    let record = run.run(&mut Shown::new(), stop).map_err(told)?;
    Ok(Done::Measured(Box::new(record), output))
}

/// The engine that was asked for, if it works, or the first that does.
fn engine(args: &Args, fio: &Fio, stop: &Stop) -> anyhow::Result<forebay_benchmark::posix::Engine> {
    let place = std::env::temp_dir();
    let Some(engine) = args.plan.engine() else {
        let (engine, refused) = fio.fastest_engine(&place, stop).map_err(told)?;
        refused.iter().for_each(|reason| output::say(reason));
        return Ok(engine);
    };
    match fio.try_engine(engine, &place, stop).map_err(told)? {
        None => Ok(engine),
        Some(reason) => {
            let what = format!("--ioengine {engine} does not work here: {reason}");
            Err(Fault::new(Exit::Usage, what, "leave it away: the first that works is taken").into())
        }
    }
}

/// What makes results differ and is no setting of the plan.
fn more(args: &Args) -> BTreeMap<String, String> {
    let said = [
        ("cold-command", args.cold_command.clone()),
        ("nic-speed", args.plan.said_network()),
        ("disk-speed", args.plan.said_disk()),
    ];
    said.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn is_interruption(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(RunError::Interrupted))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    fn parse(arguments: &str) -> Result<crate::cli::Cli, clap::Error> {
        let words = "forebay bench posix".split_whitespace().chain(arguments.split_whitespace());
        crate::cli::Cli::try_parse_from(words)
    }

    #[test]
    fn a_run_a_comparison_and_a_server_are_three_things() {
        for good in [
            "",
            "/mnt/data --states warm --layouts single,small --numjobs 1,2,4 --runtime 60s --repeat 3 --full-sweep",
            "/mnt/data --against /a --against /b --cold-command true --nic-speed 200Gbps --disk-speed 12GBps",
            "/mnt/data --clients @hosts --workers 3 --keep --json --dry-run",
            "--compare a b c",
            "--compare a b --output c",
            "--scaling a",
            "--serve 10.0.0.1",
            "--serve 0.0.0.0 --insecure",
            "--serve [::1]:9000",
        ] {
            assert!(parse(good).is_ok(), "{good}: {:?}", parse(good).err());
        }
        for bad in [
            "/mnt/data --states hot",
            "/mnt/data --numjobs many",
            "--compare a",
            "/mnt/data --serve 10.0.0.1",
            "--serve",
            "--serve 10.0.0.1 --compare a b",
            "--insecure",
            "--serve nonsense",
            "/mnt/data --ioengine sync",
            "/mnt/data --nic-speed 200GBps",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
