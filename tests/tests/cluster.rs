//! Several workers behind one mount: they share every file, and the death of one costs time and nothing else.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_e2e::reading::{self, DirectFile, read_while};
use forebay_e2e::{Bucket, Setup, Tree, Worker, eventually, ruled_out_by_mode};
use forebay_testkit::{CannedResponse, CannedServer, ReservedPort, bound};
use forebay_transport::wire::{HEADER_LEN, HELLO_LEN, Hello, PROTOCOL};
use rand::rngs::StdRng;
use rand::{Rng as _, RngCore as _, SeedableRng as _};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
/// Small blocks, so that each of three workers owns some of every file.
const BLOCKS: &str = "block.size=1MiB";
/// No read is sent to two workers, each of which would fetch what it lacks.
const ONCE: &str = "client.hedge.enabled=false";
/// The same in bytes.
const BLOCK_SIZE: u32 = 1 << 20;
const DEFAULT_BLOCK_SIZE: u32 = 4 << 20;
/// So that bytes are sent, though the workers are on the mount's host. `window.rs` has tests like these without.
const NO_WINDOW: &str = "network.shared_memory=off";
/// A disk that answers late on a busy machine is waited for, and the origin is not asked in its place.
const PATIENT: &str = "worker.disk.read_timeout=1m";
/// A mount that notices within a second that a worker is silent, and comes back to it soon.
const IMPATIENT: [&str; 5] =
    [BLOCKS, NO_WINDOW, "network.tcp.keepalive=200ms", "network.tcp.dead_after=1s", "client.retry.max_backoff=1s"];

fn workers(bucket: &Bucket, count: usize) -> Vec<Worker> {
    (0..count).map(|_| Setup::of(bucket).option(BLOCKS).worker(bucket)).collect()
}

#[test]
fn one_file_is_served_by_all_workers() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, (48 << 20) + 1);
    tree.put_into(&bucket, "dir/");
    let workers = workers(&bucket, 3);
    // As in `two_mounts_read_at_once`.
    let mount = Setup::without_origin().options(&[BLOCKS, ONCE, "network.tcp.dead_after=1m"]).mount(&workers);
    let file = tree.file("file00");
    reading::verify(&mount.path("dir/file00"), file.data, file.size);
    let located = mount.ask_of("dir/file00", &["fs", "location", "--json"]).succeeded().text();
    let rows: Vec<Value> = located.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.iter().filter(|row| row["owner"] == true).count(), 49, "{located}");
    for worker in &workers {
        let address = worker.address().to_string();
        let owned = rows.iter().filter(|row| row["worker"] == *address && row["owner"] == true);
        let cached = owned.clone().filter(|row| row["state"] == "cached").count();
        assert!(cached > 0 && cached == owned.count(), "{located}");
        assert!(worker.bytes_served() > 0);
    }
    assert!(bucket.proxy().counts().bytes < file.size + (1 << 20), "each byte was fetched by one worker only");
}

#[test]
fn two_mounts_read_at_once() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(4, 10 << 20);
    tree.put_into(&bucket, "");
    let workers = workers(&bucket, 2);
    // A worker that had no processor for a moment is not one that is gone, in whose place the other would ask the origin.
    let patient = [BLOCKS, ONCE, "network.tcp.dead_after=1m"];
    let mounts = [(), ()].map(|()| Setup::without_origin().options(&patient).mount(&workers));
    std::thread::scope(|scope| {
        for mount in &mounts {
            for file in &tree.files {
                scope.spawn(|| {
                    reading::verify(&mount.path(&file.path), file.data, file.size);
                    reading::verify_direct(&mount.path(&file.path), file.data, file.size);
                });
            }
        }
    });
    assert!(bucket.proxy().counts().bytes < (41 << 20), "the second mount found what the first one had brought");
}

