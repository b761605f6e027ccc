//! `forebay doctor`: what this machine has, what is wrong with it, and what to type.
//!
//! The facts and the verdicts are [`forebay_doctor`]'s. What is here asks others, by the very code that a worker or a mount
//! uses, and turns failures into an exit code:
//!
//! * `origins`: the object stores, and their clocks;
//! * `services`: etcd, coordinators, and the mounts of this machine;
//! * `peer`: another host: the way to it, its worker, and the benchmark's server there;
//! * `recorded`: a machine that was recorded, which is asked nothing.

mod configuration;
mod measure;
mod origins;
mod peer;
mod recorded;
mod services;
mod worker;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_config::Loaded;
use forebay_doctor::checks::ports;
use forebay_doctor::facts::{Address, Clock, DriverInfo, FlowControl, Rdma, RdmaListener, Ucx, VerbsDevice};
use forebay_doctor::{Facts, Outside, Report, Root, Section};
use serde_json::json;

use self::configuration::configured;
use crate::config_args::{ClusterArgs, ConfigArgs, RdmaArgs};
use crate::exit::{Exit, Fault};
use crate::output::{self, JsonArg};
use crate::runtime;

/// The least time between two looks at the counters of a link, where it has counted a fault.
const SECOND_LOOK_AFTER: Duration = Duration::from_secs(1);

/// Find out what does not work on this machine or between it and another one, and what to type
///
/// Shows what is there, part by part, and then a verdict on each thing that Forebay needs: `ok`, `info`, `warn` (works, but
/// not as well as it could) or `fail` (what the configuration asks for cannot work), with what to type. Needs no other
/// program, and root only to name other users' processes and to read all of the network's settings. Give it the options that
/// the worker or mount is started with: then origins, etcd and the coordinator that these name are asked, too.
///
/// With --peer another host is asked. Its worker must let this machine in, and tells its network cards, each of which is
/// connected to as a mount does, through rdma_cm (as rping does). If `forebay bench rdma` runs there, latency and bandwidth are
/// measured in both directions, over TCP and, where there is RDMA on this side or it is asked for, over UCX, with every
/// payload of a size compared byte for byte: some ten seconds for each. The way there is looked at, too: interface, source
/// address, router, and how large the packets are that arrive whole.
///
/// Links are looked at twice, at least a second apart where one has counted faults: only what grows between is a warning. What
/// --peer measures comes between the two looks.
///
/// --record DIR makes a copy of all that is looked at, for a bug report; --root DIR looks at such a copy, on any machine. In it are
/// the names of host, interfaces, cards and modules, addresses, GUIDs, partition keys, limits of memory, the table of mounts, the
/// settings that are not at their default, and what origins, etcd, coordinators and peers answered. Not in it are keys, passwords in
/// URLs, variables of the environment other than UCX_..., and options of other programs. Nothing is sent; it is yours to read first.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With --json it is one document:
  facts    what there is: system, modules, pci_cards, rdma, interfaces, ucx, memory, fuse,
           mounts, listeners, rdma_listeners, connections, boot, clock, origins, etcd,
           coordinators, peers, processes, lock_limits, configuration, recording
  checks   the verdicts, each with section, name, subject, verdict, what and remedy
  counts   how many there are of each verdict
With --problems, checks has only those that warn or fail.

Exit codes:
  0    nothing failed; there may be warnings
  1    something of this machine failed
  2    the configuration is wrong
  4    an origin, etcd, the coordinator or the peer cannot be reached
  5    an origin refused access
  The first failure of the list decides.

Example:
  forebay doctor
  forebay doctor --rdma-network ib0:ib2 --origin s3://bucket/prefix --etcd http://etcd1:2379
  forebay bench rdma                                        # on node2
  forebay doctor --rdma-network ib0 --peer node2            # on node1
  forebay doctor --problems
  forebay doctor --config /etc/forebay/forebay.toml --record /tmp/node1
  forebay doctor --root /tmp/node1                          # on any machine
  forebay doctor --json | jq '.checks[] | select(.verdict == \"fail\")'")]
