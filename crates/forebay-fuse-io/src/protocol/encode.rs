//! What the kernel is answered: records of fixed size.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::attributes::{Attributes, OpenedFlags, Statfs};
use crate::errno::Errno;
use crate::protocol::abi::OUT_HEADER;
use crate::protocol::fields::Record;

/// Bytes of attributes.
pub(crate) const ATTRIBUTES: usize = 88;
/// Bytes of an inode: its number, how long name and attributes may be believed, attributes.
pub(crate) const ENTRY: usize = 40 + ATTRIBUTES;

/// What each answer begins with. `body` is how many bytes follow; with an error none must.
#[must_use]
#[inline]
pub fn header(unique: u64, outcome: Result<usize, Errno>) -> Record<OUT_HEADER> {
    let (body, error) = match outcome {
        Ok(body) => (body, 0),
        Err(errno) => (0, -errno.number()),
    };
    let mut record = Record::new();
    // No payload comes near 4 GiB; one that did would be refused for its length.
    record.u32(u32::try_from(OUT_HEADER + body).unwrap_or(u32::MAX)).i32(error).u64(unique);
    record
}

/// To LOOKUP and to what makes inodes.
#[must_use]
#[inline]
pub fn entry(attributes: &Attributes, generation: u64, name_ttl: Duration, attributes_ttl: Duration) -> Record<ENTRY> {
    let mut record = Record::new();
    put_entry(&mut record, attributes, generation, name_ttl, attributes_ttl);
    record
}

/// To LOOKUP: there is none, and the kernel need not ask again for as long as this. Inode number 0 says so.
#[must_use]
pub fn no_entry(ttl: Duration) -> Record<ENTRY> {
    let mut record = Record::new();
    record.u64(0).u64(0).u64(ttl.as_secs()).u64(0).u32(ttl.subsec_nanos());
    record
}

/// To GETATTR and SETATTR.
#[must_use]
#[inline]
pub fn attributes(attributes: &Attributes, ttl: Duration) -> Record<104> {
    let mut record = Record::new();
    record.u64(ttl.as_secs()).u32(ttl.subsec_nanos()).u32(0);
    put_attributes(&mut record, attributes);
    record
}

/// To OPEN and OPENDIR. With the number of a file that is passed through, [`OpenedFlags::PASSTHROUGH`] is set, too, and only
/// with one.
#[must_use]
#[inline]
pub fn opened(handle: u64, flags: OpenedFlags, backing: Option<u32>) -> Record<16> {
    let mut record = Record::new();
    put_opened(&mut record, handle, flags, backing);
    record
}

/// To CREATE.
#[must_use]
pub fn created(
    attributes: &Attributes,
    generation: u64,
    ttl: Duration,
    handle: u64,
    flags: OpenedFlags,
    backing: Option<u32>,
) -> Record<{ ENTRY + 16 }> {
    let mut record = Record::new();
    put_entry(&mut record, attributes, generation, ttl, ttl);
    put_opened(&mut record, handle, flags, backing);
    record
}

/// To WRITE and COPY_FILE_RANGE.
#[must_use]
#[inline]
pub fn written(bytes: u32) -> Record<8> {
    let mut record = Record::new();
    record.u32(bytes);
    record
}

/// To COPY_FILE_RANGE_64.
#[must_use]
pub fn copied(bytes: u64) -> Record<8> {
    let mut record = Record::new();
    record.u64(bytes);
    record
}

/// To LSEEK.
#[must_use]
pub fn offset(offset: u64) -> Record<8> {
    copied(offset)
}

/// To GETXATTR and LISTXATTR with a size of 0.
#[must_use]
pub fn xattr_size(bytes: u32) -> Record<8> {
    written(bytes)
}

/// To STATFS.
#[must_use]
pub fn statfs(statfs: &Statfs) -> Record<80> {
    let mut record = Record::new();
    record.u64(statfs.blocks).u64(statfs.free_blocks).u64(statfs.available_blocks);
    record.u64(statfs.files).u64(statfs.free_files);
    record.u32(statfs.block_size).u32(statfs.name_length).u32(statfs.fragment_size);
    record
}

/// Writes an inode.
#[inline]
pub(crate) fn put_entry<const N: usize>(
    record: &mut Record<N>,
    attributes: &Attributes,
    generation: u64,
    name_ttl: Duration,
    attributes_ttl: Duration,
) {
    record.u64(attributes.ino).u64(generation);
    record.u64(name_ttl.as_secs()).u64(attributes_ttl.as_secs());
    record.u32(name_ttl.subsec_nanos()).u32(attributes_ttl.subsec_nanos());
    put_attributes(record, attributes);
}

#[inline]
fn put_attributes<const N: usize>(record: &mut Record<N>, attributes: &Attributes) {
    let [atime, mtime, ctime] = [attributes.atime, attributes.mtime, attributes.ctime].map(since_1970);
    record.u64(attributes.ino).u64(attributes.size).u64(attributes.blocks);
    record.i64(atime.0).i64(mtime.0).i64(ctime.0);
    record.u32(atime.1).u32(mtime.1).u32(ctime.1);
    record.u32(attributes.kind.mode() | u32::from(attributes.perm & 0o7777)).u32(attributes.nlink);
    record.u32(attributes.uid).u32(attributes.gid).u32(attributes.rdev).u32(attributes.blksize);
    let flags = 0;
    record.u32(flags);
}

#[inline]
fn put_opened<const N: usize>(record: &mut Record<N>, handle: u64, flags: OpenedFlags, backing: Option<u32>) {
    let flags = match backing {
        Some(_) => flags | OpenedFlags::PASSTHROUGH,
        None => flags.without(OpenedFlags::PASSTHROUGH),
    };
    record.u64(handle).u32(flags.bits()).u32(backing.unwrap_or(0));
}

/// Whole seconds since 1970 began, fewer than 0 before, and nanoseconds after that second.
#[inline]
fn since_1970(time: SystemTime) -> (i64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (i64::try_from(after.as_secs()).unwrap_or(i64::MAX), after.subsec_nanos()),
        Err(error) => before_1970(error.duration()),
    }
}

#[cold]
fn before_1970(before: Duration) -> (i64, u32) {
    let seconds = 0i64.saturating_sub_unsigned(before.as_secs());
    match before.subsec_nanos() {
        0 => (seconds, 0),
        nanos => (seconds.saturating_sub(1), 1_000_000_000 - nanos),
    }
}

#[cfg(test)]
mod tests;
