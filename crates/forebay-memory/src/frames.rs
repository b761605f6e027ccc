//! Which extents are free: a segregated-fit allocator over frames. Pure: it deals in numbers, not in memory.
//!
//! A frame is either free or belongs to one size class and is cut into extents of that size. A frame whose last extent
//! is freed is free again for any class, so memory moves between small and large objects by itself. Partly used frames
//! are preferred, the fullest first found, so that free frames stay whole.
//!
//! A pool of a few frames cannot have one for each size: what finds neither an extent of its class nor a free frame takes one that is
//! up to four times as large, rather than wait until all that is in some frame is gone. With two frames, and reads of 512 KiB at any
//! offset, that makes for almost twice as many a second.

use std::collections::BTreeSet;

/// Bytes in a frame: the largest extent.
pub const FRAME_SIZE: usize = forebay_types::MAX_BLOCK_SIZE as usize;
/// Bytes in the smallest extent: one sector.
pub const MIN_EXTENT: usize = forebay_types::SECTOR_SIZE as usize;
/// Extent sizes: 32 KiB, 64 KiB, … 4 MiB.
const CLASSES: usize = (FRAME_SIZE / MIN_EXTENT).trailing_zeros() as usize + 1;

/// Up to so many frames, a pool is too small to have one for each size at all times: 64 MiB.
pub(crate) const FEW_FRAMES: u32 = 2 * CLASSES as u32;
/// How much larger, in classes, an extent may be than what it is taken for.
const CLASSES_UP: usize = 2;

/// Where an extent lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot {
    pub(crate) frame: u32,
    pub(crate) index: u8,
    pub(crate) class: u8,
}

impl Slot {
    /// Bytes in the extent.
    pub(crate) fn size(self) -> usize {
        MIN_EXTENT << self.class
    }

    /// Where it starts in the mapping.
    pub(crate) fn offset(self) -> usize {
        self.frame as usize * FRAME_SIZE + usize::from(self.index) * self.size()
    }
}

/// The size class that holds `length` bytes; `None` above [`FRAME_SIZE`].
pub(crate) fn class_of(length: usize) -> Option<u8> {
    (length <= FRAME_SIZE)
        .then(|| length.max(1).next_multiple_of(MIN_EXTENT).next_power_of_two() / MIN_EXTENT)
        .map(|sectors| sectors.trailing_zeros() as u8)
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    class: u8,
    /// One bit for each extent in use. 4 MiB / 32 KiB = 128 extents at most.
    used: u128,
}

impl Frame {
    fn extents(class: u8) -> u32 {
        (FRAME_SIZE / MIN_EXTENT) as u32 >> class
    }

    fn full_mask(class: u8) -> u128 {
        u128::MAX >> (128 - Self::extents(class))
    }

    fn is_full(&self) -> bool {
        self.used == Self::full_mask(self.class)
    }
}

/// The allocator.
#[derive(Debug)]
pub(crate) struct Frames {
    frames: Vec<Frame>,
    /// Frames in no class, the lowest first: low frames are touched, and so backed by memory, before high ones.
    free: BTreeSet<u32>,
    /// For each class, the frames that have both used and free extents.
    partial: [BTreeSet<u32>; CLASSES],
}

impl Frames {
    pub(crate) fn new(count: u32) -> Self {
        let mut frames = Self { frames: Vec::new(), free: BTreeSet::new(), partial: Default::default() };
        frames.grow(count);
        frames
    }

    /// Adds frames until there are `count`.
    pub(crate) fn grow(&mut self, count: u32) {
        let old = self.frames.len() as u32;
        self.frames.resize(count.max(old) as usize, Frame { class: 0, used: 0 });
        self.free.extend(old..count);
    }

    pub(crate) fn count(&self) -> u32 {
        self.frames.len() as u32
    }

    pub(crate) fn free_frames(&self) -> u32 {
        self.free.len() as u32
    }

