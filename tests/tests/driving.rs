//! A mount and a worker in processes of their own: the thread that took a short read from the kernel has the worker's answer itself, over
//! TCP and through shared memory.

use std::time::Duration;

use forebay_e2e::{Bucket, Mount, Setup, Tree, Worker, eventually, reading};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

const SOON: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;
const SIZE: u64 = 24 * MIB;
const SHORT: u64 = 4096;
const OVER_TCP: &str = "network.shared_memory=off";
const BY_SHARED_MEMORY: &str = "network.shared_memory=on";
/// Longer than an answer takes on a busy machine, most of the time.
const WAIT: &str = "client.drive.wait=5ms";

/// A worker that has all of a file in memory, and a mount that has not.
struct Scene {
    /// Where the file is from; it goes last.
    _bucket: Bucket,
    tree: Tree,
    worker: Worker,
    mount: Mount,
}

fn start(memory: &str, settings: &[&str]) -> Scene {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, SIZE);
    tree.put_into(&bucket, "");
    let worker = Setup::of(&bucket).options(&[memory, "worker.memory.prewarm=false"]).worker(&bucket);
    let setup = Setup::without_origin().options(&[memory, "client.memory.size=8MiB"]).options(settings);
    let mount = setup.mount([&worker]);
    let file = tree.file("file00");
    reading::verify_direct(&mount.path("file00"), file.data, file.size);
    Scene { _bucket: bucket, tree, worker, mount }
}

fn driven(mount: &Mount) -> u64 {
    let stats = mount.own_stats();
    stats["fuse"]["io"]["driven"].as_u64().unwrap_or_else(|| panic!("no `driven` in {stats}"))
}

/// Reads 4 KiB at random places, one after the other, and compares them.
fn read_at_random(mount: &Mount, tree: &Tree, reads: usize, seed: u64) {
    let (file, path) = (tree.file("file00"), mount.path("file00"));
    let open = reading::DirectFile::open(&path).unwrap();
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..reads {
        let offset = random.random_range(0..file.size / SHORT) * SHORT;
        open.verify(&path, file.data, file.size, offset, SHORT as usize);
    }
}

/// Waits until threads of the mount had so many answers themselves.
#[track_caller]
fn until_driven(mount: &Mount, tree: &Tree, times: u64) {
    let (goal, mut seed) = (driven(mount) + times, 0);
    eventually("threads of the mount have answers themselves", SOON, || {
        seed += 1;
        read_at_random(mount, tree, 100, seed);
        driven(mount) >= goal
    });
}

/// What all threads of a process have had of processors.
fn processor_time(pid: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |thread: std::fs::DirEntry| -> u64 {
        // One that has ended since counts nothing.
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        text.split_whitespace().next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
    };
    Duration::from_nanos(threads.filter_map(Result::ok).map(of).sum())
}

/// Waits until both processes together take no more than a fiftieth of a processor: a thread that polls takes a whole one.
#[track_caller]
fn until_idle(mount: &Mount, worker: &Worker) {
    const SECOND: Duration = Duration::from_secs(1);
    eventually("nobody polls", SOON, || {
        let taken = || processor_time(mount.pid()) + processor_time(worker.pid());
        let before = taken();
        std::thread::sleep(SECOND);
        taken().saturating_sub(before) < SECOND / 50
    });
}

#[test]
fn a_thread_of_a_mount_has_the_answers_of_a_worker_itself_over_tcp_and_nobody_polls_afterwards() {
    let Scene { _bucket, tree, worker, mount } = start(OVER_TCP, &[WAIT]);
    until_driven(&mount, &tree, 500);
    until_idle(&mount, &worker);
    // And again, over connections that nobody has used meanwhile.
    until_driven(&mount, &tree, 100);
    assert_eq!(mount.own_stats()["client"]["failed_reads"], 0);
}

#[test]
fn a_thread_of_a_mount_has_the_answers_of_a_worker_itself_through_shared_memory() {
    let Scene { _bucket, tree, worker, mount } = start(BY_SHARED_MEMORY, &[WAIT]);
    eventually("the window is open", SOON, || {
        read_at_random(&mount, &tree, 10, 1);
        mount.own_stats()["window"]["workers"][0]["state"] == "open"
    });
    let seen = || mount.own_stats()["window"]["reads"].as_u64().unwrap_or(0);
    let before = seen();
    until_driven(&mount, &tree, 500);
    // Some may have gone over TCP meanwhile, where the worker showed no more at that moment.
    assert!(seen() - before >= 100);
    eventually("nothing is pinned any more", SOON, || worker.counter("/window/pinned_bytes") == 0);
    until_idle(&mount, &worker);
    assert_eq!(mount.own_stats()["client"]["failed_reads"], 0);
}

#[test]
fn many_readers_at_once_get_the_right_bytes_whoever_receives_them() {
    for memory in [OVER_TCP, BY_SHARED_MEMORY] {
        let Scene { _bucket, tree, worker: _worker, mount } = start(memory, &[WAIT, "fuse.threads=3"]);
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (mount, tree) = (&mount, &tree);
                scope.spawn(move || read_at_random(mount, tree, 500, seed));
            }
        });
        assert_eq!(mount.own_stats()["client"]["failed_reads"], 0, "{memory}");
    }
}

#[test]
fn a_worker_that_is_started_again_costs_a_mount_whose_threads_wait_no_error() {
    let retry = "client.retry.initial_backoff=200ms";
    let Scene { _bucket, tree, mut worker, mount } = start(OVER_TCP, &[WAIT, retry]);
    until_driven(&mount, &tree, 50);
    worker.kill();
    worker.start_again();
    until_driven(&mount, &tree, 50);
    assert_eq!(mount.own_stats()["client"]["failed_reads"], 0);
}

#[test]
fn no_thread_waits_where_none_is_to_or_where_there_is_one_alone() {
    for settings in [["client.drive.wait=0", "fuse.threads=2"], [WAIT, "fuse.threads=1"]] {
        let Scene { _bucket, tree, worker: _worker, mount } = start(OVER_TCP, &settings);
        read_at_random(&mount, &tree, 300, 1);
        assert_eq!(driven(&mount), 0, "{settings:?}");
    }
}
