//! The sources, put together: precedence, what is refused, and what is said about it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use forebay_config::{Config, ConfigErrors, KEYS, Key, Loaded, Origin, Problem, RdmaFallback, Room, Sources};
use forebay_types::ByteSize;
use forebay_types::ServeMode;
use proptest::prelude::*;

fn file(text: &str) -> Sources {
    Sources::new().text("forebay.toml", text)
}

fn load(text: &str) -> Result<Loaded, ConfigErrors> {
    Config::load(&file(text))
}

fn messages(result: Result<Loaded, ConfigErrors>) -> Vec<String> {
    let errors = result.expect_err("should be refused");
    errors.problems().iter().map(Problem::to_string).collect()
}

#[test]
fn without_sources_everything_is_at_its_default() {
    let loaded = Config::load(&Sources::new()).unwrap();
    assert_eq!(loaded.config, Config::default());
    assert!(loaded.show().iter().all(|row| row.origin == Origin::Default));
    assert_eq!(loaded.show().len(), KEYS.len());
}

#[test]
fn flags_win_over_the_environment_over_the_file_over_the_default() {
    let text = "worker.memory.size = '2GiB'\nworker.rpc.port = 1\nworker.max_requests = 5\n";
    let sources = file(text)
        .environment([("FOREBAY_WORKER_RPC_PORT", "2"), ("FOREBAY_WORKER_MEMORY_SIZE", "3GiB"), ("HOME", "/root")])
        .flags(["worker.memory.size=4GiB", "worker.memory.size=5GiB"]);
    let loaded = Config::load(&sources).unwrap();
    assert_eq!(loaded.config.worker_memory_size, ByteSize::gib(5));
    assert_eq!(loaded.config.worker_rpc_port, 2);
    assert_eq!(loaded.config.worker_max_requests, 5);
    assert_eq!(loaded.origin("worker.memory.size").to_string(), "flag -o worker.memory.size=5GiB");
    assert_eq!(loaded.origin("worker.rpc.port").to_string(), "environment FOREBAY_WORKER_RPC_PORT");
    assert_eq!(loaded.origin("worker.max_requests").to_string(), "forebay.toml:3");
    assert_eq!(loaded.origin("coordinator.port"), Origin::Default);
    let row = loaded.show().into_iter().find(|row| row.key == "worker.memory.size").unwrap();
    assert_eq!(row.value.as_deref(), Some("\"5GiB\""));
}

#[test]
fn nested_tables_inline_tables_and_dotted_keys_mean_the_same() {
    let expected = load("worker.memory.size = \"2GiB\"\nworker.disk.serve = \"splice\"").unwrap().config;
    assert_eq!(expected.worker_disk_serve, ServeMode::Splice);
    for text in [
        "[worker.memory]\nsize = '2GiB'\n[worker.disk]\nserve = 'splice'",
        "[worker]\nmemory.size = '2GiB'\ndisk = { serve = 'splice' }",
        "[worker]\n[worker.memory]\nsize = 2147483648\n[worker.disk]\n'serve' = '''splice'''",
        "\u{feff}worker = { memory = { size = '2GiB' }, disk.serve = 'splice' }\n[client]\n",
    ] {
        assert_eq!(load(text).unwrap().config, expected, "{text}");
    }
}

#[test]
fn values_are_read_in_every_type() {
    let loaded = load(
        "mounts = ['/=s3://bucket/prefix', '/local=file:///data']\n\
         cluster.workers = 'node1:29999, w2=node2:29999'\n\
         worker.disks = ['/mnt/a:1TiB']\n\
         metadata.ttl = 0\n\
         origin.request_timeout = '1.5m'\n\
         client.prefetch.file_length_threshold = 4096\n\
         worker.memory.huge_pages = false\n\
         network.rdma.metadata.gid_index = -1\n\
         network.rdma.data.fallback = 'tcp-at-start'\n\
         posix.file_mode = '0600'\n\
         worker.weight = 7\n",
    )
    .unwrap();
    let config = &loaded.config;
    assert_eq!(config.mounts[1].origin, "file:///data");
    assert_eq!(config.cluster_workers[1].to_string(), "w2=node2:29999");
    assert_eq!(config.cluster_workers[1].name.as_deref(), Some("w2"));
    assert_eq!(config.worker_disks[0].room, Room::Size(ByteSize::gib(1024)));
    assert_eq!(config.metadata_ttl, Duration::ZERO);
    assert_eq!(config.origin_request_timeout, Duration::from_secs(90));
    assert_eq!(config.client_prefetch_file_length_threshold, ByteSize::kib(4));
    assert!(!config.worker_memory_huge_pages);
    assert_eq!(config.network_rdma_data_fallback, RdmaFallback::TcpAtStart);
    assert_eq!(config.posix_file_mode.bits(), 0o600);
    assert_eq!(config.worker_weight, Some(7));
}

