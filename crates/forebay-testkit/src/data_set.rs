//! File contents that can be checked at any offset.
//!
//! Each 8-byte word is a hash of the seed and of the word's position, so a byte that is misplaced, stale or of another
//! file shows, and the contents of any range can be made without making what comes before it.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::Path;

use forebay_types::crc32c;

/// Deterministic contents; the same seed makes the same bytes on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSet {
    seed: u64,
}

/// Bytes that are made and written at a time.
const CHUNK: u64 = 1 << 20;

impl DataSet {
    /// The contents of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Fills `into` with the bytes that start at `offset`.
    pub fn fill(self, offset: u64, into: &mut [u8]) {
        let mut position = offset;
        let mut rest = into;
        while !rest.is_empty() {
            let word = self.word(position / 8).to_le_bytes();
            let within = (position % 8) as usize;
            let count = rest.len().min(8 - within);
            let (head, tail) = rest.split_at_mut(count);
            head.copy_from_slice(&word[within..within + count]);
            position += count as u64;
            rest = tail;
        }
    }

    /// The bytes of a range.
    #[must_use]
    pub fn expected(self, range: Range<u64>) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0)];
        self.fill(range.start, &mut bytes);
        bytes
    }

    /// Where `bytes`, read at `offset`, differ for the first time from what they should be.
    #[must_use]
    pub fn first_difference(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let expected = self.expected(offset..offset + bytes.len() as u64);
        if expected == bytes {
            return None;
        }
        expected.iter().zip(bytes).position(|(expected, byte)| expected != byte).map(|index| offset + index as u64)
    }

    /// The CRC32C of the first `size` bytes.
    #[must_use]
    pub fn checksum(self, size: u64) -> u32 {
        crc32c(&self.expected(0..size))
    }

    /// Writes a file of `size` bytes, with the directories above it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_file(self, path: &Path, size: u64) -> std::io::Result<()> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let mut file = File::create(path)?;
        let mut buffer = vec![0; usize::try_from(size.min(CHUNK)).unwrap_or(0)];
        let mut offset = 0;
        while offset < size {
            let count = usize::try_from((size - offset).min(CHUNK)).unwrap_or(0);
            self.fill(offset, &mut buffer[..count]);
            file.write_all(&buffer[..count])?;
            offset += count as u64;
        }
        Ok(())
    }

    /// SplitMix64's finaliser (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014) over the
    /// word's place in the seed's sequence.
    fn word(self, index: u64) -> u64 {
        let mut z =
            self.seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_range_is_the_same_as_the_whole_cut() {
        let data = DataSet::new(7);
        let whole = data.expected(0..10_000);
        for range in [0..1, 3..4, 7..9, 4093..8195, 9999..10_000, 5..5] {
            assert_eq!(data.expected(range.clone()), whole[range.start as usize..range.end as usize]);
        }
    }

    #[test]
    fn a_misplaced_byte_and_another_seed_show() {
        let data = DataSet::new(1);
        let mut bytes = data.expected(100..5000);
        assert_eq!(data.first_difference(100, &bytes), None);
        bytes[77] ^= 1;
        assert_eq!(data.first_difference(100, &bytes), Some(177));
        assert!(data.first_difference(8, &data.expected(0..4096)).is_some());
        assert!(data.first_difference(0, &DataSet::new(2).expected(0..64)).is_some());
    }

    #[test]
    fn a_written_file_is_what_is_expected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b");
        let size = CHUNK + 12_345;
        DataSet::new(3).write_file(&path, size).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, size);
        assert_eq!(crc32c(&bytes), DataSet::new(3).checksum(size));
    }
}
