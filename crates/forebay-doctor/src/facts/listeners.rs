//! Which processes listen on a TCP port: what `ss -tlnp` shows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::root::Root;

/// Most processes whose descriptors are looked through.
const MAX_PROCESSES: usize = 10_000;

/// A socket that listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// The process that holds it; only root sees those of other users.
    pub owner: Option<Owner>,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

impl Listener {
    /// Those on one of `ports`.
    pub(crate) fn read_all(root: &Root, ports: &[u16]) -> Vec<Self> {
        let mut found = Vec::new();
        for text in sockets(root, ports) {
            found.extend(text.lines().filter_map(listening).filter(|socket| ports.contains(&socket.port)));
        }
        let owners = if found.is_empty() { Vec::new() } else { owners(root, &found) };
        let owner = |inode| owners.iter().find(|(held, _)| *held == inode).map(|(_, owner)| owner.clone());
        let listener = |socket: Socket| Self { address: socket.address, port: socket.port, owner: owner(socket.inode) };
        found.into_iter().map(listener).collect()
    }
}

/// The lines of the tables of TCP sockets that have one of `ports` at either end. Lines of other ports are private, and
/// left out.
pub(crate) fn sockets(root: &Root, ports: &[u16]) -> [String; 2] {
    let concerns = |line: &&str| {
        let mut ends = line.split_whitespace().skip(1).take(2).filter_map(end);
        ends.any(|(_, port)| ports.contains(&port))
    };
    let of_ports = |text: &str| text.lines().filter(concerns).collect::<Vec<_>>().join("\n");
    ["proc/net/tcp", "proc/net/tcp6"].map(|table| root.text_of(table, of_ports).unwrap_or_default())
}

#[derive(Debug, PartialEq, Eq)]
struct Socket {
    address: IpAddr,
    port: u16,
    inode: u64,
}

/// The socket of a line such as `0: 0100007F:752F 00000000:0000 0A 0:0 0:0 0 1000 0 4711 1 …`, if it listens.
fn listening(line: &str) -> Option<Socket> {
    const LISTEN: &str = "0A";
    let mut words = line.split_whitespace();
    let local = words.nth(1)?;
    (words.nth(1)? == LISTEN).then_some(())?;
    let inode = words.nth(5)?.parse().ok()?;
    let (address, port) = end(local)?;
    Some(Socket { address, port, inode })
}

/// The address and the port in `0100007F:752F`.
pub(crate) fn end(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    // Words of 32 bits, each in the machine's order of bytes.
    let word = |at: usize| Some(u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes());
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, chunk) in bytes.chunks_mut(4).enumerate() {
                chunk.copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some((address, u16::from_str_radix(port, 16).ok()?))
}

/// Which process holds each socket.
fn owners(root: &Root, sockets: &[Socket]) -> Vec<(u64, Owner)> {
    let mut owners = Vec::new();
    // Of all processes only those that are found are copied.
    let looked_through = root.unrecorded();
    let processes = looked_through.names("proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    for pid in processes.take(MAX_PROCESSES) {
        for descriptor in looked_through.names(format!("proc/{pid}/fd")) {
            let path = format!("proc/{pid}/fd/{descriptor}");
            let inode = looked_through.link(&path).and_then(|target| inode_of(&target));
            if let Some(socket) = sockets.iter().find(|socket| Some(socket.inode) == inode) {
                root.link(&path);
                let name = root.word(format!("proc/{pid}/comm")).unwrap_or_default();
                owners.push((socket.inode, Owner { pid, name }));
            }
        }
        if owners.len() >= sockets.len() {
            break;
        }
    }
    owners
}

/// `socket:[4711]`.
fn inode_of(target: &Path) -> Option<u64> {
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_listen_are_read_of_both_kinds_of_address() {
        let line = "  0: 0100007F:752F 00000000:0000 0A 00000000:00000000 00:00000000 00000000 1000 0 4711 1 0 100";
        let address = u32::from_ne_bytes([127, 0, 0, 1]);
        let line = line.replace("0100007F", &format!("{address:08X}"));
        let expected = Socket { address: Ipv4Addr::LOCALHOST.into(), port: 29999, inode: 4711 };
        assert_eq!(listening(&line), Some(expected));
        let any = "1: 00000000000000000000000000000000:EA5F 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 9 1";
        let expected = Socket { address: Ipv6Addr::UNSPECIFIED.into(), port: 59999, inode: 9 };
        assert_eq!(listening(any), Some(expected));
        assert_eq!(listening(&line.replace(" 0A ", " 01 ")), None);
        for bad in ["", "sl local_address rem_address st", "0: ZZ:1 0:0 0A 0 0 0 0 0 1", "0: ääää:1 0:0 0A 0 0 0 0 0 1"]
        {
            assert_eq!(listening(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_socket_is_found_among_the_descriptors_of_processes() {
        let folder = tempfile::tempdir().unwrap();
        let process = folder.path().join("proc/42/fd");
        std::fs::create_dir_all(&process).unwrap();
        std::fs::create_dir_all(folder.path().join("proc/net")).unwrap();
        std::fs::write(folder.path().join("proc/42/comm"), "nginx\n").unwrap();
        std::os::unix::fs::symlink("socket:[77]", process.join("3")).unwrap();
        std::os::unix::fs::symlink("socket:[77", process.join("4")).unwrap();
        std::fs::write(folder.path().join("proc/net/tcp"), "0: 00000000:752F 00000000:0000 0A 0:0 0:0 0 0 0 77 1")
            .unwrap();
        let found = Listener::read_all(&Root::new(folder.path()), &[29999]);
        let owner = Some(Owner { pid: 42, name: "nginx".into() });
        assert_eq!(found, [Listener { address: Ipv4Addr::UNSPECIFIED.into(), port: 29999, owner }]);
        assert!(Listener::read_all(&Root::new(folder.path()), &[1]).is_empty());
    }
}
