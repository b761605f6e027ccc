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
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_identity::random_number;
use forebay_locks::Mutex;
use forebay_locks::heartbeat::Asked;
use forebay_memory::Pool;
use forebay_types::ByteSize;
use forebay_ucx::{Context, Library, LockLimit, Registration, Resource, Spin, Worker};
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::RdmaError;
use crate::caller_memory::{CallerMemory, CallerPool};
use crate::connection::Connection;
use crate::context::{alone, context};
use crate::gauges::Gauges;
use crate::growing::grow;
use crate::options::IoThreadOptions;
use crate::trace::Trace;
use crate::ucx::lone::Parts;
use crate::ucx::worker_pool::WorkerPool;
use crate::vanishing;

/// How long an I/O thread that ends waits for operations under way. Their endpoints are closed by force before, so this passes
/// only when a card does not answer at all; their memory is then kept for ever.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);
/// How long an I/O thread that is dropped holds up the thread that drops it.
const DROP_WITHIN: Duration = Duration::from_secs(2);
/// The most memory that is registered in one piece: a second's worth with small pages (0.8 ms for each MiB that was not
/// touched yet), so that a store of a TiB can say how far it is, and a process that is told to end does so. An extent
/// never lies in two.
const MAX_PART: ByteSize = ByteSize::gib(1);

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
    operations: Operations,
    client_id: NonZeroU64,
    /// What threads drive that wait for answers themselves.
    workers: Arc<WorkerPool>,
    /// Its signs of life, once it runs.
    heartbeat: Mutex<Option<Asked>>,
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
    /// Connections that a server on it did not accept, for nobody had admitted them.
    pub unadmitted: u64,
    /// Messages that came as those of a connection and did not show its pass. They were dropped.
    pub forged: u64,
    /// Connections that a server on it did not accept, for whatever reason.
    pub refused: u64,
    /// Connections that a server on it had no place for: refused, or closed for another one before they had said hello.
    pub no_room: u64,
    /// Reads by clients on it of workers' memory, without these workers' help. Over verbs alone.
    pub one_sided: u64,
    /// Such reads that were not believed, and asked the worker.
    pub one_sided_refused: u64,
    /// Bytes of payload that came to clients on it in messages, and were copied. Over verbs alone, where a card has no memory windows.
    pub in_messages: u64,
}

/// What UCX was asked to do and has not done yet: known once the thread has its worker.
type Operations = Arc<OnceLock<Arc<AtomicUsize>>>;

/// What jobs and tasks of an I/O thread work with.
pub(crate) struct Core {
    pub(crate) worker: Worker,
    pub(crate) registration: Registration,
    pub(crate) caller_memory: Arc<CallerMemory>,
    /// The clients' connections, by their endpoints, for the handler of replies.
    connections: RefCell<HashMap<usize, Rc<Connection>>>,
    pub(crate) stop: CancellationToken,
    /// What the connections of clients tell servers, if they have a pass.
    pub(crate) client_id: NonZeroU64,
    pub(crate) gauges: Arc<Gauges>,
}

impl Core {
    /// On the thread that is to drive its worker.
    fn new(
        context: &Context,
        client_id: NonZeroU64,
        (registration, caller_memory): (Registration, Arc<CallerMemory>),
        stop: &CancellationToken,
        (gauges, operations): (Arc<Gauges>, Operations),
    ) -> Result<Rc<Self>, RdmaError> {
        let worker = Worker::with_client_id(context, Some(client_id))?;
        // Set once, by the thread.
        let _ = operations.set(worker.operations_gauge());
        let (connections, stop) = (RefCell::default(), stop.clone());
        let core = Rc::new(Self { worker, registration, caller_memory, connections, stop, client_id, gauges });
        Connection::receive_replies(&core)?;
        Ok(core)
    }

    /// A client's connection, by the key of its endpoint.
    pub(crate) fn connection(&self, key: usize) -> Option<Rc<Connection>> {
        self.connections.borrow().get(&key).map(Rc::clone)
    }

    /// Has replies find `connection`.
    pub(crate) fn remember(&self, connection: &Rc<Connection>) {
        self.connections.borrow_mut().insert(connection.endpoint.key(), Rc::clone(connection));
        self.gauges.count_connection();
    }

