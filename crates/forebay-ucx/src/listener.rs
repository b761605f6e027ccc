//! A listener: where peers connect to.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Poll, Waker};

use forebay_ucx_sys as sys;

use crate::address::{Raw, from_storage};
use crate::endpoint::Endpoint;
use crate::error::{Error, Status};
use crate::worker::{Core, Worker, check};

/// Connections that wait to be accepted; more are refused.
const BACKLOG: usize = 1024;

/// Listens until it is dropped, with every connection request of it.
#[derive(Debug)]
pub struct Listener {
    owner: Rc<Owner>,
    address: SocketAddr,
}

struct Owner {
    state: Rc<ListenerState>,
    /// Dropped last: the state refers to its core.
    worker: Worker,
}

pub(crate) struct ListenerState {
    /// Outlives this: what holds a state is a part of the core, or holds the worker.
    core: NonNull<Core>,
    handle: Cell<sys::ucp_listener_h>,
    requests: RefCell<VecDeque<Requested>>,
    waiting: RefCell<Option<Waker>>,
}

/// What UCX says of a peer that wants to connect.
struct Requested {
    handle: sys::ucp_conn_request_h,
    peer: Option<SocketAddr>,
    client_id: Option<NonZeroU64>,
}

/// A peer that wants to connect. Dropping it refuses.
#[derive(Debug)]
pub struct ConnectionRequest {
    owner: Rc<Owner>,
    /// Null once it is accepted or refused.
    handle: sys::ucp_conn_request_h,
    peer: Option<SocketAddr>,
    client_id: Option<NonZeroU64>,
}

impl Worker {
    /// Listens on `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// [`Error::PortBusy`], [`Error::Listen`].
    pub fn listen(&self, address: SocketAddr) -> Result<Listener, Error> {
        let core = self.core();
        let state = Rc::new(ListenerState {
            core: NonNull::from(core),
            handle: Cell::new(std::ptr::null_mut()),
            requests: RefCell::default(),
            waiting: RefCell::default(),
        });
        let raw = Raw::new(address);
        // SAFETY: integers and nullable pointers, for which zero is a value; the mask says which of them count.
        let mut params: sys::ucp_listener_params_t = unsafe { std::mem::zeroed() };
        params.field_mask =
            (sys::UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | sys::UCP_LISTENER_PARAM_FIELD_CONN_HANDLER).into();
        params.sockaddr = raw.as_ucs();
        params.conn_handler =
            sys::ucp_listener_conn_handler_t { cb: Some(on_request), arg: Rc::as_ptr(&state).cast_mut().cast() };
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live worker, used by its thread; the address lives for the call, and the handler's argument until the
        // listener is destroyed.
        match unsafe { (core.ucp().ucp_listener_create)(core.handle, &params, &mut handle) } {
            sys::UCS_OK => state.handle.set(handle),
            sys::UCS_ERR_BUSY => return Err(Error::PortBusy { address }),
            status => return Err(Error::Listen { address, status: Status(status) }),
        }
        let owner = Rc::new(Owner { state, worker: self.clone() });
        // SAFETY: integers and a socket address, for which zero is a value; the mask says what is asked for.
        let mut attributes: sys::ucp_listener_attr_t = unsafe { std::mem::zeroed() };
        attributes.field_mask = sys::UCP_LISTENER_ATTR_FIELD_SOCKADDR.into();
        // SAFETY: a live listener and a place for the answer.
        let status = unsafe { (core.ucp().ucp_listener_query)(handle, &mut attributes) };
        check(status, "describe a listener")?;
        let address = from_storage(&attributes.sockaddr).unwrap_or(address);
        Ok(Listener { owner, address })
    }
}

impl Listener {
    /// Where it listens, with the port that it has.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next peer that wants to connect. For one task at a time.
    pub async fn accept(&self) -> ConnectionRequest {
        let state = &self.owner.state;
        let Requested { handle, peer, client_id } =
            std::future::poll_fn(|cx| match state.requests.borrow_mut().pop_front() {
                Some(request) => Poll::Ready(request),
                None => {
                    *state.waiting.borrow_mut() = Some(cx.waker().clone());
                    Poll::Pending
                }
            })
            .await;
        ConnectionRequest { owner: Rc::clone(&self.owner), handle, peer, client_id }
    }
}

