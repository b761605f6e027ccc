//! How much is fetched for what programs read here and there: no more than they ask for, whatever the length of their reads and
//! the way they read, from an origin into an empty cache and from a worker that has everything.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use forebay_e2e::reading::DirectFile;
use forebay_e2e::{Bucket, Mount, Setup, Worker, eventually, is_root, skipped};
use forebay_testkit::{DataSet, is_long_run};
use rustix::fs::Advice;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Of each file that is read at random.
const SIZE: u64 = 96 * MIB;
/// Reads of one file, at most.
const READS: u64 = 8;
/// Lengths of reads. The kernel sends the first as one request, and cuts the others.
const SHORT_LENGTHS: [u64; 2] = [512 * KIB, MIB];
const LONG_LENGTHS: [u64; 2] = [2 * MIB, 4 * MIB];
/// A few hundred bytes of headers besides.
const MAX_AMPLIFICATION: f64 = 1.02;
/// The parts of a read that the kernel cuts, and those of a buffered one whose pages it gets in two steps, are sent side by side. On a
/// machine that does a lot else one may be sent only when the answer to the one before was there, as the next read of a program is
/// that reads in order: then an answer takes so long that this is chance.
const LATENCY: Duration = Duration::from_millis(300);
/// Who asks for nothing in so long, while each answer takes [`LATENCY`], asks for no more.
const QUIET: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(60);
/// How much is fetched ahead of a read of up to 2 MiB by that chance: as much as where each fetch takes long. A longer one has more
/// parts, and each doubles what is fetched ahead.
const BY_CHANCE: u64 = 8 * MIB;
/// How much more than programs read the kernel itself may ask for: of a buffered read whose pages it got in two steps, as on a machine
/// that does a lot else, it takes the second for a read in order. Then the mount sees such a reader, too. Were it to read ahead of
/// every read, it would be twice as much.
const KERNELS_OWN: f64 = 1.5;

/// How a program reads.
#[derive(Clone, Copy, Debug)]
enum Way {
    Direct,
    Buffered,
    /// Buffered, and says that it will read at random.
    Advised,
}

const WAYS: [Way; 3] = [Way::Direct, Way::Buffered, Way::Advised];

fn key(way: Way, length: u64) -> String {
    format!("{way:?}-{}k", length / KIB)
}

/// A file for each way and length, none of which is read twice by one mount.
fn bucket() -> Bucket {
    let bucket = Bucket::new();
    for way in WAYS {
        for length in [SHORT_LENGTHS, LONG_LENGTHS].concat() {
            bucket.put(&key(way, length), DataSet::new(length), SIZE);
        }
    }
    bucket.put("in-order", DataSet::new(1), SIZE);
    bucket
}

/// Reads `length` bytes at every other multiple of it, in an order that jumps about, but for the beginning: there the kernel expects
/// a reader in order, and reads ahead of it. How many bytes.
fn read_at_random(path: &Path, way: Way, length: u64) -> u64 {
    let slots = SIZE / length / 2;
    let reads = slots.min(READS);
    // Opened once: what is opened twice is worth all of it to a mount that has room for it.
    let direct = matches!(way, Way::Direct).then(|| DirectFile::open(path).unwrap());
    let buffered = direct.is_none().then(|| File::open(path).unwrap());
    if let Some(file) = buffered.as_ref().filter(|_| matches!(way, Way::Advised)) {
        rustix::fs::fadvise(file, 0, None, Advice::Random).unwrap();
    }
    for read in 0..reads {
        // 5 is a factor of no number of slots, so that every one comes once.
        let offset = (2 * ((read * 5 + 3) % slots) + 1) * length;
        let mut bytes = vec![0; length as usize];
        if let Some(file) = &direct {
            bytes = file.read_at(offset, length as usize).unwrap();
        }
        if let Some(file) = &buffered {
            file.read_exact_at(&mut bytes, offset).unwrap();
        }
        assert_eq!(bytes.len() as u64, length);
        assert_eq!(DataSet::new(length).first_difference(offset, &bytes), None, "{way:?}, {length} bytes at {offset}");
    }
    reads * length
}

/// Reads the files of these lengths at random; `count` says how many bytes came so far, of which no more may come than are asked for.
#[track_caller]
fn nothing_more_comes_than_is_read(mount: &Mount, what: &str, lengths: &[u64], count: impl Fn() -> u64) {
    let (mut wrong, mut kernels_own) = (Vec::new(), Vec::new());
    for way in WAYS {
        for &length in lengths {
            let (before, answered_before) = (count(), Answered::by(mount));
            let asked = read_at_random(&mount.path(&key(way, length)), way, length);
            let (came, Answered { requests, bytes: answered }) = (count() - before, answered_before.since(mount));
            let told = format!(
                "{way:?}, {} KiB: {came} bytes for {answered} in {requests} requests for {asked}",
                length / KIB
            );
            let of_kernel = if matches!(way, Way::Direct) { asked } else { answered.max(asked) };
            let is_cut = requests > asked / length;
            let by_chance = if is_cut && !is_long_run() { BY_CHANCE << (length / MIB).saturating_sub(2) } else { 0 };
            println!("{what}, {told}");
            if of_kernel as f64 > asked as f64 * KERNELS_OWN {
                kernels_own.push(told);
            } else if came as f64 > of_kernel as f64 * MAX_AMPLIFICATION + by_chance as f64 {
                wrong.push(told);
            }
        }
    }
    assert!(wrong.is_empty(), "{what}: {wrong:?}");
    assert!(kernels_own.is_empty(), "{what}, the kernel read ahead: {kernels_own:?}");
}

