//! A mount, from the kernel's first request to the last.
//!
//! ```text
//! start: read INIT ─▶ make rings, if they are wanted and offered ─▶ answer INIT ─▶ try what may not be permitted
//! run:   threads on /dev/fuse ─▶ rings go live ─▶ … the kernel ends the mount … ─▶ every thread is joined
//! ```
//!
//! Rings are made before INIT is answered, so the kernel is told of them only if there are some. It takes them only after the
//! answer, and what it must send before they are live comes over `/dev/fuse`, so a thread reads that first. If they are refused
//! even then, the kernel is told to do without, and `/dev/fuse` carries everything.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay_memory::Pool;
use tracing::{debug, info, warn};

use forebay_types::FuseIo;

use crate::backing::Backings;
use crate::channel::batch;
use crate::channel::busy_poll::{BusyPoll, Turn};
use crate::channel::descriptor::Descriptor;
use crate::channel::device;
use crate::channel::pipe::{MAX, Pipe};
use crate::channel::ring::{NoUring, Prepared, RingOptions, Rings};
use crate::errno::Errno;
use crate::notifier::Notifier;
use crate::protocol::abi::{MAX_PAYLOAD, MIN_BUFFER, capability, opcode};
use crate::protocol::init::{InitIn, Negotiated, NoAgreement, ReadDirPlus, Wanted, negotiate, our_version};
use crate::protocol::request::{Header, Malformed, split};
use crate::reply::Dispatch;
use crate::served::{Channel, ChannelInUse, NoPassthrough, Served};

/// Says `Y` where the kernel offers rings.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// What can be chosen of a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// How requests come from the kernel.
    pub io: FuseIo,
    /// Threads that serve; at least one. With rings: at most, and no more than there are processors.
    pub threads: usize,
    /// Whether each thread gets a descriptor of `/dev/fuse` of its own, where the process may open it.
    pub clone_fd: bool,
    /// How long a thread on `/dev/fuse` busy-polls for the next request after a short read, one in a mount at a time; zero: not at all.
    pub spin: Duration,
    /// Whether threads on `/dev/fuse` answer long reads through a pipe, where they may have one.
    pub splice: bool,
    /// The most that one request writes, in bytes.
    pub max_write: u32,
    /// The most that one request reads, in bytes; no less than that.
    pub max_read: u32,
    /// Read-ahead and asynchronous direct requests that may be under way.
    pub max_background: u16,
    /// So many of them, and the kernel takes the mount to be congested; 0: three quarters of them.
    pub congestion_threshold: u16,
    /// Whether attributes come with the names of a directory.
    pub readdirplus: ReadDirPlus,
    /// Files may be passed through, if the kernel can and the process may.
    pub passthrough: bool,
    /// Entries of each queue of a ring.
    pub ring_depth: u32,
    /// Address space for their payloads, in bytes.
    pub ring_memory: u64,
    /// Where payloads are taken from, so that transports may land in them; a pool of the session's own without one.
    pub pool: Option<Pool>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            io: FuseIo::Auto,
            threads: 2,
            clone_fd: true,
            spin: Duration::from_micros(20),
            splice: true,
            max_write: MAX_PAYLOAD,
            max_read: MAX_PAYLOAD,
            max_background: 256,
            congestion_threshold: 0,
            readdirplus: ReadDirPlus::Auto,
            passthrough: false,
            ring_depth: 64,
            ring_memory: 4 << 30,
            pool: None,
        }
    }
}