    pub(crate) fn forget(&self, key: usize) {
        let known = self.connections.borrow_mut().remove(&key);
        if known.is_some() {
            self.gauges.discount_connection();
        }
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
        let client_id = random_number().ok().and_then(NonZeroU64::new);
        let client_id = client_id.ok_or_else(|| RdmaError::Thread("the system gives no random numbers".to_owned()))?;
        // In parts of this size, so that it can grow with the pool.
        let part = options.registered.min(MAX_PART);
        let registration = Registration::growing(&context, &options.pool, part);
        let (caller_memory, gauges) = (Arc::<CallerMemory>::default(), Arc::<Gauges>::default());
        let workers = WorkerPool::new(Parts {
            context: context.clone(),
            client_id,
            registration: registration.clone(),
            caller_memory: Arc::clone(&caller_memory),
            gauges: Arc::clone(&gauges),
        });
        let (jobs, queue) = mpsc::unbounded_channel();
        let mut io_thread = Self {
            name: options.name.as_str().into(),
            jobs,
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
            thread: Mutex::new(None),
            context,
            registration,
            caller_memory,
            pool: options.pool,
            spin: Arc::new(Spin::new(options.spin)),
            trace: options.trace,
            gauges,
            operations: Operations::default(),
            client_id,
            workers,
            heartbeat: Mutex::new(None),
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
                let (spin, caller_memory) = (Arc::clone(&io_thread.spin), Arc::clone(&io_thread.caller_memory));
                let gauges = (Arc::clone(&io_thread.gauges), Arc::clone(&io_thread.operations));
                let ended = io_thread.ended.clone().drop_guard();
                move || {
                    let made = || Core::new(&context, client_id, (registration, caller_memory), &stop, gauges);
                    run(made, queue, spin, &stop, &ready);
                    drop(ended);
                }
            })
            .map_err(|error| RdmaError::Thread(error.to_string()))?;
        *io_thread.thread.get_mut() = Some(thread);
        match is_ready.recv() {
            Ok(Ok(())) => {
                *io_thread.heartbeat.get_mut() = Some(heartbeat(format!("rdma-{}", io_thread.name), &io_thread.jobs));
                Ok(io_thread)
            }
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
        let trace = self.trace.as_deref();
        grow(&self.name, size, trace, given_up, |goes_on| self.registration.grow_with(size, goes_on))
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

    /// What its connections to servers tell these, if they have a pass; these let it in once for each.
    #[must_use]
    pub fn client_id(&self) -> NonZeroU64 {
        self.client_id
    }

    /// Answers that threads have received themselves which waited for them ([`ClientOptions::drive`]): it had no part in them.
    ///
    /// [`ClientOptions::drive`]: crate::ClientOptions::drive
    #[must_use]
    pub fn driven(&self) -> u64 {
        self.workers.driven()
    }

    pub(crate) fn workers(&self) -> &Arc<WorkerPool> {
        &self.workers
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
            operations_in_flight: self.operations.get().map_or(0, |gauge| gauge.load(Ordering::Relaxed)),
            waits: self.pool.occupancy().waits,
            unadmitted: self.gauges.unadmitted.load(Ordering::Relaxed),
            forged: self.gauges.forged.load(Ordering::Relaxed),
            refused: self.gauges.refused.load(Ordering::Relaxed),
            no_room: self.gauges.no_room.load(Ordering::Relaxed),
            one_sided: 0,
            one_sided_refused: 0,
            in_messages: 0,
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

/// The signs of life of the thread that runs `jobs`, which does not keep it from ending.
fn heartbeat(name: String, jobs: &mpsc::UnboundedSender<Job>) -> Asked {
    let jobs = jobs.downgrade();
    Asked::new(name, move |answer| {
        jobs.upgrade().is_some_and(|jobs| jobs.send(Box::new(move |_: &Rc<Core>| answer.give())).is_ok())
    })
}

/// The thread.
fn run(
    core: impl FnOnce() -> Result<Rc<Core>, RdmaError>,
    mut queue: mpsc::UnboundedReceiver<Job>,
    spin: Arc<Spin>,
    stop: &CancellationToken,
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
        let core = match core() {
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
