//! What the kernel asks.
//!
//! [`Header::parse`] and [`split`] are for a message in one piece; [`parse`] is for all.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::protocol::abi::{IN_HEADER, MAX_PAYLOAD, MAX_READ, RESENT_BIT, bits, opcode, setattr};
use crate::protocol::fields::Fields;
use crate::protocol::init::InitIn;
pub use crate::protocol::malformed::Malformed;

/// What each request begins with: the operation, the inode and the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the whole message. Not kept up to date by rings.
    pub length: u32,
    /// Which operation.
    pub opcode: u32,
    /// What its answer must carry.
    pub unique: u64,
    /// The inode that it is about; for an operation on a name, the directory.
    pub node: u64,
    /// User who asks.
    pub uid: u32,
    /// Group that asks.
    pub gid: u32,
    /// Thread that asks; 0 if it is in another namespace, or the kernel itself.
    pub pid: u32,
    /// Extensions at the end of the message, in units of 8 bytes.
    pub extensions: u16,
}

impl Header {
    /// The header that `message` begins with.
    #[inline]
    pub fn parse(message: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields::new(message);
        let header = Self {
            length: fields.u32()?,
            opcode: fields.u32()?,
            unique: fields.u64()?,
            node: fields.u64()?,
            uid: fields.u32()?,
            gid: fields.u32()?,
            pid: fields.u32()?,
            extensions: fields.u16()?,
        };
        let _padding = fields.u16()?;
        Ok(header)
    }

    /// Whether the request was handed out before, to a process that did not answer it and may have done it.
    #[must_use]
    #[inline]
    pub fn is_resent(&self) -> bool {
        self.unique & RESENT_BIT != 0
    }
}

/// Whether an operation may be done twice: it changes nothing, or leaves what it would leave when done once.
#[must_use]
pub const fn may_be_repeated(operation: u32) -> bool {
    matches!(
        operation,
        opcode::LOOKUP
            | opcode::GETATTR
            | opcode::READLINK
            | opcode::OPEN
            | opcode::READ
            | opcode::STATFS
            | opcode::RELEASE
            | opcode::GETXATTR
            | opcode::LISTXATTR
            | opcode::OPENDIR
            | opcode::READDIR
            | opcode::READDIRPLUS
            | opcode::RELEASEDIR
            | opcode::FSYNCDIR
            | opcode::ACCESS
            | opcode::LSEEK
            | opcode::STATX
    )
}

/// Head and tail of the operation in a message that begins with `header`.
#[inline]
pub fn split<'a>(header: &Header, message: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Malformed> {
    if usize::try_from(header.length) != Ok(message.len()) {
        return Err(Malformed::Length);
    }
    let body = message.get(IN_HEADER..).ok_or(Malformed::Short)?;
    if header.opcode == opcode::INIT {
        // Its size changes with the kernel, so it is all head.
        return Ok((body, &[]));
    }
    let (head, tail) = body.split_at_checked(head_size(header.opcode)).ok_or(Malformed::Short)?;
    // Extensions are not asked for; should there be some, they are not taken for a name or for data.
    let extensions = usize::from(header.extensions) * 8;
    let tail = tail.len().checked_sub(extensions).and_then(|length| tail.get(..length)).ok_or(Malformed::Length)?;
    Ok((head, tail))
}

/// Bytes of an operation's head: what the ring puts into a place of its own, and the device before names and data. 0 for what
/// is not known, and for INIT, which is told apart by its length and never comes over a ring.
#[must_use]
#[inline]
pub const fn head_size(operation: u32) -> usize {
    match operation {
        opcode::FORGET | opcode::MKDIR | opcode::RENAME | opcode::LINK | opcode::OPEN | opcode::OPENDIR => 8,
        opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::ACCESS => 8,
        opcode::INTERRUPT | opcode::BATCH_FORGET => 8,
        opcode::GETATTR | opcode::MKNOD | opcode::RENAME2 | opcode::FSYNC | opcode::FSYNCDIR | opcode::CREATE => 16,
        opcode::RELEASE | opcode::RELEASEDIR | opcode::FLUSH | opcode::LSEEK => 24,
        opcode::FALLOCATE => 32,
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS | opcode::WRITE => 40,
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => 56,
        opcode::SETATTR => 88,
        _ => 0,
    }
}

