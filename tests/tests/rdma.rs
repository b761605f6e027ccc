//! Workers and mounts with the UCX transport in real processes: over shared memory, for the cards are not in every machine
//! (`make test-rdma` has two). What a reader notices, and what an operator is told.

use std::time::Duration;

use forebay_e2e::reading::{self, read_while};
use forebay_e2e::{Bucket, Setup, Tree, finish, forebay, skipped};
use serde_json::Value;

/// UCX between two processes of one machine.
const SHARED_MEMORY: [&str; 3] = [
    "network.rdma.data.enabled=true",
    "network.rdma.data.transports=posix,cma,tcp,self",
    "network.rdma.data.buffer_pool.max_size=1GiB",
];
/// A worker that listens where tests may.
const LISTEN: [&str; 2] = ["network.rdma.data.bind.host=127.0.0.1", "network.rdma.data.port=0"];

/// Whether there is a libucp; says so if not.
fn has_ucx() -> bool {
    let version = finish(forebay(&[]).args(["version", "--json"]), Duration::from_secs(60)).succeeded().text();
    let version: Value = serde_json::from_str(&version).unwrap();
    let found = version["ucx"]["version"].is_string();
    if !found {
        skipped(&format!("UCX: {}", version["ucx"]["error"]));
    }
    found
}

#[test]
fn every_byte_of_a_tree_is_read_over_ucx() {
    if !has_ucx() {
        return;
    }
    let (bucket, tree) = (Bucket::new(), Tree::of_all_kinds());
    tree.put_into(&bucket, "");
    let worker = Setup::of(&bucket).options(&SHARED_MEMORY).options(&LISTEN).worker(&bucket);
    let mount = Setup::without_origin()
        .options(&SHARED_MEMORY)
        .option("network.rdma.data.fallback=never")
        .option("network.rdma.metadata.enabled=true")
        .mount([&worker]);
    tree.verify_names(&mount.root());
    tree.verify(&mount.root());
    let large = tree.file("sizes/large");
    reading::verify_direct(&mount.path(&large.path), large.data, large.size);
    reading::verify_random_ranges(&mount.root(), large, 200, 300 << 10, 3);
    assert!(worker.log_text().contains("RDMA server listening"), "{}", worker.log_text());
    assert!(mount.log_text().contains("RDMA client connected"), "{}", mount.log_text());
}

#[test]
fn a_worker_without_rdma_serves_a_mount_that_has_it_and_the_reverse() {
    if !has_ucx() {
        return;
    }
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(2, (9 << 20) + 1));
    tree.put_into(&bucket, "");
    let without = Setup::of(&bucket).worker(&bucket);
    let with = Setup::of(&bucket).options(&SHARED_MEMORY).options(&LISTEN).worker(&bucket);
    let over_ucx = Setup::without_origin().options(&SHARED_MEMORY).mount([&without, &with]);
    let over_tcp = Setup::without_origin().mount([&without, &with]);
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
    let mount = Setup::without_origin().options(&SHARED_MEMORY).option(never).mount([&worker]);
    tree.verify_names(&mount.root());
    let error = reading::read_error(&mount.path("file00"));
    assert_eq!(error.raw_os_error(), Some(5), "EIO: {error}");
    assert!(mount.log_text().contains("the worker offers no RDMA"), "{}", mount.log_text());
}

#[test]
fn a_worker_that_is_killed_in_the_middle_of_reads_over_ucx_costs_no_reader_an_error() {
    if !has_ucx() {
        return;
    }
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(1, 64 << 20));
    tree.put_into(&bucket, "");
    let worker = || {
        let setup = Setup::of(&bucket).options(&SHARED_MEMORY).options(&LISTEN);
        setup.option("block.size=1MiB").worker(&bucket)
    };
    let (mut first, second) = (worker(), worker());
    let mount = Setup::without_origin()
        .options(&SHARED_MEMORY)
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
    refused.failed(1, &["RDMA cannot be had", "mlx5_77:1", "tcp-at-start"]);
    let mount = asked().option("network.rdma.data.fallback=tcp-at-start").mount([&worker]);
    tree.verify(&mount.root());
    assert!(mount.log_text().contains("RDMA cannot be had, TCP is used"), "{}", mount.log_text());
}
