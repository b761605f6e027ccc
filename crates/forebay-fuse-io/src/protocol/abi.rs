//! The numbers of the protocol: operations, bits, sizes, commands of the device and of rings.

/// The version of the protocol; only its second number ever changes.
pub const MAJOR: u32 = 7;
/// What we answer for the second number.
pub const MINOR: u32 = 42;
/// The oldest that is served: Linux 5.8.
pub const OLDEST_MINOR: u32 = 31;

/// Inode number of the root.
pub const ROOT: u64 = 1;

/// Bytes of the header of a request.
pub const IN_HEADER: usize = 40;
/// Bytes of the header of an answer.
pub const OUT_HEADER: usize = 16;
/// The longest name, in bytes.
pub const MAX_NAME: usize = forebay_types::MAX_NAME_LEN;
/// The most that is written by one request, or said of a directory, in bytes. Measured: 256 KiB to 1 MiB is best, and more gains
/// nothing.
pub const MAX_PAYLOAD: u32 = 1 << 20;
/// The most that is read by one request, in bytes: a kernel sends more than 1 MiB where `fs.fuse.max_pages_limit` was
/// raised.
pub const MAX_READ: u32 = 4 << 20;
/// The smallest buffer that the kernel puts up with, in bytes.
pub const MIN_BUFFER: usize = 8192;

/// Set in the `unique` of an INTERRUPT: with it, it would be that of the request that is interrupted.
pub const INTERRUPT_BIT: u64 = 1;
/// Set in the `unique` of a request that was handed out before, and not answered: it may have been done.
pub const RESENT_BIT: u64 = 1 << 63;
/// A notification that a name may be asked for again, rather than be forgotten.
pub const EXPIRE_ONLY: u32 = 1;

/// Operations.
#[expect(missing_docs, reason = "they are called as the kernel calls them")]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const BMAP: u32 = 37;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Which fields of a SETATTR are meant.
#[expect(missing_docs, reason = "they are called as the kernel calls them")]
pub mod setattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCKOWNER: u32 = 1 << 9;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Bits of single operations.
pub mod bits {
    /// GETATTR: the handle is meant.
    pub const GETATTR_FH: u32 = 1 << 0;
    /// RELEASE: flush first.
    pub const RELEASE_FLUSH: u32 = 1 << 0;
    /// WRITE: from the page cache; the handle is a guess.
    pub const WRITE_CACHE: u32 = 1 << 0;
    /// FSYNC: the bytes are enough.
    pub const FSYNC_FDATASYNC: u32 = 1 << 0;
}

/// What both ends can: the 64 bits of INIT, of which the upper half travels in a field of its own.
#[expect(missing_docs, reason = "they are called as the kernel calls them")]
pub mod capability {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const PASSTHROUGH: u64 = 1 << 37;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// What the kernel is told unasked: stands where an answer has its error.
#[expect(missing_docs, reason = "they are called as the kernel calls them")]
pub mod notification {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const DELETE: i32 = 6;
    pub const RESEND: i32 = 7;
}

/// `ioctl(2)`s of `/dev/fuse`.
pub mod ioctl {
    /// Makes a freshly opened device another way to the same connection; takes the descriptor, a `u32`.
    pub const CLONE: u32 = 0x8004_E500;
    /// Registers a file that is passed through; takes 16 bytes, gives its number.
    pub const BACKING_OPEN: u32 = 0x4010_E501;
    /// Ends that; takes the number, a `u32`.
    pub const BACKING_CLOSE: u32 = 0x4004_E502;
}

/// What is shared with the kernel for each entry of a ring, and the commands.
pub mod ring {
    /// Bytes of an entry's header page that are used.
    pub const HEADER: usize = 288;
    /// Where the header of the request is, and where that of its answer is put. 128 bytes.
    pub const IN_OUT: usize = 0;
    /// Where the head of its operation is. 128 bytes.
    pub const OP_IN: usize = 128;
    /// Bytes of `IN_OUT` and of `OP_IN`.
    pub const PART: usize = 128;
    /// Where, as a `u64`, there are flags.
    pub const FLAGS: usize = 256;
    /// Where, as a `u64`, there is what its answer is committed by.
    pub const COMMIT_ID: usize = 264;
    /// Where, as a `u32`, there is how many bytes of the payload are used, both ways.
    pub const PAYLOAD_SIZE: usize = 272;
    /// Gives an entry to the kernel for the first time.
    pub const REGISTER: u32 = 1;
    /// Answers an entry's request and gives the entry back.
    pub const COMMIT_AND_FETCH: u32 = 2;
    /// Bytes of the command within the submission: flags, commit id, queue.
    pub const COMMAND: usize = 24;
    /// A queue that there never is.
    pub const NO_QUEUE: u16 = 0xffff;
}
