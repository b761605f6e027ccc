//! Workers and mounts with the UCX transport in real processes: over its sockets, for the cards are not in every machine
//! (`make test-rdma` has two). What a reader notices, and what an operator is told.

use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use forebay_e2e::reading::{self, read_while};
use forebay_e2e::{Bucket, Finished, Setup, Tree, finish, forebay, has_ucx};
use serde_json::Value;

/// So that bytes are sent: a mount would look at a worker's memory on its host.
const NO_WINDOW: &str = "network.shared_memory=off";
/// UCX between two processes of one machine: over sockets, as what workers and mounts use is of cards alone (ADR 0008).
const SOCKETS: [&str; 4] = [
    NO_WINDOW,
    "network.rdma.data.enabled=true",
    "network.rdma.data.transports=tcp,self",
    "network.rdma.data.buffer_pool.max_size=1GiB",
];
/// A worker that listens where tests may.
const LISTEN: [&str; 3] =
    ["network.rdma.data.bind.host=127.0.0.1", "network.rdma.data.port=0", "network.rdma.metadata.port=0"];
const METADATA: &str = "network.rdma.metadata.enabled=true";

#[test]
fn every_byte_of_a_tree_is_read_over_ucx() {
    if !has_ucx() {
        return;
    }
    let (bucket, tree) = (Bucket::new(), Tree::of_all_kinds());
    tree.put_into(&bucket, "");
    let trace = ["network.rdma.data.trace.enabled=true", "network.rdma.data.trace.print_interval=300ms"];
    let worker = Setup::of(&bucket).options(&SOCKETS).options(&LISTEN).options(&trace).option(METADATA).worker(&bucket);
    let never = "network.rdma.data.fallback=never";
    let mount =
        Setup::without_origin().options(&SOCKETS).options(&trace).option(METADATA).option(never).mount([&worker]);
    tree.verify_names(&mount.root());
    tree.verify(&mount.root());
    let large = tree.file("sizes/large");
    reading::verify_direct(&mount.path(&large.path), large.data, large.size);
    reading::verify_random_ranges(&mount.root(), large, 200, 300 << 10, 3);
    assert!(worker.log_text().contains("RDMA server listening"), "{}", worker.log_text());
    assert!(mount.log_text().contains("RDMA client connected"), "{}", mount.log_text());
    let traced = || [worker.log_text(), mount.log_text()].iter().all(|log| log.contains("RDMA trace"));
    forebay_e2e::eventually("statistics are logged", Duration::from_secs(60), traced);
    let (own, of_worker) = (mount.own_stats(), worker.stats());
    assert!(count(&own, "/rdma/paths/rdma/bytes_received") >= large.size, "{own}");
    assert_eq!(count(&own, "/rdma/paths/tcp/calls"), 0, "{own}");
    for paths in ["data", "metadata"] {
        let first = &own["rdma"]["workers"][0][paths][0];
        assert_eq!((&first["rdma"], &first["up"]), (&Value::Bool(true), &Value::Bool(true)), "{own}");
    }
    let listeners = of_worker["rdma"]["listeners"].as_array().unwrap();
    assert!(listeners.len() == 2 && listeners.iter().all(|listener| listener["connections"] == 1), "{of_worker}");
}

fn count(stats: &Value, pointer: &str) -> u64 {
    stats.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {pointer} in {stats}"))
}

