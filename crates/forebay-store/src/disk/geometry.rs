//! Where things lie in a slab: a superblock of one page, then frames.
//!
//! A frame is 4 MiB and 64 KiB. It belongs to one size class and is cut into extents of one page of header and
//! 32 KiB << class of sectors. Header and sectors are one contiguous write, aligned for `O_DIRECT`. The 64 KiB make
//! room for the headers: one block of 4 MiB takes one frame, and small extents waste at most 5 % of a frame.

use forebay_types::{ByteSize, SECTOR_SIZE};

/// The unit of `O_DIRECT`: no drive has larger logical blocks.
pub(crate) const PAGE: usize = 4096;
/// Bytes in an extent before its sectors.
pub(crate) const HEADER_SIZE: u64 = PAGE as u64;
/// Bytes before the first frame.
pub(crate) const SUPERBLOCK_SIZE: u64 = PAGE as u64;
/// Bytes in a frame.
pub(crate) const FRAME_SIZE: u64 = (4096 + 64) << 10;
/// Size classes: 32 KiB, 64 KiB, … 4 MiB.
pub(crate) const CLASSES: u8 = 8;

/// Where an extent lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot {
    pub(crate) frame: u32,
    pub(crate) index: u8,
    pub(crate) class: u8,
}

impl Slot {
    /// Bytes that the extent takes, header included.
    pub(crate) fn stride(self) -> u64 {
        stride(self.class)
    }

    /// Where its header starts in the file.
    pub(crate) fn offset(self) -> u64 {
        SUPERBLOCK_SIZE + u64::from(self.frame) * FRAME_SIZE + u64::from(self.index) * self.stride()
    }

    /// Where its sectors start in the file.
    pub(crate) fn sectors_offset(self) -> u64 {
        self.offset() + HEADER_SIZE
    }
}

fn stride(class: u8) -> u64 {
    HEADER_SIZE + (u64::from(SECTOR_SIZE) << class)
}

/// How many extents of this class a frame holds.
pub(crate) fn extents(class: u8) -> u8 {
    // At most 115, of class 0.
    (FRAME_SIZE / stride(class)) as u8
}

/// The class whose extents hold this many sectors, at most a block's.
pub(crate) fn class_of(sectors: u32) -> u8 {
    sectors.next_power_of_two().trailing_zeros() as u8
}

/// How many frames a slab file of `size` has.
pub(crate) fn frames_in(size: ByteSize) -> u32 {
    let frames = size.as_u64().saturating_sub(SUPERBLOCK_SIZE) / FRAME_SIZE;
    u32::try_from(frames).unwrap_or(u32::MAX)
}

/// The size of a slab file with this many frames.
pub(crate) fn file_size(frames: u32) -> u64 {
    SUPERBLOCK_SIZE + u64::from(frames) * FRAME_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::MAX_SECTORS;

    #[test]
    fn a_frame_holds_one_block_or_many_small_extents() {
        let counts: Vec<u8> = (0..CLASSES).map(extents).collect();
        assert_eq!(counts, [115, 61, 31, 16, 8, 4, 2, 1]);
        for class in 0..CLASSES {
            let last = Slot { frame: 0, index: extents(class) - 1, class };
            assert!(last.offset() + last.stride() <= SUPERBLOCK_SIZE + FRAME_SIZE);
            assert_eq!(last.offset() % PAGE as u64, 0);
        }
    }

    #[test]
    fn every_run_has_a_class_that_holds_it() {
        for sectors in 1..=MAX_SECTORS {
            let class = class_of(sectors);
            assert!(class < CLASSES && sectors <= 1 << class);
            assert!(class == 0 || sectors > 1 << (class - 1));
        }
    }
}
