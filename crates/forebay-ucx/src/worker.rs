//! A worker: UCX's progress engine for one thread.
//!
//! Nothing moves unless [`Worker::progress`] is called. Handlers run and operations end within that call.
//! [`Worker::drive`] does it for a current-thread tokio runtime.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use forebay_ucx_sys as sys;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::context::Context;
use crate::driving::{NAP, ROUNDS, let_others_run};
use crate::endpoint::{EndpointState, Owner};
use crate::error::{Error, Status};
use crate::listener::ListenerState;
use crate::message::Handler;
use crate::operation::Op;

/// How long a worker that is dropped waits for its operations to end.
const LAST_OPERATIONS: Duration = Duration::from_secs(5);

/// A worker. Clones are the same one; it belongs to the thread that made it.
#[derive(Clone)]
pub struct Worker {
    shared: Rc<WorkerShared>,
}

/// Owns the core. Apart from it, so that callbacks can use the core while this is being dropped.
pub(crate) struct WorkerShared {
    core: NonNull<Core>,
}

/// Everything of a worker that callbacks touch.
pub(crate) struct Core {
    pub(crate) context: Context,
    pub(crate) handle: sys::ucp_worker_h,
    /// The thread that uses it: for good, unless it is that of a [`crate::LoneWorker`].
    thread: Cell<ThreadId>,
    pub(crate) max_header: usize,
    pub(crate) events: Option<RawFd>,
    /// Whether `ucp_worker_progress` is running, so that code of handlers does not run it again, nor destroy what it uses.
    inside: Cell<bool>,
    /// Whether progress woke tasks, which should run before the thread sleeps.
    pub(crate) woke: Cell<bool>,
    /// Whether an operation was started that progress has not seen.
    pub(crate) kicked: Cell<bool>,
    pub(crate) driver: RefCell<Option<Waker>>,
    pub(crate) driving: Cell<bool>,
    /// Operations that have not ended. Written by the worker's thread only.
    pub(crate) live: Arc<AtomicUsize>,
    pub(crate) free: RefCell<Vec<NonNull<Op>>>,
    /// By the number of their message.
    pub(crate) handlers: RefCell<Vec<Rc<Handler>>>,
    /// What owns which of UCX's endpoints: what a callback brings may be of an endpoint that was closed meanwhile.
    pub(crate) endpoints: RefCell<HashMap<sys::ucp_ep_h, Weak<Owner>, foldhash::fast::RandomState>>,
    closing: RefCell<Vec<Rc<EndpointState>>>,
    ending: RefCell<Vec<Rc<ListenerState>>>,
    /// The descriptor of the message that is being delivered, and whether its handler has dropped it.
    pub(crate) delivering: Cell<*mut std::ffi::c_void>,
    pub(crate) declined: Cell<bool>,
    this: RefCell<Weak<WorkerShared>>,
}

impl Worker {
    /// A worker for this thread.
    ///
    /// # Errors
    /// [`Error::Worker`].
    pub fn new(context: &Context) -> Result<Self, Error> {
        Self::with_client_id(context, None)
    }

    /// The same, with what its connections tell listeners of it, if they are told to ([`Worker::connect_with_id`]). UCX has one
    /// for each worker.
    ///
    /// # Errors
    /// [`Error::Worker`].
    pub fn with_client_id(context: &Context, client_id: Option<NonZeroU64>) -> Result<Self, Error> {
        Self::create(context, client_id, sys::UCS_THREAD_MODE_SINGLE)
    }

    pub(crate) fn create(
        context: &Context,
        client_id: Option<NonZeroU64>,
        thread_mode: sys::ucs_thread_mode_t,
    ) -> Result<Self, Error> {
        let ucp = context.shared.library.ucp();
        // SAFETY: integers and nullable pointers, for which zero is a value; the mask says which of them count.
        let mut params: sys::ucp_worker_params_t = unsafe { std::mem::zeroed() };
        params.field_mask = sys::UCP_WORKER_PARAM_FIELD_THREAD_MODE.into();
        params.thread_mode = thread_mode;
        if let Some(client_id) = client_id {
            params.field_mask |= u64::from(sys::UCP_WORKER_PARAM_FIELD_CLIENT_ID);
            params.client_id = client_id.get();
        }
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live context, valid parameters, and a place for the answer.
        let status = unsafe { (ucp.ucp_worker_create)(context.shared.handle, &params, &mut handle) };
        check(status, "create a worker")?;
        // Owned from here on, so that a failure below destroys the worker.
        let mut core = Box::new(Core::new(context.clone(), handle));
        core.max_header = core.query_max_header()?;
        if context.shared.event_driven {
            let mut events = -1;
            // SAFETY: a live worker and a place for the answer.
            let status = unsafe { (ucp.ucp_worker_get_efd)(handle, &mut events) };
            check(status, "give a worker's event descriptor")?;
            core.events = Some(events);
        }
        let shared = Rc::new(WorkerShared { core: NonNull::from(Box::leak(core)) });
        *shared.core().this.borrow_mut() = Rc::downgrade(&shared);
        let worker = Self { shared };
        worker.drop_messages()?;
        Ok(worker)
    }

