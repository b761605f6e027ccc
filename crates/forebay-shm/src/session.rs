//! One session of a worker: reads requests, has the service answer them, says where the answers lie, and keeps them there.
//!
//! Requests that the service can answer at once are answered by the session's own task; the others each have a task that the
//! session owns. While a reply waits for others to be released ([`crate::pins`]), the service is asked for no more: what it would
//! answer would only be held. Neither waits for long: then the client is sent another way.
//!
//! Who proved who it is, is looked over every few seconds ([`crate::known`]); one that is denied is served no more.
//!
//! A session that serves no more, whatever the reason, says so by closing its direction of the socket, and goes on to
//! hear what its client releases, until the client has closed its end. Only the end of the server ends that, and what a
//! client still sees then is never handed out again.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, ErrorKind, IoSlice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_identity::{Peer, Standing};
use forebay_memory::Spans;
use forebay_transport::wire::{CONNECTION_ID, MAX_BODY_BESIDE_PAYLOAD, RequestHeader};
use forebay_transport::{Caller, Op, Response, ResponsePayload, answer};
use forebay_types::{Failure, FailureKind};
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::audit::SessionAudit;
use crate::greeting::greet;
use crate::pins::{Expired, Mistaken, Pin, Pins};
use crate::sessions::{Counted, End, SessionsShared, caller_of, places_of, refusal};
use crate::socket::{Received, Socket};
use crate::wire::{self, Asked, MAX_ASKED, Malformed};

/// Packets that are read before others have their turn.
const BURST: usize = 32;
/// How often a client that only closed its direction is looked at, whether it is still there.
const LOOK: Duration = Duration::from_millis(100);

/// Serves the client at the other end of `socket` until both are done with each other. `number`: the session's. `greeting`: until the
/// hellos are exchanged. `audit` records who is let in.
pub(crate) async fn serve(
    socket: Socket,
    number: u64,
    shared: Arc<SessionsShared>,
    greeting: Counted,
    audit: Option<SessionAudit>,
) {
    let mut session = Session::new(socket, number, shared, audit);
    let end = match session.run(greeting).await {
        Ok(never) => match never {},
        Err(end) => end,
    };
    // They are told to end; one that does not must not keep the client from being told, too.
    let _ = tokio::time::timeout(session.shared.options.close_timeout, session.handlers.shutdown()).await;
    if end.is_remarkable() {
        tracing::warn!(reason = %end, "closed a session of a client on this host");
    } else {
        tracing::debug!(reason = %end, "session ended");
    }
    session.audit.iter().for_each(|audit| audit.ended(&end));
    session.part(&end).await;
}

/// A request that waits to be asked, and since when.
type Waiting = (RequestHeader, Bytes, Instant);

/// The service's answer to a request, from a task.
struct Finished {
    id: u64,
    expires: Instant,
    answer: Result<Response, Failure>,
}

/// The state of one session.
struct Session {
    socket: Socket,
    number: u64,
    shared: Arc<SessionsShared>,
    /// Cancelled when it is to end, or the server closes.
    told: CancellationToken,
    /// What its client proved to be, if it had to.
    caller: Caller,
    /// Who records that it is let in, or not. `None`: nobody.
    audit: Option<SessionAudit>,
    pins: Pins<Spans>,
    /// It may be its turn to show what is parked.
    turn: Arc<Notify>,
    waiting: VecDeque<Waiting>,
    handlers: JoinSet<Finished>,
    /// Replies that the socket did not take.
    outbox: VecDeque<Vec<u8>>,
    /// Requests that were received and whose replies were not sent.
    in_flight: usize,
    /// Where replies are written.
    packet: Vec<u8>,
}

impl Session {
    fn new(socket: Socket, number: u64, shared: Arc<SessionsShared>, audit: Option<SessionAudit>) -> Self {
        let turn = Arc::new(Notify::new());
        shared.line.lock().enter(number, &turn);
        let told = shared.stop.child_token();
        Self {
            socket,
            number,
            shared,
            told,
            caller: Caller::default(),
            audit,
            pins: Pins::new(number),
            turn,
            waiting: VecDeque::new(),
            handlers: JoinSet::new(),
            outbox: VecDeque::new(),
            in_flight: 0,
            packet: Vec::new(),
        }
    }

