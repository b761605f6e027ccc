//! Which address of this machine each listener and each outgoing connection has.
//!
//! The name of a network interface stands for its first address (`Address::first` of `forebay-doctor` says which). It
//! is used as it is or not at all: a name that no interface has, an interface without an address and one that is down
//! end the process at its start, with the names that would do.
//! Of the keys in a row, the first that is set decides; a `bind.host` is set when it is not "every address". A mount's
//! pages are for its own machine alone unless the configuration opens them.
//!
//! | what | by which keys |
//! | --- | --- |
//! | a worker's listener for requests | `worker.rpc.bind.device`, `worker.rpc.bind.host`, `network.group_network` |
//! | its listener for data | `worker.data.bind.device`; else that for requests serves data |
//! | its `/metrics`, `/healthz`, `/readyz`, `/stats` | `worker.web.bind.device`; else where it listens for requests |
//! | the same, once more, for programs | `worker.rest.bind.device` |
//! | its connections to other workers | `worker.data.bind.device`, `worker.rpc.bind.device`, then as the next row |
//! | connections of mounts to workers, and of commands to those that a mount reads from | `client.network.data.bind.device`, `network.group_network` |
//! | other connections of commands, and those of coordinators, to workers | `network.group_network` |
//! | a mount's `/metrics` and so on | `client.web.bind.host`; where that is every address, `network.group_network` |
//! | a coordinator's listener | `coordinator.bind.host`, `network.group_network` |
//! | an S3 endpoint | `s3.bind.host`; where that is every address, `network.group_network` |
//! | the listeners for probes, `*.health.port` | `network.health.bind.host` alone: who probes is no node of the cache |
//! | connections of commands to a coordinator | `network.group_network` |
//!
//! A process that asks a worker for data does so where that hands out data ([`Reach::Data`]), from the interface for data; one that
//! only requests ([`Reach::Requests`]) may have none: a coordinator runs on a host without a fast card, whatever file it shares
//! with mounts.
//!
//! RDMA has names of its own (`rdma/cards.rs`): the group's network carries what goes by TCP, and may be no network of RDMA at all.
//! Connections to etcd and to origins are not bound: neither is a node of the cache, and both may be reachable over a network that
//! no cache traffic belongs on; the routing table knows the way. Nor is what a person names on the command line of
//! `forebay stats HOST:PORT`, nor the web page of `forebay up --web`, which stays on loopback.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};

use anyhow::Context as _;
use forebay_cluster::Reach;
use forebay_config::{Config, Host, Interface, Loaded, Origin as Source};
use forebay_doctor::facts::Address;

use crate::error::{Exit, Fault};

const GROUP: &str = "network.group_network";
const CLIENT: &str = "client.network.data.bind.device";
const RPC: &str = "worker.rpc.bind.device";
const DATA: &str = "worker.data.bind.device";
const WEB: &str = "worker.web.bind.device";
/// The port for requests.
pub const RPC_PORT: &str = "worker.rpc.port";
const REST: &str = "worker.rest.bind.device";

/// What a process is in the cluster: which keys concern it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It serves blocks.
    Worker,
    /// It reads them: a mount.
    Client,
}

/// Checks the interfaces that the configuration names for these parts, before anything has begun.
///
/// # Errors
/// When one cannot be bound to.
pub fn check(config: &Config, parts: &[Part]) -> anyhow::Result<()> {
    for (key, interface) in named(config, parts) {
        address_of_interface(key, interface)?;
    }
    Ok(())
}

/// The interfaces that the configuration names for these parts, each with its key.
fn named<'a>(config: &'a Config, parts: &[Part]) -> impl Iterator<Item = (&'static str, &'a Interface)> {
    let of_worker = [
        (RPC, &config.worker_rpc_bind_device),
        (DATA, &config.worker_data_bind_device),
        (WEB, &config.worker_web_bind_device),
        (REST, &config.worker_rest_bind_device),
    ];
    let of_worker = of_worker.into_iter().filter(|_| parts.contains(&Part::Worker));
    let of_client = parts.contains(&Part::Client).then_some((CLIENT, &config.client_network_data_bind_device));
    let all = of_worker.chain(of_client).chain([(GROUP, &config.network_group_network)]);
    all.filter_map(|(key, interface)| Some((key, interface.as_ref()?)))
}

