//! The superblock of a slab and the header of an extent, as bytes: little-endian, one page, its CRC32C at the end.
//!
//! An extent's header carries the slab's random identity and its own place in the file. So bytes that were stored as
//! data cannot pass as a header when recovery looks in the wrong place, and neither can a header that a drive wrote to
//! the wrong place. A header with no sectors is a tombstone: it tells the frame's class and nothing else.
//!
//! How a run is to be kept stands apart from the rest, where headers of before there were classes have zeros: those read as
//! the default, and a program of that time does not look there. So the version is still the first. In the same way a
//! superblock tells the block size after its other fields. One that tells none is of before it did, and taken to be of the
//! default, 4 MiB.

use bytes::Bytes;
use forebay_types::{BlockKey, FileId, MAX_BLOCK_SIZE, MAX_SECTORS, SectorChecksums, SectorRange, crc32c};

use super::geometry::{CLASSES, FRAME_SIZE, HEADER_SIZE, PAGE, Slot};
use crate::io::Page;
use crate::run::Run;
use crate::{Account, Keep};

const SLAB_MAGIC: [u8; 16] = *b"forebay slab\r\n\x1a\n";
const EXTENT_MAGIC: [u8; 8] = *b"fbextent";
/// The version of the format that this program writes.
pub(crate) const VERSION: u32 = 1;
const CRC_AT: usize = PAGE - 4;
/// Where an extent's header tells how its run is to be kept. The fields before it end at byte 590 at most.
const KEEP_AT: usize = 1024;

/// The random identity of a slab.
pub(crate) type SlabId = [u8; 16];

/// What the first page of a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Superblock {
    /// A slab of this version and geometry, for blocks of so many bytes.
    Slab { id: SlabId, block_size: u32 },
    /// A slab whose superblock is damaged, so that its extents cannot be told from garbage.
    Damaged,
    /// A slab of another format.
    Version(u32),
    /// Not a slab.
    Foreign,
}

impl Superblock {
    pub(crate) fn encode(id: SlabId, block_size: u32) -> Page {
        let mut writer = Writer::new();
        writer.put(&SLAB_MAGIC);
        writer.put(&VERSION.to_le_bytes());
        writer.put(&id);
        writer.put(&FRAME_SIZE.to_le_bytes());
        writer.put(&HEADER_SIZE.to_le_bytes());
        writer.put(&block_size.to_le_bytes());
        writer.finish()
    }

    pub(crate) fn decode(page: &[u8]) -> Self {
        let mut reader = Reader { rest: page };
        if page.len() != PAGE || reader.take() != Some(SLAB_MAGIC) {
            return Self::Foreign;
        }
        if !has_right_crc(page) {
            return Self::Damaged;
        }
        match reader.u32() {
            Some(VERSION) => {}
            Some(version) => return Self::Version(version),
            None => return Self::Damaged,
        }
        match (reader.take(), reader.u64(), reader.u64(), reader.u32()) {
            (Some(id), Some(FRAME_SIZE), Some(HEADER_SIZE), Some(told)) => {
                Self::Slab { id, block_size: if told == 0 { MAX_BLOCK_SIZE } else { told } }
            }
            _ => Self::Damaged,
        }
    }
}

/// The header of an extent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) slot: Slot,
    /// The generation of its frame.
    pub(crate) generation: u64,
    /// What the extent holds, and how it is to be kept; `None` for a tombstone.
    pub(crate) run: Option<(Run, Keep)>,
}

/// The header page of an extent that holds a run, or nothing.
pub(crate) fn encode(slab: SlabId, slot: Slot, generation: u64, run: Option<(&Run, Keep)>) -> Page {
    let mut writer = Writer::new();
    writer.put(&EXTENT_MAGIC);
    writer.put(&VERSION.to_le_bytes());
    writer.put(&slab);
    writer.put(&slot.frame.to_le_bytes());
    writer.put(&[slot.index, slot.class]);
    writer.put(&generation.to_le_bytes());
    if let Some((run, keep)) = run {
        writer.put(&run.sectors.len().to_le_bytes());
        writer.put(&run.key.file.0);
        writer.put(&run.key.index.to_le_bytes());
        writer.put(&run.sectors.start.to_le_bytes());
        writer.put(&run.byte_len.to_le_bytes());
        writer.put(run.checksums.as_bytes());
        writer.at = KEEP_AT;
        writer.put(&[keep.to_bits()]);
        writer.put(&Account::to_u64(keep.account).to_le_bytes());
    }
    writer.finish()
}

impl Header {
    /// Reads the page found where a header of `slot` would be; `None` when it is none.
    pub(crate) fn decode(slab: SlabId, slot: Slot, page: &[u8]) -> Option<Self> {
        let mut reader = Reader { rest: page };
        if page.len() != PAGE || reader.take() != Some(EXTENT_MAGIC) || !has_right_crc(page) {
            return None;
        }
        if reader.u32()? != VERSION || reader.take::<16>()? != slab || reader.u32()? != slot.frame {
            return None;
        }
        let [index, class] = reader.take()?;
        if index != slot.index || class != slot.class || class >= CLASSES {
            return None;
        }
        let generation = reader.u64()?;
        let count = reader.u32()?;
        if count == 0 {
            return Some(Self { slot, generation, run: None });
        }
        let key = BlockKey { file: FileId(reader.take()?), index: reader.u64()? };
        let start = reader.u32()?;
        let sectors = SectorRange::new(start, start.checked_add(count)?)?;
        let byte_len = reader.u32()?;
        let fits = count <= 1 << class && count <= MAX_SECTORS;
        let is_right_length = byte_len.div_ceil(forebay_types::SECTOR_SIZE) == count;
        if !fits || !is_right_length {
            return None;
        }
        let checksums = reader.rest.get(..count as usize * size_of::<u32>())?;
        let checksums = SectorChecksums::from_bytes(Bytes::copy_from_slice(checksums))?;
        let mut reader = Reader { rest: page.get(KEEP_AT..)? };
        let [bits] = reader.take()?;
        let keep = Keep::from_bits(bits, reader.u64()?);
        Some(Self { slot, generation, run: Some((Run { key, sectors, byte_len, checksums }, keep)) })
    }
}

