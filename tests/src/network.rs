//! Hosts in network namespaces of their own, joined by a switch, each behind a link of limited speed.
//!
//! The test's own process is one of the hosts: it keeps its namespace and has an address in the network, where a [`Relay`] makes
//! what listens on loopback reachable. Addresses are of 198.18.0.0/15, which is set aside for such tests (RFC 2544).

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A switch and the hosts on it. Dropping it takes them away.
#[derive(Debug)]
pub struct Network {
    name: String,
    /// Of the third part of the addresses.
    number: u8,
    hosts: u8,
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
        let pid = std::process::id();
        let mut network = Self { name: format!("fb{pid}"), number: (pid % 250) as u8, hosts: 0 };
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

    /// The address of the test's own process.
    #[must_use]
    pub fn own(&self) -> Ipv4Addr {
        self.address(1)
    }

    fn plug(&self, port: &str, limit: &str) -> io::Result<()> {
        let switch = self.switch();
        run(&format!("ip -n {switch} link set {port} master br0"))?;
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
        // Links go with their namespaces. What is not there needs no removal.
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
        let mut wrapped = Command::new("nsenter");
        wrapped.arg(format!("--net=/run/netns/{}", self.namespace)).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        wrapped
    }
}

/// Makes what listens at one address reachable at another. Ends when it is dropped; its connections end with their ends.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
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
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let accepting = std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                // Nobody there: closing says so.
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
        Ok(Self { address, stop, accepting: Some(accepting) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The last connection, which wakes it.
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}
