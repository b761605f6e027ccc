//! The connections of an I/O thread: who gets what has ended on a card, and what rdma_cm tells.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use forebay_verbs::{Completion, Ended, Event, EventKind, Id, Post, QueuePair, ReadDone};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::verbs::channel::{Channel, Incoming, Next, Outgoing, takes_credit};

/// How long it may take until nothing of a broken connection is under way any more. A card tells so at once; after this its queue pair is
/// destroyed all the same, which ends it, too.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);

/// How a connection has broken whose requests are flushed, of which none has failed. The card that answers a request that may not be
/// made ends its queue pair, and tells the other one why.
const NO_REASON: &str =
    "the card has ended the connection: the peer asked of it what it may not, or closed it, and says why in its log";

/// What listens to a connection.
pub(crate) trait Receiver {
    /// A message has come, whose end lies in `receive` ([`Link::take_back`]).
    ///
    /// # Errors
    /// How it breaks the protocol.
    fn message(&self, link: &Rc<Link>, message: &Incoming, receive: u32) -> Result<(), String>;

    /// A read of the peer's memory has ended as it should.
    fn has_read(&self, _done: ReadDone) {}

    /// The peer breaks the protocol.
    fn broke_protocol(&self, link: &Rc<Link>, reason: String);
}

/// Who is told of an id's events.
enum Sink {
    /// One that connects, or listens.
    Waiting(mpsc::UnboundedSender<Event>),
    /// A connection.
    Link(Weak<Link>),
}

/// All of them.
#[derive(Default)]
pub(crate) struct Links {
    by_number: RefCell<HashMap<u32, Rc<Link>>>,
    sinks: RefCell<HashMap<usize, Sink>>,
    /// Those that may have something to post.
    touched: RefCell<Vec<Rc<Link>>>,
    /// Completions are being handed out: what is to be posted waits until that is over, and goes in one go.
    is_busy: Cell<bool>,
}

impl Links {
    /// Hands out completions.
    pub(crate) fn completed(&self, completions: impl Iterator<Item = Completion>) {
        self.is_busy.set(true);
        for completion in completions {
            let link = self.by_number.borrow().get(&completion.queue_pair()).map(Rc::clone);
            if let Some(link) = link {
                link.completed(completion);
            }
        }
        self.is_busy.set(false);
        loop {
            let touched = self.touched.borrow_mut().pop();
            let Some(link) = touched else { break };
            link.is_touched.set(false);
            link.flush();
        }
    }

    /// Has the events of `id` sent to the receiver that is given back.
    pub(crate) fn listen_to(&self, id: &Id) -> mpsc::UnboundedReceiver<Event> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.sinks.borrow_mut().insert(id.key(), Sink::Waiting(sender));
        receiver
    }

    /// Nobody is told of the events of an id any more.
    pub(crate) fn forget_id(&self, key: usize) {
        self.sinks.borrow_mut().remove(&key);
    }

    /// Tells whom an event concerns. One that concerns nobody is dropped; who wants to connect is rejected by that.
    pub(crate) fn tell(&self, event: Event) {
        let link = match self.sinks.borrow().get(&event.about) {
            // It may have left.
            Some(Sink::Waiting(sender)) => return drop(sender.send(event)),
            Some(Sink::Link(link)) => link.upgrade(),
            None => None,
        };
        if let Some(link) = link {
            link.told(&event);
        }
    }

    /// Makes a connection of a queue pair. Its events are its own from here on.
    pub(crate) fn add(self: &Rc<Self>, pair: QueuePair, channel: Channel) -> Rc<Link> {
        let (number, id) = (pair.number(), pair.id().key());
        let link = Rc::new(Link {
            links: Rc::clone(self),
            number,
            id,
            pair: RefCell::new(Some(pair)),
            channel: RefCell::new(channel),
            receiver: RefCell::new(None),
            failure: RefCell::new(None),
            failed: CancellationToken::new(),
            progress: Notify::new(),
            is_touched: Cell::new(false),
        });
        self.by_number.borrow_mut().insert(number, Rc::clone(&link));
        self.sinks.borrow_mut().insert(id, Sink::Link(Rc::downgrade(&link)));
        link
    }

    /// Breaks all of them off; whoever has one closes it.
    pub(crate) fn fail_all(&self, reason: &str) {
        let all: Vec<_> = self.by_number.borrow().values().map(Rc::clone).collect();
        all.iter().for_each(|link| link.fail(reason));
    }

    /// Whether none is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_number.borrow().is_empty()
    }

    /// Destroys what is left, whatever its owners do.
    pub(crate) fn destroy_all(&self) {
        self.sinks.borrow_mut().clear();
        let all: Vec<_> = self.by_number.borrow().values().map(Rc::clone).collect();
        all.iter().for_each(|link| link.destroy());
    }
}