#[test]
fn every_problem_is_reported_at_once_each_with_its_place() {
    let text =
        "[worker]\nmemory.sise = '2GiB'\nrpc.port = 70000\n\n[origin]\nrequest_timeout = 5\nallow_http = 'yes'\n";
    let sources = file(text)
        .environment([("FOREBAY_WORKER_MEMORY_SISE", "1GiB"), ("FOREBAY_LOG_LEVEL", "loud")])
        .flags(["wroker.rpc.port=1", "worker.rpc.port", "block.size=3MiB", "worker=1"]);
    assert_eq!(
        messages(Config::load(&sources)),
        [
            "forebay.toml:2: unknown key `worker.memory.sise`: did you mean `worker.memory.size`?",
            "unknown environment variable FOREBAY_WORKER_MEMORY_SISE: did you mean `FOREBAY_WORKER_MEMORY_SIZE`?",
            "flag -o wroker.rpc.port=1: unknown key `wroker.rpc.port`: did you mean `worker.rpc.port`?",
            "flag -o worker.rpc.port: write it as `-o key=value`, as in `-o worker.memory.size=4GiB`",
            "flag -o worker=1: `worker` is a section, not a key: its keys start with `worker.`, as in `worker.name`",
            "forebay.toml:3: bad value for `worker.rpc.port`: `70000` is not a whole number from 0 to 65535",
            "forebay.toml:6: bad value for `origin.request_timeout`: `5` is not a duration: write a number and a unit, \
         as in `500ms`, `30s`, `5m`, `1h`",
            "forebay.toml:7: bad value for `origin.allow_http`: `yes` is neither `true` nor `false`",
            "environment FOREBAY_LOG_LEVEL: bad value for `log.level`: `loud` is not one of error, warn, info, debug, trace",
            "a block's size must be a power of two: `block.size` is \"3MiB\" (flag -o block.size=3MiB)",
        ]
    );
}

#[test]
fn a_file_that_is_not_toml_is_refused_with_its_line() {
    let messages = messages(load("worker.rpc.port = 1\n\nworker.rpc.port = \n"));
    assert_eq!(messages.len(), 1);
    assert!(messages[0].starts_with("forebay.toml:3: not valid TOML: "), "{messages:?}");
    assert!(!messages[0].contains('\n'));
}

#[test]
fn a_key_given_twice_in_a_file_is_refused() {
    let messages = messages(load("worker.rpc.port = 1\n[worker.rpc]\nport = 2\n"));
    assert!(messages[0].starts_with("forebay.toml:"), "{messages:?}");
}

#[test]
fn a_wrong_shape_is_refused_in_words() {
    for (text, part) in [
        ("worker.memory = 5", "`worker.memory` is a section"),
        ("worker.memory.size.max = 5", "bad value for `worker.memory.size`: expected size, not a table"),
        ("[[worker]]\nmemory.size = 5", "`worker` is a section"),
        ("worker.memory.size = 1.5", "not a fraction"),
        ("worker.memory.size = ['1GiB']", "not a list"),
        ("worker.disks = [5]", "expected a list of PATH:SIZE"),
        ("worker.hostname = 5", "in quotes"),
        ("log.file = 1979-05-27", "not a date"),
        ("nonsense = 5", "unknown key `nonsense`"),
        ("[nonsense]", "unknown key `nonsense`"),
        ("\"a\\nb\" = 1", "unknown key `a\\nb`"),
    ] {
        let messages = messages(load(text));
        assert!(messages.len() == 1 && messages[0].contains(part), "{text}: {messages:?}");
    }
}

