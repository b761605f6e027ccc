//! An endpoint: one connection to one peer.
//!
//! Every endpoint uses error handling by peer: when the peer dies, its state becomes failed, and its operations end with
//! errors. Some of them only once the endpoint is closed, so an owner that sees a failure closes it; dropping the
//! [`Endpoint`] does so too. Closing is by force, and has ended when UCX says so *and* every operation's callback has come.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Poll, Waker};

use forebay_ucx_sys as sys;
use smallvec::SmallVec;

use crate::address::{Raw, from_storage};
use crate::error::{Error, Status};
use crate::operation::{Hold, Op, Payload, Sending, on_sent};
use crate::registration::Registration;
use crate::resource::{self, Resource};
use crate::text::printed;
use crate::worker::{Core, Worker, check};

/// The most lanes that an endpoint can have (`UCP_MAX_LANES`, and some).
const MAX_LANES: usize = 64;

/// What was sent while UCX was still connecting is sent when it has, in the form chosen for the transport of the connecting.
/// Before this minor version, which brought new protocols, it aborted the process where another transport cannot send that
/// form: seen with 1.13 over shared memory, with a rendezvous and with 300 kB sent eagerly.
const LATE_SENDS: u32 = 16;
/// What may be sent so early, in bytes: less than any transport's buffer.
const EARLY_DATA: usize = 4096;

/// A connection to a peer. Clones are the same one, which is closed by force when the last is dropped.
#[derive(Clone)]
pub struct Endpoint {
    owner: Rc<Owner>,
}

/// What clones of an [`Endpoint`] share.
pub(crate) struct Owner {
    pub(crate) state: Rc<EndpointState>,
    /// Dropped last: the state refers to its core.
    worker: Worker,
}

/// What the endpoint's operations need until they have ended, also after the endpoint is gone.
pub(crate) struct EndpointState {
    /// Outlives this: what holds a state is a part of the core, or holds the worker.
    core: NonNull<Core>,
    /// Null once closing has begun.
    pub(crate) handle: Cell<sys::ucp_ep_h>,
    failed: Cell<Option<Status>>,
    /// Whether a message has come by it, so that connecting is over.
    pub(crate) heard: Cell<bool>,
    /// Operations that have not ended, closing among them.
    pending: Cell<usize>,
    /// Operations that have.
    ended: Cell<u64>,
    waiting: RefCell<SmallVec<[Waker; 2]>>,
}

/// Which way a message is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The one that UCX thinks faster. Measured (ADR 0008): right over TCP; over shared memory a little early, which cannot be
    /// changed without harm to the other transports of the same context.
    #[default]
    Auto,
    /// Data with the message, copied on both sides.
    Eager,
    /// The message announces data that the receiver fetches into a buffer of its choice.
    Rendezvous,
}

impl Worker {
    /// Begins to connect to a listener at `address`, from the address `from` if given. Whether it works shows by the first
    /// operation, or by [`Endpoint::failed`].
    ///
    /// # Errors
    /// [`Error::Connect`] when no device of the context leads there.
    pub fn connect(&self, address: SocketAddr, from: Option<IpAddr>) -> Result<Endpoint, Error> {
        self.connect_as(address, from, sys::UCP_EP_PARAMS_FLAGS_CLIENT_SERVER)
    }

    /// The same, and sends the worker's client id ([`Worker::with_client_id`]), which the listener sees before it accepts
    /// ([`crate::ConnectionRequest::client_id`]).
    ///
    /// # Errors
    /// As [`Worker::connect`].
    pub fn connect_with_id(&self, address: SocketAddr, from: Option<IpAddr>) -> Result<Endpoint, Error> {
        let flags = sys::UCP_EP_PARAMS_FLAGS_CLIENT_SERVER | sys::UCP_EP_PARAMS_FLAGS_SEND_CLIENT_ID;
        self.connect_as(address, from, flags)
    }