    async fn run(&mut self, greeting: Counted) -> Result<Infallible, End> {
        let told = self.told.clone();
        let peer = tokio::select! {
            () = told.cancelled() => return Err(End::Stopped),
            greeted = greet(&self.socket, &self.shared, self.audit.as_mut()) => greeted?,
        };
        self.admit(peer);
        drop(greeting);
        let mut buffer = vec![0; MAX_ASKED];
        loop {
            // A client that sends without a pause must not keep its answers waiting.
            while let Some(finished) = self.handlers.try_join_next() {
                self.finished(finished)?;
            }
            self.resume()?;
            self.ask_for_waiting()?;
            self.send_queued()?;
            let expires = self.expires();
            tokio::select! {
                biased;
                () = told.cancelled() => return Err(self.why_told()),
                ready = self.socket.readable() => {
                    ready?;
                    if !self.receive(&mut buffer)? {
                        tokio::task::yield_now().await;
                    }
                }
                Some(finished) = self.handlers.join_next(), if !self.handlers.is_empty() => self.finished(finished)?,
                ready = self.socket.writable(), if !self.outbox.is_empty() => ready?,
                () = self.turn.notified(), if self.pins.has_parked() => {}
                () = sleep_until(expires), if expires.is_some() => self.expire()?,
            }
        }
    }

    /// The client may ask: as `peer`, if it had to prove who it is.
    fn admit(&mut self, peer: Option<Peer>) {
        self.audit.iter().for_each(SessionAudit::admitted);
        if let Some(peer) = peer {
            self.caller = caller_of(&peer);
            tracing::info!(identity = %peer.identity, "a client on this host sees this worker's memory");
            self.shared.known.enter(self.number, peer, &self.told);
        }
    }

    /// Why it was told to end.
    fn why_told(&self) -> End {
        match self.shared.known.standing(self.number) {
            Some((Standing::Denied, identity)) => End::Denied(Box::new(identity)),
            Some((Standing::Expired, _)) => End::Expired,
            Some(_) if !self.shared.service.shows_all(&self.caller) => End::Confined,
            _ => End::Stopped,
        }
    }