#[test]
fn a_worker_that_is_killed_in_the_middle_of_reads_costs_no_reader_an_error() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, 64 << 20);
    tree.put_into(&bucket, "");
    let mut workers = workers(&bucket, 3);
    let mount = Setup::without_origin().options(&IMPATIENT).option("client.memory.size=8MiB").mount(&workers);
    let file = tree.file("file00");
    let longest = read_while(&mount.root(), file, 4, |progress| {
        let reads_on = |more: u64| {
            let target = progress.reads() + more;
            eventually("readers go on", SOON, || progress.reads() >= target);
        };
        reads_on(200);
        for worker in &mut workers[..2] {
            worker.kill();
            reads_on(300);
        }
        for worker in &mut workers[..2] {
            worker.start_again();
        }
        eventually("the workers are used again", SOON, || workers.iter().all(|worker| worker.bytes_served() > 1 << 20));
    });
    assert!(longest < bound(Duration::from_secs(5), Duration::from_secs(30)), "a read took {longest:?}");
    assert!(mount.log_text().contains("worker is back"));
    reading::verify(&mount.path("file00"), file.data, file.size);
}

#[test]
fn a_worker_that_is_silent_costs_a_read_no_more_than_the_liveness_bound() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, 64 << 20);
    tree.put_into(&bucket, "");
    let workers = workers(&bucket, 3);
    // With hedges it is not the liveness that ends the wait: `hedging.rs` has those.
    let setup = Setup::without_origin().options(&IMPATIENT).options(&[ONCE, "client.memory.size=8MiB"]);
    let mount = setup.mount(&workers);
    let longest = read_while(&mount.root(), tree.file("file00"), 4, |progress| {
        let reads_on = |more: u64| {
            let target = progress.reads() + more;
            eventually("readers go on", SOON, || progress.reads() >= target);
        };
        reads_on(200);
        workers[0].freeze();
        reads_on(500);
        workers[0].thaw();
        let before = workers[0].bytes_served();
        eventually("the worker is used again", SOON, || workers[0].bytes_served() > before + (1 << 20));
    });
    // `dead_after`, and what else a read on a busy machine takes; and 3 s for a connection to it that is only tried.
    assert!(longest < bound(Duration::from_secs(6), Duration::from_secs(30)), "a read took {longest:?}");
}

#[test]
fn with_all_workers_gone_a_read_fails_in_time_and_works_when_one_is_back() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, 8 << 20);
    tree.put_into(&bucket, "");
    let mut workers = workers(&bucket, 2);
    // In good time, and not so soon that a worker without a processor for a moment is taken for one that is gone.
    let mount = Setup::without_origin().options(&IMPATIENT).option("client.request_timeout=20s").mount(&workers);
    let path = mount.path("file00");
    assert_eq!(path.metadata().unwrap().len(), 8 << 20);
    workers[0].kill();
    workers[1].kill();
    let started = Instant::now();
    let error = reading::read_error(&path);
    assert!(started.elapsed() < SOON, "{error} after {:?}", started.elapsed());
    workers[1].start_again();
    let file = tree.file("file00");
    eventually("reads work again", SOON, || reading::read_at(&path, 0, 4096).is_ok());
    reading::verify(&path, file.data, file.size);
}

#[test]
fn a_killed_worker_serves_from_its_disk_when_it_is_back() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(3, 8 << 20);
    tree.put_into(&bucket, "");
    let disk = tempfile::tempdir().unwrap();
    let mut worker = Setup::of(&bucket).memory("256MiB").disk(disk.path(), "128MiB").option(PATIENT).worker(&bucket);
    let mount = Setup::without_origin().mount([&worker]);
    tree.verify(&mount.root());
    worker.wait_for_disk(24 << 20);
    worker.kill();
    worker.start_again();
    let gets = bucket.gets();
    // A mount that has buffered nothing.
    let mount = Setup::without_origin().mount([&worker]);
    tree.verify(&mount.root());
    assert_eq!(bucket.gets(), gets, "all of it was on disk");
    assert!(worker.counter("/worker/bytes_disk") > 0);
}

