//! A mount, from the kernel's first request to the last.
//!
//! ```text
//! start: read INIT ─▶ make rings, if they are wanted and offered ─▶ answer INIT ─▶ try what may not be permitted
//! serve: threads on /dev/fuse ─▶ rings go live ─▶ … the kernel ends the mount … ─▶ every thread is joined
//! ```
//!
//! A session over `/dev/fuse` may also pause, and go on in this process, or in another one, which begins with what INIT agreed
//! on here ([`Session::resume`]).
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
use crate::channel::pause::{Pause, Stopped};
use crate::channel::pipe::{MAX, Pipe};
use crate::channel::ring::{NoUring, Prepared, RingOptions, Rings};
use crate::errno::Errno;
use crate::handover::{Adopted, Pauser};
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

/// A mount whose first request was answered. [`Session::serve`] serves it; dropped, it ends the mount, unless another process has it.
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
    pause: Arc<Pause>,
    /// What threads read, of those whose descriptors were made before they read.
    readers: Vec<Reader>,
}

/// What one thread reads.
#[derive(Clone)]
struct Reader {
    descriptor: Arc<Descriptor>,
    /// What it busy-polls with.
    awake: Option<Arc<BusyPoll>>,
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

        let connection = Adopted::sharing(descriptor, negotiated).map_err(once_more)?;
        let session = Self::resume(connection, dispatch, options)?;
        Ok(Self { rings, why_not, ..session })
    }

    /// Goes on with a connection that this process has from another one. `dispatch` gets all requests once [`Session::run`] is called.
    /// They come over `/dev/fuse`.
    ///
    /// # Errors
    /// [`SessionError::Io`] when there are too many descriptors.
    pub fn resume(connection: Adopted, dispatch: Arc<D>, options: &SessionOptions) -> Result<Self, SessionError> {
        let Adopted { descriptor, negotiated, backings } = connection;
        let passthrough = NoPassthrough::unless_tried(&backings, &negotiated, options.passthrough);
        Ok(Self {
            notifier: Notifier::new(descriptor.another().map_err(once_more)?),
            backings,
            served: Arc::new(Served::new(negotiated.kernel, passthrough)),
            descriptor,
            dispatch,
            threads: options.threads.max(1),
            clone_fd: options.clone_fd,
            turn: Arc::new(Turn::new(options.spin)),
            splice: options.splice,
            negotiated,
            rings: None,
            why_not: None,
            pause: Arc::default(),
            readers: Vec::new(),
        })
    }

    /// Makes the descriptors that requests will be read from, and gives duplicates of them: the connection itself, and its clones. What
    /// was read from one and not answered ends with its last duplicate. To be called before [`Session::serve`].
    ///
    /// # Errors
    /// `EOPNOTSUPP` where requests come over rings, which belong to this process; when there are too many descriptors.
    pub fn descriptors(&mut self) -> io::Result<(OwnedFd, Vec<OwnedFd>)> {
        if self.rings.is_some() {
            return Err(rustix::io::Errno::OPNOTSUPP.into());
        }
        self.readers = (0..self.threads).map(|number| self.reader(number)).collect();
        let connection = self.descriptor.as_fd().try_clone_to_owned()?;
        let is_clone = |descriptor: &&Arc<Descriptor>| !Arc::ptr_eq(descriptor, &self.descriptor);
        let own = self.readers.iter().map(|reader| &reader.descriptor).filter(is_clone);
        let awake = self.readers.iter().filter_map(|reader| Some(reader.awake.as_ref()?.descriptor()));
        let clones = own.chain(awake).map(|descriptor| descriptor.as_fd().try_clone_to_owned());
        Ok((connection, clones.collect::<io::Result<_>>()?))
    }

    /// What the thread of this number reads: the first one the connection itself.
    fn reader(&self, number: usize) -> Reader {
        let own = (number > 0 && self.clone_fd).then(|| self.descriptor.with_own_queue());
        let descriptor = match own {
            Some(Ok(own)) => Arc::new(own),
            Some(Err(error)) => {
                debug!(%error, "the threads share one descriptor");
                Arc::clone(&self.descriptor)
            }
            None => Arc::clone(&self.descriptor),
        };
        // With rings, short reads do not come this way.
        let may = self.rings.is_none() && self.clone_fd;
        let awake = may.then(|| BusyPoll::new(&self.turn, &descriptor)).flatten().map(Arc::new);
        Reader { descriptor, awake }
    }

    /// What was agreed on with the kernel.
    #[must_use]
    pub fn agreed(&self) -> Negotiated {
        self.negotiated
    }

    /// Has this session pause, from any thread.
    #[must_use]
    pub fn pauser(&self) -> Pauser {
        Pauser::new(Arc::clone(&self.pause), Arc::clone(&self.served), &self.descriptor)
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

    /// Serves until the kernel ends the mount; then all threads have ended, and so has the session.
    ///
    /// # Errors
    /// When a thread could not go on serving. [`Dispatch::ended`] was told at that time.
    pub fn run(mut self) -> io::Result<()> {
        self.serve().map(drop)
    }

    /// Another process serves the mount from now on: nothing is said to the kernel any more.
    pub fn leave(self) {
        // What is dropped later is the other process's.
        self.backings.end();
    }

    /// Serves until the kernel ends the mount, or the session pauses; then all threads have ended. After a pause it may be called again.
    ///
    /// # Errors
    /// When a thread could not go on serving. [`Dispatch::ended`] was told at that time.
    pub fn serve(&mut self) -> io::Result<Stopped> {
        let ended = Arc::new(Ended { told: AtomicBool::new(false), dispatch: Arc::clone(&self.dispatch) });
        let mut threads = DeviceThreads { threads: Vec::new(), own_descriptors: self.clone_fd };
        // For what a ring does not carry, one is enough.
        let at_first = if self.rings.is_some() { 1 } else { self.threads };
        let mut outcome = threads.spawn(at_first, self, &ended);

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
                    outcome = threads.spawn(self.threads.saturating_sub(at_first), self, &ended);
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
        let stopped = outcome.and(joined);
        if !matches!(stopped, Ok(Stopped::Paused)) {
            self.backings.end();
        }
        stopped
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
    threads: Vec<JoinHandle<io::Result<Stopped>>>,
    /// Whether each has a descriptor of its own, all but the first.
    own_descriptors: bool,
}

impl DeviceThreads {
    /// Starts `count` more. An error only when there is none at all.
    fn spawn<D: Dispatch>(&mut self, count: usize, session: &Session<D>, ended: &Arc<Ended<D>>) -> io::Result<()> {
        for _ in 0..count {
            let number = self.threads.len();
            let reader = session.readers.get(number).cloned();
            let Reader { descriptor, awake } = reader.unwrap_or_else(|| session.reader(number));
            self.own_descriptors &= number == 0 || !Arc::ptr_eq(&descriptor, &session.descriptor);
            let (dispatch, served, ended) =
                (Arc::clone(&session.dispatch), Arc::clone(&session.served), Arc::clone(ended));
            let max_write = session.negotiated.max_write;
            let pipe = (session.splice && number < MAX).then(|| Pipe::to(&*descriptor)).flatten();
            let pause = Arc::clone(&session.pause);
            let work = move || {
                batch::wake_gently();
                let reading = pause.enter();
                let (awake, pipe) = (awake.as_deref(), pipe.as_ref());
                let outcome = device::serve(&descriptor, awake, pipe, &*dispatch, max_write, &served, &pause);
                drop(reading);
                if !matches!(outcome, Ok(Stopped::Paused)) {
                    ended.tell(outcome.as_ref().err());
                }
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

    /// Waits for all of them, also after one that failed. Paused: none has seen the end of the mount.
    fn join(self) -> io::Result<Stopped> {
        let mut stopped = Ok(Stopped::Paused);
        for thread in self.threads {
            let ended = thread.join();
            let ended = ended.unwrap_or_else(|_| Err(io::Error::other("a thread that serves the mount panicked")));
            stopped = match (stopped, ended) {
                (Err(error), _) | (Ok(_), Err(error)) => Err(error),
                (Ok(Stopped::Paused), Ok(Stopped::Paused)) => Ok(Stopped::Paused),
                (Ok(_), Ok(_)) => Ok(Stopped::Ended),
            };
        }
        stopped
    }
}

fn once_more(error: io::Error) -> SessionError {
    SessionError::Io("open /dev/fuse once more", error)
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
mod tests;
