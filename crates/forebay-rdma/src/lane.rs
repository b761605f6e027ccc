//! A lane: a thread that drives one UCX worker, and the jobs that others give it.
//!
//! A UCX worker belongs to one thread, and so do its endpoints. Whoever wants something of them sends a job: a closure that
//! runs on the lane, and may start tasks there. The lane sleeps in epoll while there is nothing to do.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_memory::Pool;
use forebay_types::ByteSize;
use forebay_ucx::{Context, Library, Options, Registration, Resource, Worker};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;

use crate::RdmaError;
use crate::connection::Connection;

/// How long a lane that ends waits for operations under way. Their endpoints are closed by force before, so this passes
/// only when a card does not answer at all; their memory is then kept for ever.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// What a lane is to use.
#[derive(Clone, Debug)]
pub struct LaneOptions {
    /// The lane's name, for logs: the card's.
    pub name: String,
    /// UCX's names of devices, `mlx5_0:1` or `eth0`; none leaves the choice to UCX.
    pub devices: Vec<String>,
    /// UCX's names of transports; none leaves the choice to UCX.
    pub transports: Vec<String>,
    /// Memory that payload comes from, or goes to.
    pub pool: Pool,
    /// How much of it to register at start. The rest works too, but UCX registers it for each use, or copies.
    pub registered: ByteSize,
}

/// A job for the lane.
type Job = Box<dyn FnOnce(&Rc<Core>) + Send>;

/// A lane. Dropping it ends its thread, without waiting.
pub struct Lane {
    name: Arc<str>,
    jobs: mpsc::UnboundedSender<Job>,
    stop: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
    context: Context,
    registration: Registration,
}

/// What jobs and tasks of a lane work with.
pub(crate) struct Core {
    pub(crate) worker: Worker,
    pub(crate) registration: Registration,
    /// The clients' connections, by their endpoints, for whoever receives a reply.
    pub(crate) connections: RefCell<HashMap<usize, Rc<Connection>>>,
    pub(crate) stop: CancellationToken,
}

impl Lane {
    /// Starts a lane. Blocks while memory is registered.
    ///
    /// # Errors
    /// [`RdmaError`] when UCX cannot use the devices, or memory cannot be registered.
    pub fn start(library: &'static Library, options: LaneOptions) -> Result<Self, RdmaError> {
        let mut settings = Options::tuned();
        if !options.devices.is_empty() {
            settings = settings.devices(options.devices.iter().map(String::as_str));
        }
        if !options.transports.is_empty() {
            settings = settings.transports(options.transports.iter().map(String::as_str));
        }
        let context = Context::new(library, &settings)?;
        // In parts of this size, so that it can grow with the pool.
        let registration = Registration::growing(&context, &options.pool, options.registered);
        registration.grow_to(options.registered)?;
        let (jobs, queue) = mpsc::unbounded_channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let stop = CancellationToken::new();
        let thread = std::thread::Builder::new()
            .name(format!("rdma-{}", options.name))
            .spawn({
                let (context, registration, stop) = (context.clone(), registration.clone(), stop.clone());
                move || run(&context, registration, queue, stop, &ready)
            })
            .map_err(|error| RdmaError::Thread(error.to_string()))?;
        match is_ready.recv() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(RdmaError::Thread("it ended at once".to_owned())),
        }
        let (name, thread) = (options.name.into(), Mutex::new(Some(thread)));
        Ok(Self { name, jobs, stop, thread, context, registration })
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

    /// The memory that its card knows.
    #[must_use]
    pub fn registration(&self) -> &Registration {
        &self.registration
    }

    /// Has `job` run on the lane. False when the lane has ended.
    pub(crate) fn run(&self, job: impl FnOnce(&Rc<Core>) + Send + 'static) -> bool {
        self.jobs.send(Box::new(job)).is_ok()
    }

    /// The same, and waits for what it returns; `None` when the lane has ended.
    pub(crate) async fn ask<T: Send + 'static>(&self, job: impl FnOnce(&Rc<Core>) -> T + Send + 'static) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        // Whoever asked may have left.
        self.run(move |core| drop(answer.send(job(core))));
        answered.await.ok()
    }

    /// Ends every connection, waits until every operation has ended, and then for the thread.
    pub async fn close(&self) {
        self.stop.cancel();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // It ends by panic only when a job does, which has been reported.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The thread.
fn run(
    context: &Context,
    registration: Registration,
    mut queue: mpsc::UnboundedReceiver<Job>,
    stop: CancellationToken,
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
            let core = Rc::new(Core { worker, registration, connections, stop: stop.clone() });
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
        tokio::select! {
            () = stop.cancelled() => {}
            () = jobs => {}
            // Infallible, so what comes back is the reason why it could not go on.
            Err(error) = core.worker.drive() => tracing::error!(%error, "an RDMA lane has ended"),
        }
        queue.close();
        // Tasks that wait for the end of their connections see it now.
        if !core.worker.close(CLOSE_WITHIN).await {
            tracing::error!("operations of an RDMA lane did not end; their memory is kept");
        }
    });
    drop(local);
}
