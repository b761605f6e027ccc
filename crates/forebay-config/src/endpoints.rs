//! The settings that name something outside the process: hosts, interfaces, disks and origins.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;

use forebay_types::{ByteSize, FsPath};

use crate::value::{Scalar, quoted};

/// The longest name of a Linux network interface, in bytes (`IFNAMSIZ` less the NUL).
const MAX_INTERFACE_LEN: usize = 15;
/// The longest name of a worker, in bytes: that of an identity.
const MAX_WORKER_NAME_LEN: usize = 64;

/// A host name or an IP address, without a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host(String);

impl Host {
    /// All addresses of this machine.
    pub(crate) fn any() -> Self {
        Self("0.0.0.0".to_owned())
    }

    /// This machine, for itself.
    pub(crate) fn loopback() -> Self {
        Self("127.0.0.1".to_owned())
    }

    /// The name or address as written; an IPv6 address has no brackets.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Scalar for Host {
    fn form() -> String {
        "host name or address".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let is_name = !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_'));
        if is_name || text.parse::<Ipv6Addr>().is_ok() {
            return Ok(Self(text.to_owned()));
        }
        Err(format!("`{text}` is not a host name or an IP address (without a port)"))
    }

    fn toml(&self) -> String {
        quoted(&self.0)
    }
}

/// The name of a cluster: what both ends of a connection must agree on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterName(String);

/// The longest name that the handshake carries, in bytes.
const MAX_CLUSTER_LEN: usize = 48;

impl ClusterName {
    pub(crate) fn forebay() -> Self {
        Self("forebay".to_owned())
    }

    /// The name as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// As a process that is in it wrote it down.
impl TryFrom<String> for ClusterName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Scalar::parse(&name)
    }
}

impl Scalar for ClusterName {
    fn form() -> String {
        "name".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > MAX_CLUSTER_LEN || text.chars().any(char::is_control) {
            return Err(format!("`{text}` is not a cluster name: 1 to {MAX_CLUSTER_LEN} bytes of text on one line"));
        }
        Ok(Self(text.to_owned()))
    }

    fn toml(&self) -> String {
        quoted(&self.0)
    }
}

/// The name of a cache group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupName(String);

impl Default for GroupName {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl GroupName {
    /// The name as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Scalar for GroupName {
    fn form() -> String {
        "name".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > MAX_CLUSTER_LEN || text.chars().any(char::is_control) {
            return Err(format!(
                "`{text}` is not the name of a group: 1 to {MAX_CLUSTER_LEN} bytes of text on one line"
            ));
        }
        Ok(Self(text.to_owned()))
    }

    fn toml(&self) -> String {
        quoted(&self.0)
    }
}

/// Where a worker listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// The host.
    pub host: Host,
    /// The port, not 0.
    pub port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.0.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl Scalar for HostPort {
    fn form() -> String {
        "HOST:PORT".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let invalid = || format!("`{text}` is not HOST:PORT, as in `node1:29999` or `[fd00::1]:29999`");
        let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(invalid)?;
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if bracketed.is_none() && host.contains(':') {
            return Err(invalid());
        }
        let host = Host::parse(bracketed.unwrap_or(host)).map_err(|_| invalid())?;
        Ok(Self { host, port })
    }

    fn toml(&self) -> String {
        quoted(&self.to_string())
    }
}

/// A worker of a fixed list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListedWorker {
    /// Its name in the certificate that it shows, if the list has it: who listens there is it, or gets no request.
    pub name: Option<String>,
    /// Where it is reached.
    pub address: HostPort,
}

impl fmt::Display for ListedWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}=")?;
        }
        write!(f, "{}", self.address)
    }
}

impl Scalar for ListedWorker {
    fn form() -> String {
        "[NAME=]HOST:PORT".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        // Neither hosts nor ports nor names have `=` in them.
        let Some((name, address)) = text.split_once('=') else {
            return Ok(Self { name: None, address: HostPort::parse(text)? });
        };
        let invalid = |why: String| format!("`{text}` is not NAME=HOST:PORT, as in `node1=10.0.0.1:29999`: {why}");
        let name = name.trim();
        if !is_worker_name(name) {
            return Err(invalid(format!(
                "`{name}` is no name of a worker's certificate, which has 1 to {MAX_WORKER_NAME_LEN} letters, digits, \
                 `.`, `-` and `_`, and not only dots"
            )));
        }
        let address = HostPort::parse(address.trim()).map_err(invalid)?;
        Ok(Self { name: Some(name.to_owned()), address })
    }

