//! A client's connection to one worker over verbs.
//!
//! A read says where its payload may be written: through a window onto the caller's buffer, which the card has until the answer has
//! ended the use of its key. So a caller that leaves leaves its buffer; nobody else has it until then, or until the connection was
//! drained. What it knows the place of it reads by itself (`reader.rs`), and asks for it if it finds something else there.
//! Payload up to 4 KiB comes with the answer, and is copied; what there is no window for waits for one.
//!
//! On a card without windows payload comes before its answer, in messages, each of which is copied as it comes (`payload.rs`). What comes
//! of a call whose caller has left is dropped, and its buffer is free at once: no card writes there.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use bytes::Bytes;
use forebay_one_sided::{Fault, RemotePlace};
use forebay_transport::connection::{Liveness, Outstanding};
use forebay_transport::wire::{CONNECTION_ID, HEADER_LEN, ReplyHeader};
use forebay_transport::{Flags, LinkError, Op, Provenance, Reply, Request};
use forebay_verbs::{CompletionQueue, QueuePair, Read, ReadDone, Remote};
use tokio_util::sync::CancellationToken;

use crate::client_link::{Call, ClientLink, Command, LinkState, landed};
use crate::gauges::Gauges;
use crate::options::ClientOptions;
use crate::verbs::channel::{Channel, Incoming, Outgoing};
use crate::verbs::connecting::connect;
use crate::verbs::core::Core;
use crate::verbs::exchange::{Answered, land, outgoing};
use crate::verbs::frame::{Kind, MAX_INSIDE, Offer, check_hello, hello};
use crate::verbs::links::{Link, Receiver};
use crate::verbs::options::max_abandoned;
use crate::verbs::payload::Piece;
use crate::verbs::reader::{Reader, UnderWay};
use crate::wire::{self, Received};

/// An open connection.
pub(crate) struct Connection {
    state: LinkState,
    link: Rc<Link>,
    gauges: Arc<Gauges>,
    /// Calls that wait for a window.
    waiting: RefCell<VecDeque<(Request, Call)>>,
    /// Payload comes in messages.
    in_messages: bool,
    /// What reads the worker's memory. `None`: the worker does not let us, or it is not wanted.
    reader: Option<Reader>,
}

/// A connection that is being made: ended if it does not come to be.
struct Greeting(Option<Rc<Link>>);

impl Drop for Greeting {
    fn drop(&mut self) {
        if let Some(link) = self.0.take() {
            link.fail("nobody waits for it any more");
            link.destroy();
        }
    }
}

impl Connection {
    /// Connects and exchanges hellos, with completions on queues of its own, or on one of the I/O thread's.
    pub(super) async fn greet_on(
        core: &Rc<Core>,
        own: Option<[&Arc<CompletionQueue>; 2]>,
        peer: &Arc<str>,
        address: SocketAddr,
        options: &ClientOptions,
    ) -> Result<Rc<Self>, LinkError> {
        let pass = options.pass(core.client_id, peer).await?;
        let client_id = pass.map(|_| core.client_id);
        let ours = if own.is_some() { core.fabric.lone() } else { core.fabric.client() };
        let can_read = !ours.in_messages && core.registration.domain().device().reads_safely();
        let offer = Offer { client_id, one_sided: options.one_sided && can_read, ..ours };
        let link = connect(core, own, address, options.bind, offer, options.connect_timeout).await;
        let (link, reads) = link.map_err(|reason| LinkError::Connect { peer: peer.to_string(), reason })?;
        let mut greeting = Greeting(Some(Rc::clone(&link)));
        let reader = reads.then(|| Reader::new(&core.gauges));
        let calls = RefCell::new(Outstanding::new(max_abandoned(&ours, options.max_abandoned)));
        let state = LinkState { calls, ..LinkState::new(peer, pass, options) };
        let connection = Self::over(core, link, state, reader);
        let tag = pass.map_or(0, |pass| pass.client);
        connection.link.send(Outgoing::new(Kind::Hello, &hello(&connection.state.hello, tag)));
        connection.greeted().await?;
        greeting.0 = None;
        core.gauges.count_connection();
        Ok(connection)
    }

    /// A connection of the I/O thread's, which hears of what comes over `link`. It is to be counted.
    pub(super) fn over(core: &Core, link: Rc<Link>, state: LinkState, reader: Option<Reader>) -> Rc<Self> {
        let (gauges, waiting) = (Arc::clone(&core.gauges), RefCell::default());
        let in_messages = core.fabric.client().in_messages;
        let connection = Rc::new(Self { state, link, gauges, waiting, in_messages, reader });
        let receiver: Weak<Self> = Rc::downgrade(&connection);
        connection.link.set_receiver(receiver);
        connection
    }

