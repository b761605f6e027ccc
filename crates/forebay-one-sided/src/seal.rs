//! A seal: what is known of the bytes of one sector of a slab, in a cache line that is read with them.
//!
//! ```text
//! 0 generation u64 │ 8 bytes of the sector u32 │ 12 crc u32 │ 16 CRC32C of each of its pages [u32; 8] │ 48 zero [16]
//! ```
//!
//! Little-endian. A generation of 0 is none: the sector is not to be read. The crc is of all that precedes and follows
//! it here, and of the block's key and the number of the sector in it, which both ends know: so a seal of one sector is
//! never one of another, whatever is wrong with its generation. A page is 4 KiB of the sector; the last one may be
//! short, and those behind it have no checksum.

use std::num::NonZeroU64;

use forebay_types::{BlockKey, SECTOR_SIZE, crc32c};

/// Bytes of a seal: a cache line, which most cards read at once.
pub const SEAL_SIZE: usize = 64;
/// Bytes of a page: what a checksum is of, so that a small read brings little else.
pub const PAGE_SIZE: u32 = 4096;
/// Words of a seal.
pub(crate) const WORDS: usize = SEAL_SIZE / size_of::<u64>();
/// Pages of a sector.
const PAGES: usize = (SECTOR_SIZE / PAGE_SIZE) as usize;

/// Which use of a piece of memory is meant. A board gives each out once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(NonZeroU64);

impl Generation {
    /// The generation of this number; `None` for 0, which is none.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// Its number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// Why bytes that were read are not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The memory is not in the use that was meant: it was evicted, and maybe is another's.
    #[error("it is not there any more")]
    Gone,
    /// A seal is not what was written, or of something else.
    #[error("the seal of sector {0} is wrong")]
    Seal(u32),
    /// Bytes are not what they were.
    #[error("a page of sector {0} is wrong")]
    Page(u32),
    /// Fewer bytes came, or more, than were to.
    #[error("what was read has another length")]
    Length,
}

impl Fault {
    /// Whether the worker's memory may be damaged, so that it should look.
    #[must_use]
    pub fn is_corrupt(self) -> bool {
        matches!(self, Self::Seal(_) | Self::Page(_))
    }
}

/// The sector of a block that a seal is of, and in which use of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SealedAs {
    pub(crate) block: BlockKey,
    pub(crate) sector: u32,
    pub(crate) generation: Generation,
}

