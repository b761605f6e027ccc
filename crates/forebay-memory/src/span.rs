//! Views of an extent: one that may write, or many that may read.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use forebay_types::ByteSize;
use rustix::mm::MapFlags;
use smallvec::SmallVec;

use crate::error::PoolError;
use crate::frames::Slot;
use crate::place::Place;
use crate::pool::{Extent, Pool};
use crate::region::Region;
use crate::registrable::Registrable;

/// The views that together make up one read: one in most cases, two where a read crosses from run to run.
pub type Spans = SmallVec<[Span; 2]>;

/// What other threads did before they let go of a view of `extent` happened before this.
#[cfg(not(thread_sanitizer))]
fn acquire(_extent: &Arc<Extent>) {
    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
}

/// The same without a fence, which ThreadSanitizer does not know.
#[cfg(thread_sanitizer)]
fn acquire(extent: &Arc<Extent>) {
    drop(Arc::downgrade(extent).upgrade());
}

/// The only view of some bytes of an extent: to be filled, then frozen.
///
/// ```
/// use forebay_memory::{Pool, PoolOptions};
/// use forebay_types::ByteSize;
///
/// let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(8)))?;
/// let mut filling = pool.try_alloc(1000).expect("an empty pool has room");
/// filling.copy_from_slice(&[7; 1000]);
/// let whole = filling.freeze();
/// let part = whole.slice(10..20);
/// drop(whole);
/// // The part keeps all of the extent.
/// assert_eq!((&part[..], pool.used()), (&[7; 10][..], part.extent_size() as u64));
/// drop(part);
/// assert_eq!(pool.used(), 0);
/// # Ok::<(), forebay_memory::PoolError>(())
/// ```
pub struct SpanMut {
    extent: Arc<Extent>,
    start: usize,
    end: usize,
}

/// A frame of a pool whose memory the kernel has for as long as this lives: for a file, say. To the pool it is in use.
pub struct LentFrame {
    frame: SpanMut,
}

/// A shared view of bytes that no longer change. Clones and slices hold the extent alive.
#[derive(Clone)]
pub struct Span {
    extent: Arc<Extent>,
    start: usize,
    end: usize,
}

impl SpanMut {
    /// The whole of a new extent, of which there is no other view.
    pub(crate) fn new(extent: Extent, length: usize) -> Self {
        debug_assert!(length <= extent.size());
        Self { extent: Arc::new(extent), start: 0, end: length }
    }

    /// Splits into `..mid` and `mid..`, to be filled independently.
    ///
    /// # Panics
    /// When `mid` is beyond the end.
    #[must_use]
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        assert!(mid <= self.len(), "split at {mid} of {}", self.len());
        let middle = self.start + mid;
        let head = Self { extent: Arc::clone(&self.extent), start: self.start, end: middle };
        (head, Self { extent: self.extent, start: middle, end: self.end })
    }

    /// The reverse of [`SpanMut::split_at`]: one view of the bytes of both, if `next` begins where this one ends.
    ///
    /// # Errors
    /// Both as they were, if it does not, or is of another extent.
    pub fn joined(self, next: Self) -> Result<Self, (Self, Self)> {
        if !Arc::ptr_eq(&self.extent, &next.extent) || self.end != next.start {
            return Err((self, next));
        }
        // Each is the only view of its bytes, so the new one is the only view of all of them.
        Ok(Self { extent: self.extent, start: self.start, end: next.end })
    }

    /// Where the bytes lie. Unlike a pointer that is made of the slice, this one may be used again after the extent was
    /// written to through another view; the caller decides which thread may do so, and when.
    #[must_use]
    pub fn pointer(&self) -> NonNull<u8> {
        // SAFETY: the view lies in the extent.
        unsafe { self.extent.pointer().add(self.start) }
    }

    /// Lends the memory behind a whole frame ([`FRAME_SIZE`](crate::FRAME_SIZE) bytes) to the kernel, until the frame is dropped:
    /// then it is the pool's again, and is backed anew when it is filled. [`Pool::warm_up`](crate::Pool::warm_up) leaves it out
    /// meanwhile. Not for a pool that is registered with a card, which would go on with the memory that it knows.
    ///
    /// # Errors
    /// When this is no whole frame, or there is another view of it, or its memory would be of no use to the kernel: reserved huge
    /// pages, a sealed file.
    pub fn lend(mut self) -> io::Result<LentFrame> {
        Arc::get_mut(&mut self.extent).ok_or(io::ErrorKind::InvalidInput)?.lend()?;
        Ok(LentFrame { frame: self })
    }

    /// Whether the bytes are of this pool.
    #[must_use]
    pub fn is_of(&self, pool: &Pool) -> bool {
        self.extent.is_of(pool)
    }

    /// The NUMA node that the bytes lie on, on a machine with several where the kernel was told.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        self.extent.numa_node()
    }

    /// Keeps the first `length` bytes; no effect when there are fewer.
    pub fn truncate(&mut self, length: usize) {
        self.end = self.end.min(self.start.saturating_add(length));
    }

    /// Makes the bytes readable by many and writable by none.
    #[must_use]
    pub fn freeze(self) -> Span {
        Span { extent: self.extent, start: self.start, end: self.end }
    }
}