    /// What a thread drives by itself from now on, of a connection that has nothing under way: its queue pair, and what is posted to it.
    /// It is none of the I/O thread's any more, which sets `has_ended` when rdma_cm says so. `None`: it was broken, or its worker
    /// goes, or lets us read its memory, which takes more than is here.
    pub(super) fn apart(&self, has_ended: &Arc<AtomicBool>) -> Option<(QueuePair, Channel)> {
        // What came behind the welcome may have broken it already.
        let goes_on = !self.state.outlived.get() && self.state.broken.borrow().is_none();
        let is_plain = self.reader.is_none() && goes_on;
        if is_plain { self.link.apart(has_ended) } else { None }
    }

    /// Whether the worker lets us read its memory.
    pub(super) fn reads_alone(&self) -> bool {
        self.reader.is_some()
    }

    /// Reads what it is known the place of, or sends a request, unless it needs a window that is not free.
    fn begin(&self, request: Request, call: Call) -> Option<(Request, Call)> {
        let Some(reader) = &self.reader else { return self.ask(request, call) };
        let (request, call) = self.read_alone(reader, request, call)?;
        let flags = if request.op == Op::Read { request.flags.and(Flags::LOCATE) } else { request.flags };
        self.ask(Request { flags, ..request }, call)
    }

    /// Reads the worker's memory, or gives back what is to be asked of the worker.
    fn read_alone(&self, reader: &Reader, request: Request, mut call: Call) -> Option<(Request, Call)> {
        let Some(into) = &call.into else { return Some((request, call)) };
        let Some((plan, requests)) = reader.plan(&request, Instant::now()) else { return Some((request, call)) };
        let can_read = self.link.with_pair(|pair| pair.can_read(into, plan.len(), plan.seals_len()));
        let Some(into) = call.into.take_if(|_| can_read == Some(true)) else { return Some((request, call)) };
        let number = reader.begin(UnderWay { plan, request, call });
        let remote = |RemotePlace { address, key }| Remote { address, key };
        let (data, seals) = (remote(requests.data), remote(requests.seals));
        let read = Read { number, into, length: plan.len(), data, seals, seals_length: plan.seals_len() };
        let reason = match self.link.with_pair(|pair| pair.read(read)) {
            Some(Ok(())) => return None,
            Some(Err(error)) => error.to_string(),
            None => "it has ended".to_owned(),
        };
        if let Some(UnderWay { call, .. }) = reader.end(number) {
            call.end(Err(self.state.lost(reason.clone()).into()));
        }
        self.link.fail(reason);
        None
    }

    /// Sends a request, unless it needs a window that is not free.
    fn ask(&self, request: Request, mut call: Call) -> Option<(Request, Call)> {
        let wants_window = !self.in_messages && request.op.brings_payload() && request.length > MAX_INSIDE;
        if wants_window && !self.link.with_pair(|pair| pair.has_window()).unwrap_or(true) {
            return Some((request, call));
        }
        let mut offered = None;
        if wants_window && let Some(into) = call.into.take() {
            match self.link.with_pair(|pair| pair.expose(into)) {
                Some(Ok(exposure)) => {
                    call.window = Some(exposure.window);
                    offered = Some((exposure.remote, exposure.window));
                }
                Some(Err(error)) => {
                    call.end(Err(self.state.lost(error.to_string()).into()));
                    return None;
                }
                None => {
                    call.end(Err(self.state.lost("it has ended").into()));
                    return None;
                }
            }
        }
        let begun = self.state.calls.borrow_mut().begin(call);
        match begun {
            Ok(begun) => {
                if let Some(reader) = self.reader.as_ref().filter(|_| request.flags.contains(Flags::LOCATE)) {
                    reader.ask(begun.id, request.block);
                }
                self.send(begun.id, &request, offered);
            }
            // It takes no more; a buffer that was exposed goes with it.
            Err(call) => call.end(Err(self.state.lost("it takes no more calls").into())),
        }
        None
    }

    fn send(&self, id: u64, request: &Request, offered: Option<(forebay_verbs::Remote, usize)>) {
        // If it fails, so does the link, which is noticed.
        self.link.send(outgoing(id, request, offered, self.state.pass.as_ref()));
    }