impl SealedAs {
    /// The seal of these bytes, a sector's at most.
    pub(crate) fn seal(&self, bytes: &[u8]) -> [u64; WORDS] {
        let mut line = [0; SEAL_SIZE];
        let (head, pages) = line.split_at_mut(16);
        head[..8].copy_from_slice(&self.generation.get().to_le_bytes());
        head[8..12].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        for (place, page) in pages.chunks_exact_mut(4).zip(bytes.chunks(PAGE_SIZE as usize)) {
            place.copy_from_slice(&crc32c(page).to_le_bytes());
        }
        let crc = self.crc(&line);
        line[12..16].copy_from_slice(&crc.to_le_bytes());
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(line.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words
    }

    /// Whether `line` is this seal, and `bytes`, which begin at byte `from` of the sector and end with a page or with
    /// the sector, are those that it is of.
    ///
    /// # Errors
    /// [`Fault`]. That the generation is another one comes before everything else.
    pub(crate) fn check(&self, line: &[u8; SEAL_SIZE], from: u32, bytes: &[u8]) -> Result<(), Fault> {
        let [g0, g1, g2, g3, g4, g5, g6, g7, l0, l1, l2, l3, c0, c1, c2, c3, ..] = *line;
        if u64::from_le_bytes([g0, g1, g2, g3, g4, g5, g6, g7]) != self.generation.get() {
            return Err(Fault::Gone);
        }
        if u32::from_le_bytes([c0, c1, c2, c3]) != self.crc(line) {
            return Err(Fault::Seal(self.sector));
        }
        // Believed from here on, as far as the worker is.
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let end = u64::from(from) + bytes.len() as u64;
        let ends_well =
            end == u64::from(length) || (end < u64::from(length) && end.is_multiple_of(u64::from(PAGE_SIZE)));
        if length > SECTOR_SIZE || !from.is_multiple_of(PAGE_SIZE) || !ends_well {
            return Err(Fault::Length);
        }
        let stored = line[16..16 + 4 * PAGES].as_chunks::<4>().0;
        let mut known = stored.iter().skip((from / PAGE_SIZE) as usize);
        for page in bytes.chunks(PAGE_SIZE as usize) {
            if known.next() != Some(&crc32c(page).to_le_bytes()) {
                return Err(Fault::Page(self.sector));
            }
        }
        Ok(())
    }

    /// The checksum of a seal of this sector, whatever stands in its place.
    fn crc(&self, line: &[u8; SEAL_SIZE]) -> u32 {
        let mut whole = [0; SEAL_SIZE - 4 + 16 + 8 + 4];
        whole[..12].copy_from_slice(&line[..12]);
        whole[12..60].copy_from_slice(&line[16..]);
        whole[60..76].copy_from_slice(&self.block.file.0);
        whole[76..84].copy_from_slice(&self.block.index.to_le_bytes());
        whole[84..].copy_from_slice(&self.sector.to_le_bytes());
        crc32c(&whole)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use forebay_types::FileId;
    use proptest::prelude::*;

    use super::*;

    const AS: SealedAs = SealedAs {
        block: BlockKey { file: FileId([7; 16]), index: 3 },
        sector: 5,
        generation: Generation(NonZeroU64::MIN),
    };

    fn line(words: [u64; WORDS]) -> [u8; SEAL_SIZE] {
        let mut line = [0; SEAL_SIZE];
        line.as_chunks_mut::<8>().0.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
        line
    }

    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn a_seal_is_of_its_bytes_its_sector_and_its_generation_alone() {
        let bytes = bytes(10_000);
        let seal = line(AS.seal(&bytes));
        let page = PAGE_SIZE as usize;
        assert_eq!(AS.check(&seal, 0, &bytes), Ok(()));
        assert_eq!(AS.check(&seal, PAGE_SIZE, &bytes[page..]), Ok(()));
        assert_eq!(AS.check(&seal, PAGE_SIZE, &bytes[page..2 * page]), Ok(()));
        assert_eq!(AS.check(&seal, PAGE_SIZE, &bytes[..page]), Err(Fault::Page(5)), "it is another page");
        let later = SealedAs { generation: Generation::new(2).unwrap(), ..AS };
        assert_eq!(later.check(&seal, 0, &bytes), Err(Fault::Gone));
        assert_eq!(AS.check(&[0; SEAL_SIZE], 0, &bytes), Err(Fault::Gone));
        for other in [SealedAs { sector: 6, ..AS }, SealedAs { block: BlockKey { index: 4, ..AS.block }, ..AS }] {
            assert_eq!(other.check(&seal, 0, &bytes), Err(Fault::Seal(other.sector)));
        }
    }

    #[test]
    fn what_does_not_begin_and_end_with_pages_cannot_be_checked() {
        let bytes = bytes(10_000);
        let seal = line(AS.seal(&bytes));
        for (from, range) in [(1, 1..4096), (0, 0..4095), (0, 0..9_999), (8192, 8192..9_000)] {
            assert_eq!(AS.check(&seal, from, &bytes[range.clone()]), Err(Fault::Length), "{range:?}");
        }
        let longer: Vec<_> = bytes.iter().copied().chain([0]).collect();
        assert_eq!(AS.check(&seal, 0, &longer), Err(Fault::Length));
    }

    proptest! {
        #[test]
        fn a_bit_that_flips_in_a_seal_or_in_its_bytes_is_found(
            length in 1usize..=SECTOR_SIZE as usize,
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
            is_seal in any::<bool>(),
        ) {
            let mut bytes = bytes(length);
            let mut seal = line(AS.seal(&bytes));
            let place: &mut [u8] = if is_seal { &mut seal } else { &mut bytes };
            let at = at.index(place.len());
            place[at] ^= 1 << bit;
            prop_assert!(AS.check(&seal, 0, &bytes).is_err());
        }

        #[test]
        fn no_line_makes_the_check_panic(
            seal in prop::array::uniform32(any::<[u8; 2]>()),
            from in any::<u32>(),
            bytes in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let mut line: [u8; SEAL_SIZE] = std::array::from_fn(|at| seal[at / 2][at % 2]);
            let _ = AS.check(&line, from, &bytes);
            // Also where all before was right.
            line[..8].copy_from_slice(&1u64.to_le_bytes());
            let crc = AS.crc(&line);
            line[12..16].copy_from_slice(&crc.to_le_bytes());
            let _ = AS.check(&line, from, &bytes);
        }
    }
}
