//! An I/O thread over verbs: it drives one card, and runs the jobs that other threads give it.

use std::convert::Infallible;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_identity::random_number;
use forebay_locks::Mutex;
use forebay_locks::heartbeat::Asked;
use forebay_types::ByteSize;
use forebay_ucx::{LockLimit, Spin};
use forebay_verbs::{Device, Domain, Library, ReadableBoard, Registration};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, LocalSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::RdmaError;
use crate::gauges::Gauges;
use crate::growing::grow;
use crate::trace::Trace;
use crate::verbs::core::Core;
use crate::verbs::options::{Fabric, VerbsOptions, has_windows};

/// How long a thread that ends waits for its connections; after this they are destroyed.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(1);
/// How long a thread that is dropped holds up the thread that drops it.
const DROP_WITHIN: Duration = Duration::from_secs(2);
/// The most memory that is registered in one piece, as over UCX.
const MAX_PART: ByteSize = ByteSize::gib(1);

/// A job for the thread.
type Job = Box<dyn FnOnce(&Rc<Core>) + Send>;

/// A handle on an I/O thread.
pub struct VerbsThread {
    name: Arc<str>,
    jobs: mpsc::UnboundedSender<Job>,
    stop: CancellationToken,
    /// Cancelled when the thread has nothing more to do.
    ended: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
    registration: Arc<Registration>,
    spin: Arc<Spin>,
    trace: Option<Arc<Trace>>,
    gauges: Arc<Gauges>,
    client_id: NonZeroU64,
    /// Its signs of life, once it runs.
    heartbeat: Mutex<Option<Asked>>,
}

/// What an I/O thread over verbs is doing, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbsThreadStats {
    /// Memory that the card may access.
    pub registered: ByteSize,
    /// How often registering has failed.
    pub registration_failures: u64,
    /// Connections of clients and of servers on this I/O thread.
    pub connections: usize,
    /// Connections that a server on it did not accept, for nobody had admitted them.
    pub unadmitted: u64,
    /// Messages that did not show the pass of their connection. They were dropped.
    pub forged: u64,
    /// Connections that a server on it did not accept, for whatever reason.
    pub refused: u64,
    /// Connections that a server on it had no place for: refused, or closed for another one before they had said hello.
    pub no_room: u64,
    /// Reads by clients on it of workers' memory, without these workers' help.
    pub one_sided: u64,
    /// Such reads that were not believed, and asked the worker: what they read was evicted, or corrupt.
    pub one_sided_refused: u64,
    /// Bytes of payload that came to clients on it in messages, and were copied: the card has no memory windows.
    pub in_messages: u64,
}

impl VerbsThread {
    /// Starts an I/O thread. Blocks while memory is registered, and tells the log how far that is.
    ///
    /// # Errors
    /// [`RdmaError`] when there is no such card, or memory cannot be registered.
    pub fn start(library: Library, options: VerbsOptions) -> Result<Self, RdmaError> {
        let device = Device::open(library, &options.device)?;
        LockLimit::now().check(options.registered)?;
        let client_id = random_number().ok().and_then(NonZeroU64::new);
        let client_id = client_id.ok_or_else(|| RdmaError::Thread("the system gives no random numbers".to_owned()))?;
        let part = options.registered.min(MAX_PART);
        let fabric = Fabric::new(&options, &device)?;
        let has_windows = has_windows(&options, &device);
        let domain = Domain::new(device)?;
        // What cannot be shown is of no use there.
        let board = options.pool.board().filter(|_| has_windows);
        let board = board.map(|board| ReadableBoard::new(&domain, board)).transpose()?;
        let registration = Arc::new(Registration::growing(&domain, &options.pool, part));
        let (jobs, queue) = mpsc::unbounded_channel();
        let this = Self {
            name: options.name.as_str().into(),
            jobs,
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
            thread: Mutex::new(None),
            registration,
            spin: Arc::new(Spin::new(options.spin)),
            trace: options.trace.clone(),
            gauges: Arc::default(),
            client_id,
            heartbeat: Mutex::new(None),
        };
        this.grow_for(options.registered, &options.given_up)?;
        if options.given_up.is_cancelled() {
            return Err(RdmaError::Thread("nobody waits for it any more".to_owned()));
        }
        this.spawn(library, (&options, fabric), board, queue)?;
        *this.heartbeat.lock() = Some(heartbeat(format!("verbs-{}", this.name), &this.jobs));
        Ok(this)
    }

    fn spawn(
        &self,
        library: Library,
        (options, fabric): (&VerbsOptions, Fabric),
        board: Option<Arc<ReadableBoard>>,
        queue: mpsc::UnboundedReceiver<Job>,
    ) -> Result<(), RdmaError> {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (registration, stop, spin) = (Arc::clone(&self.registration), self.stop.clone(), Arc::clone(&self.spin));
        let (gauges, client_id) = (Arc::clone(&self.gauges), self.client_id);
        let ended = self.ended.clone().drop_guard();
        let thread = std::thread::Builder::new().name(format!("verbs-{}", options.name)).spawn(move || {
            let core = || Core::new(library, (registration, board), fabric, client_id, &stop, gauges);
            run(core, queue, spin, &stop, &ready);
            drop(ended);
        });
        *self.thread.lock() = Some(thread.map_err(|error| RdmaError::Thread(error.to_string()))?);
        is_ready.recv().unwrap_or_else(|_| Err(RdmaError::Thread("it ended at once".to_owned())))
    }