    fn connect_as(
        &self,
        address: SocketAddr,
        from: Option<IpAddr>,
        flags: sys::ucp_ep_params_flags_field,
    ) -> Result<Endpoint, Error> {
        let peer = Raw::new(address);
        let local = from.map(|from| Raw::new(SocketAddr::new(from, 0)));
        // SAFETY: integers and nullable pointers, for which zero is a value; the mask says which of them count.
        let mut params: sys::ucp_ep_params_t = unsafe { std::mem::zeroed() };
        params.field_mask = (sys::UCP_EP_PARAM_FIELD_FLAGS | sys::UCP_EP_PARAM_FIELD_SOCK_ADDR).into();
        params.flags = flags;
        params.sockaddr = peer.as_ucs();
        if let Some(local) = &local {
            params.field_mask |= u64::from(sys::UCP_EP_PARAM_FIELD_LOCAL_SOCK_ADDR);
            params.local_sockaddr = local.as_ucs();
        }
        self.create_endpoint(params).map_err(|status| Error::Connect { address: address.to_string(), status })
    }

    pub(crate) fn create_endpoint(&self, mut params: sys::ucp_ep_params_t) -> Result<Endpoint, Status> {
        let core = self.core();
        params.field_mask |= u64::from(sys::UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | sys::UCP_EP_PARAM_FIELD_ERR_HANDLER);
        params.err_mode = sys::UCP_ERR_HANDLING_MODE_PEER;
        params.err_handler = sys::ucp_err_handler_t { cb: Some(on_failure), arg: NonNull::from(core).as_ptr().cast() };
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live worker, used by its thread; parameters and their addresses live for the call; the argument of the
        // error handler lives until the worker is destroyed.
        let status = unsafe { (core.ucp().ucp_ep_create)(core.handle, &params, &mut handle) };
        if status != sys::UCS_OK {
            return Err(Status(status));
        }
        let state = Rc::new(EndpointState {
            core: NonNull::from(core),
            handle: Cell::new(handle),
            failed: Cell::new(None),
            heard: Cell::new(false),
            pending: Cell::new(0),
            ended: Cell::new(0),
            waiting: RefCell::default(),
        });
        let owner = Rc::new(Owner { state, worker: self.clone() });
        core.endpoints.borrow_mut().insert(handle, Rc::downgrade(&owner));
        // Connecting needs progress.
        core.kick();
        Ok(Endpoint { owner })
    }
}

impl Endpoint {
    /// The worker that it is of.
    #[must_use]
    pub fn worker(&self) -> &Worker {
        &self.owner.worker
    }

    /// Sends the active message `id`: `header`, which is copied, and `data`, which is sent from where it is and held until
    /// the operation has ended. `registration`, if it covers the data, saves UCX from registering it, or copying.
    ///
    /// With UCX older than 1.16, the first message's data must be short, and no other may be sent before an answer to it has
    /// come: greet first. Otherwise this is refused with [`Error::TooEarly`].
    pub fn am_send(
        &self,
        id: u16,
        header: &[u8],
        data: impl Into<Payload>,
        registration: Option<&Registration>,
        protocol: Protocol,
    ) -> Sending {
        let core = self.owner.worker.core();
        if header.len() > core.max_header {
            return Sending::refused(Error::HeaderTooLong { length: header.len(), limit: core.max_header });
        }
        let handle = match self.usable(registration) {
            Ok(handle) => handle,
            Err(error) => return Sending::refused(error),
        };
        let data = data.into();
        let too_early = !self.owner.state.heard.get() && !core.context.shared.library.has(LATE_SENDS);
        if too_early && data.len() > EARLY_DATA {
            return Sending::refused(Error::TooEarly { length: data.len(), limit: EARLY_DATA });
        }
        let protocol = if too_early { Protocol::Eager } else { protocol };
        // With a reply endpoint, so that the receiver knows which peer a message is from.
        let flags = sys::UCP_AM_SEND_FLAG_REPLY
            | match protocol {
                Protocol::Auto => 0,
                Protocol::Eager => sys::UCP_AM_SEND_FLAG_EAGER,
                Protocol::Rendezvous => sys::UCP_AM_SEND_FLAG_RNDV,
            };
        self.start(Hold::Send(data), |op, pointer| {
            let buffers = op.buffers();
            let kept = op.keep_header(header);
            let mut params = buffers.params(pointer, registration);
            params.op_attr_mask |= sys::UCP_OP_ATTR_FIELD_FLAGS;
            params.flags = flags;
            params.cb.send = Some(on_sent);
            let (base, count) = (buffers.base.cast_const(), buffers.count);
            // SAFETY: a live endpoint; header, data and parameters belong to the op, which lives until UCX has called
            // back or answered that it will not.
            unsafe { (core.ucp().ucp_am_send_nbx)(handle, id.into(), kept, header.len(), base, count, &params) }
        })
    }

