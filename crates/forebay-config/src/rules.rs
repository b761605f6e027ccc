//! What must hold between settings, and of one setting beyond its type and limits.

use std::collections::{BTreeSet, HashSet};
use std::hash::Hash;
use std::time::Duration;

use forebay_types::ByteSize;

use crate::endpoints::Room;
use crate::error::Problem;
use crate::key::Key;
use crate::keys::Config;
use crate::modes::RdmaProvider;
use crate::origin::Origin;

struct Rule {
    /// Said when the rule is broken.
    why: &'static str,
    /// The keys that it is about, all named in the error.
    keys: &'static [&'static str],
    holds: fn(&Config) -> bool,
}

/// Two of the shortest waits that a card can be told, which is 4.096 us.
const SHORTEST_ACK_TIMEOUT: Duration = Duration::from_micros(10);

const RULES: &[Rule] = &[
    Rule {
        why: "a block's size must be a power of two",
        keys: &["block.size"],
        holds: |config| config.block_size.as_u64().is_power_of_two(),
    },
    Rule {
        why: "the worker's memory must hold at least one block, or be 0 where it has disks: then it caches on them alone. A mount that \
              caches nothing is one without `--cache-group`, or with `--no-sharing`",
        keys: &["worker.memory.size", "worker.disks", "block.size"],
        holds: |config| {
            let on_disks_alone = config.worker_memory_size.as_u64() == 0 && !config.worker_disks.is_empty();
            on_disks_alone || config.worker_memory_size >= config.block_size
        },
    },
    Rule {
        why: "the client's memory must hold at least one block",
        keys: &["client.memory.size", "block.size"],
        holds: |config| config.client_memory_size >= config.block_size,
    },
    Rule {
        why: "the room for materialised files must hold at least one block, or be 0, which turns them off",
        keys: &["client.local.size", "block.size"],
        holds: |config| config.client_local_size.is_none_or(|size| size.as_u64() == 0 || size >= config.block_size),
    },
    Rule {
        why: "a file whose first open waits must fit into the room for materialised files",
        keys: &["client.local.first_open_size", "client.local.size"],
        holds: |config| {
            let is_enough = |size: ByteSize| size.as_u64() == 0 || config.client_local_first_open_size <= size;
            config.client_local_size.is_none_or(is_enough)
        },
    },
    Rule {
        why: "a disk must hold at least one block",
        keys: &["worker.disks", "block.size"],
        holds: |config| {
            config.worker_disks.iter().all(|disk| match disk.room {
                Room::Size(size) => size >= config.block_size,
                Room::OfFree(_) => true,
            })
        },
    },
    Rule {
        why: "each disk directory may be given once",
        keys: &["worker.disks"],
        holds: |config| all_differ(config.worker_disks.iter().map(|disk| &disk.path)),
    },
    Rule {
        why: "each mount path may be given once",
        keys: &["mounts"],
        holds: |config| all_differ(config.mounts.iter().map(|mount| &mount.path)),
    },
    Rule {
        why: "each worker may be given once",
        keys: &["cluster.workers"],
        holds: |config| all_differ(config.cluster_workers.iter().map(|worker| &worker.address)),
    },
    Rule {
        why: "the name of an environment variable has letters, digits and `_`, and no digit first",
        keys: &["cluster.mounts.environment"],
        holds: |config| config.cluster_mounts_environment.iter().all(|name| is_variable(name)),
    },
    Rule {
        why: "eviction must stop below where it starts",
        keys: &["worker.eviction.low_watermark", "worker.eviction.high_watermark"],
        holds: |config| config.worker_eviction_low_watermark < config.worker_eviction_high_watermark,
    },
    Rule {
        why: "the smallest fetch must not exceed the largest",
        keys: &["origin.min_get_size", "origin.max_get_size"],
        holds: |config| config.origin_min_get_size <= config.origin_max_get_size,
    },
    Rule {
        why: "connecting is part of a request, so its timeout must not be longer",
        keys: &["origin.connect_timeout", "origin.request_timeout"],
        holds: |config| config.origin_connect_timeout <= config.origin_request_timeout,
    },
    Rule {
        why: "the first back-off must not exceed the longest",
        keys: &["client.retry.initial_backoff", "client.retry.max_backoff"],
        holds: |config| config.client_retry_initial_backoff <= config.client_retry_max_backoff,
    },
    Rule {
        why: "a connection must be pinged before it counts as dead",
        keys: &["network.tcp.keepalive", "network.tcp.dead_after"],
        holds: |config| config.network_tcp_keepalive < config.network_tcp_dead_after,
    },
    Rule {
        why: "no more can be prewarmed than the pool has at start",
        keys: &["network.rdma.data.buffer_pool.prewarm_size", "network.rdma.data.buffer_pool.initial_size"],
        holds: |config| {
            config.network_rdma_data_buffer_pool_prewarm_size <= config.network_rdma_data_buffer_pool_initial_size
        },
    },
    Rule {
        why: "the pool must not start larger than it may become",
        keys: &["network.rdma.data.buffer_pool.initial_size", "network.rdma.data.buffer_pool.max_size"],
        holds: |config| {
            config.network_rdma_data_buffer_pool_initial_size <= config.network_rdma_data_buffer_pool_max_size
        },
    },
    Rule {
        why: "an RDMA device is written DEVICE or DEVICE:PORT, as in `mlx5_0:1`",
        keys: &["network.rdma.data.bind.device"],
        holds: |config| config.network_rdma_data_bind_device.iter().all(|device| is_device(device)),
    },
    Rule {
        why: "one RDMA device is written DEVICE or DEVICE:PORT, as in `mlx5_0`",
        keys: &["network.rdma.metadata.device"],
        holds: |config| config.network_rdma_metadata_device.iter().all(|device| is_device(device)),
    },
    Rule {
        why: "only UCX has these settings: verbs use the partition of the interface. Leave them out, or set \
              network.rdma.data.provider = \"ucx\"",
        keys: &["network.rdma.data.provider", "network.rdma.data.transports", "network.rdma.data.partition_key"],
        holds: |config| {
            let is_verbs = config.network_rdma_data_provider == RdmaProvider::Verbs;
            !(is_verbs && (config.needs_ucx_for_data() || config.needs_ucx_for_metadata()))
        },
    },
    Rule {
        why: "a packet of RDMA has 256, 512, 1024, 2048 or 4096 bytes",
        keys: &["network.rdma.data.mtu"],
        holds: |config| {
            config.network_rdma_data_mtu.is_none_or(|bytes| bytes.is_power_of_two() && (256..=4096).contains(&bytes))
        },
    },
    Rule {
        why: "UCX has no packets of 256 bytes",
        keys: &["network.rdma.data.mtu", "network.rdma.data.provider"],
        holds: |config| {
            config.network_rdma_data_mtu != Some(256) || config.network_rdma_data_provider == RdmaProvider::Verbs
        },
    },
    Rule {
        why: "a card must wait for an acknowledgement, 10 us at least",
        keys: &["network.rdma.data.ack_timeout"],
        holds: |config| config.network_rdma_data_ack_timeout.is_none_or(|wait| wait >= SHORTEST_ACK_TIMEOUT),
    },
    Rule {
        why: "a message must be given up before its operation is: the waits for all its attempts, one more than retry_count, which is 7 \
              if unset, must not exceed operation_timeout",
        keys: &[
            "network.rdma.data.ack_timeout",
            "network.rdma.data.retry_count",
            "network.rdma.data.operation_timeout",
        ],
        holds: |config| {
            config.rdma_tries_for().is_none_or(|longest| longest <= config.network_rdma_data_operation_timeout)
        },
    },
    Rule {
        why: "one-sided reads are by verbs, and this says UCX",
        keys: &["network.rdma.data.one_sided", "network.rdma.data.provider"],
        holds: |config| !config.network_rdma_data_one_sided || config.network_rdma_data_provider != RdmaProvider::Ucx,
    },
    Rule {
        why: "data and metadata need ports of their own",
        keys: &["network.rdma.data.port", "network.rdma.metadata.port"],
        holds: |config| {
            let both = config.network_rdma_data_enabled && config.network_rdma_metadata_enabled;
            let same = config.network_rdma_data_port == config.network_rdma_metadata_port;
            !(both && same) || config.network_rdma_data_port == 0
        },
    },
];