    /// Takes an extent of `class`.
    pub(crate) fn alloc(&mut self, class: u8) -> Option<Slot> {
        let number = match self.partial[usize::from(class)].first() {
            Some(number) => *number,
            None => {
                let number = self.free.pop_first()?;
                self.frames[number as usize] = Frame { class, used: 0 };
                self.partial[usize::from(class)].insert(number);
                number
            }
        };
        let frame = &mut self.frames[number as usize];
        let index = frame.used.trailing_ones() as u8;
        frame.used |= 1 << index;
        if frame.is_full() {
            self.partial[usize::from(class)].remove(&number);
        }
        Some(Slot { frame: number, index, class })
    }

    /// Takes an extent of a somewhat larger class in a frame that is partly used: where there is no other, and no frame is free.
    pub(crate) fn alloc_larger(&mut self, class: u8) -> Option<Slot> {
        let larger = (class + 1..CLASSES as u8).take(CLASSES_UP);
        let larger = larger.into_iter().find(|larger| !self.partial[usize::from(*larger)].is_empty())?;
        self.alloc(larger)
    }

    /// Gives back what [`Frames::alloc`] handed out.
    pub(crate) fn free(&mut self, slot: Slot) {
        let frame = &mut self.frames[slot.frame as usize];
        debug_assert!(frame.class == slot.class && frame.used & (1 << slot.index) != 0, "{slot:?} is not in use");
        frame.used &= !(1 << slot.index);
        let partial = &mut self.partial[usize::from(slot.class)];
        if frame.used == 0 {
            partial.remove(&slot.frame);
            self.free.insert(slot.frame);
        } else {
            partial.insert(slot.frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_length_is_rounded_up_to_a_power_of_two_of_sectors() {
        assert_eq!(class_of(0), Some(0));
        assert_eq!(class_of(1), Some(0));
        assert_eq!(class_of(MIN_EXTENT), Some(0));
        assert_eq!(class_of(MIN_EXTENT + 1), Some(1));
        assert_eq!(class_of(100_000), Some(2));
        assert_eq!(class_of(FRAME_SIZE), Some(7));
        assert_eq!(class_of(FRAME_SIZE + 1), None);
    }

    #[test]
    fn what_finds_no_frame_of_its_own_takes_a_somewhat_larger_extent() {
        let mut frames = Frames::new(1);
        let large = frames.alloc(5).unwrap();
        assert_eq!(frames.alloc(4), None);
        let borrowed = frames.alloc_larger(4).unwrap();
        assert_eq!((borrowed.class, borrowed.frame), (5, large.frame));
        // Eight times as large is too large.
        assert_eq!((frames.alloc_larger(3).unwrap().class, frames.alloc_larger(2)), (5, None));
        [large, borrowed].into_iter().for_each(|slot| frames.free(slot));
        assert_eq!(frames.free_frames(), 0);
    }

    proptest! {
        #[test]
        fn extents_never_overlap_and_all_memory_comes_back(
            steps in prop::collection::vec((any::<bool>(), 0u8..8, any::<prop::sample::Index>()), 1..400)
        ) {
            let at_most = |class| class + CLASSES_UP as u8;
            let mut frames = Frames::new(4);
            let mut live: Vec<Slot> = Vec::new();
            for (allocate, class, pick) in steps {
                if allocate || live.is_empty() {
                    if let Some(slot) = frames.alloc(class).or_else(|| frames.alloc_larger(class)) {
                        prop_assert!((class..=at_most(class)).contains(&slot.class));
                        live.push(slot);
                    } else {
                        prop_assert_eq!(frames.free_frames(), 0);
                    }
                } else {
                    frames.free(live.swap_remove(pick.index(live.len())));
                }
                let mut sectors = HashMap::new();
                for slot in &live {
                    prop_assert!(slot.offset() + slot.size() <= 4 * FRAME_SIZE);
                    for at in (slot.offset()..slot.offset() + slot.size()).step_by(MIN_EXTENT) {
                        prop_assert!(sectors.insert(at, slot).is_none());
                    }
                }
            }
            for slot in live {
                frames.free(slot);
            }
            prop_assert_eq!(frames.free_frames(), 4);
        }
    }
}