    /// Ends when everything that was sent and put before has arrived at the peer's memory, or the endpoint has failed.
    pub fn flush(&self) -> Sending {
        let handle = match self.usable(None) {
            Ok(handle) => handle,
            Err(error) => return Sending::refused(error),
        };
        let core = self.owner.worker.core();
        self.start(Hold::Nothing, |op, pointer| {
            let mut params = op.buffers().params(pointer, None);
            params.cb.send = Some(on_sent);
            // SAFETY: a live endpoint, and parameters that live for the call.
            unsafe { (core.ucp().ucp_ep_flush_nbx)(handle, &params) }
        })
    }

    /// Closes the endpoint, and ends when every operation on it has ended and UCX has let go of it. Unless by `force`, what
    /// was sent is flushed first, which a hung peer can hold up for ever: give it a deadline, and force after that. Dropping
    /// the future leaves an endpoint that is not closed before the flush, one that goes on closing after.
    pub async fn close(&self, force: bool) {
        if !force && self.failure().is_none() {
            // A failure ends what was to be flushed.
            let _ = self.flush().await;
        }
        let state = &self.owner.state;
        self.owner.worker.core().close(state);
        state.until(|| state.has_ended().then_some(())).await;
    }

    /// A number that no other endpoint of this process has for as long as a clone of this one lives.
    #[must_use]
    pub fn key(&self) -> usize {
        Rc::as_ptr(&self.owner).addr()
    }

