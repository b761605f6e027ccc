//! The client: one worker's address, a few connections to it, and calls spread over them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use forebay_memory::SpanMut;
use forebay_transport::{CallError, LinkError, Reply, Request, Transport, TransportKind};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::choice::{Candidate, Load, choose, choose_open};
use crate::connection::Connection;
use crate::driven::{Asked, Driven, DrivenConnections};
use crate::options::{ClientOptions, LARGE_BODY};
use crate::replies::{Call, Replies, Unread};

/// How long a connection that could not be made is not tried again while another one is open.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How often a call is made again whose server closed the connection without having looked at it. One that does so
/// for each new connection is out of order.
const MAX_RESENDS: usize = 3;
/// What a call weighs besides its payload, in bytes: header, system calls and wake-ups cost about as much as these.
const CALL_WEIGHT: u64 = 4096;
/// A request that asks for no more than this is left to the connection's task when calls of [`COMPANY`] are under way before it.
/// Requests of 4 KiB between two runtimes of one process on two cores, over 4 connections: with 64 at once 117 k/s became 268 k/s; with 8 at once
/// it was the same within the noise, 4 % more; one alone is sent as ever.
const SHORT: u32 = 64 << 10;
/// One call of 4 KiB. Waiting for four gave 235 k/s.
const COMPANY: u64 = CALL_WEIGHT + 4096;

/// The link to one worker over TCP. Must be used within a tokio runtime.
pub struct TcpTransport {
    link: Arc<Link>,
}

struct Link {
    address: Arc<str>,
    options: ClientOptions,
    slots: Box<[Slot]>,
    /// For threads that wait for their answers themselves.
    driven: Arc<DrivenConnections>,
    /// One permit for each call under way. Closed with the link.
    places: Arc<Semaphore>,
    /// How many of them there are.
    max_outstanding: usize,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Where one connection is, or will be.
struct Slot {
    state: Mutex<SlotState>,
    /// Whether there was a connection that takes calls when that was last looked at, for those that choose.
    is_open: AtomicBool,
    load: Arc<AtomicU64>,
}

type Connecting = Shared<BoxFuture<'static, Result<Arc<Connection>, LinkError>>>;

enum SlotState {
    Empty { retry_at: Option<Instant> },
    Connecting(Connecting),
    Open(Arc<Connection>),
}

impl Slot {
    /// Its connection, if there is one that takes calls.
    fn open(&self) -> Option<Arc<Connection>> {
        match &*self.state.lock() {
            SlotState::Open(connection) if connection.is_open() => Some(Arc::clone(connection)),
            _ => None,
        }
    }

    /// Forgets `connection`, which has ended, unless another has taken its place.
    fn clear(&self, connection: &Arc<Connection>) {
        let mut state = self.state.lock();
        if matches!(&*state, SlotState::Open(current) if Arc::ptr_eq(current, connection)) {
            self.is_open.store(false, Ordering::Relaxed);
            *state = SlotState::Empty { retry_at: None };
        }
    }

    /// Its connection, that there is or that is being made. In one look: between two it may have been made.
    fn made_or_in_the_making(&self) -> Option<Connecting> {
        match &*self.state.lock() {
            SlotState::Open(connection) if connection.is_open() => {
                Some(futures::future::ready(Ok(Arc::clone(connection))).boxed().shared())
            }
            SlotState::Connecting(connecting) => Some(connecting.clone()),
            _ => None,
        }
    }

    fn candidate(&self) -> Candidate {
        let load = self.load.load(Ordering::Relaxed);
        if self.is_open.load(Ordering::Relaxed) {
            return Candidate { open: true, load, retry_at: None };
        }
        match &*self.state.lock() {
            SlotState::Empty { retry_at } => Candidate { open: false, load, retry_at: *retry_at },
            SlotState::Connecting(_) => Candidate { open: false, load, retry_at: None },
            SlotState::Open(connection) => Candidate { open: connection.is_open(), load, retry_at: None },
        }
    }
}

/// Leaves its call to the connection when the caller goes away before the answer.
struct Waiting<'a> {
    connection: &'a Connection,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.connection.abandon(self.id);
    }
}