    /// Begins what waits for windows, as far as there are some. What waits when no more calls are taken is for another connection.
    fn begin_waiting(&self) {
        while self.state.calls.borrow().is_accepting() {
            let next = self.waiting.borrow_mut().pop_front();
            let Some((request, call)) = next else { return };
            if !call.has_caller() {
                call.end(Err(self.state.lost("its caller has left").into()));
                continue;
            }
            if let Some(again) = self.begin(request, call) {
                self.waiting.borrow_mut().push_front(again);
                return;
            }
        }
    }

    fn on_welcome(&self, message: &Incoming) {
        if self.state.greeted.get() && self.state.pass.is_some() {
            return self.gauges.count_forged(&self.state.peer);
        }
        self.state.welcomed(check_hello(&self.state.hello, &message.bytes));
    }

    /// A reply, or a message about the connection; why it breaks the protocol.
    fn on_reply(&self, message: &Incoming, receive: u32) -> Result<(), String> {
        let state = &self.state;
        // Before it has greeted, a peer need not know the pass: it may only say why it does not.
        if state.greeted.get() && state.pass.is_some_and(|pass| !wire::carries(&message.bytes, pass.server)) {
            self.gauges.count_forged(&state.peer);
            return Ok(());
        }
        let (header, body, inside) = parts(message)?;
        if header.id == CONNECTION_ID {
            state.told(header.failure(&body));
            return Ok(());
        }
        if let Some(reader) = &self.reader {
            reader.answered(header.id, &message.bytes, Instant::now())?;
        }
        let call = state.answered(&header)?;
        let (is_written, in_messages) = (message.header.is_written, self.in_messages);
        let answered = Answered { header, body, inside, is_written, in_messages };
        answered.end(call, &state.peer, |window| self.link.take_back(window, receive))?;
        self.begin_waiting();
        Ok(())
    }

    /// A read of the worker's memory has ended: it is believed, or the worker is asked.
    fn has_read_alone(&self, reader: &Reader, ReadDone { number, into, seals }: ReadDone) {
        self.state.heard.set(Instant::now());
        let Some(UnderWay { plan, request, mut call }) = reader.end(number) else { return };
        let judged = into.get(..plan.len()).map_or(Err(Fault::Length), |data| plan.judge(data, &seals));
        match judged {
            Ok(()) => {
                reader.believed();
                let provenance = Provenance { memory: request.length, ..Provenance::default() };
                let payload = landed(Some(into), plan.len());
                call.end(Ok(Reply { provenance, body: Bytes::new(), payload }));
            }
            Err(fault) => {
                reader.mistaken(&plan, fault);
                call.into = Some(into);
                let flags = if fault.is_corrupt() { request.flags.and(Flags::SCRUB) } else { request.flags };
                self.waiting.borrow_mut().push_back((Request { flags, ..request }, call));
            }
        }
        self.say_forgotten(reader);
        self.begin_waiting();
    }

    /// Says that what the worker took back is forgotten, once nothing is read any more.
    fn say_forgotten(&self, reader: &Reader) {
        if reader.says_forgotten() {
            self.link.send(Outgoing::new(Kind::Forgotten, &[]));
        }
    }

    /// Returns when the peer's hello has come and was right.
    async fn greeted(&self) -> Result<(), LinkError> {
        loop {
            if let Some(error) = self.state.broken.borrow_mut().take() {
                return Err(error);
            }
            if self.state.greeted.get() {
                return Ok(());
            }
            tokio::select! {
                () = self.state.changed.notified() => {}
                reason = self.link.failed() => {
                    return Err(LinkError::Connect { peer: self.state.peer.to_string(), reason });
                }
            }
        }
    }
}

/// A reply's header, its body, and the payload that came with it.
pub(super) fn parts(message: &Incoming) -> Result<(ReplyHeader, Bytes, &[u8]), String> {
    let cut_off = || "a reply's header is cut off".to_owned();
    let first = message.bytes.first_chunk::<HEADER_LEN>().ok_or_else(cut_off)?;
    let header = ReplyHeader::decode(first).map_err(|error| error.to_string())?;
    let (head, inside) = message.bytes.split_at_checked(HEADER_LEN + header.body_len as usize).ok_or_else(cut_off)?;
    let data = match message.header.is_written {
        true => Received::Announced(header.payload_len as usize),
        false => Received::Here(inside),
    };
    let (header, body, _) = wire::reply(head, data)?;
    Ok((header, body, inside))
}

