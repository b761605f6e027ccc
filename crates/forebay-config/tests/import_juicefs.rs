//! A mount of JuiceFS becomes the configuration and the command that mean the same.

use forebay_config::import::{Import, juicefs_mount, known_options, known_properties};
use forebay_config::{Config, ConfigErrors, Sources, WriteMode};
use forebay_types::ServeMode;
use proptest::prelude::*;

const SERVER: &str = "juicefs mount $VOLUME_NAME /jfs-cache --cache-group=cg --rdma-network=ib0:ib2 \\\n\
                      --cache-dir=/data/cache* --cache-size=-1 --buffer-size=8192 --max-downloads=800\n";
const CLIENT: &str = "juicefs mount $VOLUME_NAME /jfs --cache-group=cg --no-sharing \\\n\
                      --rdma-network=ib0:ib1 --max-write=1M --cache-size=0 --max-downloads=600 --buffer-size=8192\n";

fn import(text: &str) -> Result<Import, ConfigErrors> {
    juicefs_mount("mount.sh", text)
}

fn imported(text: &str) -> (Config, Import) {
    let import = import(text).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    let sources = Sources::new().text("forebay.toml", &import.toml);
    let config = Config::load(&sources).unwrap_or_else(|errors| panic!("{errors}\n{}", import.toml)).config;
    (config, import)
}

fn interfaces(config: &Config) -> Vec<&str> {
    config.network_rdma_data_network.iter().map(forebay_config::Interface::as_str).collect()
}

#[test]
fn what_ends_up_in_a_comment_stays_in_it() {
    for odd in ["'/mnt/\u{6}jfs'", "'/mnt/\u{0}'", "'/mnt/jfs\nclient.origin.direct = true'", "'/mnt/\r'"] {
        let Ok(import) = import(&format!("juicefs mount redis://h {odd} --cache-size 1024\n")) else { continue };
        let loaded = Config::load(&Sources::new().text("forebay.toml", &import.toml));
        let config = loaded.unwrap_or_else(|errors| panic!("{errors}\n{}", import.toml)).config;
        assert!(!config.client_origin_direct, "{}", import.toml);
    }
}

#[test]
fn a_cache_node_becomes_a_mount_that_shares_its_disks() {
    let (config, import) = imported(SERVER);
    assert_eq!(config.cluster_cache_group.as_str(), "cg");
    assert!(config.network_rdma_data_enabled);
    assert_eq!(interfaces(&config), ["ib0", "ib2"]);
    assert!(import.toml.contains("worker.disks = [\"/data/cache*:90%\"]"), "{}", import.toml);
    assert_eq!(config.client_memory_size.as_u64(), 8 << 30);
    assert_eq!(config.network_rdma_data_buffer_pool_max_size.as_u64(), 8 << 30);
    assert_eq!(config.origin_max_concurrency, 800);
    let command = "forebay mount /jfs-cache --etcd URL --cache-group cg --config THIS_FILE";
    assert!(import.toml.contains(command), "{}", import.toml);
    assert_eq!(import.unknown, []);
}

#[test]
fn a_pure_client_becomes_a_mount_that_only_reads() {
    let (config, import) = imported(CLIENT);
    assert!(config.worker_disks.is_empty());
    assert_eq!((config.client_max_concurrency, config.origin_max_concurrency), (600, 256));
    assert_eq!(config.fuse_max_read.as_u64(), 1 << 20);
    assert_eq!(interfaces(&config), ["ib0", "ib1"]);
    let command = "forebay mount /jfs --etcd URL --cache-group cg --no-sharing --config THIS_FILE";
    assert!(import.toml.contains(command), "{}", import.toml);
}

