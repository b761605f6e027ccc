//! The pool: hands out extents, takes them back, and lets callers wait when none is free.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_one_sided::Board;
use forebay_types::ByteSize;
use tokio::sync::{Notify, oneshot};

use crate::error::PoolError;
use crate::frames::{FEW_FRAMES, FRAME_SIZE, Frames, MIN_EXTENT, Slot, class_of};
use crate::lent::Lent;
use crate::mapping::Mapping;
use crate::options::PoolOptions;
use crate::pages::PageKind;
use crate::region::Region;
use crate::span::SpanMut;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, timeout};

/// A snapshot of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Bytes in extents that are in use.
    pub used: u64,
    /// Bytes in all frames.
    pub capacity: u64,
    /// Frames of which no part is in use.
    pub free_frames: u32,
    /// Requests waiting now.
    pub waiting: usize,
    /// Requests that ever had to wait.
    pub waits: u64,
    /// Requests that gave up.
    pub failures: u64,
}

/// A bounded set of extents. Clones are the same pool.
#[derive(Clone, Debug)]
pub struct Pool {
    shared: Arc<PoolShared>,
}

#[derive(Debug)]
struct PoolShared {
    mapping: Mapping,
    max_frames: u32,
    state: Mutex<PoolState>,
    lent: Lent,
    used: AtomicUsize,
    waits: AtomicU64,
    failures: AtomicU64,
    pressure: Notify,
    reached: Notify,
    /// Of memory that peers may read by themselves.
    board: OnceLock<Arc<Board>>,
}

#[derive(Debug)]
struct PoolState {
    frames: Frames,
    waiting: VecDeque<Waiter>,
    /// So many bytes in use are waited for.
    awaited: Option<u64>,
}

#[derive(Debug)]
struct Waiter {
    class: u8,
    grant: oneshot::Sender<Extent>,
}

/// A waiter in the queue. However it leaves unserved, with its deadline over or its read given up, those behind it may fit where it
/// did not.
struct InLine<'a> {
    granted: oneshot::Receiver<Extent>,
    is_served: bool,
    pool: &'a Arc<PoolShared>,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        if !self.is_served {
            self.granted.close();
            PoolShared::serve_waiting(self.pool);
        }
    }
}

/// A piece of a pool's mapping, or of another process's that is lent; given back on drop.
#[derive(Debug)]
pub(crate) struct Extent {
    base: NonNull<u8>,
    owner: Owner,
}

/// Whose an extent is.
#[derive(Debug)]
enum Owner {
    Pool {
        slot: Slot,
        pool: Arc<PoolShared>,
    },
    /// Of another process, through a window.
    Other {
        length: u32,
        _lease: Arc<dyn Any + Send + Sync>,
        _region: Arc<Region>,
    },
}

// SAFETY: an extent owns its bytes, or they are lent to it to be read; `Span` and `SpanMut` decide which code may
// access them.
unsafe impl Send for Extent {}
// SAFETY: as above.
unsafe impl Sync for Extent {}