/// What to do when a worker's port is taken and the configuration does not name one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// That of requests stays: clients that are told no other, and the name that places the worker's blocks, go by it. Those of RDMA,
    /// which clients ask for over TCP, move when they do not become free: an RDMA port stays taken for a while after its
    /// process has ended.
    Stay,
    /// All move at once, for a mount that shares its cache: a worker on the same host has them, and the cluster tells clients.
    Move,
}

/// Whether one of them moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moving {
    /// It was named, or must not.
    Never,
    /// When it has been tried for a while.
    InTheEnd,
    /// Without waiting.
    AtOnce,
}

impl Ports {
    /// What becomes of the one that the setting `key` names.
    pub fn of(self, loaded: &Loaded, key: &str) -> Moving {
        match self {
            _ if loaded.origin(key) != Source::Default => Moving::Never,
            Self::Move => Moving::AtOnce,
            Self::Stay if key == RPC_PORT => Moving::Never,
            Self::Stay => Moving::InTheEnd,
        }
    }
}

/// Where a worker listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerAddresses {
    /// For requests.
    pub rpc: SocketAddr,
    /// For data, where that has an address of its own.
    pub data: Option<SocketAddr>,
}

impl WorkerAddresses {
    /// As configured.
    ///
    /// # Errors
    /// When a host or an interface has no address.
    pub fn of(config: &Config) -> anyhow::Result<Self> {
        let port = config.worker_rpc_port;
        let rpc = match named_address(RPC, &config.worker_rpc_bind_device)? {
            Some(ip) => SocketAddr::new(ip, port),
            None => listener(config, "worker.rpc.bind.host", &config.worker_rpc_bind_host, port)?,
        };
        let data = named_address(DATA, &config.worker_data_bind_device)?.filter(|ip| *ip != rpc.ip());
        Ok(Self { rpc, data: data.map(|ip| SocketAddr::new(ip, port)) })
    }

    /// The listeners that this takes, that for requests first: one at every address is one for data, too.
    pub fn listeners(&self) -> impl Iterator<Item = SocketAddr> {
        std::iter::once(self.rpc).chain(self.data.filter(|data| !covers(self.rpc.ip(), data.ip())))
    }
}

/// Where a worker that listens for requests at `rpc` shows `/metrics` and so on: for people first, then, where that is
/// elsewhere, for programs.
///
/// # Errors
/// When an interface has no address.
pub fn worker_web_addresses(config: &Config, rpc: IpAddr) -> anyhow::Result<Vec<IpAddr>> {
    let web = named_address(WEB, &config.worker_web_bind_device)?.unwrap_or(rpc);
    let rest = named_address(REST, &config.worker_rest_bind_device)?;
    Ok(std::iter::once(web).chain(rest.filter(|rest| !covers(web, *rest))).collect())
}

/// Where a mount shows `/metrics` and so on.
///
/// # Errors
/// When the host or the interface has no address.
pub fn mount_web_address(config: &Config) -> anyhow::Result<SocketAddr> {
    listener(config, "client.web.bind.host", &config.client_web_bind_host, config.client_web_port)
}

/// Where a coordinator listens.
///
/// # Errors
/// When the host or the interface has no address.
pub fn coordinator_address(config: &Config) -> anyhow::Result<SocketAddr> {
    listener(config, "coordinator.bind.host", &config.coordinator_bind_host, config.coordinator_port)
}

/// Where the S3 endpoint listens, at `port`.
///
/// # Errors
/// When the host has no address.
pub fn s3_address(config: &Config, port: u16) -> anyhow::Result<SocketAddr> {
    listener(config, "s3.bind.host", &config.s3_bind_host, port)
}

/// Where a worker listens for data over RDMA.
///
/// # Errors
/// When the host has no address.
pub fn rdma_address(config: &Config) -> anyhow::Result<SocketAddr> {
    resolved("network.rdma.data.bind.host", &config.network_rdma_data_bind_host, config.network_rdma_data_port)
}

