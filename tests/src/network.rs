//! Hosts in network namespaces of their own, joined by a switch, each behind a link of limited speed.
//!
//! The test's own process is one of the hosts: it keeps its namespace and has an address in the network, where a [`Relay`] makes
//! what listens on loopback reachable. Addresses are of 198.18.0.0/15, which is set aside for such tests (RFC 2544).
//!
//! A host can have a second network card, on a switch of its own: then [`Host::traffic`] and [`Host::sockets`] tell which of the two
//! a program used.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::program::wrapped;

/// A switch and the hosts on it. Dropping it takes them away.
#[derive(Debug)]
pub struct Network {
    name: String,
    /// Of the third part of the addresses.
    number: u8,
    hosts: u8,
}

/// Bytes that went through a network card, with the headers of all layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// In.
    pub received: u64,
    /// Out.
    pub sent: u64,
}

/// A TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSocket {
    /// Its own address.
    pub local: SocketAddr,
    /// Its peer's; `None` if it listens.
    pub remote: Option<SocketAddr>,
}

/// A host on a network.
#[derive(Clone, Debug)]
pub struct Host {
    /// The name of its namespace.
    pub namespace: String,
    /// Its address.
    pub address: Ipv4Addr,
}

fn run(line: &str) -> io::Result<()> {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

impl Network {
    /// A network with the test's own process on it, behind a link of `limit` (as `tc` writes it, `200mbit`).
    ///
    /// # Errors
    /// When this machine has no namespaces, no `tc`, or does not let us.
    pub fn new(limit: &str) -> io::Result<Self> {
        // Several tests of a program may have one at the same time.
        static NETWORKS: AtomicU32 = AtomicU32::new(0);
        let (pid, own) = (std::process::id(), NETWORKS.fetch_add(1, Ordering::Relaxed));
        // The name of a network card has 15 letters, and a process at most 7 digits. Programs that are started one after the other
        // have numbers that follow each other, so those of one program are apart.
        let number = (u64::from(pid) + 83 * u64::from(own)) % 250;
        let mut network = Self { name: format!("fb{pid}x{own}"), number: number as u8, hosts: 0 };
        let switch = network.switch();
        run(&format!("ip netns add {switch}"))?;
        run(&format!("ip -n {switch} link add br0 type bridge"))?;
        run(&format!("ip -n {switch} link set br0 up"))?;
        network.hosts = 1;
        let (name, address) = (network.name.clone(), network.address(1));
        run(&format!("ip link add {name}w type veth peer name p1 netns {switch}"))?;
        run(&format!("ip address add {address}/24 dev {name}w"))?;
        run(&format!("ip link set {name}w up"))?;
        network.plug("p1", limit)?;
        run(&limited(&format!("tc qdisc add dev {name}w"), limit))?;
        Ok(network)
    }

    /// Adds a host behind a link of `limit`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn host(&mut self, limit: &str) -> io::Result<Host> {
        self.hosts += 1;
        let (switch, number) = (self.switch(), self.hosts);
        let host = Host { namespace: format!("{}h{number}", self.name), address: self.address(number) };
        let Host { namespace, address } = &host;
        run(&format!("ip netns add {namespace}"))?;
        run(&format!("ip -n {namespace} link add eth0 type veth peer name p{number} netns {switch}"))?;
        run(&format!("ip -n {namespace} address add {address}/24 dev eth0"))?;
        run(&format!("ip -n {namespace} link set eth0 up"))?;
        run(&format!("ip -n {namespace} link set lo up"))?;
        self.plug(&format!("p{number}"), limit)?;
        run(&limited(&format!("tc -n {namespace} qdisc add dev eth0"), limit))?;
        Ok(host)
    }

    /// Gives a host a second network card, called `name`, on a switch of its own with all other second cards. Its address.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn second_card(&self, host: &Host, name: &str, limit: &str) -> io::Result<Ipv4Addr> {
        let (switch, namespace) = (self.switch(), &host.namespace);
        let [_, _, network, number] = host.address.octets();
        let address = Ipv4Addr::new(198, 19, network, number);
        if run(&format!("ip -n {switch} link show br1")).is_err() {
            run(&format!("ip -n {switch} link add br1 type bridge"))?;
            run(&format!("ip -n {switch} link set br1 up"))?;
        }
        let port = format!("q{number}");
        run(&format!("ip -n {namespace} link add {name} type veth peer name {port} netns {switch}"))?;
        run(&format!("ip -n {namespace} address add {address}/24 dev {name}"))?;
        run(&format!("ip -n {namespace} link set {name} up"))?;
        self.plug_into("br1", &port, limit)?;
        run(&limited(&format!("tc -n {namespace} qdisc add dev {name}"), limit))?;
        Ok(address)
    }

    /// The address of the test's own process.
    #[must_use]
    pub fn own(&self) -> Ipv4Addr {
        self.address(1)
    }

    fn plug(&self, port: &str, limit: &str) -> io::Result<()> {
        self.plug_into("br0", port, limit)
    }

    fn plug_into(&self, bridge: &str, port: &str, limit: &str) -> io::Result<()> {
        let switch = self.switch();
        run(&format!("ip -n {switch} link set {port} master {bridge}"))?;
        run(&format!("ip -n {switch} link set {port} up"))?;
        run(&limited(&format!("tc -n {switch} qdisc add dev {port}"), limit))
    }

    fn switch(&self) -> String {
        format!("{}s", self.name)
    }

    fn address(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, host)
    }
}

