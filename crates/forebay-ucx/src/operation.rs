//! Operations: what owns the memory while UCX uses it.
//!
//! Everything that UCX reads or writes on behalf of an operation (payload, header, list of buffers) belongs to an [`Op`],
//! which UCX holds by address until it calls back. The future that a caller holds is only a [`Ticket`] to it: when it is
//! dropped, the operation goes on, and its memory is freed by the callback (invariant 3). Nothing but the callback, or
//! UCX's answer that there will be none, ends an operation.
//!
//! Ops are recycled by their worker, so that a hit allocates nothing. All is single-threaded and re-entrant: UCX may call
//! back from within any call. So state is in cells, and no borrow lasts across a call into UCX or into foreign code.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::ffi::c_void;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};

use bytes::Bytes;
use forebay_memory::{Span, SpanMut, Spans};
use forebay_ucx_sys as sys;
use smallvec::{SmallVec, smallvec};

use crate::endpoint::EndpointState;
use crate::error::{Error, Status};
use crate::registration::Registration;
use crate::remote::KeyState;
use crate::worker::{Core, Worker};

/// Room for a header that a recycled operation keeps, in bytes: a hit's header of 64 with the checksums of a block, 512, must not
/// allocate each time.
const KEPT_HEADER: usize = 1024;

/// Buffers that together receive one message.
pub type SpansMut = SmallVec<[SpanMut; 2]>;

/// What a message carries.
#[derive(Clone, Debug, Default)]
pub enum Payload {
    /// Nothing.
    #[default]
    None,
    /// Views of a pool's memory, sent one after the other.
    Spans(Spans),
    /// Any bytes; not registered.
    Bytes(Bytes),
}

impl Payload {
    /// How many bytes it has.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Spans(spans) => spans.iter().map(|span| span.len()).sum(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Span> for Payload {
    fn from(span: Span) -> Self {
        Self::Spans(smallvec![span])
    }
}

