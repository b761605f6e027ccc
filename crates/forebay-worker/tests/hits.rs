//! What a read that hits memory takes besides time: no allocation, in the client and in the worker.

#[path = "../benches/common/mod.rs"]
mod common;

use std::cell::Cell;

use common::{SIZE, Scene, somewhere};
use forebay_testkit::Telling;
use forebay_transport::{Flags, Service};

const HITS: usize = 1000;

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