/// Nobody keeps a lookup out of the log by asking over another transport.
#[test]
fn lookups_over_ucx_are_in_the_audit_log() {
    if !has_ucx() {
        return;
    }
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(2, 1 << 20));
    tree.put_into(&bucket, "");
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("audit.jsonl");
    let file = format!("security.audit.file={}", log.display());
    let audit = [METADATA, &file, "security.audit.events=all"];
    let worker = Setup::of(&bucket).options(&SOCKETS).options(&LISTEN).options(&audit).worker(&bucket);
    let never = [METADATA, "network.rdma.data.fallback=never"];
    let mount = Setup::without_origin().options(&SOCKETS).options(&never).mount([&worker]);
    tree.verify_names(&mount.root());
    tree.verify(&mount.root());
    let own = mount.own_stats();
    assert_eq!(count(&own, "/rdma/paths/tcp/calls"), 0, "{own}");
    let is_lookup = |event: &Value| {
        let is_named = event["path"].as_str().is_some_and(|path| path.starts_with('/'));
        is_named && ["stat", "list", "stat-read"].iter().any(|operation| event["operation"] == *operation)
    };
    forebay_e2e::eventually("lookups are recorded", Duration::from_secs(30), || {
        let text = std::fs::read_to_string(&log).unwrap();
        let mut whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole.any(|line| is_lookup(&serde_json::from_str(line).unwrap()))
    });
}

#[test]
fn metadata_alone_goes_over_ucx_when_only_that_is_asked_for() {
    if !has_ucx() {
        return;
    }
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(2, 1 << 20));
    tree.put_into(&bucket, "");
    let only = [NO_WINDOW, METADATA, "network.rdma.data.transports=tcp,self"];
    let worker = Setup::of(&bucket).options(&only).options(&LISTEN).worker(&bucket);
    let mount = Setup::without_origin().options(&only).mount([&worker]);
    tree.verify_names(&mount.root());
    tree.verify(&mount.root());
    let own = mount.own_stats();
    assert!(count(&own, "/rdma/paths/rdma/calls") > 0, "{own}");
    assert!(count(&own, "/rdma/paths/tcp/bytes_received") >= 2 << 20, "{own}");
}

#[test]
fn a_worker_that_comes_back_on_another_port_is_read_over_ucx_again_and_every_switch_is_counted() {
    if !has_ucx() {
        return;
    }
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(8, 8 << 20));
    tree.put_into(&bucket, "");
    let mut worker = Setup::of(&bucket).options(&SOCKETS).options(&LISTEN).worker(&bucket);
    let mount = Setup::without_origin()
        .options(&SOCKETS)
        .options(&["network.rdma.data.retry_duration=1s", "client.retry.max_backoff=1s"])
        // Less than the files, so that they are asked for again.
        .options(&["network.rdma.data.buffer_pool.initial_size=8MiB", "network.rdma.data.buffer_pool.max_size=8MiB"])
        .option("network.rdma.data.buffer_pool.prewarm_size=0B")
        .mount([&worker]);
    tree.verify(&mount.root());
    assert_eq!(count(&mount.own_stats(), "/rdma/paths/fell_back"), 0);
    worker.kill();
    worker.start_again();
    let over_rdma = |stats: &Value| count(stats, "/rdma/paths/rdma/calls");
    let before = over_rdma(&mount.own_stats());
    forebay_e2e::eventually("reads go over UCX again", Duration::from_secs(60), || {
        (0..8).for_each(|file| reading::forget_pages(&mount.path(&format!("file{file:02}"))));
        tree.verify(&mount.root());
        over_rdma(&mount.own_stats()) > before
    });
    let own = mount.own_stats();
    assert!(count(&own, "/rdma/paths/fell_back") >= 1 && count(&own, "/rdma/paths/failed_back") >= 1, "{own}");
    assert_eq!(count(&own, "/rdma/paths/renewed"), 1, "{own}");
    let last = own["rdma"]["paths"]["last_switch"].as_str().unwrap();
    assert!(last.contains("RDMA is back"), "{last}");
    assert!(mount.log_text().contains("RDMA failed, falling back to TCP"), "{}", mount.log_text());
}

#[test]
fn a_worker_without_rdma_serves_a_mount_that_has_it_and_the_reverse() {
    if !has_ucx() {
        return;
    }
    // So many blocks that both own some, whatever their ports make of placement.
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(8, (9 << 20) + 1));
    tree.put_into(&bucket, "");
    let without = Setup::of(&bucket).option(NO_WINDOW).worker(&bucket);
    let with = Setup::of(&bucket).options(&SOCKETS).options(&LISTEN).worker(&bucket);
    let over_ucx = Setup::without_origin().options(&SOCKETS).mount([&without, &with]);
    let over_tcp = Setup::without_origin().option(NO_WINDOW).mount([&without, &with]);
    for mount in [&over_ucx, &over_tcp] {
        tree.verify(&mount.root());
    }
    assert!(over_ucx.log_text().contains("worker offers no RDMA"), "{}", over_ucx.log_text());
    assert!(over_ucx.log_text().contains("RDMA client connected"), "{}", over_ucx.log_text());
}

