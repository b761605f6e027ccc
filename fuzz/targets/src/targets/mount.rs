//! What the kernel asks of a mount, all of which is there but the kernel: the dispatch and the file system, a client, a worker and an
//! origin.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use forebay_client::{Client, ClientOptions, Connector};
use forebay_cluster::{Member, StaticMembership};
use forebay_fuse::fuzzing::{Serving, serve};
use forebay_fuse::{FuseIo, MountOptions, WritingOptions};
use forebay_fuse_io::may_be_repeated;
use forebay_fuse_io::protocol::abi::{OUT_HEADER, opcode};
use forebay_origin::FakeOrigin;
use forebay_staging::StagingOptions;
use forebay_store::{Store, StoreOptions};
use forebay_transport::{LocalTransport, Service, Transport};
use forebay_types::ByteSize;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::input::{Input, Output};
use crate::support::{folder, pool};
use crate::targets::Seed;
use crate::targets::fuse::{init_body, message, samples};
use crate::targets::worker::{CONTENT, FILE, worker};

/// The root, and the files beside it that are in no origin.
const ROOT: u64 = 1;
const RESERVED: std::ops::RangeInclusive<u64> = 2..=15;

thread_local! {
    /// One with a thread of its own: the session's thread and this one wait.
    static RUNTIME: Runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime needs two descriptors");
}

pub(super) mod fuse_mount {
    use super::*;

