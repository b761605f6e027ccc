//! A worker that threads hand to one another: one has it at a time, and with it all that is of it.
//!
//! A [`Worker`] and its endpoints, operations and handlers share what they are without locks, so they stay in one thread. Of a lone
//! worker nothing is ever given out: who has it names its connections by numbers, and its messages come to a [`MessageReceiver`], which
//! it owns. So all of it moves as one piece, and UCX, which is told so (`UCS_THREAD_MODE_SERIALIZED`), locks nothing for it either.
//! What workers of one context share has locks of its own (`mt_workers_shared`).
//!
//! A thread without a runtime progresses it, and sleeps ([`LoneWorker::sleep`]); a task waits by [`LoneWorker::until`]. In between
//! nobody looks at it, and nothing of it wakes anybody.

use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use forebay_memory::SpanMut;
use forebay_ucx_sys as sys;
use smallvec::smallvec;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::context::Context;
use crate::driving::{Events, NAP, ROUNDS, let_others_run};
use crate::endpoint::{Endpoint, Protocol};
use crate::error::{Error, Status};
use crate::message::{Data, Message};
use crate::operation::Receiving;
use crate::registration::Registration;
use crate::resource::Resource;
use crate::worker::Worker;

/// What the messages of a lone worker come to. Its methods run within [`LoneWorker::progress`], and must not block.
pub trait MessageReceiver: Send + 'static {
    /// A message `id` has come by the connection `from`. Of one that is announced, where its data is to go; `None` declines it.
    fn message(&mut self, from: usize, id: u16, header: &[u8], data: Incoming<'_>) -> Option<Fetch>;

    /// What was announced has been fetched, so many bytes of it, or cannot be. The buffer is given back.
    fn fetched(&mut self, into: Option<SpanMut>, outcome: Result<usize, Error>);
}

/// The data of a message.
#[derive(Clone, Copy, Debug)]
pub enum Incoming<'a> {
    /// All of it, for as long as it is looked at.
    Here(&'a [u8]),
    /// Its length: it waits at the sender.
    Announced(usize),
}

/// Where announced data is to go, and the registration of that, if there is one.
#[derive(Debug)]
pub struct Fetch {
    /// The buffer, which is the operation's until that has ended.
    pub into: SpanMut,
    /// See [`crate::Rendezvous::receive`].
    pub registration: Option<Registration>,
}

/// See above. Dropping it closes its connections by force, and waits for its operations, for 5 s at most; their memory is kept
/// after that.
pub struct LoneWorker<R> {
    /// What is being fetched: one at a time.
    fetching: Rc<RefCell<Option<Receiving>>>,
    connections: HashMap<usize, Endpoint>,
    receiver: Rc<RefCell<R>>,
    /// Last: all of the above is of it.
    worker: Worker,
}

// SAFETY: the worker is made here and never given out, nor is anything that shares a part of it without a lock: endpoints, tickets, what
// is being fetched, and the handlers, which own nothing but clones of two fields. Messages, which hold the worker, live while a handler
// runs, and the receiver sees none of them. So whoever owns this owns every reference to all of it, and moves them together. What
// callbacks bring back (payload, buffers, wakers) is `Send`, and so is the receiver. UCX is told that threads take turns. That one thread
// has the worker at a time is what `Send` without `Sync` means.
unsafe impl<R: MessageReceiver> Send for LoneWorker<R> {}

impl<R: MessageReceiver> LoneWorker<R> {
    /// Without connections. Messages with these `ids` come to `receiver`, others are dropped.
    ///
    /// # Errors
    /// [`Error::Events`] where the context is polled, [`Error::Worker`], [`Error::HandlerTaken`], [`Error::MessageNumber`].
    pub fn new(context: &Context, client_id: Option<NonZeroU64>, ids: &[u16], receiver: R) -> Result<Self, Error> {
        if !context.is_event_driven() {
            return Err(Error::Events("this fabric has none".to_owned()));
        }
        let worker = Worker::create(context, client_id, sys::UCS_THREAD_MODE_SERIALIZED)?;
        let receiver = Rc::new(RefCell::new(receiver));
        let this = Self { fetching: Rc::default(), connections: HashMap::new(), receiver, worker };
        ids.iter().try_for_each(|id| this.receive(*id))?;
        Ok(this)
    }

