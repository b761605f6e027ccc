//! Receiving active messages.
//!
//! A handler runs within [`Worker::progress`]. Short data it sees where UCX has it, and copies what it needs. Long data is
//! only announced: the handler takes the [`Rendezvous`] and has it fetched into memory of its choice, at once or later.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use forebay_ucx_sys as sys;

use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::operation::{Hold, Receiving, SpansMut, on_received};
use crate::registration::Registration;
use crate::worker::{Core, Worker, check};

/// An active message, as its handler sees it.
#[derive(Debug)]
pub struct Message<'a> {
    /// The worker that received it.
    pub worker: &'a Worker,
    /// The connection that it came by, to reply to; `None` when this side has closed it.
    pub from: Option<Endpoint>,
    /// What the sender put before the data.
    pub header: &'a [u8],
    /// The data.
    pub data: Data<'a>,
}

/// The data of an active message.
#[derive(Debug)]
pub enum Data<'a> {
    /// All of it, for as long as the handler runs.
    Eager(&'a [u8]),
    /// The announcement of it.
    Rendezvous(Rendezvous),
}

impl Data<'_> {
    /// How many bytes it has.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Eager(bytes) => bytes.len(),
            Self::Rendezvous(rendezvous) => rendezvous.len(),
        }
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Data that waits at the sender until it is received. Dropping this declines it: the sender's operation then ends as if it
/// had been received.
#[derive(Debug)]
pub struct Rendezvous {
    worker: Worker,
    from: Option<Endpoint>,
    /// Null once it is being received.
    descriptor: *mut c_void,
    length: usize,
}

/// Active messages are numbered below this.
const NUMBERS: u16 = 64;

/// A handler of a worker; UCX holds its address.
pub(crate) struct Handler {
    core: *const Core,
    id: u16,
    /// Whether these messages were asked for. They are dropped until then, and after [`Handler::forget`].
    taken: Cell<bool>,
    call: RefCell<Option<Rc<Call>>>,
}

