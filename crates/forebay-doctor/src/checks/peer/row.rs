//! A row about a peer, and how bad it is when there is no RDMA to one.

use forebay_config::{Config, RdmaFallback};

use crate::checks::{Check, Section, Verdict};

pub(super) fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Peer, name, verdict, what)
}

/// How bad it is when there is no RDMA to a peer. Transports of the user's choice are asked for as cards are.
pub(super) fn without_rdma(config: &Config) -> Verdict {
    match config.network_rdma_data_fallback {
        _ if !config.network_rdma_data_enabled => Verdict::Info,
        RdmaFallback::TcpAtStart => Verdict::Warn,
        RdmaFallback::Auto | RdmaFallback::Never => Verdict::Fail,
    }
}
