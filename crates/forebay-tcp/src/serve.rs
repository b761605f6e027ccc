//! One connection of a server: reads requests, has the service answer them, sends the answers.
//!
//! Requests that the service can answer at once are answered by the connection's own task; the others each have a task
//! that the connection owns. A connection is read only while its requests, and those of all connections, are within
//! their bounds; while it is not read, the peer is told from time to time that we are alive.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_transport::wire::{CONNECTION_ID, HELLO_LEN, Hello, RequestHeader, WireError};
use forebay_transport::{Op, Service, answer};
use forebay_types::{Failure, FailureKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, PollSemaphore};

use crate::options::ServerOptions;
use crate::outbox::{Outbox, Outgoing};
use crate::requests::Requests;
use crate::socket;

/// What the connections of a server have in common.
pub(crate) struct Shared {
    pub(crate) options: ServerOptions,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) hello: Hello,
    pub(crate) stop: CancellationToken,
    /// One permit for each request in flight on any connection.
    pub(crate) places: Arc<Semaphore>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// The peer closed it between messages.
    #[error("the peer closed it")]
    Closed,
    /// The server closes.
    #[error("the server is closing")]
    Stopped,
    /// The peer took too long for its hello or for the rest of a message.
    #[error("it sent no complete {what} within {waited:?}")]
    Late {
        /// What was missing.
        what: &'static str,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The peer took nothing of what there was for it.
    #[error("it did not take any of its replies for {0:?}")]
    Stalled(Duration),
    /// The peer closed it within a message.
    #[error("it closed the connection in the middle of a {0}")]
    Truncated(&'static str),
    /// The peer does not keep to the protocol.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// The server has all the connections that it may have.
    #[error("this server has its {0} connections; raise its limit or lower the clients' `connections`")]
    Full(usize),
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl End {
    /// Whether an operator should know.
    fn is_remarkable(&self) -> bool {
        !matches!(self, Self::Closed | Self::Stopped | Self::Io(_))
    }

    /// What the peer is told, when it can still be told anything.
    fn goodbye(&self) -> Option<Failure> {
        let kind = match self {
            Self::Stopped => FailureKind::Unavailable,
            Self::Full(_) => FailureKind::OutOfResources,
            Self::Wire(_) | Self::Late { .. } => FailureKind::InvalidArgument,
            Self::Closed | Self::Stalled(_) | Self::Truncated(_) | Self::Io(_) => return None,
        };
        Some(Failure::new(kind, self.to_string()))
    }
}

/// Serves `stream` until it ends. `full` says that it is one too many: it is told so, and closed.
pub(crate) async fn serve(mut stream: TcpStream, peer: SocketAddr, shared: Arc<Shared>, full: bool) {
    let greeted = tokio::select! {
        () = shared.stop.cancelled() => Err(End::Stopped),
        greeted = greet(&mut stream, &shared) => greeted,
    };
    let mut connection = Serving::new(stream, shared);
    let mut outcome = greeted;
    if outcome.is_ok() {
        outcome = if full { Err(End::Full(connection.shared.options.max_connections)) } else { connection.run().await };
    }
    let Err(end) = outcome else { return };
    connection.handlers.shutdown().await;
    if end.is_remarkable() {
        tracing::warn!(%peer, reason = %end, "closed a connection");
    } else {
        tracing::debug!(%peer, reason = %end, "connection ended");
    }
    if let Some(goodbye) = end.goodbye()
        && connection.outbox.is_empty()
    {
        connection.outbox.push(Outgoing::goodbye(goodbye));
        // A courtesy: one try, and no waiting for a peer that may not listen.
        let _ = connection.outbox.send(&connection.stream).await;
    }
}

/// Exchanges hellos.
async fn greet(stream: &mut TcpStream, shared: &Shared) -> Result<(), End> {
    let waited = shared.options.hello_timeout;
    socket::tune(stream, shared.options.stall_timeout / 5)?;
    let mut theirs = [0; HELLO_LEN];
    let exchange = async {
        stream.write_all(&shared.hello.encode()).await?;
        // The first byte alone tells a peer that checks whether the port is open from one that broke off.
        if stream.read(&mut theirs[..1]).await? == 0 {
            return Err(End::Closed);
        }
        stream.read_exact(&mut theirs[1..]).await.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => End::Truncated("hello"),
            _ => error.into(),
        })?;
        Ok(())
    };
    match tokio::time::timeout(waited, exchange).await {
        Ok(exchanged) => exchanged?,
        Err(_) => return Err(End::Late { what: "hello", waited }),
    }
    shared.hello.check(&theirs)?;
    Ok(())
}

/// A request that waits.
struct Parked {
    header: RequestHeader,
    body: Bytes,
    since: Instant,
}

/// The state of one connection.
struct Serving {
    stream: Arc<TcpStream>,
    shared: Arc<Shared>,
    requests: Requests,
    /// Waits for a place among the requests of all connections. Nothing is read meanwhile.
    parked: Option<Parked>,
    places: PollSemaphore,
    handlers: JoinSet<Outgoing>,
    outbox: Outbox,
    /// The peer sends no more, but may still wait for replies.
    half_closed: bool,
    /// When anything was last received, sent, and said when there was nothing to send.
    received_at: Instant,
    sent_at: Instant,
}

