//! A worker's memory, lent to the materialised files of a mount in the same process (ADR 0036).
//!
//! The worker's pool has frames, and a frame that is lent is one whose memory the kernel has, for the pages of files. So pool and files
//! stay within `worker.memory.size` together. How much that is, and who gives way, is decided in [`budget`]; this carries it out.
//!
//! A file that is whole has its blocks in the worker's store as well: the store adopts its pages and gives its own copy up. What is too
//! small for that stays in both until there is need of room, and goes first then: whoever opened it before it was whole may read it
//! from the store only now.

mod budget;

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use budget::{Budget, Step, StoreUse, most_of};
use forebay_locks::Mutex;
use forebay_materialise::{Lender, SMALL_FILE, WantedBack};
use forebay_memory::{FRAME_SIZE, LentFrame, Place, Window};
use forebay_store::Store;
use forebay_types::{BlockKey, BlockLayout, ByteSize, FileId, SECTOR_SIZE, SectorChecksums};
use tracing::debug;

/// A frame, as the store hands them out: far less than 4 GiB.
const FRAME: u32 = FRAME_SIZE as u32;
/// A pool that could lend less lends nothing, and one that is smaller than this could.
const MIN_LENT: ByteSize = ByteSize::mib(32);
const MIN_POOL: ByteSize = ByteSize::mib(96);
const MIN_SHOWN_POOL: ByteSize = ByteSize::mib(128);
/// So many files are adopted at once, and no small ones: each is a mapping, of which a process may have 65,530.
const MAX_ADOPTED: usize = 8192;

/// Lends memory of a store.
pub(crate) struct StoreLender {
    most: ByteSize,
    /// Whether other workers ask the store for blocks.
    has_peers: bool,
    state: Mutex<LenderState>,
}

struct LenderState {
    /// `None`: nothing is lent any more.
    store: Option<Store>,
    budget: Budget,
    frames: Vec<LentFrame>,
    adopted: HashSet<FileId>,
}

impl StoreLender {
    /// Lends memory of `store`, which no card has registered. `has_peers`: other workers may ask it for blocks.
    ///
    /// # Errors
    /// Why its memory cannot be lent, for people.
    pub(crate) fn over(store: &Store, has_peers: bool) -> Result<Arc<Self>, String> {
        let pool = store.pool();
        let most = most_of(pool.capacity().as_u64(), u64::from(FRAME), pool.descriptor().is_some());
        let most = ByteSize::bytes(most);
        if most < MIN_LENT {
            let least = if pool.descriptor().is_some() { MIN_SHOWN_POOL } else { MIN_POOL };
            return Err(format!("worker.memory.size is below {least}"));
        }
        let frame = store.try_landing(FRAME).ok_or("no memory of the worker is free")?;
        frame.lend().map_err(|error| format!("the worker's memory is in pages that cannot be lent ({error})"))?;
        let budget = Budget::new(most.as_u64(), u64::from(FRAME));
        let state = LenderState { store: Some(store.clone()), budget, frames: Vec::new(), adopted: HashSet::new() };
        Ok(Arc::new(Self { most, has_peers, state: Mutex::new(state) }))
    }

    /// What it lends at most.
    pub(crate) fn most(&self) -> ByteSize {
        self.most
    }

    fn ask(&self, bytes: u64, may_evict: bool) -> Option<(Store, Step)> {
        let mut state = self.state.lock();
        let store = state.store.clone()?;
        let usage = state.store_use(&store);
        let step = state.budget.ask(bytes, may_evict, usage);
        Some((store, step))
    }

    fn took(&self, frame: LentFrame) {
        let mut state = self.state.lock();
        // After the end it is given back at once.
        if state.store.is_some() {
            state.take(frame);
        }
    }

    async fn get(&self, bytes: u64, may_evict: bool) -> bool {
        while let Some((store, step)) = self.ask(bytes, may_evict) {
            match step {
                Step::Enough => return true,
                Step::Refuse => return false,
                Step::GiveUp(key) => store.give_up(&key),
                Step::Take => match frame_of(&store, may_evict).await {
                    Some(frame) => self.took(frame),
                    None => return false,
                },
            }
        }
        false
    }
}

/// A frame of the store, for which it evicts what has to go if it may.
async fn frame_of(store: &Store, may_evict: bool) -> Option<LentFrame> {
    let landing = match store.try_landing(FRAME) {
        Some(landing) => landing,
        None if !may_evict => return None,
        None => store.landing(FRAME).await.inspect_err(|error| debug!(%error, "no frame to lend")).ok()?,
    };
    landing.lend().inspect_err(|error| debug!(%error, "a frame cannot be lent")).ok()
}

impl LenderState {
    fn store_use(&self, store: &Store) -> StoreUse {
        let memory = store.stats().memory;
        StoreUse {
            used: memory.used.saturating_sub(self.budget.frames() * u64::from(FRAME)),
            pinned: memory.pinned_bytes,
            evicted: memory.bytes_evicted,
            is_full: store.is_above_watermark(),
            spare: store.spare_memory(),
        }
    }

    fn take(&mut self, frame: LentFrame) {
        self.frames.push(frame);
        self.budget.took();
        self.tell_store();
    }

