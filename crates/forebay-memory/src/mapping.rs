//! The memory behind a pool: one mapping, in huge pages when there are some, on the nodes where it is read; private unless it may
//! be shared and can be (`shared.rs`).

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags};

use crate::numa::{self, Placement};
use crate::pages::{HUGE_PAGE, PageKind};
use crate::region::Region;
use crate::shared::{self, SharedMemory, Sharing};

/// Memory, zero-filled at first. Pages are backed by memory when first touched.
#[derive(Debug)]
pub(crate) struct Mapping {
    region: Region,
    pages: PageKind,
    /// What other processes may see it through.
    descriptor: Option<OwnedFd>,
    /// On which nodes the kernel puts it.
    placement: Placement,
}

impl Mapping {
    /// Maps `length` bytes.
    pub(crate) fn new(length: usize, huge_pages: bool, sharing: Sharing) -> rustix::io::Result<Self> {
        let mut mapping = match shared::map(length, huge_pages, sharing) {
            Some(SharedMemory { region, pages, descriptor }) => {
                Self { region, pages, descriptor: Some(descriptor), placement: Placement::Unsaid }
            }
            None => Self::private(length, huge_pages)?,
        };
        // Before the memory is touched: pages that are there already are not moved.
        let placement = if cfg!(miri) { Placement::Unsaid } else { numa::placement() };
        match numa::place(mapping.base(), length, &placement) {
            Ok(()) if placement == Placement::Unsaid => {}
            Ok(()) => {
                tracing::info!(bytes = length, %placement, "memory is placed by node");
                mapping.placement = placement;
            }
            Err(error) => tracing::info!(bytes = length, %placement, %error, "memory cannot be placed by node"),
        }
        Ok(mapping)
    }

    fn private(length: usize, huge_pages: bool) -> rustix::io::Result<Self> {
        if huge_pages && length.is_multiple_of(HUGE_PAGE) {
            // Not NORESERVE: with too few huge pages this must fail here, not with SIGBUS at first touch.
            if let Ok(region) = Region::anonymous(length, MapFlags::PRIVATE | MapFlags::HUGETLB) {
                return Ok(Self { region, pages: PageKind::Huge, descriptor: None, placement: Placement::Unsaid });
            }
        }
        let region = Region::anonymous(length, MapFlags::PRIVATE | MapFlags::NORESERVE)?;
        let mut pages = PageKind::Small;
        if huge_pages && !cfg!(miri) {
            // SAFETY: the range is the mapping just made; LinuxHugepage changes no contents.
            let advised = unsafe { rustix::mm::madvise(region.base().as_ptr().cast(), length, Advice::LinuxHugepage) };
            if advised.is_ok() {
                pages = PageKind::Transparent;
            }
        }
        Ok(Self { region, pages, descriptor: None, placement: Placement::Unsaid })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.region.base()
    }

    pub(crate) fn length(&self) -> usize {
        self.region.length()
    }

    pub(crate) fn pages(&self) -> PageKind {
        self.pages
    }

    /// The NUMA node that the byte at `offset` is to lie on, if the kernel was told.
    pub(crate) fn node_of(&self, offset: usize) -> Option<u32> {
        self.placement.node_of(offset, self.length())
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(OwnedFd::as_fd)
    }

    /// Gives the memory behind `range` of the mapping back to the kernel. What is read there afterwards are zeros, and what is
    /// written there is backed anew. Nobody else may have a view of these bytes, and no card may have registered them: it would
    /// go on with the memory that it knows.
    ///
    /// # Errors
    /// `OPNOTSUPP` for reserved huge pages, which nothing else could use; `PERM` for a sealed file.
    pub(crate) fn give_up(&self, range: Range<usize>) -> rustix::io::Result<()> {
        if self.pages == PageKind::Huge || cfg!(miri) {
            return Err(Errno::OPNOTSUPP);
        }
        if range.start > range.end || range.end > self.length() {
            return Err(Errno::INVAL);
        }
        // A file keeps its pages when a mapping of it lets them go.
        let advice = if self.descriptor.is_some() { Advice::LinuxRemove } else { Advice::LinuxDontNeed };
        // SAFETY: the range lies in the mapping, and nobody relies on what is in these bytes: the caller has the only view of them,
        // which was never filled.
        unsafe { rustix::mm::madvise(self.base().as_ptr().add(range.start).cast(), range.end - range.start, advice) }
    }

    /// Whether a page of `range` is backed with memory: the highest bit of each entry says so.
    #[cfg(all(test, not(miri)))]
    pub(crate) fn is_backed(&self, range: Range<usize>) -> bool {
        use std::os::unix::fs::FileExt as _;

        let page = rustix::param::page_size();
        let first = (self.base().as_ptr() as usize + range.start) / page;
        let mut entries = vec![0; range.len() / page * 8];
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        pagemap.read_exact_at(&mut entries, first as u64 * 8).unwrap();
        entries.chunks_exact(8).any(|entry| entry[7] >> 7 == 1)
    }

    /// Has the kernel back `range` with memory now, as far as it is in the mapping.
    pub(crate) fn prewarm(&self, range: Range<usize>) -> rustix::io::Result<()> {
        let start = range.start.min(self.length());
        let length = range.end.min(self.length()).saturating_sub(start);
        // SAFETY: the range lies in the mapping; LinuxPopulateWrite changes no contents.
        unsafe { rustix::mm::madvise(self.base().as_ptr().add(start).cast(), length, Advice::LinuxPopulateWrite) }
    }
}
