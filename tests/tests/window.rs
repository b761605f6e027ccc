//! Workers and mounts on one host, in processes of their own: what is read through the window onto a worker's memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_e2e::mapping::Mapping;
use forebay_e2e::{Bucket, Mount, Setup, Tree, Worker, eventually, finish, forebay, reading, signal, skipped};
use forebay_testkit::bound;
use rustix::process::Signal;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4 * MIB;
/// Also where there are no huge pages to share.
const ON: &str = "network.shared_memory=on";
const OFF: &str = "network.shared_memory=off";
/// A worker that has failed is asked again soon. The time of a read runs while its mount is stopped, which is for as
/// long as another mount takes to read a file.
const IMPATIENT: [&str; 3] =
    ["client.retry.initial_backoff=200ms", "client.retry.max_backoff=1s", "client.request_timeout=10m"];

/// What a mount reports of windows.
fn seen(mount: &Mount) -> Value {
    mount.own_stats()["window"].clone()
}

fn bytes_seen(mount: &Mount) -> u64 {
    seen(mount)["bytes"].as_u64().unwrap_or(0)
}

/// Waits until the mount sees the memory of so many workers: it looks for them in the background, once it asks them something. So
/// it has to, and each of them.
#[track_caller]
fn wait_until_open(mount: &Mount, workers: usize) {
    let path = mount.path("file00");
    let (file, size) = (reading::DirectFile::open(&path).unwrap(), path.metadata().unwrap().len());
    eventually("the windows are open", SOON, || {
        for block in 0..size / BLOCK {
            file.read_at(block * BLOCK, 4096).unwrap();
        }
        let window = seen(mount);
        let links = window["workers"].as_array().into_iter().flatten();
        links.filter(|link| link["state"] == "open").count() == workers
    });
}

fn worker(bucket: &Bucket, settings: &[&str]) -> Worker {
    Setup::of(bucket).options(&["worker.memory.prewarm=false"]).options(settings).worker(bucket)
}

fn mount<'a>(workers: impl IntoIterator<Item = &'a Worker>, settings: &[&str]) -> Mount {
    // Less than a file, so that it is asked for again: what was sent meanwhile lies in memory of the mount's own, and a
    // worker that the mount wants nothing of is not looked at either.
    let setup = Setup::without_origin().option("client.memory.size=8MiB").options(&IMPATIENT);
    setup.options(settings).mount(workers)
}

#[test]
fn a_mount_reads_a_file_where_the_worker_has_it_and_the_worker_has_its_memory_back() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(2, 24 * MIB + 4321);
    tree.put_into(&bucket, "");
    let worker = worker(&bucket, &[ON]);
    let mount = mount([&worker], &[ON]);
    wait_until_open(&mount, 1);
    let kept = || mount.own_stats()["buffers"]["runs_published"].as_u64().unwrap();
    let (before, kept_before) = (bytes_seen(&mount), kept());
    tree.verify(&mount.root());
    assert!(bytes_seen(&mount) - before >= 48 * MIB, "{}", seen(&mount));
    for file in ["file00", "file01"] {
        let file = tree.file(file);
        reading::verify_direct(&mount.path(&file.path), file.data, file.size);
        reading::verify_random_ranges(&mount.root(), file, 200, 3 * MIB, 7);
    }
    assert_eq!(worker.counter("/window/connections"), 1);
    eventually("nothing is pinned any more", SOON, || worker.counter("/window/pinned_bytes") == 0);
    assert_eq!(kept(), kept_before, "nothing is kept that lies next door");
    let shown = std::fs::read_to_string(mount.path(".stats")).unwrap();
    assert!(shown.lines().any(|line| line.starts_with("window.bytes ")), "{shown}");
}

#[test]
fn a_window_that_either_side_does_not_want_is_not_used() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, 8 * MIB);
    tree.put_into(&bucket, "");
    for (theirs, ours) in [(ON, OFF), (OFF, ON)] {
        let worker = worker(&bucket, &[theirs]);
        let mount = mount([&worker], &[ours]);
        tree.verify(&mount.root());
        let file = tree.file("file00");
        reading::verify_backwards(&mount.path("file00"), file.data, file.size);
        assert_eq!((bytes_seen(&mount), worker.counter("/window/connections")), (0, 0), "{theirs} and {ours}");
    }
}

