//! Records as they lie in the files of a [`super::FileStore`].
//!
//! A frame is a header of 16 bytes, little-endian: magic, bytes of payload, CRC32C of the payload, CRC32C of the twelve
//! bytes before; then the payload, one [`Change`]. The header has a sum of its own so that a damaged length is known as
//! such: otherwise it could pass for a record that a crash cut short.

use bytes::{Buf, BufMut, Bytes};
use forebay_types::crc32c;

use super::table::{Change, Put};
use crate::{LeaseId, Revision};

/// Bytes before a payload.
pub(crate) const HEADER: usize = 16;
/// The beginning of each frame.
const MAGIC: u32 = u32::from_le_bytes(*b"FBrc");
/// What the disk writes whole or not at all, in bytes: the smallest sector that disks have.
const DISK_SECTOR: usize = 512;
/// Every lease found in a file is one: it ended with the process that held it.
const ENDED_LEASE: LeaseId = LeaseId(0);

/// What is found at some offset of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A whole record, and the offset after it.
    Whole(Change, usize),
    /// The file ends here.
    End,
    /// The last write did not reach the disk, or not all of it: it was never acknowledged.
    Torn,
    /// Bytes that no crash explains.
    Damaged(&'static str),
}

/// Appends a frame to `bytes`.
pub(crate) fn write(change: &Change, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; HEADER]);
    bytes.put_u64_le(change.revision.0);
    put_count(bytes, change.puts.len());
    for Put { key, value, lease } in &change.puts {
        put_slice(bytes, key.as_bytes());
        put_slice(bytes, value);
        bytes.put_u8(lease.is_some().into());
    }
    put_count(bytes, change.deletes.len());
    for key in &change.deletes {
        put_slice(bytes, key.as_bytes());
    }
    let payload = &bytes[start + HEADER..];
    let (length, sum) = (count(payload.len()), crc32c(payload));
    let mut header = [0; HEADER];
    let mut rest = &mut header[..];
    rest.put_u32_le(MAGIC);
    rest.put_u32_le(length);
    rest.put_u32_le(sum);
    let sum = crc32c(&header[..HEADER - 4]);
    header[HEADER - 4..].copy_from_slice(&sum.to_le_bytes());
    bytes[start..start + HEADER].copy_from_slice(&header);
}

/// Reads the frame at `offset` of a file whose content is `file`.
///
/// Each write is synced before the next one starts, so only the last frame can be torn: the file ends within it, or a
/// sector of it is still what the file system shows where nothing was written: zeros.
pub(crate) fn read(file: &Bytes, offset: usize) -> Frame {
    let rest = file.slice(offset..);
    if rest.is_empty() {
        return Frame::End;
    }
    let Some(Header { length, sum }) = header(&rest) else {
        let is_torn = rest.len() < HEADER || has_unwritten_sector(file, offset..file.len());
        let is_last = !(1..rest.len()).any(|start| header(&rest[start..]).is_some());
        return if is_torn && is_last { Frame::Torn } else { Frame::Damaged("the header of a record is wrong") };
    };
    let end = offset + HEADER + length;
    if end > file.len() {
        return Frame::Torn;
    }
    let payload = file.slice(offset + HEADER..end);
    if crc32c(&payload) != sum {
        let is_torn = end == file.len() && has_unwritten_sector(file, offset..end);
        return if is_torn { Frame::Torn } else { Frame::Damaged("the checksum of a record is wrong") };
    }
    match change(payload) {
        Some(change) => Frame::Whole(change, end),
        None => Frame::Damaged("a record cannot be understood"),
    }
}

struct Header {
    length: usize,
    sum: u32,
}

fn header(bytes: &[u8]) -> Option<Header> {
    let mut fields = bytes.get(..HEADER)?;
    if fields.get_u32_le() != MAGIC {
        return None;
    }
    let (length, sum) = (fields.get_u32_le() as usize, fields.get_u32_le());
    (fields.get_u32_le() == crc32c(&bytes[..HEADER - 4])).then_some(Header { length, sum })
}

fn has_unwritten_sector(file: &[u8], range: std::ops::Range<usize>) -> bool {
    let mut start = range.start;
    while start < range.end {
        let end = ((start / DISK_SECTOR + 1) * DISK_SECTOR).min(range.end);
        if file[start..end].iter().all(|byte| *byte == 0) {
            return true;
        }
        start = end;
    }
    false
}

