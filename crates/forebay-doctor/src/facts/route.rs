//! The way to a host: what `ip route get` shows, and how large the packets are that it takes.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, ip_mtu, ipv6_mtu, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use serde::{Deserialize, Serialize};

use crate::netlink::{self, Question};
use crate::root::Root;

/// `RTM_GETROUTE`, and the attributes of a route.
const GET_ROUTE: u16 = 26;
const FIXED: usize = 12;
const DESTINATION: u16 = 1;
const SOURCE: u16 = 2;
const INTERFACE: u16 = 4;
const GATEWAY: u16 = 5;
const PREFERRED_SOURCE: u16 = 7;
const METRICS: u16 = 8;
const METRIC_MTU: u16 = 2;
/// Headers of IP and UDP.
const HEADERS: [u32; 2] = [20 + 8, 40 + 8];
/// A datagram is at most so long.
const MAX_DATAGRAM: u32 = 65_507;
/// How often a large packet is sent, and how long an answer to one is waited for.
const ATTEMPTS: u32 = 3;
const ANSWER_WITHIN: Duration = Duration::from_millis(300);
/// A port of UDP where nothing listens, as traceroute assumes: the host says so when a packet arrives.
const NOBODYS_PORT: u16 = 33_434;

/// The way that packets to a host take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The host.
    pub to: IpAddr,
    /// The interface that they leave by.
    pub interface: Option<String>,
    /// The address that they come from.
    pub source: Option<IpAddr>,
    /// The router that they go to first; `None` for a host in the same subnet.
    pub gateway: Option<IpAddr>,
    /// The MTU of the way, where the routing table limits it.
    pub mtu: Option<u32>,
}

/// How large the packets are that a way takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathMtu {
    /// What the kernel believes, in bytes: the interface's MTU, or less when a router said so.
    pub believed: Option<u32>,
    /// The largest packet that the host certainly got.
    pub delivered: Option<u32>,
    /// What both ends of a TCP connection take, headers included.
    pub agreed: Option<u32>,
}

impl Route {
    /// Asks the kernel which way packets to `to` take that come from `from`, if that is said.
    #[must_use]
    pub fn to(to: IpAddr, from: Option<IpAddr>) -> Option<Self> {
        let (family, bytes) = match to {
            IpAddr::V4(ip) => (libc::AF_INET as u8, ip.octets().to_vec()),
            IpAddr::V6(ip) => (libc::AF_INET6 as u8, ip.octets().to_vec()),
        };
        let width = (bytes.len() * 8) as u8;
        let source = from.filter(|from| from.is_ipv4() == to.is_ipv4()).map(|from| match from {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        });
        let source_width = if source.is_some() { width } else { 0 };
        let fixed = [family, width, source_width, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let question = Question::new(GET_ROUTE, &fixed).with(DESTINATION, &bytes);
        let question = match &source {
            Some(source) => question.with(SOURCE, source),
            None => question,
        };
        let answers = netlink::ask(None, &question).ok()?;
        let route = Self::read(&Root::default(), to, answers.first()?)?;
        // An answer does not repeat the source address of the question.
        Some(Self { source: route.source.or(from.filter(|_| source.is_some())), ..route })
    }

    /// What the kernel's answer says; `root` is where interfaces have their numbers.
    fn read(root: &Root, to: IpAddr, answer: &[u8]) -> Option<Self> {
        let attributes = answer.get(FIXED..)?;
        let metrics = netlink::attribute(attributes, METRICS).unwrap_or_default();
        Some(Self {
            to,
            interface: netlink::number(attributes, INTERFACE).and_then(|number| interface(root, number)),
            source: netlink::attribute(attributes, PREFERRED_SOURCE).and_then(address),
            gateway: netlink::attribute(attributes, GATEWAY).and_then(address),
            mtu: netlink::number(metrics, METRIC_MTU),
        })
    }
}

/// The interface with this number.
fn interface(root: &Root, number: u32) -> Option<String> {
    const INTERFACES: &str = "sys/class/net";
    let names = root.names(INTERFACES).into_iter();
    names.into_iter().find(|name| root.number(format!("{INTERFACES}/{name}/ifindex")) == Some(number))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|bytes| Ipv4Addr::from(*bytes).into()),
        16 => bytes.first_chunk::<16>().map(|bytes| Ipv6Addr::from(*bytes).into()),
        _ => None,
    }
}

impl PathMtu {
    /// Sends a few packets of `largest` bytes that no router may cut to `to`, from `from` if that is said, and waits for what
    /// comes of them: no more than a second. `connection` is an open one to the same host.
    #[must_use]
    pub fn measure(to: IpAddr, from: Option<IpAddr>, largest: Option<u32>, connection: Option<&TcpStream>) -> Self {
        let datagrams = datagrams(to, from, largest).unwrap_or_default();
        Self { agreed: connection.and_then(agreed), ..datagrams }
    }
}

