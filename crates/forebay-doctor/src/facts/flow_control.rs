//! How an Ethernet interface keeps packets from being lost: which priorities the switch may hold back (PFC), and which priority a
//! packet has by its DSCP. `dcb pfc show` and `dcb app show`, or `mlnx_qos`, show the same.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::netlink::{self, Question};
use crate::root::Root;

/// `RTM_GETDCB`, and the fixed part that asks for what IEEE 802.1Qaz has (`DCB_CMD_IEEE_GET` of `linux/dcbnl.h`).
const GET: u16 = 78;
const FIXED: [u8; 4] = [0, 21, 0, 0];
/// `DCB_ATTR_IFNAME` and `DCB_ATTR_IEEE`, and in that `DCB_ATTR_IEEE_PFC`, `DCB_ATTR_IEEE_APP_TABLE`, `DCB_ATTR_IEEE_APP`.
const NAME: u16 = 1;
const IEEE: u16 = 13;
const PFC: u16 = 2;
const TABLE: u16 = 3;
const ENTRY: u16 = 1;
/// `IEEE_8021QAZ_APP_SEL_DSCP`.
const BY_DSCP: u8 = 5;

/// How an interface keeps packets from being lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowControl {
    /// The priorities that may be held back, 0 to 7.
    pub lossless: BTreeSet<u8>,
    /// The priority of packets by their DSCP, where that is trusted; nothing where it is not.
    pub priority_of_dscp: BTreeMap<u8, u8>,
}

impl FlowControl {
    /// Those of all interfaces of this machine whose driver tells, each with the interface's name.
    #[must_use]
    pub fn of_this_machine() -> Vec<(String, Self)> {
        let ask = |name: String| {
            let question = Question::new(GET, &FIXED).with(NAME, format!("{name}\0").as_bytes());
            let answers = netlink::ask(None, &question).ok()?;
            Some((name, Self::read(answers.first()?)?))
        };
        Root::default().names("sys/class/net").into_iter().filter_map(ask).collect()
    }

    fn read(answer: &[u8]) -> Option<Self> {
        let ieee = netlink::attribute(answer.get(FIXED.len()..)?, IEEE)?;
        // `struct ieee_pfc`: how many priorities can be, then those that are.
        let enabled = *netlink::attribute(ieee, PFC)?.get(1)?;
        let table = netlink::attribute(ieee, TABLE).unwrap_or_default();
        // `struct dcb_app`.
        let of_dscp = |(kind, value): (u16, &[u8])| match *value.first_chunk::<4>()? {
            [BY_DSCP, priority, low, high] if kind == ENTRY => {
                Some((u8::try_from(u16::from_ne_bytes([low, high])).ok()?, priority))
            }
            _ => None,
        };
        Some(Self {
            lossless: (0..8).filter(|priority| enabled >> priority & 1 == 1).collect(),
            priority_of_dscp: netlink::attributes(table).filter_map(of_dscp).collect(),
        })
    }

    /// The priority that untagged packets with this DSCP have.
    #[must_use]
    pub fn priority(&self, dscp: u8) -> u8 {
        match self.priority_of_dscp.is_empty() {
            true => 0,
            // A DSCP that is not set goes by its upper three bits.
            false => self.priority_of_dscp.get(&dscp).copied().unwrap_or(dscp >> 3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_answer_is_read_and_what_is_cut_off_is_none() {
        let attribute = |kind: u16, value: &[u8]| {
            let mut bytes = [&(value.len() as u16 + 4).to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let pfc = attribute(PFC, &[&[8, 0b1000][..], &[0; 134]].concat());
        let entry =
            |dscp: u16, priority: u8| attribute(ENTRY, &[&[BY_DSCP, priority][..], &dscp.to_ne_bytes()].concat());
        let table = attribute(TABLE, &[entry(26, 3), entry(48, 6), attribute(ENTRY, &[1, 2, 0, 0])].concat());
        let answer = [&FIXED[..], &attribute(NAME, b"eth0\0"), &attribute(IEEE, &[pfc, table].concat())].concat();
        let read = FlowControl::read(&answer).unwrap();
        assert_eq!(read.lossless, [3].into());
        assert_eq!((read.priority(26), read.priority(48), read.priority(10)), (3, 6, 1));
        assert_eq!(FlowControl { priority_of_dscp: BTreeMap::new(), ..read }.priority(26), 0, "DSCP is not trusted");
        for end in 0..answer.len() {
            let _ = FlowControl::read(&answer[..end]);
        }
        assert_eq!(FlowControl::read(&FIXED), None);
    }

    #[test]
    fn asking_does_no_harm_whatever_this_machine_has() {
        let _ = FlowControl::of_this_machine();
    }
}