    /// The context that it is of.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.core().context
    }

    /// The longest header that an active message may have, in bytes.
    #[must_use]
    pub fn max_header(&self) -> usize {
        self.core().max_header
    }

    /// How many operations have not ended.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.core().live()
    }

    /// The same number, to be read from another thread.
    #[must_use]
    pub fn operations_gauge(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.core().live)
    }

    /// Does what there is to do: moves bytes, runs handlers, ends operations. Zero when there was nothing, or when called
    /// by a handler.
    pub fn progress(&self) -> u32 {
        self.core().progress()
    }

    /// Makes the event descriptor readable at the next event. False when there may be something to do already: progress,
    /// and try again.
    ///
    /// # Errors
    /// [`Error::Worker`], also for a worker of a polled context.
    pub fn arm(&self) -> Result<bool, Error> {
        let core = self.core();
        // SAFETY: a live worker, used by its thread.
        match unsafe { (core.ucp().ucp_worker_arm)(core.handle) } {
            sys::UCS_ERR_BUSY => Ok(false),
            status => check(status, "arm a worker").map(|()| true),
        }
    }

    /// The descriptor that becomes readable after [`Worker::arm`]; `None` in a polled context.
    #[must_use]
    pub fn event_descriptor(&self) -> Option<RawFd> {
        self.core().events
    }

    /// Blocks the thread until there may be something to do, or `limit` has passed: for a thread without a runtime, which
    /// progresses the worker itself. Of a polled context, lets other threads run.
    ///
    /// # Errors
    /// [`Error::Worker`] and [`Error::Events`] when events cannot be armed, or waited for.
    pub fn sleep(&self, limit: Duration) -> Result<(), Error> {
        let Some(events) = self.core().events else {
            std::thread::yield_now();
            return Ok(());
        };
        if !self.arm()? {
            return Ok(());
        }
        // SAFETY: UCX keeps the descriptor open until the worker is destroyed, and the worker is borrowed for longer than this.
        let events = unsafe { BorrowedFd::borrow_raw(events) };
        // Limits are cut to 34 years: the system does not count without end.
        let limit = Timespec { tv_sec: limit.as_secs().min(1 << 30) as i64, tv_nsec: limit.subsec_nanos().into() };
        match rustix::event::poll(&mut [PollFd::new(&events, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(Error::Events(error.to_string())),
        }
    }

    /// Closes every endpoint by force, forgets the handlers, and waits until every operation has ended. False when some had
    /// not within `deadline`: their memory is kept.
    pub async fn close(&self, deadline: Duration) -> bool {
        let core = self.core();
        let owners: Vec<_> = core.endpoints.borrow().values().filter_map(Weak::upgrade).collect();
        for owner in &owners {
            core.close(&owner.state);
        }
        drop(owners);
        core.forget_handlers();
        let start = Instant::now();
        let mut rounds = 0;
        while core.live() > 0 {
            if start.elapsed() > deadline {
                return false;
            }
            self.progress();
            rounds += 1;
            if rounds < ROUNDS { let_others_run().await } else { tokio::time::sleep(NAP).await }
        }
        true
    }

    pub(crate) fn core(&self) -> &Core {
        self.shared.core()
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Worker({} operations)", self.operations())
    }
}

impl Core {
    fn new(context: Context, handle: sys::ucp_worker_h) -> Self {
        Self {
            context,
            handle,
            thread: Cell::new(std::thread::current().id()),
            max_header: 0,
            events: None,
            inside: Cell::new(false),
            woke: Cell::new(false),
            kicked: Cell::new(false),
            driver: RefCell::default(),
            driving: Cell::new(false),
            live: Arc::default(),
            free: RefCell::default(),
            handlers: RefCell::default(),
            endpoints: RefCell::default(),
            closing: RefCell::default(),
            ending: RefCell::default(),
            delivering: Cell::new(std::ptr::null_mut()),
            declined: Cell::new(false),
            this: RefCell::default(),
        }
    }

    pub(crate) fn ucp(&self) -> &'static sys::Ucp {
        self.context.shared.library.ucp()
    }

    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Notes that one more operation has begun, or one has ended. Without an atomic addition, since one thread writes.
    pub(crate) fn set_live(&self, count: usize) {
        self.live.store(count, Ordering::Relaxed);
    }

    /// The worker that owns this; `None` while it is being dropped.
    pub(crate) fn worker(&self) -> Option<Worker> {
        self.this.borrow().upgrade().map(|shared| Worker { shared })
    }

    /// Whether the caller is the worker's thread. UCX runs callbacks in it, by contract; were it otherwise, nothing here
    /// could be touched.
    pub(crate) fn is_mine(&self) -> bool {
        std::thread::current().id() == self.thread.get()
    }

    /// From here on the calling thread uses the worker, and with it all that is of it.
    pub(crate) fn adopt(&self) {
        self.thread.set(std::thread::current().id());
    }

    /// Lets go of what handlers hold. Their messages are dropped from now on.
    pub(crate) fn forget_handlers(&self) {
        for handler in self.handlers.borrow().iter() {
            handler.forget();
        }
    }

    fn query_max_header(&self) -> Result<usize, Error> {
        // SAFETY: integers and nullable pointers, for which zero is a value; the mask says which are asked for.
        let mut attributes: sys::ucp_worker_attr_t = unsafe { std::mem::zeroed() };
        attributes.field_mask = sys::UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER.into();
        // SAFETY: a live worker and a place for the answer.
        let status = unsafe { (self.ucp().ucp_worker_query)(self.handle, &mut attributes) };
        check(status, "describe a worker").map(|()| attributes.max_am_header)
    }

    fn progress(&self) -> u32 {
        if self.inside.replace(true) {
            return 0;
        }
        // SAFETY: a live worker, used by its thread, and not from within itself.
        let events = unsafe { (self.ucp().ucp_worker_progress)(self.handle) };
        self.inside.set(false);
        self.finish_deferred();
        events
    }

    /// What handlers wanted to end while UCX was in the middle of using it.
    fn finish_deferred(&self) {
        // One at a time: ending one may defer another. The borrow ends with the statement.
        loop {
            let closing = self.closing.borrow_mut().pop();
            let Some(endpoint) = closing else { break };
            endpoint.start_close();
        }
        loop {
            let ending = self.ending.borrow_mut().pop();
            let Some(listener) = ending else { break };
            listener.destroy();
        }
    }

    /// Closes an endpoint by force, now or right after the progress that is under way.
    pub(crate) fn close(&self, endpoint: &Rc<EndpointState>) {
        if self.inside.get() {
            self.closing.borrow_mut().push(Rc::clone(endpoint));
        } else {
            endpoint.start_close();
        }
    }

    /// Ends a listener, now or right after the progress that is under way.
    pub(crate) fn end_listener(&self, listener: &Rc<ListenerState>) {
        if self.inside.get() {
            self.ending.borrow_mut().push(Rc::clone(listener));
        } else {
            listener.destroy();
        }
    }

    /// Has the thread that drives the worker make progress soon.
    pub(crate) fn kick(&self) {
        if self.inside.get() {
            return;
        }
        self.kicked.set(true);
        let driver = self.driver.take();
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // SAFETY: the last use of the worker; see `WorkerShared::drop`, and `Worker::new` for one that was never shared.
        unsafe { (self.ucp().ucp_worker_destroy)(self.handle) };
        self.free_ops();
    }
}

impl WorkerShared {
    fn core(&self) -> &Core {
        // SAFETY: the core lives until `drop`, and is only ever shared.
        unsafe { self.core.as_ref() }
    }
}

impl Drop for WorkerShared {
    fn drop(&mut self) {
        let core = self.core();
        core.finish_deferred();
        let deadline = Instant::now() + LAST_OPERATIONS;
        while core.live() > 0 && Instant::now() < deadline {
            if core.progress() == 0 {
                std::thread::yield_now();
            }
        }
        if core.live() > 0 {
            // Without the callbacks of these operations, it is not known whether a NIC still uses their memory. So that
            // memory is never freed, and neither is the worker, with everything that it holds.
            tracing::error!(operations = core.live(), "UCX operations did not end; their memory stays occupied");
            return;
        }
        // SAFETY: it came from `Box::leak`, and nothing refers to it any more: endpoints, listeners, tickets and
        // messages hold the worker, and no operation is pending.
        drop(unsafe { Box::from_raw(self.core.as_ptr()) });
    }
}

pub(crate) fn check(status: sys::ucs_status_t, what: &'static str) -> Result<(), Error> {
    if status == sys::UCS_OK { Ok(()) } else { Err(Error::Worker { what, status: Status(status) }) }
}
