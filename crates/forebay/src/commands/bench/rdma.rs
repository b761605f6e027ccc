//! `forebay bench rdma`: the command line of [`forebay_perftest`].

mod cards;
mod providers;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use forebay_config::Config;
use forebay_doctor::Root;
use forebay_doctor::facts::{Address, Rdma, VerbsDevice};
use forebay_perftest::plan::{MAX_DEPTH, MAX_ITERATIONS, MAX_JOBS, MAX_PAYLOAD};
use forebay_perftest::{
    Case, ClientOptions, Error, Report, Server, ServerOptions, TransportChoice, UcxOptions, VerbsCard, client,
};
use forebay_rdma::Library;
use forebay_transport::driving::DriveOptions;
use forebay_types::ByteSize;
use tokio_util::sync::CancellationToken;

use crate::config_args::ConfigArgs;
use crate::exit::{Exit, Fault};
use crate::output::{self, JsonArg};
use crate::signals::Signals;
use crate::{logging, runtime};
use forebay_node::binding::check_own_address;
use forebay_node::driving::drive_options;

use cards::{address_of, card_names, cards_of, verbs_card};
use providers::ProviderArg;

/// How long a run that was interrupted may take to end.
const END_WITHIN: Duration = Duration::from_secs(3);

/// Measure the links between two hosts over RDMA or TCP, and the cache's requests over these links
///
/// Start the command without --remote-ip on one host: it is a server until Ctrl-C. Start it with --remote-ip on another
/// host: it runs the tests.
///
/// WRITE and READ are one-sided operations on the server's memory. They show what the network gives. CACHE is a request
/// of the cache and its reply. It shows what a mount gets, without the checksums that a mount adds. For WRITE and READ
/// each thread has its own connection. For CACHE all threads share one link, as in a mount. With `--transport tcp`
/// WRITE and READ use plain blocking sockets, and CACHE uses the cache's own TCP.
///
/// Any host that can reach the server's port can read and write the benchmark's memory. Where UCX carries out one-sided
/// operations in software, such a host can read and write the memory of the whole process. Run the server in a trusted
/// network, and only while you measure.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay bench rdma
  forebay bench rdma --remote-ip 10.0.1.10 --case latency --iters 100000 --size 64,4KiB --cpus 2
  forebay bench rdma --remote-ip 10.0.1.10 --case stress-read --duration 10 --numjobs 8 --iodepth 32
  forebay bench rdma --remote-ip 10.0.1.10 --all-sizes --json > sizes.json")]
