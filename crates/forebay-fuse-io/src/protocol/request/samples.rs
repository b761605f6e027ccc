//! Every request that the kernel makes, laid out as it does: each field at its offset, rather than one after the other.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::protocol::abi::{IN_HEADER, MAJOR, bits, opcode, setattr};
use crate::protocol::init::InitIn;
use crate::protocol::request::{CopyRange, Forgets, Header, Operation, SetAttr, SetTime, head_size};

/// An operation's number, head and tail.
pub(crate) type Parts = (u32, Vec<u8>, Vec<u8>);

/// What operations are made of.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    pub(crate) numbers: [u64; 6],
    pub(crate) words: [u32; 4],
    pub(crate) yes: bool,
    pub(crate) times: [SystemTime; 3],
    pub(crate) name: Vec<u8>,
    pub(crate) other_name: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

impl Pieces {
    /// Some that differ from each other.
    pub(crate) fn some() -> Self {
        let numbers = [0x1011_1213_1415_1617, 0x2021_2223_2425_2627, 0x3031_3233_3435_3637, 0x4041, 0x5051, 0x6061];
        Self {
            numbers,
            words: [0x7071_7273, 0x4b4c_4d4e, 0x9091, 0xa0a1],
            yes: true,
            times: [UNIX_EPOCH; 3],
            name: b"name".to_vec(),
            other_name: b"other name".to_vec(),
            data: (0..=255).collect(),
        }
    }

    /// One of each operation, and some more where a field may be there or not.
    pub(crate) fn operations(&self) -> Vec<Operation<'_>> {
        let [handle, offset, a, b, c, d] = self.numbers;
        let [mode, umask, word, size] = self.words;
        let (name, other_name, data, yes) = (&*self.name, &*self.other_name, &*self.data, self.yes);
        let (flags, size) = (word as i32, size.min(1 << 20));
        let [atime, mtime, ctime] = self.times;
        let copy = CopyRange { handle, offset, to_node: a, to_handle: b, to_offset: c, length: d, flags: 0 };
        let pairs = &data[..data.len() / 16 * 16];
        let some = SetAttr {
            mode: yes.then_some(mode),
            uid: (!yes).then_some(umask),
            gid: yes.then_some(word),
            size: yes.then_some(a),
            atime: yes.then_some(SetTime::At(atime)),
            mtime: yes.then_some(SetTime::Now),
            ctime: (!yes).then_some(ctime),
            handle: yes.then_some(handle),
            lock_owner: (!yes).then_some(b),
            kill_suidgid: yes,
        };
        let more = SetAttr { mtime: Some(SetTime::At(mtime)), atime: Some(SetTime::Now), ..some };
        vec![
            Operation::Lookup { name },
            Operation::Forget { lookups: a },
            Operation::BatchForget(Forgets { count: (pairs.len() / 16) as u32, pairs }),
            Operation::GetAttr { handle: yes.then_some(handle) },
            Operation::SetAttr(some),
            Operation::SetAttr(more),
            Operation::ReadLink,
            Operation::Symlink { name, target: b"../over/there" },
            Operation::MakeNode { name, mode, umask, rdev: word },
            Operation::MakeDirectory { name, mode, umask },
            Operation::Unlink { name },
            Operation::RemoveDirectory { name },
            Operation::Rename { name, new_directory: a, new_name: other_name, flags: 0 },
            Operation::Rename { name, new_directory: a, new_name: other_name, flags: word | 1 },
            Operation::Link { node: a, name },
            Operation::Open { flags },
            Operation::Read { handle, offset, size, flags },
            Operation::Write { handle, offset, data, flags, cached: yes },
            Operation::Statfs,
            Operation::Release { handle, flags, flush: yes },
            Operation::Fsync { handle, data_only: yes },
            Operation::SetXattr { name: b"user.a/b", value: data, flags },
            Operation::GetXattr { name: b"security.capability", size },
            Operation::ListXattr { size },
            Operation::RemoveXattr { name: b"user.c" },
            Operation::Flush { handle },
            Operation::Init(InitIn { major: MAJOR, minor: 42, max_readahead: size, capabilities: a | 1 << 30 }),
            Operation::OpenDir { flags },
            Operation::ReadDir { handle, offset, size },
            Operation::ReadDirPlus { handle, offset, size },
            Operation::ReleaseDir { handle },
            Operation::FsyncDir { handle, data_only: yes },
            Operation::Access { mask: flags },
            Operation::Create { name, mode, umask, flags },
            Operation::Interrupt { unique: a },
            Operation::Destroy,
            Operation::Fallocate { handle, offset, length: a, mode: flags },
            Operation::Lseek { handle, offset, whence: flags },
            Operation::CopyFileRange(copy),
            Operation::CopyFileRange64(copy),
            Operation::NotifyReply,
            Operation::Unknown { opcode: opcode::STATX },
        ]
    }
}

