//! The memory behind a pool: one private mapping, in huge pages when there are some, on the nodes where it is read.

use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::numa::{self, Placement};

/// What pages a mapping got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Reserved huge pages (`vm.nr_hugepages`).
    Huge,
    /// Ordinary pages that the kernel may merge into huge ones.
    Transparent,
    /// Ordinary pages.
    Small,
}

/// Huge pages are 2 MiB on x86-64 and, with 4 KiB base pages, on arm64.
const HUGE_PAGE: usize = 2 << 20;

/// A private anonymous mapping, zero-filled, unmapped on drop. Pages are backed by memory when first touched.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    length: usize,
    pages: PageKind,
}

// SAFETY: the mapping is plain memory that stays mapped until drop; who may access which part is the pool's business.
unsafe impl Send for Mapping {}
// SAFETY: as above; `Mapping` itself never reads or writes the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes.
    pub(crate) fn new(length: usize, huge_pages: bool) -> rustix::io::Result<Self> {
        let mapping = Self::map(length, huge_pages)?;
        // Before anybody touches it: what is there is not moved.
        let placement = numa::placement();
        match numa::place(mapping.base, length, &placement) {
            Ok(()) if placement == Placement::Unsaid => {}
            Ok(()) => tracing::info!(bytes = length, ?placement, "memory is placed by node"),
            Err(error) => tracing::info!(bytes = length, ?placement, %error, "memory cannot be placed by node"),
        }
        Ok(mapping)
    }

    fn map(length: usize, huge_pages: bool) -> rustix::io::Result<Self> {
        if huge_pages && length.is_multiple_of(HUGE_PAGE) {
            // Not NORESERVE: with too few huge pages this must fail here, not with SIGBUS at first touch.
            if let Ok(base) = map(length, MapFlags::PRIVATE | MapFlags::HUGETLB) {
                return Ok(Self { base, length, pages: PageKind::Huge });
            }
        }
        let base = map(length, MapFlags::PRIVATE | MapFlags::NORESERVE)?;
        let mut pages = PageKind::Small;
        if huge_pages {
            // SAFETY: the range is the mapping just made; LinuxHugepage changes no contents.
            let advised = unsafe { rustix::mm::madvise(base.as_ptr().cast(), length, Advice::LinuxHugepage) };
            if advised.is_ok() {
                pages = PageKind::Transparent;
            }
        }
        Ok(Self { base, length, pages })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn pages(&self) -> PageKind {
        self.pages
    }

    /// Has the kernel back `range` with memory now, as far as it is in the mapping.
    pub(crate) fn prewarm(&self, range: Range<usize>) -> rustix::io::Result<()> {
        let start = range.start.min(self.length);
        let length = range.end.min(self.length).saturating_sub(start);
        // SAFETY: the range lies in the mapping; LinuxPopulateWrite changes no contents.
        unsafe { rustix::mm::madvise(self.base.as_ptr().add(start).cast(), length, Advice::LinuxPopulateWrite) }
    }
}

fn map(length: usize, flags: MapFlags) -> rustix::io::Result<NonNull<u8>> {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no existing memory.
    let base =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags)? };
    NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the whole mapping; every view holds the pool, and with it this mapping, alive, so no
        // view is left. An error would mean that the range was not mapped, which cannot be acted on.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}
