//! Block and sector arithmetic.
//!
//! A file version is cut into blocks of one size (4 MiB by default), the last one shorter. A block is cut into sectors
//! of 32 KiB, the last one of the file shorter. Everything that is fetched, stored and checked is a range of whole
//! sectors; only what a reader asks for is counted in bytes.

use std::fmt;
use std::ops::Range;

use crate::FileId;

/// Bytes in a sector: the unit of validity and of integrity. 32 KiB, as JuiceFS's checksums and most NVMe
/// controllers' sweet spot for small reads.
pub const SECTOR_SIZE: u32 = 32 << 10;
/// The smallest block.
pub const MIN_BLOCK_SIZE: u32 = 256 << 10;
/// The largest block, and the default.
pub const MAX_BLOCK_SIZE: u32 = 4 << 20;
/// Sectors in the largest block.
pub const MAX_SECTORS: u32 = MAX_BLOCK_SIZE / SECTOR_SIZE;

/// The name of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey {
    /// The file version that it is a piece of.
    pub file: FileId,
    /// Its position in the file, counted in blocks.
    pub index: u64,
}

impl fmt::Display for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.file, self.index)
    }
}

/// A range of sectors of one block, never empty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectorRange {
    /// The first sector.
    pub start: u32,
    /// One past the last sector.
    pub end: u32,
}

impl fmt::Debug for SectorRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sectors {}..{}", self.start, self.end)
    }
}

impl SectorRange {
    /// Sectors `start..end`; `None` when empty or beyond [`MAX_SECTORS`].
    #[must_use]
    pub fn new(start: u32, end: u32) -> Option<Self> {
        (start < end && end <= MAX_SECTORS).then_some(Self { start, end })
    }

    /// The sectors that hold the bytes `offset..offset + length` of a block; `None` for no bytes or beyond a block.
    #[must_use]
    pub fn covering(offset: u32, length: u32) -> Option<Self> {
        let last = offset.checked_add(length.checked_sub(1)?)?;
        Self::new(offset / SECTOR_SIZE, last / SECTOR_SIZE + 1)
    }

    /// How many sectors.
    #[expect(clippy::len_without_is_empty, reason = "a sector range is never empty")]
    #[must_use]
    pub fn len(self) -> u32 {
        self.end - self.start
    }

    /// Where the range starts in its block, in bytes.
    #[must_use]
    pub fn byte_offset(self) -> u32 {
        self.start * SECTOR_SIZE
    }

    /// How many bytes of a block of `block_length` bytes these sectors hold: the last sector may be short.
    #[must_use]
    pub fn byte_len(self, block_length: u32) -> u32 {
        (self.end * SECTOR_SIZE).min(block_length).saturating_sub(self.byte_offset())
    }

    /// Whether all of `other` is in this range.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The sectors in both.
    #[must_use]
    pub fn intersection(self, other: Self) -> Option<Self> {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// The range widened to multiples of `unit` sectors, within `limit` sectors.
    #[must_use]
    pub fn aligned_to(self, unit: u32, limit: u32) -> Self {
        let unit = unit.max(1);
        Self { start: self.start / unit * unit, end: (self.end.div_ceil(unit) * unit).min(limit.max(self.end)) }
    }

    /// What is left of this range without `covered`, in order: what is to be fetched beside what is cached.
    ///
    /// ```
    /// use forebay_types::SectorRange;
    ///
    /// let sectors = |start, end| SectorRange::new(start, end).unwrap();
    /// assert_eq!(sectors(0, 8).without([sectors(2, 3), sectors(5, 6)]), [sectors(0, 2), sectors(3, 5), sectors(6, 8)]);
    /// assert!(sectors(2, 3).without([sectors(0, 8)]).is_empty());
    /// ```
    #[must_use]
    pub fn without(self, covered: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut left = vec![self];
        for hole in covered {
            left = left
                .into_iter()
                .flat_map(|range| {
                    [Self::new(range.start, range.end.min(hole.start)), Self::new(range.start.max(hole.end), range.end)]
                })
                .flatten()
                .collect();
        }
        left
    }
}

/// A part of a read that lies in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which block of the file.
    pub index: u64,
    /// Where in the block, in bytes.
    pub offset: u32,
    /// How many bytes, at least one.
    pub length: u32,
}

/// How a file of `size` bytes is cut into blocks.
///
/// ```
/// use forebay_types::{BlockLayout, Piece};
///
/// // 9 MiB are two blocks of 4 MiB and one of 1 MiB.
/// let layout = BlockLayout::new(9 << 20, 4 << 20);
/// assert_eq!((layout.blocks(), layout.block_len(2), layout.sectors(2)), (3, 1 << 20, 32));
/// // A read over the edge of a block is two pieces, and ends with the file.
/// let pieces: Vec<_> = layout.pieces((8 << 20) - 100, 300).collect();
/// assert_eq!(pieces[0], Piece { index: 1, offset: (4 << 20) - 100, length: 100 });
/// assert_eq!(pieces[1], Piece { index: 2, offset: 0, length: 200 });
/// assert_eq!(layout.pieces(9 << 20, 1).count(), 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    size: u64,
    block_size: u32,
}

