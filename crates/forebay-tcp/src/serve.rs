//! One connection of a server: reads requests, has the service answer them, sends the answers.
//!
//! Requests that the service can answer at once are answered by the connection's own task; the others each have a task
//! that the connection owns, on the runtime where the server was started. A connection is read only while its requests, and
//! those of all connections, are within their bounds; while it is not read, the peer is told from time to time that we are alive.
//!
//! A large body is read only when there is memory for it among those of all connections: a connection whose turn has
//! not come is not read. Its replies, and those of all other connections, go out meanwhile. While such a body arrives,
//! which may take longer than a silent peer is believed to live, its sender is told that we are alive, too: it cannot
//! ask, for its question would arrive behind the body.
//!
//! The order of things for a request with a large body: its header is read, what is to be decided about it is decided,
//! memory is reserved, its body is read. How long a peer may take for that is in [`crate::patience`].
//!
//! A connection that is told to go reads no more requests, answers those that it has read, and says that it read no
//! others.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_transport::wire::{CONNECTION_ID, RequestHeader};
use forebay_transport::{Caller, ConnectionAudit, Flags, Op, PendingRecord, answer, subject_of};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::PollSemaphore;

use crate::admit::admit;
use crate::channel::Channel;
use crate::connections::Place;
use crate::end::End;
use crate::greeting::{greet, hear_out};
use crate::in_flight::ZeroCopySends;
use crate::outbox::{Outbox, Outgoing};
use crate::patience::{Arriving, BodyTime, Taking};
use crate::places::Places;
use crate::requests::Requests;
use crate::shared::ServerShared;
use crate::socket;
use forebay_types::{Failure, Subject, TcpZeroCopy};

/// Bytes after which others have their turn: about a millisecond's worth.
const TURN: usize = 4 << 20;
/// What reading and answering once counts as at least: some hundred small requests may have come at once.
const MIN_COST: usize = 256 << 10;
/// How many times as long as a peer may take no bytes the kernel may be done with no zero-copy send: it gives up a peer that
/// acknowledges nothing by itself, but waits for a device for ever.
const STUCK: u32 = 2;

/// Serves `stream`, which has `place`, until it ends.
pub(crate) async fn serve(mut stream: TcpStream, place: Place, shared: Arc<ServerShared>) {
    let mut records = None;
    let greeted = tokio::select! {
        () = place.told().cancelled() => Err(if shared.stop.is_cancelled() { End::Stopped } else { End::Crowded }),
        greeted = greet(&mut stream, &shared.hello, &shared.options) => greeted,
    };
    let peer = greeted.as_ref().ok().and_then(|greeted| greeted.peer.as_ref());
    let identity = peer.map(|peer| &peer.identity);
    let audit =
        shared.options.audit.as_ref().map(|auditing| ConnectionAudit::new(auditing, place.peer().into(), identity));
    let caller = identity.map_or_else(Caller::default, |identity| {
        Caller::proved(identity.role(), identity.name(), &identity.to_string())
    });
    // To a peer that is still at its handshake, plain text would say that nobody here speaks TLS.
    let can_be_told = greeted.is_ok() || shared.options.security.is_none();
    let admitted = greeted.and_then(|greeted| {
        records = greeted.records;
        place.greeted(greeted.peer)
    });
    let mut connection = Serving::new(Channel::new(stream, records), place, audit, shared);
    let outcome = match admitted {
        Ok(()) => {
            connection.caller = caller;
            connection.audit.iter().for_each(|audit| audit.admitted());
            connection.run().await
        }
        Err(refused) => Err(refused),
    };
    let Err(end) = outcome else { return };
    connection.handlers.shutdown().await;
    connection.place.ended(&end);
    if end.turns_away() {
        connection.audit.iter().for_each(|audit| audit.turned_away(&end));
    }
    if let Some(goodbye) = end.goodbye()
        && can_be_told
        && connection.outbox.is_empty()
    {
        connection.outbox.push(Outgoing::goodbye(goodbye));
        // A courtesy: one try.
        let _ = connection.outbox.send(&connection.shared.runtime).await;
    }
    if end.needs_hearing_out() {
        hear_out(connection.channel.stream()).await;
    }
    if end.is_abrupt() {
        // Otherwise the kernel would keep what the peer does not take, and go on offering it.
        let _ = socket::reset(connection.channel.stream());
    }
    let patience = end.patience(&connection.shared.options);
    connection.settle(patience).await;
}

/// A request that waits.
struct Parked {
    header: RequestHeader,
    body: Bytes,
    since: Instant,
}

