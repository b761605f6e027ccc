//! A worker that is stopped, and not dead, costs its readers a moment: others answer for it.

use std::time::{Duration, Instant};

use forebay_e2e::reading::read_while;
use forebay_e2e::{Bucket, Mount, Setup, Tree, Worker, eventually};

const SOON: Duration = Duration::from_secs(60);
/// Small blocks, so that each of three workers owns some of every file; and bytes are sent, though the workers are here.
const SETTINGS: [&str; 2] = ["block.size=1MiB", "network.shared_memory=off"];
/// A worker that is silent is dead after so long, which without hedges a read waits for.
const DEAD_AFTER: Duration = Duration::from_secs(20);
const LIVENESS: [&str; 2] = ["network.tcp.keepalive=2s", "network.tcp.dead_after=20s"];
const SIZE: u64 = 32 << 20;
const READERS: u64 = 4;
/// What the budget allows besides its share of the reads.
const BURST: u64 = 32 + 256;

fn workers(bucket: &Bucket) -> Vec<Worker> {
    (0..3).map(|_| Setup::of(bucket).option(SETTINGS[0]).worker(bucket)).collect()
}

fn mount(workers: &[Worker], options: &[&str]) -> Mount {
    Setup::without_origin()
        .options(&SETTINGS)
        .options(&LIVENESS)
        .option("client.memory.size=8MiB")
        .options(options)
        .mount(workers)
}

fn own(mount: &Mount, counter: &str) -> u64 {
    let stats = mount.own_stats();
    stats["client"][counter].as_u64().unwrap_or_else(|| panic!("no {counter} in {stats}"))
}

/// Has readers check every byte while one of three workers stands still, until so many reads came back. The longest time
/// that one of them took, and how many reads there were.
fn with_one_stopped(mount: &Mount, tree: &Tree, workers: &[Worker], more: u64) -> (Duration, u64) {
    let mut reads = 0;
    let longest = read_while(&mount.root(), tree.file("file00"), READERS, |progress| {
        progress.reads_on(2000);
        workers[0].freeze();
        let until = progress.reads() + more;
        eventually("readers go on", SOON, || progress.reads() >= until);
        reads = progress.reads();
        workers[0].thaw();
        // All of them end.
        eventually("readers go on", SOON, || progress.reads() >= reads + READERS);
    });
    (longest, reads)
}

#[test]
fn readers_of_a_stopped_worker_do_not_wait_until_it_counts_as_dead() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, SIZE);
    tree.put_into(&bucket, "");
    let workers = workers(&bucket);
    let hedged = mount(&workers, &[]);
    let (longest, reads) = with_one_stopped(&hedged, &tree, &workers, 2000);
    let sent = own(&hedged, "hedges_sent");
    let log = hedged.log_text();
    assert!(own(&hedged, "hedges_won") > 0 && sent <= reads / 20 + BURST, "{sent} hedges for {reads} reads: {log}");
    assert!(own(&hedged, "avoided_reads") > 0 && log.contains("worker is slow"), "{log}");
    assert_eq!(own(&hedged, "failed_reads"), 0, "{log}");
    // Half of what it takes without: a busy machine makes a read wait, too.
    assert!(longest < DEAD_AFTER / 2, "a read took {longest:?}: {log}");
    println!("longest read {longest:?}, {sent} hedges for {reads} reads");

    // The same without hedges, for which a read waits until the worker goes on.
    let plain = mount(&workers, &["client.hedge.enabled=false"]);
    let began = Instant::now();
    let longest = read_while(&plain.root(), tree.file("file00"), READERS, |progress| {
        progress.reads_on(200);
        workers[0].freeze();
        // Each reader has come to it by then.
        eventually("all readers wait for the stopped worker", SOON, || {
            let before = progress.reads();
            std::thread::sleep(Duration::from_secs(2));
            progress.reads() == before
        });
        workers[0].thaw();
    });
    assert!(longest >= Duration::from_secs(2), "a read took {longest:?} of {:?}", began.elapsed());
    assert_eq!((own(&plain, "hedges_sent"), own(&plain, "avoided_reads")), (0, 0));
}

#[test]
fn while_nothing_is_wrong_hedges_stay_within_their_budget_and_a_stopped_worker_is_used_again() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, SIZE);
    tree.put_into(&bucket, "");
    let workers = workers(&bucket);
    let mount = mount(&workers, &[]);
    let mut reads = 0;
    read_while(&mount.root(), tree.file("file00"), READERS, |progress| {
        progress.reads_on(5000);
        reads = progress.reads();
        let sent = own(&mount, "hedges_sent");
        println!("{sent} hedges for {reads} reads");
        assert!(sent <= reads / 20 + BURST, "{sent} hedges for {reads} reads");
        workers[0].freeze();
        progress.reads_on(1000);
        workers[0].thaw();
        let before = workers[0].bytes_served();
        eventually("the worker is used again", SOON, || workers[0].bytes_served() > before + (4 << 20));
    });
    let ended = own(&mount, "hedges_won") + own(&mount, "hedges_wasted");
    assert!(ended <= own(&mount, "hedges_sent"));
    assert_eq!(own(&mount, "failed_reads"), 0);
}