fn limited(command: &str, limit: &str) -> String {
    format!("{command} root tbf rate {limit} burst 256k latency 100ms")
}

impl Drop for Network {
    fn drop(&mut self) {
        // Links go with their namespaces, a while after them; ours at once, for its name is that of the next network's. What is not
        // there needs no removal.
        let _ = run(&format!("ip link del {}w", self.name));
        for host in 2..=self.hosts {
            let _ = run(&format!("ip netns del {}h{host}", self.name));
        }
        let _ = run(&format!("ip netns del {}", self.switch()));
    }
}

impl Host {
    /// The same command, run on this host. It keeps everything but the network.
    #[must_use]
    pub fn running(&self, command: &Command) -> Command {
        let mut enter = Command::new("nsenter");
        enter.arg(format!("--net=/run/netns/{}", self.namespace));
        wrapped(enter, command)
    }

    /// Runs `ip ARGUMENTS` for this host's network.
    ///
    /// # Errors
    /// When it fails.
    pub fn ip(&self, arguments: &str) -> io::Result<()> {
        run(&format!("ip -n {} {arguments}", self.namespace))
    }

    /// What went through a network card until now.
    ///
    /// # Errors
    /// When there is no such card.
    pub fn traffic(&self, card: &str) -> io::Result<Traffic> {
        let table = self.read("/proc/self/net/dev")?;
        let row = table.lines().find_map(|line| line.trim().strip_prefix(card)?.strip_prefix(':'));
        let row = row.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, card.to_owned()))?;
        let columns: Vec<u64> = row.split_whitespace().filter_map(|column| column.parse().ok()).collect();
        // Eight of what came in, then eight of what went out; bytes are the first of each.
        match columns[..] {
            [received, _, _, _, _, _, _, _, sent, ..] => Ok(Traffic { received, sent }),
            _ => Err(io::Error::other(table)),
        }
    }

    /// The TCP sockets of all programs on this host that listen or are connected.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn sockets(&self) -> io::Result<Vec<TcpSocket>> {
        let tables = self.read("/proc/self/net/tcp /proc/self/net/tcp6")?;
        let socket = |line: &str| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let [_, local, remote, state, ..] = columns[..] else { return None };
            let (local, remote) = (address_of(local)?, address_of(remote)?);
            // The kernel's numbers of ESTABLISHED and LISTEN.
            match state {
                "01" => Some(TcpSocket { local, remote: Some(remote) }),
                "0A" => Some(TcpSocket { local, remote: None }),
                _ => None,
            }
        };
        Ok(tables.lines().filter_map(socket).collect())
    }

    fn read(&self, files: &str) -> io::Result<String> {
        let mut cat = Command::new("cat");
        cat.args(files.split(' '));
        let output = self.running(&cat).output()?;
        // A kernel without IPv6 has no table of it.
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// An address as /proc shows it: words in the machine's order, `0100007F:0050`.
fn address_of(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let words = ip.as_bytes().chunks(8).map(|word| u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok());
    let bytes: Vec<u8> = words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let ip: IpAddr = match <[u8; 4]>::try_from(&bytes[..]) {
        Ok(four) => Ipv4Addr::from(four).into(),
        Err(_) => Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[..]).ok()?).to_canonical(),
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// Makes what listens at one address reachable at another. Ends when it is dropped; its connections end with their ends.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    listener: TcpListener,
    accepting: Option<std::thread::JoinHandle<()>>,
}

impl Relay {
    /// A relay at a free port of `host` to `target`.
    ///
    /// # Errors
    /// When it cannot listen there.
    pub fn start(host: Ipv4Addr, target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((host, 0))?;
        let address = listener.local_addr()?;
        let accepts = listener.try_clone()?;
        let accepting = std::thread::spawn(move || {
            while let Ok((near, _)) = accepts.accept() {
                // The target does not listen: closing says so.
                let Ok(far) = TcpStream::connect(target) else { continue };
                for (from, to) in [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))] {
                    let (Ok(mut from), Ok(mut to)) = (from, to) else { continue };
                    let _ = to.set_nodelay(true);
                    std::thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        Ok(Self { address, listener, accepting: Some(accepting) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It wakes the thread, also if the address is gone and nothing can connect any more.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn addresses_of_proc_are_read_in_the_machines_order() {
        let of = |text: &str| address_of(text).map(|address| address.to_string());
        assert_eq!(of("0100007F:0050").as_deref(), Some("127.0.0.1:80"));
        assert_eq!(of("0000000000000000FFFF00000100007F:752F").as_deref(), Some("127.0.0.1:29999"));
        assert_eq!(of("000000FD000000000000000001000000:0001").as_deref(), Some("[fd00::1]:1"));
        assert!(of("local_address").is_none() && of("0100007F").is_none());
    }
}
