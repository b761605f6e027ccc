//! What the kernel says.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use forebay_fuse_io::protocol::abi::{IN_HEADER, MAX_NAME, MAX_READ, OUT_HEADER, capability, opcode};
use forebay_fuse_io::protocol::init::{InitIn, Wanted, negotiate};
use forebay_fuse_io::protocol::request::{head_size, parse, split};
use forebay_fuse_io::{
    Answer, Attributes, Dispatch, FuseIo, Header, Kind, Opened, Operation, Request, Session, SessionOptions, Statfs,
};
use forebay_locks::Mutex;
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
};

use crate::input::{Input, Output};
use crate::targets::Seed;

/// The longest head that a ring has room for.
const RING_HEAD: usize = 128;

/// A message: which operation, of which inode, and what follows the header. `length` of the header is right.
pub(super) fn message(operation: u32, unique: u64, node: u64, extensions: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(IN_HEADER + body.len());
    bytes.extend(((IN_HEADER + body.len()) as u32).to_ne_bytes());
    bytes.extend(operation.to_ne_bytes());
    bytes.extend(unique.to_ne_bytes());
    bytes.extend(node.to_ne_bytes());
    // User, group, thread.
    bytes.extend([0; 12]);
    bytes.extend(extensions.to_ne_bytes());
    bytes.extend([0; 2]);
    bytes.extend(body);
    bytes
}

/// Operations and bodies to begin with.
pub(super) fn samples() -> Vec<(&'static str, u32, Vec<u8>)> {
    let numbers = |numbers: &[u64]| numbers.iter().fold(Output::default(), |output, number| output.u64(*number));
    let named = |numbers_before: &[u64], names: &[u8]| numbers(numbers_before).bytes(names).done();
    vec![
        ("lookup", opcode::LOOKUP, b"a file\0".to_vec()),
        ("forget", opcode::FORGET, numbers(&[2]).done()),
        ("getattr", opcode::GETATTR, numbers(&[1, 9]).done()),
        ("setattr", opcode::SETATTR, Output::default().u32(0x7ff).bytes([1; 84]).done()),
        ("symlink", opcode::SYMLINK, b"name\0target\0".to_vec()),
        ("mkdir", opcode::MKDIR, named(&[0o755], b"d\0")),
        ("unlink", opcode::UNLINK, b"x\0".to_vec()),
        ("rename2", opcode::RENAME2, named(&[1, 1], b"old\0new\0")),
        ("open", opcode::OPEN, numbers(&[0]).done()),
        ("read", opcode::READ, numbers(&[9, 4096, 65536, 0, 0]).done()),
        ("write", opcode::WRITE, named(&[9, 0, 5, 0, 0], b"bytes")),
        ("statfs", opcode::STATFS, Vec::new()),
        ("release", opcode::RELEASE, numbers(&[9, 1 << 32, 0]).done()),
        ("getxattr", opcode::GETXATTR, named(&[100], b"user.a\0")),
        ("setxattr", opcode::SETXATTR, named(&[3], b"user.a\0abc")),
        ("readdir", opcode::READDIR, numbers(&[9, 0, 4096, 0, 0]).done()),
        ("create", opcode::CREATE, named(&[0x41, 0o644], b"n\0")),
        ("interrupt", opcode::INTERRUPT, numbers(&[4]).done()),
        ("batch_forget", opcode::BATCH_FORGET, numbers(&[2, 5, 1, 6, 1]).done()),
        ("fallocate", opcode::FALLOCATE, numbers(&[9, 0, 100, 0]).done()),
        ("copy_file_range", opcode::COPY_FILE_RANGE, numbers(&[9, 0, 3, 9, 0, 100, 0]).done()),
        ("init", opcode::INIT, init_body()),
    ]
}

pub(super) fn init_body() -> Vec<u8> {
    let wanted = capability::INIT_EXT | capability::MAX_PAGES | capability::ASYNC_READ;
    Output::default().u32(7).u32(42).u32(128 << 10).u32(wanted as u32).bytes([0; 48]).done()
}

