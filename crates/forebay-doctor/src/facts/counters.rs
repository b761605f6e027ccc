//! What a port counts: bytes, and what went wrong on its link.

use std::collections::BTreeMap;

use crate::root::Root;

/// Counters of faults, below `ports/N`. Those that a healthy fabric counts too (congestion, dropped management packets) are
/// left out.
const FAULTS: [&str; 15] = [
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/link_downed",
    "counters/port_rcv_errors",
    "counters/port_rcv_remote_physical_errors",
    "counters/port_xmit_discards",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "hw_counters/out_of_sequence",
    "hw_counters/packet_seq_err",
    "hw_counters/implied_nak_seq_err",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/rnr_nak_retry_err",
    "hw_counters/retry_exceeded_err",
    "hw_counters/rcvd_seq_err",
];
/// Bytes of a port are counted in words.
const WORD: u64 = 4;

/// Those of the faults of the port in `folder` that are not zero, by name.
pub(crate) fn faults(root: &Root, folder: &str) -> BTreeMap<String, u64> {
    let fault = |path: &str| {
        let count = root.number(format!("{folder}/{path}")).filter(|count| *count > 0)?;
        Some((path.rsplit('/').next().unwrap_or(path).to_owned(), count))
    };
    FAULTS.into_iter().filter_map(fault).collect()
}

/// The bytes that the port in `folder` has received, and sent; `None` where it does not count, or has counted none.
pub(crate) fn bytes(root: &Root, folder: &str) -> [Option<u64>; 2] {
    ["port_rcv_data", "port_xmit_data"].map(|name| {
        let words: u64 = root.number(format!("{folder}/counters/{name}"))?;
        words.checked_mul(WORD).filter(|bytes| *bytes > 0)
    })
}
