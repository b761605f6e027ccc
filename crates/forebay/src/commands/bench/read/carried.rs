//! What a mount's reads went over, from its own counters and its log.
//!
//! The counters say how many bytes came over UCX and over TCP: a mount whose UCX failed reads over TCP, and that must not be
//! taken for UCX. The log says which of its transports UCX chose: `rc_mlx5` is RDMA, `posix` shared memory, `tcp` neither.

use serde_json::Value;

/// What is in the log when a connection over UCX was made.
const CONNECTED: &str = "RDMA client connected";
/// What is in it when that was by verbs.
const BY_VERBS: &str = "RDMA client connected by verbs";
/// A part of the bytes smaller than this is an open file's header or a retry, and is not told.
const TOLD: f64 = 0.01;

/// What some mounts' reads went over.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ChannelInUse {
    ucx_bytes: u64,
    tcp_bytes: u64,
    /// Some were by verbs.
    has_verbs: bool,
    /// UCX's transports, in the order in which they were chosen.
    transports: Vec<String>,
}

impl ChannelInUse {
    /// Adds what a mount counts and has logged.
    pub(super) fn add(&mut self, counters: &Value, log: &str) {
        let bytes = |kind: &str| {
            let counted = counters.pointer(&format!("/rdma/paths/{kind}/bytes_received"));
            counted.and_then(Value::as_u64).unwrap_or_default()
        };
        self.ucx_bytes += bytes("rdma");
        self.tcp_bytes += bytes("tcp");
        self.has_verbs |= log.contains(BY_VERBS);
        for transport in log.lines().filter(|line| line.contains(CONNECTED)).flat_map(transports) {
            if !self.transports.contains(&transport) {
                self.transports.push(transport);
            }
        }
    }

    /// `tcp`, `verbs`, `ucx (posix, cma)`, `ucx (rc_mlx5) 60 %, tcp 40 %`.
    pub(super) fn text(&self) -> String {
        let ucx = match &self.transports[..] {
            [] if self.has_verbs => "verbs".to_owned(),
            [] => "ucx".to_owned(),
            transports => format!("ucx ({})", transports.join(", ")),
        };
        let all = self.ucx_bytes + self.tcp_bytes;
        let part = self.ucx_bytes as f64 / all.max(1) as f64;
        match part {
            // Without UCX nothing is counted by path.
            _ if all == 0 => "tcp".to_owned(),
            ..TOLD => "tcp".to_owned(),
            part if part > 1.0 - TOLD => ucx,
            part => format!("{ucx} {:.0} %, tcp {:.0} %", part * 100.0, (1.0 - part) * 100.0),
        }
    }
}

/// The transports in a line with `lanes="posix/memory, cma/memory"`.
fn transports(line: &str) -> Vec<String> {
    let Some((_, lanes)) = line.split_once("lanes=") else { return Vec::new() };
    let lanes = match lanes.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next().unwrap_or_default(),
        None => lanes.split(' ').next().unwrap_or_default(),
    };
    lanes.split(", ").filter_map(|lane| Some(lane.split('/').next()?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn counted(ucx: u64, tcp: u64) -> Value {
        json!({ "rdma": { "paths": { "rdma": { "bytes_received": ucx }, "tcp": { "bytes_received": tcp } } } })
    }

    const LOG: &str = "\
2026-01-01T00:00:00Z  INFO forebay_rdma: client started transport=\"RDMA\" cards=\"any\"
2026-01-01T00:00:00Z  INFO forebay_rdma::serving: RDMA client connected peer=\"127.0.0.1:1\" lanes=\"posix/memory, cma/memory\"
2026-01-01T00:00:00Z  INFO forebay_rdma::serving: RDMA client connected peer=\"127.0.0.1:1\" lanes=\"posix/memory, tcp/lo\"
";

    #[test]
    fn what_was_asked_of_ucx_and_went_over_tcp_is_told() {
        let text = |ucx, tcp, log| {
            let mut carried = ChannelInUse::default();
            carried.add(&counted(ucx, tcp), log);
            carried.text()
        };
        assert_eq!(text(1000, 2, LOG), "ucx (posix, cma, tcp)");
        assert_eq!(text(60, 40, LOG), "ucx (posix, cma, tcp) 60 %, tcp 40 %");
        assert_eq!(text(0, 40, ""), "tcp");
        assert_eq!(text(40, 0, ""), "ucx");
    }

    #[test]
    fn several_mounts_are_told_together_and_one_without_ucx_is_tcp() {
        let mut carried = ChannelInUse::default();
        carried.add(&json!({ "client": {} }), "");
        assert_eq!(carried.text(), "tcp");
        carried.add(&counted(500, 0), LOG);
        carried.add(&counted(500, 0), LOG);
        assert_eq!(carried.text(), "ucx (posix, cma, tcp)");
    }

    #[test]
    fn what_went_by_verbs_is_called_so() {
        let mut carried = ChannelInUse::default();
        carried.add(&counted(1000, 0), "INFO RDMA client connected by verbs peer=\"10.0.0.1:1\" card=\"rxe0\"");
        assert_eq!(carried.text(), "verbs");
    }
}
