//! Where a run lies in a worker's slab, as a client is told, and what is to be read of it.
//!
//! ```text
//! location   0 generation u64 │ 8 sector of the slab u32 │ 12 first sector of the block u32 │ 16 bytes u32
//! ```
//!
//! Little-endian; a generation of 0 is no location, which is what peers send that know of none. The bytes are whole
//! sectors, but for the last of a file.

use std::ops::Range;

use forebay_types::{BlockKey, MAX_SECTORS, SECTOR_SIZE};

use crate::seal::{Fault, Generation, PAGE_SIZE, SEAL_SIZE, SealedAs};

/// Bytes of a location on the wire.
pub const LOCATION_LEN: usize = 20;

/// Where the bytes of a run lie, for as long as their seals have this generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Of the seals.
    pub generation: Generation,
    /// The sector of the slab that the run begins in.
    pub at: u32,
    /// The sector of the block that it begins with.
    pub first: u32,
    /// Its bytes.
    pub length: u32,
}

/// Why bytes are no location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    /// They end beyond a block, or beyond any slab.
    #[error("{length} bytes from sector {first} of a block on, at sector {at} of a slab, are no place of a run")]
    Place {
        /// As [`Location::at`].
        at: u32,
        /// As [`Location::first`].
        first: u32,
        /// As [`Location::length`].
        length: u32,
    },
}

impl Location {
    /// How many sectors.
    #[must_use]
    pub fn sectors(&self) -> u32 {
        self.length.div_ceil(SECTOR_SIZE)
    }

    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> [u8; LOCATION_LEN] {
        let mut bytes = [0; LOCATION_LEN];
        bytes[..8].copy_from_slice(&self.generation.get().to_le_bytes());
        bytes[8..12].copy_from_slice(&self.at.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.first.to_le_bytes());
        bytes[16..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Reads what [`Location::encode`] wrote; `None` for zeros.
    ///
    /// # Errors
    /// [`LocationError`]: the peer breaks the protocol.
    pub fn decode(bytes: &[u8; LOCATION_LEN]) -> Result<Option<Self>, LocationError> {
        let [g0, g1, g2, g3, g4, g5, g6, g7, a0, a1, a2, a3, f0, f1, f2, f3, l0, l1, l2, l3] = *bytes;
        let Some(generation) = Generation::new(u64::from_le_bytes([g0, g1, g2, g3, g4, g5, g6, g7])) else {
            return Ok(None);
        };
        let [at, first, length] = [[a0, a1, a2, a3], [f0, f1, f2, f3], [l0, l1, l2, l3]].map(u32::from_le_bytes);
        let this = Self { generation, at, first, length };
        let ends_in_block = first.checked_add(this.sectors()).is_some_and(|end| end <= MAX_SECTORS);
        if length == 0 || !ends_in_block || at.checked_add(this.sectors()).is_none() {
            return Err(LocationError::Place { at, first, length });
        }
        Ok(Some(this))
    }

    /// What is to be read to have `offset..offset + length` of `block`; `None` when the run has not all of it, or it
    /// does not begin and end with pages. It may end with the run.
    #[must_use]
    pub fn plan(&self, block: BlockKey, offset: u32, length: u32) -> Option<Plan> {
        let start = self.first.checked_mul(SECTOR_SIZE)?;
        let (from, end) = (offset.checked_sub(start)?, offset.checked_add(length)?.checked_sub(start)?);
        let ends_well = end == self.length || (end < self.length && end.is_multiple_of(PAGE_SIZE));
        (length > 0 && from.is_multiple_of(PAGE_SIZE) && ends_well).then_some(Plan {
            block,
            location: *self,
            from,
            end,
        })
    }
}

/// Two reads that together are one: of bytes, and, after all of them are here, of the seals of their sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    block: BlockKey,
    location: Location,
    /// In bytes from where the run begins.
    from: u32,
    end: u32,
}

impl Plan {
    /// The location that it is made of.
    #[must_use]
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// The block.
    #[must_use]
    pub fn block(&self) -> &BlockKey {
        &self.block
    }