impl Serving {
    fn new(stream: TcpStream, shared: Arc<Shared>) -> Self {
        let places = PollSemaphore::new(Arc::clone(&shared.places));
        let now = Instant::now();
        Self {
            stream: Arc::new(stream),
            shared,
            requests: Requests::new(),
            parked: None,
            places,
            handlers: JoinSet::new(),
            outbox: Outbox::default(),
            half_closed: false,
            received_at: now,
            sent_at: now,
        }
    }

    fn in_flight(&self) -> usize {
        self.handlers.len() + self.outbox.len()
    }

    /// Whether requests may be taken in.
    fn takes_requests(&self) -> bool {
        self.parked.is_none() && self.in_flight() < self.shared.options.max_requests_per_connection
    }

    async fn run(&mut self) -> Result<(), End> {
        loop {
            self.take_requests()?;
            if !self.outbox.is_empty() && self.outbox.send(&self.stream).await? > 0 {
                self.sent_at = Instant::now();
            }
            let reading = self.takes_requests() && !self.half_closed;
            if self.half_closed && self.in_flight() == 0 && self.parked.is_none() {
                return Err(if self.requests.is_partial() { End::Truncated("request") } else { End::Closed });
            }
            let due = self.due(reading);
            tokio::select! {
                biased;
                () = self.shared.stop.cancelled() => return Err(End::Stopped),
                ready = self.stream.readable(), if reading => {
                    ready?;
                    self.receive()?;
                }
                Some(finished) = self.handlers.join_next(), if !self.handlers.is_empty() => self.finished(finished),
                ready = self.stream.writable(), if !self.outbox.is_empty() => ready?,
                permit = poll_fn(|context| self.places.poll_acquire(context)), if self.parked.is_some() => {
                    // The semaphore is never closed.
                    if let (Some(permit), Some(Parked { mut header, body, since })) = (permit, self.parked.take()) {
                        header.deadline = header.deadline.saturating_sub(since.elapsed());
                        self.answer(header, body, permit);
                    }
                }
                () = sleep_until(due), if due.is_some() => self.overdue(reading)?,
            }
        }
    }

    fn receive(&mut self) -> Result<(), End> {
        match self.requests.receive(|buffers| socket::receive(&self.stream, buffers)) {
            Ok(0) => self.half_closed = true,
            Ok(_) => self.received_at = Instant::now(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Takes in the requests that have arrived, as far as the bounds allow.
    fn take_requests(&mut self) -> Result<(), End> {
        while self.takes_requests()
            && let Some((header, body)) = self.requests.next()?
        {
            if header.op == Op::Ping && header.id == CONNECTION_ID {
                self.outbox.push(Outgoing::alive());
            } else if let Ok(permit) = Arc::clone(&self.shared.places).try_acquire_owned() {
                self.answer(header, body, permit);
            } else {
                self.parked = Some(Parked { header, body, since: Instant::now() });
            }
        }
        Ok(())
    }

    /// Has the service answer: at once, or in a task.
    fn answer(&mut self, header: RequestHeader, body: Bytes, permit: OwnedSemaphorePermit) {
        let id = header.id;
        let request = header.with_body(body);
        let shared = &self.shared;
        if let Some(response) = shared.service.try_handle(&request) {
            self.outbox.push(Outgoing::answer(id, response.fitting(&request), Some(permit)));
            return;
        }
        let (service, takes_files) = (Arc::clone(&shared.service), shared.options.takes_files);
        self.handlers.spawn(async move {
            let answer = answer(&*service, request, takes_files).await;
            Outgoing::answer(id, answer, Some(permit))
        });
    }

    fn finished(&mut self, finished: Result<Outgoing, tokio::task::JoinError>) {
        // A task panics or is aborted only in `shutdown`: `answer` catches the service's panics.
        if let Ok(reply) = finished {
            self.outbox.push(reply);
        }
    }

    /// When something is overdue, if nothing else happens before. Costs nothing for a connection that is idle.
    fn due(&self, reading: bool) -> Option<Instant> {
        let options = &self.shared.options;
        let stalled = (!self.outbox.is_empty()).then(|| self.sent_at + options.stall_timeout);
        let late = (reading && self.requests.is_partial()).then(|| self.received_at + options.hello_timeout);
        let silent = (!reading && self.outbox.is_empty()).then(|| self.sent_at + options.keepalive);
        [stalled, late, silent].into_iter().flatten().min()
    }

    fn overdue(&mut self, reading: bool) -> Result<(), End> {
        let (options, now) = (&self.shared.options, Instant::now());
        if !self.outbox.is_empty() && now >= self.sent_at + options.stall_timeout {
            return Err(End::Stalled(options.stall_timeout));
        }
        if reading && self.requests.is_partial() && now >= self.received_at + options.hello_timeout {
            return Err(End::Late { what: "request", waited: options.hello_timeout });
        }
        if !reading && self.outbox.is_empty() {
            self.outbox.push(Outgoing::alive());
        }
        Ok(())
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
