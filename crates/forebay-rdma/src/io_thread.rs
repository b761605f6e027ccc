//! An I/O thread, which drives one UCX worker, and the jobs that other threads give it.
//!
//! A UCX worker belongs to one thread, and so do its endpoints. Other threads that want something of them send a job: a closure
//! that runs on the I/O thread, and may start tasks there. The I/O thread busy-polls for a moment while that is cheaper than to be
//! woken ([`forebay_ucx::Spin`]), and then sleeps in epoll; on EFA, which signals no events, in naps of a millisecond.
//!
//! Its owner ends it by [`IoThread::close`], which waits for it. Dropping the last handle ends it too, and waits for a
//! while where waiting holds up no other task: outside of any runtime.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_memory::Pool;
use forebay_types::ByteSize;
use forebay_ucx::{Context, Fabric, Library, LockLimit, Options, Registration, Resource, Spin, Worker};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::RdmaError;
use crate::caller_memory::{CallerMemory, CallerPool};
use crate::connection::Connection;
use crate::options::FabricOptions;
use crate::trace::Trace;
use crate::{sockets, vanishing};

/// How long an I/O thread that ends waits for operations under way. Their endpoints are closed by force before, so this passes
/// only when a card does not answer at all; their memory is then kept for ever.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);
/// How long an I/O thread that is dropped holds up the thread that drops it.
const DROP_WITHIN: Duration = Duration::from_secs(2);
/// How long an I/O thread busy-polls unless told otherwise. Measured over shared memory on two cores: 20 µs does not last until
/// a peer that sleeps has answered, so that neither end begins.
const SPIN: Duration = Duration::from_micros(50);
/// The most memory that is registered in one piece: a second's worth with small pages (0.8 ms for each MiB that was not
/// touched yet), so that a store of a TiB can say how far it is, and a process that is told to end does so. An extent
/// never lies in two.
const MAX_PART: ByteSize = ByteSize::gib(1);
/// How often it says so.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// What an I/O thread is to use.
#[derive(Clone, Debug)]
pub struct IoThreadOptions {
    /// The I/O thread's name, for logs: the card's.
    pub name: String,
    /// UCX's names of devices, `mlx5_0:1` or `eth0`; none leaves the choice to UCX.
    pub devices: Vec<String>,
    /// UCX's names of transports; none leaves the choice to UCX.
    pub transports: Vec<String>,
    /// What is asked of the fabric.
    pub fabric: FabricOptions,
    /// Memory that payload comes from, or goes to.
    pub pool: Pool,
    /// How much of it to register at start. The rest works too, but UCX registers it for each use, or copies.
    pub registered: ByteSize,
    /// How long its thread, and a caller whose call is the only one, ask for the next message before they sleep; zero is not
    /// at all. See [`forebay_ucx::Spin`] for when they sleep at once all the same.
    pub spin: Duration,
    /// Where registering memory is recorded.
    pub trace: Option<Arc<Trace>>,
    /// Once this is cancelled, no caller waits for the thread any more: it does not start, and registers nothing more.
    pub given_up: CancellationToken,
}

impl IoThreadOptions {
    /// An I/O thread called `name` over what UCX chooses, with `registered` of `pool` registered at start.
    #[must_use]
    pub fn new(name: impl Into<String>, pool: Pool, registered: ByteSize) -> Self {
        let (devices, transports, fabric) = (Vec::new(), Vec::new(), FabricOptions::default());
        let given_up = CancellationToken::new();
        Self { name: name.into(), devices, transports, fabric, pool, registered, spin: SPIN, trace: None, given_up }
    }
}

/// A job for the I/O thread.
type Job = Box<dyn FnOnce(&Rc<Core>) + Send>;

/// A handle on an I/O thread.
pub struct IoThread {
    name: Arc<str>,
    jobs: mpsc::UnboundedSender<Job>,
    stop: CancellationToken,
    /// Cancelled when the thread has nothing more to do.
    ended: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
    context: Context,
    registration: Registration,
    caller_memory: Arc<CallerMemory>,
    pool: Pool,
    spin: Arc<Spin>,
    trace: Option<Arc<Trace>>,
    gauges: Arc<Gauges>,
}