impl Extent {
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.base
    }

    /// `length` bytes of another process at `base` in `region`.
    pub(crate) fn lent(base: NonNull<u8>, length: u32, region: Arc<Region>, lease: Arc<dyn Any + Send + Sync>) -> Self {
        Self { base, owner: Owner::Other { length, _lease: lease, _region: region } }
    }

    pub(crate) fn size(&self) -> usize {
        match &self.owner {
            Owner::Pool { slot, .. } => slot.size(),
            Owner::Other { length, .. } => *length as usize,
        }
    }

    /// Lends the memory behind it to the kernel, if it is a whole frame of a pool. The caller has the only view of it, and does not
    /// touch it before [`Extent::is_back`].
    pub(crate) fn lend(&self) -> rustix::io::Result<()> {
        match &self.owner {
            Owner::Pool { slot, pool } if slot.size() == FRAME_SIZE => {
                pool.lent.lend(slot.frame, || pool.mapping.give_up(bytes_of(slot.frame)))
            }
            Owner::Pool { .. } | Owner::Other { .. } => Err(rustix::io::Errno::INVAL),
        }
    }

    /// It is the pool's again, to be backed anew.
    pub(crate) fn is_back(&self) {
        if let Owner::Pool { slot, pool } = &self.owner {
            pool.lent.is_back(slot.frame);
        }
    }

    /// The NUMA node that it lies on, if the kernel was told.
    pub(crate) fn numa_node(&self) -> Option<u32> {
        match &self.owner {
            Owner::Pool { slot, pool } => pool.mapping.node_of(slot.offset()),
            Owner::Other { .. } => None,
        }
    }

    /// Whether it is a piece of this pool.
    pub(crate) fn is_of(&self, pool: &Pool) -> bool {
        match &self.owner {
            Owner::Pool { pool: owner, .. } => Arc::ptr_eq(owner, &pool.shared),
            Owner::Other { .. } => false,
        }
    }

    /// The mapping of another process's memory that it lies in.
    pub(crate) fn region(&self) -> Option<&Arc<Region>> {
        match &self.owner {
            Owner::Pool { .. } => None,
            Owner::Other { _region: region, .. } => Some(region),
        }
    }

    /// Where it lies in its pool.
    pub(crate) fn slot(&self) -> Option<Slot> {
        match &self.owner {
            Owner::Pool { slot, .. } => Some(*slot),
            Owner::Other { .. } => None,
        }
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        if let Owner::Pool { slot, pool } = &self.owner {
            pool.release(*slot);
        }
    }
}

impl Pool {
    /// Maps a pool.
    ///
    /// # Errors
    /// [`PoolError::Sizes`] and [`PoolError::Map`].
    pub fn new(options: PoolOptions) -> Result<Self, PoolError> {
        let PoolOptions { initial, max, huge_pages, sharing } = options;
        if initial > max || max < ByteSize::bytes(FRAME_SIZE as u64) {
            return Err(PoolError::Sizes { initial, max });
        }
        let map_error = |error| PoolError::Map { size: max, error };
        let frames = |size: ByteSize| u32::try_from(size.as_u64().div_ceil(FRAME_SIZE as u64));
        let max_frames = frames(max).map_err(|_| map_error(rustix::io::Errno::OVERFLOW))?;
        let initial_frames = frames(initial).unwrap_or(max_frames).max(1);
        let mapping = Mapping::new(max_frames as usize * FRAME_SIZE, huge_pages, sharing).map_err(map_error)?;
        let state = PoolState { frames: Frames::new(initial_frames), waiting: VecDeque::new(), awaited: None };
        Ok(Self {
            shared: Arc::new(PoolShared {
                mapping,
                max_frames,
                state: Mutex::new(state),
                lent: Lent::none(),
                used: AtomicUsize::new(0),
                waits: AtomicU64::new(0),
                failures: AtomicU64::new(0),
                pressure: Notify::new(),
                reached: Notify::new(),
                board: OnceLock::new(),
            }),
        })
    }

    /// `length` bytes, now or not at all. Their contents are whatever was there before.
    #[must_use]
    pub fn try_alloc(&self, length: usize) -> Option<SpanMut> {
        let class = class_of(length)?;
        let mut state = self.shared.state.lock();
        // Callers that wait were here first.
        if state.anyone_waiting() {
            return None;
        }
        let slot = self.shared.take(&mut state, class)?;
        drop(state);
        Some(SpanMut::new(PoolShared::extent(&self.shared, slot), length))
    }