impl Drop for LentFrame {
    fn drop(&mut self) {
        // Before the extent is anybody else's.
        self.frame.extent.is_back();
    }
}

impl Deref for SpanMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie in the extent, are initialised (mappings start as zeros), and no other view of them
        // exists: `new` takes an unshared extent and `split_at` cuts without overlap.
        unsafe { std::slice::from_raw_parts(self.extent.base().add(self.start), self.end - self.start) }
    }
}

impl DerefMut for SpanMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes this the only borrow of the only view.
        unsafe { std::slice::from_raw_parts_mut(self.extent.base().add(self.start), self.end - self.start) }
    }
}

impl Span {
    /// The whole of an extent that another process lends.
    pub(crate) fn lent(extent: Extent) -> Self {
        let end = extent.size();
        Self { extent: Arc::new(extent), start: 0, end }
    }

    /// The same bytes in memory of their own, which is of no pool and given back to the system when the last view of it is gone.
    ///
    /// # Errors
    /// When the system has none.
    pub fn copied(&self) -> Result<Self, PoolError> {
        let failed = |error| PoolError::Map { size: ByteSize::bytes(self.len() as u64), error };
        // An extent's length, at most, which is far less than 4 GiB.
        let (length, flags) = (self.len() as u32, MapFlags::PRIVATE);
        let region = Arc::new(Region::anonymous(self.len().max(1), flags).map_err(failed)?);
        let base = region.base();
        // SAFETY: a new mapping of at least as many bytes, which no other code knows of.
        unsafe { std::ptr::copy_nonoverlapping(self.as_ptr(), base.as_ptr(), self.len()) };
        Ok(Self::lent(Extent::lent(base, length, region, Arc::new(()))))
    }

    /// The bytes `range` of this view.
    ///
    /// # Panics
    /// When the range is reversed or beyond the end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "slice {range:?} of {}", self.len());
        Self { extent: Arc::clone(&self.extent), start: self.start + range.start, end: self.start + range.end }
    }

    /// Where the bytes lie in the mapping of their pool; `None` for those of another process.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        let offset = self.extent.slot()?.offset() + self.start;
        // At most an extent: far less than 4 GiB.
        Some(Place { offset: offset as u64, length: self.len() as u32 })
    }

    /// The mapping that the bytes lie in, where a device may register it: that of another process's memory, whose pages stay.
    #[must_use]
    pub fn registrable(&self) -> Option<Registrable> {
        Registrable::of(self.extent.region()?)
    }

    /// Memory that the extent takes from its pool, in bytes; of another process's, the bytes that it lends.
    #[must_use]
    pub fn extent_size(&self) -> usize {
        self.extent.size()
    }

    /// The frame of the pool that the extent lies in, counted from 0. Code that wants a whole free frame frees the
    /// extents of one frame together. [`u32::MAX`] for memory of another process, which has no frames here.
    #[must_use]
    pub fn frame(&self) -> u32 {
        self.extent.slot().map_or(u32::MAX, |Slot { frame, .. }| frame)
    }

    /// The `length` bytes of the extent behind this view, to be filled anew. `None` while there is another view of the
    /// extent, when there are fewer bytes, and always for the memory of another process. What was written through views
    /// that are gone is visible.
    #[must_use]
    pub fn reclaim(&mut self, length: usize) -> Option<SpanMut> {
        // There is no other view, and none can be made while this one is borrowed: the bytes behind it belong to no
        // view.
        Arc::get_mut(&mut self.extent)?.slot()?;
        let end = self.end.checked_add(length).filter(|end| *end <= self.extent.size())?;
        Some(SpanMut { extent: Arc::clone(&self.extent), start: self.end, end })
    }

    /// Whether there is another view of the extent. If not, what was written through views that are gone is visible,
    /// and what is written to the extent from now on comes after all reads through those views.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        if Arc::strong_count(&self.extent) > 1 {
            return true;
        }
        acquire(&self.extent);
        false
    }

    /// How many views of the extent exist.
    #[must_use]
    pub fn views(&self) -> usize {
        Arc::strong_count(&self.extent)
    }
}

impl Deref for Span {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie in the extent and are initialised; a `Span` comes from a `SpanMut` that was consumed,
        // so nothing writes to them any more, or from a window: the process that they belong to keeps them as they are
        // for the extent's lease.
        unsafe { std::slice::from_raw_parts(self.extent.base().add(self.start), self.end - self.start) }
    }
}

impl AsRef<[u8]> for Span {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for LentFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentFrame").finish_non_exhaustive()
    }
}

impl fmt::Debug for SpanMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpanMut({} bytes)", self.len())
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({} bytes)", self.len())
    }
}
