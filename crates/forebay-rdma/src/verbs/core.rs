//! What jobs and tasks of an I/O thread over verbs work with, and what drives its card.
//!
//! The thread busy-polls its completion queues for a moment while that is cheaper than to be woken ([`Spin`]), then arms them, looks once
//! more, and sleeps.

use std::cell::RefCell;
use std::convert::Infallible;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use forebay_ucx::{Patience, Spin};
use forebay_verbs::{
    CompletionChannel, CompletionQueue, Error, EventChannel, Library, QueuePair, QueuePairOptions, ReadableBoard,
    Registration,
};
use tokio_util::sync::CancellationToken;

use crate::gauges::Gauges;
use crate::verbs::links::Links;
use crate::verbs::options::Fabric;

/// Entries of a completion queue. Each connection reserves what it may need, some hundred, and when one queue is full there is another.
const ENTRIES: usize = 16_384;
/// After how many rounds for nothing a thread that busy-polls gives way.
const GIVE_WAY_ROUNDS: u32 = 16;

/// Of one I/O thread.
pub(crate) struct Core {
    pub(crate) registration: Arc<Registration>,
    /// What says of the memory that clients read by themselves whether it is what they mean. `None`: they read none.
    pub(crate) board: Option<Arc<ReadableBoard>>,
    pub(crate) fabric: Fabric,
    pub(crate) events: Arc<EventChannel>,
    pub(crate) links: Rc<Links>,
    pub(crate) stop: CancellationToken,
    /// What the connections of clients tell servers, if they have a pass.
    pub(crate) client_id: NonZeroU64,
    pub(crate) gauges: Arc<Gauges>,
    completions: Arc<CompletionChannel>,
    queues: RefCell<Vec<Arc<CompletionQueue>>>,
}

impl Core {
    /// On the thread that is to drive it.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn new(
        library: Library,
        (registration, board): (Arc<Registration>, Option<Arc<ReadableBoard>>),
        fabric: Fabric,
        client_id: NonZeroU64,
        stop: &CancellationToken,
        gauges: Arc<Gauges>,
    ) -> Result<Rc<Self>, Error> {
        Ok(Rc::new(Self {
            events: EventChannel::new(library)?,
            completions: CompletionChannel::new(registration.domain().device())?,
            registration,
            board,
            fabric,
            links: Rc::default(),
            stop: stop.clone(),
            client_id,
            gauges,
            queues: RefCell::default(),
        }))
    }

    /// A completion queue with room for one more queue pair.
    ///
    /// # Errors
    /// [`Error::Refused`] when the card has no more.
    pub(crate) fn queue_for(&self, options: &QueuePairOptions) -> Result<Arc<CompletionQueue>, Error> {
        let entries = QueuePair::entries(options);
        let mut queues = self.queues.borrow_mut();
        if let Some(queue) = queues.iter().find(|queue| queue.has_room(entries)) {
            return Ok(Arc::clone(queue));
        }
        let queue = CompletionQueue::new(&self.completions, ENTRIES.max(entries))?;
        // The thread may be asleep.
        queue.arm()?;
        queues.push(Arc::clone(&queue));
        Ok(queue)
    }

    /// Hands out what has ended; whether anything had.
    fn progress(&self) -> Result<bool, Error> {
        let mut ended = Vec::new();
        // A connection that is made meanwhile may add one.
        let queues: Vec<_> = self.queues.borrow().iter().map(Arc::clone).collect();
        for queue in queues {
            queue.poll(&mut ended)?;
        }
        let has_ended = !ended.is_empty();
        if has_ended {
            self.links.completed(ended.into_iter());
        }
        Ok(has_ended)
    }

    fn arm(&self) -> Result<(), Error> {
        self.queues.borrow().iter().try_for_each(|queue| queue.arm())
    }

    /// Hands out what ends for as long as it is polled, busy-polling as `spin` allows; for a spawned task.
    ///
    /// # Errors
    /// [`Error`] when the card cannot be asked any more.
    pub(crate) async fn drive(&self, spin: &Spin) -> Result<Infallible, Error> {
        let readiness = self.completions.readiness()?;
        let mut patience = Patience::new(spin);
        // Since when there is nothing to do.
        let mut waiting: Option<Instant> = None;
        let mut rounds = 0_u32;
        loop {
            if self.progress()? {
                if let Some(since) = waiting.take() {
                    patience.caught(since.elapsed());
                }
                let_others_run().await;
                continue;
            }
            rounds = rounds.wrapping_add(1);
            let since = *waiting.get_or_insert_with(Instant::now);
            let now = if rounds.is_multiple_of(GIVE_WAY_ROUNDS) { spin.give_way() } else { Instant::now() };
            if now.duration_since(since) < patience.limit() && spin.is_welcome(now) {
                let_others_run().await;
                continue;
            }
            self.arm()?;
            // What came before may not be told of.
            if self.progress()? {
                waiting = None;
                let_others_run().await;
                continue;
            }
            let awake = since.elapsed();
            readiness.readable().await?;
            self.completions.take_events();
            patience.slept(since.elapsed(), awake);
            waiting = None;
        }
    }

    /// Hands out rdma_cm's events for as long as it is polled.
    ///
    /// # Errors
    /// [`Error`] when there are none any more.
    pub(crate) async fn follow_events(&self) -> Result<Infallible, Error> {
        let readiness = self.events.readiness()?;
        loop {
            while let Some(event) = self.events.next_event()? {
                self.links.tell(event);
            }
            readiness.readable().await?;
        }
    }
}

/// Lets the tasks that are ready run, without a look at the operating system, which tokio's own yield takes.
pub(crate) async fn let_others_run() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