    /// Registers the first `size` bytes of the pool at least, and tells the log how far that is. Blocks.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`]. What was registered stays so.
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

    /// The memory that is registered with its card.
    #[must_use]
    pub fn registration(&self) -> &Registration {
        &self.registration
    }

    /// What its connections to servers tell these, if they have a pass.
    #[must_use]
    pub fn client_id(&self) -> NonZeroU64 {
        self.client_id
    }

    /// What it is doing.
    #[must_use]
    pub fn stats(&self) -> VerbsThreadStats {
        VerbsThreadStats {
            registered: self.registration.size(),
            registration_failures: self.registration.failures(),
            connections: self.gauges.connections.load(Ordering::Relaxed),
            unadmitted: self.gauges.unadmitted.load(Ordering::Relaxed),
            forged: self.gauges.forged.load(Ordering::Relaxed),
            refused: self.gauges.refused.load(Ordering::Relaxed),
            no_room: self.gauges.no_room.load(Ordering::Relaxed),
            one_sided: self.gauges.one_sided.load(Ordering::Relaxed),
            one_sided_refused: self.gauges.one_sided_refused.load(Ordering::Relaxed),
            in_messages: self.gauges.in_messages.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn spin(&self) -> &Spin {
        &self.spin
    }

    /// Has `job` run on the I/O thread. False when that has ended.
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

    /// Ends every connection, waits until nothing of them is under way, and then for the thread. Every caller waits.
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

impl Drop for VerbsThread {
    /// Ends the thread. Waits for it, but no longer than 2 s, and neither in a runtime, whose other tasks would stand still, nor on
    /// the thread itself. The thread ends all the same.
    fn drop(&mut self) {
        self.stop.cancel();
        let Some(thread) = self.thread.get_mut().take() else { return };
        let is_this = thread.thread().id() == std::thread::current().id();
        if is_this || tokio::runtime::Handle::try_current().is_ok() {
            return;
        }
        let deadline = Instant::now() + DROP_WITHIN;
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
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
    core: impl FnOnce() -> Result<Rc<Core>, forebay_verbs::Error>,
    queue: mpsc::UnboundedReceiver<Job>,
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
    // Tasks are dropped before the core is: they hold connections.
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        match core() {
            Ok(core) => {
                // The starter waits for this.
                let _ = ready.send(Ok(()));
                work(&core, queue, spin, stop).await;
            }
            Err(error) => drop(ready.send(Err(error.into()))),
        }
    });
    drop(local);
}

/// Runs jobs until it is told to stop, and then ends the connections.
async fn work(core: &Rc<Core>, mut queue: mpsc::UnboundedReceiver<Job>, spin: Arc<Spin>, stop: &CancellationToken) {
    let driven = Rc::clone(core);
    let driver = tokio::task::spawn_local(async move { driven.drive(&spin).await });
    let followed = Rc::clone(core);
    let follower = tokio::task::spawn_local(async move { followed.follow_events().await });
    let (mut driver, mut follower) = (AbortOnDropHandle::new(driver), AbortOnDropHandle::new(follower));
    let jobs = async {
        while let Some(job) = queue.recv().await {
            job(core);
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = jobs => {}
        ended = &mut driver => tracing::error!(why = why(ended), "an RDMA I/O thread has ended"),
        ended = &mut follower => tracing::error!(why = why(ended), "an RDMA I/O thread has ended"),
    }
    queue.close();
    // Whoever has a connection, or waits for one, sees it now.
    stop.cancel();
    core.links.fail_all("its I/O thread has ended");
    let ended = async {
        while !core.links.is_empty() {
            tokio::time::sleep(LOOK).await;
        }
    };
    if tokio::time::timeout(CLOSE_WITHIN, ended).await.is_err() {
        tracing::error!("connections of an RDMA I/O thread did not end; they are destroyed");
    }
    core.links.destroy_all();
}

/// Why a task that goes on for ever has ended: its card or rdma_cm cannot be asked any more, or it panicked, which has been reported.
fn why(ended: Result<Result<Infallible, forebay_verbs::Error>, JoinError>) -> String {
    match ended {
        Ok(Ok(never)) => match never {},
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panicked_has_ended_for_a_reason_as_one_that_failed() {
        let failed = forebay_verbs::Error::Refused { what: "poll a completion queue", reason: "gone".to_owned() };
        assert_eq!(why(Ok(Err(failed))), "cannot poll a completion queue: gone");
        let panicking =
            async { if std::hint::black_box(true) { panic!("for the test") } else { std::future::pending().await } };
        let ended = tokio::spawn(panicking).await;
        assert!(why(ended).contains("panicked"));
    }
}
