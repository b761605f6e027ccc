//! UCX's settings, as a caller wants them.

/// One setting.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// Without `UCX_`.
    pub(crate) key: String,
    pub(crate) value: String,
    /// Whether a UCX that does not know it is an error.
    pub(crate) needed: bool,
}

/// The settings of a context. What is not set here comes from the environment (`UCX_TLS`, …) and UCX's defaults.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) settings: Vec<Setting>,
    pub(crate) event_driven: bool,
    pub(crate) one_sided: bool,
}

/// What was needed for the cache's data path, with what it is for. Each yields to the user's environment, and is left out
/// where the version of UCX does not know it.
const TUNED: [(&str, &str); 14] = [
    // Data goes by the device that the connection was made on. With "y" a second round of messages adds other devices and shared memory.
    // Each card has a context, and connections, of its own. One end with it and one without hear nothing of each other.
    ("CM_USE_ALL_DEVICES", "n"),
    // By default UCX's TCP waits in connect(2), and with it the thread. A peer that closes in that moment then has an endpoint free
    // itself that its owner still has (`uct_tcp_ep_set_failed`, seen of 1.20 to 1.22): the process ends by SIGSEGV later (ADR 0008).
    ("TCP_CONN_NB", "y"),
    // A listener restarts on its port while old connections linger in TIME_WAIT.
    ("CM_REUSEADDR", "y"),
    // Larger segments: 1 MiB over loopback 1312 -> 4845 MiB/s.
    ("TCP_TX_SEG_SIZE", "256K"),
    ("TCP_RX_SEG_SIZE", "512K"),
    // A partition is seen in 4 s; by default in 27 s, or never.
    ("TCP_KEEPIDLE", "2s"),
    ("TCP_KEEPINTVL", "1s"),
    ("TCP_KEEPCNT", "3"),
    ("TCP_USER_TIMEOUT", "4s"),
    ("KEEPALIVE_INTERVAL", "1s"),
    // Shared memory under error handling by peer, which every endpoint uses.
    ("MM_ERROR_HANDLING", "y"),
    ("CMA_MEMORY_INVALIDATE", "y"),
    // By default a peer's segment is the file at /proc/PID/fd/N when it is first written to. By then the peer may have closed that
    // worker, and have another file at that number: too short a one is SIGBUS, any other one is written over.
    ("POSIX_USE_PROC_LINK", "n"),
    // All memory is the host's: no need to ask what kind a buffer is.
    ("MEMTYPE_CACHE", "n"),
];

/// UCX's names of shared memory between processes. No connection is made over it: it comes in with the second round of messages.
const SHARED_MEMORY: [&str; 8] = ["sm", "shm", "mm", "posix", "sysv", "xpmem", "cma", "knem"];

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// UCX's own defaults.
    #[must_use]
    pub fn new() -> Self {
        Self { settings: Vec::new(), event_driven: true, one_sided: false }
    }

    /// The settings that the cache's data path was measured with.
    #[must_use]
    pub fn tuned() -> Self {
        TUNED.iter().fold(Self::new(), |options, (key, value)| options.prefer(key, value))
    }

    /// Sets `key` (`TLS` or `UCX_TLS`). A UCX that does not know it refuses the context.
    #[must_use]
    pub fn set(self, key: &str, value: &str) -> Self {
        self.with(key, value, true)
    }

    /// Sets `key` unless the user's environment has it, or this version of UCX does not know it.
    #[must_use]
    pub fn prefer(self, key: &str, value: &str) -> Self {
        self.with(key, value, false)
    }

    /// Uses these devices only: `mlx5_0:1`, `eth0`, …
    #[must_use]
    pub fn devices<'a>(self, devices: impl IntoIterator<Item = &'a str>) -> Self {
        let devices: Vec<_> = devices.into_iter().collect();
        self.set("NET_DEVICES", &devices.join(","))
    }

    /// Uses these transports only: `rc`, `tcp`, `posix`, … A listener's connection manager needs its own among them. Both ends
    /// of a connection name shared memory, or neither does.
    #[must_use]
    pub fn transports<'a>(self, transports: impl IntoIterator<Item = &'a str>) -> Self {
        let transports: Vec<_> = transports.into_iter().collect();
        let options = self.set("TLS", &transports.join(","));
        let has_shared_memory = transports.iter().any(|transport| SHARED_MEMORY.contains(transport));
        if has_shared_memory { options.prefer("CM_USE_ALL_DEVICES", "y") } else { options }
    }

    /// For transports that signal no events, which is EFA: workers are polled, and cost a core while they are busy.
    #[must_use]
    pub fn polled(mut self) -> Self {
        self.event_driven = false;
        self
    }

    /// For [`crate::RemoteKey`]'s operations. Where no card carries them out, UCX does by software, which takes every address
    /// that a peer names: of such a context's process peers can read and write *all* memory.
    #[must_use]
    pub fn one_sided(mut self) -> Self {
        self.one_sided = true;
        self
    }

    fn with(mut self, key: &str, value: &str, needed: bool) -> Self {
        let key = key.strip_prefix("UCX_").unwrap_or(key).to_owned();
        self.settings.retain(|setting| setting.key != key);
        self.settings.push(Setting { key, value: value.to_owned(), needed });
        self
    }

    pub(crate) fn value(&self, key: &str) -> Option<&str> {
        self.settings.iter().find(|setting| setting.key == key).map(|setting| setting.value.as_str())
    }
}

