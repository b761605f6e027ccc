//! The interface of a session: a [`Request`] of the kernel comes in, and a [`Reply`] goes back, whatever channel
//! carries them.
//!
//! What serves a mount implements [`Dispatch`] and is handed requests. It answers each in one of two ways:
//!
//! * [`Request::now`], by the thread that got it: no lock, no allocation, no count of references;
//! * [`Request::keep`], later and from any thread.
//!
//! Both consume the request. What [`Request::operation`] says borrows it, so names and data that lie in the memory of the channel
//! are out of use, and the borrow checker proves it, before an answer is written over them.
//!
//! Every way back that is dropped tells the kernel `EIO`: after a panic, a cancelled task or a mistake the program that asked
//! gets an error, and does not wait for ever.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_memory::SpanMut;

use crate::attributes::{Attributes, Kind, OpenedFlags, Statfs};
use crate::backing::Backing;
use crate::channel::descriptor::Descriptor;
use crate::channel::pipe::Pipe;
use crate::channel::ring::entry::{Kept, KeptBytes, Taken};
use crate::errno::Errno;
use crate::protocol::abi::MAX_PAYLOAD;
use crate::protocol::encode;
use crate::protocol::names::NameBuffer;
use crate::protocol::request::{Header, Malformed, Operation, head_size, parse, split};

/// What serves a mount. Called by several threads at once.
pub trait Dispatch: Send + Sync + 'static {
    /// Answers `request`, or sees to it that it is answered. A panic is contained by the channel, and the request answered `EIO`.
    fn dispatch(&self, request: Request<'_>);

    /// The kernel has given `count` of its references to inode `node` back.
    fn forget(&self, node: u64, count: u64);

    /// The thread that waits for the request `unique` was sent a signal. The signal itself needs no answer: we decide
    /// whether the request ends earlier because of it.
    fn interrupted(&self, unique: u64);

    /// The mount has ended, and no program waits for answers any more. Called once, by the first thread that learns of
    /// it; the requests under way should be dropped, since [`crate::Session::run`] may have to wait for them. With an
    /// `error`, a thread cannot go on serving though the mount is still there: the mount should be taken away.
    fn ended(&self, error: Option<&io::Error>) {
        let _ = error;
    }
}

/// A request of the kernel, in memory that belongs to its channel until it is answered or kept.
pub struct Request<'a> {
    header: Header,
    taken: Instant,
    now: Now<'a>,
}

