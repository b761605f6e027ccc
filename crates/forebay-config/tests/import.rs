//! Every Alluxio property that the reference documents name is taken over, with its value.

use forebay_config::import::{Import, alluxio_properties};
use forebay_config::{Config, ConfigErrors, Sources};
use proptest::prelude::*;

fn import(text: &str) -> Result<Import, ConfigErrors> {
    alluxio_properties("alluxio-site.properties", text)
}

fn messages(text: &str) -> Vec<String> {
    import(text).expect_err("should be refused").problems().iter().map(ToString::to_string).collect()
}

fn load(toml: &str) -> Config {
    Config::load(&Sources::new().text("forebay.toml", toml)).unwrap_or_else(|errors| panic!("{errors}\n{toml}")).config
}

/// (property, an Alluxio value, the line of `forebay.toml` that means the same)
const KNOWN: &[(&str, &str, &str)] = &[
    ("alluxio.coordinator.hostname", "10.0.0.5", "coordinator.hostname = \"10.0.0.5\""),
    ("alluxio.fuse.open.read.status.cache.enabled", "true", "client.open_status_cache.enabled = true"),
    (
        "alluxio.network.rdma.data.bind.device",
        "mlx5_0:1,mlx5_1:1",
        "network.rdma.data.bind.device = [\"mlx5_0:1\", \"mlx5_1:1\"]",
    ),
    ("alluxio.network.rdma.data.bind.host", "10.0.1.10", "network.rdma.data.bind.host = \"10.0.1.10\""),
    (
        "alluxio.network.rdma.data.buffer.pool.initial.size",
        "512MB",
        "network.rdma.data.buffer_pool.initial_size = \"512MiB\"",
    ),
    ("alluxio.network.rdma.data.buffer.pool.max.size", "16GB", "network.rdma.data.buffer_pool.max_size = \"16GiB\""),
    (
        "alluxio.network.rdma.data.buffer.pool.prewarm.size",
        "128MB",
        "network.rdma.data.buffer_pool.prewarm_size = \"128MiB\"",
    ),
    ("alluxio.network.rdma.data.enabled", "true", "network.rdma.data.enabled = true"),
    ("alluxio.network.rdma.data.hostname", "node1-ib", "network.rdma.data.hostname = \"node1-ib\""),
    ("alluxio.network.rdma.data.operation.timeout.ms", "60s", "network.rdma.data.operation_timeout = \"1m\""),
    ("alluxio.network.rdma.data.port", "59998", "network.rdma.data.port = 59998"),
    ("alluxio.network.rdma.data.trace.enabled", "TRUE", "network.rdma.data.trace.enabled = true"),
    ("alluxio.network.rdma.data.trace.print.interval.ms", "20000", "network.rdma.data.trace.print_interval = \"20s\""),
    ("alluxio.network.rdma.metadata.device", "mlx5_0", "network.rdma.metadata.device = \"mlx5_0\""),
    ("alluxio.network.rdma.metadata.enabled", "true", "network.rdma.metadata.enabled = true"),
    ("alluxio.network.rdma.metadata.gid.index", "3", "network.rdma.metadata.gid_index = 3"),
    ("alluxio.network.rdma.metadata.ib.port", "2", "network.rdma.metadata.ib_port = 2"),
    ("alluxio.network.rdma.metadata.port", "29996", "network.rdma.metadata.port = 29996"),
    ("alluxio.user.file.writetype.default", "THROUGH", "write.mode = \"through\""),
    ("alluxio.user.network.data.bind.device", "ib0", "client.network.data.bind.device = \"ib0\""),
    (
        "alluxio.user.position.reader.streaming.async.prefetch.file.length.threshold",
        "10MB",
        "client.prefetch.file_length_threshold = \"10MiB\"",
    ),
    (
        "alluxio.user.position.reader.streaming.async.prefetch.max.part.number",
        "16",
        "client.prefetch.max_part_number = 16",
    ),
    ("alluxio.worker.data.bind.device", "ib0", "worker.data.bind.device = \"ib0\""),
    ("alluxio.worker.hostname", "node1", "worker.hostname = \"node1\""),
    ("alluxio.worker.rest.bind.device", "ib0", "worker.rest.bind.device = \"ib0\""),
    ("alluxio.worker.rpc.bind.device", "ib0", "worker.rpc.bind.device = \"ib0\""),
    ("alluxio.worker.rpc.port", "30000", "worker.rpc.port = 30000"),
    ("alluxio.worker.web.bind.device", "ib0", "worker.web.bind.device = \"ib0\""),
];