impl TcpTransport {
    /// A link to the worker at `address`, written `HOST:PORT`, or `unix:PATH` for a socket of this user. Nothing is connected
    /// before the first call.
    #[must_use]
    pub fn new(address: impl Into<Arc<str>>, options: ClientOptions) -> Self {
        let slot = || Slot {
            state: Mutex::new(SlotState::Empty { retry_at: None }),
            is_open: AtomicBool::new(false),
            load: Arc::default(),
        };
        let slots = std::iter::repeat_with(slot).take(options.connections.max(1)).collect();
        let max_outstanding = options.max_outstanding.clamp(1, Semaphore::MAX_PERMITS);
        let places = Arc::new(Semaphore::new(max_outstanding));
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let address = address.into();
        let driven = DrivenConnections::new(&address, &options, &tasks, &stop);
        Self { link: Arc::new(Link { address, options, slots, driven, places, max_outstanding, tasks, stop }) }
    }
}

impl Link {
    async fn call(self: &Arc<Self>, mut request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        let limit = request.payload_limit(into.as_ref()).map_err(CallError::Service)?;
        let (began, whole) = (tokio::time::Instant::now(), request.deadline);
        let left = move || whole.saturating_sub(began.elapsed());
        let permit = Arc::clone(&self.places).acquire_owned().await.map_err(|_| self.closed())?;
        let owned = Unread { into: into.filter(|_| request.op.brings_payload()), permit };
        // Besides this one.
        let others = || self.max_outstanding.saturating_sub(self.places.available_permits() + 1);
        let mut next = match self.driven.call(&mut request, limit, owned, left, others) {
            Driven::Ended(result) => return result,
            Driven::Late(asked) => Ok(asked),
            Driven::Not(owned) => Err(owned),
        };
        for _ in 0..=MAX_RESENDS {
            let Asked { connection, id, answered } = match next {
                Ok(asked) => asked,
                Err(owned) => self.ask(&mut request, limit, owned, left).await?,
            };
            let waiting = Waiting { connection: &connection, id };
            let ended = answered.await;
            // Not `abandon`ed: the call is no longer there.
            std::mem::forget(waiting);
            match ended {
                Ok(Ok(result)) => return result,
                Ok(Err(unread)) => next = Err(unread),
                Err(_) => return Err(self.closed().into()),
            }
        }
        let reason = "it closed one connection after the other without looking at the request".to_owned();
        Err(LinkError::Lost { peer: self.address.to_string(), reason }.into())
    }

    /// Sends `request`, with the time that is `left`, over one of the connections that calls share.
    async fn ask(
        self: &Arc<Self>,
        request: &mut Request,
        limit: u32,
        owned: Unread,
        left: impl Fn() -> Duration,
    ) -> Result<Asked, LinkError> {
        let (answer, answered) = oneshot::channel();
        let Unread { into, permit } = owned;
        let call = Call { into, limit, answer, load: None, permit };
        let (connection, id) = self.start(request, call, left).await?;
        Ok(Asked { connection, id, answered })
    }

    /// Sends `request`, with the time that is `left`: over which connection, and its number there.
    async fn start(
        self: &Arc<Self>,
        request: &mut Request,
        mut call: Call,
        left: impl Fn() -> Duration,
    ) -> Result<(Arc<Connection>, u64), LinkError> {
        let body = request.body_len();
        let weight = u64::from(call.limit) + body as u64 + CALL_WEIGHT;
        // A connection may end between choice and start: then nothing was sent, and another takes the call.
        loop {
            let (connection, load) = self.connection(weight, body > LARGE_BODY).await?;
            let is_patient = request.length <= SHORT && body <= LARGE_BODY && load.before() >= COMPANY;
            call.load = Some(load);
            request.deadline = left();
            match connection.start(request, call, is_patient) {
                Ok(id) => return Ok((connection, id)),
                Err(back) => call = back,
            }
        }
    }