pub(crate) struct Args {
    /// Server or client [default: client with --remote-ip, server without]
    #[arg(long)]
    mode: Option<Mode>,
    /// Server: the address to listen on; client: the one to connect from [default: detected, or that of a single device]
    #[arg(long, value_name = "IP")]
    local_ip: Option<IpAddr>,
    /// Server: the port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 20600)]
    local_port: u16,
    /// Server: the first of the data ports: one for CACHE over TCP. Unless --transport is tcp, the next two are for
    /// READ and WRITE and for CACHE over UCX. With --provider verbs, the two after that are for CACHE and for READ and WRITE
    /// by verbs. 0 takes free ones [default: the one after --local-port]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(..=65_531))]
    data_ports: Option<u16>,
    /// Server: delay each reply to CACHE and to plain sockets by this many microseconds; one-sided operations have no
    /// delay
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=10_000_000))]
    delay_us: u64,
    /// Client: the server's address
    #[arg(long, value_name = "IP")]
    remote_ip: Option<String>,
    /// Client: the server's port
    #[arg(long, value_name = "PORT", default_value_t = 20600, value_parser = clap::value_parser!(u16).range(1..))]
    remote_port: u16,
    /// Client: which tests
    #[arg(long, default_value = "all")]
    case: CaseArg,
    /// Client: seconds for each test or, with --all-sizes, for each table. A test is one kind of operation with one
    /// size. A latency test ends after 5000 operations if that is sooner
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    duration: u64,
    /// Client: threads of a bandwidth test; -1 takes one for each core, at most 8, or 4 above 256 KiB
    #[arg(long, value_name = "N", default_value = "-1", allow_negative_numbers = true, value_parser = automatic::<MAX_JOBS>)]
    numjobs: Automatic,
    /// Client: operations of each latency test, however long they take. The 99.9th percentile needs 1000, and is steady with 100000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_ITERATIONS)))]
    iters: Option<u32>,
    /// Client: payload sizes in place of 4KiB, 64KiB and 1MiB, up to 8MiB
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', conflicts_with = "all_sizes", value_parser = payload)]
    size: Vec<ByteSize>,
    /// Client: pin the test threads to these processors, in turn, as in 0,2-5; CACHE also has a network thread
    #[arg(long, value_name = "LIST", value_parser = processors)]
    cpus: Option<Processors>,
    /// Client: operations that each thread has in flight; -1 takes 32 up to 16 KiB, 16 up to 256 KiB, 8 up to 1 MiB,
    /// then 4
    #[arg(long, value_name = "N", default_value = "-1", allow_negative_numbers = true, value_parser = automatic::<MAX_DEPTH>)]
    iodepth: Automatic,
    /// The transport for data. A server with `ucx` serves clients with either
    #[arg(long, default_value = "ucx")]
    transport: TransportArg,
    /// The library: `ucx` goes as --transport says, `verbs` uses libibverbs and librdmacm on one card, for WRITE and READ as for
    /// CACHE. With `both`, or both names, the client measures one after the other, and prints a table of both. A server with
    /// `verbs` serves clients with either. By verbs there is a fourth kind, SEAL: a READ as the cache's one-sided reads do it
    #[arg(long, value_name = "LIBRARY,...", value_delimiter = ',', default_value = "ucx")]
    provider: Vec<ProviderArg>,
    /// UCX's devices, as in `mlx5_0:1,mlx5_1:1` [default: network.rdma.data.network and .bind.device, else UCX's choice]
    #[arg(long, value_name = "DEVICE,...", value_delimiter = ',')]
    devices: Vec<String>,
    /// UCX's transports, as in `rc_verbs` [default: network.rdma.data.transports, else $UCX_TLS, else UCX's choice]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    transports: Vec<String>,
    /// Client: tables of all sizes from 2 bytes to 8 MiB; payloads above 4 MiB move in two parts, as blocks do
    #[arg(long)]
    all_sizes: bool,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Serve until Ctrl-C
    Server,
    /// Run the tests
    Client,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CaseArg {
    /// Compare every byte
    Basic,
    /// One operation after the other
    Latency,
    /// Many at once: WRITE, READ and CACHE
    Stress,
    /// Many at once: WRITE
    StressWrite,
    /// Many at once: READ
    StressRead,
    /// Many at once: CACHE
    StressCache,
    /// All of them
    All,
}

impl From<CaseArg> for Case {
    fn from(case: CaseArg) -> Self {
        match case {
            CaseArg::Basic => Self::Basic,
            CaseArg::Latency => Self::Latency,
            CaseArg::Stress => Self::Stress,
            CaseArg::StressWrite => Self::StressWrite,
            CaseArg::StressRead => Self::StressRead,
            CaseArg::StressCache => Self::StressCache,
            CaseArg::All => Self::All,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TransportArg {
    /// OpenUCX: RDMA where there is a card for it
    Ucx,
    /// TCP sockets
    Tcp,
}

impl From<TransportArg> for TransportChoice {
    fn from(transport: TransportArg) -> Self {
        match transport {
            TransportArg::Ucx => Self::Ucx,
            TransportArg::Tcp => Self::Tcp,
        }
    }
}

/// A number, or that one is to be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Automatic(Option<u32>);

fn automatic<const MAX: u32>(text: &str) -> Result<Automatic, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(Automatic(None)),
        Ok(number) if (1..=i64::from(MAX)).contains(&number) => Ok(Automatic(Some(number as u32))),
        _ => Err(format!("give 1 to {MAX}, or -1 to have it chosen by the size of the payload")),
    }
}

/// Numbers of processors.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Processors(Vec<usize>);

/// `0,2-5`, as `taskset -c` takes it.
fn processors(text: &str) -> Result<Processors, String> {
    let wrong = || format!("`{text}` is no list of processors, as in 0,2-5");
    let number = |text: &str| text.trim().parse::<u16>().map(usize::from).map_err(|_| wrong());
    let mut processors = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(wrong());
        }
        processors.extend(first..=last);
    }
    Ok(Processors(processors))
}