/// What an I/O thread is doing, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoThreadStats {
    /// Memory that the card may access.
    pub registered: ByteSize,
    /// How much of it is memory of callers ([`IoThread::register`]).
    pub caller_memory: ByteSize,
    /// Replies that the card fetched into that.
    pub fetched_into_caller_memory: u64,
    /// How often registering has failed: what is beyond costs a copy, or registering for each use.
    pub registration_failures: u64,
    /// Connections of clients and of servers on this I/O thread.
    pub connections: usize,
    /// What UCX was asked to do and has not done yet.
    pub operations_in_flight: usize,
    /// Operations that had to wait for a buffer of the pool, which other I/O threads may share.
    pub waits: u64,
}

/// What the thread counts and others read.
#[derive(Debug, Default)]
struct Gauges {
    connections: AtomicUsize,
    /// Known once the thread has its worker.
    operations: std::sync::OnceLock<Arc<AtomicUsize>>,
}

/// What jobs and tasks of an I/O thread work with.
pub(crate) struct Core {
    pub(crate) worker: Worker,
    pub(crate) registration: Registration,
    pub(crate) caller_memory: Arc<CallerMemory>,
    /// The clients' connections, by their endpoints, for the handler of replies.
    connections: RefCell<HashMap<usize, Rc<Connection>>>,
    pub(crate) stop: CancellationToken,
    gauges: Arc<Gauges>,
}

impl Core {
    /// A client's connection, by the key of its endpoint.
    pub(crate) fn connection(&self, key: usize) -> Option<Rc<Connection>> {
        self.connections.borrow().get(&key).map(Rc::clone)
    }

    /// Has replies find `connection`.
    pub(crate) fn remember(&self, connection: &Rc<Connection>) {
        self.connections.borrow_mut().insert(connection.endpoint.key(), Rc::clone(connection));
        self.count_connection();
    }

    pub(crate) fn forget(&self, key: usize) {
        let known = self.connections.borrow_mut().remove(&key);
        if known.is_some() {
            self.discount_connection();
        }
    }

