//! The memory of another process's pool, seen from this one.
//!
//! Its bytes are not copied to be read: a [`Span`] is a view of them where they lie. The other process promises that
//! they stay as they are for as long as there is a view. That promise hangs on the *lease*: a value that is dropped
//! with the last view. Then the code that gave the lease tells the other process that it may have its memory back.
//!
//! A file of this process's own that no longer changes is seen in the same way.

use std::any::Any;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::fs::SealFlags;
use rustix::mm::{Advice, ProtFlags};

use crate::place::Place;
use crate::pool::Extent;
use crate::region::Region;
use crate::span::Span;

/// A pool of another process, to be read. Clones are the same mapping.
#[derive(Clone, Debug)]
pub struct Window {
    region: Arc<Region>,
}

impl Window {
    /// Maps the `length` bytes of a pool that `memory`, its [`Pool::descriptor`](crate::Pool::descriptor), leads to.
    ///
    /// # Errors
    /// `InvalidData` when there are fewer, and the kernel's answer.
    pub fn map(memory: BorrowedFd<'_>, length: u64) -> io::Result<Self> {
        let size = u64::try_from(rustix::fs::fstat(memory)?.st_size).unwrap_or(0);
        // What lies beyond the end of a file can be mapped, and a process that reads it is killed.
        if size < length {
            let text = format!("{size} bytes of memory where {length} were promised");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let length = usize::try_from(length).map_err(|_| io::ErrorKind::InvalidData)?;
        let region = Region::shared(memory, length, ProtFlags::READ)?.steady(keeps_its_pages(memory));
        // A core dump of this process is not to hold the other's memory. It is as good a window where that cannot be had.
        // SAFETY: the range is the whole mapping; its bytes and its protection stay as they are.
        let _ = unsafe { rustix::mm::madvise(region.base().as_ptr().cast(), length, Advice::LinuxDontDump) };
        // Leases are this process's: in one that it forks, the bytes could become others at any time. So it has no such memory.
        // SAFETY: as above; the mapping of this process stays as it is.
        unsafe { rustix::mm::madvise(region.base().as_ptr().cast(), length, Advice::LinuxDontFork)? };
        Ok(Self { region: Arc::new(region) })
    }

    /// Bytes in the mapping.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.region.length() as u64
    }

    /// A view of the bytes at `place`, which the other process keeps as they are until `lease` is dropped; that is when the last
    /// clone and slice of the view is gone. `None` beyond the mapping, and where there are none.
    #[must_use]
    pub fn span(&self, place: Place, lease: Arc<dyn Any + Send + Sync>) -> Option<Span> {
        let start = usize::try_from(place.offset).ok()?;
        let end = start.checked_add(place.length as usize)?;
        if start == end || end > self.region.length() {
            return None;
        }
        // SAFETY: it starts within the mapping, as was just seen.
        let base = unsafe { self.region.base().add(start) };
        Some(Span::lent(Extent::lent(base, place.length, Arc::clone(&self.region), lease)))
    }
}

/// Whether nobody can take pages out of the file, to have others in their place later: its seals say so. A file of tmpfs has none, and the
/// process that it belongs to may lend its memory to the kernel ([`SpanMut::lend`](crate::SpanMut::lend)).
fn keeps_its_pages(memory: BorrowedFd<'_>) -> bool {
    // Neither may be punched into: the kernel refuses that with either seal.
    let unwritten = SealFlags::WRITE | SealFlags::FUTURE_WRITE;
    rustix::fs::fcntl_get_seals(memory)
        .is_ok_and(|seals| seals.contains(SealFlags::SHRINK) && seals.intersects(unwritten))
}

// Miri knows no memory that processes share.
#[cfg(all(test, not(miri)))]
mod tests;