pub(crate) struct Args {
    /// Ask this origin too, besides those in `mounts`; may be repeated
    #[arg(long, value_name = "URL")]
    origin: Vec<String>,
    /// Ask this host: its worker, at worker.rpc.port, and `forebay bench rdma`, at PORT [default: 20600]; may be repeated
    #[arg(long, value_name = "HOST[:PORT]")]
    peer: Vec<String>,
    /// Ask this coordinator [default: coordinator.hostname, none]
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,
    /// Show only what is wrong: no facts, and of the verdicts those that warn or fail
    #[arg(long)]
    problems: bool,
    /// Copy all that is looked at to this directory, which must be empty or not there
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Look at the tree that --record made, and not at this machine; its settings count unless --config names others
    #[arg(long, value_name = "DIR", conflicts_with_all = ["record", "origin", "peer", "coordinator"])]
    root: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    rdma: RdmaArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs it.
///
/// # Errors
/// When anything failed, with the code of the first.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let settings: Vec<String> = args.rdma.settings().into_iter().chain(args.cluster.settings()).collect();
    let (report, origin_exit) = match &args.root {
        Some(folder) => (recorded::report(&args.config, settings, folder)?, None),
        None => of_this_machine(args, settings)?,
    };
    let failures: Vec<_> = report.failures().map(|check| (check.section, check.name)).collect();
    let report = if args.problems { report.only_problems() } else { report };
    let mut out = output::stdout();
    if args.json.json {
        output::json_line(&mut out, &json!(report))?;
    } else {
        report.print(&mut out)?;
    }
    out.flush()?;
    let Some((section, name)) = failures.first() else { return Ok(()) };
    let exit = match section {
        Section::Configuration => Exit::Usage,
        Section::Origin => origin_exit.unwrap_or(Exit::Unavailable),
        Section::Cluster | Section::Peer => Exit::Unavailable,
        _ => Exit::Failed,
    };
    let count = failures.len();
    let what =
        if count == 1 { format!("{name} failed") } else { format!("{count} checks failed, the first is {name}") };
    Err(Fault::new(exit, what, "the line below each that failed says what to type").into())
}

/// Looks at this machine, asks others, and records what it is to. With the code of the first origin that failed.
fn of_this_machine(args: &Args, settings: Vec<String>) -> anyhow::Result<(Report, Option<Exit>)> {
    let (loaded, configuration) = configured(args.config.load(settings))?;
    let root = match &args.record {
        Some(folder) => recorded::begin(folder)?,
        None => Root::default(),
    };
    // Before there are other threads, as UCX wants it.
    let ucx = Ucx::find(loaded.config.ucx_library.as_deref());
    let rdma = Rdma::read(&Root::default());
    let (first_look, first_looked) = (rdma.first_look(), Instant::now());
    let asked = runtime::block_on(ask(args, &loaded, &rdma))?;
    let outside = Outside {
        // None when the kernel does not tell.
        addresses: Address::of_this_machine().unwrap_or_default(),
        drivers: DriverInfo::of_this_machine(),
        flow_controls: FlowControl::of_this_machine(),
        verbs: VerbsDevice::of_this_machine(&rdma),
        rdma_listeners: RdmaListener::of_this_machine(),
        ucx,
        clock: Clock::read(),
        local_dir: loaded.config.client_local_dir.clone(),
        configuration,
        search_path: std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default(),
        ports: ports::configured(&loaded.config).into_iter().map(|(_, port)| port).collect(),
        login: std::env::var("SUDO_USER").ok().filter(|user| user != "root"),
        ..asked.outside
    };
    if first_look.has_faults() {
        std::thread::sleep(SECOND_LOOK_AFTER.saturating_sub(first_looked.elapsed()));
    }
    let outside = Outside { first_look: Some(first_look.before(first_looked.elapsed())), ..outside };
    let facts = Facts::gather(&root, outside.clone());
    if let Some(folder) = &args.record {
        recorded::end(&root, folder, outside)?;
    }
    Ok((Report::new(facts, &loaded.config), asked.origin_exit))
}

/// What others answered.
struct Asked {
    outside: Outside,
    /// How the first origin failed.
    origin_exit: Option<Exit>,
}

/// Asks everybody. Hosts come last and one by one: what is measured must not be disturbed.
async fn ask(args: &Args, loaded: &Loaded, rdma: &Rdma) -> anyhow::Result<Asked> {
    let config = &loaded.config;
    let coordinators = services::coordinator_addresses(config, args.coordinator.as_deref());
    let (origins, etcd, coordinators, mounts) = futures::join!(
        origins::ask(loaded, &args.origin),
        services::etcd(config),
        services::coordinators(config, &coordinators),
        services::mounts(),
    );
    let origin_exit = origins.iter().find_map(|(_, exit)| *exit);
    let origins = origins.into_iter().map(|(probe, _)| probe).collect();
    let mut peers = Vec::new();
    for name in &args.peer {
        peers.push(peer::ask(config, rdma, name).await);
    }
    Ok(Asked { outside: Outside { origins, etcd, coordinators, mounts, peers, ..Outside::default() }, origin_exit })
}
