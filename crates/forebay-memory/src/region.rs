//! A range of addresses that stays mapped while it is held.

use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags};

/// Mapped memory, for those who read it or write to it.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    length: usize,
    /// Whether its pages are the same memory for as long as it is mapped.
    is_steady: bool,
    mapped: Arc<Mapped>,
}

/// The addresses of a region, unmapped on drop: the region holds them, and who must know that nothing else is mapped there.
#[derive(Debug)]
pub(crate) struct Mapped {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the region is plain memory that stays mapped until drop; its holder sees to it which thread may access which
// part.
unsafe impl Send for Region {}
// SAFETY: as above; `Region` itself never reads or writes the memory.
unsafe impl Sync for Region {}
// SAFETY: it never reads or writes the memory, and may be unmapped by any thread.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Region {
    /// Zeros of this process's own, to be read and written.
    #[cfg(not(miri))]
    pub(crate) fn anonymous(length: usize, flags: MapFlags) -> rustix::io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no existing memory.
        Self::at(unsafe { rustix::mm::mmap_anonymous(null_mut(), length, protection, flags)? }.cast(), length)
    }

    /// The same of the allocator: Miri knows no mapping with flags.
    #[cfg(miri)]
    pub(crate) fn anonymous(length: usize, flags: MapFlags) -> rustix::io::Result<Self> {
        if flags.contains(MapFlags::HUGETLB) {
            return Err(rustix::io::Errno::NOMEM);
        }
        // SAFETY: mappings have a length.
        Self::at(unsafe { std::alloc::alloc_zeroed(layout(length)) }, length)
    }

    /// The first `length` bytes of `file`, as all processes that map it see them.
    pub(crate) fn shared(file: impl AsFd, length: usize, protection: ProtFlags) -> rustix::io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { rustix::mm::mmap(null_mut(), length, protection, MapFlags::SHARED, file, 0)? };
        Self::at(base.cast(), length)
    }

    fn at(base: *mut u8, length: usize) -> rustix::io::Result<Self> {
        let base = NonNull::new(base).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { base, length, is_steady: false, mapped: Arc::new(Mapped { base, length }) })
    }

    /// It, and whether nobody can put other pages in the place of its own.
    pub(crate) fn steady(mut self, is_steady: bool) -> Self {
        self.is_steady = is_steady;
        self
    }

    pub(crate) fn is_steady(&self) -> bool {
        self.is_steady
    }

    pub(crate) fn mapped(&self) -> &Arc<Mapped> {
        &self.mapped
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }
}

#[cfg(miri)]
fn layout(length: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(length, 4096).expect("far below what the address space has")
}

#[cfg(miri)]
impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it came from there with this layout; every view holds the region alive, which holds this, so no view is left.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), layout(self.length)) }
    }
}

#[cfg(not(miri))]
impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range is the whole mapping; every view holds the region alive, which holds this, so no view is left. An error would
        // mean that the range was not mapped, which cannot be acted on.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}