#[test]
fn with_never_a_worker_without_rdma_is_an_error_that_says_so() {
    if !has_ucx() {
        return;
    }
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(1, 1 << 20));
    tree.put_into(&bucket, "");
    let worker = Setup::of(&bucket).worker(&bucket);
    let never = "network.rdma.data.fallback=never";
    let mount = Setup::without_origin().options(&SOCKETS).option(never).mount([&worker]);
    tree.verify_names(&mount.root());
    let error = reading::read_error(&mount.path("file00"));
    assert_eq!(error.raw_os_error(), Some(5), "EIO: {error}");
    assert!(mount.log_text().contains("the worker offers no RDMA"), "{}", mount.log_text());
}

#[test]
fn with_never_an_idle_mount_finds_a_worker_that_was_restarted_and_its_first_read_is_answered() {
    if !has_ucx() {
        return;
    }
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(2, 1 << 20));
    tree.put_into(&bucket, "");
    let mut worker = Setup::of(&bucket).options(&SOCKETS).options(&LISTEN).worker(&bucket);
    let never = "network.rdma.data.fallback=never";
    let mount = Setup::without_origin().options(&SOCKETS).option(never).mount([&worker]);
    let (first, second) = (tree.file("file00"), std::fs::File::open(mount.path("file01")).unwrap());
    reading::verify(&mount.path("file00"), first.data, first.size);
    // As the mount says it: a command that asks the worker, too, fails while that is away.
    let own =
        || -> serde_json::Value { serde_json::from_slice(&std::fs::read(mount.path(".stats.json")).unwrap()).unwrap() };
    let paths = |pointer: &str| count(&own(), &format!("/rdma/paths/{pointer}"));
    assert_eq!((paths("paths_up"), paths("paths_down")), (1, 0));
    worker.kill();
    // Whether this one fails, or waits until the worker is back, is not what is looked at here.
    let reader = std::thread::spawn(move || {
        let _ = second.read_at(&mut [0; 4096], 0);
        second
    });
    forebay_e2e::eventually("the path is found down", Duration::from_secs(60), || paths("paths_down") == 1);
    let told = own();
    let data = told["rdma"]["workers"][0]["data"].as_array().unwrap();
    assert!(data.iter().all(|path| path["up"] == false), "TCP is not used with `never`: {told}");
    worker.start_again();
    forebay_e2e::eventually("the path is found up", Duration::from_secs(60), || paths("paths_up") == 1);
    let second = reader.join().unwrap();
    second.read_exact_at(&mut [0; 4096], 512 << 10).unwrap();
    let file = tree.file("file01");
    reading::verify(&mount.path("file01"), file.data, file.size);
    assert!(paths("rdma/bytes_received") >= 2 << 20, "{}", mount.own_stats());
}