/// Why a session does not start.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The descriptor cannot be read or written.
    #[error("cannot {0}: {1}")]
    Io(&'static str, #[source] io::Error),
    /// The first message is none that a kernel would send.
    #[error("the kernel's first message makes no sense: {0}")]
    Malformed(#[from] Malformed),
    /// The kernel is too old.
    #[error(transparent)]
    NoAgreement(#[from] NoAgreement),
    /// Rings were demanded.
    #[error(transparent)]
    NoUring(#[from] NoUring),
}

/// A mount whose first request was answered. [`Session::run`] serves it; dropped, it ends the mount.
pub struct Session<D> {
    descriptor: Arc<Descriptor>,
    dispatch: Arc<D>,
    threads: usize,
    clone_fd: bool,
    /// Of the threads that busy-poll.
    turn: Arc<Turn>,
    splice: bool,
    negotiated: Negotiated,
    rings: Option<Prepared>,
    /// Why there are none though they were wanted.
    why_not: Option<NoUring>,
    notifier: Notifier,
    backings: Backings,
    served: Arc<Served>,
}

impl<D: Dispatch> Session<D> {
    /// Answers the kernel's first request, which waits on `descriptor`. `dispatch` gets all others once [`Session::run`] is called.
    ///
    /// # Errors
    /// [`SessionError`], and the mount has ended.
    pub fn start(descriptor: OwnedFd, dispatch: Arc<D>, options: &SessionOptions) -> Result<Self, SessionError> {
        let descriptor = Arc::new(Descriptor::new(descriptor));
        let (unique, init) = first_request(&descriptor)?;
        let mut wanted = Wanted {
            max_write: options.max_write,
            max_read: options.max_read,
            // 4 KiB where we are built for; elsewhere it is what the kernel counts in.
            page_size: u32::try_from(rustix::param::page_size()).unwrap_or(4096),
            max_background: options.max_background,
            congestion_threshold: options.congestion_threshold,
            readdirplus: options.readdirplus,
            passthrough: options.passthrough,
            direct_io_mmap: false,
            uring: false,
        };
        let mut negotiated = negotiate(&init, &wanted).inspect_err(|_| {
            descriptor.answer(unique, Err(Errno::new(libc::EPROTO)));
        })?;
        let (rings, why_not) = match prepare_rings(&init, &negotiated, &dispatch, options) {
            Ok(rings) => (rings, None),
            Err(reason) if options.io == FuseIo::Uring => return Err(reason.into()),
            Err(reason) => (None, Some(reason)),
        };
        if rings.is_some() {
            wanted.uring = true;
            negotiated = negotiate(&init, &wanted)?;
        }
        debug!(?negotiated, "agreed with the kernel");
        descriptor.answer(unique, Ok(&[&negotiated.encode()]));

        let another = || descriptor.another().map_err(|error| SessionError::Io("open /dev/fuse once more", error));
        let backings = Backings::new(another()?);
        let passthrough = NoPassthrough::unless_tried(&backings, &negotiated, options.passthrough);
        Ok(Self {
            notifier: Notifier::new(another()?),
            backings,
            served: Arc::new(Served::new(negotiated.kernel, passthrough)),
            descriptor,
            dispatch,
            threads: options.threads.max(1),
            clone_fd: options.clone_fd,
            turn: Arc::new(Turn::new(options.spin)),
            splice: options.splice,
            negotiated,
            rings,
            why_not,
        })
    }

    /// Tells the kernel what it did not ask.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Where files are registered that are passed through.
    #[must_use]
    pub fn backings(&self) -> Backings {
        self.backings.clone()
    }

    /// The memory that requests over rings are answered from, of which [`crate::Reply::lend`] lends pieces once
    /// [`Session::run`] was called; `None` without rings. It is mapped for as long as anything refers to it.
    #[must_use]
    pub fn payloads(&self) -> Option<&Pool> {
        self.rings.as_ref().map(Prepared::pool)
    }

    /// How it is served. Which channel carries requests is settled soon after [`Session::run`] was called.
    #[must_use]
    pub fn served(&self) -> Arc<Served> {
        Arc::clone(&self.served)
    }

    /// Serves until the kernel ends the mount; then all threads have ended.
    ///
    /// # Errors
    /// When a thread could not go on serving. [`Dispatch::ended`] was told at that time.
    pub fn run(mut self) -> io::Result<()> {
        let ended = Arc::new(Ended { told: AtomicBool::new(false), dispatch: Arc::clone(&self.dispatch) });
        let mut threads = DeviceThreads { threads: Vec::new(), own_descriptors: self.clone_fd };
        // For what a ring does not carry, one is enough.
        let at_first = if self.rings.is_some() { 1 } else { self.threads };
        let mut outcome = threads.spawn(at_first, &self, &ended);

        let mut live = None;
        if let Some(rings) = self.rings.take().filter(|_| outcome.is_ok()) {
            let shape = rings.shape();
            match self.go_live(rings, &ended) {
                Ok(rings) => {
                    self.served.show_rings(rings.counters());
                    live = Some(rings);
                    self.served.settle(ChannelInUse { channel: Channel::Uring(shape), why_not: None });
                }
                Err(reason) => {
                    warn!(%reason, "the mount is served over /dev/fuse");
                    self.why_not = Some(reason);
                    outcome = threads.spawn(self.threads.saturating_sub(at_first), &self, &ended);
                }
            }
        }
        if live.is_none() {
            let channel = Channel::Device { threads: threads.len(), own_descriptors: threads.own_descriptors };
            self.served.settle(ChannelInUse { channel, why_not: self.why_not.as_ref().map(ToString::to_string) });
        }
        if let Err(error) = &outcome {
            ended.tell(Some(error));
        }

        let joined = threads.join();
        if let Some(rings) = live {
            rings.end();
            outcome = outcome.and(rings.join());
        }
        self.backings.end();
        outcome.and(joined)
    }

    /// Registers the rings with the kernel.
    fn go_live(&self, rings: Prepared, ended: &Arc<Ended<D>>) -> Result<Rings, NoUring> {
        let descriptor = self.descriptor.as_fd().try_clone_to_owned().map_err(NoUring::Refused)?;
        let ended = Arc::clone(ended);
        rings.go_live(descriptor, Box::new(move |error| ended.tell(Some(&error))))
    }
}

/// Tells the dispatch of the end, once.
struct Ended<D> {
    told: AtomicBool,
    dispatch: Arc<D>,
}

impl<D: Dispatch> Ended<D> {
    fn tell(&self, error: Option<&io::Error>) {
        if !self.told.swap(true, Ordering::AcqRel) {
            self.dispatch.ended(error);
        }
    }
}

/// The threads that read `/dev/fuse`.
struct DeviceThreads {
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// Whether each has a descriptor of its own, all but the first.
    own_descriptors: bool,
}

impl DeviceThreads {
    /// Starts `count` more. An error only when there is none at all.
    fn spawn<D: Dispatch>(&mut self, count: usize, session: &Session<D>, ended: &Arc<Ended<D>>) -> io::Result<()> {
        for _ in 0..count {
            let number = self.threads.len();
            let own = (number > 0 && self.own_descriptors).then(|| session.descriptor.with_own_queue());
            let descriptor = match own {
                Some(Ok(own)) => Arc::new(own),
                Some(Err(error)) => {
                    debug!(%error, "the threads share one descriptor");
                    self.own_descriptors = false;
                    Arc::clone(&session.descriptor)
                }
                None => Arc::clone(&session.descriptor),
            };
            let (dispatch, served, ended) =
                (Arc::clone(&session.dispatch), Arc::clone(&session.served), Arc::clone(ended));
            let max_write = session.negotiated.max_write;
            // With rings, short reads do not come this way.
            let may = session.rings.is_none() && session.clone_fd;
            let awake = may.then(|| BusyPoll::new(&session.turn, &descriptor)).flatten();
            let pipe = (session.splice && number < MAX).then(|| Pipe::to(&*descriptor)).flatten();
            let work = move || {
                batch::wake_gently();
                let outcome = device::serve(&descriptor, awake.as_ref(), pipe.as_ref(), &*dispatch, max_write, &served);
                ended.tell(outcome.as_ref().err());
                outcome
            };
            match thread::Builder::new().name(format!("forebay-fuse-{number}")).spawn(work) {
                Ok(thread) => self.threads.push(thread),
                Err(error) if self.threads.is_empty() => return Err(error),
                Err(error) => {
                    warn!(%error, threads = number, "the mount is served by fewer threads");
                    break;
                }
            }
        }
        Ok(())
    }

    fn len(&self) -> usize {
        self.threads.len()
    }

    fn join(self) -> io::Result<()> {
        let ends = self.threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that serves the mount panicked")))
        });
        // All of them, also after one that failed.
        ends.fold(Ok(()), io::Result::and)
    }
}

/// The kernel's first request, of a version that we speak.
fn first_request(descriptor: &Descriptor) -> Result<(u64, InitIn), SessionError> {
    let mut buffer = vec![0; MIN_BUFFER];
    loop {
        let length = match descriptor.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(|error| SessionError::Io("read the kernel's first request", error))?,
        };
        let message = buffer.get(..length).unwrap_or_default();
        let header = Header::parse(message)?;
        let (body, _) = split(&header, message)?;
        if header.opcode != opcode::INIT {
            return Err(SessionError::Io("begin", io::Error::other(format!("request {} came first", header.opcode))));
        }
        let init = InitIn::parse(body)?;
        match negotiate(&init, &Wanted::default()) {
            Err(NoAgreement::Later(major)) => {
                info!(major, "the kernel begins with a later version of FUSE");
                descriptor.answer(header.unique, Ok(&[&our_version()]));
            }
            _ => return Ok((header.unique, init)),
        }
    }
}

