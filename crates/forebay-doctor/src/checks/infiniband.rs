//! IP over InfiniBand: its two modes, and what each makes of the MTU.

use crate::checks::{Check, Section, Verdict};
use crate::facts::{Facts, Interface};

/// The most in datagram mode: a packet of 2048 less 4 bytes of header. Some fabrics allow 4092.
const DATAGRAM_MTU: u32 = 2044;
/// The most in connected mode.
const CONNECTED_MTU: u32 = 65_520;
/// From where on a larger one gains little.
const ENOUGH_MTU: u32 = 9000;

pub(crate) fn check(facts: &Facts) -> Vec<Check> {
    facts.interfaces.iter().filter(|interface| interface.is_ipoib).map(mode).collect()
}

fn mode(interface: &Interface) -> Check {
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
            let what = format!(
                "datagram mode, MTU {mtu}; more than {DATAGRAM_MTU} is refused with `RTNETLINK answers: Invalid argument`, \
                 which is no fault; TCP over {name} has less bandwidth than in connected mode, RDMA is not concerned"
            );
            check(Verdict::Info, what).remedy(format!(
                "on a fabric of your own: echo connected > /sys/class/net/{name}/mode; ip link set {name} mtu \
                 {CONNECTED_MTU}; refused in clouds, and by mlx5 unless ib_ipoib is loaded with ipoib_enhanced=0"
            ))
        }
        Some("datagram") => {
            check(Verdict::Warn, format!("datagram mode with MTU {mtu}, and {DATAGRAM_MTU} is possible"))
                .remedy(format!("ip link set {name} mtu {DATAGRAM_MTU}"))
        }
        _ => check(Verdict::Info, format!("its mode is unknown, MTU {mtu}")),
    }
}