    /// The connection for a call of `weight` bytes, made first if need be. The first connection, if there are several, is not
    /// for large bodies: however many of them are under way, or wait for memory at the server, other calls pass them by.
    async fn connection(self: &Arc<Self>, weight: u64, is_large: bool) -> Result<(Arc<Connection>, Load), LinkError> {
        let first = usize::from(is_large && self.slots.len() > 1);
        let (connecting, load) = loop {
            let chosen = choose(self.slots[first..].iter().map(Slot::candidate), Instant::now());
            // There is at least one slot.
            let index = first + chosen.unwrap_or(0);
            let slot = &self.slots[index];
            let load = Load::new(&slot.load, weight);
            let mut state = slot.state.lock();
            let connecting = match &*state {
                SlotState::Open(connection) if connection.is_open() => return Ok((Arc::clone(connection), load)),
                // The others are looked at again, now that this is known.
                SlotState::Open(_) if slot.is_open.swap(false, Ordering::Relaxed) => continue,
                SlotState::Connecting(connecting) => connecting.clone(),
                _ => {
                    let connecting = self.connect(index);
                    *state = SlotState::Connecting(connecting.clone());
                    connecting
                }
            };
            break (connecting, load);
        };
        let error = match connecting.await {
            Ok(connection) => return Ok((connection, load)),
            Err(error) => error,
        };
        // The others may serve, as they do when the server takes no more connections.
        let open = choose_open(self.slots.iter().map(Slot::candidate)).map(|index| &self.slots[index]);
        if let Some(other) = open
            && let Some(connection) = other.open()
        {
            return Ok((connection, Load::new(&other.load, weight)));
        }
        for other in &self.slots {
            if let Some(connecting) = other.made_or_in_the_making()
                && let Ok(connection) = connecting.await
            {
                return Ok((connection, Load::new(&other.load, weight)));
            }
        }
        Err(error)
    }

    /// Starts the task that makes the connection of slot `index`, and then serves it. It goes on when the call that
    /// wanted it does not.
    fn connect(self: &Arc<Self>, index: usize) -> Connecting {
        let (made, outcome) = oneshot::channel();
        let link = Arc::clone(self);
        self.tasks.spawn(async move {
            let slot = &link.slots[index];
            let attempt = tokio::select! {
                () = link.stop.cancelled() => Err(link.closed()),
                attempt = Connection::connect(&link.address, &link.options) => attempt,
            };
            match attempt.map(Arc::new) {
                Ok(connection) => {
                    {
                        let mut state = slot.state.lock();
                        *state = SlotState::Open(Arc::clone(&connection));
                        slot.is_open.store(true, Ordering::Relaxed);
                    }
                    // All callers may have left.
                    let _ = made.send(Ok(Arc::clone(&connection)));
                    connection.run(Replies::new(), &link.stop).await;
                    slot.clear(&connection);
                }
                Err(error) => {
                    *slot.state.lock() = SlotState::Empty { retry_at: Some(Instant::now() + RETRY_AFTER) };
                    let _ = made.send(Err(error));
                }
            }
        });
        let closed = self.closed();
        async move { outcome.await.unwrap_or(Err(closed)) }.boxed().shared()
    }

    fn closed(&self) -> LinkError {
        LinkError::Lost { peer: self.address.to_string(), reason: "it was closed".to_owned() }
    }
}

#[async_trait::async_trait]
impl Transport for TcpTransport {
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        let waited = request.deadline;
        match tokio::time::timeout(waited, self.link.call(request, into)).await {
            Ok(result) => result,
            Err(_) => Err(LinkError::TimedOut { peer: self.link.address.to_string(), waited }.into()),
        }
    }

    fn kind(&self) -> TransportKind {
        TransportKind::Tcp
    }

    fn peer(&self) -> &str {
        &self.link.address
    }

    async fn close(&self) {
        self.link.places.close();
        self.link.stop.cancel();
        self.link.tasks.close();
        self.link.tasks.wait().await;
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.link.places.close();
        self.link.stop.cancel();
    }
}
