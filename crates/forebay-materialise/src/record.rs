//! What is written down of a file beside its bytes: which version it is, and the sum of each sector. Pure.
//!
//! ```text
//! magic 8 | format 4 | length of the description 4 | description | checksums, 4 each | CRC32C of all before it 4
//! ```
//!
//! Little-endian. The checksums are those that came with the bytes from the worker, so what is checked against them after a
//! restart is checked against what the origin delivered.

use bytes::Bytes;
use forebay_types::{FileVersion, SECTOR_SIZE, SectorChecksums, crc32c};

use crate::name::Name;

const MAGIC: [u8; 8] = *b"fbylocal";
const FORMAT: u32 = 1;
/// Bytes before the description.
const HEAD: usize = 16;
/// Bytes of a number: a checksum, a length, a format.
const WORD: usize = 4;

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) version: FileVersion,
    /// Of each sector, in order.
    pub(crate) checksums: SectorChecksums,
}

/// How many sectors a file has.
pub(crate) fn sectors(size: u64) -> u64 {
    size.div_ceil(u64::from(SECTOR_SIZE))
}

impl Record {
    pub(crate) fn name(&self) -> Name {
        Name { id: self.version.id(), size: self.version.size }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let description = self.version.encode();
        let mut out = Vec::with_capacity(HEAD + description.len() + self.checksums.as_bytes().len() + WORD);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        // A description is far below 4 GiB; one that is not makes a record that cannot be read.
        out.extend_from_slice(&u32::try_from(description.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&description);
        out.extend_from_slice(self.checksums.as_bytes());
        out.extend_from_slice(&crc32c(&out).to_le_bytes());
        out
    }

    /// Reads what [`Record::encode`] wrote. `None` for anything else: another format, a torn write, checksums that are too few.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (before, crc) = bytes.split_last_chunk::<WORD>()?;
        if u32::from_le_bytes(*crc) != crc32c(before) {
            return None;
        }
        let rest = before.strip_prefix(&MAGIC)?;
        let (format, rest) = rest.split_first_chunk::<WORD>()?;
        let (length, rest) = rest.split_first_chunk::<WORD>()?;
        if u32::from_le_bytes(*format) != FORMAT {
            return None;
        }
        let (description, checksums) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let version = FileVersion::decode(description).ok()?;
        let checksums = SectorChecksums::from_bytes(Bytes::copy_from_slice(checksums))?;
        (checksums.len() as u64 == sectors(version.size)).then_some(Self { version, checksums })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::VersionTag;
    use proptest::prelude::*;

    fn record() -> impl Strategy<Value = Record> {
        (".{0,20}", prop::collection::vec(any::<u8>(), 0..20), 1u64..2_000_000, any::<u8>()).prop_map(
            |(origin, path, size, fill)| {
                let tag = VersionTag::Etag("\"1\"".into());
                let version = FileVersion { origin: origin.into(), path: path.into(), size, tag };
                let checksums = SectorChecksums::of(&vec![fill; usize::try_from(size).unwrap()]);
                Record { version, checksums }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_record_is_read_as_it_was_written(record in record()) {
            prop_assert_eq!(Record::decode(&record.encode()), Some(record));
        }

        #[test]
        fn a_record_that_is_not_whole_or_was_changed_is_none(record in record(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let mut bytes = record.encode();
            prop_assert_eq!(Record::decode(&bytes[..at.index(bytes.len())]), None);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(Record::decode(&bytes), None);
        }

        #[test]
        fn no_bytes_make_the_reader_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), head in any::<bool>()) {
            if head {
                bytes.splice(0..0, [&MAGIC[..], &FORMAT.to_le_bytes()].concat());
                bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
            }
            let _ = Record::decode(&bytes);
        }
    }
}
