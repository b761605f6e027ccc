//! The worker of a peer: does it let us in, does it offer RDMA, and can its cards be connected to.

use forebay_config::{Config, RdmaFallback};

use super::row::{row, without_rdma};
use crate::checks::{Check, Verdict, provider};
use crate::facts::{Facts, PeerListener, PeerProbe, PeerWorker};
use crate::text::time;

/// Longer than a request across a data centre takes by far.
const SLOW_PING_US: u64 = 10_000;

pub(super) fn check(facts: &Facts, config: &Config, peer: &PeerProbe) -> Vec<Check> {
    let Some(worker) = &peer.worker else { return Vec::new() };
    let mut checks = vec![let_in(worker).about(&peer.name)];
    if worker.error.is_none() {
        checks.extend(worker.ping_us.map(|ping| latency(ping).about(format!("{} worker", peer.name))));
        checks.push(offer(facts, config, worker).about(&peer.name));
        checks.extend(worker.listeners.iter().filter_map(|listener| connect(config, peer, listener)));
    }
    checks
}

fn let_in(worker: &PeerWorker) -> Check {
    let Some(error) = &worker.error else { return row("worker", Verdict::Ok, "it lets this machine in") };
    row("worker", Verdict::Fail, error).remedy(
        "the worker's log says more; cluster.name and block.size must be the same on all machines, and the release of \
         Forebay: forebay version; an older one may not know what is asked",
    )
}

fn latency(ping_us: u64) -> Check {
    let what = format!("a question and its answer took {}", time(ping_us * 1000));
    match ping_us > SLOW_PING_US {
        false => row("latency", Verdict::Ok, what),
        true => row("latency", Verdict::Warn, what).remedy(
            "the cache's traffic takes a slow network: check network.group_network, client.network.data.bind.device, \
             --rdma-network, and worker.hostname there, by which it is found; or the worker is overloaded: forebay stats",
        ),
    }
}

fn offer(facts: &Facts, config: &Config, worker: &PeerWorker) -> Check {
    let verdict = match config.network_rdma_data_fallback {
        RdmaFallback::Never => without_rdma(config),
        // Reads go over TCP.
        _ => without_rdma(config).min(Verdict::Warn),
    };
    let (takes_verbs, takes_ucx) = (provider::takes_verbs(config), provider::takes_ucx(config));
    let by_verbs = worker.listeners.iter().filter(|listener| listener.is_verbs).count();
    let by_ucx = worker.listeners.len() - by_verbs;
    let has_verbs = provider::has_verbs(facts, config) || by_ucx == 0 || !takes_ucx;
    if takes_verbs && by_verbs > 0 && has_verbs {
        return row("worker-rdma", Verdict::Ok, format!("verbs, {by_verbs} card(s)"));
    }
    match (worker.ucx.as_ref().filter(|_| by_ucx > 0), &facts.ucx.version) {
        (Some(theirs), Some(ours)) if takes_ucx && release(ours) != release(theirs) => {
            row("worker-rdma", verdict, format!("the worker runs UCX {theirs}, and this is {ours}: RDMA is not used"))
                .remedy("install the same major.minor of UCX on every node")
        }
        (Some(theirs), _) if takes_ucx => row("worker-rdma", Verdict::Ok, format!("UCX {theirs}, {by_ucx} card(s)")),
        _ if worker.listeners.is_empty() => row("worker-rdma", verdict, "the worker offers no RDMA").remedy(
            "start it with --rdma-network, or network.rdma.data.enabled = true; forebay doctor there says whether its cards \
             work (rdma link: state ACTIVE, physical_state LINK_UP), its log says `RDMA server listening`",
        ),
        _ => {
            let (theirs, ours) = if by_verbs > 0 { ("verbs", "UCX") } else { ("UCX", "verbs") };
            row("worker-rdma", verdict, format!("the worker offers {theirs} alone, and {ours} alone is taken here"))
                .remedy("set network.rdma.data.provider = \"auto\" on both sides")
        }
    }
}

/// The part of UCX's version that must be the same.
fn release(version: &str) -> Option<&str> {
    version.rsplit_once('.').map(|(release, _)| release)
}

fn connect(config: &Config, peer: &PeerProbe, listener: &PeerListener) -> Option<Check> {
    let subject = format!("{} {}", peer.name, listener.address);
    let by = if listener.is_verbs { " by verbs" } else { "" };
    let way = format!("{} here, {} there{by}", listener.from, listener.card);
    Some(match (&listener.error, listener.connect_us) {
        (Some(error), _) => row("rdma-connect", without_rdma(config).max(Verdict::Warn), format!("{error} ({way})"))
            .about(subject)
            .remedy(format!(
                "rping -s -a ADDRESS -C 3 there and rping -c -a ADDRESS -C 3 here tell whether the cards can talk at all; name \
                 cards of one fabric on both sides with --rdma-network; let {} through firewalls (RoCE: UDP port 4791, too)",
                listener.address
            )),
        (None, Some(connect)) => {
            let ping = listener.ping_us.map(|ping| format!(", a question took {}", time(ping * 1000))).unwrap_or_default();
            row("rdma-connect", Verdict::Ok, format!("connected in {}{ping} ({way})", time(connect * 1000))).about(subject)
        }
        (None, None) => return None,
    })
}