pub(super) mod fuse_requests {
    use super::*;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        let (operation, node, extensions) = (u32::from(input.u16()), input.u64(), input.u8());
        let extensions = if flags & 1 == 0 { 0 } else { extensions };
        let body = input.rest();
        let message = match flags & 2 {
            0 => message(operation, 2, node, extensions.into(), body),
            _ => body.to_vec(),
        };
        let Ok(header) = Header::parse(&message) else { return };
        let Ok((head, tail)) = split(&header, &message) else { return };
        let operation = parse(header.opcode, head, tail);
        if let Ok(operation) = &operation {
            holds(operation, tail);
        }
        // A ring has the head in a place of its own, which is longer.
        if header.opcode != opcode::INIT {
            let mut in_ring = [0; RING_HEAD];
            in_ring[..head.len()].copy_from_slice(head);
            assert_eq!(head.len(), head_size(header.opcode));
            assert_eq!(parse(header.opcode, &in_ring, tail), operation);
        } else if let Ok(Operation::Init(init)) = operation {
            agrees(&init);
        }
    }

    fn holds(operation: &Operation<'_>, tail: &[u8]) {
        let is_name = |name: &[u8]| {
            assert!((1..=MAX_NAME).contains(&name.len()) && !name.contains(&b'/') && !name.contains(&0));
        };
        match operation {
            Operation::Lookup { name }
            | Operation::Symlink { name, .. }
            | Operation::MakeNode { name, .. }
            | Operation::MakeDirectory { name, .. }
            | Operation::Unlink { name }
            | Operation::RemoveDirectory { name }
            | Operation::Link { name, .. }
            | Operation::Create { name, .. } => is_name(name),
            Operation::Rename { name, new_name, .. } => [name, new_name].into_iter().for_each(|name| is_name(name)),
            Operation::Read { size, .. } => assert!(*size <= MAX_READ),
            Operation::Write { data, .. } => assert_eq!(*data, tail),
            Operation::BatchForget(forgets) => assert!(forgets.iter().count() <= tail.len() / 16),
            _ => {}
        }
    }

    /// Whatever the kernel begins with, it is offered no more than it has, and a request fits the room that is made for it.
    fn agrees(init: &InitIn) {
        let wanted = Wanted { passthrough: true, uring: true, direct_io_mmap: true, ..Wanted::default() };
        let Ok(agreed) = negotiate(init, &wanted) else { return };
        assert!(init.offers(agreed.capabilities));
        let pages = usize::from(agreed.max_pages) * agreed.page_size as usize;
        assert!(agreed.max_pages > 0 && agreed.max_write as usize <= pages && pages <= agreed.payload_size());
        assert_eq!(agreed.encode().len(), 64);
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let seed = |(name, operation, body): (&'static str, u32, Vec<u8>)| {
            (name, Output::default().u8(0).u16(operation as u16).u64(1).u8(0).bytes(body).done())
        };
        samples().into_iter().map(seed).collect()
    }
}

pub(super) mod fuse_session {
    use super::*;

    /// Most messages of one mount.
    const MAX: usize = 32;
    /// No message is longer.
    const LONGEST: usize = 8192;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let ends = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (kernel, device) = ends.expect("two descriptors");
        let tell = |message: &[u8]| {
            // An empty packet would be the end.
            !message.is_empty() && send(&kernel, message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok()
        };
        let begins = input.u8();
        let body = if begins & 1 == 0 { init_body() } else { input.piece().to_vec() };
        let operation = if begins & 2 == 0 { opcode::INIT } else { opcode::LOOKUP };
        tell(&message(operation, 2, 0, 0, &body));
        // What does not begin well must not leave anybody waiting for a second message.
        let _ = shutdown_if(&kernel, begins & 3 != 0);
        let options = SessionOptions {
            io: FuseIo::Device,
            threads: 1,
            clone_fd: false,
            splice: false,
            spin: Duration::ZERO,
            ..SessionOptions::default()
        };
        let served = Arc::new(Fake::default());
        let Ok(session) = Session::start(device, Arc::clone(&served), &options) else { return };
        let mut answer = [0; LONGEST];
        let begun = received(&kernel, &mut answer).is_ok_and(|length| length > 0);
        assert!(begun, "the first request is answered");
        let serving = thread::spawn(move || session.run());
        let (mut unique, mut asked) = (2, Vec::new());
        while !input.is_empty() && asked.len() < MAX {
            unique += 2;
            let (operation, node) = (u32::from(input.u8()), u64::from(input.u8() % 4));
            let body = input.piece();
            let whole = message(operation, unique, node, 0, &body[..body.len().min(LONGEST - IN_HEADER)]);
            // Cut short where the operation has its highest bits set.
            let length = if operation > 200 { whole.len() / 2 } else { whole.len() };
            if !tell(&whole[..length]) {
                break;
            }
            let has_header = length >= IN_HEADER;
            let is_notice =
                matches!(operation, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT | opcode::NOTIFY_REPLY);
            if has_header && !is_notice {
                asked.push(unique);
            }
            if operation == opcode::DESTROY && has_header {
                break;
            }
        }
        for unique in asked {
            answered(&kernel, &mut answer, unique);
        }
        let _ = shutdown_if(&kernel, true);
        serving.join().expect("no thread of a session panics").expect("the mount ends as it should");
        assert!(served.0.lock().is_none(), "{:?}", served.0.lock());
    }

    fn shutdown_if(kernel: &impl std::os::fd::AsFd, wanted: bool) -> rustix::io::Result<()> {
        if wanted { shutdown(kernel, Shutdown::Write) } else { Ok(()) }
    }