#[test]
fn metadata_that_cannot_go_over_rdma_costs_data_nothing_and_settings_that_are_idle_are_named() {
    if !has_ucx() {
        return;
    }
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(2, 1 << 20));
    tree.put_into(&bucket, "");
    let bad = [METADATA, "network.rdma.metadata.device=mlx5_77"];
    let worker = Setup::of(&bucket).options(&SOCKETS).options(&LISTEN).options(&bad).worker(&bucket);
    let never = "network.rdma.data.fallback=never";
    let mount = Setup::without_origin().options(&SOCKETS).options(&bad).option(never).mount([&worker]);
    tree.verify(&mount.root());
    let own = mount.own_stats();
    assert!(count(&own, "/rdma/paths/rdma/bytes_received") >= 2 << 20, "{own}");
    for log in [worker.log_text(), mount.log_text()] {
        for part in ["metadata cannot go over RDMA", "network.rdma.metadata.device", "mlx5_77:1"] {
            assert!(log.contains(part), "no {part} in {log}");
        }
    }
    let with_metadata = Setup::without_origin().options(&SOCKETS).option(METADATA).mount([&worker]);
    tree.verify(&with_metadata.root());
    let log = with_metadata.log_text();
    assert_eq!(log.matches("worker offers no RDMA for metadata").count(), 1, "{log}");
    let idle = Setup::without_origin().options(&[never, "network.rdma.metadata.device=mlx5_0"]).mount([&worker]);
    let log = idle.log_text();
    let told = log.lines().find(|line| line.contains("act on nothing")).unwrap_or_else(|| panic!("not said: {log}"));
    assert!(told.contains("data.fallback") && told.contains("metadata.device"), "{told}");
}

#[test]
fn traces_in_json_have_a_field_for_each_number_and_name_card_and_peer() {
    if !has_ucx() {
        return;
    }
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(2, 9 << 20));
    tree.put_into(&bucket, "");
    let trace =
        ["network.rdma.data.trace.enabled=true", "network.rdma.data.trace.print_interval=200ms", "log.format=json"];
    let worker = Setup::of(&bucket).options(&SOCKETS).options(&LISTEN).worker(&bucket);
    let mount = Setup::without_origin().options(&SOCKETS).options(&trace).mount([&worker]);
    tree.verify(&mount.root());
    let lines = |message: &str| {
        let log = mount.log_text();
        let parsed: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        parsed.into_iter().filter(|line| line["message"] == message).collect::<Vec<_>>()
    };
    let sum = |lines: &[Value], field: &str| lines.iter().filter_map(|line| line[field].as_u64()).sum::<u64>();
    forebay_e2e::eventually("all bytes are in the traces", Duration::from_secs(60), || {
        sum(&lines("RDMA trace"), "bytes") >= 2 * (9 << 20)
    });
    let (operations, peers) = (lines("RDMA trace"), lines("RDMA trace: peer"));
    let reads = operations.iter().find(|line| line["operation"] == "client read").unwrap();
    assert!(reads["card"].is_string() && reads["wire_p99_us"].as_f64().is_some_and(|micros| micros > 0.0), "{reads}");
    assert!(sum(&operations, "descriptions") > 0, "the worker had not heard of these files: {operations:?}");
    assert_eq!(sum(&operations, "failures"), 0, "and that is no failure: {operations:?}");
    assert!(
        peers.iter().any(|line| line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:"))),
        "{peers:?}"
    );
}

#[test]
fn a_worker_that_is_killed_in_the_middle_of_reads_over_ucx_costs_no_reader_an_error() {
    if !has_ucx() {
        return;
    }
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(1, 64 << 20));
    tree.put_into(&bucket, "");
    let worker = || {
        let setup = Setup::of(&bucket).options(&SOCKETS).options(&LISTEN);
        setup.option("block.size=1MiB").worker(&bucket)
    };
    let (mut first, second) = (worker(), worker());
    let mount = Setup::without_origin()
        .options(&SOCKETS)
        .options(&["block.size=1MiB", "client.retry.max_backoff=1s", "network.rdma.data.buffer_pool.initial_size=8MiB"])
        .options(&["network.rdma.data.buffer_pool.prewarm_size=0B", "network.rdma.data.buffer_pool.max_size=8MiB"])
        .mount([&first, &second]);
    let longest = read_while(&mount.root(), tree.file("file00"), 4, |progress| {
        for _ in 0..2 {
            let target = progress.reads() + 200;
            forebay_e2e::eventually("readers read", Duration::from_secs(60), || progress.reads() >= target);
            first.kill();
            let target = progress.reads() + 200;
            forebay_e2e::eventually("readers go on", Duration::from_secs(60), || progress.reads() >= target);
            first.start_again();
        }
    });
    assert!(longest < Duration::from_secs(30), "a read took {longest:?}");
}