/// Tables of options whose prefix UCX before 1.17 takes in the environment only. To a context their members are given
/// without, and so to every transport that has one of the name.
const PREFIXES: [&str; 12] = [
    "RC_VERBS_",
    "RC_MLX5_",
    "DC_MLX5_",
    "UD_VERBS_",
    "UD_MLX5_",
    "RDMA_CM_",
    "TCP_CM_",
    "TCP_",
    "CMA_",
    "POSIX_",
    "SYSV_",
    "SELF_",
];

/// The name by which a UCX before 1.17 knows `key` in a context's configuration.
pub(crate) fn name_before_1_17(key: &str) -> &str {
    PREFIXES.iter().find_map(|prefix| key.strip_prefix(prefix)).unwrap_or(key)
}

/// Whether `known`, all options there are, has `key`. A group's prefix stands for all its members: `RC_TX_QUEUE_LEN` sets
/// `RC_VERBS_TX_QUEUE_LEN` and `RC_MLX5_TX_QUEUE_LEN`.
pub(crate) fn is_known(known: &[String], key: &str) -> bool {
    let group = key.split_once('_');
    known.iter().any(|other| {
        other == key
            || group.is_some_and(|(prefix, rest)| {
                other
                    .strip_prefix(prefix)
                    .and_then(|tail| tail.strip_suffix(rest))
                    .is_some_and(|middle| middle.len() > 1 && middle.starts_with('_') && middle.ends_with('_'))
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_an_option_counts_with_or_without_its_prefix() {
        let options = Options::tuned().set("UCX_TLS", "tcp").transports(["tcp", "posix"]);
        assert_eq!(options.value("TLS"), Some("tcp,posix"));
        assert_eq!(options.settings.iter().filter(|setting| setting.key == "TLS").count(), 1);
    }

    #[test]
    fn an_old_ucx_gets_an_option_of_a_transport_without_the_transports_name() {
        let names = ["TCP_TX_SEG_SIZE", "TCP_CM_REUSEADDR", "CM_REUSEADDR", "TLS"].map(name_before_1_17);
        assert_eq!(names, ["TX_SEG_SIZE", "REUSEADDR", "CM_REUSEADDR", "TLS"]);
    }

    #[test]
    fn an_option_of_a_group_is_known_and_a_misspelt_one_is_not() {
        let known = ["TLS", "RC_VERBS_TX_QUEUE_LEN", "TCP_TX_SEG_SIZE"].map(str::to_owned);
        assert!(is_known(&known, "TLS") && is_known(&known, "RC_TX_QUEUE_LEN"));
        assert!(!is_known(&known, "TCP_TX_SEGSIZE") && !is_known(&known, "TL") && !is_known(&known, "TCP_SIZE_SEG"));
    }
}