    fn toml(&self) -> String {
        quoted(&self.to_string())
    }
}

/// Whether it can be the last part of an identity: `spiffe://DOMAIN/forebay/CLUSTER/worker/NAME`.
fn is_worker_name(name: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let is_only_dots = name.bytes().all(|byte| byte == b'.');
    !is_only_dots && name.len() <= MAX_WORKER_NAME_LEN && name.bytes().all(is_of_name)
}

/// The name of a network interface: `eth0`, `ib0`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Interface(String);

impl Interface {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Scalar for Interface {
    fn form() -> String {
        "network interface".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        // The kernel takes commas, but a comma here is a mistake: a list, where one name is wanted.
        let never = |c: char| matches!(c, '/' | ',' | ';') || c.is_whitespace() || c.is_control();
        let bad = text.is_empty() || text.contains(never);
        if bad || text.len() > MAX_INTERFACE_LEN {
            return Err(format!("{text:?} is not a network interface's name, as in `ib0`: `ip link` lists them"));
        }
        Ok(Self(text.to_owned()))
    }

    fn toml(&self) -> String {
        quoted(&self.0)
    }
}

/// Directories for cached blocks, and how much of each they may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The directory, or several: `*`, `?` and `[…]` stand for what is there, as in a shell.
    pub path: PathBuf,
    /// What slabs take in each.
    pub room: Room,
}

/// How much of a file system slabs take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// So many bytes, not 0.
    Size(ByteSize),
    /// So much of what nothing else uses, in percent: 1 to 99.
    OfFree(u8),
}

/// `PATH:free`: file systems need some room for what they note about files.
const FREE: u8 = 95;

impl Disk {
    /// Whether its path stands for what matches it.
    #[must_use]
    pub fn is_pattern(&self) -> bool {
        self.path.to_str().is_some_and(|path| path.contains(['*', '?', '[']))
    }
}

impl Scalar for Disk {
    fn form() -> String {
        "PATH:SIZE".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "`{text}` is not PATH:SIZE, as in `/mnt/nvme0/forebay:1TiB`, `/mnt/nvme*:free` or `/mnt/nvme0/forebay:80%`"
            )
        };
        let (path, room) = text.rsplit_once(':').ok_or_else(invalid)?;
        let path = PathBuf::parse(path).map_err(|_| invalid())?;
        let room = match room.trim() {
            "free" => Room::OfFree(FREE),
            share if share.ends_with('%') => {
                let percent =
                    share.trim_end_matches('%').trim().parse().ok().filter(|percent| (1..100).contains(percent));
                Room::OfFree(percent.ok_or_else(|| format!("{}: a share is 1% to 99%", invalid()))?)
            }
            size => Room::Size(size.parse().map_err(|error| format!("{}: {error}", invalid()))?),
        };
        if room == Room::Size(ByteSize::default()) {
            return Err(format!("{}: its size is 0", invalid()));
        }
        Ok(Self { path, room })
    }

    fn toml(&self) -> String {
        let room = match self.room {
            Room::Size(size) => size.to_string(),
            Room::OfFree(FREE) => "free".to_owned(),
            Room::OfFree(percent) => format!("{percent}%"),
        };
        quoted(&format!("{}:{room}", self.path.display()))
    }
}

/// A place in the namespace and the origin that shows there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where in the namespace.
    pub path: FsPath,
    /// The origin's URL, as written: `s3://bucket/prefix`, `file:///data`.
    pub origin: String,
}

