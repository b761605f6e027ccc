//! Which extents of a slab are free.
//!
//! As in the memory pool, a frame is free or belongs to a size class, fills from its lowest extent, and is free again
//! when its last extent is. Each time a frame is given to a class it gets a new generation, which the headers in it
//! carry: after a restart, headers of older generations are known to be leftovers.
//!
//! Eviction erases nothing: until its extent is given away again, what was evicted would be found by a restart, with the
//! right bytes. When its block is removed it must not be, so what each free extent still says is remembered.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Weak};

use forebay_types::{BlockKey, FileId};
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::geometry::{CLASSES, FRAME_SIZE, Slot, extents};
use super::lock::DirectoryLock;
use crate::sync::Mutex;

/// The free space of one slab, and the lock on its directory: an extent that is held keeps other stores away.
#[derive(Debug)]
pub(crate) struct Space {
    state: Mutex<SpaceState>,
    freed: Notify,
    /// Of a slab in a directory.
    _lock: Option<DirectoryLock>,
}

#[derive(Debug)]
struct SpaceState {
    frames: Frames,
    leftovers: Leftovers,
    /// Extents that were given to a new holder while their last holder was letting go. That one must not free them: the
    /// holder that lets go later does. It does not matter if the two let go in the other order.
    passed_on: HashSet<Slot>,
}

/// The extents that hold nothing any more but say otherwise.
#[derive(Debug, Default)]
struct Leftovers {
    by_slot: HashMap<Slot, BlockKey>,
    by_block: BTreeMap<BlockKey, SmallVec<[Leftover; 1]>>,
}

#[derive(Debug)]
struct Leftover {
    slot: Slot,
    /// As long as a holder still reads from it.
    extent: Weak<DiskExtent>,
}

impl Leftovers {
    fn add(&mut self, block: BlockKey, leftover: Leftover) {
        self.forget(leftover.slot);
        self.by_slot.insert(leftover.slot, block);
        self.by_block.entry(block).or_default().push(leftover);
    }

    /// The extent is about to say something else.
    fn forget(&mut self, slot: Slot) {
        let Some(block) = self.by_slot.remove(&slot) else { return };
        if let Some(leftovers) = self.by_block.get_mut(&block) {
            leftovers.retain(|leftover| leftover.slot != slot);
            if leftovers.is_empty() {
                self.by_block.remove(&block);
            }
        }
    }

    fn take(&mut self, block: &BlockKey) -> SmallVec<[Leftover; 1]> {
        let leftovers = self.by_block.remove(block).unwrap_or_default();
        for leftover in &leftovers {
            self.by_slot.remove(&leftover.slot);
        }
        leftovers
    }
}

/// A piece of a slab file, free again when its last holder lets go.
#[derive(Debug)]
pub(crate) struct DiskExtent {
    slot: Slot,
    generation: u64,
    disk: usize,
    space: Arc<Space>,
}

impl DiskExtent {
    pub(crate) fn slot(&self) -> Slot {
        self.slot
    }

    /// The generation of its frame.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Which of the store's disks it is on.
    pub(crate) fn disk(&self) -> usize {
        self.disk
    }
}

impl Drop for DiskExtent {
    fn drop(&mut self) {
        let mut state = self.space.state.lock();
        if !state.passed_on.remove(&self.slot) {
            state.frames.free(self.slot);
            drop(state);
            self.space.freed.notify_waiters();
        }
    }
}

/// How full a slab is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Bytes in extents in use, headers included.
    pub(crate) used: u64,
    /// Bytes in all frames.
    pub(crate) capacity: u64,
    /// Frames in no class.
    pub(crate) free_frames: u32,
    /// All frames.
    pub(crate) frames: u32,
}

impl Space {
    pub(crate) fn new(frames: Frames, lock: Option<DirectoryLock>) -> Arc<Self> {
        let state = SpaceState { frames, leftovers: Leftovers::default(), passed_on: HashSet::new() };
        Arc::new(Self { state: Mutex::new(state), freed: Notify::new(), _lock: lock })
    }

    /// A free extent of `class`, if there is one. `disk` is the number that the extent will tell.
    pub(crate) fn take(self: &Arc<Self>, disk: usize, class: u8) -> Option<DiskExtent> {
        let mut state = self.state.lock();
        let SpaceState { frames, leftovers, .. } = &mut *state;
        let slot = frames.take(class, |number, class_before| {
            // What older generations left in a frame counts no more once a newer one is in it.
            (0..extents(class_before)).for_each(|index| {
                leftovers.forget(Slot { frame: number, index, class: class_before });
            });
        })?;
        leftovers.forget(slot);
        let generation = frames.generation(slot.frame);
        drop(state);
        Some(DiskExtent { slot, generation, disk, space: Arc::clone(self) })
    }

    /// The extent that recovery found in use and [`Frames::adopt`] noted. Once for each.
    pub(crate) fn adopted(self: &Arc<Self>, disk: usize, slot: Slot) -> DiskExtent {
        let generation = self.state.lock().frames.generation(slot.frame);
        DiskExtent { slot, generation, disk, space: Arc::clone(self) }
    }

