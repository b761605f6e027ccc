//! One session of a client: the shell around [`Outstanding`] and [`Releases`].
//!
//! A caller's own task sends its request, and with it what was released since the last; one task receives the replies, sends what
//! did not fit into the socket, and tells the worker of releases that no request takes along. A thread that may wait for its answer
//! itself ([`forebay_transport::driving`]), and is alone, receives in its place ([`Driven`]): then the runtime does not watch the socket,
//! and the task looks now and then whether that is still so, and at the releases. No clock watches for silence: the
//! kernel says at once that a worker is gone, and one that hangs costs each call its deadline.
//!
//! When the task ends, for whatever reason, the session takes no more calls; the socket stays open until the last view of the
//! worker's memory is gone, and only then may the worker use that memory again.

use std::any::Any;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forebay_locks::Mutex;
use forebay_memory::{Spans, Window};
use forebay_transport::connection::Outstanding;
use forebay_transport::wire::{CONNECTION_ID, RequestHeader};
use forebay_transport::{LinkError, Payload, Reply, Request};
use forebay_types::FailureKind;
use smallvec::SmallVec;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::call::{Answer, Call, ReadError};
use crate::driven::{Driven, Receives};
use crate::lease::{Ids, Lease, Releases, SOON, Then};
use crate::options::ClientOptions;
use crate::reach::{NotSeen, Seen, reach};
use crate::socket::Received;
use crate::unwatched::{Unwatched, Watch};
use crate::wire::{self, Answered, MAX_ANSWERED};

/// Packets that are received before others have their turn.
const BURST: usize = 32;
/// Bytes that hold a request's header, and as many releases as are usually there.
const USUAL: usize = 256;
/// How often the task looks while threads receive: for releases that no request takes along, and whether any thread did.
const LOOK: Duration = Duration::from_millis(5);

/// What callers, those that let go of views, and the task share.
#[derive(Debug)]
struct ConnectionState {
    calls: Outstanding<Call>,
    /// How many of them there are.
    under_way: usize,
    releases: Releases,
    /// Packets that the socket did not take.
    unsent: Vec<Vec<u8>>,
    /// What a thread found that received: the task ends the session because of it.
    broken: Option<LinkError>,
}

/// An open session.
#[derive(Debug)]
pub(crate) struct Connection {
    peer: Arc<str>,
    socket: Unwatched,
    window: Window,
    instance: u64,
    state: Mutex<ConnectionState>,
    /// Whether new calls may start.
    accepting: AtomicBool,
    /// One permit for each call that the worker may have of us.
    places: Arc<Semaphore>,
    /// The task has something to do that the socket does not tell it.
    wake: Notify,
    /// Threads that receive in the place of the task.
    driven: Driven,
}

/// A call that was made.
enum Asked {
    /// Its answer, for which the calling thread has waited.
    Answered(Answer),
    /// Its number, and where its answer will come to.
    Waits(u64, oneshot::Receiver<Answer>),
}

/// Ends the session when its task does, however that ends: also when its runtime goes away under it.
struct EndsWithTask<'a>(&'a Connection);

impl Drop for EndsWithTask<'_> {
    fn drop(&mut self) {
        self.0.end(&self.0.lost("its task was stopped"));
    }
}

/// Leaves its call to the session when the caller goes away before the answer.
struct Leaving<'a> {
    connection: &'a Connection,
    id: u64,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.connection.abandon(self.id);
    }
}

impl Connection {
    /// Connects to the worker that is known as `peer`, a host and a port.
    ///
    /// # Errors
    /// [`NotSeen`].
    pub(crate) async fn connect(peer: &Arc<str>, options: &ClientOptions) -> Result<Self, NotSeen> {
        Ok(Self::over(peer, reach(peer, options).await?, options))
    }

    fn over(peer: &Arc<str>, seen: Seen, options: &ClientOptions) -> Self {
        let Seen { socket, window, max_requests, instance } = seen;
        let most = options.max_calls.min(max_requests).clamp(1, Semaphore::MAX_PERMITS);
        let calls = Outstanding::new(options.max_abandoned);
        let (releases, unsent) = (Releases::default(), Vec::new());
        let state = ConnectionState { calls, under_way: 0, releases, unsent, broken: None };
        Self {
            peer: Arc::clone(peer),
            socket: socket.into(),
            window,
            instance,
            state: Mutex::new(state),
            accepting: AtomicBool::new(true),
            places: Arc::new(Semaphore::new(most)),
            wake: Notify::new(),
            driven: Driven::new(options.drive),
        }
    }

