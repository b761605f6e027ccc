//! IP over InfiniBand: its two modes, and what each makes of the MTU.

use crate::checks::{Check, Section, Verdict};
use crate::facts::{Facts, Interface};

/// Of a packet, IPoIB's header.
const HEADER: u32 = 4;
/// The packets of the multicast group that all of IPoIB in a partition are in decide: 2048 bytes unless the subnet manager made it
/// with larger ones, of 4096.
const DATAGRAM_MTU: u32 = 2048 - HEADER;
const LARGE_DATAGRAM_MTU: u32 = 4096 - HEADER;
/// The most in connected mode.
const CONNECTED_MTU: u32 = 65_520;
/// From where on a larger one gains little.
const ENOUGH_MTU: u32 = 9000;

pub(crate) fn check(facts: &Facts) -> Vec<Check> {
    facts.interfaces.iter().filter(|interface| interface.is_ipoib).map(|interface| mode(facts, interface)).collect()
}

fn mode(facts: &Facts, interface: &Interface) -> Check {
    let name = &interface.name;
    let mtu = interface.mtu.unwrap_or(0);
    let check = |verdict, what: String| Check::new(Section::Rdma, "ipoib-mtu", verdict, what).about(name);
    match interface.ipoib_mode.as_deref() {
        Some("connected") if mtu < ENOUGH_MTU => check(
            Verdict::Warn,
            format!("connected mode with MTU {mtu}, and up to {CONNECTED_MTU} is possible"),
        )
        .remedy(format!(
            "ip link set {name} mtu {CONNECTED_MTU}; keep it in the network's settings, or it is lost at the next boot"
        )),
        Some("connected") => check(Verdict::Ok, format!("connected mode, MTU {mtu}")),
        Some("datagram") if mtu >= DATAGRAM_MTU => {
            let may_be_large = facts.rdma.port_of_interface(name).and_then(|port| port.active_mtu) == Some(4096);
            let most = match mtu {
                LARGE_DATAGRAM_MTU.. => "the most that this mode has",
                _ if may_be_large => {
                    "the most with the packets of 2048 bytes that its partition was made with; the port takes 4096"
                }
                _ => "the most with packets of 2048 bytes",
            };
            let larger = match mtu {
                LARGE_DATAGRAM_MTU.. => String::new(),
                _ => format!("have the subnet manager make the partition with mtu=5 for {LARGE_DATAGRAM_MTU}; or, "),
            };
            let what = format!(
                "datagram mode, MTU {mtu}, {most}; a larger one is refused with `RTNETLINK answers: Invalid argument`, \
                 which is no fault; TCP over {name} has less bandwidth than in connected mode, RDMA is not concerned"
            );
            check(Verdict::Info, what).remedy(format!(
                "{larger}on a fabric of your own: echo connected > /sys/class/net/{name}/mode; ip link set {name} mtu \
                 {CONNECTED_MTU}; refused in clouds, and by mlx5 unless ib_ipoib is loaded with ipoib_enhanced=0"
            ))
        }
        Some("datagram") => {
            check(Verdict::Warn, format!("datagram mode with MTU {mtu}, and {DATAGRAM_MTU} is possible everywhere"))
                .remedy(format!("ip link set {name} mtu {DATAGRAM_MTU}"))
        }
        _ => check(Verdict::Info, format!("its mode is unknown, MTU {mtu}")),
    }
}
