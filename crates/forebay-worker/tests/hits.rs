//! What a read that hits memory takes besides time: no allocation, in the client and in the worker, and no system call
//! there; neither for somebody who has proved who it is and is on the access list of the mount.

#[path = "../benches/common/mod.rs"]
mod common;

use std::cell::Cell;
use std::process::{Command, Stdio};

use common::{Listed, SIZE, Scene, somewhere};
use forebay_testkit::{Telling, skipped};
use forebay_transport::{Caller, Flags, Service};

const HITS: usize = 1000;
/// Says to [`so_many_hits`] how many.
const COUNT: &str = "FOREBAY_TEST_HITS";

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Telling = Telling(|| {
    // A thread that ends allocates where no counter is any more.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
});

/// How often this thread allocates in so many hits, after some that were not counted.
fn allocations(mut hit: impl FnMut()) -> u64 {
    (0..100).for_each(|_| hit());
    let before = ALLOCATIONS.get();
    (0..HITS).for_each(|_| hit());
    ALLOCATIONS.get() - before
}

#[test]
fn a_client_allocates_nothing_for_a_hit() {
    let scene = Scene::new();
    for length in [4 << 10, 1 << 20] {
        let file = scene.open(0);
        let random = allocations(|| assert!(file.try_read(somewhere(length), length).is_some()));
        let looked = allocations(|| assert_eq!(file.try_look(somewhere(length), length, |bytes| bytes.len()), Some(1)));
        // In order: whatever is ahead is in memory already, so nothing is fetched and no task started.
        let (file, mut at) = (scene.open(1), 0);
        let in_order = allocations(|| {
            assert!(file.try_read(at, length).is_some());
            at = (at + u64::from(length)) % SIZE;
        });
        // Over the end of a block: two views of two extents.
        let over_the_end =
            allocations(|| assert_eq!(file.try_read((4 << 20) - 100, length).map(|read| read.len()), Some(2)));
        assert_eq!((random, looked, in_order, over_the_end), (0, 0, 0, 0), "{length} bytes");
    }
}

#[test]
fn a_worker_allocates_nothing_for_a_hit() {
    let scene = Scene::new();
    for (length, flags) in [(4 << 10, Flags::default()), (1 << 20, Flags::default()), (1 << 20, Flags::CHECKSUMS)] {
        let served = allocations(|| {
            let request = scene.request(0, somewhere(length), length).with_flags(flags);
            assert!(scene.worker.try_handle(&request).is_some());
        });
        assert_eq!(served, 0, "{length} bytes with {flags:?}");
    }
}

fn is_hit(listed: &Listed, caller: &Caller, length: u32, flags: Flags) -> bool {
    let request = listed.scene.request(0, somewhere(length), length).with_flags(flags).by(caller.clone());
    listed.scene.worker.try_handle(&request).is_some()
}

#[test]
fn a_worker_allocates_nothing_for_a_hit_of_somebody_on_an_access_list() {
    let listed = Listed::new();
    for (length, flags) in [(4 << 10, Flags::default()), (1 << 20, Flags::default()), (1 << 20, Flags::CHECKSUMS)] {
        assert!(!is_hit(&listed, &listed.stranger, length, flags));
        let served = allocations(|| assert!(is_hit(&listed, &listed.reader, length, flags)));
        assert_eq!(served, 0, "{length} bytes with {flags:?}");
    }
}

/// What the test below runs under strace.
#[test]
#[ignore = "a process of other tests"]
fn so_many_hits() {
    let count: usize =
        std::env::var(COUNT).ok().and_then(|count| count.parse().ok()).expect("another test starts this");
    let listed = Listed::new();
    (0..count).for_each(|_| assert!(is_hit(&listed, &listed.reader, 4 << 10, Flags::default())));
}

/// How many system calls a process makes that hits so often, or why they cannot be counted.
fn system_calls(hits: usize) -> Result<usize, String> {
    let log = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    let status = Command::new("strace")
        .args(["-f", "-q", "-o"])
        .arg(log.path())
        .arg(std::env::current_exe().map_err(|error| error.to_string())?)
        .args(["--exact", "so_many_hits", "--ignored"])
        .env(COUNT, hits.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(|error| format!("strace: {error}"))?;
    if !status.success() {
        return Err(format!("strace counts nothing here: {status}"));
    }
    Ok(std::fs::read_to_string(log.path()).map_err(|error| error.to_string())?.lines().count())
}

#[test]
fn a_worker_makes_no_system_call_for_a_hit_of_somebody_on_an_access_list() {
    let counted = system_calls(HITS).and_then(|few| Ok((few, system_calls(11 * HITS)?)));
    match counted {
        // What a process calls besides differs a little each time.
        Ok((few, many)) => {
            assert!(many < few + HITS / 2, "{few} system calls with {HITS} hits, {many} with ten times more")
        }
        Err(reason) => skipped(&reason),
    }
}