/// What the kernel was given, and by how many requests.
struct Answered {
    requests: u64,
    bytes: u64,
}

impl Answered {
    fn by(mount: &Mount) -> Self {
        let stats = mount.own_stats();
        let count = |name: &str| stats["fuse"][name].as_u64().expect("a counter of FUSE");
        Self { requests: count("read_hits") + count("read_misses"), bytes: count("read_bytes") }
    }

    /// What was added.
    fn since(&self, mount: &Mount) -> Self {
        let now = Self::by(mount);
        Self { requests: now.requests - self.requests, bytes: now.bytes - self.bytes }
    }
}

/// What came from workers in other processes.
fn received(mount: &Mount) -> u64 {
    let stats = mount.own_stats();
    stats.pointer("/client/data/bytes_received").and_then(|bytes| bytes.as_u64()).expect("bytes_received")
}

fn over_tcp(worker: &Worker) -> Mount {
    Setup::of_user().options(&["network.shared_memory=off", "client.memory.size=256MiB"]).mount([worker])
}

#[test]
fn random_reads_of_an_empty_cache_take_from_the_origin_what_they_ask_for() {
    if !is_root() {
        return skipped("only root sets how far the kernel reads ahead");
    }
    let bucket = bucket();
    let mount = Setup::of(&bucket).memory("1GiB").up(&bucket);
    let fetched = || bucket.proxy().counts().bytes;
    bucket.proxy().set_latency(LATENCY);
    nothing_more_comes_than_is_read(&mount, "cold", &SHORT_LENGTHS, fetched);
    nothing_more_comes_than_is_read(&mount, "cold", &LONG_LENGTHS, fetched);
}

#[test]
fn random_reads_take_from_a_worker_what_they_ask_for_whether_it_has_it_or_not() {
    if !is_root() {
        return skipped("only root sets how far the kernel reads ahead");
    }
    let bucket = bucket();
    let worker = Setup::of(&bucket).memory("1GiB").worker(&bucket);
    let cold = over_tcp(&worker);
    let before = bucket.proxy().counts().bytes;
    bucket.proxy().set_latency(LATENCY);
    nothing_more_comes_than_is_read(&cold, "cold, over TCP", &SHORT_LENGTHS, || received(&cold));
    nothing_more_comes_than_is_read(&cold, "cold, over TCP", &LONG_LENGTHS, || received(&cold));
    let fetched = bucket.proxy().counts().bytes - before;
    assert!(fetched as f64 <= received(&cold) as f64 * MAX_AMPLIFICATION, "the worker fetched {fetched}");

    // What was fetched ahead of those reads may still be on its way.
    drop(cold);
    let mut before = bucket.proxy().counts().object_gets;
    eventually("the worker asks the origin for no more", SOON, || {
        std::thread::sleep(QUIET);
        let now = bucket.proxy().counts().object_gets;
        std::mem::replace(&mut before, now) == now
    });
    let warm = over_tcp(&worker);
    nothing_more_comes_than_is_read(&warm, "warm, over TCP", &SHORT_LENGTHS, || received(&warm));
    assert_eq!(bucket.proxy().counts().object_gets, before, "the worker had it all");
}

/// A worker that has it answers at once, so that this is for a machine that does nothing else.
#[test]
fn random_reads_that_the_kernel_cuts_take_from_a_worker_that_has_it_what_they_ask_for() {
    if !is_root() {
        return skipped("only root sets how far the kernel reads ahead");
    }
    if !is_long_run() {
        return skipped("needs FOREBAY_TEST_LONG=1, and a machine that does nothing else");
    }
    let bucket = bucket();
    let worker = Setup::of(&bucket).memory("1GiB").worker(&bucket);
    for (what, gets) in [("cold, over TCP", true), ("warm, over TCP", false)] {
        let (mount, before) = (over_tcp(&worker), bucket.proxy().counts().object_gets);
        nothing_more_comes_than_is_read(&mount, what, &LONG_LENGTHS, || received(&mount));
        assert_eq!(bucket.proxy().counts().object_gets > before, gets, "{what}");
    }
}

#[test]
fn reads_in_order_are_still_fetched_ahead_of_whatever_their_length() {
    let bucket = bucket();
    let worker = Setup::of(&bucket).memory("1GiB").worker(&bucket);
    for length in [128 * KIB, MIB, 4 * MIB] {
        let mount = over_tcp(&worker);
        let file = DirectFile::open(&mount.path("in-order")).unwrap();
        for read in 0..SIZE / length {
            file.verify(&mount.path("in-order"), DataSet::new(1), SIZE, read * length, length as usize);
        }
        let stats = mount.own_stats();
        let ahead = stats.pointer("/client/prefetched").and_then(|bytes| bytes.as_u64()).expect("prefetched");
        assert!(ahead > SIZE / 2, "{ahead} bytes were fetched ahead of reads of {length}");
    }
}
