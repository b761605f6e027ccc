//! Another host: the way to it, what answers there, and what was measured.

mod measured;
mod row;
mod way;
mod worker;

use forebay_config::Config;

use self::row::row;
use crate::checks::{Check, Verdict};
use crate::facts::{Facts, PeerPort, PeerProbe, Reached};
use crate::text::{listed, time};

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    facts.peers.iter().flat_map(|peer| of_peer(facts, config, peer)).collect()
}

fn of_peer(facts: &Facts, config: &Config, peer: &PeerProbe) -> Vec<Check> {
    if let Some(reason) = &peer.unknown {
        return vec![
            row("address", Verdict::Fail, reason)
                .about(&peer.name)
                .remedy("give an IP address, or correct the name in DNS or /etc/hosts: getent hosts NAME"),
        ];
    }
    let mut checks = way::check(facts, config, peer);
    checks.extend(reachable(peer));
    checks.extend(worker::check(facts, config, peer));
    checks.extend(peer.measured.iter().flat_map(|measured| measured::check(facts, config, peer, measured)));
    checks
}

fn reachable(peer: &PeerProbe) -> Vec<Check> {
    if peer.ports.is_empty() {
        return Vec::new();
    }
    let is = |reached: &Reached| peer.ports.iter().any(|port| port.reached == *reached);
    let (any_open, any_refused) = (is(&Reached::Open), is(&Reached::Refused));
    if any_open {
        return peer.ports.iter().map(|port| of_port(peer, port)).collect();
    }
    let tried = listed(peer.ports.iter().map(|port| format!("{} ({})", port.address, port.service)));
    let failed = peer.ports.iter().find_map(|port| match &port.reached {
        Reached::Failed(reason) => Some(reason.clone()),
        _ => None,
    });
    let start = "start `forebay bench rdma` there, or `forebay worker`, and run this again";
    let (what, remedy) = if any_refused {
        (format!("the host is there, and nobody listens at {tried}"), start.to_owned())
    } else {
        (
            format!("no answer at {tried}{}", failed.map(|reason| format!(": {reason}")).unwrap_or_default()),
            format!(
                "check that the host is on (ping), that it is the right address, and that firewalls let its ports through; \
                     {start}"
            ),
        )
    };
    vec![row("reachable", Verdict::Fail, what).about(&peer.name).remedy(remedy)]
}

/// A port of a peer that answers somewhere.
fn of_port(peer: &PeerProbe, port: &PeerPort) -> Check {
    let PeerPort { service, address, reached, took_us } = port;
    let check = match reached {
        Reached::Open => row("reachable", Verdict::Ok, format!("{address} answered in {}", time(took_us * 1000))),
        Reached::Refused => {
            row("reachable", Verdict::Info, format!("nobody listens at {address}")).remedy(match service.as_str() {
                "benchmark" => "to measure the way there, start `forebay bench rdma` on that host",
                _ => "if there is to be a worker, start `forebay worker` on that host; its port is worker.rpc.port",
            })
        }
        Reached::Silent => row("reachable", Verdict::Warn, format!("no answer at {address}, where other ports answer"))
            .remedy(format!("a firewall drops it: let TCP port {} through", address.port())),
        Reached::Failed(reason) => row("reachable", Verdict::Warn, format!("{address}: {reason}")).remedy(format!(
            "see why port {} cannot be connected to: nc -vz {} {}",
            address.port(),
            address.ip(),
            address.port()
        )),
    };
    check.about(format!("{} {service}", peer.name))
}