/// Where `/healthz` and `/readyz` are served alone, at `port`.
///
/// # Errors
/// When the host has no address.
pub fn health_address(config: &Config, port: u16) -> anyhow::Result<SocketAddr> {
    resolved("network.health.bind.host", &config.network_health_bind_host, port)
}

/// What a worker connects to other workers from, if that is named.
///
/// # Errors
/// When the interface has no address.
pub fn worker_source(config: &Config) -> anyhow::Result<Option<IpAddr>> {
    for (key, interface) in [(DATA, &config.worker_data_bind_device), (RPC, &config.worker_rpc_bind_device)] {
        if let Some(ip) = named_address(key, interface)? {
            return Ok(Some(ip));
        }
    }
    client_source(config)
}

/// What all but workers connect to workers from, which they reach at these addresses of theirs, if that is named.
///
/// # Errors
/// When the interface has no address.
pub fn source_for(config: &Config, reach: Reach) -> anyhow::Result<Option<IpAddr>> {
    match reach {
        Reach::Data => client_source(config),
        Reach::Requests => group_source(config),
    }
}

/// What mounts connect to workers from, if that is named.
///
/// # Errors
/// When the interface has no address.
pub fn client_source(config: &Config) -> anyhow::Result<Option<IpAddr>> {
    match named_address(CLIENT, &config.client_network_data_bind_device)? {
        Some(ip) => Ok(Some(ip)),
        None => group_source(config),
    }
}

/// What is said that is no data is sent from, if that is named: what commands connect to a coordinator from.
///
/// # Errors
/// When the interface has no address.
pub fn group_source(config: &Config) -> anyhow::Result<Option<IpAddr>> {
    named_address(GROUP, &config.network_group_network)
}

/// Whether `host` is this machine, as others would call it.
pub fn is_of_this_machine(host: &Host) -> bool {
    let addresses = (host.as_str(), 0).to_socket_addrs().into_iter().flatten();
    let own: Vec<IpAddr> = if_addrs::get_if_addrs().unwrap_or_default().iter().map(if_addrs::Interface::ip).collect();
    addresses.map(|address| address.ip()).any(|ip| !ip.is_loopback() && own.contains(&ip))
}

/// `HOST:PORT`, as a URL has it.
pub fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The address that the interface `name` is known by, if it has one.
pub fn first_address(addresses: &[(String, Address)], name: &str) -> Option<IpAddr> {
    let of_name = addresses.iter().filter(|(interface, _)| interface == name);
    Address::first(of_name.map(|(_, address)| address)).map(|address| address.ip)
}

/// Checks that `ip`, which the flag `flag` names, is an address of this machine, and of a kind with which `peer` can be reached. The
/// system's own words for it (`Cannot assign requested address`, `Invalid argument`) come with a connection that failed, and look
/// like trouble of the network.
///
/// # Errors
/// When it is not; the addresses that are are named.
pub fn check_own_address(flag: &str, ip: IpAddr, peer: Option<IpAddr>) -> Result<(), Fault> {
    // Whatever the kernel lets be bound to is right: `ip_nonlocal_bind`, and all of 127.0.0.0/8.
    let bound = std::net::UdpSocket::bind((ip, 0));
    if bound.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrNotAvailable) {
        let addresses = Address::of_this_machine().unwrap_or_default();
        let own = addresses.iter().filter(|(_, address)| address.is_reachable());
        let own: Vec<String> = own.map(|(name, address)| format!("{} ({name})", address.ip)).collect();
        let next = format!("addresses of this machine: {}", own.join(", "));
        return Err(Fault::new(Exit::Usage, format!("{flag} {ip} is no address of this machine"), next));
    }
    let Some(peer) = peer else { return Ok(()) };
    if ip.is_ipv4() != peer.is_ipv4() {
        let next = format!("give {flag} an address of the same family, or leave it out");
        return Err(Fault::new(
            Exit::Usage,
            format!("{flag} {ip} and {peer} are of different families of addresses"),
            next,
        ));
    }
    if ip.is_loopback() && !peer.is_loopback() {
        let next = format!("give {flag} an address in a network that leads there, or leave it out");
        return Err(Fault::new(
            Exit::Usage,
            format!("{flag} {ip} does not leave this machine, and {peer} is another"),
            next,
        ));
    }
    Ok(())
}