enum Way<'a> {
    /// The whole message, the descriptor it came from, and the pipe of the thread that has it.
    Device { message: &'a [u8], descriptor: &'a Arc<Descriptor>, pipe: Option<&'a Pipe> },
    /// The entry of a ring that it is in.
    Ring(Taken<'a>),
}

impl<'a> Request<'a> {
    /// One that was read from `descriptor`.
    pub(crate) fn device(
        header: Header,
        message: &'a [u8],
        descriptor: &'a Arc<Descriptor>,
        pipe: Option<&'a Pipe>,
    ) -> Self {
        let way = Some(Way::Device { message, descriptor, pipe });
        Self { header, taken: Instant::now(), now: Now { unique: header.unique, way } }
    }

    /// One that the kernel put into the entry of a ring, which was seen there when it was `taken`; `None`, and the entry answers
    /// `EIO`, if that has no header.
    pub(crate) fn from_ring(entry: Taken<'a>, taken: Instant) -> Option<Self> {
        let header = Header::parse(entry.header()).ok().filter(|header| header.unique != 0)?;
        Some(Self { header, taken, now: Now { unique: header.unique, way: Some(Way::Ring(entry)) } })
    }

    /// The operation, the inode and the caller.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// When the request was taken from the kernel, perhaps together with others that it has waited for since: a thread
    /// that serves many requests need not look at a clock for each.
    #[must_use]
    #[inline]
    pub fn taken(&self) -> Instant {
        self.taken
    }

    /// What is asked.
    ///
    /// # Errors
    /// [`Malformed`] when the message is none; [`Malformed::errno`] is the answer.
    #[inline]
    pub fn operation(&self) -> Result<Operation<'_>, Malformed> {
        match &self.now.way {
            Some(Way::Device { message, .. }) => {
                let (head, tail) = split(&self.header, message)?;
                parse(self.header.opcode, head, tail)
            }
            Some(Way::Ring(entry)) => {
                let opcode = self.header.opcode;
                // What follows the head is of an older request.
                let head = entry.head().get(..head_size(opcode)).ok_or(Malformed::Short)?;
                parse(opcode, head, entry.tail())
            }
            // It is there until the request is consumed.
            None => Err(Malformed::Short),
        }
    }

    /// Whether this thread may wait for a disk: others go on taking requests meanwhile. Not so with rings, where one thread serves
    /// all requests of a processor.
    #[must_use]
    pub fn may_block(&self) -> bool {
        matches!(self.now.way, Some(Way::Device { .. }))
    }

    /// To be answered by this thread, before [`Dispatch::dispatch`] returns.
    #[must_use]
    #[inline]
    pub fn now(self) -> Now<'a> {
        self.now
    }

    /// To be answered by any thread, at any time.
    #[must_use]
    pub fn keep(mut self) -> Reply {
        let way = self.now.way.take().map(|way| match way {
            Way::Device { descriptor, .. } => KeptWay::Device(Arc::clone(descriptor)),
            Way::Ring(entry) => KeptWay::Ring(entry.keep()),
        });
        Reply { unique: self.header.unique, way }
    }

    /// The same, with the data of a WRITE: a copy, or the channel's memory itself. Then the answer goes out when both the data are
    /// dropped and the reply is sent. No bytes for any other request.
    #[must_use]
    pub fn keep_bytes(mut self) -> (Reply, HeldBytes) {
        let unique = self.header.unique;
        let is_write = matches!(self.operation(), Ok(Operation::Write { .. }));
        if is_write
            && let Some(Way::Ring(_)) = self.now.way
            && let Some(Way::Ring(entry)) = self.now.way.take()
        {
            let (kept, bytes) = entry.keep_bytes();
            return (Reply { unique, way: Some(KeptWay::Ring(kept)) }, HeldBytes(Bytes::Lent(bytes)));
        }
        let data: Box<[u8]> = match self.operation() {
            Ok(Operation::Write { data, .. }) => data.into(),
            _ => Box::default(),
        };
        (self.keep(), HeldBytes(Bytes::Copied(data)))
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Request").field(&self.header).finish()
    }
}

/// The data of a WRITE, for as long as they are needed.
pub struct HeldBytes(Bytes);

enum Bytes {
    Copied(Box<[u8]>),
    Lent(KeptBytes),
}

impl Deref for HeldBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Copied(bytes) => bytes,
            Bytes::Lent(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for HeldBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeldBytes({})", self.len())
    }
}

/// How a file was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Opened<'a> {
    /// What the kernel calls it from now on.
    pub handle: u64,
    /// How the kernel treats it.
    pub flags: OpenedFlags,
    /// The file that the kernel reads and writes in its place.
    pub backing: Option<&'a Backing>,
}

/// Ways to answer. Each uses the way back up, and each operation takes only some of them: an answer of another kind is refused by
/// the kernel, and the program gets `EIO`.
pub trait Answer: Sized {
    /// The bytes of an answer, in parts that follow one another; or an error.
    fn send(self, outcome: Result<&[&[u8]], Errno>);

    /// It could not be done.
    fn error(self, errno: Errno) {
        self.send(Err(errno));
    }

    /// It was done, and there is nothing to say of it.
    fn ok(self) {
        self.send(Ok(&[]));
    }

    /// An inode. From now on the kernel holds one more reference to it.
    fn entry(self, attributes: &Attributes, generation: u64, name_ttl: Duration, attributes_ttl: Duration) {
        self.send(Ok(&[&encode::entry(attributes, generation, name_ttl, attributes_ttl)]));
    }

    /// There is nothing of that name, and the kernel need not ask again for as long as this.
    fn no_entry(self, ttl: Duration) {
        self.send(Ok(&[&encode::no_entry(ttl)]));
    }

