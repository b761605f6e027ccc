//! The integrity check of a sector.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use crate::SECTOR_SIZE;

/// CRC32C (Castagnoli, as in iSCSI, RFC 3720 B.4) of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    // The crate widens every CRC to 64 bits; this one is 32 bits wide.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Bytes in a checksum.
const SUM: usize = size_of::<u32>();

/// The CRC32C of each of some consecutive sectors. Clones and slices share memory, so that a worker sends what it keeps.
#[derive(Clone, PartialEq, Eq)]
pub struct SectorChecksums(Bytes);

impl SectorChecksums {
    /// The checksums of `bytes`, which start with a sector; the last one may be short.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(bytes.chunks(SECTOR_SIZE as usize).flat_map(|sector| crc32c(sector).to_le_bytes()).collect())
    }

    /// Sums as they are kept and sent: little-endian, one after the other. `None` if the last one is cut off.
    #[must_use]
    pub fn from_bytes(bytes: Bytes) -> Option<Self> {
        bytes.len().is_multiple_of(SUM).then_some(Self(bytes))
    }

    /// The reverse of [`SectorChecksums::from_bytes`].
    #[must_use]
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// How many sectors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len() / SUM
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those of some of the sectors, counted from the first of these; `None` if they are not all here.
    #[must_use]
    pub fn slice(&self, sectors: Range<u32>) -> Option<Self> {
        let (start, end) = (sectors.start as usize, sectors.end as usize);
        (start <= end && end <= self.len()).then(|| Self(self.0.slice(start * SUM..end * SUM)))
    }

    /// Checks `bytes`, which start with the first of these sectors. Sums beyond the last byte are not looked at.
    ///
    /// # Errors
    /// The first sector that is not what it was, counted from the first of these.
    pub fn check(&self, bytes: &[u8]) -> Result<(), u32> {
        self.check_from(0, bytes)
    }

    /// The same for bytes that start with sector `first` of these.
    ///
    /// # Errors
    /// The first sector that is not what it was, counted from `first`.
    pub fn check_from(&self, first: u32, bytes: &[u8]) -> Result<(), u32> {
        let mut known = self.0.get(first as usize * SUM..).unwrap_or_default().chunks_exact(SUM);
        for (sector, bytes) in (0..).zip(bytes.chunks(SECTOR_SIZE as usize)) {
            if known.next() != Some(&crc32c(bytes).to_le_bytes()) {
                return Err(sector);
            }
        }
        Ok(())
    }
}

impl fmt::Debug for SectorChecksums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SectorChecksums({})", self.len())
    }
}

/// The checksums of consecutive sectors whose bytes still come in: each sector is summed as soon as it is whole. Whoever tells it of
/// each piece right after it came has its bytes summed while they are in the processor's cache.
#[derive(Debug, Default)]
pub struct RunningChecksums {
    /// Of the sectors that are whole.
    checksums: Vec<u8>,
    /// The bytes of these.
    summed: usize,
}

impl RunningChecksums {
    /// None yet of `length` bytes that are to come.
    #[must_use]
    pub fn of_length(length: usize) -> Self {
        Self { checksums: Vec::with_capacity(length.div_ceil(SECTOR_SIZE as usize) * SUM), summed: 0 }
    }

    /// `so_far` is all that has come, from the first sector on. What came before is the same as the last time, and is not looked at.
    pub fn advance(&mut self, so_far: &[u8]) {
        for sector in so_far.get(self.summed..).unwrap_or_default().chunks_exact(SECTOR_SIZE as usize) {
            self.checksums.extend_from_slice(&crc32c(sector).to_le_bytes());
            self.summed += sector.len();
        }
    }

    /// `all` is all that came: the last sector may be short.
    #[must_use]
    pub fn end(mut self, all: &[u8]) -> SectorChecksums {
        self.advance(all);
        let last = all.get(self.summed..).unwrap_or_default();
        if !last.is_empty() {
            self.checksums.extend_from_slice(&crc32c(last).to_le_bytes());
        }
        SectorChecksums(self.checksums.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_rfc_3720_vectors_hold() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn checksums_tell_which_sector_is_wrong() {
        let mut bytes: Vec<u8> = (0..3 * SECTOR_SIZE + 5).map(|at| (at % 251) as u8).collect();
        let checksums = SectorChecksums::of(&bytes);
        assert_eq!((checksums.len(), checksums.check(&bytes)), (4, Ok(())));
        let tail = checksums.slice(2..4).unwrap();
        assert_eq!(tail.check(&bytes[2 * SECTOR_SIZE as usize..]), Ok(()));
        assert_eq!(checksums.check_from(2, &bytes[2 * SECTOR_SIZE as usize..]), Ok(()));
        assert_eq!(SectorChecksums::from_bytes(tail.as_bytes().clone()), Some(tail.clone()));
        *bytes.last_mut().unwrap() ^= 1;
        assert_eq!((checksums.check(&bytes), tail.check(&bytes[2 * SECTOR_SIZE as usize..])), (Err(3), Err(1)));
        // There are no checksums for what follows.
        assert_eq!(checksums.slice(0..1).unwrap().check(&bytes), Err(1));
        assert_eq!((checksums.check_from(1, &bytes), checksums.check_from(9, &bytes)), (Err(0), Err(0)));
        assert!(checksums.slice(3..5).is_none() && SectorChecksums::from_bytes(Bytes::from_static(b"123")).is_none());
    }

    proptest! {
        #[test]
        fn checksums_of_what_comes_in_pieces_are_those_of_the_whole(
            length in 0usize..200_000,
            pieces in prop::collection::vec(1usize..70_000, 0..20),
        ) {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 241) as u8).collect();
            let (mut running, mut came) = (RunningChecksums::of_length(length), 0);
            for piece in pieces {
                came = (came + piece).min(length);
                running.advance(&bytes[..came]);
            }
            prop_assert_eq!(running.end(&bytes), SectorChecksums::of(&bytes));
        }
    }
}