    /// Gives so many frames back, which the budget does not count any more.
    fn let_go(&mut self, frames: u64) {
        if frames > 0 {
            let left = self.frames.len().saturating_sub(usize::try_from(frames).unwrap_or(usize::MAX));
            self.frames.truncate(left);
            self.tell_store();
        }
    }

    /// Gives so many frames back, which the budget does not count any more, and takes so many, if that can be at once.
    fn settle(&mut self, store: &Store, (surplus, lacking): (u64, u64)) {
        self.let_go(surplus);
        for _ in 0..lacking {
            // What cannot be had at once is asked for with the next file, or the next time.
            let Some(frame) = store.try_landing(FRAME).and_then(|landing| landing.lend().ok()) else { return };
            self.take(frame);
        }
    }

    fn tell_store(&self) {
        if let Some(store) = &self.store {
            store.set_lent_frames(self.budget.frames());
        }
    }
}

#[async_trait::async_trait]
impl Lender for StoreLender {
    async fn lend(&self, bytes: u64, may_evict: bool) -> bool {
        let lent = self.get(bytes, may_evict).await;
        if !lent {
            // Frames that were taken for it are for nothing.
            self.give_back(0);
        }
        lent
    }

    fn give_back(&self, bytes: u64) {
        let mut state = self.state.lock();
        let surplus = state.budget.give_back(bytes);
        state.let_go(surplus);
    }

    fn lingers(&self, bytes: u64) {
        let mut state = self.state.lock();
        let Some(store) = state.store.clone() else { return };
        let frames = state.budget.lingers(bytes);
        state.settle(&store, frames);
    }

    fn is_gone(&self, bytes: u64, lingering: u64) {
        let mut state = self.state.lock();
        let Some(store) = state.store.clone() else { return };
        let frames = state.budget.is_gone(bytes, lingering);
        state.settle(&store, frames);
    }

    fn is_doubled(&self, key: BlockKey) {
        self.state.lock().budget.is_doubled(key);
    }

    fn is_whole(&self, id: FileId, layout: BlockLayout, file: OwnedFd, checksums: &SectorChecksums) {
        let mut state = self.state.lock();
        state.budget.is_once(|key| key.file == id);
        let Some(store) = state.store.clone() else { return };
        let is_taken = layout.file_size() >= SMALL_FILE && state.adopted.len() < MAX_ADOPTED;
        if is_taken {
            state.adopted.insert(id);
        } else if !self.has_peers {
            // The kernel reads it from now on, and nobody else asks.
            (0..layout.blocks()).for_each(|index| state.budget.is_doubled_whole(BlockKey { file: id, index }));
        }
        drop(state);
        if !is_taken {
            return;
        }
        let adopted = adopt(&store, id, layout, &file, checksums);
        if let Err(error) = &adopted {
            debug!(file = %id, %error, "a materialised file stays beside its blocks");
        }
        let mut state = self.state.lock();
        // It may have left meanwhile, since the store read wrong bytes of it, or all of it has ended: what was adopted after that
        // would never be disowned.
        if adopted.is_err() {
            state.adopted.remove(&id);
        }
        let stays = state.adopted.contains(&id);
        drop(state);
        if !stays {
            store.disown(id);
        }
    }

    fn leaves(&self, id: FileId) {
        let mut state = self.state.lock();
        let was_adopted = state.adopted.remove(&id);
        state.budget.is_once(|key| key.file == id);
        let store = state.store.clone().filter(|_| was_adopted);
        drop(state);
        if let Some(store) = store {
            store.disown(id);
        }
    }

    fn found_wrong(&self) -> Vec<FileId> {
        let store = self.state.lock().store.clone();
        store.map(|store| store.take_wrong().into_iter().collect()).unwrap_or_default()
    }

    fn wanted_back(&self, now: Instant) -> Option<WantedBack> {
        let mut state = self.state.lock();
        let store = state.store.clone()?;
        let usage = state.store_use(&store);
        state.budget.wanted_back(usage, now)
    }

    fn end(&self) {
        let mut state = self.state.lock();
        let Some(store) = state.store.take() else { return };
        let adopted = std::mem::take(&mut state.adopted);
        state.budget.end();
        state.frames.clear();
        drop(state);
        store.set_lent_frames(0);
        adopted.into_iter().for_each(|id| store.disown(id));
    }
}

/// Has the store adopt the blocks of a file that is whole.
fn adopt(
    store: &Store,
    id: FileId,
    layout: BlockLayout,
    file: &OwnedFd,
    checksums: &SectorChecksums,
) -> io::Result<()> {
    let window = Window::map(file.as_fd(), layout.file_size())?;
    let mut sector = 0;
    for index in 0..layout.blocks() {
        let length = layout.block_len(index);
        let offset = index * u64::from(layout.block_size());
        let sectors = sector..sector + length.div_ceil(SECTOR_SIZE);
        sector = sectors.end;
        // The file stays mapped for as long as there is a view: nobody else has to be told of the end of one.
        let span = window.span(Place { offset, length }, Arc::new(()));
        let (Some(span), Some(checksums)) = (span, checksums.slice(sectors)) else {
            return Err(io::Error::other("the file is not as long as it was said to be"));
        };
        store.adopt(BlockKey { file: id, index }, span, checksums);
    }
    Ok(())
}

impl fmt::Debug for StoreLender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreLender").field("most", &self.most).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