/// The state of one connection.
struct Serving {
    channel: Arc<Channel>,
    place: Place,
    /// Who its peer proved to be, if it had to.
    caller: Caller,
    /// Who records what it asks for. `None`: nobody.
    audit: Option<Arc<ConnectionAudit>>,
    /// Since when it is idle, as its place knows.
    idle_since: Option<Instant>,
    /// Since when it reads no more, for it was told to go.
    leaving: Option<Instant>,
    shared: Arc<ServerShared>,
    requests: Requests,
    /// Waits for a place among the requests of all connections. Nothing is read meanwhile.
    parked: Option<Parked>,
    places: Places,
    memory: PollSemaphore,
    /// Since when the header of the large body that is waited for, or arrives, is here.
    large_since: Option<Instant>,
    /// The time for the large body that arrives.
    body_time: Option<BodyTime>,
    handlers: JoinSet<Outgoing>,
    outbox: Outbox,
    /// The peer sends no more, but may still wait for replies.
    half_closed: bool,
    /// Whether it was not read when it was last looked at.
    paused: bool,
    /// How a message arrives.
    arriving: Arriving,
    /// When anything was last sent, and said when there was nothing to send.
    sent_at: Instant,
    taking: Taking,
}

impl Serving {
    fn new(channel: Channel, place: Place, audit: Option<Arc<ConnectionAudit>>, shared: Arc<ServerShared>) -> Self {
        // What is encrypted is a copy.
        let choice = if channel.is_encrypted() { TcpZeroCopy::Off } else { shared.options.zero_copy };
        let stays_here = choice == TcpZeroCopy::Auto && socket::is_here(channel.stream(), place.peer());
        let channel = Arc::new(channel);
        let zero_copy = ZeroCopySends::new(choice, stays_here, Arc::clone(&shared.zero_copy));
        let places = Places::new(&shared.places);
        let memory = PollSemaphore::new(Arc::clone(&shared.memory));
        let now = Instant::now();
        Self {
            channel: Arc::clone(&channel),
            place,
            caller: Caller::default(),
            audit,
            idle_since: None,
            leaving: None,
            shared,
            requests: Requests::new(),
            parked: None,
            places,
            memory,
            large_since: None,
            body_time: None,
            handlers: JoinSet::new(),
            outbox: Outbox::new(channel, zero_copy),
            half_closed: false,
            paused: false,
            arriving: Arriving::new(now),
            sent_at: now,
            taking: Taking::default(),
        }
    }

    fn in_flight(&self) -> usize {
        self.handlers.len() + self.outbox.held()
    }

    /// Whether there is a place for one more request, which is taken if need be. What we say of ourselves stands in one, too.
    fn has_place(&mut self) -> bool {
        self.places.take(self.in_flight())
    }

    /// Gives back the places that nothing in flight needs any more.
    fn give_back(&mut self) {
        self.places.give_back(self.in_flight(), self.shared.options.max_requests / 2);
    }

    /// Lets go of all that an ended connection holds but what the kernel still sends, and waits for that.
    async fn settle(mut self, patience: Duration) {
        (self.requests, self.parked) = (Requests::new(), None);
        self.places.keep(self.outbox.unsettled());
        self.outbox.settle(patience, &self.shared.stop).await;
    }

    /// Whether requests may be taken in.
    fn takes_requests(&self) -> bool {
        self.leaving.is_none()
            && self.parked.is_none()
            && self.requests.awaits().is_none()
            && self.in_flight() < self.shared.options.max_requests_per_connection
    }