    /// Notes that an extent, which is about to be let go, will go on saying that it holds a part of `block`.
    pub(crate) fn left(&self, extent: &Arc<DiskExtent>, block: BlockKey) {
        let leftover = Leftover { slot: extent.slot, extent: Arc::downgrade(extent) };
        self.state.lock().leftovers.add(block, leftover);
    }

    /// The extents that say that they hold a part of `block` and do not, so that they can be told better.
    pub(crate) fn leftovers(self: &Arc<Self>, disk: usize, block: &BlockKey) -> Vec<Arc<DiskExtent>> {
        self.leftovers_of(&mut self.state.lock(), disk, block)
    }

    fn leftovers_of(self: &Arc<Self>, state: &mut SpaceState, disk: usize, block: &BlockKey) -> Vec<Arc<DiskExtent>> {
        let leftovers = state.leftovers.take(block);
        let extents = leftovers.into_iter().filter_map(|Leftover { slot, extent }| {
            if let Some(extent) = extent.upgrade() {
                return Some(extent);
            }
            let generation = state.frames.take_slot(slot).or_else(|| {
                // Its last holder is letting go of it, and waits for the lock. No other holder can have it: when an
                // extent is taken, what it said before is forgotten.
                let generation = state.frames.generation_in_use(slot)?;
                state.passed_on.insert(slot);
                Some(generation)
            })?;
            Some(Arc::new(DiskExtent { slot, generation, disk, space: Arc::clone(self) }))
        });
        extents.collect()
    }

    /// The blocks of a file of which there are such extents.
    pub(crate) fn left_of_file(&self, file: FileId) -> Vec<BlockKey> {
        let (first, last) = (BlockKey { file, index: 0 }, BlockKey { file, index: u64::MAX });
        self.state.lock().leftovers.by_block.range(first..=last).map(|(block, _)| *block).collect()
    }

    /// Notified when an extent is freed.
    pub(crate) fn freed(&self) -> &Notify {
        &self.freed
    }

    pub(crate) fn usage(&self) -> Usage {
        self.state.lock().frames.usage()
    }
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    class: u8,
    generation: u64,
    /// One bit for each extent in use, at most 115.
    used: u128,
}

/// The allocator. Pure.
#[derive(Debug)]
pub(crate) struct Frames {
    frames: Vec<Frame>,
    free: BTreeSet<u32>,
    /// For each class, the frames that have both used and free extents.
    partial: [BTreeSet<u32>; CLASSES as usize],
    used: u64,
    last_generation: u64,
}

impl Frames {
    pub(crate) fn new(count: u32) -> Self {
        Self {
            frames: vec![Frame { class: 0, generation: 0, used: 0 }; count as usize],
            free: (0..count).collect(),
            partial: Default::default(),
            used: 0,
            last_generation: 0,
        }
    }

    /// Notes what recovery found: this frame is of this class and generation, with these extents in use. Once for each
    /// frame, before anything is taken.
    pub(crate) fn adopt(&mut self, number: u32, class: u8, generation: u64, used: u128) {
        self.last_generation = self.last_generation.max(generation);
        if used == 0 {
            return;
        }
        let slot = Slot { frame: number, index: 0, class };
        self.frames[number as usize] = Frame { class, generation, used };
        self.used += u64::from(used.count_ones()) * slot.stride();
        self.free.remove(&number);
        if used != full(class) {
            self.partial[usize::from(class)].insert(number);
        }
    }

    fn generation(&self, number: u32) -> u64 {
        self.frames[number as usize].generation
    }

    /// A free extent of `class`. `begins_anew` hears of a frame that gets a new generation for it, and of its class before.
    fn take(&mut self, class: u8, begins_anew: impl FnOnce(u32, u8)) -> Option<Slot> {
        let number = match self.partial[usize::from(class)].first() {
            Some(number) => *number,
            None => {
                let number = self.free.pop_first()?;
                begins_anew(number, self.frames[number as usize].class);
                self.last_generation += 1;
                self.frames[number as usize] = Frame { class, generation: self.last_generation, used: 0 };
                number
            }
        };
        let index = self.frames[number as usize].used.trailing_ones() as u8;
        let slot = Slot { frame: number, index, class };
        self.occupy(slot);
        Some(slot)
    }

    /// Takes this very extent, and tells its frame's generation; `None` when it is in use, or is none any more.
    fn take_slot(&mut self, slot: Slot) -> Option<u64> {
        let frame = self.frames.get(slot.frame as usize)?;
        if frame.class != slot.class || frame.used & (1 << slot.index) != 0 {
            return None;
        }
        let generation = frame.generation;
        self.free.remove(&slot.frame);
        self.occupy(slot);
        Some(generation)
    }

    /// The generation of an extent that is in use.
    fn generation_in_use(&self, slot: Slot) -> Option<u64> {
        let frame = self.frames.get(slot.frame as usize)?;
        (frame.class == slot.class && frame.used & (1 << slot.index) != 0).then_some(frame.generation)
    }