/// Whether a worker here can have memory to share in huge pages, as it can with a tmpfs of its own; says so if not.
fn has_huge_pages_to_share() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    let is_privileged = effective.is_some_and(|capabilities| capabilities >> CAP_SYS_ADMIN & 1 == 1);
    let pages = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
    if !is_privileged {
        skipped("memory that is shared by default: no CAP_SYS_ADMIN");
    } else if pages.is_empty() || pages.contains("[deny]") {
        skipped("memory that is shared by default: the kernel gives files no huge pages");
    }
    is_privileged && !pages.is_empty() && !pages.contains("[deny]")
}

#[test]
fn without_a_setting_a_privileged_worker_shares_huge_pages_and_a_mount_reads_there() {
    if !has_huge_pages_to_share() {
        return;
    }
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(1, 24 * MIB + 4321));
    tree.put_into(&bucket, "");
    let worker = worker(&bucket, &[]);
    let mount = mount([&worker], &[]);
    wait_until_open(&mount, 1);
    let before = bytes_seen(&mount);
    let file = tree.file("file00");
    reading::verify_direct(&mount.path("file00"), file.data, file.size);
    tree.verify(&mount.root());
    assert!(bytes_seen(&mount) - before >= file.size, "{}", seen(&mount));
    let log = worker.log_text();
    assert!(log.contains("see this worker's memory") && !log.contains("Small"), "{log}");
}

/// A mount that does not answer; it goes on when this is dropped, and then readers through it may end.
struct Stopped<'a> {
    mount: &'a Mount,
    done: &'a AtomicBool,
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        signal(self.mount.pid(), Signal::CONT);
    }
}

#[test]
fn a_mount_that_is_stopped_in_the_middle_of_reads_costs_another_no_error_and_no_wrong_byte() {
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(1, 64 * MIB));
    tree.put_into(&bucket, "");
    // Half as much as the file.
    let worker = Setup::of(&bucket).memory("32MiB").option(ON).worker(&bucket);
    let (stopped, other) = (mount([&worker], &[ON]), mount([&worker], &[ON]));
    wait_until_open(&stopped, 1);
    wait_until_open(&other, 1);
    let (file, done) = (tree.file("file00"), AtomicBool::new(false));
    let (path, path_of_other) = (&stopped.path("file00"), &other.path("file00"));
    let pinned = || worker.counter("/window/pinned_bytes");
    std::thread::scope(|scope| {
        // In order, so that it is shown bytes ahead.
        let reader = scope.spawn(|| {
            let open = reading::DirectFile::open(path).unwrap();
            for block in (0..file.size / MIB).cycle() {
                open.verify(path, file.data, file.size, block * MIB, MIB as usize);
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let guard = Stopped { mount: &stopped, done: &done };
        eventually("it is stopped while it looks at something", SOON, || {
            forebay_testkit::stop_process(stopped.pid()).unwrap();
            let is_looking = pinned() > 0;
            if !is_looking {
                signal(stopped.pid(), Signal::CONT);
            }
            is_looking
        });
        let began = Instant::now();
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                scope.spawn(move || {
                    let open = reading::DirectFile::open(path_of_other).unwrap();
                    // Every fourth of the kernel's requests, of 1 MiB, goes across the end of a block.
                    let first = 4096 * (1 + reader);
                    for offset in (first..file.size).step_by(MIB as usize) {
                        open.verify(path_of_other, file.data, file.size, offset, MIB as usize);
                    }
                })
            })
            .collect();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        let max = bound(Duration::from_secs(60), Duration::from_secs(300));
        assert!(began.elapsed() < max, "{:?} for {} bytes", began.elapsed(), file.size);
        assert!(pinned() > 0, "what a stopped mount looks at is kept");
        drop(guard);
        reader.join().unwrap();
    });
    for mount in [&stopped, &other] {
        assert_eq!(mount.own_stats()["client"]["failed_reads"], 0);
    }
    eventually("nothing is pinned any more", SOON, || pinned() == 0);
}

#[test]
fn workers_that_are_killed_while_their_memory_is_read_cost_no_reader_an_error_or_a_wrong_byte() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, 48 * MIB);
    tree.put_into(&bucket, "");
    let mut workers = [worker(&bucket, &[ON]), worker(&bucket, &[ON])];
    let mount = mount(&workers, &[ON]);
    wait_until_open(&mount, 2);
    reading::read_while(&mount.root(), tree.file("file00"), 4, |progress| {
        progress.reads_on(200);
        for worker in &mut workers {
            worker.kill();
            progress.reads_on(200);
            worker.start_again();
            wait_until_open(&mount, 2);
            let before = bytes_seen(&mount);
            progress.reads_on(200);
            eventually("its memory is read again", SOON, || bytes_seen(&mount) > before);
        }
    });
    let file = tree.file("file00");
    reading::verify(&mount.path("file00"), file.data, file.size);
}