fn payload(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|error: forebay_types::QuantityError| error.to_string())?;
    match (1..=MAX_PAYLOAD).contains(&size.as_u64()) {
        true => Ok(size),
        false => Err(format!("a payload has 1 byte to {}", ByteSize::bytes(MAX_PAYLOAD))),
    }
}

/// Runs it.
///
/// # Errors
/// When server or tests cannot start, or a test fails.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mode = mode(args.mode, args.remote_ip.as_deref())?;
    let loaded = args.config.load([])?;
    logging::start_quiet(&loaded.config)?;
    let rdma = Rdma::read(&Root::default());
    let verbs = VerbsDevice::of_this_machine(&rdma);
    let rdma = rdma.with_verbs(&verbs);
    let ucx = ucx(&args, &loaded.config, &rdma)?;
    if matches!(args.transport, TransportArg::Ucx) {
        // While the process has one thread; see `forebay_node::rdma::load_early`. What is wrong is told when it is needed.
        let _ = Library::load(ucx.library.as_deref());
    }
    let verbs = match ProviderArg::has_verbs(&args.provider) {
        false => None,
        true => verbs_card(&args.devices, &loaded.config, &rdma)?,
    };
    match mode {
        Mode::Server => runtime::block_on(serve(&args, ucx, verbs, &rdma)),
        Mode::Client => runtime::block_on(measure(&args, drive_options(&loaded.config), ucx, verbs, &rdma)),
    }
}

/// The mode that was said, or the one that the server's address tells.
fn mode(said: Option<Mode>, remote_ip: Option<&str>) -> anyhow::Result<Mode> {
    let (what, next) = match (said, remote_ip) {
        (None | Some(Mode::Client), Some(_)) => return Ok(Mode::Client),
        (None | Some(Mode::Server), None) => return Ok(Mode::Server),
        (Some(Mode::Client), None) => ("--mode client does not say of which server", "name it with --remote-ip"),
        (Some(Mode::Server), Some(_)) => ("--mode server connects to nobody", "leave --remote-ip away, or --mode"),
    };
    Err(Fault::new(Exit::Usage, what, next).into())
}

/// What UCX is to use: flags, then the configuration.
///
/// # Errors
/// When the configuration names a card that is not there: another one would be measured in its place.
fn ucx(args: &Args, config: &Config, rdma: &Rdma) -> anyhow::Result<UcxOptions> {
    let or = |said: &[String], configured: &[String]| if said.is_empty() { configured.to_vec() } else { said.to_vec() };
    // `mlx5_0` is its first port.
    let full = |device: String| rdma.port(&device).map_or(device, |(_, port)| port.name.clone());
    let configured: Vec<String> = match args.devices.is_empty() && matches!(args.transport, TransportArg::Ucx) {
        true => cards_of(config)?,
        false => Vec::new(),
    };
    let named = or(&args.devices, &configured);
    Ok(UcxOptions {
        library: config.ucx_library.clone(),
        devices: named.into_iter().map(full).collect(),
        transports: or(&args.transports, &config.network_rdma_data_transports),
    })
}

/// The address of a single device, which is also where connections of that device are made.
fn address_of_device(ucx: &UcxOptions, rdma: &Rdma) -> Option<IpAddr> {
    let [device] = &ucx.devices[..] else { return None };
    address_of(device, rdma)
}

/// The address that others know this machine by, as far as can be told: the one that the kernel would send from to the rest of
/// the world, here an address of documentation (RFC 5737), or, where no route leads there, that of a card. Nothing is sent.
fn detected_address() -> IpAddr {
    let source = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        Ok::<_, std::io::Error>(socket.local_addr()?.ip())
    };
    let of_a_card = || {
        let addresses = Address::of_this_machine().unwrap_or_default();
        let usable: Vec<IpAddr> =
            addresses.into_iter().map(|(_, address)| address.ip).filter(|ip| !ip.is_loopback()).collect();
        usable.iter().find(|ip| ip.is_ipv4()).or(usable.first()).copied()
    };
    source().ok().or_else(of_a_card).unwrap_or(Ipv4Addr::LOCALHOST.into())
}

