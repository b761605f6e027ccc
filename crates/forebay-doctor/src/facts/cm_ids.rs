//! The listeners of rdma_cm: what `rdma resource show cm_id` shows. Its ports are none of TCP's, so that
//! `/proc/net/tcp` knows nothing of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::net::netlink::RDMA;
use serde::{Deserialize, Serialize};

use crate::facts::listeners::Owner;
use crate::netlink::{self, Question};
use crate::root::Root;

/// `RDMA_NL_NLDEV`, in the upper bits of a message's kind.
const DEVICES: u16 = 5 << 10;
/// `RDMA_NLDEV_CMD_GET` and `RDMA_NLDEV_CMD_RES_CM_ID_GET`.
const GET_DEVICES: u16 = DEVICES | 1;
const GET_CM_IDS: u16 = DEVICES | 11;
/// `RDMA_NLDEV_ATTR_…` of `rdma/rdma_netlink.h`.
const DEVICE_INDEX: u16 = 1;
const DEVICE_NAME: u16 = 2;
const STATE: u16 = 27;
const PID: u16 = 28;
const TABLE: u16 = 30;
const ENTRY: u16 = 31;
const SOURCE: u16 = 33;
/// `RDMA_CM_LISTEN`.
const LISTENING: u8 = 8;

/// A listener of rdma_cm on a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaListener {
    /// The device.
    pub device: String,
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// The process that holds it.
    pub owner: Option<Owner>,
}

impl RdmaListener {
    /// Those of this machine; none where the kernel has no RDMA, or does not tell.
    #[must_use]
    pub fn of_this_machine() -> Vec<Self> {
        let devices = netlink::ask(Some(RDMA), &Question::new(GET_DEVICES, &[]).all()).unwrap_or_default();
        let mut found = Vec::new();
        for device in &devices {
            let (Some(index), Some(name)) = (netlink::number(device, DEVICE_INDEX), netlink::text(device, DEVICE_NAME))
            else {
                continue;
            };
            let question = Question::new(GET_CM_IDS, &[]).with(DEVICE_INDEX, &index.to_ne_bytes()).all();
            for answer in netlink::ask(Some(RDMA), &question).unwrap_or_default() {
                found.extend(listening(&Root::default(), &name, &answer));
            }
        }
        found
    }
}

/// The listeners in an answer.
fn listening(root: &Root, device: &str, answer: &[u8]) -> Vec<RdmaListener> {
    let table = netlink::attribute(answer, TABLE).unwrap_or_default();
    let entries = netlink::attributes(table).filter(|(kind, _)| *kind == ENTRY);
    let listener = |(_, entry): (u16, &[u8])| {
        (netlink::attribute(entry, STATE)?.first() == Some(&LISTENING)).then_some(())?;
        let (address, port) = socket_address(netlink::attribute(entry, SOURCE)?)?;
        let owner = netlink::number(entry, PID)
            .map(|pid| Owner { pid, name: root.word(format!("proc/{pid}/comm")).unwrap_or_default() });
        Some(RdmaListener { device: device.to_owned(), address, port, owner })
    };
    entries.filter_map(listener).collect()
}

/// The address in a `sockaddr_storage`.
fn socket_address(bytes: &[u8]) -> Option<(IpAddr, u16)> {
    let [f0, f1, p0, p1] = *bytes.first_chunk::<4>()?;
    let port = u16::from_be_bytes([p0, p1]);
    let address = match i32::from(u16::from_ne_bytes([f0, f1])) {
        libc::AF_INET => Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?).into(),
        libc::AF_INET6 => Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?).into(),
        _ => return None,
    };
    Some((address, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn entry(state: u8, port: u16) -> Vec<u8> {
        let family = (libc::AF_INET as u16).to_ne_bytes();
        let address = [&family[..], &port.to_be_bytes(), &[10, 77, 0, 1], &[0; 120]].concat();
        let parts = [attribute(STATE, &[state]), attribute(PID, &77_u32.to_ne_bytes()), attribute(SOURCE, &address)];
        attribute(ENTRY, &parts.concat())
    }

    #[test]
    fn those_that_listen_are_told_from_connections_and_nonsense() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("proc/77")).unwrap();
        std::fs::write(folder.path().join("proc/77/comm"), "forebay\n").unwrap();
        let root = Root::new(folder.path());
        let entries = [entry(LISTENING, 59999), entry(5, 1), attribute(ENTRY, &[1, 2, 3])].concat();
        let answer = [attribute(DEVICE_NAME, b"rxe0\0"), attribute(TABLE | 0x8000, &entries)].concat();
        let owner = Some(Owner { pid: 77, name: "forebay".into() });
        let expected = RdmaListener { device: "rxe0".into(), address: [10, 77, 0, 1].into(), port: 59999, owner };
        assert_eq!(listening(&root, "rxe0", &answer), [expected]);
        for end in 0..answer.len() {
            listening(&root, "rxe0", &answer[..end]);
        }
        assert_eq!((socket_address(&[0; 3]), socket_address(&[9; 20])), (None, None));
    }

    #[test]
    fn a_machine_without_rdma_has_none() {
        // Whatever this machine has, it is asked without harm.
        let _ = RdmaListener::of_this_machine();
    }
}