#[test]
fn every_known_property_becomes_the_line_that_means_the_same() {
    for (property, value, line) in KNOWN {
        let import = import(&format!("{property}={value}\n")).unwrap();
        let expected = format!("{line} # {property}");
        assert!(import.toml.lines().any(|line| line == expected), "{property}:\n{}", import.toml);
        assert_eq!(import.unknown, []);
        load(&import.toml);
    }
}

#[test]
fn all_properties_together_load() {
    let text: String = KNOWN.iter().map(|(property, value, _)| format!("{property}={value}\n")).collect();
    let toml = import(&text).unwrap().toml;
    assert_ne!(load(&toml), Config::default());
    for (_, _, line) in KNOWN {
        assert!(toml.contains(line), "{line}");
    }
}

#[test]
fn the_documented_defaults_of_alluxio_are_those_of_forebay_but_for_the_fallback() {
    let toml = import(
        "alluxio.network.rdma.data.enabled=false\n\
         alluxio.network.rdma.data.bind.host=0.0.0.0\n\
         alluxio.network.rdma.data.port=59999\n\
         alluxio.network.rdma.data.buffer.pool.initial.size=256MB\n\
         alluxio.network.rdma.data.buffer.pool.prewarm.size=256MB\n\
         alluxio.network.rdma.data.buffer.pool.max.size=8GB\n\
         alluxio.network.rdma.data.trace.enabled=false\n\
         alluxio.network.rdma.data.trace.print.interval.ms=20s\n\
         alluxio.network.rdma.metadata.enabled=false\n\
         alluxio.network.rdma.metadata.port=29995\n\
         alluxio.network.rdma.metadata.ib.port=1\n\
         alluxio.network.rdma.metadata.gid.index=-1\n\
         alluxio.user.position.reader.streaming.async.prefetch.file.length.threshold=0\n\
         alluxio.user.file.writetype.default=THROUGH\n",
    )
    .unwrap()
    .toml;
    assert_eq!(load(&toml), Config::default());
}

#[test]
fn the_most_parts_ahead_of_alluxio_are_the_most_of_forebay() {
    for most in [0, 1, 8, 16] {
        let line = format!("alluxio.user.position.reader.streaming.async.prefetch.max.part.number={most}\n");
        let config = load(&import(&line).unwrap().toml);
        assert_eq!((config.prefetch_parts(), config.prefetch_parts_far()), (most, most));
    }
}

#[test]
fn rdma_without_fallback_stays_without_and_is_remarked_on() {
    let import = import("# fast\nalluxio.network.rdma.data.enabled=true\n").unwrap();
    assert!(import.toml.contains("network.rdma.data.fallback = \"never\""));
    assert!(import.notes.iter().any(|note| note.line == 2 && note.text.contains("fallback")));
}

#[test]
fn unknown_properties_are_listed_with_line_and_nearest_name() {
    let import = import("a=1\n\nalluxio.network.rdma.data.enable=true\nweird\\nname=2\n").unwrap();
    let unknown: Vec<_> = import.unknown.iter().map(|unknown| (unknown.line, unknown.name.as_str())).collect();
    assert_eq!(unknown, [(1, "a"), (3, "alluxio.network.rdma.data.enable"), (4, "weird\nname")]);
    assert_eq!(import.unknown[1].nearest, Some("alluxio.network.rdma.data.enabled"));
    assert!(import.toml.contains("#   line 3: alluxio.network.rdma.data.enable\n#   line 4: weird\\nname\n"));
    assert_eq!(load(&import.toml), Config::default());
}