#[test]
fn a_port_that_is_still_taken_is_tried_again() {
    if !has_ucx() {
        return;
    }
    let bucket = Bucket::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("network.rdma.data.port={}", taken.local_addr().unwrap().port());
    let mut taken = Some(taken);
    let host = "network.rdma.data.bind.host=127.0.0.1";
    let worker = Setup::of(&bucket).options(&SOCKETS).options(&[host, &port]).worker_meeting(&bucket, |log| {
        if log.contains("RDMA port is not free yet") {
            taken.take();
        }
    });
    let log = worker.log_text();
    assert!(log.contains("RDMA port is not free yet") && log.contains("RDMA server listening"), "{log}");
}

/// Runs a worker with UCX over sockets and these settings to its end.
fn refused(settings: &[&str]) -> Finished {
    let mut command = forebay(&[]);
    command.arg("worker");
    let common = [
        "mounts=/=file:///",
        "worker.rpc.bind.host=127.0.0.1",
        "worker.rpc.port=0",
        "worker.memory.size=64MiB",
        "security.mode=off",
    ];
    for setting in common.iter().chain(&SOCKETS).chain(settings) {
        command.args(["-o", setting]);
    }
    finish(&mut command, Duration::from_secs(60))
}

#[test]
fn a_port_that_stays_taken_is_tried_for_ten_seconds_and_named_once_with_its_key() {
    if !has_ucx() {
        return;
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("network.rdma.data.port={}", taken.local_addr().unwrap().port());
    let ended = refused(&["network.rdma.data.bind.host=127.0.0.1", &port]);
    ended.failed(6, &["network.rdma.data.port: cannot listen on", "the port is in use (tried for 10s)", "or to 0"]);
    assert!(ended.took >= Duration::from_secs(10), "a port may stay taken for 10 s: {:?}", ended.took);
    let told = ended.stderr.lines().filter(|line| line.starts_with("forebay: ")).collect::<String>();
    assert_eq!(told.matches("the port is in use").count(), 1, "{told}");
}

#[test]
fn an_address_that_is_not_here_is_refused_at_once_with_its_key() {
    if !has_ucx() {
        return;
    }
    // An address of a network that is reserved for documentation, which no host has.
    let ended = refused(&["network.rdma.data.bind.host=198.51.100.7", "network.rdma.data.port=0"]);
    ended.failed(2, &["network.rdma.data.bind.host: cannot listen on 198.51.100.7", "no interface of this machine"]);
    assert!(!ended.stderr.contains("trying again"), "{}", ended.stderr);
}

#[test]
fn transports_over_which_nobody_can_be_reached_are_refused_before_anybody_tries() {
    if !has_ucx() {
        return;
    }
    for transports in ["self", "cma,self"] {
        let setting = format!("network.rdma.data.transports={transports}");
        refused(&[LISTEN[0], LISTEN[1], &setting])
            .failed(1, &["UCX finds nothing that reaches other processes", transports]);
    }
    let bucket = Bucket::new();
    let worker = Setup::of(&bucket).worker(&bucket);
    let alone = ["network.rdma.data.enabled=true", "network.rdma.data.transports=self"];
    let address = worker.address().to_string();
    let mount = Setup::without_origin().options(&alone).prepare_mount(&address).start();
    mount.failed(1, &["UCX finds nothing that reaches other processes"]);
}

#[test]
fn rdma_that_cannot_be_had_stops_the_start_with_the_remedy_unless_tcp_will_do() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, 1 << 20);
    tree.put_into(&bucket, "");
    let worker = Setup::of(&bucket).worker(&bucket);
    let address = worker.address().to_string();
    let asked = || {
        let no_card = ["network.rdma.data.enabled=true", "network.rdma.data.bind.device=mlx5_77:1"];
        Setup::without_origin().options(&no_card)
    };
    let refused = asked().prepare_mount(&address).start();
    let named = ["RDMA cannot be had", "network.rdma.data.bind.device", "mlx5_77:1", "forebay doctor", "tcp-at-start"];
    refused.failed(2, &named);
    let rdma = || Setup::without_origin().option("network.rdma.data.enabled=true");
    let without_library = rdma().option("ucx.library=/nonexistent/libucp.so.0").prepare_mount(&address).start();
    without_library.failed(1, &["RDMA cannot be had", "/nonexistent/libucp.so.0", "libucx0", "tcp-at-start"]);
    if has_ucx() {
        // There may be a card here; on `lo` there is none.
        let no_rdma = rdma().option("network.rdma.data.network=lo").prepare_mount(&address).start();
        no_rdma.failed(2, &["RDMA cannot be had", "`lo` is there, and no RDMA device belongs to it", "tcp-at-start"]);
        let no_interface = rdma().option("network.rdma.data.network=ib7").prepare_mount(&address).start();
        no_interface.failed(2, &["there is no network interface `ib7`", "interfaces here: ", "RDMA devices here: "]);
    }
    let mount = asked().option("network.rdma.data.fallback=tcp-at-start").mount([&worker]);
    tree.verify(&mount.root());
    assert!(mount.log_text().contains("RDMA cannot be had, TCP is used"), "{}", mount.log_text());
}