impl Receiver for Connection {
    fn message(&self, _link: &Rc<Link>, message: &Incoming, receive: u32) -> Result<(), String> {
        self.state.heard.set(Instant::now());
        match message.header.kind {
            Kind::Welcome => {
                self.on_welcome(message);
                Ok(())
            }
            Kind::Reply => self.on_reply(message, receive),
            // A worker that has not greeted has nothing to tell.
            kind => match (kind, self.reader.as_ref().filter(|_| self.state.greeted.get())) {
                (Kind::Opened, Some(reader)) => reader.opened(&message.bytes),
                (Kind::Forget, Some(reader)) => {
                    reader.forget();
                    self.say_forgotten(reader);
                    Ok(())
                }
                _ => Err(format!("a message of kind {} is not for a client", kind as u8)),
            },
        }
    }

    fn piece(&self, piece: Piece<'_>) -> Result<(), String> {
        self.state.heard.set(Instant::now());
        // There is no call before it has greeted.
        let mut calls = self.state.calls.borrow_mut();
        land(self.in_messages, calls.call_mut(piece.call), &piece, &self.gauges)
    }

    fn has_read(&self, done: ReadDone) {
        if let Some(reader) = &self.reader {
            self.has_read_alone(reader, done);
        }
    }

    fn broke_protocol(&self, _link: &Rc<Link>, reason: String) {
        self.state.protocol(reason);
    }
}

impl ClientLink for Connection {
    type Core = Core;

    fn stop(core: &Core) -> &CancellationToken {
        &core.stop
    }

    async fn greet(
        core: &Rc<Core>,
        peer: &Arc<str>,
        address: SocketAddr,
        options: &ClientOptions,
    ) -> Result<Rc<Self>, LinkError> {
        let connection = Self::greet_on(core, None, peer, address, options).await?;
        tracing::info!(
            peer = &**peer,
            card = core.registration.domain().device().name(),
            payload = if connection.in_messages { "in messages" } else { "through memory windows" },
            "RDMA client connected by verbs"
        );
        Ok(connection)
    }

    fn state(&self) -> &LinkState {
        &self.state
    }

    fn start(
        self: &Rc<Self>,
        _core: &Rc<Core>,
        request: Request,
        mut call: Call,
        liveness: &mut Liveness,
    ) -> Option<Command> {
        if !self.state.calls.borrow().is_accepting() {
            return Some(Command::Call(request, call));
        }
        if let Some(timing) = &mut call.timing {
            timing.sent();
        }
        if !self.watch() {
            liveness.heard(Instant::now());
        }
        // In their turn.
        self.waiting.borrow_mut().push_back((request, call));
        self.begin_waiting();
        None
    }

    fn ping(&self, _core: &Core, request: &Request) {
        self.send(CONNECTION_ID, request, None);
    }

    /// A buffer that the peer may write to stays until the answer has come.
    fn sweep(&self) {
        let mut calls = self.state.calls.borrow_mut();
        let mut left = Vec::new();
        for (id, call) in calls.calls_mut() {
            if !call.has_caller() {
                call.into = None;
                left.push(id);
            }
        }
        for id in left {
            calls.abandon(id);
        }
        drop(calls);
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        let (stay, leave): (VecDeque<_>, VecDeque<_>) = waiting.into_iter().partition(|(_, call)| call.has_caller());
        *self.waiting.borrow_mut() = stay;
        leave.into_iter().for_each(|(_, call)| call.end(Err(self.state.lost("its caller has left").into())));
    }

    fn watch(&self) -> bool {
        let reads = self.reader.as_ref().is_some_and(Reader::is_busy);
        self.state.calls.borrow_mut().watch() || reads || !self.waiting.borrow().is_empty()
    }

    fn is_spent(&self) -> bool {
        let reads = self.reader.as_ref().is_some_and(Reader::is_busy);
        self.state.calls.borrow().is_spent() && !reads && self.waiting.borrow().is_empty()
    }

    fn take_waiting(&self) -> VecDeque<(Request, Call)> {
        std::mem::take(&mut *self.waiting.borrow_mut())
    }

    /// Calls that wait have nothing under way.
    fn forget(&self, core: &Core) {
        core.gauges.discount_connection();
        // Their buffers are the card's until it was drained.
        let reads = self.reader.as_ref().map(Reader::end_all).unwrap_or_default();
        reads
            .into_iter()
            .for_each(|read| read.call.end(Err(self.state.lost("it ended in the middle of a read").into())));
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        waiting
            .into_iter()
            .for_each(|(_, call)| call.end(Err(self.state.lost("it ended before they were sent").into())));
    }

    async fn failed(&self) -> String {
        self.link.failed().await
    }

    async fn close(&self) {
        self.link.close().await;
    }
}