impl ConnectionRequest {
    /// The address of the peer that wants to connect, if UCX knows it.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// The client id that the peer sent ([`Worker::connect_with_id`]), if it sent one. It is what the peer says, and no more.
    #[must_use]
    pub fn client_id(&self) -> Option<NonZeroU64> {
        self.client_id
    }

    /// Accepts, on the listener's worker.
    ///
    /// # Errors
    /// [`Error::Connect`] when there is no common transport, or the peer has gone.
    pub fn accept(mut self) -> Result<Endpoint, Error> {
        // SAFETY: integers and nullable pointers, for which zero is a value; the mask says which of them count.
        let mut params: sys::ucp_ep_params_t = unsafe { std::mem::zeroed() };
        params.field_mask = sys::UCP_EP_PARAM_FIELD_CONN_REQUEST.into();
        // Taken by the endpoint, and by a failure to make one.
        params.conn_request = std::mem::replace(&mut self.handle, std::ptr::null_mut());
        self.owner.worker.create_endpoint(params).map_err(|status| {
            let address = self.peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
            Error::Connect { address, status }
        })
    }

    /// Refuses: the peer's endpoint fails with [`Status::REJECTED`].
    pub fn reject(self) {}
}

impl Drop for ConnectionRequest {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            self.owner.state.reject(self.handle);
        }
    }
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} requests", self.state.requests.borrow().len())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.worker.core().end_listener(&self.state);
    }
}

impl ListenerState {
    fn core(&self) -> &Core {
        // SAFETY: see the field.
        unsafe { self.core.as_ref() }
    }

    /// Refuses the peers that wait and stops listening. Not from within progress: UCX may be using what this frees.
    pub(crate) fn destroy(&self) {
        loop {
            let request = self.requests.borrow_mut().pop_front();
            let Some(request) = request else { break };
            self.reject(request.handle);
        }
        let handle = self.handle.replace(std::ptr::null_mut());
        if !handle.is_null() {
            // SAFETY: a live listener, destroyed once, since the handle was taken; not from within progress.
            unsafe { (self.core().ucp().ucp_listener_destroy)(handle) }
        }
    }

    fn reject(&self, request: sys::ucp_conn_request_h) {
        // SAFETY: a live listener, and a request of it that was neither accepted nor refused. The peer may be gone, which
        // is an error that changes nothing.
        let _ = unsafe { (self.core().ucp().ucp_listener_reject)(self.handle.get(), request) };
        // Telling the peer needs progress.
        self.core().kick();
    }

    /// What UCX knows of a request; `None` when it does not know this.
    fn query(
        &self,
        request: sys::ucp_conn_request_h,
        field: sys::ucp_conn_request_attr_field,
    ) -> Option<sys::ucp_conn_request_attr_t> {
        // SAFETY: integers and a socket address, for which zero is a value; the mask says what is asked for.
        let mut attributes: sys::ucp_conn_request_attr_t = unsafe { std::mem::zeroed() };
        attributes.field_mask = field.into();
        // SAFETY: a live request and a place for the answer.
        let status = unsafe { (self.core().ucp().ucp_conn_request_query)(request, &mut attributes) };
        (status == sys::UCS_OK).then_some(attributes)
    }

    fn requested(&self, request: sys::ucp_conn_request_h) {
        if self.requests.borrow().len() >= BACKLOG {
            self.reject(request);
            return;
        }
        let address = self.query(request, sys::UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR);
        let peer = address.and_then(|attributes| from_storage(&attributes.client_address));
        // Asked for apart: where UCX knows no address, it says nothing at all. An id that was not sent is zero.
        let id = self.query(request, sys::UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ID);
        let client_id = id.and_then(|attributes| NonZeroU64::new(attributes.client_id));
        self.requests.borrow_mut().push_back(Requested { handle: request, peer, client_id });
        self.core().woke.set(true);
        let waiting = self.waiting.take();
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

/// UCX's callback for a peer that wants to connect.
unsafe extern "C" fn on_request(request: sys::ucp_conn_request_h, state: *mut c_void) {
    // SAFETY: the argument that listeners are made with is their state, which is held until the listener is destroyed.
    let state = unsafe { &*state.cast_const().cast::<ListenerState>() };
    if !state.core().is_mine() {
        tracing::error!("UCX reported a connection in a thread of its own, which it must not");
        std::process::abort();
    }
    if catch_unwind(AssertUnwindSafe(|| state.requested(request))).is_err() {
        tracing::error!("a panic while a UCX connection request was reported: a waker is broken");
    }
}