#[test]
fn what_is_cached_is_read_when_the_origin_is_gone() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(2, 8 << 20);
    tree.put_into(&bucket, "");
    let workers = [(), ()].map(|()| Setup::of(&bucket).option("origin.retry.max_attempts=2").worker(&bucket));
    // With hedges it could be the other worker that has what was read, or both a part of it.
    let mount = Setup::without_origin().option(ONCE).mount(&workers);
    tree.verify_names(&mount.root());
    let (cached, not_cached) = (tree.file("file00"), mount.path("file01"));
    reading::verify(&mount.path("file00"), cached.data, cached.size);
    bucket.proxy().stop();
    reading::verify_direct(&mount.path("file00"), cached.data, cached.size);
    let another = Setup::without_origin().option(ONCE).mount(&workers);
    reading::verify(&another.path("file00"), cached.data, cached.size);
    let started = Instant::now();
    let error = reading::read_error(&not_cached);
    assert!(started.elapsed() < SOON, "{error} after {:?}", started.elapsed());
    bucket.proxy().resume().unwrap();
    tree.verify(&mount.root());
}

#[test]
fn a_mount_of_something_that_is_no_worker_says_what_it_is() {
    if ruled_out_by_mode("a worker of its own speaks plain text") {
        return;
    }
    let web = CannedServer::start(|_| CannedResponse::new(404, "no")).unwrap();
    let refused = Setup::without_origin().prepare_mount(&web.address().to_string()).start();
    refused.failed(4, &[&web.address().to_string(), "Forebay's protocol"]);
    assert!(refused.took < SOON);
}

#[test]
fn a_mount_of_nothing_says_that_nobody_listens() {
    let port = ReservedPort::new().unwrap();
    let address = port.address().to_string();
    let refused = Setup::without_origin().prepare_mount(&address).start();
    refused.failed(4, &[&address, "refused"]);
    assert!(refused.took < SOON);
}

/// A peer that answers every connection with `hello`, and each request with what `answer` gives.
fn peer(hello: Hello, mut answer: impl FnMut() -> Vec<u8> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // It ends with the test's process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // It does not matter if a client leaves again; the other side has the word on what it gets to see.
            let _ = stream.and_then(|mut stream| {
                stream.read_exact(&mut [0; HELLO_LEN])?;
                stream.write_all(&hello.encode())?;
                stream.read_exact(&mut [0; HEADER_LEN])?;
                stream.write_all(&answer())?;
                std::io::copy(&mut stream, &mut std::io::sink())
            });
        }
    });
    address
}

#[test]
fn a_mount_of_a_worker_of_another_version_cluster_or_block_size_says_which() {
    if ruled_out_by_mode("a worker of its own speaks plain text") {
        return;
    }
    let ours = Hello::ours("forebay", DEFAULT_BLOCK_SIZE);
    let newer = Hello { protocol: PROTOCOL + 1, version: "9.8.7".to_owned(), ..ours.clone() };
    let refused = Setup::without_origin().prepare_mount(&peer(newer, Vec::new)).start();
    refused.failed(4, &[&format!("protocol {}", PROTOCOL + 1), "9.8.7", "the same release"]);
    let elsewhere = Hello { cluster: "elsewhere".to_owned(), ..ours.clone() };
    let refused = Setup::without_origin().prepare_mount(&peer(elsewhere, Vec::new)).start();
    refused.failed(4, &["`elsewhere`", "`forebay`"]);
    let smaller = Hello { block_size: BLOCK_SIZE, ..ours };
    let refused = Setup::without_origin().prepare_mount(&peer(smaller, Vec::new)).start();
    refused.failed(4, &["`block.size` is 1MiB", "ours is 4MiB"]);
}

#[test]
fn a_worker_that_answers_garbage_is_passed_over() {
    if ruled_out_by_mode("a worker of its own speaks plain text") {
        return;
    }
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(3, 6 << 20);
    tree.put_into(&bucket, "");
    let worker = Setup::of(&bucket).option(BLOCKS).worker(&bucket);
    let mut random = StdRng::seed_from_u64(5);
    let mut turn = 0;
    let liar = peer(Hello::ours("forebay", BLOCK_SIZE), move || {
        turn += 1;
        let mut bytes = vec![0; 50_000];
        random.fill_bytes(&mut bytes);
        if turn % 2 == 0 {
            // A reply to the first call, with a body and a payload of four gigabytes.
            bytes.splice(..20, *b"FA\0\0\xff\xff\xff\xff\x01\0\0\0\0\0\0\0\xff\xff\xff\xff");
        }
        bytes
    });
    let both = format!("{liar},{}", worker.address());
    let mut mount = Setup::without_origin().options(&IMPATIENT).prepare_mount(&both);
    let _ = mount.start().succeeded();
    tree.verify_names(&mount.root());
    tree.verify(&mount.root());
    assert!(mount.log_text().contains(&liar), "{}", mount.log_text());
}