    fn occupy(&mut self, slot: Slot) {
        let frame = &mut self.frames[slot.frame as usize];
        frame.used |= 1 << slot.index;
        let partial = &mut self.partial[usize::from(slot.class)];
        if frame.used == full(slot.class) {
            partial.remove(&slot.frame);
        } else {
            partial.insert(slot.frame);
        }
        self.used += slot.stride();
    }

    fn free(&mut self, slot: Slot) {
        let frame = &mut self.frames[slot.frame as usize];
        debug_assert!(frame.class == slot.class && frame.used & (1 << slot.index) != 0, "{slot:?} is not in use");
        frame.used &= !(1 << slot.index);
        self.used -= slot.stride();
        let partial = &mut self.partial[usize::from(slot.class)];
        if frame.used == 0 {
            partial.remove(&slot.frame);
            self.free.insert(slot.frame);
        } else {
            partial.insert(slot.frame);
        }
    }

    fn usage(&self) -> Usage {
        // A slab has at most 2^32 frames.
        let frames = self.frames.len() as u32;
        Usage { used: self.used, capacity: u64::from(frames) * FRAME_SIZE, free_frames: self.free.len() as u32, frames }
    }
}

fn full(class: u8) -> u128 {
    u128::MAX >> (128 - u32::from(extents(class)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Found by shuttle (`model.rs`).
    #[test]
    #[cfg(not(shuttle))]
    fn a_leftover_is_found_while_its_last_holder_is_letting_go() {
        let dir = tempfile::tempdir().unwrap();
        let directory = crate::disk::file::open_directory(dir.path()).unwrap();
        let space = Space::new(Frames::new(1), Some(DirectoryLock::take(&directory).unwrap()));
        let block = BlockKey { file: FileId([1; 16]), index: 0 };
        let extent = Arc::new(space.take(0, 0).unwrap());
        let (slot, generation) = (extent.slot(), extent.generation());
        space.left(&extent, block);
        let still_held = Arc::downgrade(&extent);
        let mut state = space.state.lock();
        let letting_go = std::thread::spawn(move || drop(extent));
        while still_held.upgrade().is_some() {
            std::thread::yield_now();
        }
        // No holder has it any more, and the last one could not say so yet.
        let found = space.leftovers_of(&mut state, 0, &block);
        drop(state);
        letting_go.join().unwrap();
        let described: Vec<_> = found.iter().map(|extent| (extent.slot(), extent.generation())).collect();
        assert_eq!(described, [(slot, generation)], "nobody will bury it");
        assert_eq!(space.usage().used, slot.stride(), "it is in use until it is buried");
        drop(found);
        assert_eq!(space.usage().used, 0);
    }

    proptest! {
        #[test]
        fn extents_never_overlap_and_all_space_comes_back(
            steps in prop::collection::vec((any::<bool>(), any::<bool>(), 0u8..CLASSES, any::<prop::sample::Index>()), 1..400)
        ) {
            let mut frames = Frames::new(3);
            let mut live: Vec<Slot> = Vec::new();
            for (take, again, class, pick) in steps {
                if take || live.is_empty() {
                    live.extend(frames.take(class, |_, _| {}));
                } else if again {
                    // Freed and taken again, as for a burial.
                    let slot = live[pick.index(live.len())];
                    let generation = frames.generation(slot.frame);
                    prop_assert_eq!(frames.take_slot(slot), None);
                    frames.free(slot);
                    prop_assert_eq!(frames.take_slot(slot), Some(generation));
                } else {
                    frames.free(live.swap_remove(pick.index(live.len())));
                }
                let mut sorted = live.clone();
                sorted.sort_by_key(|slot| slot.offset());
                prop_assert!(sorted.windows(2).all(|pair| pair[0].offset() + pair[0].stride() <= pair[1].offset()));
                prop_assert_eq!(frames.usage().used, live.iter().map(|slot| slot.stride()).sum::<u64>());
                // What recovery would note gives the same allocator again.
                let mut again = Frames::new(3);
                for number in 0..3 {
                    let frame = frames.frames[number as usize];
                    again.adopt(number, frame.class, frame.generation, frame.used);
                }
                prop_assert_eq!(again.usage(), frames.usage());
                prop_assert_eq!(&again.partial, &frames.partial);
            }
            live.into_iter().for_each(|slot| frames.free(slot));
            prop_assert_eq!(frames.usage().free_frames, 3);
        }
    }

    #[test]
    fn a_frame_gets_a_new_generation_each_time_it_is_given_to_a_class() {
        let mut frames = Frames::new(1);
        let slot = frames.take(7, |_, _| {}).unwrap();
        let first = frames.generation(0);
        frames.free(slot);
        frames.take(0, |number, class| assert_eq!((number, class), (0, 7))).unwrap();
        assert!(frames.generation(0) > first);
        let second = frames.generation(0);
        frames.take(0, |_, _| panic!("the frame has room")).unwrap();
        assert_eq!(frames.generation(0), second);
    }
}