    /// Most requests of an input.
    const MAX: usize = 32;
    /// The longest answer that goes through the socket.
    const LONGEST: u32 = 60_000;
    /// No file grows beyond it: the origin is memory.
    const LARGEST: u64 = 1 << 20;
    /// Longer than any answer takes, on whatever machine.
    const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
    /// Nodes and handles that are remembered.
    const KNOWN: usize = 32;
    /// Of an operation's byte: it is as if another process had been asked before, which is gone.
    const AGAIN: u8 = 0x80;
    /// How the kernel says so, in the number of the request.
    const RESENT: u64 = 1 << 63;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        let staging = (flags & 1 != 0).then(folder);
        let (mut kernel, serving) = begin(staging.as_ref());
        for _ in 0..MAX {
            if input.is_empty() {
                break;
            }
            let (operation, node, handle) = (input.u8(), input.u8(), input.u8());
            let (operation, is_resent) = (u32::from(operation % 64), operation & AGAIN != 0);
            let body = input.piece().to_vec();
            kernel.request(operation, node, handle, body, flags & 1 == 0, is_resent);
        }
        kernel.end(serving);
    }

    /// A mount, and its kernel.
    fn begin(staging: Option<&TempDir>) -> (Kernel, Serving) {
        let ends = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (socket, device) = ends.expect("two descriptors");
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWERED_WITHIN)).expect("sockets have one");
        let writing = staging.map(|dir| WritingOptions {
            staging: StagingOptions {
                dir: dir.path().join("staging"),
                size: ByteSize::mib(128),
                part_size: ByteSize::mib(8),
                memory: ByteSize::mib(64),
                timeout: Duration::from_secs(10),
                quiet: StagingOptions::QUIET,
                owner: "fuzz".to_owned(),
            },
            ignore_mode: false,
        });
        let options = MountOptions {
            io: FuseIo::Device,
            threads: 1,
            clone_fd: false,
            spin: Duration::ZERO,
            splice: false,
            list_page: 3,
            writing,
            ..MountOptions::default()
        };
        let first = message(opcode::INIT, 2, 0, 0, &init_body());
        send(&socket, &first, SendFlags::NOSIGNAL).expect("there is room for one");
        let serving = RUNTIME.with(|runtime| {
            let client = runtime.block_on(client(runtime));
            serve(client, runtime.handle(), device, &options).expect("it begins as a kernel begins")
        });
        let mut kernel = Kernel::new(socket);
        kernel.open.insert(2);
        let (error, body) = kernel.answer_to(2);
        assert!(error == 0 && !body.is_empty());
        (kernel, serving)
    }

    struct Local(Arc<dyn Service>);

    impl Connector for Local {
        fn connect(&self, _: &Member) -> Arc<dyn Transport> {
            Arc::new(LocalTransport::new(Arc::clone(&self.0)))
        }
    }

    async fn client(runtime: &Runtime) -> Client {
        let origin = Arc::new(FakeOrigin::new("s3://b"));
        origin.put(FILE, CONTENT.to_vec());
        (0..5).for_each(|number| drop(origin.put(format!("d/more/{number}"), Vec::<u8>::new())));
        let worker = Arc::new(worker(&origin).await);
        let buffers = Store::open(StoreOptions::in_memory(pool(ByteSize::mib(16)))).await.expect("it is of memory");
        let options = ClientOptions { request_timeout: Duration::from_secs(20), ..ClientOptions::default() };
        let membership = Arc::new(StaticMembership::new(["w1"]));
        Client::new(membership, Arc::new(Local(worker)), buffers, options, runtime.handle().clone())
    }

    /// The kernel, as far as a mount knows it.
    struct Kernel {
        socket: OwnedFd,
        unique: u64,
        buffer: Vec<u8>,
        /// Requests that were not answered.
        open: BTreeSet<u64>,
        nodes: Vec<u64>,
        /// Those of files of the origin, and others.
        handles: Vec<(u64, bool)>,
    }

    impl Kernel {
        fn new(socket: OwnedFd) -> Self {
            let buffer = vec![0; 2 * LONGEST as usize];
            Self { socket, unique: 2, buffer, open: BTreeSet::new(), nodes: vec![ROOT], handles: Vec::new() }
        }

        /// Asks, of a node and with a handle that it knows where there is one, and waits for the answer where there must be one.
        fn request(
            &mut self,
            operation: u32,
            node: u8,
            handle: u8,
            mut body: Vec<u8>,
            is_read_only: bool,
            is_resent: bool,
        ) {
            // The end comes later, and a new beginning is another target's.
            if matches!(operation, opcode::INIT | opcode::DESTROY) {
                return;
            }
            let known = self.nodes.get(usize::from(node) % (KNOWN / 2)).copied();
            let node = known.unwrap_or_else(|| u64::from(node % 20));
            let known = self.handles.get(usize::from(handle) % (KNOWN / 2)).map(|(handle, _)| *handle);
            if let (true, Some(known)) = (with_handle(operation), known) {
                put(&mut body, 0, &known.to_ne_bytes());
                if operation == opcode::COPY_FILE_RANGE {
                    put(&mut body, 24, &known.to_ne_bytes());
                    put(&mut body, 16, &node.to_ne_bytes());
                }
            }
            bounded(operation, &mut body);
            let is_notice =
                matches!(operation, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT | opcode::NOTIFY_REPLY);
            self.unique += 2;
            // What is not answered is not sent again.
            let unique = self.unique | if is_resent && !is_notice { RESENT } else { 0 };
            let whole = message(operation, unique, node, 0, &body);
            send(&self.socket, &whole, SendFlags::NOSIGNAL).expect("it takes requests until the end");
            if is_notice {
                return;
            }
            self.open.insert(unique);
            // The access log says nothing until there is something to say.
            if operation == opcode::READ && RESERVED.contains(&node) {
                return;
            }
            let (error, answer) = self.answer_to(unique);
            assert!(error != 0 || !is_resent || may_be_repeated(operation), "{operation} may be done already");
            if error == 0 {
                self.learn(operation, node, &body, &answer, is_read_only);
            }
        }

        /// What an answer says that can be used, or checked.
        fn learn(&mut self, operation: u32, node: u64, body: &[u8], answer: &[u8], is_read_only: bool) {
            let is_of_origin = !RESERVED.contains(&node);
            match operation {
                opcode::LOOKUP | opcode::MKDIR | opcode::MKNOD | opcode::CREATE => {
                    let node = u64_at(answer, 0);
                    if node != 0 && self.nodes.len() < KNOWN {
                        self.nodes.push(node);
                    }
                    if operation == opcode::CREATE {
                        self.opened(u64_at(answer, ENTRY), true);
                    }
                }
                opcode::OPEN => self.opened(u64_at(answer, 0), is_of_origin),
                opcode::OPENDIR => self.opened(u64_at(answer, 0), false),
                opcode::RELEASE => {
                    self.handles.retain(|(handle, is_file)| *handle != u64_at(body, 0) || *is_file != is_of_origin)
                }
                opcode::READ => {
                    assert!(answer.len() <= u32_at(body, 16) as usize);
                    if is_read_only && is_of_origin && self.handles.contains(&(u64_at(body, 0), true)) {
                        is_of_the_file(u64_at(body, 8), u32_at(body, 16), answer);
                    }
                }
                opcode::READDIR | opcode::READDIRPLUS => assert!(answer.len() <= u32_at(body, 16) as usize),
                _ => {}
            }
        }

        fn opened(&mut self, handle: u64, is_file: bool) {
            if self.handles.len() < KNOWN {
                self.handles.push((handle, is_file));
            }
        }

        /// The next answer to this request: its error, and what follows.
        fn answer_to(&mut self, unique: u64) -> (i32, Vec<u8>) {
            loop {
                let (answered, error, body) = self.next(RecvFlags::empty()).expect("there is an answer in time");
                if answered == unique {
                    return (error, body);
                }
            }
        }

        /// The next answer to any request. What it is told without having asked is passed over.
        fn next(&mut self, how: RecvFlags) -> Result<(u64, i32, Vec<u8>), Errno> {
            loop {
                let (_, length) = retry_on_intr(|| recv(&self.socket, &mut self.buffer[..], how))?;
                if length == 0 {
                    return Err(Errno::PIPE);
                }
                let answer = &self.buffer[..length];
                assert!(length >= OUT_HEADER && u32_at(answer, 0) as usize == length, "{length} bytes are no answer");
                let (error, unique) = (u32_at(answer, 4) as i32, u64_at(answer, 8));
                if unique == 0 {
                    continue;
                }
                assert!(self.open.remove(&unique), "{unique} was not asked, or is answered twice");
                assert!((-511..=0).contains(&error), "the kernel takes no error {error}");
                assert!(error == 0 || length == OUT_HEADER, "nothing follows an error");
                return Ok((unique, error, answer[OUT_HEADER..].to_vec()));
            }
        }

        /// The mount ends, and by then all is answered.
        fn end(mut self, serving: Serving) {
            shutdown(&self.socket, Shutdown::Write).expect("it is a socket");
            serving.wait().expect("the mount ends as it should");
            while !self.open.is_empty() {
                let answered = self.next(RecvFlags::DONTWAIT);
                assert!(answered.is_ok(), "{:?} are not answered: {answered:?}", self.open);
            }
        }
    }

    /// Bytes of what is said of a name.
    const ENTRY: usize = 128;

    /// Whether a handle is the first thing in it.
    fn with_handle(operation: u32) -> bool {
        matches!(
            operation,
            opcode::READ
                | opcode::WRITE
                | opcode::RELEASE
                | opcode::FLUSH
                | opcode::FSYNC
                | opcode::READDIR
                | opcode::READDIRPLUS
                | opcode::RELEASEDIR
                | opcode::FALLOCATE
                | opcode::COPY_FILE_RANGE
                | opcode::COPY_FILE_RANGE_64
        )
    }

    /// Answers go through the socket, and files into memory.
    fn bounded(operation: u32, body: &mut [u8]) {
        match operation {
            opcode::READ | opcode::READDIR | opcode::READDIRPLUS => {
                let size = u32_at(body, 16) % LONGEST;
                put(body, 16, &size.to_ne_bytes());
            }
            opcode::WRITE => at_most(body, &[8]),
            opcode::SETATTR => at_most(body, &[16]),
            opcode::FALLOCATE => at_most(body, &[8, 16]),
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => at_most(body, &[32, 40]),
            _ => {}
        }
    }

    fn at_most(body: &mut [u8], places: &[usize]) {
        for at in places {
            let number = u64_at(body, *at) % LARGEST;
            put(body, *at, &number.to_ne_bytes());
        }
    }

    /// There is one file with bytes, and what is read of any other is none.
    fn is_of_the_file(offset: u64, size: u32, answer: &[u8]) {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(CONTENT.len());
        let end = CONTENT.len().min(start.saturating_add(size as usize));
        assert!(answer.is_empty() || *answer == CONTENT[start..end], "what is read is what is there");
    }

    fn put(body: &mut [u8], at: usize, number: &[u8]) {
        if let Some(place) = body.get_mut(at..at + number.len()) {
            place.copy_from_slice(number);
        }
    }

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
    }

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        // Of the node and with the handle of this number, from 0 on, in the order in which they were told.
        let ask = |output: Output, operation: u32, node: u8, handle: u8, body: &[u8]| {
            output.u8(operation as u8).u8(node).u8(handle).piece(body)
        };
        let numbers = |numbers: &[u64]| numbers.iter().fold(Output::default(), |output, number| output.u64(*number));
        let start = |flags: u8| Output::default().u8(flags);
        let read = |offset: u64, size: u32| numbers(&[0, offset]).u32(size).u32(0).u64(0).u64(0).done();
        let write = |offset: u64, bytes: &[u8]| {
            numbers(&[0, offset]).u32(bytes.len() as u32).u32(0).u64(0).u64(0).bytes(bytes).done()
        };
        let found = |output| ask(ask(output, opcode::LOOKUP, 0, 0, b"d\0"), opcode::LOOKUP, 1, 0, b"file\0");
        let open = |flags: u32| Output::default().u32(flags).u32(0).done();
        let release = numbers(&[0, 0, 0]).done();
        let reads = ask(found(start(0)), opcode::OPEN, 2, 0, &open(0));
        let reads = ask(ask(reads, opcode::READ, 2, 0, &read(0, 4096)), opcode::READ, 2, 0, &read(65_536, 59_999));
        let reads = ask(ask(reads, opcode::READ, 2, 0, &read(70_000, 10)), opcode::RELEASE, 2, 0, &release);
        let names = ask(found(start(0)), opcode::OPENDIR, 1, 0, &open(0));
        let names = ask(names, opcode::READDIR, 1, 0, &read(0, 4096));
        let names = ask(ask(names, opcode::READDIRPLUS, 1, 0, &read(0, 300)), opcode::RELEASEDIR, 1, 0, &release);
        let own = ask(start(0), opcode::LOOKUP, 0, 0, b".stats\0");
        let own = ask(ask(own, opcode::OPEN, 1, 0, &open(0)), opcode::READ, 1, 0, &read(0, 9999));
        let own = ask(ask(own, opcode::LOOKUP, 0, 0, b".accesslog\0"), opcode::OPEN, 2, 0, &open(0));
        let own = ask(ask(own, opcode::READ, 2, 1, &read(0, 9999)), opcode::STATFS, 0, 0, b"");
        // O_RDWR | O_CREAT.
        let created = Output::default().u32(0x42).u32(0o644).u32(0).u32(0).bytes(b"new\0").done();
        let writes = ask(start(1), opcode::CREATE, 0, 0, &created);
        let writes = ask(ask(writes, opcode::WRITE, 1, 0, &write(0, b"some")), opcode::WRITE, 1, 0, &write(9, b"more"));
        let writes = ask(ask(writes, opcode::READ, 1, 0, &read(0, 100)), opcode::FSYNC, 1, 0, &numbers(&[0, 0]).done());
        let renamed = numbers(&[1]).bytes(b"new\0old\0").done();
        let writes = ask(ask(writes, opcode::RELEASE, 1, 0, &release), opcode::RENAME, 0, 0, &renamed);
        let changes = ask(found(start(1)), opcode::OPEN, 2, 0, &open(2));
        let shortened = Output::default().u32(8).u32(0).u64(0).u64(100).bytes([0; 64]).done();
        let changes = ask(ask(changes, opcode::SETATTR, 2, 0, &shortened), opcode::RELEASE, 2, 0, &release);
        let changes = ask(changes, opcode::UNLINK, 1, 0, b"file\0");
        let ask_again = |output: Output, operation: u32, node: u8, handle: u8, body: &[u8]| {
            output.u8(operation as u8 | AGAIN).u8(node).u8(handle).piece(body)
        };
        let again = ask(ask_again(start(1), opcode::CREATE, 0, 0, &created), opcode::CREATE, 0, 0, &created);
        let again = ask_again(again, opcode::WRITE, 1, 0, &write(0, b"some"));
        let again = ask_again(ask(again, opcode::WRITE, 1, 0, &write(0, b"some")), opcode::READ, 1, 0, &read(0, 100));
        let again = ask_again(ask_again(again, opcode::LOOKUP, 0, 0, b"d\0"), opcode::RELEASE, 1, 0, &release);
        let all = samples().into_iter().filter(|(name, ..)| *name != "init");
        let all = |flags: u8| {
            let each =
                |output: Output, (_, operation, body): &(&str, u32, Vec<u8>)| ask(output, *operation, 0, 0, body);
            all.clone().collect::<Vec<_>>().iter().fold(found(start(flags)), each).done()
        };
        vec![
            ("reads", reads.done()),
            ("names", names.done()),
            ("its_own_files", own.done()),
            ("writes", writes.done()),
            ("changes", changes.done()),
            ("sent_again", again.done()),
            ("all_sorts", all(0)),
            ("all_sorts_writable", all(1)),
        ]
    }
}