#[test]
fn sequential_readers_notice_nothing_of_workers_that_come_and_go() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(4, 24 << 20);
    tree.put_into(&bucket, "");
    let mut workers = workers(&bucket, 3);
    let mount = Setup::without_origin().options(&IMPATIENT).option("client.memory.size=16MiB").mount(&workers);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for file in &tree.files {
            let (path, done) = (mount.path(&file.path), &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    reading::verify(&path, file.data, file.size);
                    reading::forget_pages(&path);
                }
            });
        }
        // The readers must end also when something panics here.
        let _end = SetOnDrop(&done);
        for round in 0..6 {
            let worker = &mut workers[round % 3];
            worker.kill();
            worker.start_again();
            eventually("it is used again", SOON, || worker.bytes_served() > 1 << 20);
        }
    });
}

#[test]
fn readers_that_want_more_memory_than_there_is_take_turns() {
    const LENGTH: u64 = 300 << 10;
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, 32 << 20);
    tree.put_into(&bucket, "");
    let worker = Setup::of(&bucket).option(BLOCKS).worker(&bucket);
    // Two frames; a read of two blocks wants memory of two sizes, each in a frame of its own.
    let little = [BLOCKS, NO_WINDOW, "client.memory.size=8MiB"];
    let mount = Setup::without_origin().options(&little).mount([&worker]);
    let file = tree.file("file00");
    let path = mount.path("file00");
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let path = &path;
            scope.spawn(move || {
                let (open, mut random) = (DirectFile::open(path).unwrap(), StdRng::seed_from_u64(seed));
                for _ in 0..150 {
                    let offset = random.random_range(0..(file.size - LENGTH) / 4096) * 4096;
                    open.verify(path, file.data, file.size, offset, LENGTH as usize);
                }
            });
        }
    });
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn garbage_on_the_data_port_costs_its_sender_the_connection_and_no_reader_anything() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, 16 << 20);
    tree.put_into(&bucket, "");
    let worker = Setup::of(&bucket).worker(&bucket);
    let mount = Setup::without_origin().options(&[NO_WINDOW, "client.memory.size=8MiB"]).mount([&worker]);
    let pid = worker.pid();
    let longest = read_while(&mount.root(), tree.file("file00"), 2, |progress| {
        let mut random = StdRng::seed_from_u64(1);
        for round in 0..200 {
            let mut stream = TcpStream::connect(worker.address()).unwrap();
            if round % 3 != 0 {
                stream.write_all(&Hello::ours("forebay", DEFAULT_BLOCK_SIZE).encode()).unwrap();
            }
            let mut bytes = vec![0; random.random_range(1..100_000)];
            random.fill_bytes(&mut bytes);
            if round % 3 == 1 {
                // The start of a request, with a length of four gigabytes.
                bytes.splice(..0, *b"FQ\x01\x00\xff\xff\xff\xff");
            }
            // The worker may close before it has read all of it.
            let _ = stream.write_all(&bytes);
            if round % 2 == 0 {
                let _ = stream.set_read_timeout(Some(SOON));
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
            }
        }
        let target = progress.reads() + 100;
        eventually("readers go on", SOON, || progress.reads() >= target);
    });
    assert!(longest < bound(Duration::from_secs(5), Duration::from_secs(30)), "a read took {longest:?}");
    assert_eq!(worker.pid(), pid);
    assert!(worker.bytes_served() > 0, "it is the same process, and it answers");
    assert!(!worker.log_text().contains("panic"));
}