impl Scalar for Mount {
    fn form() -> String {
        "PATH=ORIGIN".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let invalid = || format!("`{text}` is not PATH=ORIGIN with a URL, as in `/=s3://bucket/prefix`");
        // Both sides may hold `=`: the one that counts is the last before the URL's scheme.
        let scheme_end = text.find("://").ok_or_else(invalid)?;
        let equals = text[..scheme_end].rfind('=').ok_or_else(invalid)?;
        let (path, origin) = (text[..equals].trim(), text[equals + 1..].trim());
        // As in `/a /`: shown without its last slash, it would be read as `/a`.
        if path.strip_suffix('/').is_some_and(|path| path.ends_with(char::is_whitespace)) {
            return Err(format!("{}: its path ends in white space", invalid()));
        }
        let path = FsPath::new(path).map_err(|error| format!("{}: {error}", invalid()))?;
        let scheme = origin.split("://").next().unwrap_or_default();
        if scheme.is_empty() || !scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')) {
            return Err(invalid());
        }
        Ok(Self { path, origin: String::parse(origin)? })
    }

    fn toml(&self) -> String {
        quoted(&format!("{}={}", String::from_utf8_lossy(self.path.as_bytes()), self.origin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_and_port_reads_names_and_both_kinds_of_address() {
        for good in ["node1:29999", "10.0.0.1:1", "[fd00::1]:29999"] {
            assert_eq!(HostPort::parse(good).map(|parsed| parsed.to_string()), Ok(good.to_owned()));
        }
        for bad in ["node1", "node1:0", "node1:70000", ":1", "fd00::1:29999", "a b:1", "[node1:1"] {
            assert!(HostPort::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_worker_of_a_list_may_have_a_name_before_its_address() {
        for (text, name) in [
            ("node1:29999", None),
            ("[fd00::1]:29999", None),
            ("w1=node1:29999", Some("w1")),
            ("Rack_2.node-1=[fd00::1]:29999", Some("Rack_2.node-1")),
        ] {
            let worker = ListedWorker::parse(text).unwrap();
            assert_eq!((worker.name.as_deref(), worker.to_string().as_str()), (name, text));
            assert_eq!(worker.address.to_string(), text.rsplit('=').next().unwrap());
        }
        assert_eq!(ListedWorker::parse("w1 = node1:29999"), ListedWorker::parse("w1=node1:29999"));
        let long = format!("{}=node1:29999", "n".repeat(65));
        let id = "spiffe://d/forebay/c/worker/w1=node1:29999";
        for text in ["=node1:29999", "..=node1:29999", "w 1=node1:29999", "a=b=node1:29999", id, "é=node1:1", &long] {
            let refused = ListedWorker::parse(text).unwrap_err();
            assert!(refused.contains("is not NAME=HOST:PORT, as in `node1=10.0.0.1:29999`"), "{refused}");
        }
        let refused = ListedWorker::parse("w1=node1").unwrap_err();
        assert!(
            refused.contains("`w1=node1` is not NAME=HOST:PORT") && refused.contains("`node1` is not"),
            "{refused}"
        );
        assert!(ListedWorker::parse("node1").unwrap_err().contains("`node1` is not HOST:PORT"));
    }

    #[test]
    fn a_host_has_no_port_and_no_placeholder_in_it() {
        for good in ["localhost", "fd00::1", "10.1.2.3", "a-b.c_d"] {
            assert!(Host::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "node1:80", "<coordinator IP>", "a/b"] {
            assert!(Host::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_disk_is_a_path_and_a_size_even_when_the_path_has_a_colon() {
        let disk = Disk::parse("/mnt/a:b:1.5TiB").unwrap();
        assert_eq!((disk.path, disk.room), (PathBuf::from("/mnt/a:b"), Room::Size(ByteSize::gib(1536))));
        for bad in ["/mnt", ":1GiB", "/mnt:0", "/mnt:big", "/mnt:0%", "/mnt:100%", "/mnt:%", "/mnt:-1%", "/mnt:all"] {
            assert!(Disk::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_disk_may_be_a_pattern_and_take_a_share_of_what_is_free() {
        for (text, room, is_pattern) in [
            ("/mnt/d*:free", Room::OfFree(95), true),
            ("/mnt/d:80%", Room::OfFree(80), false),
            ("/mnt/d[12]:1GiB", Room::Size(ByteSize::gib(1)), true),
        ] {
            let disk = Disk::parse(text).unwrap();
            assert_eq!((disk.room, disk.is_pattern()), (room, is_pattern), "{text}");
            assert_eq!(Disk::toml(&disk), format!("\"{text}\""));
        }
    }

    #[test]
    fn a_mount_keeps_equals_signs_on_both_sides() {
        let mount = Mount::parse("/day=1=s3://bucket/hour=2?a=b://c").unwrap();
        assert_eq!(mount.path, FsPath::new("/day=1").unwrap());
        assert_eq!(mount.origin, "s3://bucket/hour=2?a=b://c");
        for bad in ["/", "/=bucket", "s3://bucket", "relative=s3://bucket", "/=://x", "/a//b=s3://c", "/a /=s3://c"] {
            assert!(Mount::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_interface_name_is_one_that_linux_takes() {
        assert!(Interface::parse("ib0").is_ok());
        for bad in ["", "a/b", "two words", "sixteen-letters0", "ib0,ib1", "ib0;ib1"] {
            assert!(Interface::parse(bad).is_err(), "{bad}");
        }
    }
}