    async fn run(&mut self) -> Result<(), End> {
        // A token of our own, and waited for once: what all connections share is not touched for each request.
        let mut told = pin!(self.place.told().clone().cancelled_owned());
        let mut unbroken = 0;
        loop {
            // A peer that sends without a pause must not keep its answers waiting.
            while !self.handlers.is_empty()
                && let Some(finished) = self.handlers.try_join_next()
            {
                self.finished(finished);
            }
            self.outbox.look()?;
            self.take_requests()?;
            let sent = match self.outbox.is_empty() {
                true => 0,
                false => {
                    let sent = self.outbox.send(&self.shared.runtime).await?;
                    self.taking.took(sent, self.outbox.is_empty());
                    sent
                }
            };
            if sent > 0 {
                self.sent_at = Instant::now();
                if self.places.are_all_taken() {
                    // Requests that wait for a place come before what waits here.
                    self.give_back();
                }
                // The replies that left made room for requests that are here already, which no socket will tell of.
                self.take_requests()?;
            }
            unbroken += sent.max(MIN_COST);
            if unbroken >= TURN {
                // No other thread takes over the other connections of this thread.
                unbroken = 0;
                tokio::task::yield_now().await;
            }
            self.give_back();
            if self.leaving.is_some() && self.in_flight() == 0 && self.outbox.is_empty() {
                return Err(End::MadeWay);
            }
            let reading = self.takes_requests() && !self.half_closed;
            if self.half_closed && self.handlers.is_empty() && self.outbox.is_empty() && self.parked.is_none() {
                return Err(if self.requests.is_partial() { End::Truncated("request") } else { End::Closed });
            }
            if self.paused == reading {
                self.pause(!reading);
            }
            self.note_use();
            let due = self.due(reading);
            let awaited = self.requests.awaits().unwrap_or(0);
            tokio::select! {
                biased;
                () = &mut told => {
                    if self.shared.stop.is_cancelled() {
                        return Err(End::Stopped);
                    }
                    if let Some(identity) = self.place.denied() {
                        return Err(End::Denied(identity));
                    }
                    self.leaving = Some(Instant::now());
                    told.set(self.shared.stop.clone().cancelled_owned());
                }
                ready = self.channel.readable(), if reading => {
                    ready?;
                    self.receive()?;
                    if self.large_since.is_some() {
                        // As long as there are bytes, nothing else here would let others run, nor look at the clock.
                        tokio::task::yield_now().await;
                        if due.is_some_and(|due| Instant::now() >= due) {
                            self.overdue(reading)?;
                        }
                    }
                }
                Some(finished) = self.handlers.join_next(), if !self.handlers.is_empty() => self.finished(finished),
                ready = self.outbox.ready(), if self.outbox.awaits() => ready?,
                // Otherwise the semaphore is closed, which it never is.
                true = poll_fn(|context| self.places.poll_take(context)), if self.parked.is_some() => {
                    if let Some(Parked { mut header, body, since }) = self.parked.take() {
                        header.deadline = header.deadline.saturating_sub(since.elapsed());
                        self.answer(header, body);
                    }
                }
                permit = poll_fn(|context| self.memory.poll_acquire_many(context, awaited)), if awaited > 0 => {
                    if let Some(permit) = permit {
                        self.allocate(awaited, permit);
                    }
                }
                () = sleep_until(due), if due.is_some() => self.overdue(reading)?,
            }
        }
    }

