//! `forebay doctor`: what this machine has, what is wrong with it, and what to type.
//!
//! The facts and the verdicts are [`forebay_doctor`]'s. What is here asks others, by the very code that a worker or a mount
//! uses, and turns failures into an exit code:
//!
//! * `origins`: the object stores, and their clocks;
//! * `services`: etcd, coordinators, and the mounts of this machine;
//! * `units`: systemd, for the units that start Forebay;
//! * `security`: the files that prove who this machine is;
//! * `peer`: another host: the way to it, its worker, and the benchmark's server there;
//! * `recorded`: a machine that was recorded, which is asked nothing.

mod configuration;
mod measure;
mod origins;
mod peer;
mod recorded;
mod security;
mod services;
mod units;
mod worker;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

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

/// Find out what does not work on this machine, or between it and another one, and how to fix it
///
/// The command shows what is there, part by part. Then it gives a verdict on each thing that Forebay needs: `ok`,
/// `info`, `warn` (works, but not as well as it could) or `fail` (what the configuration asks for cannot work). Each
/// verdict says what to type. The command needs no other program; where systemd runs it asks systemctl about units. It
/// needs root only to name other users' processes and to read all network settings. Give it the options that you start
/// the worker or mount with. Then it also asks the origins, etcd and the coordinator that these options name.
///
/// In a container or a pod the command looks at the limits, capabilities, devices, profiles and namespaces that the
/// container has. Run it where the process runs that does not work: `kubectl exec POD -- forebay doctor`.
///
/// With --peer the command also asks another host. The worker there must let this machine in. It lists its network
/// cards, and the command connects to each one through rdma_cm (as rping does), as a mount does. If `forebay bench
/// rdma` runs there, the command measures latency and bandwidth in both directions. It measures over TCP, and also over
/// UCX and by verbs, where this side has RDMA or the options ask for it. Each takes some ten seconds. At one size it
/// compares every payload byte for byte. The command also examines the route: interface, source address, router, and
/// the size of packets that arrive whole.
///
/// The command reads the fault counters of links twice, at least a second apart where a link has counted faults. Only
/// faults counted in between are a warning. The --peer measurements run between the two readings.
///
/// --record DIR copies everything that the command reads, for a bug report. --root DIR reads such a copy, on any
/// machine. The copy contains the names of host, interfaces, cards and modules, addresses, GUIDs, partition keys,
/// limits, the mount table, and the names of pod and node. It also contains the settings that are not at their default,
/// fingerprints of keys, names and times of certificates, states of units, and the answers of origins, etcd,
/// coordinators and peers. It does not contain keys, passwords in URLs, environment variables other than UCX_... and
/// those that name the pod, or options of other programs. Nothing is sent: you can read the copy first.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With --json the output is one document:
  facts    what there is: system, modules, pci_cards, rdma, interfaces, ucx, memory, fuse,
           container, units, mounts, listeners, rdma_listeners, connections, boot, clock,
           origins, etcd, coordinators, security, peers, processes, lock_limits,
           configuration, recording
  checks   the verdicts, each with section, name, subject, verdict, what and remedy
  counts   the number of each verdict
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
    /// Also ask this origin, besides those in `mounts`; may be repeated
    #[arg(long, value_name = "URL")]
    origin: Vec<String>,
    /// Ask this host: its worker, at worker.rpc.port, and `forebay bench rdma`, at PORT [default: 20600]; may be repeated
    #[arg(long, value_name = "HOST[:PORT]")]
    peer: Vec<String>,
    /// Ask this coordinator [default: coordinator.hostname, none]
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,
    /// Show only problems: no facts, and only verdicts that warn or fail
    #[arg(long)]
    problems: bool,
    /// Copy everything that the command reads to this directory, which must be empty or absent
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Read the copy that --record made, not this machine; its settings count unless --config names others
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
        verbs_missing: VerbsDevice::missing_library(&rdma),
        rdma_listeners: RdmaListener::of_this_machine(),
        ucx,
        clock: Clock::read(),
        security: Some(security::look(&loaded.config, SystemTime::now())),
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

/// Asks all origins, etcd members, coordinators, mounts, systemd and hosts. Hosts come last and one by one, because
/// nothing may disturb what is measured.
async fn ask(args: &Args, loaded: &Loaded, rdma: &Rdma) -> anyhow::Result<Asked> {
    let config = &loaded.config;
    let coordinators = services::coordinator_addresses(config, args.coordinator.as_deref());
    let (origins, etcd, coordinators, mounts, units) = futures::join!(
        origins::ask(loaded, &args.origin),
        services::etcd(config),
        services::coordinators(config, &coordinators),
        services::mounts(),
        units::ask(),
    );
    let origin_exit = origins.iter().find_map(|(_, exit)| *exit);
    let origins = origins.into_iter().map(|(probe, _)| probe).collect();
    let mut peers = Vec::new();
    for name in &args.peer {
        peers.push(peer::ask(config, rdma, name).await);
    }
    Ok(Asked {
        outside: Outside { origins, etcd, coordinators, mounts, units, peers, ..Outside::default() },
        origin_exit,
    })
}