    /// `length` bytes, waiting in line for up to `deadline`.
    ///
    /// # Errors
    /// [`PoolError::TooLarge`] and [`PoolError::Exhausted`].
    pub async fn alloc(&self, length: usize, deadline: Duration) -> Result<SpanMut, PoolError> {
        let class = class_of(length).ok_or(PoolError::TooLarge(length))?;
        let mut line = {
            let mut state = self.shared.state.lock();
            if !state.anyone_waiting()
                && let Some(slot) = self.shared.take(&mut state, class)
            {
                drop(state);
                return Ok(SpanMut::new(PoolShared::extent(&self.shared, slot), length));
            }
            let (grant, granted) = oneshot::channel();
            state.waiting.push_back(Waiter { class, grant });
            InLine { granted, is_served: false, pool: &self.shared }
        };
        self.shared.waits.fetch_add(1, Ordering::Relaxed);
        self.shared.pressure.notify_one();
        match timeout(deadline, &mut line.granted).await {
            Ok(Ok(extent)) => {
                line.is_served = true;
                Ok(SpanMut::new(extent, length))
            }
            // The sender lives in the queue until it grants, so a closed channel cannot be; treat it as no grant.
            Ok(Err(_)) | Err(_) => {
                self.shared.failures.fetch_add(1, Ordering::Relaxed);
                Err(PoolError::Exhausted { capacity: self.capacity(), waited: deadline })
            }
        }
    }

    /// Has the kernel back the first `size` bytes of the pool with memory, one frame at a time, for as long as `goes_on`
    /// returns true. The first use of that memory then costs no more than later uses. Takes seconds for some ten GiB;
    /// the pool can be used meanwhile. Frames that are lent, or are meanwhile, are left out.
    ///
    /// # Errors
    /// [`PoolError::Map`] when there is not so much memory.
    pub fn warm_up(&self, size: ByteSize, mut goes_on: impl FnMut() -> bool) -> Result<(), PoolError> {
        // The mapping's length, at most, which fits the address space.
        let length = size.min(self.capacity()).as_u64() as usize;
        let PoolShared { mapping, lent, max_frames, .. } = &*self.shared;
        for frame in 0..*max_frames {
            let bytes = bytes_of(frame);
            if bytes.start >= length || !goes_on() {
                break;
            }
            let wanted = bytes.start..bytes.end.min(length);
            lent.back(frame, || mapping.prewarm(wanted), || mapping.give_up(bytes))
                .map_err(|error| PoolError::Map { size: self.capacity(), error })?;
        }
        Ok(())
    }

    /// The size that the pool may grow to.
    #[must_use]
    pub fn capacity(&self) -> ByteSize {
        ByteSize::bytes(u64::from(self.shared.max_frames) * FRAME_SIZE as u64)
    }

    /// The size that the pool has grown to.
    #[must_use]
    pub fn size(&self) -> ByteSize {
        ByteSize::bytes(u64::from(self.shared.state.lock().frames.count()) * FRAME_SIZE as u64)
    }

    /// Bytes in use now, without taking a lock.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.shared.used.load(Ordering::Relaxed) as u64
    }

    /// A snapshot for metrics and for eviction.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        let state = self.shared.state.lock();
        let ungrown = self.shared.max_frames - state.frames.count();
        Occupancy {
            used: self.used(),
            capacity: self.capacity().as_u64(),
            free_frames: state.frames.free_frames() + ungrown,
            waiting: state.waiting.len(),
            waits: self.shared.waits.load(Ordering::Relaxed),
            failures: self.shared.failures.load(Ordering::Relaxed),
        }
    }

    /// Resolves when a caller has begun to wait for memory since the last call.
    pub async fn pressure(&self) {
        self.shared.pressure.notified().await;
    }

    /// Resolves when so many bytes are in use, or were since the call. For one caller at a time.
    pub async fn reaches(&self, bytes: u64) {
        {
            let mut state = self.shared.state.lock();
            if self.used() >= bytes {
                return;
            }
            state.awaited = Some(bytes);
        }
        self.shared.reached.notified().await;
    }

    /// What pages the mapping got.
    #[must_use]
    pub fn pages(&self) -> PageKind {
        self.shared.mapping.pages()
    }

    /// What another process sees the memory through ([`Window::map`](crate::Window::map)), open for reading only; `None` when it is
    /// private.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.shared.mapping.descriptor()
    }

    /// Whether the kernel has backed anything of a frame of a private pool with memory.
    #[cfg(all(test, not(miri)))]
    pub(crate) fn is_backed(&self, frame: u32) -> bool {
        self.shared.mapping.is_backed(bytes_of(frame))
    }

    /// Peers may read the pool's memory by themselves: it gets a board for the seals of what they read, one for each sector, if it has
    /// none.
    pub fn let_peers_read(&self) -> &Arc<Board> {
        self.shared.board.get_or_init(|| Board::new(self.shared.mapping.length() / MIN_EXTENT))
    }

    /// Its board. `None`: no peer reads its memory by itself.
    #[must_use]
    pub fn board(&self) -> Option<&Arc<Board>> {
        self.shared.board.get()
    }

    /// The whole mapping, address and length in bytes, for a transport that registers it with a NIC.
    #[must_use]
    pub fn mapping(&self) -> (NonNull<u8>, usize) {
        (self.shared.mapping.base(), self.shared.mapping.length())
    }
}