fn has_right_crc(page: &[u8]) -> bool {
    let (body, crc) = page.split_at(CRC_AT);
    crc == crc32c(body).to_le_bytes()
}

struct Writer {
    page: Page,
    at: usize,
}

impl Writer {
    fn new() -> Self {
        Self { page: Page([0; PAGE]), at: 0 }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.page.0[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn finish(mut self) -> Page {
        // The last field ends at byte 1033, far from the end of the page.
        debug_assert!(self.at <= CRC_AT);
        let crc = crc32c(&self.page.0[..CRC_AT]);
        self.page.0[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        self.page
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::Priority;
    use proptest::prelude::*;

    const SLAB: SlabId = [7; 16];
    const SLOT: Slot = Slot { frame: 3, index: 1, class: 2 };
    const KEEP: Keep = Keep { priority: Priority::High, pinned: true, account: None };

    fn run(bytes: usize) -> Run {
        let key = BlockKey { file: FileId([5; 16]), index: 9 };
        let sectors = SectorRange::new(2, 2 + bytes.div_ceil(forebay_types::SECTOR_SIZE as usize) as u32).unwrap();
        Run::of(key, sectors, &vec![1; bytes])
    }

    #[test]
    fn a_header_reads_back() {
        let page = encode(SLAB, SLOT, 11, Some((&run(100_000), KEEP)));
        let header = Header::decode(SLAB, SLOT, &page.0).unwrap();
        assert_eq!(header, Header { slot: SLOT, generation: 11, run: Some((run(100_000), KEEP)) });
        let tombstone = Header::decode(SLAB, SLOT, &encode(SLAB, SLOT, 11, None).0).unwrap();
        assert_eq!(tombstone.run, None);
    }

    #[test]
    fn a_header_of_before_there_were_classes_reads_as_the_default() {
        let keep = Keep { account: Some(Account::of(b"/a")), ..KEEP };
        let mut page = encode(SLAB, SLOT, 11, Some((&run(100_000), keep)));
        assert_eq!(Header::decode(SLAB, SLOT, &page.0).unwrap().run, Some((run(100_000), keep)));
        page.0[KEEP_AT..CRC_AT].fill(0);
        let crc = crc32c(&page.0[..CRC_AT]);
        page.0[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Header::decode(SLAB, SLOT, &page.0).unwrap().run, Some((run(100_000), Keep::default())));
    }

    #[test]
    fn a_header_elsewhere_or_of_another_slab_is_none() {
        let page = encode(SLAB, SLOT, 11, Some((&run(1), KEEP)));
        assert!(Header::decode([8; 16], SLOT, &page.0).is_none());
        assert!(Header::decode(SLAB, Slot { index: 2, ..SLOT }, &page.0).is_none());
        assert!(Header::decode(SLAB, Slot { class: 3, ..SLOT }, &page.0).is_none());
        assert!(Header::decode(SLAB, SLOT, &page.0[1..]).is_none());
        assert!(Header::decode(SLAB, SLOT, &[0; PAGE]).is_none());
    }

    #[test]
    fn a_run_larger_than_its_extent_is_no_run() {
        let page = encode(SLAB, Slot { class: 1, ..SLOT }, 11, Some((&run(100_000), KEEP)));
        assert!(Header::decode(SLAB, Slot { class: 1, ..SLOT }, &page.0).is_none());
    }

    #[test]
    fn a_superblock_tells_ours_from_damaged_from_foreign() {
        let mut page = Superblock::encode(SLAB, 1 << 20);
        assert_eq!(Superblock::decode(&page.0), Superblock::Slab { id: SLAB, block_size: 1 << 20 });
        page.0[20] ^= 1;
        assert_eq!(Superblock::decode(&page.0), Superblock::Damaged);
        page.0[0] ^= 1;
        assert_eq!(Superblock::decode(&page.0), Superblock::Foreign);
        assert_eq!(Superblock::decode(b"short"), Superblock::Foreign);
    }

    #[test]
    fn a_superblock_of_before_it_told_the_block_size_is_of_the_default() {
        let page = Superblock::encode(SLAB, 0);
        assert!(page.0[52..CRC_AT].iter().all(|byte| *byte == 0));
        assert_eq!(Superblock::decode(&page.0), Superblock::Slab { id: SLAB, block_size: MAX_BLOCK_SIZE });
    }

    proptest! {
        #[test]
        fn a_flipped_bit_is_never_a_header(bit in 0..PAGE * 8) {
            let mut page = encode(SLAB, SLOT, 11, Some((&run(70_000), KEEP)));
            page.0[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Header::decode(SLAB, SLOT, &page.0).is_none());
        }

        #[test]
        fn garbage_with_a_right_crc_does_not_panic(mut body in prop::collection::vec(any::<u8>(), 100), class in 0u8..CLASSES) {
            let slot = Slot { class, ..SLOT };
            let mut page = encode(SLAB, slot, 1, None);
            page.0[34 + 8..34 + 8 + 100].swap_with_slice(&mut body);
            let crc = crc32c(&page.0[..CRC_AT]);
            page.0[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
            let _ = Header::decode(SLAB, slot, &page.0);
        }
    }
}
