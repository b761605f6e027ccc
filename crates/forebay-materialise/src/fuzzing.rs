//! What a fuzzer feeds to the reader of records.

use forebay_types::crc32c;

use crate::record::{Record, sectors};

/// Reads `bytes` as what is written down of a file.
///
/// # Panics
/// When it is not written again as it was, or has no checksum for some sector.
pub fn record(bytes: &[u8]) {
    let Some(record) = Record::decode(bytes) else { return };
    assert_eq!(record.checksums.len() as u64, sectors(record.version.size));
    assert_eq!(record.name().id, record.version.id());
    assert_eq!(record.encode(), bytes);
}

/// Gives a record the checksum that its other bytes have.
pub fn seal(bytes: &mut [u8]) {
    if let Some((before, crc)) = bytes.split_last_chunk_mut::<4>() {
        *crc = crc32c(before).to_le_bytes();
    }
}