impl BlockLayout {
    /// The layout of a file of `size` bytes.
    ///
    /// # Panics
    /// When `block_size` is not a power of two between [`MIN_BLOCK_SIZE`] and [`MAX_BLOCK_SIZE`]; the configuration
    /// refuses such a size.
    #[must_use]
    pub fn new(size: u64, block_size: u32) -> Self {
        assert!(Self::is_block_size(block_size), "block size {block_size}");
        Self { size, block_size }
    }

    /// Whether blocks may have this many bytes.
    #[must_use]
    pub fn is_block_size(bytes: u32) -> bool {
        bytes.is_power_of_two() && (MIN_BLOCK_SIZE..=MAX_BLOCK_SIZE).contains(&bytes)
    }

    /// The file's length in bytes.
    #[must_use]
    pub fn file_size(&self) -> u64 {
        self.size
    }

    /// Bytes in every block but the last.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// How many blocks the file has; none when it is empty.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(u64::from(self.block_size))
    }

    /// The length of block `index` in bytes; 0 beyond the end of the file.
    #[must_use]
    pub fn block_len(&self, index: u64) -> u32 {
        let left = self.size.saturating_sub(index.saturating_mul(u64::from(self.block_size)));
        u32::try_from(left).unwrap_or(u32::MAX).min(self.block_size)
    }

    /// How many sectors block `index` has.
    #[must_use]
    pub fn sectors(&self, index: u64) -> u32 {
        self.block_len(index).div_ceil(SECTOR_SIZE)
    }

    /// Where these sectors of block `index` lie in the file.
    #[must_use]
    pub fn file_range(&self, index: u64, sectors: SectorRange) -> Range<u64> {
        let start = index * u64::from(self.block_size) + u64::from(sectors.byte_offset());
        start..start + u64::from(sectors.byte_len(self.block_len(index)))
    }

    /// The pieces of the read `offset..offset + length`, cut off at the end of the file.
    pub fn pieces(&self, offset: u64, length: u32) -> impl Iterator<Item = Piece> + use<> {
        let block_size = u64::from(self.block_size);
        let end = offset.saturating_add(u64::from(length)).min(self.size);
        let mut at = offset;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let within = at % block_size;
                let length = (block_size - within).min(end - at);
                // Both are below the block size, which is a u32.
                let piece = Piece { index: at / block_size, offset: within as u32, length: length as u32 };
                at += length;
                piece
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_block_and_its_last_sector_are_short() {
        let layout = BlockLayout::new(u64::from(MAX_BLOCK_SIZE) + 40_000, MAX_BLOCK_SIZE);
        assert_eq!(layout.blocks(), 2);
        assert_eq!(layout.block_len(1), 40_000);
        assert_eq!(layout.sectors(1), 2);
        assert_eq!(SectorRange::new(1, 2).unwrap().byte_len(40_000), 40_000 - SECTOR_SIZE);
        assert_eq!(layout.block_len(2), 0);
        assert_eq!(layout.block_len(u64::MAX), 0);
    }

    #[test]
    fn an_empty_file_has_no_blocks() {
        assert_eq!(BlockLayout::new(0, MAX_BLOCK_SIZE).blocks(), 0);
        assert_eq!(BlockLayout::new(0, MAX_BLOCK_SIZE).pieces(0, 10).count(), 0);
    }

    fn ranges() -> impl Strategy<Value = SectorRange> {
        (0..MAX_SECTORS, 1..=MAX_SECTORS)
            .prop_map(|(start, length)| SectorRange { start, end: (start + length).min(MAX_SECTORS) })
    }

    proptest! {
        #[test]
        fn pieces_cover_the_read_exactly(size in 0u64..50_000_000, offset in 0u64..60_000_000, length in 0u32..20_000_000) {
            let layout = BlockLayout::new(size, 1 << 20);
            let mut at = offset;
            for piece in layout.pieces(offset, length) {
                prop_assert_eq!(piece.index * (1 << 20) + u64::from(piece.offset), at);
                prop_assert!(piece.offset + piece.length <= layout.block_len(piece.index));
                at += u64::from(piece.length);
            }
            prop_assert_eq!(at, offset.max(size.min(offset + u64::from(length))));
        }

        #[test]
        fn without_leaves_exactly_the_uncovered_sectors(range in ranges(), holes in prop::collection::vec(ranges(), 0..6)) {
            let left = range.without(holes.iter().copied());
            for sector in 0..MAX_SECTORS {
                let within = |r: &SectorRange| (r.start..r.end).contains(&sector);
                let expected = within(&range) && !holes.iter().any(within);
                prop_assert_eq!(left.iter().filter(|r| within(r)).count(), usize::from(expected));
            }
            prop_assert!(left.windows(2).all(|pair| pair[0].end < pair[1].start));
        }

        #[test]
        fn alignment_only_widens(range in ranges(), unit in 1u32..16) {
            let aligned = range.aligned_to(unit, MAX_SECTORS);
            prop_assert!(aligned.contains(range));
            prop_assert_eq!(aligned.start % unit, 0);
            prop_assert!(aligned.end % unit == 0 || aligned.end == MAX_SECTORS);
        }
    }
}
