//! Another host: its name, the way to it, and its ports. What answers there is asked by `worker` and `measure`.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use forebay_config::Config;
use forebay_doctor::facts::{PathMtu, PeerPort, PeerProbe, Rdma, Reached, Route, micros};
use tokio::net::{TcpSocket, lookup_host};

use super::{measure, worker};
use crate::output;
use forebay_node::binding;

/// How long a connection may take: longer than a first packet that was lost and sent again.
const CONNECT_WITHIN: Duration = Duration::from_secs(4);
/// Where `forebay bench rdma` listens if it is not told otherwise.
const BENCHMARK_PORT: u16 = 20_600;

/// Asks the host that `name`, `HOST` or `HOST:PORT`, stands for.
pub(super) async fn ask(config: &Config, rdma: &Rdma, name: &str) -> PeerProbe {
    let (host, port) = split(name);
    let found = match lookup_host((host, 0)).await {
        Ok(found) => found.map(|address| address.ip()).collect::<Vec<_>>(),
        Err(error) => return unknown(name, format!("{host:?} is no address: {error}")),
    };
    // An interface that is not there is told of by another check.
    let from = binding::client_source(config).ok().flatten();
    let is_of_family = |address: &&IpAddr| from.is_none_or(|from| from.is_ipv4() == address.is_ipv4());
    let Some(to) = found.iter().find(is_of_family).or(found.first()).copied() else {
        return unknown(name, format!("nothing is known of {host:?}"));
    };
    let from = from.filter(|from| from.is_ipv4() == to.is_ipv4());
    let mut ports = Vec::new();
    let mut connection = None;
    let benchmark = port.filter(|port| *port != config.worker_rpc_port).unwrap_or(BENCHMARK_PORT);
    // Port 0 takes a free one, which this process does not know.
    for (service, port) in [("worker", config.worker_rpc_port), ("benchmark", benchmark)] {
        if port != 0 {
            let (port, stream) = connect(service, SocketAddr::new(to, port), from).await;
            ports.push(port);
            connection = stream.or(connection);
        }
    }
    let way = tokio::task::spawn_blocking(move || {
        let route = Route::to(to, from);
        let mtu = route.is_some().then(|| PathMtu::measure(to, from, None, connection.as_ref()));
        (route, mtu)
    });
    // It does not panic; if it did, nothing would be known of the way.
    let (route, path_mtu) = way.await.unwrap_or_default();
    let mut probe = PeerProbe {
        name: name.to_owned(),
        // That which was asked first.
        addresses: std::iter::once(to).chain(found.into_iter().filter(|address| *address != to)).collect(),
        from,
        route,
        ports,
        path_mtu,
        ..PeerProbe::default()
    };
    let open =
        |service: &str| probe.port(service).filter(|port| port.reached == Reached::Open).map(|port| port.address);
    let (worker, benchmark) = (open("worker"), open("benchmark"));
    if let Some(address) = worker {
        probe.worker = Some(worker::ask(config, rdma, address, from).await);
    }
    if let Some(address) = benchmark {
        output::say(&format!("measuring the way to {name}, which takes some seconds"));
        let interface = probe.route.as_ref().and_then(|route| route.interface.clone());
        probe.measured = measure::measure(config, rdma, address, from, interface).await;
    }
    probe
}

fn unknown(name: &str, reason: String) -> PeerProbe {
    PeerProbe { name: name.to_owned(), unknown: Some(reason), ..PeerProbe::default() }
}

/// The host and the port in `HOST`, `HOST:PORT`, `[::1]:PORT` or `::1`.
fn split(name: &str) -> (&str, Option<u16>) {
    let (host, port) = match name.rsplit_once(':') {
        // More than one colon, without brackets: an address of IPv6.
        Some((host, port)) if host.ends_with(']') || !host.contains(':') => match port.parse() {
            Ok(port) => (host, Some(port)),
            Err(_) => (name, None),
        },
        _ => (name, None),
    };
    (host.trim_start_matches('[').trim_end_matches(']'), port)
}

/// Connects once, from `from` if that is said.
async fn connect(service: &str, address: SocketAddr, from: Option<IpAddr>) -> (PeerPort, Option<TcpStream>) {
    let begun = Instant::now();
    let attempt = async {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        let any = if address.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        socket.bind(SocketAddr::new(from.unwrap_or(any), 0))?;
        socket.connect(address).await
    };
    let (reached, stream) = match tokio::time::timeout(CONNECT_WITHIN, attempt).await {
        Ok(Ok(stream)) => (Reached::Open, stream.into_std().ok()),
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => (Reached::Refused, None),
        Ok(Err(error)) if error.kind() == ErrorKind::TimedOut => (Reached::Silent, None),
        Ok(Err(error)) => {
            let words = error.to_string();
            (Reached::Failed(words.split(" (os error").next().unwrap_or_default().to_owned()), None)
        }
        Err(_) => (Reached::Silent, None),
    };
    let took_us = micros(begun.elapsed());
    (PeerPort { service: service.to_owned(), address, reached, took_us }, stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_told_from_an_address_of_ipv6() {
        assert_eq!(split("node2"), ("node2", None));
        assert_eq!(split("node2:20601"), ("node2", Some(20601)));
        assert_eq!(split("10.0.0.1:7"), ("10.0.0.1", Some(7)));
        assert_eq!((split("::1"), split("[::1]"), split("[::1]:7")), (("::1", None), ("::1", None), ("::1", Some(7))));
        assert_eq!((split("a:b"), split("")), (("a:b", None), ("", None)));
    }

    #[tokio::test]
    async fn a_port_where_nobody_listens_is_refused_and_one_that_is_open_is_open() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (port, stream) = connect("worker", address, Some(Ipv4Addr::LOCALHOST.into())).await;
        assert!(port.reached == Reached::Open && stream.is_some());
        drop((listener, stream));
        let (port, stream) = connect("worker", address, None).await;
        assert!(port.reached == Reached::Refused && stream.is_none(), "{port:?}");
    }
}
