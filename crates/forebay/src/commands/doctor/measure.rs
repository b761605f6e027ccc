//! What the benchmark measures to another host, in short.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use forebay_config::Config;
use forebay_doctor::Root;
use forebay_doctor::facts::{
    Address, DeviceKind, Interface, PeerBandwidth, PeerLatency, PeerMeasured, PeerOperation, Port, Rdma,
};
use forebay_perftest::options::Kind;
use forebay_perftest::{CardNames, Case, ClientOptions, Report, TransportChoice, UcxOptions, VerbsCard, client};
use forebay_rdma::Provider;
use tokio_util::sync::CancellationToken;

use forebay_node::binding::first_address;
use forebay_node::driving::drive_options;
use forebay_node::rdma as configured;
use forebay_node::rdma::cards::Machine;

/// How long each test may take: there are some twenty.
const TEST: Duration = Duration::from_millis(250);
/// How long all of them may, on a host that is busy, or whose cards are emulated.
const ALL_WITHIN: Duration = Duration::from_secs(120);
/// How long a run that was stopped may take to end.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Measures to the benchmark's server at `server`, from `from` if that is said: over TCP, and over UCX and by verbs where there is a card or
/// the configuration asks for RDMA. `interface` is where packets leave.
pub(super) async fn measure(
    config: &Config,
    rdma: &Rdma,
    server: SocketAddr,
    from: Option<IpAddr>,
    interface: Option<String>,
) -> Vec<PeerMeasured> {
    let options = |transport, ucx, bind, verbs| ClientOptions {
        server,
        bind,
        transport,
        ucx,
        verbs,
        case: Case::All,
        all_sizes: false,
        sizes: Vec::new(),
        duration: TEST,
        iterations: None,
        cpus: Vec::new(),
        cards: CardNames::default(),
        jobs: None,
        depth: None,
        drive: drive_options(config),
    };
    let interface = interface.as_deref();
    let over_tcp = options(TransportChoice::Tcp, UcxOptions::default(), from, None);
    let mut measured = vec![run(rdma, "tcp", over_tcp, interface).await];
    if configured::is_wanted_for_data(config) || !rdma.devices.is_empty() {
        let ucx = ucx(config, rdma);
        let bind = address_of_device(&ucx, rdma).filter(|own| own.is_ipv4() == server.is_ipv4()).or(from);
        measured.push(run(rdma, "ucx", options(TransportChoice::Ucx, ucx, bind, None), interface).await);
        if let Some(card) = verbs_card(config).filter(|card| card.address.is_ipv4() == server.is_ipv4()) {
            let bind = Some(card.address);
            let by_verbs = options(TransportChoice::Tcp, UcxOptions::default(), bind, Some(card));
            measured.push(run(rdma, "verbs", by_verbs, interface).await);
        }
    }
    measured
}

/// The first card that a mount of this configuration takes by verbs.
fn verbs_card(config: &Config) -> Option<VerbsCard> {
    let found = configured::takes(config, Provider::Verbs).then(|| Machine::look(&Root::default()))?;
    let cards = found.and_then(|machine| machine.data_cards_by(config, Provider::Verbs)).ok()?;
    let card = cards.into_iter().next()?;
    let device = card.device?;
    let device = device.split_once(':').map_or(device.as_str(), |(device, _)| device).to_owned();
    Some(VerbsCard { device, address: card.address? })
}

/// What UCX is to use: what a mount of this configuration does.
fn ucx(config: &Config, rdma: &Rdma) -> UcxOptions {
    let of_interface =
        |name: &forebay_config::Interface| rdma.port_of_interface(name.as_str()).map(|port| port.name.clone());
    let of_interfaces = config.network_rdma_data_network.iter().map(|name| {
        // With transports of the user's choice a card need not be one of RDMA.
        of_interface(name).unwrap_or_else(|| name.to_string())
    });
    // `mlx5_0` is its first port.
    let named = config.network_rdma_data_bind_device.iter();
    let named = named.map(|device| rdma.port(device).map_or_else(|| device.clone(), |(_, port)| port.name.clone()));
    UcxOptions {
        library: config.ucx_library.clone(),
        devices: of_interfaces.chain(named).collect(),
        transports: config.network_rdma_data_transports.clone(),
    }
}

/// The address of a single device, which connections of that device are made from.
fn address_of_device(ucx: &UcxOptions, rdma: &Rdma) -> Option<IpAddr> {
    let [device] = &ucx.devices[..] else { return None };
    let interface = rdma.port(device).and_then(|(_, port)| port.interfaces.first()).unwrap_or(device);
    first_address(&Address::of_this_machine().ok()?, interface)
}

async fn run(rdma: &Rdma, transport: &str, options: ClientOptions, interface: Option<&str>) -> PeerMeasured {
    let before = Counted::now(rdma, interface);
    let empty = PeerMeasured { transport: transport.to_owned(), ..PeerMeasured::default() };
    match report(options).await {
        Ok(report) => {
            let measured = of_report(empty, &report);
            let (counted_at, counted_bytes) = before.since(rdma, interface, &measured).unzip();
            PeerMeasured { counted_at, counted_bytes, ..measured }
        }
        Err(error) => {
            // The benchmark's errors say what to do after the last semicolon.
            let message = format!("{error:#}");
            let (what, next) = message.rsplit_once("; ").unzip();
            let error = what.map_or_else(|| message.clone(), str::to_owned);
            PeerMeasured { error: Some(error), remedy: next.map(str::to_owned), ..empty }
        }
    }
}

