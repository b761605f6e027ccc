//! Connections that are open on a port: what `ss -tn` shows, counted by the address at this end.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::facts::listeners::{end, sockets};
use crate::root::Root;

/// Connections of one port over one address of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// The address at this end.
    pub address: IpAddr,
    /// The port: that of a worker, here or at the other end.
    pub port: u16,
    /// Whether the worker is the other end.
    pub is_outgoing: bool,
    /// How many there are.
    pub count: u32,
}

impl Connections {
    /// Those to and from one of `ports`; over loopback there are many, and they say nothing.
    pub(crate) fn read_all(root: &Root, ports: &[u16]) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        for text in sockets(root, ports) {
            for (local, remote) in text.lines().filter_map(established) {
                let is_outgoing = !ports.contains(&local.1);
                let port = if is_outgoing { remote.1 } else { local.1 };
                let address = local.0.to_canonical();
                if !ports.contains(&port) || address.is_loopback() {
                    continue;
                }
                let same =
                    |known: &&mut Self| (known.address, known.port, known.is_outgoing) == (address, port, is_outgoing);
                match found.iter_mut().find(same) {
                    Some(known) => known.count += 1,
                    None => found.push(Self { address, port, is_outgoing, count: 1 }),
                }
            }
        }
        found
    }
}

type End = (IpAddr, u16);

/// The ends of a connection in a line such as `0: 0100007F:752F 0100007F:9C40 01 …`, if it is open.
fn established(line: &str) -> Option<(End, End)> {
    const ESTABLISHED: &str = "01";
    let mut words = line.split_whitespace().skip(1);
    let (local, remote) = (words.next()?, words.next()?);
    (words.next()? == ESTABLISHED).then_some(())?;
    Some((end(local)?, end(remote)?))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn open_connections_are_counted_by_the_address_at_this_end() {
        let hex = |address: [u8; 4], port: u16| format!("{:08X}:{port:04X}", u32::from_ne_bytes(address));
        let line = |local: &str, remote: &str, state: &str| format!(" 0: {local} {remote} {state} 0:0 0:0 0 0 0 1 1\n");
        let (ib, other) = (hex([10, 1, 0, 5], 29999), hex([10, 1, 0, 9], 40000));
        let text = [
            "sl local_address rem_address st\n".to_owned(),
            line(&ib, &other, "01"),
            line(&ib, &hex([10, 1, 0, 8], 40001), "01"),
            line(&hex([192, 168, 0, 5], 50000), &hex([192, 168, 0, 9], 29999), "01"),
            line(&ib, "00000000:0000", "0A"),
            line(&hex([10, 1, 0, 5], 22), &other, "01"),
            line(&hex([127, 0, 0, 1], 29999), &hex([127, 0, 0, 1], 5), "01"),
        ]
        .concat();
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("proc/net")).unwrap();
        std::fs::write(folder.path().join("proc/net/tcp"), text).unwrap();
        let found = Connections::read_all(&Root::new(folder.path()), &[29999]);
        let of = |address: [u8; 4], is_outgoing, count| Connections {
            address: Ipv4Addr::from(address).into(),
            port: 29999,
            is_outgoing,
            count,
        };
        assert_eq!(found, [of([10, 1, 0, 5], false, 2), of([192, 168, 0, 5], true, 1)]);
    }
}
