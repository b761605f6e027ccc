//! The header pages of the entries of a ring thread: where the kernel puts what it asks, and finds how it was answered.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Bytes of `struct fuse_uring_req_header`.
pub(super) const HEADER_SIZE: usize = 288;
/// A page for each header: the kernel may one day pin them, and pins pages.
const HEADER_STRIDE: usize = 4096;

/// The header pages of all entries of a thread: one allocation.
#[derive(Debug)]
pub(super) struct Headers {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory; the states of the entries say whose turn it is to touch it.
unsafe impl Send for Headers {}
// SAFETY: as above.
unsafe impl Sync for Headers {}

impl Headers {
    pub(super) fn new(count: usize) -> Self {
        let size = count.max(1).saturating_mul(HEADER_STRIDE);
        // The alignment is a power of two, and the size is far below what `isize` holds: depth and queues are bounded.
        let layout = Layout::from_size_align(size, HEADER_STRIDE).unwrap_or(Layout::new::<[u8; HEADER_STRIDE]>());
        // SAFETY: the layout's size is not zero.
        let Some(base) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        Self { base, layout }
    }

    pub(super) fn at(&self, index: usize) -> NonNull<u8> {
        assert!(index * HEADER_STRIDE + HEADER_SIZE <= self.layout.size());
        // SAFETY: in the allocation, as was just checked.
        unsafe { self.base.add(index * HEADER_STRIDE) }
    }

    pub(super) fn bytes(&self, index: u32, offset: usize, length: usize) -> &[u8] {
        debug_assert!(offset + length <= HEADER_SIZE);
        // SAFETY: inside the header, and called for entries that are ours only, by views that end before the answer.
        unsafe { std::slice::from_raw_parts(self.at(index as usize).add(offset).as_ptr(), length) }
    }

    pub(super) fn read_u32(&self, index: u32, offset: usize) -> u32 {
        // SAFETY: in the page, aligned by the layout of the header; the entry is ours.
        unsafe { self.at(index as usize).add(offset).cast::<u32>().read() }
    }

    pub(super) fn read_u64(&self, index: u32, offset: usize) -> u64 {
        // SAFETY: as above.
        unsafe { self.at(index as usize).add(offset).cast::<u64>().read() }
    }

    pub(super) fn write_u32(&self, index: u32, offset: usize, value: u32) {
        // SAFETY: as above, and no view of the header is left when an answer is written.
        unsafe { self.at(index as usize).add(offset).cast::<u32>().write(value) }
    }
}

impl Drop for Headers {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout and freed once. Entries that the kernel may still write to are leaked
        // whole instead of dropped.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}