/// What the kernel asks of [`Header::node`]. Names of files are not empty, at most 255 bytes long, and have no slash in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "an operation's sentence says what its fields are")]
pub enum Operation<'a> {
    /// What is called `name`? One more reference to the answer is the kernel's.
    Lookup { name: &'a [u8] },
    /// So many references are no longer the kernel's. Not answered.
    Forget { lookups: u64 },
    /// The same of many inodes. Not answered.
    BatchForget(Forgets<'a>),
    /// Attributes, of the file as `handle` has it.
    GetAttr { handle: Option<u64> },
    /// Change of attributes.
    SetAttr(SetAttr),
    /// Where a symbolic link leads.
    ReadLink,
    /// A symbolic link called `name` to `target`.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// A file of any kind that is not opened.
    MakeNode { name: &'a [u8], mode: u32, umask: u32, rdev: u32 },
    /// A directory.
    MakeDirectory { name: &'a [u8], mode: u32, umask: u32 },
    /// Away with a file's name.
    Unlink { name: &'a [u8] },
    /// Away with a directory.
    RemoveDirectory { name: &'a [u8] },
    /// `name` becomes `new_name` in directory `new_directory`; `flags` as `renameat2(2)` has them.
    Rename { name: &'a [u8], new_directory: u64, new_name: &'a [u8], flags: u32 },
    /// Inode `node` is called `name` as well.
    Link { node: u64, name: &'a [u8] },
    /// Open, with the flags of `open(2)`.
    Open { flags: i32 },
    /// At most `size` bytes, and never more than 1 MiB.
    Read { handle: u64, offset: u64, size: u32, flags: i32 },
    /// `data` shall be at `offset`. `cached`: it was in the page cache, and `handle` is that of any writer.
    Write { handle: u64, offset: u64, data: &'a [u8], flags: i32, cached: bool },
    /// What `df` shows.
    Statfs,
    /// The last reference to `handle` is gone. `flush`: it was not flushed before.
    Release { handle: u64, flags: i32, flush: bool },
    /// What was written shall be safe; its attributes may wait if `data_only`.
    Fsync { handle: u64, data_only: bool },
    /// An extended attribute.
    SetXattr { name: &'a [u8], value: &'a [u8], flags: i32 },
    /// The value of one, of at most `size` bytes; 0: its length.
    GetXattr { name: &'a [u8], size: u32 },
    /// The names of all, of at most `size` bytes; 0: their length.
    ListXattr { size: u32 },
    /// Away with one.
    RemoveXattr { name: &'a [u8] },
    /// `close(2)` was called on one of the descriptors of `handle`.
    Flush { handle: u64 },
    /// The first request of all: [`crate::protocol::init`].
    Init(InitIn),
    /// Open a directory.
    OpenDir { flags: i32 },
    /// Names from position `offset` on, `size` bytes of them at most.
    ReadDir { handle: u64, offset: u64, size: u32 },
    /// The same with attributes, and a reference to each.
    ReadDirPlus { handle: u64, offset: u64, size: u32 },
    /// The last reference to the directory's `handle` is gone.
    ReleaseDir { handle: u64 },
    /// What was changed in a directory shall be safe.
    FsyncDir { handle: u64, data_only: bool },
    /// May the caller do what `mask` of `access(2)` says?
    Access { mask: i32 },
    /// Create and open.
    Create { name: &'a [u8], mode: u32, umask: u32, flags: i32 },
    /// The caller of the request `unique` does not want it any more. Not answered.
    Interrupt { unique: u64 },
    /// The last request of all.
    Destroy,
    /// What `fallocate(2)` asks for.
    Fallocate { handle: u64, offset: u64, length: u64, mode: i32 },
    /// Where data or a hole begins.
    Lseek { handle: u64, offset: u64, whence: i32 },
    /// Bytes from one open file to another; answered as a write, in 32 bits.
    CopyFileRange(CopyRange),
    /// The same, answered in 64 bits.
    CopyFileRange64(CopyRange),
    /// What we asked the kernel for. We never do. Not answered.
    NotifyReply,
    /// Something that we do not know. `ENOSYS`.
    Unknown { opcode: u32 },
}

/// Which attributes are to be changed, and to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Kind and permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// In bytes.
    pub size: Option<u64>,
    /// When it was read last.
    pub atime: Option<SetTime>,
    /// When its bytes were changed last.
    pub mtime: Option<SetTime>,
    /// When anything of it was changed last.
    pub ctime: Option<SystemTime>,
    /// The handle through which it is done.
    pub handle: Option<u64>,
    /// Whose locks are to be respected.
    pub lock_owner: Option<u64>,
    /// Bits that give another user's rights are to go.
    pub kill_suidgid: bool,
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// That of the answer.
    Now,
    /// This one.
    At(SystemTime),
}

/// Bytes from one open file to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyRange {
    /// Where they are read; the inode is [`Header::node`].
    pub handle: u64,
    /// From where on.
    pub offset: u64,
    /// The inode that they are written to.
    pub to_node: u64,
    /// Where they are written.
    pub to_handle: u64,
    /// From where on.
    pub to_offset: u64,
    /// How many, in bytes.
    pub length: u64,
    /// Of `copy_file_range(2)`, which has none yet.
    pub flags: u64,
}

/// Inodes and how many references to each are no longer the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgets<'a> {
    count: u32,
    pairs: &'a [u8],
}

impl<'a> Forgets<'a> {
    /// Each inode's number with how many references to it are given back: as many as are announced and there.
    pub fn iter(self) -> impl Iterator<Item = (u64, u64)> + 'a {
        let mut fields = Fields::new(self.pairs);
        (0..self.count).map_while(move |_| Some((fields.u64().ok()?, fields.u64().ok()?)))
    }
}

/// The operation whose head and tail these are. The head may be longer than it must be.
#[inline]
pub fn parse<'a>(operation: u32, head: &'a [u8], tail: &'a [u8]) -> Result<Operation<'a>, Malformed> {
    if head.len() < head_size(operation) {
        return Err(Malformed::Short);
    }
    let fields = Fields::new(head);
    // The ones that a mount is asked most come first; the others stay out of their way.
    match operation {
        opcode::READ => read(fields).map(|Part { handle, offset, size, flags }| {
            let size = size.min(MAX_READ);
            Operation::Read { handle, offset, size, flags }
        }),
        opcode::GETATTR => get_attributes(fields),
        opcode::LOOKUP => Ok(Operation::Lookup { name: Fields::new(tail).name()? }),
        opcode::WRITE => write(fields, tail),
        _ => parse_other(operation, fields, Fields::new(tail)),
    }
}

#[inline(never)]
fn parse_other<'a>(operation: u32, mut head: Fields<'a>, mut tail: Fields<'a>) -> Result<Operation<'a>, Malformed> {
    let parsed = match operation {
        opcode::FORGET => Operation::Forget { lookups: head.u64()? },
        opcode::BATCH_FORGET => Operation::BatchForget(Forgets { count: head.u32()?, pairs: tail.rest() }),
        opcode::SETATTR => Operation::SetAttr(set_attributes(head)?),
        opcode::READLINK => Operation::ReadLink,
        opcode::SYMLINK => Operation::Symlink { name: tail.name()?, target: tail.string()? },
        opcode::MKNOD => {
            let (mode, rdev, umask) = (head.u32()?, head.u32()?, head.u32()?);
            Operation::MakeNode { name: tail.name()?, mode, umask, rdev }
        }
        opcode::MKDIR => {
            let (mode, umask) = (head.u32()?, head.u32()?);
            Operation::MakeDirectory { name: tail.name()?, mode, umask }
        }
        opcode::UNLINK => Operation::Unlink { name: tail.name()? },
        opcode::RMDIR => Operation::RemoveDirectory { name: tail.name()? },
        opcode::RENAME | opcode::RENAME2 => {
            let new_directory = head.u64()?;
            let flags = if operation == opcode::RENAME2 { head.u32()? } else { 0 };
            Operation::Rename { name: tail.name()?, new_directory, new_name: tail.name()?, flags }
        }
        opcode::LINK => Operation::Link { node: head.u64()?, name: tail.name()? },
        opcode::OPEN => Operation::Open { flags: head.i32()? },
        opcode::STATFS => Operation::Statfs,
        opcode::RELEASE => {
            let (handle, flags, release_flags) = (head.u64()?, head.i32()?, head.u32()?);
            Operation::Release { handle, flags, flush: release_flags & bits::RELEASE_FLUSH != 0 }
        }
        opcode::FSYNC | opcode::FSYNCDIR => {
            let handle = head.u64()?;
            let data_only = head.u32()? & bits::FSYNC_FDATASYNC != 0;
            match operation {
                opcode::FSYNC => Operation::Fsync { handle, data_only },
                _ => Operation::FsyncDir { handle, data_only },
            }
        }
        opcode::SETXATTR => {
            let (size, flags) = (head.u32()?, head.i32()?);
            // Such names may have slashes in them.
            let name = tail.string()?;
            let value = tail.rest();
            if usize::try_from(size) != Ok(value.len()) {
                return Err(Malformed::Length);
            }
            Operation::SetXattr { name, value, flags }
        }
        opcode::GETXATTR => Operation::GetXattr { size: head.u32()?, name: tail.string()? },
        opcode::LISTXATTR => Operation::ListXattr { size: head.u32()? },
        opcode::REMOVEXATTR => Operation::RemoveXattr { name: tail.string()? },
        opcode::FLUSH => Operation::Flush { handle: head.u64()? },
        opcode::INIT => Operation::Init(InitIn::parse(head.rest())?),
        opcode::OPENDIR => Operation::OpenDir { flags: head.i32()? },
        opcode::READDIR | opcode::READDIRPLUS => {
            let Part { handle, offset, size, .. } = read(head)?;
            let size = size.min(MAX_PAYLOAD);
            match operation {
                opcode::READDIR => Operation::ReadDir { handle, offset, size },
                _ => Operation::ReadDirPlus { handle, offset, size },
            }
        }
        opcode::RELEASEDIR => Operation::ReleaseDir { handle: head.u64()? },
        opcode::ACCESS => Operation::Access { mask: head.i32()? },
        opcode::CREATE => {
            let (flags, mode, umask) = (head.i32()?, head.u32()?, head.u32()?);
            Operation::Create { name: tail.name()?, mode, umask, flags }
        }
        opcode::INTERRUPT => Operation::Interrupt { unique: head.u64()? },
        opcode::DESTROY => Operation::Destroy,
        opcode::FALLOCATE => {
            let (handle, offset, length) = (head.u64()?, head.u64()?, head.u64()?);
            Operation::Fallocate { handle, offset, length, mode: head.i32()? }
        }
        opcode::LSEEK => Operation::Lseek { handle: head.u64()?, offset: head.u64()?, whence: head.i32()? },
        opcode::COPY_FILE_RANGE => Operation::CopyFileRange(copy_range(head)?),
        opcode::COPY_FILE_RANGE_64 => Operation::CopyFileRange64(copy_range(head)?),
        opcode::NOTIFY_REPLY => Operation::NotifyReply,
        opcode => Operation::Unknown { opcode },
    };
    Ok(parsed)
}

/// What READ, WRITE and READDIR have in common: a part of something open.
struct Part {
    handle: u64,
    offset: u64,
    size: u32,
    flags: i32,
}

#[inline]
fn read(head: Fields<'_>) -> Result<Part, Malformed> {
    part(head).map(|(part, _)| part)
}

#[inline]
fn write<'a>(head: Fields<'a>, data: &'a [u8]) -> Result<Operation<'a>, Malformed> {
    let (Part { handle, offset, size, flags }, write_flags) = part(head)?;
    if usize::try_from(size) != Ok(data.len()) {
        return Err(Malformed::Length);
    }
    Ok(Operation::Write { handle, offset, data, flags, cached: write_flags & bits::WRITE_CACHE != 0 })
}

/// The part, and the flags that mean one thing for a read and another for a write.
#[inline]
fn part(mut head: Fields<'_>) -> Result<(Part, u32), Malformed> {
    let (handle, offset, size, own_flags) = (head.u64()?, head.u64()?, head.u32()?, head.u32()?);
    head.skip_u64()?;
    let flags = head.i32()?;
    Ok((Part { handle, offset, size, flags }, own_flags))
}

#[inline]
fn get_attributes<'a>(mut head: Fields<'_>) -> Result<Operation<'a>, Malformed> {
    let flags = head.u32()?;
    head.skip_u32()?;
    let handle = head.u64()?;
    Ok(Operation::GetAttr { handle: (flags & bits::GETATTR_FH != 0).then_some(handle) })
}

fn set_attributes(mut head: Fields<'_>) -> Result<SetAttr, Malformed> {
    let valid = head.u32()?;
    head.skip_u32()?;
    let (handle, size, lock_owner) = (head.u64()?, head.u64()?, head.u64()?);
    let (atime, mtime, ctime) = (head.i64()?, head.i64()?, head.i64()?);
    let (atime_nanos, mtime_nanos, ctime_nanos) = (head.u32()?, head.u32()?, head.u32()?);
    let mode = head.u32()?;
    head.skip_u32()?;
    let (uid, gid) = (head.u32()?, head.u32()?);
    head.skip_u32()?;

    let is_set = |bit: u32| valid & bit != 0;
    let set_time = |bit: u32, now: u32, seconds: i64, nanos: u32| match (is_set(bit), is_set(now)) {
        (false, _) => Ok(None),
        (true, true) => Ok(Some(SetTime::Now)),
        (true, false) => time(seconds, nanos).map(|time| Some(SetTime::At(time))),
    };
    Ok(SetAttr {
        mode: is_set(setattr::MODE).then_some(mode),
        uid: is_set(setattr::UID).then_some(uid),
        gid: is_set(setattr::GID).then_some(gid),
        size: is_set(setattr::SIZE).then_some(size),
        atime: set_time(setattr::ATIME, setattr::ATIME_NOW, atime, atime_nanos)?,
        mtime: set_time(setattr::MTIME, setattr::MTIME_NOW, mtime, mtime_nanos)?,
        ctime: if is_set(setattr::CTIME) { Some(time(ctime, ctime_nanos)?) } else { None },
        handle: is_set(setattr::FH).then_some(handle),
        lock_owner: is_set(setattr::LOCKOWNER).then_some(lock_owner),
        kill_suidgid: is_set(setattr::KILL_SUIDGID),
    })
}

fn copy_range(mut head: Fields<'_>) -> Result<CopyRange, Malformed> {
    Ok(CopyRange {
        handle: head.u64()?,
        offset: head.u64()?,
        to_node: head.u64()?,
        to_handle: head.u64()?,
        to_offset: head.u64()?,
        length: head.u64()?,
        flags: head.u64()?,
    })
}

/// The time `seconds` after, or before, 1970 began, and `nanos` later.
fn time(seconds: i64, nanos: u32) -> Result<SystemTime, Malformed> {
    const NANOS_IN_A_SECOND: u32 = 1_000_000_000;
    if nanos >= NANOS_IN_A_SECOND {
        return Err(Malformed::Time);
    }
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let second = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    second.and_then(|second| second.checked_add(Duration::from_nanos(nanos.into()))).ok_or(Malformed::Time)
}

/// Requests for tests, laid out by offset.
#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