/// The interfaces of this machine: those with one of these addresses, and those without any.
pub fn interface_names(addresses: &[(String, Address)]) -> Vec<String> {
    // Those without any address are in this list only. Not in sysfs: a process may see that of another network namespace.
    let listed = std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let listed = listed.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
    let mut names: Vec<String> = addresses.iter().map(|(name, _)| name.clone()).chain(listed).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The address of `host`, which the setting `key` names; that of the group's network in place of every address.
fn listener(config: &Config, key: &str, host: &Host, port: u16) -> anyhow::Result<SocketAddr> {
    let at = resolved(key, host, port)?;
    let of_group = if at.ip().is_unspecified() { group_source(config)? } else { None };
    Ok(SocketAddr::new(of_group.unwrap_or(at.ip()), port))
}

/// The address of `host`, which the setting `key` names.
fn resolved(key: &str, host: &Host, port: u16) -> anyhow::Result<SocketAddr> {
    let found = (host.as_str(), port).to_socket_addrs();
    found.ok().and_then(|mut addresses| addresses.next()).ok_or_else(|| {
        let next = format!("set {key} to an address of this machine, or 0.0.0.0 for all");
        Fault::new(Exit::Usage, format!("{key}: `{host}` has no address"), next).into()
    })
}

/// Whether a listener at `listening` is one at `address`, too. Linux has those at `::` listen to IPv4 as well.
fn covers(listening: IpAddr, address: IpAddr) -> bool {
    listening == address || listening.is_unspecified() && (listening.is_ipv6() || address.is_ipv4())
}

fn named_address(key: &str, interface: &Option<Interface>) -> anyhow::Result<Option<IpAddr>> {
    interface.as_ref().map(|interface| address_of_interface(key, interface)).transpose()
}

fn address_of_interface(key: &str, interface: &Interface) -> anyhow::Result<IpAddr> {
    Ok(Machine::look()?.address_of(key, interface.as_str())?)
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Nic {
    name: String,
    /// Its first address that others could use.
    address: Option<IpAddr>,
    /// Whether packets get through.
    is_up: bool,
}

/// The network interfaces of this machine, or of the container that the process is in.
struct Machine(Vec<Nic>);

impl Machine {
    fn look() -> anyhow::Result<Self> {
        let addresses = Address::of_this_machine().context("cannot list the network interfaces")?;
        let states = if_addrs::get_if_addrs().context("cannot list the network interfaces")?;
        let names = interface_names(&addresses);
        let nic = |name: String| Nic {
            address: first_address(&addresses, &name),
            is_up: states.iter().any(|found| found.name == name && found.is_oper_up()),
            name,
        };
        Ok(Self(names.into_iter().map(nic).collect()))
    }

    /// The address of the interface `name`, which the setting `key` names.
    fn address_of(&self, key: &str, name: &str) -> Result<IpAddr, Fault> {
        let (what, next) = match self.0.iter().find(|nic| nic.name == name) {
            Some(Nic { address: Some(address), is_up: true, .. }) => return Ok(*address),
            Some(Nic { address: Some(address), .. }) => (
                format!("the network interface `{name}` ({address}) is down"),
                format!("`ip link set {name} up`, and if it stays down, see to its cable and its switch"),
            ),
            Some(Nic { address: None, .. }) => (
                format!("the network interface `{name}` has no address"),
                format!("give it one (`ip addr add ADDRESS/PREFIX dev {name}`)"),
            ),
            None => (format!("there is no network interface `{name}`"), "names are case-sensitive".to_owned()),
        };
        let next = format!("{next}; interfaces that can be used: {}", self.listed());
        Err(Fault::new(Exit::Usage, format!("{key}: {what}"), next))
    }

    /// Those that could be bound to: `eth0 (10.0.0.1), lo (127.0.0.1)`.
    fn listed(&self) -> String {
        let usable = self.0.iter().filter(|nic| nic.is_up);
        let usable = usable.filter_map(|nic| Some(format!("{} ({})", nic.name, nic.address?)));
        let usable: Vec<_> = usable.collect();
        if usable.is_empty() { "none".to_owned() } else { usable.join(", ") }
    }
}

#[cfg(test)]
mod tests;