/// Bytes of which some are set.
struct Bytes(Vec<u8>);

impl Bytes {
    fn at<const N: usize>(mut self, offset: usize, bytes: [u8; N]) -> Self {
        self.0[offset..offset + N].copy_from_slice(&bytes);
        self
    }

    fn u32(self, offset: usize, number: u32) -> Self {
        self.at(offset, number.to_ne_bytes())
    }

    fn i32(self, offset: usize, number: i32) -> Self {
        self.at(offset, number.to_ne_bytes())
    }

    fn u64(self, offset: usize, number: u64) -> Self {
        self.at(offset, number.to_ne_bytes())
    }
}

fn strings(strings: &[&[u8]]) -> Vec<u8> {
    strings.iter().flat_map(|string| string.iter().copied().chain([0])).collect()
}

/// The request for `operation`. Bytes without a meaning are not 0, so that code which takes them is found out.
pub(crate) fn encode(operation: &Operation<'_>) -> Parts {
    let head = |opcode: u32| Bytes(vec![0xee; head_size(opcode)]);
    let flag = |is_set: bool, bit: u32| if is_set { u32::MAX } else { !bit };
    let (opcode, head, tail) = match *operation {
        Operation::Lookup { name } => (opcode::LOOKUP, head(0), strings(&[name])),
        Operation::Forget { lookups } => (opcode::FORGET, head(opcode::FORGET).u64(0, lookups), vec![]),
        Operation::BatchForget(Forgets { count, pairs }) => {
            (opcode::BATCH_FORGET, head(opcode::BATCH_FORGET).u32(0, count), pairs.to_vec())
        }
        Operation::GetAttr { handle } => {
            let head = head(opcode::GETATTR).u32(0, flag(handle.is_some(), bits::GETATTR_FH));
            (opcode::GETATTR, head.u64(8, handle.unwrap_or(77)), vec![])
        }
        Operation::SetAttr(set) => (opcode::SETATTR, set_attributes(head(opcode::SETATTR), &set), vec![]),
        Operation::ReadLink => (opcode::READLINK, head(0), vec![]),
        Operation::Symlink { name, target } => (opcode::SYMLINK, head(0), strings(&[name, target])),
        Operation::MakeNode { name, mode, umask, rdev } => {
            let head = head(opcode::MKNOD).u32(0, mode).u32(4, rdev).u32(8, umask);
            (opcode::MKNOD, head, strings(&[name]))
        }
        Operation::MakeDirectory { name, mode, umask } => {
            (opcode::MKDIR, head(opcode::MKDIR).u32(0, mode).u32(4, umask), strings(&[name]))
        }
        Operation::Unlink { name } => (opcode::UNLINK, head(0), strings(&[name])),
        Operation::RemoveDirectory { name } => (opcode::RMDIR, head(0), strings(&[name])),
        Operation::Rename { name, new_directory, new_name, flags: 0 } => {
            (opcode::RENAME, head(opcode::RENAME).u64(0, new_directory), strings(&[name, new_name]))
        }
        Operation::Rename { name, new_directory, new_name, flags } => {
            let head = head(opcode::RENAME2).u64(0, new_directory).u32(8, flags);
            (opcode::RENAME2, head, strings(&[name, new_name]))
        }
        Operation::Link { node, name } => (opcode::LINK, head(opcode::LINK).u64(0, node), strings(&[name])),
        Operation::Open { flags } => (opcode::OPEN, head(opcode::OPEN).i32(0, flags), vec![]),
        Operation::Read { handle, offset, size, flags } => {
            (opcode::READ, part(head(opcode::READ), (handle, offset, size)).i32(32, flags), vec![])
        }
        Operation::Write { handle, offset, data, flags, cached } => {
            let head = part(head(opcode::WRITE), (handle, offset, data.len() as u32)).i32(32, flags);
            (opcode::WRITE, head.u32(20, flag(cached, bits::WRITE_CACHE)), data.to_vec())
        }
        Operation::Statfs => (opcode::STATFS, head(0), vec![]),
        Operation::Release { handle, flags, flush } => {
            let head = head(opcode::RELEASE).u64(0, handle).i32(8, flags).u32(12, flag(flush, bits::RELEASE_FLUSH));
            (opcode::RELEASE, head, vec![])
        }
        Operation::Fsync { handle, data_only } => {
            let head = head(opcode::FSYNC).u64(0, handle).u32(8, flag(data_only, bits::FSYNC_FDATASYNC));
            (opcode::FSYNC, head, vec![])
        }
        Operation::SetXattr { name, value, flags } => {
            let head = head(opcode::SETXATTR).u32(0, value.len() as u32).i32(4, flags);
            (opcode::SETXATTR, head, [&*strings(&[name]), value].concat())
        }
        Operation::GetXattr { name, size } => (opcode::GETXATTR, head(opcode::GETXATTR).u32(0, size), strings(&[name])),
        Operation::ListXattr { size } => (opcode::LISTXATTR, head(opcode::LISTXATTR).u32(0, size), vec![]),
        Operation::RemoveXattr { name } => (opcode::REMOVEXATTR, head(0), strings(&[name])),
        Operation::Flush { handle } => (opcode::FLUSH, head(opcode::FLUSH).u64(0, handle), vec![]),
        Operation::Init(InitIn { major, minor, max_readahead, capabilities }) => {
            let head = Bytes(vec![0; 64]).u32(0, major).u32(4, minor).u32(8, max_readahead);
            let head = head.u32(12, capabilities as u32).u32(16, (capabilities >> 32) as u32);
            (opcode::INIT, head, vec![])
        }
        Operation::OpenDir { flags } => (opcode::OPENDIR, head(opcode::OPENDIR).i32(0, flags), vec![]),
        Operation::ReadDir { handle, offset, size } => {
            (opcode::READDIR, part(head(opcode::READDIR), (handle, offset, size)), vec![])
        }
        Operation::ReadDirPlus { handle, offset, size } => {
            (opcode::READDIRPLUS, part(head(opcode::READDIRPLUS), (handle, offset, size)), vec![])
        }
        Operation::ReleaseDir { handle } => (opcode::RELEASEDIR, head(opcode::RELEASEDIR).u64(0, handle), vec![]),
        Operation::FsyncDir { handle, data_only } => {
            let head = head(opcode::FSYNCDIR).u64(0, handle).u32(8, flag(data_only, bits::FSYNC_FDATASYNC));
            (opcode::FSYNCDIR, head, vec![])
        }
        Operation::Access { mask } => (opcode::ACCESS, head(opcode::ACCESS).i32(0, mask), vec![]),
        Operation::Create { name, mode, umask, flags } => {
            let head = head(opcode::CREATE).i32(0, flags).u32(4, mode).u32(8, umask);
            (opcode::CREATE, head, strings(&[name]))
        }
        Operation::Interrupt { unique } => (opcode::INTERRUPT, head(opcode::INTERRUPT).u64(0, unique), vec![]),
        Operation::Destroy => (opcode::DESTROY, head(0), vec![]),
        Operation::Fallocate { handle, offset, length, mode } => {
            let head = head(opcode::FALLOCATE).u64(0, handle).u64(8, offset).u64(16, length).i32(24, mode);
            (opcode::FALLOCATE, head, vec![])
        }
        Operation::Lseek { handle, offset, whence } => {
            (opcode::LSEEK, head(opcode::LSEEK).u64(0, handle).u64(8, offset).i32(16, whence), vec![])
        }
        Operation::CopyFileRange(range) => {
            (opcode::COPY_FILE_RANGE, copy_range(head(opcode::COPY_FILE_RANGE), &range), vec![])
        }
        Operation::CopyFileRange64(range) => {
            (opcode::COPY_FILE_RANGE_64, copy_range(head(opcode::COPY_FILE_RANGE_64), &range), vec![])
        }
        Operation::NotifyReply => (opcode::NOTIFY_REPLY, head(0), vec![]),
        Operation::Unknown { opcode } => (opcode, head(0), vec![]),
    };
    (opcode, head.0, tail)
}

