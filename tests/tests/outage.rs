//! The only worker goes away and comes back: its readers wait for it, or read the origin, and hear of no error.

use std::time::{Duration, Instant};

use forebay_e2e::reading::{self, read_while};
use forebay_e2e::{Bucket, Mount, Setup, Tree, eventually};

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
/// Reads that must end after a worker is back: more than were under way.
const MORE: u64 = 20;

/// What the mount itself counts. That its worker does not answer is said besides.
fn own(mount: &Mount, counter: &str) -> u64 {
    let answer = mount.ask(&["stats", "--all", "--json"]);
    let stats: serde_json::Value =
        serde_json::from_str(answer.text().lines().last().expect("a line")).expect("the counters as JSON");
    stats["client"][counter].as_u64().unwrap_or_else(|| panic!("no {counter} in {stats}"))
}

#[test]
fn readers_wait_while_their_only_worker_is_killed_and_started_again() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(2, 32 * MIB);
    tree.put_into(&bucket, "");
    let mut worker = Setup::of(&bucket).worker(&bucket);
    let mount = Setup::without_origin().mount([&worker]);
    read_while(&mount.root(), tree.file("file00"), 4, |progress| {
        for _ in 0..2 {
            progress.reads_on(MORE);
            worker.kill();
            eventually("readers wait", SOON, || own(&mount, "waiting_for_workers") > 0);
            worker.start_again();
            progress.reads_on(MORE);
        }
    });
    reading::verify(&mount.path("file01"), tree.file("file01").data, 32 * MIB);
    assert_eq!(own(&mount, "failed_reads"), 0);
    assert_eq!(own(&mount, "waiting_for_workers"), 0);
    let log = mount.log_text();
    let lines = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    let outages = own(&mount, "outages");
    assert!(outages >= 2, "{outages}: {log}");
    assert_eq!(lines("no worker can be reached") as u64, outages, "one line for each: {log}");
    assert_eq!(lines("a worker can be reached again") as u64, outages, "{log}");
}

/// > While no worker can be reached, a read or a metadata request waits for one, for up to `client.request_timeout`, and then fails with `EIO`.
#[test]
fn nobody_waits_longer_than_a_request_may_take() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, MIB);
    tree.put_into(&bucket, "");
    let mut worker = Setup::of(&bucket).worker(&bucket);
    // Enough for a worker that is there, on a busy machine. A read of the kernel that fails is tried once more.
    let mount = Setup::without_origin().option("client.request_timeout=10s").mount([&worker]);
    tree.verify_names(&mount.root());
    worker.kill();
    let began = Instant::now();
    let error = reading::read_error(&mount.path("file00"));
    assert!(began.elapsed() < SOON, "{error} after {:?}", began.elapsed());
    eventually("nobody waits", SOON, || own(&mount, "waiting_for_workers") == 0);
    assert!(mount.log_text().contains("request failed"), "{}", mount.log_text());
    worker.start_again();
    tree.verify(&mount.root());
}

/// > With `client.origin.direct` the origin answers these requests instead; writes wait for a worker.
#[test]
fn a_mount_that_may_read_the_origin_does_so_while_there_is_no_worker() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(3, 8 * MIB + 5);
    tree.put_into(&bucket, "");
    let mut worker = Setup::of(&bucket).worker(&bucket);
    let mounts = format!("mounts=/={}", bucket.url());
    // A read that is late on a busy machine would go to the origin, too.
    let options = ["client.origin.direct=true", "client.hedge.enabled=false", mounts.as_str()];
    let mount = Setup::of(&bucket).options(&options).served_by_the_mount().mount([&worker]);
    reading::verify(&mount.path("file00"), tree.file("file00").data, 8 * MIB + 5);
    assert_eq!(own(&mount, "direct_requests"), 0, "workers are asked while there are any");
    worker.kill();
    tree.verify(&mount.root());
    reading::verify_direct(&mount.path("file01"), tree.file("file01").data, 8 * MIB + 5);
    assert!(own(&mount, "direct_requests") > 0);
    assert_eq!(own(&mount, "failed_reads"), 0);
    let last = tree.file("file02");
    worker.start_again();
    // What is fetched already is read from where it is; a listing is asked for.
    eventually("the worker is found again", SOON, || {
        tree.verify_names(&mount.root());
        mount.log_text().contains("a worker can be reached again")
    });
    let direct = own(&mount, "direct_requests");
    bucket.put("new", last.data, last.size);
    reading::verify(&mount.path("new"), last.data, last.size);
    assert!(worker.bytes_served() >= last.size, "{}", worker.bytes_served());
    assert_eq!(own(&mount, "direct_requests"), direct);
    assert!(mount.log_text().contains("reads go to the origin"), "{}", mount.log_text());
}

#[test]
fn a_mount_that_is_to_read_the_origin_and_knows_of_none_is_refused() {
    let bucket = Bucket::new();
    let worker = Setup::of(&bucket).worker(&bucket);
    let mut mount =
        Setup::without_origin().option("client.origin.direct=true").prepare_mount(&worker.address().to_string());
    mount.start().failed(2, &["client.origin.direct", "`mounts` is empty"]);
}
