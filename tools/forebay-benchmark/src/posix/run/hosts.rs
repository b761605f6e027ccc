//! Other machines that read: each has a `fio --server`, to which ours, as `fio --client`, gives the job.
//!
//! Three things go wrong with that in practice. Ending servers by name ends the shells of other logins of the same
//! user, with the benchmark in them: here nothing is ever ended by name. `fio --daemonize` hangs: [`start_line`] and
//! `forebay bench posix --serve` do without. And a public address sends the packets around by a gateway: the addresses
//! are looked at, and one that is public is warned of.
//!
//! fio itself leaves a host out that it cannot reach, and succeeds. So each is asked first, and counted afterwards.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use super::error::RunError;

/// Where `fio --server` listens if it is not told.
pub const PORT: u16 = 8765;
/// How long a server may take to be connected to.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// What starts a server that listens at `address`, by hand.
#[must_use]
pub fn start_line(address: SocketAddr) -> String {
    format!("nohup fio --server={} </dev/null >/dev/null 2>&1 &", listening(address))
}

/// `ip:10.0.0.1,8765`: without an address fio would listen at all of them.
pub(super) fn listening(address: SocketAddr) -> String {
    format!("{}:{},{}", if address.is_ipv4() { "ip" } else { "ip6" }, address.ip(), address.port())
}

/// A machine that reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// As it was written.
    pub name: String,
    /// Where its server listens.
    pub address: SocketAddr,
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let literal = self.name.trim_start_matches('[').starts_with(&self.address.ip().to_string());
        if literal {
            write!(formatter, "{}", self.address)
        } else {
            write!(formatter, "{} ({})", self.name, self.address)
        }
    }
}

impl Host {
    /// The hosts of `HOST[:PORT],…`, or of a file with a line for each, as `@FILE`. Empty lines and those that start with `#`
    /// say nothing. fio's own form of a line, `HOST,PORT`, is understood too.
    ///
    /// # Errors
    /// When the file cannot be read, a name cannot be resolved, or a server is named twice.
    pub fn parse(list: &str) -> Result<Vec<Self>, RunError> {
        let written: Vec<String> = match list.strip_prefix('@') {
            Some(file) => {
                let path = std::path::Path::new(file);
                let text = std::fs::read_to_string(path).map_err(RunError::io("read", path))?;
                let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
                lines.map(|line| line.replace(',', ":")).collect()
            }
            None => list.split(',').map(str::trim).filter(|host| !host.is_empty()).map(str::to_owned).collect(),
        };
        let mut hosts: Vec<Self> = Vec::with_capacity(written.len());
        for name in written {
            let address = resolve(&name).map_err(|error| {
                RunError::Usage(format!("the client `{name}` is no address: {error}; write HOST or HOST:PORT"))
            })?;
            if hosts.iter().any(|host| host.address == address) {
                let what = format!("the client `{name}` is named twice; name each server once");
                return Err(RunError::Usage(what));
            }
            hosts.push(Self { name, address });
        }
        if hosts.is_empty() {
            return Err(RunError::Usage("--clients names nobody; name one host at least".to_owned()));
        }
        Ok(hosts)
    }

    /// Why its address may be the wrong one.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let public = is_public(self.address.ip());
        public.then(|| {
            format!(
                "{self} has a public address: its packets may go by a gateway that is slower than the network between the \
                 machines; name its private address"
            )
        })
    }

    /// Whether its server can be connected to.
    ///
    /// # Errors
    /// When not, with what to type there.
    pub fn check(&self) -> Result<(), RunError> {
        TcpStream::connect_timeout(&self.address, CONNECT_WITHIN).map(drop).map_err(|error| {
            RunError::Usage(format!(
                "no fio server answers at {self} ({error}); start one there: `forebay bench posix --serve {}`, or `{}`",
                self.address,
                start_line(self.address)
            ))
        })
    }

    /// Its line in the file that `fio --client` reads.
    pub(super) fn line(&self) -> String {
        format!("{},{}\n", self.address.ip(), self.address.port())
    }
}

/// The address of `HOST`, `HOST:PORT` or `[IPV6]:PORT`. Of several, the first of version 4: fio's servers listen on that.
fn resolve(name: &str) -> io::Result<SocketAddr> {
    let bare = name.parse::<IpAddr>().map(|address| vec![SocketAddr::new(address, PORT)]);
    let found = match bare {
        Ok(found) => found,
        Err(_) if name.rsplit_once(':').is_some() => name.to_socket_addrs()?.collect(),
        Err(_) => (name, PORT).to_socket_addrs()?.collect(),
    };
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| io::Error::other("it has no address"))
}

/// Whether packets to it may leave the site.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            // 100.64.0.0/10: shared by carriers, and by clouds for their own networks (RFC 6598).
            let [first, second, ..] = address.octets();
            let shared = first == 100 && (64..128).contains(&second);
            !(shared || address.is_private() || address.is_loopback() || address.is_link_local())
        }
        IpAddr::V6(address) => !(address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn hosts_are_named_in_a_list_or_in_a_file() {
        let hosts = Host::parse("10.0.0.1, 10.0.0.2:9000,[::1]:7").unwrap();
        let lines: String = hosts.iter().map(Host::line).collect();
        assert_eq!(lines, "10.0.0.1,8765\n10.0.0.2,9000\n::1,7\n");
        assert_eq!(hosts[1].to_string(), "10.0.0.2:9000");
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("hosts");
        std::fs::write(&file, "# the readers\n10.0.0.1\n\n10.0.0.2,9000\nlocalhost\n").unwrap();
        let hosts = Host::parse(&format!("@{}", file.display())).unwrap();
        assert_eq!(hosts.len(), 3);
        assert_eq!(hosts[1].address, "10.0.0.2:9000".parse().unwrap());
        assert_eq!(hosts[2].to_string(), "localhost (127.0.0.1:8765)");
        for bad in ["", " , ", "10.0.0.1,10.0.0.1:8765", "10.0.0.1:port", "@/no/such/file"] {
            assert!(Host::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_public_address_is_warned_of() {
        for private in
            ["10.1.1.1", "172.31.0.1", "192.168.1.1", "127.0.0.2", "169.254.1.1", "100.64.0.9", "fd00::1", "::1"]
        {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        for public in ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2001:4860::1"] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        let host = Host { name: "8.8.8.8".into(), address: "8.8.8.8:8765".parse().unwrap() };
        assert!(host.warning().unwrap().contains("name its private address"));
    }

    #[test]
    fn a_server_that_does_not_answer_is_told_with_how_to_start_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = Host { name: "127.0.0.1".into(), address: listener.local_addr().unwrap() };
        host.check().unwrap();
        // A port that is taken, where nothing listens.
        let taken = TcpStream::connect(host.address).unwrap();
        let host = Host { name: "127.0.0.1".into(), address: taken.local_addr().unwrap() };
        let told = host.check().unwrap_err().to_string();
        assert!(
            told.contains(&format!("; start one there: `forebay bench posix --serve {}`, or `nohup fio", host.address)),
            "{told}"
        );
        assert!(
            told.contains(&format!("`nohup fio --server=ip:127.0.0.1,{} </dev/null", host.address.port())),
            "{told}"
        );
        assert!(!told.contains("daemonize"));
    }
}