fn datagrams(to: IpAddr, from: Option<IpAddr>, largest: Option<u32>) -> std::io::Result<PathMtu> {
    let from = from.filter(|from| from.is_ipv4() == to.is_ipv4());
    let any = if to.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(from.unwrap_or(any), 0))?;
    match to {
        IpAddr::V4(_) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)?,
        IpAddr::V6(_) => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO)?,
    }
    socket.connect(SocketAddr::new(to, NOBODYS_PORT))?;
    socket.set_read_timeout(Some(ANSWER_WITHIN))?;
    let believed = |socket: &UdpSocket| if to.is_ipv4() { ip_mtu(socket) } else { ipv6_mtu(socket) }.ok();
    let headers = HEADERS[usize::from(to.is_ipv6())];
    let mut found = PathMtu { believed: believed(&socket), ..PathMtu::default() };
    for _ in 0..ATTEMPTS {
        let mtu = found.believed.into_iter().chain(largest).min().unwrap_or(1500);
        let payload = mtu.saturating_sub(headers).min(MAX_DATAGRAM);
        // Too long for what the kernel has just learnt: it says so, and the next one is shorter.
        let sent = socket.send(&vec![0; payload as usize]).is_ok();
        let answer = if sent { socket.recv(&mut [0; 1]) } else { Err(ErrorKind::WouldBlock.into()) };
        found.believed = believed(&socket);
        // The host got it, and says that nothing listens there; or a program listens there, and answers.
        if answer.map_or_else(|error| error.kind() == ErrorKind::ConnectionRefused, |_| true) {
            found.delivered = Some(payload + headers);
            break;
        }
    }
    Ok(found)
}

/// The segments that both ends of `connection` take, with the headers before them.
fn agreed(connection: &TcpStream) -> Option<u32> {
    use std::os::fd::AsRawFd as _;
    let is_ipv6 = matches!(connection.peer_addr().ok()?.ip(), IpAddr::V6(_));
    /// The header of TCP, and the timestamps that every connection of Linux has.
    const TCP: u32 = 20 + 12;
    let (mut segment, mut length) = (0_i32, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the descriptor is open for as long as `connection` is borrowed, and value and length are ours and of that size.
    let result = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            (&raw mut segment).cast(),
            &raw mut length,
        )
    };
    let segment = u32::try_from(segment).ok().filter(|segment| result == 0 && *segment > 0)?;
    Some(segment + TCP + if is_ipv6 { 40 } else { 20 })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn this_machine_is_reached_over_loopback_with_its_mtu() {
        let route = Route::to(Ipv4Addr::LOCALHOST.into(), None).unwrap();
        assert_eq!((route.interface.as_deref(), route.gateway), (Some("lo"), None));
        assert_eq!(route.source, Some(Ipv4Addr::LOCALHOST.into()));
        let from = Route::to(Ipv4Addr::LOCALHOST.into(), Some(Ipv4Addr::LOCALHOST.into())).unwrap();
        assert_eq!(from.interface.as_deref(), Some("lo"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mtu = PathMtu::measure(Ipv4Addr::LOCALHOST.into(), None, Some(9000), Some(&connection));
        assert!(mtu.believed.is_some_and(|mtu| mtu >= 1500), "{mtu:?}");
        assert_eq!(mtu.delivered, Some(9000), "{mtu:?}");
        assert!(mtu.agreed.is_some_and(|mtu| mtu >= 1500), "{mtu:?}");
    }

    #[test]
    fn the_kernels_answer_is_read_and_nonsense_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let interface = folder.path().join("sys/class/net/ib0");
        std::fs::create_dir_all(&interface).unwrap();
        std::fs::write(interface.join("ifindex"), "7\n").unwrap();
        let root = Root::new(folder.path());
        let to = "10.2.0.9".parse().unwrap();
        let metrics = [8, 0, 2, 0, 0xdc, 0x05, 0, 0];
        let answer = [
            &[0; FIXED][..],
            &[8, 0, 4, 0, 7, 0, 0, 0],
            &[8, 0, 5, 0, 10, 1, 0, 1],
            &[8, 0, 7, 0, 10, 1, 0, 5],
            &[12, 0, 8, 0],
            &metrics,
        ]
        .concat();
        let expected = Route {
            to,
            interface: Some("ib0".into()),
            source: Some("10.1.0.5".parse().unwrap()),
            gateway: Some("10.1.0.1".parse().unwrap()),
            mtu: Some(1500),
        };
        // Numbers are in the machine's order of bytes.
        if cfg!(target_endian = "little") {
            assert_eq!(Route::read(&root, to, &answer), Some(expected));
        }
        assert_eq!(Route::read(&root, to, &[0; 3]), None);
        let nothing = Route { to, interface: None, source: None, gateway: None, mtu: None };
        assert_eq!(Route::read(&root, to, &[0; FIXED + 3]), Some(nothing));
    }
}