/// Rings, if they are wanted.
fn prepare_rings<D: Dispatch>(
    init: &InitIn,
    negotiated: &Negotiated,
    dispatch: &Arc<D>,
    options: &SessionOptions,
) -> Result<Option<Prepared>, NoUring> {
    match options.io {
        FuseIo::Uring => {}
        // What is large comes faster over the device, and most is large: ADR 0014 has the figures.
        FuseIo::Auto | FuseIo::Device => return Ok(None),
    }
    if !init.offers(capability::OVER_IO_URING) {
        let is_there = std::fs::exists(SWITCH).unwrap_or(false);
        return Err(if is_there { NoUring::Off } else { NoUring::NotInKernel });
    }
    let rings = RingOptions {
        threads: options.threads.max(1),
        depth: options.ring_depth.max(1),
        memory: options.ring_memory,
        payload: negotiated.payload_size(),
        pool: options.pool.clone(),
    };
    Prepared::new(&rings, Arc::clone(dispatch)).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fakes::device::Wire;
    use crate::fakes::{about, init};
    use crate::reply::Request;

    struct Silent;

    impl Dispatch for Silent {
        fn dispatch(&self, request: Request<'_>) {
            drop(request);
        }

        fn forget(&self, _: u64, _: u64) {}

        fn interrupted(&self, _: u64) {}
    }

    fn begin(capabilities: u64, options: &SessionOptions) -> (Wire, Result<Session<Silent>, SessionError>) {
        let (mut wire, device) = Wire::new();
        wire.send(about(opcode::INIT, 0), &init(capabilities), &[]);
        let session = Session::start(device, Arc::new(Silent), options);
        (wire, session)
    }

    #[test]
    fn what_is_wanted_of_the_kernel_is_agreed_on() {
        let options = SessionOptions { max_background: 48, congestion_threshold: 48, ..SessionOptions::default() };
        let (mut wire, session) = begin(capability::PASSTHROUGH | capability::OVER_IO_URING, &options);
        let session = session.unwrap();
        let answer = wire.answer(2).body;
        assert_eq!(answer[16..20], [48, 0, 48, 0], "max_background and congestion_threshold");
        assert_eq!(answer[20..24], MAX_PAYLOAD.to_ne_bytes());
        let wanted = capability::ASYNC_READ
            | capability::ASYNC_DIO
            | capability::PARALLEL_DIROPS
            | capability::DO_READDIRPLUS
            | capability::READDIRPLUS_AUTO
            | capability::MAX_PAGES
            | capability::ATOMIC_O_TRUNC;
        assert!(session.negotiated.has(wanted));
        assert!(!session.negotiated.passthrough() && !session.negotiated.uring());
        assert!(session.payloads().is_none(), "nothing lands in memory of a thread on the device");
        assert_eq!(session.served().passthrough(), Err(NoPassthrough::NotAsked));
        assert_eq!(session.served().kernel(), (7, 45));
    }

    #[test]
    fn passing_files_through_is_tried_before_anybody_relies_on_it() {
        let options = SessionOptions { passthrough: true, ..SessionOptions::default() };
        let (_wire, session) = begin(0, &options);
        assert_eq!(session.unwrap().served().passthrough(), Err(NoPassthrough::NotInKernel));
        // The kernel says that it can, but a socket cannot.
        let (_wire, session) = begin(capability::PASSTHROUGH, &options);
        session.unwrap().served().passthrough().unwrap_err();
    }

    #[test]
    fn rings_that_are_demanded_and_not_offered_are_an_error_and_otherwise_none() {
        let options = |io| SessionOptions { io, ..SessionOptions::default() };
        let (_wire, session) = begin(0, &options(FuseIo::Uring));
        assert!(matches!(session.err(), Some(SessionError::NoUring(NoUring::Off | NoUring::NotInKernel))));
        for io in [FuseIo::Auto, FuseIo::Device] {
            let (_wire, session) = begin(0, &options(io));
            assert!(session.unwrap().rings.is_none());
        }
    }

    #[test]
    fn a_kernel_that_is_later_begins_again_and_one_that_is_too_old_is_refused() {
        let (mut wire, device) = Wire::new();
        let version = |major: u32, minor: u32| [major.to_ne_bytes(), minor.to_ne_bytes()].concat();
        wire.send(about(opcode::INIT, 0), &[version(8, 1), vec![0; 56]].concat(), &[]);
        wire.send(about(opcode::INIT, 0), &init(0), &[]);
        Session::start(device, Arc::new(Silent), &SessionOptions::default()).unwrap();
        assert_eq!(wire.answer(2).body[..4], 7u32.to_ne_bytes());
        assert_eq!(wire.answer(4).body.len(), 64);

        let (mut wire, device) = Wire::new();
        wire.send(about(opcode::INIT, 0), &[version(7, 19), vec![0; 8]].concat(), &[]);
        let session = Session::start(device, Arc::new(Silent), &SessionOptions::default());
        assert!(session.err().unwrap().to_string().contains("older than Linux 5.8"));
        assert_eq!(wire.answer(2).error, libc::EPROTO);
    }

    #[test]
    fn a_first_message_that_is_no_beginning_is_refused() {
        for (opcode, body) in [(opcode::STATFS, vec![]), (opcode::INIT, vec![1, 2, 3])] {
            let (mut wire, device) = Wire::new();
            wire.send(about(opcode, 1), &body, &[]);
            assert!(Session::start(device, Arc::new(Silent), &SessionOptions::default()).is_err());
        }
    }

    #[test]
    fn the_kernel_is_told_over_a_descriptor_of_its_own() {
        let (mut wire, session) = begin(0, &SessionOptions::default());
        let notifier = session.unwrap().notifier();
        notifier.inval_entry(1, b"name").unwrap();
        notifier.inval_inode(5, 0, 0).unwrap();
        notifier.delete(1, 5, b"name").unwrap();
        assert_eq!(wire.notification().0, 3);
        assert_eq!(wire.notification(), (2, [5u64.to_ne_bytes(), [0; 8], [0; 8]].concat()));
        assert_eq!(wire.notification().0, 6);
        assert_eq!(notifier.inval_entry(1, b"a/b").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