fn change(mut payload: Bytes) -> Option<Change> {
    let mut change = Change { revision: Revision(payload.try_get_u64_le().ok()?), ..Change::default() };
    for _ in 0..payload.try_get_u32_le().ok()? {
        let (key, value) = (key(&mut payload)?, slice(&mut payload)?);
        let lease = (payload.try_get_u8().ok()? != 0).then_some(ENDED_LEASE);
        // A slice would keep the whole file in memory.
        change.puts.push(Put { key, value: Bytes::copy_from_slice(&value), lease });
    }
    for _ in 0..payload.try_get_u32_le().ok()? {
        change.deletes.push(key(&mut payload)?);
    }
    payload.is_empty().then_some(change)
}

fn key(payload: &mut Bytes) -> Option<String> {
    String::from_utf8(slice(payload)?.into()).ok()
}

fn slice(payload: &mut Bytes) -> Option<Bytes> {
    let length = payload.try_get_u32_le().ok()? as usize;
    (length <= payload.len()).then(|| payload.split_to(length))
}

fn put_slice(bytes: &mut Vec<u8>, slice: &[u8]) {
    put_count(bytes, slice.len());
    bytes.extend_from_slice(slice);
}

fn put_count(bytes: &mut Vec<u8>, number: usize) {
    bytes.put_u32_le(count(number));
}

fn count(number: usize) -> u32 {
    // Keys, values and transactions are limited to little more than a megabyte, and so is what one of them deletes:
    // 2^32 keys would not fit into the memory that holds them.
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(revision: u64, value: usize) -> Change {
        let put = |key: &str, lease| Put { key: key.to_owned(), value: vec![b'v'; value].into(), lease };
        let puts = vec![put("a/b", None), put("grüße", Some(ENDED_LEASE))];
        Change { revision: Revision(revision), puts, deletes: vec!["c".to_owned(), "d".to_owned()] }
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        for change in [sample(7, 0), sample(u64::MAX, 100_000), Change::default()] {
            let mut bytes = b"before".to_vec();
            write(&change, &mut bytes);
            let end = bytes.len();
            assert_eq!(read(&bytes.into(), 6), Frame::Whole(change, end));
        }
    }

    #[test]
    fn any_flipped_bit_is_damage_and_never_taken_for_a_crash() {
        let mut bytes = Vec::new();
        write(&sample(1, 10), &mut bytes);
        let second = bytes.len();
        write(&sample(2, 700), &mut bytes);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let offset = if bit / 8 < second { 0 } else { second };
            assert!(matches!(read(&flipped.into(), offset), Frame::Damaged(_)), "bit {bit}");
        }
    }

    #[test]
    fn a_last_write_that_is_cut_off_or_has_unwritten_sectors_is_torn() {
        let mut bytes = Vec::new();
        write(&sample(1, 10), &mut bytes);
        let second = bytes.len();
        write(&sample(2, 2000), &mut bytes);
        for end in second + 1..bytes.len() {
            assert_eq!(read(&Bytes::copy_from_slice(&bytes[..end]), second), Frame::Torn, "cut at {end}");
        }
        for sector in 0..bytes.len().div_ceil(DISK_SECTOR) {
            let mut unwritten = bytes.clone();
            let start = (sector * DISK_SECTOR).max(second);
            let end = ((sector + 1) * DISK_SECTOR).min(bytes.len());
            unwritten[start..end].fill(0);
            assert_eq!(read(&unwritten.into(), second), Frame::Torn, "sector {sector}");
        }
    }

    #[test]
    fn zeros_before_a_later_record_are_damage() {
        let mut bytes = Vec::new();
        write(&sample(1, 2000), &mut bytes);
        let second = bytes.len();
        write(&sample(2, 10), &mut bytes);
        for sector in 0..second / DISK_SECTOR {
            let mut zeroed = bytes.clone();
            zeroed[sector * DISK_SECTOR..][..DISK_SECTOR].fill(0);
            assert!(matches!(read(&zeroed.into(), 0), Frame::Damaged(_)), "sector {sector}");
        }
    }
}