#[test]
fn every_bad_value_is_an_error_with_its_line() {
    let messages = messages(
        "alluxio.network.rdma.data.enabled=yes\n\
         alluxio.network.rdma.data.port=\\\n  99999\n\
         alluxio.network.rdma.data.buffer.pool.max.size=big\n\
         alluxio.network.rdma.data.trace.print.interval.ms=soon\n\
         alluxio.coordinator.hostname=<coordinator IP>\n\
         alluxio.worker.hostname=${alluxio.coordinator.hostname}\n\
         alluxio.user.file.writetype.default=SIDEWAYS\n",
    );
    let lines: Vec<&str> = messages.iter().map(|message| message.split(": ").next().unwrap()).collect();
    let expected: Vec<String> = [1, 2, 4, 5, 6, 7, 8].map(|n| format!("alluxio-site.properties:{n}")).to_vec();
    assert_eq!(lines, expected, "{messages:#?}");
    assert!(messages[0].contains("bad value for alluxio.network.rdma.data.enabled: `yes` is neither"), "{messages:?}");
}

#[test]
fn values_that_contradict_each_other_are_an_error() {
    let messages = messages("alluxio.network.rdma.data.buffer.pool.prewarm.size=1GB\n");
    assert_eq!(messages.len(), 1);
    assert_eq!(
        messages[0],
        "alluxio-site.properties:1: no more can be prewarmed than the pool has at start: \
         alluxio.network.rdma.data.buffer.pool.prewarm.size is 1GB (line 1), \
         alluxio.network.rdma.data.buffer.pool.initial.size is not set, which means \"256MiB\""
    );
}

#[test]
fn several_where_one_is_meant_are_refused_and_so_is_another_separator() {
    for (property, value) in [
        ("alluxio.worker.rpc.bind.device", "ib0,ib1"),
        ("alluxio.worker.data.bind.device", "ib0;ib1"),
        ("alluxio.network.rdma.data.hostname", "node1 node2"),
        ("alluxio.network.rdma.metadata.device", "mlx5_0,mlx5_1"),
        ("alluxio.network.rdma.data.bind.device", "mlx5_0:1;mlx5_1:1"),
        ("alluxio.network.rdma.data.bind.device", "mlx5_0:one"),
    ] {
        let messages = messages(&format!("# ours\n{property}={value}\n"));
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(messages[0].starts_with("alluxio-site.properties:2: "), "{messages:?}");
        assert!(messages[0].contains(property) && messages[0].contains(value), "{messages:?}");
    }
}

#[test]
fn a_negative_count_or_threshold_means_off() {
    let streaming = "alluxio.user.position.reader.streaming.async.prefetch";
    let import = import(&format!("{streaming}.max.part.number=-1\n{streaming}.file.length.threshold= - 1MB\n"));
    let config = load(&import.unwrap().toml);
    assert_eq!(config.client_prefetch_max_part_number, Some(0));
    assert_eq!(config.client_prefetch_file_length_threshold.as_u64(), 0);
}

#[test]
fn a_file_in_javas_own_encoding_is_read_and_it_is_said() {
    let import = alluxio_properties("a", b"# f\xfcr alle\nalluxio.worker.rpc.port=1\n").unwrap();
    assert_eq!(load(&import.toml).worker_rpc_port, 1);
    assert!(import.notes[0].line == 1 && import.notes[0].text.contains("ISO-8859-1"), "{:?}", import.notes);
}