    /// Takes in what has arrived. False when there may be more.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<bool, End> {
        for _ in 0..BURST {
            match self.socket.receive(buffer, |_| false) {
                Ok(Received::Packet(length)) => {
                    let packet = buffer.get(..length).ok_or(Malformed::Size(length))?;
                    let asked = Asked::decode(packet)?;
                    self.release(&asked)?;
                    if let Some((header, body)) = asked.request {
                        self.take(header, Bytes::copy_from_slice(body))?;
                    }
                }
                Ok(Received::End) => return Err(End::Closed),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    /// The client is done with some of what it was shown.
    fn release(&mut self, asked: &Asked<'_>) -> Result<(), Mistaken> {
        // What is given up goes back to the pool when the line is free again.
        let mut given_up = SmallVec::<[Spans; 8]>::new();
        let mut ids = asked.releases().peekable();
        if ids.peek().is_none() {
            return Ok(());
        }
        let mut line = self.shared.line.lock();
        let released = ids.try_for_each(|id| {
            given_up.push(self.pins.release(&mut line.bound, id)?);
            Ok(())
        });
        line.wake_next();
        drop(line);
        released
    }

    /// A request has arrived.
    fn take(&mut self, header: RequestHeader, body: Bytes) -> Result<(), End> {
        let limit = self.shared.options.max_requests_per_connection;
        self.in_flight += 1;
        if self.in_flight > limit {
            return Err(End::TooMany(limit));
        }
        if header.id == CONNECTION_ID || self.pins.shows(header.id) {
            return Err(Mistaken::Twice(header.id).into());
        }
        if self.pins.has_parked() || !self.waiting.is_empty() {
            self.waiting.push_back((header, body, Instant::now()));
            return Ok(());
        }
        self.ask(header, body)
    }

    fn ask_for_waiting(&mut self) -> Result<(), End> {
        while !self.pins.has_parked()
            && let Some((mut header, body, since)) = self.waiting.pop_front()
        {
            header.deadline = header.deadline.saturating_sub(since.elapsed());
            self.ask(header, body)?;
        }
        Ok(())
    }

    /// Has the service answer: at once, or in a task.
    fn ask(&mut self, header: RequestHeader, body: Bytes) -> Result<(), End> {
        let (id, request) = (header.id, header.with_body(body).by(self.caller.clone()));
        if let Some(refused) = refusal(&request) {
            self.audit.iter().for_each(|audit| audit.refused_request(&request, &refused));
            return self.fail(id, &refused);
        }
        let service = &self.shared.service;
        // A panic would otherwise be the end of the session, and of all that it has shown.
        match catch_unwind(AssertUnwindSafe(|| service.try_handle(&request))) {
            Ok(Some(response)) => {
                let deadline = request.deadline;
                return self.reply(id, response.fitting(&request), || Instant::now() + deadline);
            }
            Ok(None) => {}
            Err(_) => {
                let message = "the worker failed on this request; its log has the details";
                return self.fail(id, &Failure::new(FailureKind::Internal, message));
            }
        }
        let (service, expires) = (Arc::clone(service), Instant::now() + request.deadline);
        self.handlers.spawn(async move {
            let answer = answer(&*service, request, false).await;
            Finished { id, expires, answer }
        });
        Ok(())
    }

    fn finished(&mut self, finished: Result<Finished, JoinError>) -> Result<(), End> {
        match finished {
            Ok(Finished { id, expires, answer }) => self.reply(id, answer, || expires),
            // Its caller would wait in vain.
            Err(error) => Err(End::Io(io::Error::other(error))),
        }
    }

    /// Answers request `id`, or has the answer wait for its turn, until it `expires`.
    fn reply(
        &mut self,
        id: u64,
        answer: Result<Response, Failure>,
        expires: impl FnOnce() -> Instant,
    ) -> Result<(), End> {
        let Response { provenance, body, payload } = match answer {
            Ok(response) => response,
            Err(failure) => return self.fail(id, &failure),
        };
        let (length, spans) = match payload {
            ResponsePayload::File(_) => {
                return self.fail(id, &Failure::new(FailureKind::Internal, "the service answered a read with a file"));
            }
            ResponsePayload::None => (0, Spans::new()),
            payload @ ResponsePayload::Spans(_) => match (payload.len(), payload) {
                (length, ResponsePayload::Spans(spans)) => (length, spans),
                _ => (0, Spans::new()),
            },
        };
        if body.len() > MAX_BODY_BESIDE_PAYLOAD as usize {
            let message = format!("the service answered with a body of {} bytes, too long", body.len());
            return self.fail(id, &Failure::new(FailureKind::Internal, message));
        }
        // No more than was asked for.
        let length = length as u32;
        let Some((places, frames)) = places_of(&spans, &self.shared.pool) else {
            return self.send_elsewhere(id, length);
        };
        wire::put_reply(&mut self.packet, id, provenance, &body, &places);
        if !frames.is_empty() {
            let pin = Pin { id, frames, kept: spans };
            let parked = self.pins.show(&mut self.shared.line.lock().bound, pin)?;
            if let Some(pin) = parked {
                let patience = Instant::now() + self.shared.options.patience;
                self.pins.park(pin, self.packet.clone(), length, patience.min(expires()));
                return Ok(());
            }
        }
        self.send()
    }

    /// Sends the client another way, for `length` bytes.
    fn send_elsewhere(&mut self, id: u64, length: u32) -> Result<(), End> {
        wire::put_elsewhere(&mut self.packet, id, length);
        self.send()
    }

    fn fail(&mut self, id: u64, failure: &Failure) -> Result<(), End> {
        wire::put_failure(&mut self.packet, id, failure);
        self.send()
    }

    /// Sends the reply that was written.
    fn send(&mut self) -> Result<(), End> {
        if self.outbox.is_empty() && sent(self.socket.send(&[IoSlice::new(&self.packet)]))? {
            self.in_flight -= 1;
        } else {
            self.outbox.push_back(self.packet.clone());
        }
        Ok(())
    }

    fn send_queued(&mut self) -> Result<(), End> {
        while let Some(packet) = self.outbox.front() {
            if !sent(self.socket.send(&[IoSlice::new(packet)]))? {
                break;
            }
            self.outbox.pop_front();
            self.in_flight -= 1;
        }
        Ok(())
    }

    /// Shows what is parked, as far as it may be shown by now.
    fn resume(&mut self) -> Result<(), End> {
        while self.pins.has_parked() {
            let mut line = self.shared.line.lock();
            let Some(packet) = self.pins.resume(&mut line.bound)? else { break };
            if !self.pins.has_parked() {
                line.wake_next();
            }
            drop(line);
            self.packet = packet;
            self.send()?;
        }
        Ok(())
    }

    /// When something has waited for long enough.
    fn expires(&self) -> Option<Instant> {
        let waiting = self.waiting.front().map(|(_, _, since)| *since + self.shared.options.patience);
        [self.pins.expires(), waiting].into_iter().flatten().min()
    }

    /// Sends the client another way for what has waited for long enough.
    fn expire(&mut self) -> Result<(), End> {
        let now = Instant::now();
        let over = {
            let mut line = self.shared.line.lock();
            let over = self.pins.expire(&mut line.bound, now);
            line.wake_next();
            over
        };
        for Expired { id, length, kept } in over {
            drop(kept);
            self.send_elsewhere(id, length)?;
        }
        let patience = self.shared.options.patience;
        while self.waiting.front().is_some_and(|(_, _, since)| *since + patience <= now)
            && let Some((header, body, _)) = self.waiting.pop_front()
        {
            match header.op {
                Op::Read if header.length > 0 => self.send_elsewhere(header.id, header.length)?,
                _ => self.ask(header, body)?,
            }
        }
        Ok(())
    }

    /// After the last request: hears releases until the client is gone, or the server has waited for long enough.
    async fn part(&mut self, end: &End) {
        self.leave_line();
        if !self.socket.is_closed_by_peer() {
            // A courtesy: one try. The replies that are left unsent are of no use to a client that is told so.
            let _ = self.socket.send(&[IoSlice::new(&end.goodbye())]);
            // Not of one that has closed its own direction: both closed look like its end.
            if !matches!(end, End::Closed) {
                self.socket.end_sending();
            }
            let shared = Arc::clone(&self.shared);
            let patience = async {
                shared.stop.cancelled().await;
                tokio::time::sleep(shared.options.close_timeout).await;
            };
            tokio::select! {
                biased;
                () = self.hear_out() => {}
                () = patience => {}
            }
        }
        if self.socket.is_closed_by_peer() {
            let given_up = {
                let mut line = self.shared.line.lock();
                let given_up = self.pins.closed(&mut line.bound);
                line.wake_next();
                given_up
            };
            drop(given_up);
        } else if self.pins.len() > 0 {
            let reads = self.pins.len();
            tracing::warn!(reads, "a client on this host still looks at what it read; that memory is not used again");
        }
    }

    /// Has nothing wait any more, and lets the next have its turn.
    fn leave_line(&mut self) {
        let mut line = self.shared.line.lock();
        let unsent = self.pins.unpark(&mut line.bound);
        line.wake_next();
        drop(line);
        // It goes back to the pool when the line is free again.
        drop(unsent);
    }

    /// Hears releases until the client has closed its end, or has nothing left to release.
    async fn hear_out(&mut self) {
        let mut buffer = vec![0; MAX_ASKED];
        while self.pins.len() > 0 && !self.socket.is_closed_by_peer() {
            match self.socket.receive(&mut buffer, |_| false) {
                Ok(Received::Packet(length)) => {
                    // Whatever else the client says is ignored: it was told that this session serves no more.
                    if let Some(asked) = buffer.get(..length).and_then(|packet| Asked::decode(packet).ok()) {
                        let _ = self.release(&asked);
                    }
                    tokio::task::yield_now().await;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.socket.readable().await.is_err() {
                        tokio::time::sleep(LOOK).await;
                    }
                }
                Ok(Received::End) | Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.known.leave(self.number);
        self.shared.line.lock().leave(self.number);
        self.leave_line();
    }
}

/// Whether a packet went, or has to wait for room.
fn sent(outcome: io::Result<()>) -> Result<bool, End> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Err(End::Closed),
        Err(error) => Err(error.into()),
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}