#[test]
fn a_line_of_fstab_is_taken_over_like_a_command() {
    let line = "redis://127.0.0.1/1 /jfs juicefs _netdev,ro,allow_other,cache-dir=/a:/b,cache-size=20480,writeback,metrics=0.0.0.0:9567 0 0\n";
    let (config, import) = imported(line);
    assert_eq!(config.write_mode, WriteMode::None);
    assert_eq!(config.fuse_allow_other, Some(true));
    let disks: Vec<_> = config.worker_disks.iter().map(|disk| disk.path.to_string_lossy().into_owned()).collect();
    assert_eq!(disks, ["/a", "/b"]);
    assert!(import.toml.contains("/a:10GiB"), "{}", import.toml);
    assert_eq!((config.client_web_bind_host.as_str(), config.client_web_port), ("0.0.0.0", 9567));
    assert!(import.toml.contains("forebay up ORIGIN /jfs --config THIS_FILE"), "{}", import.toml);
    assert!(import.notes.iter().any(|note| note.text.contains("--writeback")), "{:?}", import.notes);
}

#[test]
fn memory_as_cache_serving_modes_and_the_retry_variable_are_known() {
    let text = "IORPC_RDMA_RETRY_DURATION=30s sudo juicefs mount vol /jfs --cache-group cg --cache-dir memory \
                --cache-size 4G --iorpc-mode pagecache --group-network eth0 --group-port 6000 --use-iorpc -d\n";
    let (config, import) = imported(text);
    assert_eq!(config.worker_memory_size.as_u64(), 4 << 30);
    assert_eq!(config.worker_disk_serve, ServeMode::PageCache);
    assert_eq!(config.network_rdma_data_retry_duration.as_secs(), 30);
    assert_eq!(config.network_group_network.map(|name| name.as_str().to_owned()).as_deref(), Some("eth0"));
    assert_eq!(config.worker_rpc_port, 6000);
    assert_eq!(import.unknown, []);
    let (_, disabled) = imported("juicefs mount vol /jfs --cache-group=cg --iorpc-mode=disable\n");
    assert!(disabled.toml.contains("--no-sharing"), "{}", disabled.toml);
}

#[test]
fn what_is_unknown_is_listed_and_what_is_wrong_is_an_error_with_its_line() {
    let (_, import) = imported("#!/bin/sh\njuicefs mount vol /jfs --cache-grop=cg --bucket=x\n");
    let unknown: Vec<_> =
        import.unknown.iter().map(|unknown| (unknown.line, unknown.name.as_str(), unknown.nearest)).collect();
    assert_eq!(unknown, [(2, "--cache-grop", Some("--cache-group")), (2, "--bucket", None)]);
    for (text, said) in [
        ("echo hello\n", "mount.sh:1: there is neither"),
        ("\njuicefs mount vol /jfs --cache-size=big --cache-dir=/a\n", "mount.sh:2: bad value for --cache-size: `big`"),
        ("juicefs mount vol /jfs --buffer-size\n", "mount.sh:1: --buffer-size has no value"),
        ("juicefs mount vol\n", "mount.sh:1: expected a volume and a mountpoint"),
        ("juicefs mount a /a\njuicefs mount b /b\n", "mount.sh:2: a second mount"),
        ("juicefs mount vol /jfs --metrics=9567\n", "mount.sh:1: bad value for --metrics"),
        ("juicefs mount vol /jfs --free-space-ratio=2\n", "mount.sh:1: bad value for --free-space-ratio"),
    ] {
        let problems = self::import(text).expect_err(text);
        assert!(problems.problems()[0].to_string().starts_with(said), "{problems}");
    }
}

#[test]
fn every_property_and_option_stands_in_the_guide_with_what_becomes_of_it() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/migrating.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    for (option, mapping) in [known_properties(), known_options()].concat() {
        let row = format!("| `{option}` | {mapping} |");
        assert!(guide.contains(&row), "the guide lacks:\n{row}");
    }
}

proptest! {
    #[test]
    fn any_text_is_imported_into_a_file_that_loads_or_refused(
        options in prop::collection::vec("--[a-z-]{2,14}(=[ -~]{0,12})?|-[dfo]|[ -~]{0,8}", 0..6)
    ) {
        let text = format!("juicefs mount vol /jfs {}\n", options.join(" "));
        if let Ok(import) = import(&text) {
            Config::load(&Sources::new().text("forebay.toml", &import.toml)).unwrap();
        }
    }
}