    /// The length of the next message. The fuzzer's own timer interrupts who waits.
    fn received(kernel: &impl std::os::fd::AsFd, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        retry_on_intr(|| recv(kernel, &mut *buffer, RecvFlags::empty())).map(|(_, length)| length)
    }

    /// Requests are answered in order here: one thread serves them, each at once.
    fn answered(kernel: &impl std::os::fd::AsFd, buffer: &mut [u8], unique: u64) {
        let length = received(kernel, buffer).expect("there is an answer");
        assert!(length >= OUT_HEADER, "{length} bytes are no answer");
        let number = |at: usize| u32::from_ne_bytes([buffer[at], buffer[at + 1], buffer[at + 2], buffer[at + 3]]);
        let told = u64::from(number(8)) | u64::from(number(12)) << 32;
        assert_eq!((number(0) as usize, told), (length, unique));
        let error = number(4) as i32;
        assert!((-511..=0).contains(&error), "the kernel takes no error {error}");
        assert!(error == 0 || length == OUT_HEADER, "nothing follows an error");
    }

    /// Answers everything, and keeps the first thing that should not be.
    #[derive(Default)]
    struct Fake(Mutex<Option<String>>);

    impl Dispatch for Fake {
        fn dispatch(&self, request: Request<'_>) {
            let attributes = attributes(request.header().node);
            let second = Duration::from_secs(1);
            match request.operation() {
                Err(malformed) => {
                    let errno = malformed.errno();
                    request.now().error(errno);
                }
                Ok(Operation::Lookup { .. } | Operation::MakeDirectory { .. }) => {
                    request.now().entry(&attributes, 0, second, second);
                }
                Ok(Operation::GetAttr { .. } | Operation::SetAttr(_)) => request.now().attributes(&attributes, second),
                Ok(Operation::Open { .. } | Operation::OpenDir { .. }) => request.now().opened(&Opened::default()),
                Ok(Operation::Create { .. }) => request.now().created(&attributes, second, &Opened::default()),
                Ok(Operation::Read { size, .. }) => {
                    let bytes = vec![7; size.min(4096) as usize];
                    request.keep().data(&bytes);
                }
                Ok(Operation::Write { data, .. }) => {
                    let length = data.len();
                    let (reply, held) = request.keep_bytes();
                    if held.len() != length {
                        *self.0.lock() = Some(format!("{} bytes are kept of {length}", held.len()));
                    }
                    reply.written(held.len() as u32);
                }
                Ok(Operation::ReadDir { size, .. } | Operation::ReadDirPlus { size, .. }) => {
                    let mut names = request.keep().names(size.min(4096));
                    let mut next = 0;
                    while !names.add(9, next, Kind::RegularFile, b"name") {
                        next += 1;
                    }
                    names.send();
                }
                Ok(Operation::Statfs) => request.now().statfs(&Statfs::default()),
                Ok(Operation::GetXattr { .. } | Operation::ListXattr { .. }) => request.now().xattr_size(3),
                Ok(Operation::Lseek { offset, .. }) => request.now().offset(offset),
                // Dropped: it is answered all the same.
                Ok(Operation::Fallocate { .. }) => drop(request),
                Ok(_) => request.keep().ok(),
            }
        }

        fn forget(&self, _node: u64, _count: u64) {}

        fn interrupted(&self, _unique: u64) {}

        fn ended(&self, error: Option<&std::io::Error>) {
            if let Some(error) = error {
                *self.0.lock() = Some(error.to_string());
            }
        }
    }

    fn attributes(ino: u64) -> Attributes {
        let (atime, mtime, ctime) = (UNIX_EPOCH, UNIX_EPOCH, UNIX_EPOCH);
        let (kind, perm, nlink, uid, gid, rdev, blksize) = (Kind::RegularFile, 0o644, 1, 0, 0, 0, 4096);
        Attributes { ino, size: 1, blocks: 1, atime, mtime, ctime, kind, perm, nlink, uid, gid, rdev, blksize }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let asked = samples().into_iter().filter(|(name, ..)| *name != "init");
        let all = asked
            .fold(Output::default().u8(0), |output, (_, operation, body)| output.u8(operation as u8).u8(1).piece(body));
        let some = Output::default().u8(0).u8(opcode::LOOKUP as u8).u8(1).piece(b"x\0");
        let destroyed = some.u8(opcode::DESTROY as u8).u8(0).piece(b"").done();
        vec![
            ("all_sorts", all.done()),
            ("destroyed", destroyed),
            ("old_kernel", Output::default().u8(1).piece(Output::default().u32(7).u32(8).u64(0).done()).done()),
            ("no_init", Output::default().u8(2).done()),
        ]
    }
}
