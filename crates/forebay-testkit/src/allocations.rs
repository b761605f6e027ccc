//! An allocator that tells of each allocation, for tests of what allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, which calls a function before each allocation. That must not allocate.
///
/// ```
/// # use std::sync::atomic::{AtomicU64, Ordering};
/// static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// #[global_allocator]
/// static ALLOCATOR: forebay_testkit::Telling = forebay_testkit::Telling(|| {
///     ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
/// });
/// let before = ALLOCATIONS.load(Ordering::Relaxed);
/// drop(std::hint::black_box(Box::new(1)));
/// assert!(ALLOCATIONS.load(Ordering::Relaxed) > before);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Telling(pub fn());

// SAFETY: everything is passed on as it is, and what is told does not allocate.
unsafe impl GlobalAlloc for Telling {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        (self.0)();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        (self.0)();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