    /// Attributes.
    fn attributes(self, attributes: &Attributes, ttl: Duration) {
        self.send(Ok(&[&encode::attributes(attributes, ttl)]));
    }

    /// It is open.
    fn opened(self, opened: &Opened<'_>) {
        let backing = opened.backing.map(Backing::id);
        self.send(Ok(&[&encode::opened(opened.handle, opened.flags, backing)]));
    }

    /// There is a new file, and it is open.
    fn created(self, attributes: &Attributes, ttl: Duration, opened: &Opened<'_>) {
        let backing = opened.backing.map(Backing::id);
        self.send(Ok(&[&encode::created(attributes, 0, ttl, opened.handle, opened.flags, backing)]));
    }

    /// So many bytes were written, or copied by COPY_FILE_RANGE.
    fn written(self, bytes: u32) {
        self.send(Ok(&[&encode::written(bytes)]));
    }

    /// So many bytes were copied by COPY_FILE_RANGE_64.
    fn copied(self, bytes: u64) {
        self.send(Ok(&[&encode::copied(bytes)]));
    }

    /// What `df` shows.
    fn statfs(self, statfs: &Statfs) {
        self.send(Ok(&[&encode::statfs(statfs)]));
    }

    /// Bytes: of a file, a link, an extended attribute.
    fn data(self, bytes: &[u8]) {
        self.send(Ok(&[bytes]));
    }

    /// Bytes that lie in several places. The device takes them from there; into a ring they are copied either way.
    fn slices(self, slices: &[&[u8]]) {
        self.send(Ok(slices));
    }

    /// Where LSEEK got to.
    fn offset(self, offset: u64) {
        self.send(Ok(&[&encode::offset(offset)]));
    }

    /// How long an extended attribute, or the list of them, is.
    fn xattr_size(self, bytes: u32) {
        self.send(Ok(&[&encode::xattr_size(bytes)]));
    }
}

/// The way back of a request that is answered by the thread that got it.
pub struct Now<'a> {
    unique: u64,
    /// `None`: it was answered.
    way: Option<Way<'a>>,
}

impl Answer for Now<'_> {
    #[inline]
    fn send(mut self, outcome: Result<&[&[u8]], Errno>) {
        self.answer(outcome);
    }
}

impl Now<'_> {
    #[inline]
    fn answer(&mut self, outcome: Result<&[&[u8]], Errno>) {
        match self.way.take() {
            Some(Way::Device { descriptor, pipe, .. }) => descriptor.answer_through(pipe, self.unique, outcome),
            Some(Way::Ring(entry)) => entry.answer(outcome.map_err(Errno::number)),
            None => {}
        }
    }
}

impl Drop for Now<'_> {
    fn drop(&mut self) {
        if self.way.is_some() {
            self.answer(Err(Errno::EIO));
        }
    }
}

/// The way back of a request that is answered later.
pub struct Reply {
    unique: u64,
    /// `None`: it was answered.
    way: Option<KeptWay>,
}

enum KeptWay {
    Device(Arc<Descriptor>),
    Ring(Kept),
}

impl Answer for Reply {
    fn send(mut self, outcome: Result<&[&[u8]], Errno>) {
        self.answer(outcome);
    }
}

impl Reply {
    fn answer(&mut self, outcome: Result<&[&[u8]], Errno>) {
        match self.way.take() {
            Some(KeptWay::Device(descriptor)) => descriptor.answer(self.unique, outcome),
            Some(KeptWay::Ring(entry)) => entry.answer(outcome.map_err(Errno::number)),
            None => {}
        }
    }

    /// What the request is called.
    #[must_use]
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// An answer to READDIR or READDIRPLUS, of at most `size` bytes.
    #[must_use]
    pub fn names(mut self, size: u32) -> Names {
        let limit = size.min(MAX_PAYLOAD) as usize;
        let way = self.way.take().map(|way| match way {
            KeptWay::Device(descriptor) => NamesWay::Device(descriptor, vec![0; limit]),
            KeptWay::Ring(entry) => NamesWay::Ring(entry),
        });
        Names { unique: self.unique, way, limit, used: 0 }
    }

