//! What a fuzzer feeds to the reader of the embedded store's files.

use bytes::Bytes;
use forebay_types::crc32c;

use crate::file::record::{self, Frame, HEADER};

/// Reads `file` from its start on, and writes again what it finds.
///
/// # Panics
/// When that reads as something else, or reading does not go forward.
pub fn log(file: &[u8]) {
    let (file, mut offset) = (Bytes::copy_from_slice(file), 0);
    while let Frame::Whole(change, end) = record::read(&file, offset) {
        assert!(end >= offset + HEADER && end <= file.len());
        let mut written = Vec::new();
        record::write(&change, &mut written);
        let length = written.len();
        assert_eq!(record::read(&written.into(), 0), Frame::Whole(change, length));
        offset = end;
    }
}

/// Gives the frames in `file` the checksums that their other bytes have, as far as frames follow one another from `start` on.
pub fn seal(file: &mut [u8], start: usize) {
    let mut rest = file.get_mut(start..).unwrap_or_default();
    while let Some((header, after)) = rest.split_first_chunk_mut::<HEADER>() {
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        let length = length.min(after.len());
        let (payload, next) = after.split_at_mut(length);
        header[4..8].copy_from_slice(&(length as u32).to_le_bytes());
        header[8..12].copy_from_slice(&crc32c(payload).to_le_bytes());
        let sum = crc32c(&header[..HEADER - 4]);
        header[HEADER - 4..].copy_from_slice(&sum.to_le_bytes());
        rest = next;
    }
}