    /// Whether closing has begun.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.owner.state.handle.get().is_null()
    }

    /// How the connection broke, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<Status> {
        self.owner.state.failed.get()
    }

    /// Ends when the connection breaks, with how; for one that is closed by this side, when that has ended, with
    /// [`Status::CANCELED`]. Does not keep the endpoint open.
    pub fn failed(&self) -> impl Future<Output = Status> + use<> {
        let state = Rc::clone(&self.owner.state);
        let core_lives = self.owner.worker.clone();
        async move {
            let closed = || state.has_ended().then_some(Status::CANCELED);
            let status = state.until(|| state.failed.get().or_else(closed)).await;
            drop(core_lives);
            status
        }
    }

    /// How many operations on it have not ended.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.owner.state.pending.get()
    }

    /// How many operations on it have ended.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.owner.state.ended.get()
    }

    /// The transports and devices that it uses. Right after connecting these may still be those of the connecting itself:
    /// ask after the first message has come back.
    ///
    /// # Errors
    /// [`Error::Closed`], and [`Error::Worker`] when UCX does not say.
    pub fn lanes(&self) -> Result<Vec<Resource>, Error> {
        let handle = self.owner.state.open_handle()?;
        let core = self.owner.worker.core();
        let mut lanes = if core.context.shared.library.has(14) {
            self.query_lanes(handle)?
        } else {
            // SAFETY: a live endpoint, and an open stream.
            resource::of_endpoint(&printed(|stream| unsafe { (core.ucp().ucp_ep_print_info)(handle, stream) }))
        };
        lanes.sort();
        lanes.dedup();
        Ok(lanes)
    }

    fn query_lanes(&self, handle: sys::ucp_ep_h) -> Result<Vec<Resource>, Error> {
        let empty = sys::ucp_transport_entry_t { transport_name: std::ptr::null(), device_name: std::ptr::null() };
        let mut entries = [empty; MAX_LANES];
        // SAFETY: integers and nullable pointers, for which zero is a value; the mask says which are asked for.
        let mut attributes: sys::ucp_ep_attr_t = unsafe { std::mem::zeroed() };
        attributes.field_mask = sys::UCP_EP_ATTR_FIELD_TRANSPORTS.into();
        attributes.transports = sys::ucp_transports_t {
            entries: entries.as_mut_ptr(),
            num_entries: MAX_LANES as u32,
            entry_size: size_of::<sys::ucp_transport_entry_t>(),
        };
        // SAFETY: a live endpoint and a place for the answer.
        let status = unsafe { (self.owner.worker.core().ucp().ucp_ep_query)(handle, &mut attributes) };
        check(status, "describe an endpoint")?;
        let text = |name: *const std::ffi::c_char| {
            // SAFETY: UCX's names are C strings that live as long as the endpoint, which is held.
            (!name.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned())
        };
        let known = &entries[..MAX_LANES.min(attributes.transports.num_entries as usize)];
        let lanes = known
            .iter()
            .map(|entry| Some(Resource { transport: text(entry.transport_name)?, device: text(entry.device_name)? }));
        // The lane of the connection manager carries no data, and has no device.
        Ok(lanes.flatten().filter(|lane| !lane.device.is_empty()).collect())
    }

    /// The addresses of both ends of the connection that set it up, this side's first.
    ///
    /// # Errors
    /// [`Error::Closed`], and [`Error::Worker`] when UCX does not say.
    pub fn addresses(&self) -> Result<(Option<SocketAddr>, Option<SocketAddr>), Error> {
        let handle = self.owner.state.open_handle()?;
        // SAFETY: integers and nullable pointers, for which zero is a value; the mask says which are asked for.
        let mut attributes: sys::ucp_ep_attr_t = unsafe { std::mem::zeroed() };
        attributes.field_mask = (sys::UCP_EP_ATTR_FIELD_LOCAL_SOCKADDR | sys::UCP_EP_ATTR_FIELD_REMOTE_SOCKADDR).into();
        // SAFETY: a live endpoint and a place for the answer.
        let status = unsafe { (self.owner.worker.core().ucp().ucp_ep_query)(handle, &mut attributes) };
        check(status, "describe an endpoint")?;
        Ok((from_storage(&attributes.local_sockaddr), from_storage(&attributes.remote_sockaddr)))
    }

    pub(crate) fn from_owner(owner: Rc<Owner>) -> Self {
        Self { owner }
    }

    pub(crate) fn state(&self) -> &Rc<EndpointState> {
        &self.owner.state
    }

    /// The handle for an operation that uses `registration`.
    pub(crate) fn usable(&self, registration: Option<&Registration>) -> Result<sys::ucp_ep_h, Error> {
        if let Some(status) = self.owner.state.failed.get() {
            return Err(Error::Ended(status));
        }
        if registration.is_some_and(|registration| !registration.context.is(&self.owner.worker.core().context)) {
            return Err(Error::NotRegistered);
        }
        self.owner.state.open_handle()
    }

    /// Begins an operation that sends, has `post` give it to UCX, and takes UCX's answer.
    pub(crate) fn start(&self, hold: Hold, post: impl FnOnce(&Op, NonNull<Op>) -> sys::ucs_status_ptr_t) -> Sending {
        let core = self.owner.worker.core();
        let pointer = core.begin(Some(&self.owner.state), hold);
        // SAFETY: just begun, and not freed while its ticket is out.
        let answer = post(unsafe { pointer.as_ref() }, pointer);
        core.posted(pointer, answer, 0);
        Sending(Ok(Core::ticket(&self.owner.worker, pointer)))
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = &self.owner.state;
        f.debug_struct("Endpoint").field("failed", &state.failed.get()).field("pending", &state.pending.get()).finish()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.worker.core().close(&self.state);
    }
}

