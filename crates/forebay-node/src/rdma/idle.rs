//! Settings of RDMA that were made and that act on nothing. They are logged at start, since a user who sets a key
//! expects something of it.

use forebay_config::{KEYS, Loaded, Origin};
use tracing::warn;

/// Keys of data that metadata goes by, too.
const SHARED: [&str; 10] = [
    "network.rdma.data.provider",
    "network.rdma.data.transports",
    "network.rdma.data.connect_timeout",
    "network.rdma.data.operation_timeout",
    "network.rdma.data.retry_duration",
    "network.rdma.data.spin",
    "network.rdma.data.receive_buffers",
    "network.rdma.data.trace.enabled",
    "network.rdma.data.trace.print_interval",
    "network.rdma.data.enabled",
];

/// Logs the settings that act on nothing in this process, which uses no RDMA at all if `is_alone`, as `forebay up` is.
pub fn say_which_are_idle(loaded: &Loaded, is_alone: bool) {
    let (idle, why) = idle(loaded, is_alone);
    if !idle.is_empty() {
        warn!(keys = idle.join(", "), "settings of RDMA that act on nothing: {why}");
    }
}

fn idle(loaded: &Loaded, is_alone: bool) -> (Vec<&'static str>, &'static str) {
    let config = &loaded.config;
    let (data, metadata) = (config.network_rdma_data_enabled, config.network_rdma_metadata_enabled);
    let of_data = |key: &str| key.starts_with("network.rdma.data.");
    let of_metadata = |key: &str| key.starts_with("network.rdma.metadata.");
    let is_switch = |key: &str| key == "network.rdma.data.enabled" || key == "network.rdma.metadata.enabled";
    let is_idle = |key: &str| match (data, metadata) {
        _ if is_alone => (of_data(key) || of_metadata(key)) && !(is_switch(key) && !data && !metadata),
        (false, false) => (of_data(key) || of_metadata(key)) && !is_switch(key),
        (false, true) => of_data(key) && !SHARED.contains(&key),
        (true, false) => of_metadata(key) && !is_switch(key),
        (true, true) => false,
    };
    let is_set = |key: &&str| loaded.origin(key) != Origin::Default;
    let why = match (data, metadata) {
        _ if is_alone => {
            "worker and mount are one process, which nobody reads from over the network; use `forebay worker` and `forebay mount`"
        }
        (false, false) => "set network.rdma.data.enabled = true, or give --rdma-network",
        (false, true) => {
            "set network.rdma.data.enabled = true, or give --rdma-network; only metadata goes over RDMA now"
        }
        _ => "set network.rdma.metadata.enabled = true",
    };
    (KEYS.iter().map(|key| key.name).filter(|key| is_idle(key)).filter(is_set).collect(), why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_config::{Config, Sources};

    fn idle_of(settings: &[&str], is_alone: bool) -> Vec<&'static str> {
        let sources = Sources::new().flags(settings.iter().map(|setting| (*setting).to_owned()));
        idle(&Config::load(&sources).unwrap(), is_alone).0
    }

    #[test]
    fn settings_that_act_on_nothing_are_those_of_what_is_not_enabled() {
        const DATA: &str = "network.rdma.data.enabled=true";
        const METADATA: &str = "network.rdma.metadata.enabled=true";
        const NEVER: &str = "network.rdma.data.fallback=never";
        const DEVICE: &str = "network.rdma.metadata.device=mlx5_0";
        let none: [&str; 0] = [];
        assert_eq!(idle_of(&[], false), none);
        assert_eq!(idle_of(&[NEVER, DEVICE], false), ["network.rdma.data.fallback", "network.rdma.metadata.device"]);
        assert_eq!(idle_of(&[DATA, NEVER, DEVICE], false), ["network.rdma.metadata.device"]);
        let timeout = "network.rdma.data.connect_timeout=3s";
        assert_eq!(idle_of(&[METADATA, NEVER, DEVICE, timeout], false), ["network.rdma.data.fallback"]);
        assert_eq!(idle_of(&[DATA, METADATA, NEVER, DEVICE], false), none);
        assert_eq!(idle_of(&["network.rdma.data.enabled=false"], false), none);
        assert_eq!(idle_of(&["network.rdma.data.enabled=false"], true), none);
    }

    #[test]
    fn a_worker_and_mount_in_one_process_use_no_rdma() {
        let settings = ["network.rdma.data.enabled=true", "network.rdma.data.network=ib0"];
        assert_eq!(idle_of(&settings, true), ["network.rdma.data.enabled", "network.rdma.data.network"]);
        assert!(idle_of(&settings, false).is_empty());
    }
}