#[test]
fn settings_that_contradict_each_other_are_refused_with_both_names() {
    let name = "network.rdma.data.buffer_pool";
    let messages = messages(load(&format!("{name}.prewarm_size = '512MiB'")));
    assert_eq!(
        messages,
        [format!(
            "no more can be prewarmed than the pool has at start: `{name}.prewarm_size` is \"512MiB\" (forebay.toml:1), \
         `{name}.initial_size` is \"256MiB\" (default)"
        )]
    );
    for text in [
        "[network.rdma.data.buffer_pool]\nmax_size = '128MiB'\ninitial_size = '200MiB'",
        "worker.eviction.low_watermark = 95",
        "origin.min_get_size = '2MiB'\norigin.max_get_size = '1MiB'",
        "origin.connect_timeout = '1m'",
        "client.retry.initial_backoff = '1m'",
        "network.tcp.keepalive = '6s'",
        "worker.memory.size = '1MiB'",
        "client.memory.size = '1MiB'",
        "worker.disks = ['/a:1MiB']",
        "worker.disks = ['/a:1GiB', '/a:2GiB']",
        "mounts = ['/a=s3://b', '/a/=s3://c']",
        "cluster.workers = ['a:1', 'a:1']",
        "cluster.workers = ['w1=a:1', 'w2=a:1']",
        "[network.rdma]\nmetadata = { enabled = true, port = 1 }\ndata = { enabled = true, port = 1 }",
    ] {
        let errors = load(text).expect_err(text);
        assert!(matches!(errors.problems(), [Problem::Conflict { .. }]), "{text}: {errors}");
    }
}

#[test]
fn variables_of_kubernetes_and_those_read_elsewhere_are_let_be() {
    let sources = Sources::new().environment([
        ("FOREBAY_CONFIG", "/etc/forebay.toml"),
        ("FOREBAY_LOG", "debug"),
        ("FOREBAY_WORKER_SERVICE_HOST", "10.0.0.1"),
        ("FOREBAY_WORKER_RPC_PORT", "tcp://10.0.0.1:29999"),
        ("OTHER", "x"),
    ]);
    assert_eq!(Config::load(&sources).unwrap().config, Config::default());
}

#[test]
fn a_variable_that_is_not_utf8_is_refused() {
    let value = OsString::from_vec(vec![b'/', 0xff]);
    let messages = messages(Config::load(&Sources::new().environment([("FOREBAY_LOG_FILE", value)])));
    assert_eq!(messages, ["environment FOREBAY_LOG_FILE: bad value for `log.file`: it is not UTF-8"]);
}

#[test]
fn empty_text_takes_back_what_the_file_says() {
    let sources = file("log.file = '/var/log/f'\nmounts = ['/=s3://b']")
        .environment([("FOREBAY_LOG_FILE", "")])
        .flags(["mounts="]);
    let config = Config::load(&sources).unwrap().config;
    assert_eq!((config.log_file, config.mounts), (None, vec![]));
}

#[test]
fn a_file_is_checked_by_path_and_a_missing_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("forebay.toml");
    let missing = messages(Config::check(&path));
    assert!(missing[0].contains("forebay.toml: cannot be read: "), "{missing:?}");
    std::fs::write(&path, "worker.rpc.port = 7\n").unwrap();
    let loaded = Config::check(&path).unwrap();
    assert_eq!(loaded.origin("worker.rpc.port"), Origin::File { name: path.display().to_string(), line: 1 });
}

#[test]
fn what_is_shown_loads_again_as_the_same_configuration() {
    let sources = file("mounts = ['/=s3://b']\nworker.memory.size = 12345678\nworker.weight = 3\nlog.file = 'a\"b'");
    let loaded = Config::load(&sources).unwrap();
    let rows = loaded.show().into_iter().filter_map(|row| Some(format!("{} = {}\n", row.key, row.value?)));
    assert_eq!(load(&rows.collect::<String>()).unwrap().config, loaded.config);
}

#[test]
fn every_key_is_settable_by_its_variable_and_by_a_flag() {
    for key in KEYS {
        let literal = key.example.map(str::to_owned).or_else(|| key.default_toml()).unwrap();
        let text = literal.trim_matches('"').to_owned();
        let variable = Config::load(&Sources::new().environment([(key.variable(), text.clone())])).unwrap();
        let flag = Config::load(&Sources::new().flags([format!("{}={text}", key.name)])).unwrap();
        assert_eq!(variable.config, flag.config, "{}", key.name);
        assert_ne!(variable.origin(key.name), Origin::Default);
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_loader_panic(text in "\\PC*", key in 0..KEYS.len(), value in "\\PC{0,40}") {
        let key: &Key = &KEYS[key];
        let _ = load(&text);
        let _ = load(&format!("{} = {value}", key.name));
        let _ = load(&format!("{} = '{value}'\r\n[{text}]", key.name));
        let _ = Config::load(&Sources::new().flags([format!("{}={value}", key.name), text]));
    }

    #[test]
    fn a_problem_is_one_line_of_text(value in "[a-z\\n\\t=:/,0-9]{0,20}", key in 0..KEYS.len()) {
        let sources = Sources::new().environment([(KEYS[key].variable(), value)]);
        if let Err(errors) = Config::load(&sources) {
            prop_assert_eq!(errors.to_string().lines().count(), errors.problems().len());
        }
    }
}