async fn report(options: ClientOptions) -> anyhow::Result<Report> {
    let stop = CancellationToken::new();
    let mut running = tokio::task::spawn_blocking({
        let (stop, runtime) = (stop.clone(), tokio::runtime::Handle::current());
        move || client::run(&options, &runtime, &stop, &mut std::io::sink())
    });
    if let Ok(done) = tokio::time::timeout(ALL_WITHIN, &mut running).await {
        return Ok(done.context("the benchmark panicked")??);
    }
    stop.cancel();
    let _ = tokio::time::timeout(END_WITHIN, running).await;
    anyhow::bail!("measuring took more than {ALL_WITHIN:?}; see that host and link are not busy with something else")
}

fn of_report(empty: PeerMeasured, report: &Report) -> PeerMeasured {
    let operation = |kind| match kind {
        Kind::Write => Some(PeerOperation::Write),
        Kind::Read => Some(PeerOperation::Read),
        Kind::Cache => Some(PeerOperation::Cache),
        // Little more than a READ.
        Kind::Seal => None,
    };
    // Times and rates are far below 2^53.
    let whole = |number: f64| number.max(0.0) as u64;
    let latency = report.latency.iter().filter_map(|test| {
        Some(PeerLatency {
            operation: operation(test.kind)?,
            bytes: test.bytes,
            p50_ns: whole(test.latency.p50_us * 1e3),
            // Of fewer than a hundred, the longest stands for it.
            p99_ns: whole(test.latency.p99_us.unwrap_or(test.latency.max_us) * 1e3),
        })
    });
    let bandwidth = report.bandwidth.iter().filter_map(|test| {
        Some(PeerBandwidth {
            operation: operation(test.kind)?,
            bytes: test.bytes,
            mbps: whole(test.bandwidth.gbps * 1e3),
        })
    });
    PeerMeasured {
        version: Some(report.server.version.clone()),
        lanes: match &report.verbs {
            // Its first port, as everywhere where none is named.
            Some(device) => vec![format!("verbs/{device}:1")],
            None => report.ucx.as_ref().map(|ucx| ucx.lanes.clone()).unwrap_or_default(),
        },
        is_rdma: report.verbs.is_some() || report.ucx.as_ref().is_some_and(|ucx| ucx.rdma),
        verified: report.verified.iter().map(|verified| verified.transfers).sum(),
        latency: latency.collect(),
        bandwidth: bandwidth.collect(),
        moved_bytes: report.bandwidth.iter().map(|test| test.bandwidth.operations.saturating_mul(test.bytes)).sum(),
        ..empty
    }
}

/// What the interface and the ports have counted so far, both directions together.
struct Counted {
    interface: Option<u64>,
    /// Each port, what it counts itself, and what its interface does.
    ports: Vec<(String, Option<u64>, Option<u64>)>,
}

impl Counted {
    fn now(rdma: &Rdma, interface: Option<&str>) -> Self {
        let root = Root::default();
        let both = |[received, sent]: [Option<u64>; 2]| Some(received?.saturating_add(sent?));
        let of_interface = |name: &str| both(Interface::bytes_now(&root, name));
        let port = |port: &Port| {
            let beside = port.interfaces.first().and_then(|name| of_interface(name));
            (port.name.clone(), both(Port::bytes_now(&root, &port.name)), beside)
        };
        Self {
            interface: interface.and_then(of_interface),
            ports: rdma.ports().map(|(_, found)| port(found)).collect(),
        }
    }

    /// Where the bytes must have gone, and what was counted there since; `None` where nothing counts them.
    fn since(&self, rdma: &Rdma, interface: Option<&str>, measured: &PeerMeasured) -> Option<(String, u64)> {
        let now = Self::now(rdma, interface);
        if !measured.is_rdma {
            // UCX's TCP may use several interfaces, and shared memory none.
            let is_plain = measured.transport == "tcp";
            return is_plain.then(|| Some((interface?.to_owned(), now.interface?.checked_sub(self.interface?)?)))?;
        }
        let lane = measured.lanes.first()?;
        let (_, device) = lane.split_once('/')?;
        let of = |counted: &Self| counted.ports.iter().find(|(name, ..)| name == device).cloned();
        let ((_, own, beside), (_, own_now, beside_now)) = (of(self)?, of(&now)?);
        let is_software = rdma.port(device).is_some_and(|(device, _)| device.kind == DeviceKind::Software);
        // Packets of Soft-RoCE are its interface's.
        let counted = match is_software {
            true => beside_now?.checked_sub(beside?)?,
            false => own_now?.checked_sub(own.unwrap_or(0))?,
        };
        Some((device.to_owned(), counted))
    }
}