/// The same in one piece, as the device has it. `header`'s length and operation are filled in.
pub(crate) fn message(header: Header, operation: &Operation<'_>) -> Vec<u8> {
    let (opcode, head, tail) = encode(operation);
    let length = IN_HEADER + head.len() + tail.len();
    let begin = Bytes(vec![0xee; IN_HEADER])
        .u32(0, length as u32)
        .u32(4, opcode)
        .u64(8, header.unique)
        .u64(16, header.node)
        .u32(24, header.uid)
        .u32(28, header.gid)
        .u32(32, header.pid)
        .at(36, header.extensions.to_ne_bytes());
    [begin.0, head, tail].concat()
}

fn part(head: Bytes, (handle, offset, size): (u64, u64, u32)) -> Bytes {
    head.u64(0, handle).u64(8, offset).u32(16, size)
}

fn copy_range(head: Bytes, range: &CopyRange) -> Bytes {
    let head = head.u64(0, range.handle).u64(8, range.offset).u64(16, range.to_node).u64(24, range.to_handle);
    head.u64(32, range.to_offset).u64(40, range.length).u64(48, range.flags)
}

fn set_attributes(head: Bytes, set: &SetAttr) -> Bytes {
    let is_now = |time: Option<SetTime>| time == Some(SetTime::Now);
    let bits = [
        (set.mode.is_some(), setattr::MODE),
        (set.uid.is_some(), setattr::UID),
        (set.gid.is_some(), setattr::GID),
        (set.size.is_some(), setattr::SIZE),
        (set.atime.is_some(), setattr::ATIME),
        (set.mtime.is_some(), setattr::MTIME),
        (set.handle.is_some(), setattr::FH),
        (is_now(set.atime), setattr::ATIME_NOW),
        (is_now(set.mtime), setattr::MTIME_NOW),
        (set.lock_owner.is_some(), setattr::LOCKOWNER),
        (set.ctime.is_some(), setattr::CTIME),
        (set.kill_suidgid, setattr::KILL_SUIDGID),
    ];
    let valid = bits.into_iter().filter(|(is_set, _)| *is_set).fold(0, |valid, (_, bit)| valid | bit);
    let seconds_and_nanos = |time: Option<SetTime>| match time {
        Some(SetTime::At(time)) => split(time),
        // Not meant, so what is there need not be a time.
        Some(SetTime::Now) | None => (u64::MAX, u32::MAX),
    };
    let (atime, mtime) = (seconds_and_nanos(set.atime), seconds_and_nanos(set.mtime));
    let ctime = seconds_and_nanos(set.ctime.map(SetTime::At));
    let head = head.u32(0, valid).u64(8, set.handle.unwrap_or(71)).u64(16, set.size.unwrap_or(72));
    let head = head.u64(24, set.lock_owner.unwrap_or(73)).u64(32, atime.0).u64(40, mtime.0).u64(48, ctime.0);
    let head = head.u32(56, atime.1).u32(60, mtime.1).u32(64, ctime.1).u32(68, set.mode.unwrap_or(74));
    head.u32(76, set.uid.unwrap_or(75)).u32(80, set.gid.unwrap_or(76))
}

/// Seconds as the kernel has them, and nanoseconds.
fn split(time: SystemTime) -> (u64, u32) {
    const SECOND: i128 = 1_000_000_000;
    let nanos = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    };
    (nanos.div_euclid(SECOND) as i64 as u64, nanos.rem_euclid(SECOND) as u32)
}