    /// The memory that the kernel takes the answer from. A transport fills it, and [`Reply::filled`] gives it back. If
    /// it is not given back, the answer waits until the memory is dropped, whatever the answer is: nothing may write to
    /// the memory when the kernel has it. `None`: there is none, as with `/dev/fuse`, or it is still lent.
    pub fn lend(&mut self) -> Option<SpanMut> {
        match &mut self.way {
            Some(KeptWay::Ring(entry)) => entry.lend(),
            _ => None,
        }
    }

    /// Answers with the first `length` bytes of what [`Reply::lend`] gave, or of another buffer, from which they are copied. Whether
    /// they lay where the kernel takes them from.
    pub fn filled(mut self, payload: SpanMut, length: usize) -> bool {
        match self.way.take() {
            Some(KeptWay::Ring(entry)) => entry.filled(payload, length),
            Some(KeptWay::Device(descriptor)) => {
                let filled = payload.get(..length).ok_or(Errno::EIO);
                descriptor.answer(self.unique, filled.as_ref().map(std::slice::from_ref).map_err(|errno| *errno));
                false
            }
            None => false,
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.way.is_some() {
            self.answer(Err(Errno::EIO));
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reply").field(&self.unique).finish()
    }
}

/// The names of a directory on their way back.
pub struct Names {
    unique: u64,
    /// `None`: they were sent.
    way: Option<NamesWay>,
    /// The most bytes that the kernel takes.
    limit: usize,
    used: usize,
}

enum NamesWay {
    /// They are put together here.
    Device(Arc<Descriptor>, Vec<u8>),
    /// They are put where the kernel takes them from.
    Ring(Kept),
}

impl Names {
    /// Adds a name to the answer of a READDIR. `next` is the position after it. Says whether it is full: then it was not added.
    pub fn add(&mut self, ino: u64, next: u64, kind: Kind, name: &[u8]) -> bool {
        self.put(|buffer| buffer.add(ino, next, kind, name))
    }

    /// The same for READDIRPLUS. Of what was added the kernel holds one more reference, but for `.` and `..`.
    pub fn add_plus(
        &mut self,
        attributes: &Attributes,
        next: u64,
        name: &[u8],
        name_ttl: Duration,
        attributes_ttl: Duration,
    ) -> bool {
        self.put(|buffer| buffer.add_plus(attributes, 0, next, name, name_ttl, attributes_ttl))
    }

    /// Puts one name after those that are there.
    fn put(&mut self, add: impl FnOnce(&mut NameBuffer<&mut [u8]>) -> bool) -> bool {
        let bytes = match &mut self.way {
            Some(NamesWay::Device(_, bytes)) => Some(bytes.as_mut_slice()),
            Some(NamesWay::Ring(entry)) => entry.payload(),
            None => None,
        };
        let Some(rest) = bytes.and_then(|bytes| bytes.get_mut(self.used..)) else { return true };
        let mut buffer = NameBuffer::new(rest, self.limit - self.used);
        let is_full = add(&mut buffer);
        self.used += buffer.len();
        is_full
    }

    /// Sends what was added; without any names it says that the directory ends here.
    pub fn send(mut self) {
        match self.way.take() {
            Some(NamesWay::Device(descriptor, bytes)) => {
                descriptor.answer(self.unique, Ok(&[bytes.get(..self.used).unwrap_or_default()]));
            }
            Some(NamesWay::Ring(entry)) => entry.send_payload(self.used),
            None => {}
        }
    }

    /// Sends an error in their place.
    pub fn error(mut self, errno: Errno) {
        self.fail(errno);
    }

    fn fail(&mut self, errno: Errno) {
        match self.way.take() {
            Some(NamesWay::Device(descriptor, _)) => descriptor.answer(self.unique, Err(errno)),
            Some(NamesWay::Ring(entry)) => entry.answer(Err(errno.number())),
            None => {}
        }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        if self.way.is_some() {
            self.fail(Errno::EIO);
        }
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Names").field(&self.unique).finish()
    }
}