/// One connection: a queue pair, and the channel that says what is posted to it.
pub(crate) struct Link {
    links: Rc<Links>,
    number: u32,
    id: usize,
    /// `None` once it was destroyed.
    pair: RefCell<Option<QueuePair>>,
    channel: RefCell<Channel>,
    receiver: RefCell<Option<Weak<dyn Receiver>>>,
    /// How it broke.
    failure: RefCell<Option<String>>,
    failed: CancellationToken,
    /// Something has ended.
    progress: Notify,
    is_touched: Cell<bool>,
}

impl Link {
    /// Its number among those of its card.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Has messages handed to `receiver`.
    pub(crate) fn set_receiver(&self, receiver: Weak<dyn Receiver>) {
        *self.receiver.borrow_mut() = Some(receiver);
    }

    /// What `ask` says of the queue pair, if it is there still.
    pub(crate) fn with_pair<T>(&self, ask: impl FnOnce(&mut QueuePair) -> T) -> Option<T> {
        self.pair.borrow_mut().as_mut().map(ask)
    }

    /// Sends a message: at once, or when completions that are being handed out were.
    pub(crate) fn send(self: &Rc<Self>, message: Outgoing) {
        self.channel.borrow_mut().push(message);
        self.touch();
    }

    fn touch(self: &Rc<Self>) {
        if !self.links.is_busy.get() {
            self.flush();
        } else if !self.is_touched.replace(true) {
            self.links.touched.borrow_mut().push(Rc::clone(self));
        }
    }

    /// Posts what may be posted.
    fn flush(&self) {
        let posted = self.with_pair(|pair| post_all(pair, &mut self.channel.borrow_mut()));
        if let Some(Err(reason)) = posted {
            self.fail(reason);
        }
    }

    /// It is broken, for this reason unless there was one before: what is posted is flushed.
    pub(crate) fn fail(&self, reason: impl Into<String>) {
        if self.failed.is_cancelled() {
            return;
        }
        *self.failure.borrow_mut() = Some(reason.into());
        self.failed.cancel();
        self.with_pair(QueuePair::disconnect);
        self.progress.notify_waiters();
    }

    /// Returns when it is broken; how it broke.
    pub(crate) async fn failed(&self) -> String {
        self.failed.cancelled().await;
        self.failure.borrow().clone().unwrap_or_default()
    }

    /// Messages that the peer has not taken, as far as is known.
    pub(crate) fn under_way(&self) -> usize {
        self.channel.borrow().waiting() + self.with_pair(|pair| pair.under_way()).unwrap_or(0)
    }

    /// Those that it has taken, or that failed.
    pub(crate) fn ended_count(&self) -> u64 {
        self.with_pair(|pair| pair.ended_count()).unwrap_or(u64::MAX)
    }

    /// Returns when all that was sent until now was taken, whether it was.
    pub(crate) async fn taken(&self) -> bool {
        let last = self.ended_count().saturating_add(self.under_way() as u64);
        loop {
            if self.failed.is_cancelled() {
                return false;
            }
            if self.ended_count() >= last {
                return true;
            }
            self.progress.notified().await;
        }
    }

    /// The buffer that the peer could write to by this window, if the message that ends in `receive` has ended that.
    pub(crate) fn take_back(&self, window: usize, receive: u32) -> Option<forebay_memory::SpanMut> {
        self.with_pair(|pair| pair.take_back(window, receive)).flatten()
    }

    fn completed(self: &Rc<Self>, completion: Completion) {
        match self.with_pair(|pair| pair.ended(completion)) {
            Some(Ended::Received { receive, length }) => self.arrived(receive, length),
            Some(Ended::Failed(reason)) => self.given_up(reason),
            Some(Ended::Flushed) => self.fail(NO_REASON),
            Some(Ended::Sent) => self.hand_out_reads(),
            None => {}
        }
        self.progress.notify_waiters();
        self.touch();
    }