    /// How many bytes are wanted.
    #[expect(clippy::len_without_is_empty, reason = "there is always something to read")]
    #[must_use]
    pub fn len(&self) -> usize {
        (self.end - self.from) as usize
    }

    /// Where the bytes lie in the slab.
    #[must_use]
    pub fn data(&self) -> Range<u64> {
        let start = u64::from(self.location.at) * u64::from(SECTOR_SIZE);
        start + u64::from(self.from)..start + u64::from(self.end)
    }

    /// Where the seals of their sectors lie on the board.
    #[must_use]
    pub fn seals(&self) -> Range<u64> {
        let sectors = self.sectors();
        let line = |sector: u32| (u64::from(self.location.at) + u64::from(sector)) * SEAL_SIZE as u64;
        line(sectors.start)..line(sectors.end)
    }

    /// How many bytes those are.
    #[must_use]
    pub fn seals_len(&self) -> usize {
        self.sectors().len() * SEAL_SIZE
    }

    /// Which sectors of the run, counted from its first.
    fn sectors(&self) -> Range<u32> {
        self.from / SECTOR_SIZE..self.end.div_ceil(SECTOR_SIZE)
    }

    /// Whether `data` is what was wanted, by the `seals` that were read **after** all of it.
    ///
    /// # Errors
    /// [`Fault`]: not a byte of it is to be believed.
    pub fn judge(&self, data: &[u8], seals: &[u8]) -> Result<(), Fault> {
        let (lines, rest) = seals.as_chunks::<SEAL_SIZE>();
        if data.len() != self.len() || lines.len() != self.sectors().len() || !rest.is_empty() {
            return Err(Fault::Length);
        }
        let mut data = data;
        let mut at = self.from;
        for (sector, line) in self.sectors().zip(lines) {
            let stop = ((sector + 1) * SECTOR_SIZE).min(self.end);
            let (bytes, later) = data.split_at_checked((stop - at) as usize).ok_or(Fault::Length)?;
            let generation = self.location.generation;
            let sealed = SealedAs { block: self.block, sector: self.location.first + sector, generation };
            sealed.check(line, at % SECTOR_SIZE, bytes)?;
            (data, at) = (later, stop);
        }
        Ok(())
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use forebay_types::{FileId, SectorChecksums, SectorRange};
    use proptest::prelude::*;

    use super::*;
    use crate::board::Board;

    const BLOCK: BlockKey = BlockKey { file: FileId([1; 16]), index: 9 };

    fn location() -> impl Strategy<Value = Location> {
        (1u64.., 0u32..1 << 20, 0u32..MAX_SECTORS, 1u32..=MAX_SECTORS * SECTOR_SIZE).prop_map(
            |(generation, at, first, length)| Location {
                generation: Generation::new(generation).unwrap(),
                at,
                first,
                length: length.min((MAX_SECTORS - first) * SECTOR_SIZE),
            },
        )
    }

    #[test]
    fn pages_are_read_alone_and_what_is_none_goes_the_ordinary_way() {
        let generation = Generation::new(1).unwrap();
        let location = Location { generation, at: 10, first: 2, length: SECTOR_SIZE + 5000 };
        let plan = |offset, length| location.plan(BLOCK, 2 * SECTOR_SIZE + offset, length);
        let whole = plan(0, location.length).unwrap();
        assert_eq!(whole.data(), 10 * u64::from(SECTOR_SIZE)..11 * u64::from(SECTOR_SIZE) + 5000);
        assert_eq!((whole.seals(), whole.seals_len()), (640..768, 128));
        let page = plan(SECTOR_SIZE, PAGE_SIZE).unwrap();
        assert_eq!((page.len(), page.seals()), (4096, 704..768));
        assert!(plan(SECTOR_SIZE + 4096, 904).is_some(), "it ends with the run");
        for (offset, length) in [(0, 0), (1, 4096), (0, 100), (0, location.length + 1), (SECTOR_SIZE + 4096, 903)] {
            assert_eq!(plan(offset, length), None, "{length} at {offset}");
        }
        assert_eq!(location.plan(BLOCK, SECTOR_SIZE, 4096), None, "it lies before");
        assert_eq!(location.plan(BLOCK, u32::MAX, 4096), None);
    }

    #[test]
    fn what_was_sealed_is_believed_page_by_page_and_nothing_else() {
        let bytes: Vec<u8> = (0..2 * SECTOR_SIZE - 100).map(|at| (at % 241) as u8).collect();
        let board = Board::new(8);
        let sectors = SectorRange::new(3, 5).unwrap();
        let sealed = board.seal(BLOCK, sectors, 4, &SectorChecksums::of(&bytes), &bytes).unwrap();
        let location =
            Location { generation: sealed.generation(), at: sealed.at(), first: 3, length: bytes.len() as u32 };
        let seals = |plan: &Plan| -> Vec<u8> {
            let words = (plan.seals().start / 8..plan.seals().end / 8).map(|word| (word as u32 / 8, word as usize % 8));
            words.flat_map(|(at, word)| board.word(at, word)).collect()
        };
        for (from, to) in [(0, bytes.len()), (4096, 8192), (28_672, 36_864), (61_440, bytes.len())] {
            let plan = location.plan(BLOCK, 3 * SECTOR_SIZE + from as u32, (to - from) as u32).unwrap();
            assert_eq!(plan.judge(&bytes[from..to], &seals(&plan)), Ok(()), "{from}..{to}");
            let mut other = bytes[from..to].to_vec();
            *other.last_mut().unwrap() ^= 1;
            assert!(matches!(plan.judge(&other, &seals(&plan)), Err(Fault::Page(_))));
            assert_eq!(plan.judge(&other[1..], &seals(&plan)), Err(Fault::Length));
            assert_eq!(plan.judge(&other, &[]), Err(Fault::Length));
        }
        let plan = location.plan(BLOCK, 3 * SECTOR_SIZE, 4096).unwrap();
        let elsewhere = Location { first: 2, ..location }.plan(BLOCK, 2 * SECTOR_SIZE, 4096).unwrap();
        assert_eq!(elsewhere.judge(&bytes[..4096], &seals(&plan)), Err(Fault::Seal(2)), "of another sector");
        drop(sealed);
        assert_eq!(plan.judge(&bytes[..4096], &seals(&plan)), Err(Fault::Gone));
    }

    proptest! {
        #[test]
        fn a_location_comes_back_as_it_went(location in location()) {
            prop_assert_eq!(Location::decode(&location.encode()), Ok(Some(location)));
        }

        #[test]
        fn no_bytes_make_a_location_that_reads_beyond_its_run(
            words in any::<[u32; 5]>(),
            offset in 0u32..MAX_SECTORS * SECTOR_SIZE,
            pages in 0u32..2000,
        ) {
            let mut bytes = [0; LOCATION_LEN];
            bytes.as_chunks_mut::<4>().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
            // As they come, and so that more of them are locations.
            for mask in [u32::MAX, 0x7f] {
                bytes[12..16].copy_from_slice(&(words[3] & mask).to_le_bytes());
                bytes[16..].copy_from_slice(&(words[4] & ((mask << 15) | 0x7fff)).to_le_bytes());
                let Ok(Some(location)) = Location::decode(&bytes) else { continue };
                let offset = offset / PAGE_SIZE * PAGE_SIZE;
                let Some(plan) = location.plan(BLOCK, offset, pages * PAGE_SIZE) else { continue };
                let slab = u64::from(location.at) * u64::from(SECTOR_SIZE);
                prop_assert!(plan.data().start >= slab && plan.data().end <= slab + u64::from(location.length));
                prop_assert_eq!(plan.seals_len() as u64, plan.seals().end - plan.seals().start);
                prop_assert!(plan.judge(&vec![0; plan.len()], &vec![0; plan.seals_len()]).is_err());
            }
        }
    }
}