impl EndpointState {
    fn core(&self) -> &Core {
        // SAFETY: see the field.
        unsafe { self.core.as_ref() }
    }

    fn open_handle(&self) -> Result<sys::ucp_ep_h, Error> {
        let handle = self.handle.get();
        if handle.is_null() { Err(Error::Closed) } else { Ok(handle) }
    }

    /// Closes by force; no effect the second time. Not from within progress: UCX may be using what this frees.
    pub(crate) fn start_close(self: &Rc<Self>) {
        let handle = self.handle.replace(std::ptr::null_mut());
        if handle.is_null() {
            return;
        }
        let core = self.core();
        core.endpoints.borrow_mut().remove(&handle);
        let pointer = core.begin(Some(self), Hold::Nothing);
        // SAFETY: just begun.
        let op = unsafe { pointer.as_ref() };
        let mut params = op.buffers().params(pointer, None);
        params.op_attr_mask |= sys::UCP_OP_ATTR_FIELD_FLAGS;
        params.flags = sys::UCP_EP_CLOSE_FLAG_FORCE;
        params.cb.send = Some(on_sent);
        // SAFETY: a live endpoint, closed once, since the handle was taken; not from within progress.
        let answer = unsafe { (core.ucp().ucp_ep_close_nbx)(handle, &params) };
        core.posted(pointer, answer, 0);
        op.forgo_ticket(pointer);
        // Also when UCX is done at once: the endpoint's other operations end with the next progress.
        core.kick();
    }

    /// Whether it is closed, and every operation on it has ended.
    fn has_ended(&self) -> bool {
        self.handle.get().is_null() && self.pending.get() == 0
    }

    pub(crate) fn operation_began(&self) {
        self.pending.set(self.pending.get() + 1);
    }

    pub(crate) fn operation_ended(&self) {
        self.pending.set(self.pending.get() - 1);
        self.ended.set(self.ended.get() + 1);
        if self.has_ended() {
            self.wake();
        }
    }

    fn fail(&self, status: Status) {
        self.failed.set(Some(self.failed.get().unwrap_or(status)));
        self.wake();
    }

    fn wake(&self) {
        let waiting = self.waiting.take();
        if !waiting.is_empty() {
            self.core().woke.set(true);
        }
        waiting.into_iter().for_each(Waker::wake);
    }

    async fn until<T>(&self, mut reached: impl FnMut() -> Option<T>) -> T {
        std::future::poll_fn(|cx| match reached() {
            Some(answer) => Poll::Ready(answer),
            None => {
                let mut waiting = self.waiting.borrow_mut();
                if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                    waiting.push(cx.waker().clone());
                }
                Poll::Pending
            }
        })
        .await
    }
}

/// UCX's callback for a connection that broke.
unsafe extern "C" fn on_failure(core: *mut c_void, handle: sys::ucp_ep_h, status: sys::ucs_status_t) {
    // SAFETY: the argument that endpoints are created with is their core, which lives until the worker is destroyed.
    let core = unsafe { &*core.cast_const().cast::<Core>() };
    if !core.is_mine() {
        tracing::error!("UCX reported a broken connection in a thread of its own, which it must not");
        std::process::abort();
    }
    let told = catch_unwind(AssertUnwindSafe(|| {
        // By its handle, and not by an address given at the start: the endpoint may be gone.
        let owner = core.endpoints.borrow().get(&handle).and_then(std::rc::Weak::upgrade);
        if let Some(owner) = owner {
            owner.state.fail(Status(status));
        }
    }));
    if told.is_err() {
        tracing::error!("a panic while a broken UCX connection was reported: a waker is broken");
    }
}