/// Where a frame lies in the mapping.
fn bytes_of(frame: u32) -> Range<usize> {
    let start = frame as usize * FRAME_SIZE;
    start..start + FRAME_SIZE
}

impl PoolState {
    /// Whether a caller is in line; callers that left are forgotten.
    fn anyone_waiting(&mut self) -> bool {
        while self.waiting.front().is_some_and(|waiter| waiter.grant.is_closed()) {
            self.waiting.pop_front();
        }
        !self.waiting.is_empty()
    }
}

impl PoolShared {
    /// Takes an extent, growing the pool by one frame when it must and may.
    fn take(&self, state: &mut PoolState, class: u8) -> Option<Slot> {
        let slot = state.frames.alloc(class).or_else(|| {
            let grown = state.frames.count() + 1;
            (grown <= self.max_frames).then(|| state.frames.grow(grown))?;
            state.frames.alloc(class)
        });
        // Without a frame of its own, rather than wait for one. A larger pool has a frame for each size, and what it holds would only
        // become less by that.
        let borrows = self.max_frames <= FEW_FRAMES;
        let slot = slot.or_else(|| borrows.then(|| state.frames.alloc_larger(class)).flatten())?;
        let used = self.used.fetch_add(slot.size(), Ordering::Relaxed) + slot.size();
        if state.awaited.is_some_and(|bytes| used as u64 >= bytes) {
            state.awaited = None;
            self.reached.notify_one();
        }
        Some(slot)
    }

    fn extent(shared: &Arc<Self>, slot: Slot) -> Extent {
        // SAFETY: a slot's offset lies in the mapping, which is `max_frames` frames long.
        let base = unsafe { shared.mapping.base().add(slot.offset()) };
        Extent { base, owner: Owner::Pool { slot, pool: Arc::clone(shared) } }
    }

    fn release(self: &Arc<Self>, slot: Slot) {
        self.used.fetch_sub(slot.size(), Ordering::Relaxed);
        let mut state = self.state.lock();
        state.frames.free(slot);
        let anyone_waiting = state.anyone_waiting();
        drop(state);
        if anyone_waiting {
            Self::serve_waiting(self);
        }
    }

    /// Grants extents to those at the head of the line for as long as they fit.
    fn serve_waiting(shared: &Arc<Self>) {
        loop {
            let mut state = shared.state.lock();
            if !state.anyone_waiting() {
                return;
            }
            let Some(class) = state.waiting.front().map(|waiter| waiter.class) else { return };
            let Some(slot) = shared.take(&mut state, class) else { return };
            let waiter = state.waiting.pop_front();
            drop(state);
            // Sent without the lock: if the waiter has just given up, the extent drops here, which takes the lock.
            if let Some(waiter) = waiter {
                let _ = waiter.grant.send(Self::extent(shared, slot));
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