#[test]
fn a_worker_that_is_silent_while_its_memory_is_read_costs_a_read_no_more_than_the_liveness_bound() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, 48 * MIB);
    tree.put_into(&bucket, "");
    let workers = [worker(&bucket, &[ON]), worker(&bucket, &[ON])];
    let mount = mount(&workers, &[ON, "network.tcp.keepalive=200ms", "network.tcp.dead_after=1s"]);
    wait_until_open(&mount, 2);
    let address = workers[0].address().to_string();
    let read_there = || {
        let links = seen(&mount)["workers"].as_array().cloned().unwrap_or_default();
        links.iter().filter(|link| link["worker"] == *address).filter_map(|link| link["bytes"].as_u64()).sum::<u64>()
    };
    let longest = reading::read_while(&mount.root(), tree.file("file00"), 4, |progress| {
        progress.reads_on(200);
        workers[0].freeze();
        progress.reads_on(500);
        workers[0].thaw();
        let before = read_there();
        eventually("its memory is read again", SOON, || read_there() > before + MIB);
    });
    // `dead_after`, what else a read on a busy machine takes, and a connection that is only tried.
    assert!(longest < bound(Duration::from_secs(6), Duration::from_secs(30)), "a read took {longest:?}");
}

#[test]
fn a_worker_that_must_evict_what_is_read_shows_no_byte_of_anything_else() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, 96 * MIB);
    tree.put_into(&bucket, "");
    let worker = Setup::of(&bucket).memory("32MiB").option(ON).worker(&bucket);
    let mount = mount([&worker], &[ON]);
    wait_until_open(&mount, 1);
    let file = tree.file("file00");
    let (root, path) = (mount.root(), mount.path("file00"));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mapped = scope.spawn(|| {
            let mapping = Mapping::of(&path, file.size as usize).unwrap();
            let mut at = 0;
            while !done.load(Ordering::Relaxed) {
                let range = at..at + MIB as usize;
                let bytes = mapping.read(range.clone()).unwrap();
                assert_eq!(file.data.first_difference(range.start as u64, &bytes), None, "mapped");
                // As the kernel would for want of memory.
                reading::forget_pages(&path);
                at = (at + 11 * MIB as usize) % (file.size - MIB) as usize / 4096 * 4096;
            }
        });
        let root = &root;
        let readers: Vec<_> = (0..3)
            .map(|seed| scope.spawn(move || reading::verify_random_ranges(root, file, 100, 6 * MIB, seed)))
            .collect();
        reading::verify(&path, file.data, file.size);
        reading::verify_backwards(&path, file.data, file.size);
        for reader in readers {
            reader.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        mapped.join().unwrap();
    });
    assert!(worker.counter("/store/memory/runs_evicted") > 0);
    assert!(bytes_seen(&mount) > 0, "{}", seen(&mount));
    assert_eq!(mount.own_stats()["client"]["failed_reads"], 0);
    eventually("nothing is pinned any more", SOON, || worker.counter("/window/pinned_bytes") == 0);
}

#[test]
fn a_mount_that_is_killed_leaves_nothing_pinned() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, 24 * MIB);
    tree.put_into(&bucket, "");
    let worker = worker(&bucket, &[ON]);
    let mount = mount([&worker], &[ON]);
    wait_until_open(&mount, 1);
    let path = mount.path("file00");
    std::thread::scope(|scope| {
        // It ends with an error, when the mount is gone.
        let reader = scope.spawn(|| {
            let file = reading::DirectFile::open(&path).unwrap();
            while file.read_at(0, MIB as usize).is_ok() {}
        });
        eventually("it is read", SOON, || bytes_seen(&mount) > 4 * MIB);
        mount.kill();
        let _ = finish(forebay(&[]).arg("umount").arg(mount.root()), SOON).succeeded();
        reader.join().unwrap();
    });
    eventually("the worker has it back", SOON, || {
        worker.counter("/window/connections") == 0 && worker.counter("/window/pinned_bytes") == 0
    });
}