    pub(crate) fn count_connection(&self) {
        self.gauges.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn discount_connection(&self) {
        self.gauges.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl IoThread {
    /// Starts an I/O thread. Blocks while memory is registered, and tells the log how far that is.
    ///
    /// # Errors
    /// [`RdmaError`] when UCX cannot use the devices, or memory cannot be registered.
    pub fn start(library: &'static Library, options: IoThreadOptions) -> Result<Self, RdmaError> {
        vanishing::retried(|| Self::start_once(library, options.clone()))
    }

    fn start_once(library: &'static Library, options: IoThreadOptions) -> Result<Self, RdmaError> {
        let context = context(library, &options)?;
        if !context.resources().iter().any(Resource::carries_messages) {
            return Err(alone(&options, context.resources()));
        }
        if context.resources().iter().any(Resource::is_rdma) {
            // Now, and not after a minute of registering.
            LockLimit::now().check(options.registered)?;
        }
        // In parts of this size, so that it can grow with the pool.
        let part = options.registered.min(MAX_PART);
        let registration = Registration::growing(&context, &options.pool, part);
        let (jobs, queue) = mpsc::unbounded_channel();
        let mut io_thread = Self {
            name: options.name.as_str().into(),
            jobs,
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
            thread: Mutex::new(None),
            context,
            registration,
            caller_memory: Arc::default(),
            pool: options.pool,
            spin: Arc::new(Spin::new(options.spin)),
            trace: options.trace,
            gauges: Arc::default(),
        };
        io_thread.grow_for(options.registered, &options.given_up)?;
        if options.given_up.is_cancelled() {
            return Err(RdmaError::Thread("nobody waits for it any more".to_owned()));
        }
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new()
            .name(format!("rdma-{}", options.name))
            .spawn({
                let (context, registration, stop) =
                    (io_thread.context.clone(), io_thread.registration.clone(), io_thread.stop.clone());
                let (spin, gauges, caller_memory) =
                    (Arc::clone(&io_thread.spin), Arc::clone(&io_thread.gauges), Arc::clone(&io_thread.caller_memory));
                let ended = io_thread.ended.clone().drop_guard();
                move || {
                    run(&context, (registration, caller_memory), queue, spin, stop, gauges, &ready);
                    drop(ended);
                }
            })
            .map_err(|error| RdmaError::Thread(error.to_string()))?;
        *io_thread.thread.get_mut() = Some(thread);
        match is_ready.recv() {
            Ok(Ok(())) => Ok(io_thread),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(RdmaError::Thread("it ended at once".to_owned())),
        }
    }

    /// Registers the first `size` bytes of the pool at least, and tells the log how far that is. Blocks.
    ///
    /// # Errors
    /// [`RdmaError::Ucx`]. What was registered stays so.
    pub fn grow_to(&self, size: ByteSize) -> Result<(), RdmaError> {
        self.grow_for(size, &self.stop)
    }

    fn grow_for(&self, size: ByteSize, given_up: &CancellationToken) -> Result<(), RdmaError> {
        if size <= self.registration.size() {
            return Ok(());
        }
        let start = Instant::now();
        let mut told = start;
        let outcome = self.registration.grow_with(size, |done| {
            if told.elapsed() >= PROGRESS_INTERVAL {
                told = Instant::now();
                tracing::info!(card = &*self.name, %done, total = %size, "registering memory for RDMA");
            }
            !given_up.is_cancelled()
        });
        if let Some(trace) = &self.trace {
            trace.registered(start.elapsed(), outcome.is_ok());
        }
        if told > start && outcome.is_ok() {
            tracing::info!(card = &*self.name, total = %size, took = ?start.elapsed(), "memory is registered for RDMA");
        }
        outcome.map_err(RdmaError::from)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The devices and transports that it may use.
    #[must_use]
    pub fn resources(&self) -> &[Resource] {
        self.context.resources()
    }

    /// The UCX that it runs.
    #[must_use]
    pub fn library(&self) -> &'static Library {
        self.context.library()
    }

    /// The memory that is registered with its card.
    #[must_use]
    pub fn registration(&self) -> &Registration {
        &self.registration
    }

    /// Callers may pass pieces of `pool` from now on, for replies to land in. Its frames are registered as they are used
    /// ([`IoThread::register_frame`]). It stays mapped until the I/O thread has ended.
    pub fn register(&self, pool: &Pool) {
        self.caller_memory.add(&self.context, pool);
    }

    /// Whether all of `bytes` is registered with its card, so that it fetches replies into them by itself.
    #[must_use]
    pub fn is_registered(&self, bytes: &[u8]) -> bool {
        self.registration.covers(bytes) || self.caller_memory.covers(bytes)
    }

    /// Whether more memory of callers can be registered: the I/O thread has not ended, and nothing was refused.
    #[must_use]
    pub fn can_register(&self) -> bool {
        !self.ended.is_cancelled() && !self.caller_memory.is_refused()
    }

    /// Registers the frame of caller memory ([`IoThread::register`]) that `bytes` lie in. Does not wait for it.
    pub fn register_frame(&self, bytes: &[u8]) {
        if let Some((pool, frame)) = self.caller_memory.find(bytes)
            && pool.request(frame)
        {
            self.register_requested(pool);
        }
    }

    #[cold]
    fn register_requested(&self, pool: Arc<CallerPool>) {
        let (context, name, trace) = (self.context.clone(), Arc::clone(&self.name), self.trace.clone());
        // UCX's own words for it name no remedy.
        let may_lock = move |size| match context.resources().iter().any(Resource::is_rdma) {
            true => LockLimit::now().check(size),
            false => Ok(()),
        };
        // Not on the I/O thread, which it would hold up. One that has ended needs nothing registered.
        self.run(move |_| {
            drop(tokio::task::spawn_blocking(move || pool.register(&name, may_lock, trace.as_deref())));
        });
    }

    pub(crate) fn spin(&self) -> &Spin {
        &self.spin
    }

    /// What it is doing.
    #[must_use]
    pub fn stats(&self) -> IoThreadStats {
        let caller_memory = self.caller_memory.registered();
        IoThreadStats {
            registered: ByteSize::bytes(self.registration.size().as_u64() + caller_memory.as_u64()),
            caller_memory,
            fetched_into_caller_memory: self.caller_memory.fetched(),
            registration_failures: self.registration.failures() + self.caller_memory.failures(),
            connections: self.gauges.connections.load(Ordering::Relaxed),
            operations_in_flight: self.gauges.operations.get().map_or(0, |gauge| gauge.load(Ordering::Relaxed)),
            waits: self.pool.occupancy().waits,
        }
    }

    /// Has `job` run on the I/O thread. False when the I/O thread has ended.
    pub(crate) fn run(&self, job: impl FnOnce(&Rc<Core>) + Send + 'static) -> bool {
        self.jobs.send(Box::new(job)).is_ok()
    }

    /// The same, and waits for what it returns; `None` when the I/O thread has ended.
    pub(crate) async fn ask<T: Send + 'static>(&self, job: impl FnOnce(&Rc<Core>) -> T + Send + 'static) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        // The caller may have left.
        self.run(move |core| drop(answer.send(job(core))));
        answered.await.ok()
    }

    /// Ends every connection, waits until every operation has ended, and then for the thread. Every caller waits.
    pub async fn close(&self) {
        self.stop.cancel();
        self.ended.cancelled().await;
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // It has nothing more to do. It ends by panic only when a job does, which has been reported.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

impl Drop for IoThread {
    /// Ends the thread. Waits for it, but no longer than 2 s, and neither in a runtime, whose other tasks would stand
    /// still, nor on the thread itself. The thread ends all the same, within 10 s.
    fn drop(&mut self) {
        self.stop.cancel();
        let Some(thread) = self.thread.get_mut().take() else { return };
        let is_this = thread.thread().id() == std::thread::current().id();
        if is_this || tokio::runtime::Handle::try_current().is_ok() {
            return;
        }
        let deadline = Instant::now() + DROP_WITHIN;
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() {
            // As in `close`.
            let _ = thread.join();
        }
    }
}

/// A context for what `options` name, with the settings that their fabric needs.
fn context(library: &'static Library, options: &IoThreadOptions) -> Result<Context, RdmaError> {
    let mut settings = Options::tuned();
    if !options.devices.is_empty() {
        settings = settings.devices(options.devices.iter().map(String::as_str));
    }
    if !options.transports.is_empty() {
        settings = settings.transports(options.transports.iter().map(String::as_str));
    }
    for (key, value) in options.fabric.settings() {
        settings = settings.set(key, &value);
    }
    let version = library.version();
    if let Some((key, value)) = sockets::setting(version, &options.transports) {
        settings = settings.set(key, value);
    }
    let (context, fabric) = Fabric::context(library, settings)?;
    sockets::check(fabric, version, &options.transports)?;
    if fabric == Fabric::Efa {
        tracing::info!(card = options.name, "the card is EFA: it is polled, and payload is sent eagerly");
    }
    Ok(context)
}

/// No peer can be reached over these `resources`.
fn alone(options: &IoThreadOptions, resources: &[Resource]) -> RdmaError {
    let named = |names: &[String], otherwise: &str| match names {
        [] => otherwise.to_owned(),
        names => names.join(","),
    };
    let (transports, devices) = (named(&options.transports, "its transports"), named(&options.devices, "all devices"));
    let found: Vec<_> = resources.iter().map(ToString::to_string).collect();
    RdmaError::Alone { settings: format!("{transports} on {devices}"), found: named(&found, "nothing") }
}

/// The thread.
fn run(
    context: &Context,
    (registration, caller_memory): (Registration, Arc<CallerMemory>),
    mut queue: mpsc::UnboundedReceiver<Job>,
    spin: Arc<Spin>,
    stop: CancellationToken,
    gauges: Arc<Gauges>,
    ready: &std::sync::mpsc::Sender<Result<(), RdmaError>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = ready.send(Err(RdmaError::Thread(error.to_string())));
            return;
        }
    };
    // Tasks are dropped before the worker is: they hold endpoints.
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let made = Worker::new(context).map_err(RdmaError::from).and_then(|worker| {
            let connections = RefCell::default();
            // Set once, by the thread.
            let _ = gauges.operations.set(worker.operations_gauge());
            let core = Rc::new(Core { worker, registration, caller_memory, connections, stop: stop.clone(), gauges });
            Connection::receive_replies(&core)?;
            Ok(core)
        });
        let core = match made {
            Ok(core) => core,
            Err(error) => {
                let _ = ready.send(Err(error));
                return;
            }
        };
        // The starter waits for this.
        let _ = ready.send(Ok(()));
        let jobs = async {
            while let Some(job) = queue.recv().await {
                job(&core);
            }
        };
        // A task of its own: when it lets others run, the runtime looks at the operating system now and then only; for the
        // future that it blocks on it does so each time.
        let worker = core.worker.clone();
        let mut driver =
            AbortOnDropHandle::new(tokio::task::spawn_local(async move { worker.drive_with(&spin).await }));
        tokio::select! {
            () = stop.cancelled() => {}
            () = jobs => {}
            // Infallible, so what comes back is the reason why it could not go on.
            Ok(Err(error)) = &mut driver => tracing::error!(%error, "an RDMA I/O thread has ended"),
        }
        queue.close();
        driver.abort();
        let _ = driver.await;
        // Tasks that wait for the end of their connections see it now.
        if !core.worker.close(CLOSE_WITHIN).await {
            tracing::error!("operations of an RDMA I/O thread did not end; their memory is kept");
        }
    });
    drop(local);
}