impl From<Spans> for Payload {
    fn from(spans: Spans) -> Self {
        Self::Spans(spans)
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

/// Memory that an operation owns.
pub(crate) enum Hold {
    Nothing,
    Send(Payload),
    Receive(SpansMut),
}

/// One operation: pending in UCX, ended and waiting for its ticket, or free.
pub(crate) struct Op {
    core: *const Core,
    endpoint: RefCell<Option<Rc<EndpointState>>>,
    key: RefCell<Option<Rc<KeyState>>>,
    header: UnsafeCell<SmallVec<[u8; 128]>>,
    iov: UnsafeCell<SmallVec<[sys::ucp_dt_iov_t; 4]>>,
    hold: RefCell<Hold>,
    outcome: Cell<Option<(Status, usize)>>,
    waker: RefCell<Option<Waker>>,
    has_ticket: Cell<bool>,
}

/// What to hand to UCX: where the bytes are, in which form.
pub(crate) struct Buffers {
    pub(crate) base: *mut c_void,
    pub(crate) count: usize,
    pub(crate) datatype: sys::ucp_datatype_t,
    /// Where the bytes lie and how many, when they are in one piece.
    pub(crate) piece: Option<(usize, usize)>,
}

impl Buffers {
    /// Parameters for an operation on these bytes that calls back with `op`. Callback and flags are the caller's.
    pub(crate) fn params(&self, op: NonNull<Op>, registration: Option<&Registration>) -> sys::ucp_request_param_t {
        // SAFETY: integers and nullable pointers, for which zero is a value; the mask says which of them count.
        let mut params: sys::ucp_request_param_t = unsafe { std::mem::zeroed() };
        params.op_attr_mask =
            sys::UCP_OP_ATTR_FIELD_CALLBACK | sys::UCP_OP_ATTR_FIELD_USER_DATA | sys::UCP_OP_ATTR_FIELD_DATATYPE;
        params.user_data = op.as_ptr().cast();
        params.datatype = self.datatype;
        // UCX takes a memory handle for one piece only; of a list it looks up, or registers, each piece.
        let handle = match (registration, self.piece) {
            (Some(registration), Some((address, length))) => registration.handle(address, length),
            _ => std::ptr::null_mut(),
        };
        if !handle.is_null() {
            params.op_attr_mask |= sys::UCP_OP_ATTR_FIELD_MEMH | sys::UCP_OP_ATTR_FIELD_MEMORY_TYPE;
            params.memh = handle;
            params.memory_type = sys::UCS_MEMORY_TYPE_HOST;
        }
        params
    }
}

impl Core {
    /// A new operation, with a ticket.
    pub(crate) fn begin(&self, endpoint: Option<&Rc<EndpointState>>, hold: Hold) -> NonNull<Op> {
        let free = self.free.borrow_mut().pop();
        let pointer = free.unwrap_or_else(|| NonNull::from(Box::leak(Box::new(Op::new(self)))));
        // SAFETY: an op from the free list or a new one; both live until the worker frees its ops.
        let op = unsafe { pointer.as_ref() };
        *op.endpoint.borrow_mut() = endpoint.cloned();
        *op.hold.borrow_mut() = hold;
        op.outcome.set(None);
        op.has_ticket.set(true);
        self.set_live(self.live() + 1);
        if let Some(endpoint) = endpoint {
            endpoint.operation_began();
        }
        pointer
    }

    /// What UCX answered to an operation: a request, or the end of it. `length` is what it moved if it worked at once.
    pub(crate) fn posted(&self, op: NonNull<Op>, answer: sys::ucs_status_ptr_t, length: usize) {
        // The macros of the header: null is success, the last 100 addresses are errors.
        let code = answer as isize;
        if code == 0 {
            end(op, Status::OK, length);
        } else if (sys::UCS_ERR_LAST as isize..0).contains(&code) {
            end(op, Status(code as sys::ucs_status_t), 0);
        } else {
            self.kick();
        }
    }

    /// The ticket of an operation that was begun.
    pub(crate) fn ticket(worker: &Worker, op: NonNull<Op>) -> Ticket {
        Ticket { _worker: worker.clone(), op: Some(op) }
    }

    /// Frees every op that has ended. To be called when the UCX worker is gone.
    pub(crate) fn free_ops(&self) {
        for op in self.free.take() {
            // SAFETY: ops in the free list are not in use, and came from `Box::leak`.
            drop(unsafe { Box::from_raw(op.as_ptr()) });
        }
    }
}

impl Op {
    fn new(core: &Core) -> Self {
        Self {
            core,
            endpoint: RefCell::default(),
            key: RefCell::default(),
            header: UnsafeCell::default(),
            iov: UnsafeCell::default(),
            hold: RefCell::new(Hold::Nothing),
            outcome: Cell::new(None),
            waker: RefCell::default(),
            has_ticket: Cell::new(false),
        }
    }

    /// Keeps a copy of `header` until the operation has ended, and says where it is. To be called before the start.
    pub(crate) fn keep_header(&self, header: &[u8]) -> *const c_void {
        // SAFETY: there is no other reference: UCX gets the pointer below only, and only after this.
        let kept = unsafe { &mut *self.header.get() };
        kept.clear();
        kept.extend_from_slice(header);
        kept.as_ptr().cast()
    }

    pub(crate) fn keep_key(&self, key: Rc<KeyState>) {
        *self.key.borrow_mut() = Some(key);
    }

    /// Where the bytes are that the operation holds. To be called before the start.
    pub(crate) fn buffers(&self) -> Buffers {
        // SAFETY: as in `keep_header`.
        let iov = unsafe { &mut *self.iov.get() };
        iov.clear();
        match &mut *self.hold.borrow_mut() {
            Hold::Nothing | Hold::Send(Payload::None) => {}
            Hold::Send(Payload::Bytes(bytes)) => push(iov, bytes.as_ptr().cast_mut(), bytes.len()),
            Hold::Send(Payload::Spans(spans)) => {
                spans.iter().for_each(|span| push(iov, span.as_ptr().cast_mut(), span.len()));
            }
            Hold::Receive(spans) => {
                for span in spans {
                    let length = span.len();
                    push(iov, span.as_mut_ptr(), length);
                }
            }
        }
        match &iov[..] {
            [] => Buffers { base: std::ptr::null_mut(), count: 0, datatype: sys::DATATYPE_BYTES, piece: None },
            [one] => Buffers {
                base: one.buffer,
                count: one.length,
                datatype: sys::DATATYPE_BYTES,
                piece: Some((one.buffer.addr(), one.length)),
            },
            _ => Buffers { base: iov.as_mut_ptr().cast(), count: iov.len(), datatype: sys::DATATYPE_IOV, piece: None },
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.outcome.get().is_some()
    }

    /// Lets the operation end by itself.
    pub(crate) fn forgo_ticket(&self, pointer: NonNull<Self>) {
        self.has_ticket.set(false);
        if self.outcome.get().is_some() {
            Self::recycle(pointer);
        } else {
            drop(self.waker.take());
        }
    }

    /// Makes an ended op without a ticket free for the next operation. Drops what it holds.
    fn recycle(pointer: NonNull<Self>) {
        // SAFETY: ops live until their worker frees them.
        let op = unsafe { pointer.as_ref() };
        let hold = op.hold.replace(Hold::Nothing);
        drop(op.waker.take());
        // SAFETY: the operation has ended, so UCX does not use the header any more, and nothing else refers to it.
        let header = unsafe { &mut *op.header.get() };
        if header.capacity() > KEPT_HEADER {
            *header = SmallVec::new();
        }
        // SAFETY: the core outlives its ops.
        let core = unsafe { &*op.core };
        core.free.borrow_mut().push(pointer);
        drop(hold);
    }
}

fn push(iov: &mut SmallVec<[sys::ucp_dt_iov_t; 4]>, base: *mut u8, length: usize) {
    if length > 0 {
        iov.push(sys::ucp_dt_iov_t { buffer: base.cast(), length });
    }
}

/// Ends an operation: gives its memory back, or keeps it for the ticket to take, and wakes its waiter.
fn end(pointer: NonNull<Op>, status: Status, length: usize) {
    // SAFETY: ops live until their worker frees them, which it does when none is pending.
    let op = unsafe { pointer.as_ref() };
    // SAFETY: the core outlives its ops.
    let core = unsafe { &*op.core };
    debug_assert!(op.outcome.get().is_none(), "an operation ended twice");
    op.outcome.set(Some((status, length)));
    core.set_live(core.live() - 1);
    core.woke.set(true);
    // Dropped last, since freeing memory runs foreign code.
    let _key = op.key.take();
    if let Some(endpoint) = op.endpoint.take() {
        endpoint.operation_ended();
    }
    if !op.has_ticket.get() {
        Op::recycle(pointer);
        return;
    }
    let sends = matches!(*op.hold.borrow(), Hold::Send(_));
    let _sent = sends.then(|| op.hold.replace(Hold::Nothing));
    let waker = op.waker.take();
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// UCX's callback for what is sent, fetched, stored, flushed and closed.
pub(crate) unsafe extern "C" fn on_sent(request: *mut c_void, status: sys::ucs_status_t, op: *mut c_void) {
    // SAFETY: UCX passes what it was given with the operation.
    unsafe { on_end(request, status, usize::MAX, op) }
}

/// UCX's callback for the data of an active message.
pub(crate) unsafe extern "C" fn on_received(
    request: *mut c_void,
    status: sys::ucs_status_t,
    length: usize,
    op: *mut c_void,
) {
    // SAFETY: as above.
    unsafe { on_end(request, status, length, op) }
}

/// # Safety
/// `op` is the address of a pending [`Op`] of this thread, and `request` is UCX's for it.
unsafe fn on_end(request: *mut c_void, status: sys::ucs_status_t, length: usize, op: *mut c_void) {
    let Some(op) = NonNull::new(op.cast::<Op>()) else { return };
    // SAFETY: the caller's promise; the core outlives its ops.
    let ucp = unsafe { (*op.as_ref().core).ucp() };
    // SAFETY: the request is UCX's, freed once, here; UCX keeps it until this callback has returned.
    unsafe { (ucp.ucp_request_free)(request) };
    // Waking and freeing run foreign code; a panic must not unwind into C, and the operation has ended by then.
    if catch_unwind(AssertUnwindSafe(|| end(op, Status(status), length))).is_err() {
        tracing::error!("a panic while a UCX operation ended: its waker or its memory's owner is broken");
    }
}

/// The right to an operation's outcome.
#[must_use]
pub(crate) struct Ticket {
    /// Keeps the worker, and with it the op, alive.
    _worker: Worker,
    op: Option<NonNull<Op>>,
}

impl Ticket {
    fn poll(&mut self, cx: &TaskContext<'_>) -> Poll<(Status, usize, Hold)> {
        let Some(pointer) = self.op else { return Poll::Pending };
        // SAFETY: the worker is held, and with it its ops.
        let op = unsafe { pointer.as_ref() };
        let Some((status, length)) = op.outcome.get() else {
            let mut waker = op.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            return Poll::Pending;
        };
        self.op = None;
        let hold = op.hold.replace(Hold::Nothing);
        Op::recycle(pointer);
        Poll::Ready((status, length, hold))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some(pointer) = self.op else { return };
        // SAFETY: the worker is held, and with it its ops.
        let op = unsafe { pointer.as_ref() };
        op.forgo_ticket(pointer);
    }
}

/// An operation that sends. It ends when its memory may be used again. Dropping this does not stop the operation, and
/// does not free its memory before it has ended.
pub struct Sending(pub(crate) Result<Ticket, Option<Error>>);

impl Sending {
    pub(crate) fn refused(error: Error) -> Self {
        Self(Err(Some(error)))
    }

    /// Lets the operation end by itself.
    pub fn detach(self) {}
}

impl Future for Sending {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Ok(ticket) => ticket.poll(cx).map(|(status, _, _)| status.into_result()),
            Err(error) => error.take().map_or(Poll::Pending, |error| Poll::Ready(Err(error))),
        }
    }
}

/// An operation that receives: it ends with its buffers and how many bytes landed in them. Dropping this does not stop
/// the operation, and does not free its buffers before it has ended.
pub struct Receiving {
    state: Result<Ticket, Option<(SpansMut, Error)>>,
    /// How many bytes land when UCX does not say.
    wanted: usize,
}

impl Receiving {
    pub(crate) fn started(ticket: Ticket, wanted: usize) -> Self {
        Self { state: Ok(ticket), wanted }
    }

    /// The receiving of what was begun as an operation without an answer of its own.
    pub(crate) fn of(started: Sending, wanted: usize) -> Self {
        match started.0 {
            Ok(ticket) => Self::started(ticket, wanted),
            Err(error) => Self::refused(SpansMut::new(), error.unwrap_or(Error::Closed)),
        }
    }

    pub(crate) fn refused(into: SpansMut, error: Error) -> Self {
        Self { state: Err(Some((into, error))), wanted: 0 }
    }
}

impl Future for Receiving {
    type Output = (SpansMut, Result<usize, Error>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let wanted = self.wanted;
        match &mut self.state {
            Ok(ticket) => ticket.poll(cx).map(|(status, length, hold)| {
                let into = match hold {
                    Hold::Receive(into) => into,
                    Hold::Nothing | Hold::Send(_) => SpansMut::new(),
                };
                (into, status.into_result().map(|()| length.min(wanted)))
            }),
            Err(refused) => match refused.take() {
                Some((into, error)) => Poll::Ready((into, Err(error))),
                None => Poll::Pending,
            },
        }
    }
}
