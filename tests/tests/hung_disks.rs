//! A disk that hangs, and does not fail: readers go on without it, and use it again when it answers.

use std::time::Duration;

use forebay_e2e::reading::{read_while, verify_direct};
use forebay_e2e::{Bucket, HangingDisk, Setup, Tree, Worker, eventually, is_root, skipped};

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
/// More than a worker's memory holds.
const SIZE: u64 = 48 * MIB;
const READERS: u64 = 4;
/// Longer than the thread that serves the disk is without a processor. A disk that hangs again soon has to answer twice as
/// often before it is back.
const TIMEOUT: &str = "worker.disk.read_timeout=2s";

/// A file system that hangs on command, if this machine lets us mount one; says so if not.
fn hanging_disk() -> Option<HangingDisk> {
    if !is_root() {
        skipped("mounting a file system needs root");
        return None;
    }
    match HangingDisk::new() {
        Ok(disk) => Some(disk),
        Err(error) => {
            skipped(&format!("cannot mount over /dev/fuse: {error}"));
            None
        }
    }
}

/// A worker whose memory holds a part of what its disk does.
fn worker(bucket: &Bucket, disk: &HangingDisk, options: &[&str]) -> Worker {
    Setup::of(bucket).memory("32MiB").disk(&disk.path(), "96MiB").option(TIMEOUT).options(options).worker(bucket)
}

/// A mount that asks the worker for all that is read.
fn mount(worker: &Worker) -> forebay_e2e::Mount {
    let settings = ["network.shared_memory=off", "client.memory.size=8MiB"];
    Setup::without_origin().options(&settings).mount([worker])
}

fn disk_counter(worker: &Worker, name: &str) -> u64 {
    worker.counter(&format!("/store/disks/0/{name}"))
}

fn is_out(worker: &Worker) -> bool {
    worker.stats()["store"]["disks"][0]["out"] == true
}

#[test]
fn readers_go_on_while_a_disk_hangs_and_it_is_read_again_when_it_answers() {
    let Some(disk) = hanging_disk() else { return };
    for io in ["worker.disk.io=threads", "worker.disk.io=auto"] {
        let bucket = Bucket::new();
        let tree = Tree::of_equal_files(1, SIZE);
        tree.put_into(&bucket, "");
        let mut worker = worker(&bucket, &disk, &[io]);
        let (filling, file) = (mount(&worker), tree.file("file00"));
        // What memory had no room for on its way to the disk is fetched once more.
        eventually("most of the file is on disk", SOON, || {
            verify_direct(&filling.path(&file.path), file.data, file.size);
            disk_counter(&worker, "run_bytes") > SIZE / 4 * 3
        });
        drop(filling);
        worker.terminate();
        worker.start_again();

        let mount = mount(&worker);
        let longest = read_while(&mount.root(), file, READERS, |progress| {
            progress.reads_on(200);
            assert!(disk_counter(&worker, "bytes_read") > 0);
            disk.hang();
            eventually("the disk is taken out", SOON, || is_out(&worker));
            let gets = bucket.gets();
            progress.reads_on(500);
            eventually("what the disk has is read from the origin", SOON, || bucket.gets() > gets);
            disk.release();
            eventually("the disk is back", SOON, || !is_out(&worker));
            let read = disk_counter(&worker, "bytes_read");
            eventually("the disk is read", SOON, || disk_counter(&worker, "bytes_read") > read);
            progress.reads_on(200);
        });
        println!("{io}: the longest read took {longest:?}");
        assert!(disk_counter(&worker, "taken_out") >= 1 && disk_counter(&worker, "returned") >= 1);
        let log = worker.log_text();
        for line in ["disk hangs and is taken out", "disk answers again"] {
            assert!(log.contains(line), "{log}");
        }
        tree.verify(&mount.root());
        assert_eq!(disk_counter(&worker, "corrupt_sectors"), 0);
        drop(mount);
        worker.terminate();
        // The next one begins with an empty disk.
        std::fs::remove_file(disk.path().join("slab")).unwrap();
    }
}

#[test]
fn a_worker_whose_disk_hangs_caches_in_memory_and_ends_in_good_order() {
    let Some(disk) = hanging_disk() else { return };
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(2, SIZE / 2);
    tree.put_into(&bucket, "");
    let mut worker = worker(&bucket, &disk, &["worker.disk.io=threads"]);
    let first = mount(&worker);
    disk.hang();
    tree.verify(&first.root());
    eventually("a write takes the disk out", SOON, || is_out(&worker));
    tree.verify(&first.root());
    eventually("nothing waits to be written", SOON, || worker.counter("/store/disk_queue_bytes") == 0);
    drop(first);
    worker.terminate();
    assert!(worker.log_text().contains("a disk hangs"), "{}", worker.log_text());

    disk.release();
    worker.start_again();
    let mount = mount(&worker);
    tree.verify(&mount.root());
    assert_eq!(disk_counter(&worker, "corrupt_sectors"), 0);
}