    /// The card has given up a request. The peer's card may know nothing of it, or no reason, so this end says it, once: what comes
    /// after the end of a connection is flushed.
    #[cold]
    fn given_up(&self, reason: String) {
        tracing::warn!(queue_pair = self.number, reason, "a card has given up an RDMA connection");
        self.fail(reason);
    }

    fn hand_out_reads(&self) {
        while let Some(done) = self.with_pair(QueuePair::next_read).flatten() {
            let receiver = self.receiver.borrow().as_ref().and_then(Weak::upgrade);
            if let Some(receiver) = receiver {
                receiver.has_read(done);
            }
        }
    }

    fn arrived(self: &Rc<Self>, receive: u32, length: usize) {
        let looked_at = self.with_pair(|pair| {
            let frame = pair.message_in(receive, length);
            (self.channel.borrow_mut().received(frame), takes_credit(frame))
        });
        let Some((received, took_credit)) = looked_at else { return };
        let receiver = self.receiver.borrow().as_ref().and_then(Weak::upgrade);
        let outcome = match received {
            Ok(None) => Ok(()),
            Ok(Some(message)) => {
                let outcome = receiver.as_ref().map_or(Ok(()), |receiver| receiver.message(self, &message, receive));
                self.channel.borrow_mut().recycle(message.bytes);
                outcome
            }
            Err(error) => Err(error.to_string()),
        };
        if let (Err(reason), Some(receiver)) = (outcome, receiver) {
            receiver.broke_protocol(self, reason);
        }
        if self.failed.is_cancelled() {
            return;
        }
        if let Some(Err(error)) = self.with_pair(|pair| pair.receive_again(receive)) {
            self.fail(error.to_string());
        }
        self.channel.borrow_mut().receives_again(took_credit);
    }

    /// Something has happened to it, rdma_cm says.
    pub(crate) fn told(&self, event: &Event) {
        match event.kind {
            EventKind::Established | EventKind::TimewaitExit => {}
            EventKind::Disconnected => self.fail("the peer has ended the connection"),
            EventKind::Rejected => self.fail("the peer has rejected the connection"),
            EventKind::AddressResolved
            | EventKind::RouteResolved
            | EventKind::ConnectRequest
            | EventKind::Accepted
            | EventKind::Failed => self.fail(format!("{} (status {})", event.name, event.status)),
        }
    }

    /// Ends it, and returns when its card does nothing for it any more: all that the card could use is free then.
    pub(crate) async fn close(&self) {
        self.fail("it was closed");
        let drained = async {
            while !self.with_pair(|pair| pair.is_drained()).unwrap_or(true) {
                self.progress.notified().await;
            }
        };
        if tokio::time::timeout(DRAIN_WITHIN, drained).await.is_err() {
            tracing::warn!(
                queue_pair = self.number,
                "the card does not tell that a broken connection has ended; it is destroyed"
            );
        }
        self.destroy();
    }

    /// The same at once: what the card may use is free when its queue pair is gone.
    pub(crate) fn destroy(&self) {
        let pair = self.pair.borrow_mut().take();
        if pair.is_some() {
            self.links.by_number.borrow_mut().remove(&self.number);
            self.links.forget_id(self.id);
        }
        drop(pair);
        self.progress.notify_waiters();
    }
}

/// Posts what the channel wants posted, as far as there is room for it.
///
/// # Errors
/// Why the connection cannot go on.
fn post_all(pair: &mut QueuePair, channel: &mut Channel) -> Result<(), String> {
    while let Some(next) = channel.next() {
        let requests = match next {
            Next::Frame { binds, spans } => pair.requests_of(binds, spans),
            Next::Credits => pair.requests_of(false, 0),
        };
        if !pair.takes(requests) {
            return Err(format!("a reply is made of too many pieces of memory, {requests} requests"));
        }
        if !pair.has_room(requests) {
            return Ok(());
        }
        let sent = match next {
            Next::Frame { .. } => {
                let post = channel.begin();
                pair.send(post, |frame| channel.fill(frame))
            }
            // Nothing may follow it for long: without a completion of its own it would count as under way until then, and a peer that
            // took it as one that takes nothing.
            Next::Credits => {
                let post = Post { signalled: true, ..Post::default() };
                pair.send(post, |frame| channel.fill_credits(frame))
            }
        };
        sent.map_err(|error| error.to_string())?;
    }
    Ok(())
}