    fn receive(&mut self) -> Result<(), End> {
        if !self.requests.is_partial() {
            self.arriving = Arriving::new(Instant::now());
        }
        match self.requests.receive(|buffers| self.channel.receive(buffers)) {
            Ok(0) => self.half_closed = true,
            Ok(count) => self.arriving.got(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// It is not read, or read again. The time for a message does not pass while we do not read it.
    fn pause(&mut self, paused: bool) {
        self.paused = paused;
        match &mut self.body_time {
            Some(body) if paused => body.pause(Instant::now()),
            Some(body) => body.resume(Instant::now()),
            None => {}
        }
        if !paused {
            self.arriving = Arriving::new(Instant::now());
        }
    }

    /// Has its place know since when it is idle.
    fn note_use(&mut self) {
        let is_idle = self.in_flight() == 0 && self.parked.is_none() && !self.requests.is_partial();
        let idle_since = is_idle.then_some(self.sent_at);
        if idle_since != self.idle_since {
            self.idle_since = idle_since;
            self.place.used(idle_since);
        }
    }

    /// Takes in the requests that have arrived, as far as the bounds allow.
    fn take_requests(&mut self) -> Result<(), End> {
        let mut took = false;
        while self.takes_requests()
            && let Some((mut header, body)) = self.next_request()?
        {
            took = true;
            if let Some(since) = self.large_since.take() {
                header.deadline = header.deadline.saturating_sub(since.elapsed());
                self.body_time = None;
            }
            if header.op == Op::Ping && header.id == CONNECTION_ID {
                self.outbox.push(Outgoing::alive());
            } else if self.has_place() {
                self.answer(header, body);
            } else {
                self.parked = Some(Parked { header, body, since: Instant::now() });
            }
        }
        if took && self.requests.is_partial() {
            self.arriving = Arriving::new(Instant::now());
        }
        Ok(())
    }

    /// The next request that has arrived in full. A large body gets its memory if there is some: between its header and
    /// that is the place to decide whether its sender may ask for this at all.
    fn next_request(&mut self) -> Result<Option<(RequestHeader, Bytes)>, End> {
        loop {
            let next = self.requests.next()?;
            let Some(length) = self.requests.awaits() else { return Ok(next) };
            if let Some(op) = self.requests.awaited_op()
                && let Some(refused) = self.refusal(op, Flags::default())
            {
                self.audit.iter().for_each(|audit| audit.refused(op, &Subject::default(), &refused));
                // To hear its body out would take as long as to take it in.
                return Err(End::Forbidden(refused));
            }
            self.large_since = Some(Instant::now());
            let Ok(permit) = Arc::clone(&self.shared.memory).try_acquire_many_owned(length) else { return Ok(None) };
            self.allocate(length, permit);
        }
    }

    /// Memory for a large body of `length` bytes, whose time begins.
    fn allocate(&mut self, length: u32, permit: OwnedSemaphorePermit) {
        self.requests.allocate(permit);
        self.body_time = Some(BodyTime::new(length, &self.shared.options, Instant::now()));
    }

    /// Why its peer may not ask for `op` with `flags`, if that is so. Who had to prove nothing may ask for everything.
    fn refusal(&self, op: Op, flags: Flags) -> Option<Failure> {
        op.refusal(flags, self.caller.role()?)
    }

    /// Has the service answer: at once, or in a task. Who is to be admitted elsewhere, it answers itself.
    fn answer(&mut self, header: RequestHeader, body: Bytes) {
        let (id, request) = (header.id, header.with_body(body).by(self.caller.clone()));
        if let Some(refused) = self.refusal(request.op, request.flags) {
            let record = |audit: &Arc<ConnectionAudit>| audit.refused(request.op, &subject_of(&request), &refused);
            self.audit.iter().for_each(record);
            self.outbox.push(Outgoing::answer(id, Err(refused)));
            return;
        }
        let pending = self.audit.as_ref().and_then(|audit| audit.begin(&request));
        let shared = &self.shared;
        if request.op == Op::Admit {
            let answer = admit(shared.options.passes.as_deref(), self.place.proved(), &request.body);
            PendingRecord::answered(pending, &answer);
            self.outbox.push(Outgoing::answer(id, answer));
            return;
        }
        if let Some(response) = shared.service.try_handle(&request) {
            let answer = response.fitting(&request);
            PendingRecord::answered(pending, &answer);
            self.outbox.push(Outgoing::answer(id, answer));
            return;
        }
        let (service, takes_files) = (Arc::clone(&shared.service), shared.options.takes_files);
        let answering = async move {
            let answer = answer(&*service, request, takes_files).await;
            PendingRecord::answered(pending, &answer);
            Outgoing::answer(id, answer)
        };
        self.handlers.spawn_on(answering, &shared.runtime);
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
        let stalled = self.taking.due(options.stall_timeout);
        let stuck = self.outbox.stands_since().map(|since| since + STUCK * options.stall_timeout);
        let late = (reading && self.requests.is_partial()).then(|| self.arriving.due(options.hello_timeout));
        let silent = self.silent_since(reading).map(|since| since + options.keepalive);
        let usual = [stalled, stuck, late, silent].into_iter().flatten().min();
        if self.body_time.is_none() && self.leaving.is_none() {
            return usual;
        }
        let body = self.body_time.as_ref().filter(|_| reading).map(BodyTime::due);
        let gone = self.leaving.map(|since| since + options.stall_timeout);
        [usual, body, gone].into_iter().flatten().min()
    }

    /// Since when the peer waits for a sign of life that it cannot ask for.
    fn silent_since(&self, reading: bool) -> Option<Instant> {
        let since = if reading { self.large_since?.max(self.sent_at) } else { self.sent_at };
        self.outbox.is_empty().then_some(since)
    }

    fn overdue(&mut self, reading: bool) -> Result<(), End> {
        let (options, now) = (&self.shared.options, Instant::now());
        let is_wanted = self.places.are_all_taken();
        if let Some(waited) = self.taking.overdue(options.stall_timeout, is_wanted, now) {
            return Err(End::Stalled(waited));
        }
        if self.leaving.is_some_and(|since| now >= since + options.stall_timeout) {
            return Err(End::Unfinished(options.stall_timeout));
        }
        if self.outbox.stands_since().is_some_and(|since| now >= since + STUCK * options.stall_timeout) {
            return Err(End::Stalled(STUCK * options.stall_timeout));
        }
        if reading && self.requests.is_partial() && now >= self.arriving.due(options.hello_timeout) {
            let what = if self.large_since.is_some() { "64 KiB of a request" } else { "request" };
            return Err(End::Late { what, waited: options.hello_timeout });
        }
        if let Some(body) = self.body_time.as_ref().filter(|body| reading && now >= body.due()) {
            return Err(End::SlowUpload(body.whole()));
        }
        if self.silent_since(reading).is_some_and(|since| now >= since + options.keepalive) {
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
