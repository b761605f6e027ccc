//! How many bytes are allocated, and the most that ever were: for what a state machine takes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static NOW: AtomicUsize = AtomicUsize::new(0);
static MAX: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted.
pub(crate) struct Counting;

// SAFETY: every call is the system allocator's own; counting touches none of the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MAX.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Bytes that are allocated now.
pub(crate) fn now() -> usize {
    NOW.load(Ordering::Relaxed)
}

/// The most bytes that `work` had allocated at once, beyond what there was before it, and what it gives.
pub(crate) fn most_of<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = now();
    MAX.store(before, Ordering::Relaxed);
    let result = work();
    (MAX.load(Ordering::Relaxed).saturating_sub(before), result)
}
