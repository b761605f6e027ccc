//! Which way the data comes to this machine: what its speed is to be held against.
//!
//! An interface that the configuration names is the one. Else the kernel's table of routes says which leads to a machine that
//! serves the data, or, where other machines read, to one of those: they are in the same network as their readers.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket};

use forebay_benchmark::posix::run::{Host, Way};
use forebay_config::Config;

/// Finds it, if it can be known.
pub(super) fn way(config: &Config, hosts: &[Host], workers: &[String]) -> Option<Way> {
    let readers = hosts.iter().map(|host| ("client", host.address.ip()));
    let workers = workers.iter().filter_map(|worker| Some(("worker", worker.to_socket_addrs().ok()?.next()?.ip())));
    let peers: Vec<(&str, IpAddr)> = if hosts.is_empty() { workers.collect() } else { readers.collect() };
    let interfaces: Vec<_> = if_addrs::get_if_addrs().unwrap_or_default();
    let interface = |peer: IpAddr| {
        let source = source_to(peer)?;
        interfaces.iter().find(|interface| interface.ip() == source)
    };
    let routes = peers.iter().filter_map(|(what, peer)| Some((*what, *peer, interface(*peer)?)));
    // Of several workers, one that is not on this machine.
    let route = routes.min_by_key(|(_, _, interface)| interface.is_loopback());
    if let Some((key, name)) = named(config) {
        let peer = route.map(|(_, peer, _)| peer);
        return Some(Way { interface: name, why: format!("named by {key}"), peer });
    }
    let (what, peer, interface) = route?;
    let why = format!("the way to the {what} {peer}");
    // What goes to one of this machine's own addresses goes by its loopback, whichever interface has the address.
    let is_here = interfaces.iter().any(|own| own.ip() == peer);
    let interface = if is_here { LOOPBACK.to_owned() } else { interface.name.clone() };
    Some(Way { interface, why, peer: Some(peer) })
}

const LOOPBACK: &str = "lo";

/// The interface that mounts connect to workers from, and the key that names it.
fn named(config: &Config) -> Option<(&'static str, String)> {
    let keys = [
        ("client.network.data.bind.device", &config.client_network_data_bind_device),
        ("network.group_network", &config.network_group_network),
    ];
    keys.into_iter().find_map(|(key, interface)| Some((key, interface.as_ref()?.as_str().to_owned())))
}

/// The address of this machine that packets to `peer` leave by. (A datagram socket that is connected sends none.)
fn source_to(peer: IpAddr) -> Option<IpAddr> {
    let any: SocketAddr = if peer.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    // Any port: nothing is sent to it.
    socket.connect((peer, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use forebay_config::Sources;

    use super::*;

    fn config(settings: &[&str]) -> Config {
        Config::load(&Sources::new().flags(settings.iter().map(|setting| (*setting).to_owned()))).unwrap().config
    }

    #[test]
    fn the_way_is_the_interface_that_was_named_or_the_route() {
        let (plain, workers) = (config(&[]), ["127.0.0.1:29999".to_owned()]);
        assert_eq!(way(&plain, &[], &[]), None);
        assert_eq!(way(&plain, &[], &["not an address".to_owned()]), None);
        let route = way(&plain, &[], &workers).unwrap();
        assert_eq!((route.interface.as_str(), route.why.as_str()), ("lo", "the way to the worker 127.0.0.1"));
        let hosts = Host::parse("127.0.0.1:7").unwrap();
        assert_eq!(way(&plain, &hosts, &workers).unwrap().why, "the way to the client 127.0.0.1");
        let named = way(&config(&["network.group_network=ib7"]), &[], &workers).unwrap();
        assert_eq!((named.interface.as_str(), named.why.as_str()), ("ib7", "named by network.group_network"));
        assert_eq!(named.peer, Some([127, 0, 0, 1].into()));
        let both = config(&["network.group_network=ib7", "client.network.data.bind.device=ib8"]);
        assert_eq!(way(&both, &[], &[]).unwrap().interface, "ib8");
    }
}