async fn serve(args: &Args, ucx: UcxOptions, verbs: Option<VerbsCard>, rdma: &Rdma) -> anyhow::Result<()> {
    let mut signals = Signals::take()?;
    if let Some(ip) = args.local_ip {
        check_own_address("--local-ip", ip, None)?;
    }
    let ip = args.local_ip.or_else(|| address_of_device(&ucx, rdma)).unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    let options = ServerOptions {
        address: SocketAddr::new(ip, args.local_port),
        data_port: data_port(args.local_port, args.data_ports),
        delay: Duration::from_micros(args.delay_us),
        transport: args.transport.into(),
        ucx,
        verbs,
    };
    let server = signals.unless_any(async { Server::start(options).await.map_err(told) }).await?;
    let bound = server.local_addr();
    let shown = if bound.ip().is_unspecified() { detected_address() } else { bound.ip() };
    let shown = SocketAddr::new(shown, bound.port());
    let transport = match (args.transport, server.has_rdma()) {
        (TransportArg::Tcp, _) => "TCP",
        (TransportArg::Ucx, true) => "RDMA",
        (TransportArg::Ucx, false) => "UCX (no RDMA)",
    };
    let mut out = output::stdout();
    if let Some((port, version)) = server.ucx() {
        writeln!(out, "[INFO] UCX {version} on port {port}, {} of registered memory for clients", server.exposed())?;
    }
    if let Some(verbs) = server.verbs() {
        writeln!(out, "[INFO] Verbs at {verbs}")?;
    }
    let ports: Vec<String> = server.ports().iter().map(u16::to_string).collect();
    writeln!(out, "[INFO] Clients need the ports {}", ports.join(", "))?;
    let delay = args.delay_us;
    writeln!(out, "[INFO] {transport} Server running on {shown} with Delay {delay} us. Press Ctrl+C to exit.")?;
    out.flush()?;
    drop(out);
    signals.next().await;
    server.close().await;
    Ok(())
}

/// The first of the ports for data; `None`: free ones.
fn data_port(control: u16, said: Option<u16>) -> Option<u16> {
    // If the system chooses the control port, no rule of a firewall can name the ports that follow it.
    said.or(control.checked_add(1).filter(|_| control != 0)).filter(|port| *port != 0)
}

async fn measure(
    args: &Args,
    drive: DriveOptions,
    ucx: UcxOptions,
    verbs: Option<VerbsCard>,
    rdma: &Rdma,
) -> anyhow::Result<()> {
    let mut signals = Signals::take()?;
    let server = resolve(args.remote_ip.as_deref().unwrap_or_default(), args.remote_port)?;
    if let Some(ip) = args.local_ip {
        check_own_address("--local-ip", ip, Some(server.ip()))?;
    }
    let bind = args.local_ip.or_else(|| address_of_device(&ucx, rdma).filter(|own| own.is_ipv4() == server.is_ipv4()));
    let options = |verbs| ClientOptions {
        server,
        bind,
        transport: args.transport.into(),
        ucx: ucx.clone(),
        verbs,
        case: args.case.into(),
        all_sizes: args.all_sizes,
        sizes: args.size.iter().map(|size| size.as_u64()).collect(),
        iterations: args.iters,
        cpus: args.cpus.clone().map(|processors| processors.0).unwrap_or_default(),
        cards: card_names(rdma),
        duration: Duration::from_secs(args.duration),
        jobs: args.numjobs.0,
        depth: args.iodepth.0,
        drive,
    };
    let mut reports = Vec::new();
    for provider in ProviderArg::each(&args.provider) {
        let options = options(verbs.clone().filter(|_| provider == ProviderArg::Verbs));
        reports.push((provider.name(), one(options, args.json.json, &mut signals).await?));
    }
    providers::tell(&reports, args.json.json)
}