/// What a handler runs.
type Call = dyn Fn(Message<'_>);

impl Worker {
    /// Has `handler` called for every active message `id`, until the worker is closed. It must not block. If it panics,
    /// the message is lost, which is logged. Messages that have no handler are dropped.
    ///
    /// A handler that holds the worker or an endpoint keeps the worker from ending, unless it is closed.
    ///
    /// # Errors
    /// [`Error::HandlerTaken`], [`Error::MessageNumber`].
    pub fn on_message(&self, id: u16, handler: impl Fn(Message<'_>) + 'static) -> Result<(), Error> {
        let core = self.core();
        if id >= NUMBERS {
            return Err(Error::MessageNumber { id, limit: NUMBERS });
        }
        let handlers = core.handlers.borrow();
        let slot = &handlers[usize::from(id)];
        if slot.taken.replace(true) {
            return Err(Error::HandlerTaken(id));
        }
        *slot.call.borrow_mut() = Some(Rc::new(handler));
        Ok(())
    }

    /// Has UCX bring all messages here, to be dropped until they are asked for. When UCX 1.13 grows its table of
    /// handlers, some entries are not set, and UCX calls what it finds there when a peer sends such a number. So the
    /// largest number is set first, which gives the table its size at once, and then every other one.
    pub(crate) fn drop_messages(&self) -> Result<(), Error> {
        let core = self.core();
        let handler = |id| Rc::new(Handler { core, id, taken: Cell::new(false), call: RefCell::default() });
        *core.handlers.borrow_mut() = (0..NUMBERS).map(handler).collect();
        (0..NUMBERS).rev().try_for_each(|id| self.set_handler(id))
    }

    fn set_handler(&self, id: u16) -> Result<(), Error> {
        let core = self.core();
        let handler = Rc::as_ptr(&core.handlers.borrow()[usize::from(id)]);
        // SAFETY: integers and nullable pointers, for which zero is a value; the mask says which of them count.
        let mut params: sys::ucp_am_handler_param_t = unsafe { std::mem::zeroed() };
        params.field_mask = (sys::UCP_AM_HANDLER_PARAM_FIELD_ID
            | sys::UCP_AM_HANDLER_PARAM_FIELD_FLAGS
            | sys::UCP_AM_HANDLER_PARAM_FIELD_CB
            | sys::UCP_AM_HANDLER_PARAM_FIELD_ARG)
            .into();
        params.id = id.into();
        params.flags = sys::UCP_AM_FLAG_WHOLE_MSG;
        params.cb = Some(on_message);
        params.arg = handler.cast_mut().cast();
        // SAFETY: a live worker; the core holds the handler, so its address holds until the worker is destroyed.
        let status = unsafe { (core.ucp().ucp_worker_set_am_recv_handler)(core.handle, &params) };
        check(status, "set the handler of an active message")
    }
}

impl Handler {
    /// Lets go of what the handler holds; its messages are dropped from now on.
    pub(crate) fn forget(&self) {
        let call = self.call.take();
        drop(call);
    }
}

impl Rendezvous {
    /// How many bytes wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether none do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Receives into `into`, one buffer after the other. Over RDMA the NIC writes straight to them if `registration`
    /// covers them; a single buffer only, since UCX registers those of a list by itself.
    ///
    /// Refused, with the data declined, when the buffers are too small.
    #[must_use]
    pub fn receive(mut self, mut into: SpansMut, registration: Option<&Registration>) -> Receiving {
        let room = into.iter().map(|span| span.len()).sum();
        if self.length > room {
            return Receiving::refused(into, Error::BufferTooSmall { length: self.length, room });
        }
        let core = self.worker.core();
        if registration.is_some_and(|registration| !registration.context.is(&core.context)) {
            return Receiving::refused(into, Error::NotRegistered);
        }
        // The caller gets what landed, and UCX no more room than it needs.
        let mut left = self.length;
        for span in &mut into {
            span.truncate(left);
            left -= span.len();
        }
        let pointer = core.begin(self.from.as_ref().map(Endpoint::state), Hold::Receive(into));
        // SAFETY: just begun, and not freed while its ticket is out.
        let op = unsafe { pointer.as_ref() };
        let buffers = op.buffers();
        let mut params = buffers.params(pointer, registration);
        params.cb.recv_am = Some(on_received);
        let descriptor = std::mem::replace(&mut self.descriptor, std::ptr::null_mut());
        // SAFETY: a live worker, and a descriptor that its handler kept, which was neither received nor released; buffers
        // and parameters belong to the op, which lives until UCX has called back or answered that it will not.
        let answer =
            unsafe { (core.ucp().ucp_am_recv_data_nbx)(core.handle, descriptor, buffers.base, buffers.count, &params) };
        // SAFETY: as above. UCX answers with a request also when it has called back already.
        if !unsafe { pointer.as_ref() }.has_ended() {
            core.posted(pointer, answer, self.length);
        }
        Receiving::started(Core::ticket(&self.worker, pointer), self.length)
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        if self.descriptor.is_null() {
            return;
        }
        let core = self.worker.core();
        if core.delivering.get() == self.descriptor {
            // UCX goes on using it after the handler, and frees it if told that it was not kept.
            core.declined.set(true);
            return;
        }
        // SAFETY: a live worker, and a descriptor that its handler kept, and that was not received.
        unsafe { (core.ucp().ucp_am_data_release)(core.handle, self.descriptor) };
        core.kick();
    }
}

/// UCX's callback for an active message.
unsafe extern "C" fn on_message(
    handler: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const sys::ucp_am_recv_param_t,
) -> sys::ucs_status_t {
    // SAFETY: the argument that handlers are set with is their address, which holds until the worker is destroyed.
    let handler = unsafe { &*handler.cast_const().cast::<Handler>() };
    // SAFETY: the core owns the handler.
    let core = unsafe { &*handler.core };
    let call = handler.call.borrow().clone();
    let (Some(worker), Some(call)) = (core.worker(), call) else { return sys::UCS_OK };
    // SAFETY: UCX passes valid parameters.
    let param = unsafe { &*param };
    let has = |bit: sys::ucp_am_recv_attr_t| param.recv_attr & u64::from(bit) != 0;
    let owner = has(sys::UCP_AM_RECV_ATTR_FIELD_REPLY_EP)
        .then(|| core.endpoints.borrow().get(&param.reply_ep).and_then(std::rc::Weak::upgrade))
        .flatten();
    if let Some(owner) = &owner {
        owner.state.heard.set(true);
    }
    let from = owner.map(Endpoint::from_owner);
    let is_rendezvous = has(sys::UCP_AM_RECV_ATTR_FLAG_RNDV);
    let data = if is_rendezvous {
        core.delivering.set(data);
        core.declined.set(false);
        Data::Rendezvous(Rendezvous { worker: worker.clone(), from: from.clone(), descriptor: data, length })
    } else {
        // SAFETY: UCX gives this many bytes for as long as the callback runs.
        Data::Eager(unsafe { bytes(data, length) })
    };
    // SAFETY: as above.
    let header = unsafe { bytes(header, header_length) };
    let message = Message { worker: &worker, from, header, data };
    if catch_unwind(AssertUnwindSafe(|| call(message))).is_err() {
        tracing::error!(id = handler.id, "a panic in the handler of a UCX active message: the message is lost");
    }
    core.woke.set(true);
    core.delivering.set(std::ptr::null_mut());
    if is_rendezvous && !core.declined.replace(false) { sys::UCS_INPROGRESS } else { sys::UCS_OK }
}

/// # Safety
/// `length` bytes are readable at `base` for `'a`; `base` may be anything when there are none.
unsafe fn bytes<'a>(base: *const c_void, length: usize) -> &'a [u8] {
    if length == 0 || base.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(base.cast(), length) }
}