/// Whether a mount can name it: `env:NAME`.
fn is_variable(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.bytes().all(is_part) && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
}

fn is_device(text: &str) -> bool {
    let (name, port) = text.rsplit_once(':').unwrap_or((text, "1"));
    // Neither a list nor a path; the kernel has few other rules for names.
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    is_name && port.parse::<u8>().is_ok_and(|port| port > 0)
}

fn all_differ<T: Eq + Hash>(items: impl IntoIterator<Item = T>) -> bool {
    let mut seen = HashSet::new();
    items.into_iter().all(|item| seen.insert(item))
}

/// The rules that `config` breaks, whose values come from `origin_of` their key. A rule about a key whose value was
/// refused is left out: it would judge the default.
pub(crate) fn conflicts(config: &Config, origin_of: impl Fn(&str) -> Origin, refused: &BTreeSet<&str>) -> Vec<Problem> {
    let value = |name| Key::find(name).and_then(|key| key.value_toml(config)).unwrap_or_default();
    let setting = |name: &&'static str| (*name, value(*name), origin_of(name));
    RULES
        .iter()
        .filter(|rule| !rule.keys.iter().any(|key| refused.contains(key)))
        .filter(|rule| !(rule.holds)(config))
        .map(|rule| Problem::Conflict { why: rule.why, settings: rule.keys.iter().map(setting).collect() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn materialised_files_have_room_for_what_is_asked_of_them_or_are_off() {
        let broken = |size: Option<u64>, first_open| {
            let (client_local_size, client_local_first_open_size) =
                (size.map(ByteSize::mib), ByteSize::mib(first_open));
            let config = Config { client_local_size, client_local_first_open_size, ..Config::default() };
            RULES
                .iter()
                .filter(|rule| !(rule.holds)(&config))
                .flat_map(|rule| rule.keys[0].strip_prefix("client.local."))
                .collect()
        };
        let cases: [(Option<u64>, u64, &[&str]); 5] = [
            (None, 64, &[]),
            (Some(0), 64, &[]),
            (Some(64), 64, &[]),
            (Some(64), 65, &["first_open_size"]),
            (Some(1), 0, &["size"]),
        ];
        for (size, first_open, keys) in cases {
            let broken: Vec<&str> = broken(size, first_open);
            assert_eq!(broken, keys, "{size:?} MiB, {first_open} MiB");
        }
    }

    #[test]
    fn what_only_ucx_can_be_told_is_refused_with_verbs_alone_and_has_auto_take_ucx() {
        const VERBS: &str = "network.rdma.data.provider=verbs";
        let load =
            |flags: &[&str]| Config::load(&crate::Sources::new().flags(flags.iter().map(|flag| (*flag).to_owned())));
        for setting in ["network.rdma.data.transports=rc", "network.rdma.data.partition_key=0x8001"] {
            let (key, _) = setting.split_once('=').unwrap();
            let error = load(&[VERBS, setting]).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains("provider = \"ucx\""), "{error}");
            let config = load(&[setting]).unwrap().config;
            let needs = (config.needs_ucx_for_data(), config.needs_ucx_for_metadata());
            assert_eq!(needs, (true, key.ends_with("transports")), "{key}");
        }
        for setting in ["data.traffic_class=104", "data.gid_index=3", "data.service_level=1", "metadata.gid_index=1"] {
            let config = load(&[VERBS, &format!("network.rdma.{setting}")]).unwrap().config;
            assert!(!config.needs_ucx_for_data() && !config.needs_ucx_for_metadata(), "{setting}");
        }
    }

    #[test]
    fn packets_and_waits_of_cards_are_those_that_there_are() {
        let load = |settings: &[&str]| {
            let flags = settings.iter().map(|setting| format!("network.rdma.data.{setting}"));
            Config::load(&crate::Sources::new().flags(flags)).map_err(|error| error.to_string())
        };
        for good in [
            &["mtu=256", "provider=verbs"][..],
            &["mtu=4096"],
            &["ack_timeout=500ms"],
            &["ack_timeout=30s", "retry_count=1"],
            &["retry_count=0", "rnr_retry_count=7"],
        ] {
            assert!(load(good).is_ok(), "{good:?}: {:?}", load(good).err());
        }
        for (bad, key) in [
            (&["mtu=1500"][..], "network.rdma.data.mtu"),
            (&["mtu=8192"], "network.rdma.data.mtu"),
            (&["mtu=256", "provider=ucx"], "network.rdma.data.provider"),
            (&["ack_timeout=1us"], "network.rdma.data.ack_timeout"),
            (&["ack_timeout=10s"], "network.rdma.data.operation_timeout"),
            (&["ack_timeout=1s", "operation_timeout=7s"], "network.rdma.data.retry_count"),
            (&["retry_count=8"], "network.rdma.data.retry_count"),
            (&["rnr_retry_count=-2"], "network.rdma.data.rnr_retry_count"),
        ] {
            assert!(load(bad).is_err_and(|error| error.contains(key)), "{bad:?}");
        }
    }

    #[test]
    fn one_sided_reads_are_refused_with_ucx_alone() {
        let load = |provider: &str| {
            let flags = ["network.rdma.data.one_sided=true", provider];
            Config::load(&crate::Sources::new().flags(flags.map(str::to_owned)))
        };
        let error = load("network.rdma.data.provider=ucx").unwrap_err().to_string();
        assert!(error.contains("one-sided reads are by verbs"), "{error}");
        assert!(load("network.rdma.data.provider=auto").is_ok() && load("network.rdma.data.provider=verbs").is_ok());
    }

    #[test]
    fn variables_that_no_mount_can_name_are_refused() {
        let load =
            |names: &str| Config::load(&crate::Sources::new().flags([format!("cluster.mounts.environment={names}")]));
        assert!(load("MINIO_KEY,_x1").is_ok());
        for bad in ["A B", "1A", "A=B", "env:A", "A*"] {
            let error = load(bad).unwrap_err().to_string();
            assert!(error.contains("cluster.mounts.environment"), "{error}");
        }
    }

    #[test]
    fn the_defaults_break_no_rule_and_every_rule_names_keys_that_exist() {
        for rule in RULES {
            assert!((rule.holds)(&Config::default()), "{}", rule.why);
            for key in rule.keys {
                assert!(Key::find(key).is_some(), "{key}");
            }
        }
    }
}