#[test]
fn the_properties_of_the_first_study_over_rdma_are_known() {
    let import = import(
        "tachyon.user.remote.read.buffer.size.byte=1073741824\n\
         tachyon.worker.data.server.class=tachyon.worker.rdma.RDMADataServer\n\
         tachyon.user.remote.block.reader.class=tachyon.client.rdma.RDMARemoteBlockReader\n",
    )
    .unwrap();
    assert!(load(&import.toml).network_rdma_data_enabled);
    assert_eq!(import.unknown, []);
    assert!(import.notes.iter().any(|note| note.line == 1 && note.text.contains("needless")), "{:?}", import.notes);
    let tcp = "tachyon.worker.data.server.class=tachyon.worker.netty.NettyDataServer\n";
    assert!(!load(&alluxio_properties("a", tcp).unwrap().toml).network_rdma_data_enabled);
}

#[test]
fn a_malformed_escape_is_an_error_with_its_line() {
    assert_eq!(
        messages("a=1\nb=\\u00g0\n"),
        ["alluxio-site.properties:2: \\u is not followed by four hexadecimal digits"]
    );
}

#[test]
fn of_a_property_set_twice_the_later_counts_and_it_is_remarked_on() {
    let import = import("alluxio.worker.rpc.port=1\nalluxio.worker.rpc.port : 2\n").unwrap();
    assert_eq!(load(&import.toml).worker_rpc_port, 2);
    assert!(import.notes[0].text.contains("also set on line 1"));
}

#[test]
fn write_types_that_cache_become_through_with_a_remark() {
    let import = import("alluxio.user.file.writetype.default=CACHE_THROUGH").unwrap();
    assert!(import.toml.contains("write.mode = \"through\""));
    assert!(import.notes[0].text.contains("first read"));
}

#[test]
fn fuse_options_become_keys_or_remarks() {
    let options = "allow_other,max_background=128,max_read=131072,max_idle_threads=256,attr_timeout=600,odd";
    let import = import(&format!("alluxio.fuse.mount.options={options}")).unwrap();
    let config = load(&import.toml);
    assert_eq!(config.fuse_allow_other, Some(true));
    assert_eq!((config.fuse_max_background, config.fuse_max_read.as_u64()), (128, 131_072));
    assert_eq!(import.notes.len(), 3);
    assert!(import.notes[0].text.contains("fuse.threads"), "{:?}", import.notes);
}

#[test]
fn a_read_only_mount_stays_one_whatever_the_write_type_and_owners_become_keys() {
    let options = "alluxio.fuse.mount.options=ro,uid=1000,gid=100,umask=022";
    let write_type = "alluxio.user.file.writetype.default=THROUGH";
    for text in [format!("{options}\n{write_type}\n"), format!("{write_type}\n{options}\n")] {
        let import = import(&text).unwrap();
        let config = load(&import.toml);
        assert_eq!(config.write_mode, forebay_config::WriteMode::None);
        assert_eq!((config.posix_uid, config.posix_gid), (Some(1000), Some(100)));
        assert!(import.notes.iter().any(|note| note.text.contains("posix.file_mode")), "{:?}", import.notes);
    }
}

#[test]
fn an_empty_value_leaves_the_default_with_a_remark() {
    let import = import("alluxio.coordinator.hostname=\nalluxio.worker.rpc.port\n").unwrap();
    assert_eq!(load(&import.toml), Config::default());
    assert_eq!(import.notes.iter().map(|note| note.line).collect::<Vec<_>>(), [1, 2]);
}

proptest! {
    #[test]
    fn any_text_is_imported_into_a_file_that_loads_or_refused(text in "(?s).{0,200}") {
        if let Ok(import) = import(&text) {
            load(&import.toml);
        }
    }

    #[test]
    fn any_value_is_imported_into_a_file_that_loads_or_refused(
        known in prop::collection::vec((0..KNOWN.len(), "[ -~\\n\\\\]{0,20}|-?[0-9]{1,20}[kmgtsh]?[bB]?"), 1..8)
    ) {
        let text: String = known.iter().map(|(known, value)| format!("{}={value}\n", KNOWN[*known].0)).collect();
        if let Ok(import) = import(&text) {
            load(&import.toml);
        }
    }
}