/// Without a card there are no verbs, which are never worth more than RDMA as a whole: what `fallback` says of that, it says of them.
#[test]
fn verbs_that_cannot_be_had_stop_the_start_with_the_remedy_unless_tcp_will_do() {
    let has_card = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut found| found.next().is_some());
    if has_card {
        return println!("skipped: this machine has RDMA devices; `make test-rdma` shows what is done with them");
    }
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(2, 1 << 20);
    tree.put_into(&bucket, "");
    let verbs = ["network.rdma.data.enabled=true", "network.rdma.data.provider=verbs"];
    let asked = || Setup::without_origin().options(&verbs);
    let worker = Setup::of(&bucket).options(&verbs).options(&LISTEN);
    let worker = worker.option("network.rdma.data.fallback=tcp-at-start").worker(&bucket);
    assert!(worker.log_text().contains("RDMA cannot be had, TCP is used"), "{}", worker.log_text());
    let address = worker.address().to_string();
    let refused = asked().prepare_mount(&address).start();
    refused.failed(1, &["RDMA cannot be had", "no RDMA device is active", "rdma link", "tcp-at-start"]);
    let mount = asked().options(&[NO_WINDOW, METADATA, "network.rdma.data.fallback=tcp-at-start"]).mount([&worker]);
    tree.verify(&mount.root());
    let log = mount.log_text();
    assert!(log.contains("RDMA cannot be had, TCP is used") && log.contains("metadata cannot go over RDMA"), "{log}");
}

#[test]
fn settings_that_only_ucx_has_are_refused_with_verbs_alone() {
    let ended = refused(&["network.rdma.data.provider=verbs"]);
    ended.failed(2, &["network.rdma.data.provider", "network.rdma.data.transports", "only UCX has these settings"]);
}

/// Transports of UCX are named, so `auto` means UCX, here and in every other test of this file. What it chooses of both libraries takes
/// two cards: `make test-rdma`.
#[test]
fn auto_is_ucx_where_transports_of_ucx_are_named() {
    if !has_ucx() {
        return;
    }
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(2, 1 << 20));
    tree.put_into(&bucket, "");
    let worker =
        Setup::of(&bucket).options(&SOCKETS).options(&LISTEN).option("network.rdma.data.provider=ucx").worker(&bucket);
    let auto = ["network.rdma.data.provider=auto", "network.rdma.data.fallback=never"];
    let mount = Setup::without_origin().options(&SOCKETS).options(&auto).mount([&worker]);
    tree.verify(&mount.root());
    let (own, of_worker) = (mount.own_stats(), worker.stats());
    assert_eq!(own["rdma"]["cards"][0]["provider"], "ucx", "{own}");
    assert_eq!((&own["rdma"]["verbs"], &of_worker["rdma"]["verbs"]), (&Value::Null, &Value::Null), "{own}");
    assert_eq!(of_worker["rdma"]["listeners"][0]["provider"], "ucx", "{of_worker}");
}