/// One run, until it has ended or a signal comes.
async fn one(options: ClientOptions, json: bool, signals: &mut Signals) -> anyhow::Result<Report> {
    let stop = CancellationToken::new();
    let mut running = tokio::task::spawn_blocking({
        let (stop, runtime) = (stop.clone(), tokio::runtime::Handle::current());
        move || -> Result<Report, Error> {
            // With --json, standard output is for the document alone.
            if json {
                client::run(&options, &runtime, &stop, &mut std::io::stderr())
            } else {
                client::run(&options, &runtime, &stop, &mut std::io::stdout())
            }
        }
    });
    tokio::select! {
        done = &mut running => done.context("the benchmark panicked")?.map_err(told),
        signal = signals.next() => {
            stop.cancel();
            let _ = tokio::time::timeout(END_WITHIN, running).await;
            Err(Fault::interrupted(signal).into())
        }
    }
}

/// The address of `host`.
fn resolve(host: &str, port: u16) -> anyhow::Result<SocketAddr> {
    let fault = |reason: String| {
        let what = format!("--remote-ip {host:?} is no address: {reason}");
        Fault::new(Exit::Usage, what, "give the IP address that the server prints")
    };
    let mut found = (host, port).to_socket_addrs().map_err(|error| fault(error.to_string()))?;
    Ok(found.next().ok_or_else(|| fault("nothing is known of it".to_owned()))?)
}

/// The error as this program tells errors: with its code, and the remedy apart.
fn told(error: Error) -> anyhow::Error {
    let error = match error {
        // As it is: the reader of our output may have gone, which the cause shows.
        Error::Io(error) => return error.into(),
        other => other,
    };
    let exit = match &error {
        Error::Usage(_) => Exit::Usage,
        Error::Connect { .. } | Error::Lost { .. } | Error::TimedOut { .. } => Exit::Unavailable,
        Error::Listen { error, .. } => match error.kind() {
            std::io::ErrorKind::AddrInUse => Exit::Busy,
            std::io::ErrorKind::PermissionDenied => Exit::Denied,
            _ => Exit::Failed,
        },
        _ => Exit::Failed,
    };
    let message = error.to_string();
    match message.rsplit_once("; ") {
        Some((what, next)) => Fault::new(exit, what, next).into(),
        None => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_follows_from_the_servers_address() {
        assert_eq!(mode(None, None).unwrap(), Mode::Server);
        assert_eq!(mode(None, Some("10.0.0.1")).unwrap(), Mode::Client);
        assert_eq!(mode(Some(Mode::Server), None).unwrap(), Mode::Server);
        assert!(mode(Some(Mode::Client), None).is_err() && mode(Some(Mode::Server), Some("10.0.0.1")).is_err());
    }

    #[test]
    fn numbers_are_within_their_bounds_or_chosen() {
        assert_eq!(automatic::<128>("-1"), Ok(Automatic(None)));
        assert_eq!(automatic::<128>("128"), Ok(Automatic(Some(128))));
        for wrong in ["0", "-2", "129", "x", ""] {
            assert!(automatic::<128>(wrong).is_err_and(|text| text.contains("1 to 128")), "{wrong}");
        }
    }

    #[test]
    fn processors_are_numbers_and_ranges() {
        assert_eq!(processors("0,2-4"), Ok(Processors(vec![0, 2, 3, 4])));
        for wrong in ["", "a", "4-2", "1-", "0,,1", "70000"] {
            assert!(processors(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_ports_for_data_follow_that_for_control_unless_one_is_said() {
        assert_eq!(data_port(20600, None), Some(20601));
        assert_eq!(data_port(20600, Some(9000)), Some(9000));
        assert_eq!(data_port(20600, Some(0)), None);
        assert_eq!(data_port(0, None), None);
        assert_eq!(data_port(u16::MAX, None), None);
    }

    #[test]
    fn a_name_that_nobody_knows_is_a_mistake_of_the_caller() {
        assert_eq!(resolve("127.0.0.1", 7).unwrap(), "127.0.0.1:7".parse().unwrap());
        assert_eq!(resolve("::1", 7).unwrap(), "[::1]:7".parse().unwrap());
        assert!(resolve("", 7).is_err());
    }
}
