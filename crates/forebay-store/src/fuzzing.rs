//! What a fuzzer feeds to the reader of a slab's pages, and where the pages of a slab are.

use forebay_types::{MAX_SECTORS, SECTOR_SIZE, crc32c};

use crate::disk::fuzzing::{CLASSES, HEADER_SIZE, Header, PAGE, SUPERBLOCK_SIZE, Slot, Superblock, encode, extents};

/// Reads a page as a superblock, and writes again what it says.
///
/// # Panics
/// When that is not what it said.
pub fn superblock(page: &[u8]) {
    if let Superblock::Slab { id, block_size } = Superblock::decode(page) {
        let again = Superblock::decode(&Superblock::encode(id, block_size).0);
        assert_eq!(again, Superblock::Slab { id, block_size });
    }
}

/// Reads a page as the header of an extent, and writes again what it says.
///
/// # Panics
/// When that is not what it said, or the run does not fit the extent.
pub fn header(slab: [u8; 16], frame: u32, index: u8, class: u8, page: &[u8]) {
    let slot = Slot { frame, index, class };
    let Some(header) = Header::decode(slab, slot, page) else { return };
    assert!(header.slot == slot && class < CLASSES);
    if let Some((run, _)) = &header.run {
        let sectors = run.sectors.len();
        assert!(sectors >= 1 && sectors <= 1 << class && sectors <= MAX_SECTORS);
        assert_eq!((run.byte_len.div_ceil(SECTOR_SIZE), run.checksums.len()), (sectors, sectors as usize));
    }
    let written = encode(slab, slot, header.generation, header.run.as_ref().map(|(run, keep)| (run, *keep)));
    assert_eq!(Header::decode(slab, slot, &written.0).as_ref(), Some(&header));
}

/// Gives a page the checksum that its other bytes have.
pub fn seal(page: &mut [u8]) {
    if let Some((body, crc)) = page.split_last_chunk_mut::<4>() {
        *crc = crc32c(body).to_le_bytes();
    }
}

/// Where in a slab's first frame the header of an extent of this class is, wrapped around at the frame's end.
#[must_use]
pub fn header_at(class: u8, index: u8) -> usize {
    let class = class % CLASSES;
    Slot { frame: 0, index: index % extents(class), class }.offset() as usize
}

/// Bytes of a page.
pub const PAGE_SIZE: usize = PAGE;

const _: () = assert!(SUPERBLOCK_SIZE == HEADER_SIZE && HEADER_SIZE == PAGE as u64, "both are one page");