    fn receive(&self, id: u16) -> Result<(), Error> {
        let (receiver, fetching) = (Rc::clone(&self.receiver), Rc::clone(&self.fetching));
        self.worker.on_message(id, move |message: Message<'_>| {
            let Some(from) = message.from.as_ref().map(Endpoint::key) else { return };
            let Message { header, data, .. } = message;
            match data {
                Data::Eager(bytes) => drop(receiver.borrow_mut().message(from, id, header, Incoming::Here(bytes))),
                // Dropped without being received, it is declined.
                Data::Rendezvous(rendezvous) if fetching.borrow().is_none() => {
                    let announced = Incoming::Announced(rendezvous.len());
                    let wanted = receiver.borrow_mut().message(from, id, header, announced);
                    if let Some(Fetch { into, registration }) = wanted {
                        let receiving = rendezvous.receive(smallvec![into], registration.as_ref());
                        *fetching.borrow_mut() = Some(receiving);
                    }
                }
                Data::Rendezvous(_) => {}
            }
        })
    }

    /// Begins to connect to `address`, from the address `from` if given, and shows the client id if asked to. The connection's
    /// number, which no other one of it has until it is closed. Whether it works shows by [`LoneWorker::failure`].
    ///
    /// # Errors
    /// [`Error::Connect`] when no device of the context leads there.
    pub fn connect(&mut self, address: SocketAddr, from: Option<IpAddr>, shows_id: bool) -> Result<usize, Error> {
        self.worker.core().adopt();
        let endpoint = match shows_id {
            true => self.worker.connect_with_id(address, from)?,
            false => self.worker.connect(address, from)?,
        };
        let key = endpoint.key();
        self.connections.insert(key, endpoint);
        Ok(key)
    }

    /// Sends a message over a connection. If it fails, so does that.
    pub fn send(&mut self, connection: usize, id: u16, header: &[u8], data: Bytes) {
        self.worker.core().adopt();
        if let Some(endpoint) = self.connections.get(&connection) {
            endpoint.am_send(id, header, data, None, Protocol::Eager).detach();
        }
    }

    /// How a connection broke, if it did; one that was closed has.
    #[must_use]
    pub fn failure(&self, connection: usize) -> Option<Status> {
        self.connections.get(&connection).map_or(Some(Status::CANCELED), Endpoint::failure)
    }

    /// Closes a connection by force. What is of it ends with further progress, of which [`LoneWorker::operations`] tells.
    pub fn close(&mut self, connection: usize) {
        self.worker.core().adopt();
        drop(self.connections.remove(&connection));
    }

    /// The transports and devices that a connection uses.
    ///
    /// # Errors
    /// As [`Endpoint::lanes`].
    pub fn lanes(&self, connection: usize) -> Result<Vec<Resource>, Error> {
        self.connections.get(&connection).map_or(Err(Error::Closed), Endpoint::lanes)
    }

    /// The longest header that a message may have, in bytes.
    #[must_use]
    pub fn max_header(&self) -> usize {
        self.worker.max_header()
    }

    /// How many operations have not ended.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.worker.operations()
    }

    /// What its messages come to; not to be held over a call that changes the worker.
    #[must_use]
    pub fn receiver(&self) -> RefMut<'_, R> {
        self.receiver.borrow_mut()
    }

    /// Does what there is to do, on this thread; zero when there was nothing.
    pub fn progress(&mut self) -> u32 {
        self.worker.core().adopt();
        self.worker.progress() + u32::from(self.take_in_fetched())
    }

    /// Whether something has been fetched.
    fn take_in_fetched(&self) -> bool {
        let mut fetching = self.fetching.borrow_mut();
        let Some(receiving) = fetching.as_mut() else { return false };
        let polled = Pin::new(receiving).poll(&mut TaskContext::from_waker(Waker::noop()));
        let Poll::Ready((mut buffers, outcome)) = polled else { return false };
        *fetching = None;
        drop(fetching);
        self.receiver.borrow_mut().fetched(buffers.pop(), outcome);
        true
    }

    /// Blocks the thread until there may be something to do, or `limit` has passed. Returns at once where there may be already.
    ///
    /// # Errors
    /// [`Error::Worker`] and [`Error::Events`] when events cannot be armed, or waited for.
    pub fn sleep(&mut self, limit: Duration) -> Result<(), Error> {
        self.worker.core().adopt();
        self.worker.sleep(limit)
    }

    /// Makes progress until `look`, which is asked at first and after each, finds something. A task that gives up waiting drops
    /// this: nothing is lost.
    ///
    /// # Errors
    /// [`Error::Worker`] and [`Error::Events`], as for [`LoneWorker::sleep`].
    pub async fn until<T>(&mut self, mut look: impl FnMut(&mut Self) -> Option<T>) -> Result<T, Error> {
        let Some(events) = self.worker.event_descriptor() else {
            return Err(Error::Events("this fabric has none".to_owned()));
        };
        // SAFETY: UCX keeps the descriptor open until the worker is destroyed, and the worker is borrowed for longer than this.
        let events = unsafe { AsyncFd::register_with_interest(Events(events), Interest::READABLE) }
            .map_err(|error| Error::Events(error.to_string()))?;
        // How often in a row UCX had something to do, and did not do it.
        let mut refused = 0_u32;
        loop {
            if let Some(found) = look(self) {
                return Ok(found);
            }
            if self.progress() > 0 {
                refused = 0;
                let_others_run().await;
                continue;
            }
            if !self.worker.arm()? {
                refused = refused.saturating_add(1);
                if refused > ROUNDS {
                    tokio::time::sleep(NAP).await
                } else {
                    let_others_run().await
                }
                continue;
            }
            let mut guard = events.readable().await.map_err(|error| Error::Events(error.to_string()))?;
            guard.clear_ready();
        }
    }
}

impl<R> Drop for LoneWorker<R> {
    fn drop(&mut self) {
        self.worker.core().adopt();
        // The operation goes on, and has its buffer until it has ended.
        drop(self.fetching.take());
        self.connections.clear();
        // They share the receiver.
        self.worker.core().forget_handlers();
    }
}

impl<R> std::fmt::Debug for LoneWorker<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoneWorker({} connections, {} operations)", self.connections.len(), self.worker.operations())
    }
}