    /// Which worker it is, as it says here.
    pub(crate) fn instance(&self) -> u64 {
        self.instance
    }

    /// Bytes of the worker's memory.
    pub(crate) fn memory(&self) -> u64 {
        self.window.length()
    }

    /// Whether new calls may start.
    pub(crate) fn is_open(&self) -> bool {
        self.accepting.load(Ordering::Acquire)
    }

    /// Asks for bytes, and shows them where they lie. The caller sees to the deadline.
    ///
    /// # Errors
    /// [`ReadError`].
    pub(crate) async fn read(self: &Arc<Self>, mut request: Request) -> Answer {
        let permit = match Arc::clone(&self.places).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                let began = Instant::now();
                let permit = Arc::clone(&self.places).acquire_owned().await;
                request.deadline = request.deadline.saturating_sub(began.elapsed());
                permit.map_err(|_| ReadError::Link(self.lost("it was closed")))?
            }
        };
        let (id, answered) = match self.ask(&request, permit)? {
            Asked::Answered(answer) => return answer,
            Asked::Waits(id, answered) => (id, answered),
        };
        let leaving = Leaving { connection: self, id };
        let result = answered.await;
        // Not `abandon`ed: the call is no longer there.
        std::mem::forget(leaving);
        result.unwrap_or_else(|_| Err(ReadError::Link(self.lost("it was closed"))))
    }

    /// Sends `request`, and waits for its answer where the calling thread may receive it.
    fn ask(self: &Arc<Self>, request: &Request, permit: OwnedSemaphorePermit) -> Result<Asked, ReadError> {
        let (answer, mut answered) = oneshot::channel();
        let driver = self.driven.begin(self, request);
        let id = self.start(request, Call { limit: request.length, answer, permit })?;
        let answer = match driver {
            Some(driver) => driver.wait(&mut answered),
            None => {
                self.driven.called(self);
                None
            }
        };
        Ok(answer.map_or(Asked::Waits(id, answered), Asked::Answered))
    }

    /// Sends `request` and what was released.
    fn start(&self, request: &Request, call: Call) -> Result<u64, ReadError> {
        let (id, released) = {
            let mut state = self.state.lock();
            let begun = state.calls.begin(call).map_err(|_| ReadError::Link(self.lost("it takes no more calls")))?;
            state.under_way += 1;
            (begun.id, state.releases.take())
        };
        let mut head = SmallVec::<[u8; USUAL]>::new();
        wire::put_releases(&mut head, &released);
        head.extend_from_slice(&RequestHeader::of(id, request).encode());
        let slices = [IoSlice::new(&head), IoSlice::new(&request.body), IoSlice::new(&request.tail)];
        let count = if request.body_len() == 0 { 1 } else { 3 };
        if self.socket.send(&slices[..count]).is_err() {
            // There is no room; or the task meets the error, and ends the session with this call and all others.
            self.queue([&head[..], &request.body, &request.tail].concat());
        }
        Ok(id)
    }

    /// The caller of `id` has left.
    fn abandon(&self, id: u64) {
        let mut state = self.state.lock();
        let spent = state.calls.abandon(id);
        self.accepting.fetch_and(state.calls.is_accepting(), Ordering::AcqRel);
        drop(state);
        if spent {
            self.wake.notify_one();
        }
    }

    /// The last view of what came for request `id` is gone.
    pub(crate) fn release(&self, id: u64) {
        let mut state = self.state.lock();
        match state.releases.add(id) {
            Then::Nothing => {}
            Then::Watch => {
                drop(state);
                self.wake.notify_one();
            }
            Then::Send => {
                let ids = state.releases.take();
                drop(state);
                self.send_releases(ids);
            }
        }
    }

    fn send_releases(&self, ids: Ids) {
        if ids.is_empty() {
            return;
        }
        let mut packet = SmallVec::<[u8; USUAL]>::new();
        wire::put_releases(&mut packet, &ids);
        if self.socket.send(&[IoSlice::new(&packet)]).is_err() {
            // As for a request: what is released must not be lost in a session that goes on.
            self.queue(packet.to_vec());
        }
    }

    fn queue(&self, packet: Vec<u8>) {
        self.state.lock().unsent.push(packet);
        self.wake.notify_one();
    }

    /// Sends what was queued. False while something is left.
    fn send_queued(&self) -> io::Result<bool> {
        let mut state = self.state.lock();
        let mut sent = 0;
        let outcome = loop {
            let Some(packet) = state.unsent.get(sent) else { break Ok(true) };
            match self.socket.send(&[IoSlice::new(packet)]) {
                Ok(()) => sent += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(false),
                Err(error) => break Err(error),
            }
        };
        state.unsent.drain(..sent);
        outcome
    }

    /// Takes no more calls, and only then fails those that are left: a caller that learns that this session is lost must find
    /// another way for its next call.
    fn end(&self, error: &LinkError) {
        let left = {
            let mut state = self.state.lock();
            self.accepting.store(false, Ordering::Release);
            state.under_way = 0;
            state.calls.end()
        };
        self.places.close();
        left.into_iter().for_each(|call| call.end(Err(ReadError::Link(error.clone()))));
    }

    /// Receives until the session ends, or is told to. Returns why.
    pub(crate) async fn run(self: &Arc<Self>, stop: &CancellationToken) -> LinkError {
        let _ends = EndsWithTask(self);
        let error = self.receive(stop).await;
        self.end(&error);
        error
    }

    async fn receive(self: &Arc<Self>, stop: &CancellationToken) -> LinkError {
        let mut buffer = vec![0; MAX_ANSWERED];
        let mut timer = pin!(tokio::time::sleep(SOON));
        let mut watching = false;
        let (mut watch, mut taken) = (None, self.driven.helm().taken());
        loop {
            if let Some(error) = self.state.lock().broken.take() {
                return error;
            }
            if !self.driven.helm().is_watched() {
                watch = None;
                if !watching {
                    watching = true;
                    timer.as_mut().reset(Instant::now() + LOOK);
                }
            } else if watch.is_none() {
                watch = match self.socket.watch() {
                    Ok(watch) => Some(watch),
                    Err(error) => return self.lost(error),
                };
            }
            let all_sent = match self.send_queued() {
                Ok(all_sent) => all_sent,
                Err(error) => return self.lost(error),
            };
            let mut has_more = false;
            // Biased: replies come before everything that can wait.
            tokio::select! {
                biased;
                () = stop.cancelled() => return self.lost("it was closed"),
                ready = readable(watch.as_ref()) => {
                    // What has come by now may be for a thread that sleeps until it comes.
                    if !self.driven.helm().is_watched() {
                        continue;
                    }
                    let received = ready.map_err(|error| self.lost(error)).and_then(|watch| self.burst(watch, &mut buffer));
                    match received {
                        Ok(more) => has_more = more,
                        Err(error) => return error,
                    }
                }
                ready = self.socket.writable(), if !all_sent => if let Err(error) = ready {
                    return self.lost(error);
                },
                () = self.wake.notified() => if self.state.lock().calls.is_spent() {
                    return self.lost("too many of its calls were given up");
                },
                () = &mut timer, if watching => {
                    watching = false;
                    let ids = self.state.lock().releases.look();
                    self.send_releases(ids);
                    let taken_before = std::mem::replace(&mut taken, self.driven.helm().taken());
                    if taken == taken_before {
                        self.driven.helm().watch();
                    }
                }
            }
            if has_more {
                tokio::task::yield_now().await;
            }
            // Whatever woke the task: views were given out, or the first of them is gone. A thread that has left may have done so last.
            if !watching && self.driven.helm().is_watched() && self.is_watched() {
                watching = true;
                timer.as_mut().reset(Instant::now() + SOON);
            }
        }
    }

    /// Whether a look at the releases is due.
    fn is_watched(&self) -> bool {
        self.state.lock().releases.is_watched()
    }

    /// Brings the replies that have arrived to their calls. True when there may be more.
    fn burst(self: &Arc<Self>, watch: &Watch<'_>, buffer: &mut [u8]) -> Result<bool, LinkError> {
        for _ in 0..BURST {
            // A reply to the only call is the last for now.
            let received = watch.receive(buffer, |_| self.state.lock().under_way <= 1);
            // The rest is left to a thread that has taken over.
            if !self.take_in(buffer, received)? || !self.driven.helm().is_watched() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Brings the reply that was received to its call. False when there was none.
    fn take_in(self: &Arc<Self>, buffer: &[u8], received: io::Result<Received>) -> Result<bool, LinkError> {
        match received {
            Ok(Received::Packet(length)) => {
                let packet = buffer.get(..length).ok_or_else(|| self.broken(wire::Malformed::Size(length)))?;
                self.deliver(Answered::decode(packet).map_err(|malformed| self.broken(malformed))?)?;
                Ok(true)
            }
            Ok(Received::End) => Err(self.lost("the worker closed it")),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(self.lost(error)),
        }
    }

    fn deliver(self: &Arc<Self>, answered: Answered<'_>) -> Result<(), LinkError> {
        let header = &answered.header;
        if header.id == CONNECTION_ID {
            return match header.failure(answered.body) {
                Some(why) if why.kind() == FailureKind::Unavailable => Err(self.lost(why.message())),
                Some(why) if why.kind() == FailureKind::PermissionDenied => {
                    Err(LinkError::Unproved { peer: self.peer.to_string(), reason: why.message().to_owned() })
                }
                Some(why) => Err(LinkError::Refused { peer: self.peer.to_string(), reason: why.message().to_owned() }),
                None => Ok(()),
            };
        }
        let call = {
            let mut state = self.state.lock();
            let Some(call) = state.calls.take(header.id) else {
                drop(state);
                return Err(self.broken(format_args!("it answered call {}, which is not under way", header.id)));
            };
            state.under_way -= 1;
            state.releases.watch();
            call
        };
        let result = self.result(&call, &answered);
        let broken = match &result {
            Err(ReadError::Link(error)) => Err(error.clone()),
            _ => Ok(()),
        };
        if broken.is_err() {
            self.accepting.store(false, Ordering::Release);
        }
        call.end(result);
        broken?;
        let is_spent = !self.is_open() && self.state.lock().calls.is_spent();
        if is_spent { Err(self.lost("too many of its calls were given up")) } else { Ok(()) }
    }

    /// What an answer means to its call.
    fn result(self: &Arc<Self>, call: &Call, answered: &Answered<'_>) -> Answer {
        let header = &answered.header;
        if let Some(failure) = header.failure(answered.body) {
            return Err(ReadError::Service(failure));
        }
        let (length, limit) = (header.payload_len, call.limit);
        if length > limit {
            let reason = format_args!("it answered with {length} bytes of payload where {limit} are allowed");
            return Err(ReadError::Link(self.broken(reason)));
        }
        if answered.lies_elsewhere() {
            return Err(ReadError::Elsewhere);
        }
        let mut spans = Spans::new();
        if length > 0 {
            let lease: Arc<dyn Any + Send + Sync> = Arc::new(Lease::new(Arc::clone(self), header.id));
            for place in answered.places() {
                let span = self.window.span(place, Arc::clone(&lease));
                let (length, at) = (place.length, place.offset);
                let outside = || {
                    self.broken(format_args!("{length} bytes at {at} are not in its {} bytes", self.window.length()))
                };
                spans.push(span.ok_or_else(|| ReadError::Link(outside()))?);
            }
        }
        let body = Bytes::copy_from_slice(answered.body);
        Ok(Reply { provenance: header.provenance, body, payload: Payload::Shared(spans) })
    }

    fn lost(&self, reason: impl std::fmt::Display) -> LinkError {
        LinkError::Lost { peer: self.peer.to_string(), reason: reason.to_string() }
    }

    fn broken(&self, reason: impl std::fmt::Display) -> LinkError {
        LinkError::Protocol { peer: self.peer.to_string(), reason: reason.to_string() }
    }
}

impl Receives for Arc<Connection> {
    fn take_next(&self, buffer: &mut [u8]) -> Result<bool, LinkError> {
        let received = self.socket.receive(buffer);
        self.take_in(buffer, received)
    }

    fn sleep(&self, at_most: Duration) {
        self.socket.sleep(at_most);
    }

    fn has_calls(&self) -> bool {
        self.state.lock().under_way > 0
    }

    fn tell_task(&self, broken: Option<LinkError>) {
        if let Some(error) = broken {
            self.accepting.store(false, Ordering::Release);
            self.state.lock().broken.get_or_insert(error);
        }
        self.wake.notify_one();
    }
}

/// Waits until there may be something to receive, where the runtime watches.
async fn readable<'a>(watch: Option<&'a Watch<'a>>) -> io::Result<&'a Watch<'a>> {
    match watch {
        Some(watch) => watch.readable().await.map(|()| watch),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
