//! The server's side of READ and WRITE by verbs: memory, windows onto it for each queue pair, and a thread that makes these.
//!
//! A card needs nobody at this end for what clients read and write; the thread makes connections and ends them. Each queue pair reads
//! all of the benchmark's memory through a window of its own, and one that writes has frames for that which nobody else writes to.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use forebay_memory::{FRAME_SIZE, Pool, PoolError, Span, SpanMut};
use forebay_rdma::RdmaError;
use forebay_types::ByteSize;
use forebay_verbs::{Completion, Ended, Event, EventKind, Id, Post, QueuePair, wait_for_either};
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::options::VerbsCard;
use crate::plan::{AREA_FRAMES, BLOCKS, CONNECT_DEADLINE, MAX_CLIENTS, MAX_JOBS};
use crate::server::sessions::Sessions;
use crate::verbs::{Side, Thread, handshake, queue_pair};
use crate::wire::{VerbsAnswer, VerbsGreeting, VerbsMemory, encode_verbs};
use crate::{memory, pattern};

/// Queue pairs at once, as endpoints of UCX.
const MAX_PAIRS: usize = MAX_CLIENTS * (MAX_JOBS as usize + 1);
/// Queue pairs that write at once: each has frames of its own.
const MAX_WRITERS: usize = 16;
/// How long the thread sleeps at most before it looks whether it should stop, and which sessions have ended.
const NAP: Duration = Duration::from_millis(100);

/// The thread.
pub(super) struct VerbsMemoryServer {
    stop: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
    address: SocketAddr,
}

impl VerbsMemoryServer {
    /// Registers memory with `card`, and listens at `address`; port 0 takes a free one. Blocks while memory is registered. `None`: the
    /// card has no memory windows to show it through.
    pub(super) fn start(card: &VerbsCard, address: SocketAddr, sessions: Arc<Sessions>) -> Result<Option<Self>, Error> {
        let frames = BLOCKS + MAX_WRITERS * AREA_FRAMES;
        let pool = memory::pool(ByteSize::bytes((frames * FRAME_SIZE) as u64))?;
        let Some(side) = Side::new(card, &pool)? else { return Ok(None) };
        let mut blocks = Vec::with_capacity(BLOCKS);
        for frame in 0..BLOCKS as u32 {
            let mut span = frame_of(&pool)?;
            pattern::fill(pattern::block_seed(frame), 0, &mut span);
            blocks.push(span.freeze());
        }
        let stop = CancellationToken::new();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("verbs-memory".to_owned()).spawn({
            let stop = stop.clone();
            move || {
                let made = listen(&side, address);
                let (thread, listener, address) = match made {
                    Ok(made) => made,
                    Err(error) => return drop(ready.send(Err(error))),
                };
                // The starter waits for this.
                let _ = ready.send(Ok(address));
                let mut serving = Serving { side, pool, blocks, thread, sessions, peers: HashMap::new() };
                if let Err(error) = serving.until(&stop) {
                    tracing::error!(%error, "memory of the benchmark is served by verbs no more");
                }
                drop(listener);
            }
        })?;
        let started = is_ready.recv().unwrap_or_else(|_| Err(std::io::Error::other("its thread ended at once").into()));
        Ok(Some(Self { stop, thread: Mutex::new(Some(thread)), address: started? }))
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends every connection and the thread.
    pub(super) async fn close(&self) {
        self.stop.cancel();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // It ends by panic only through a fault of ours, which has been reported.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

impl Drop for VerbsMemoryServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn frame_of(pool: &Pool) -> Result<SpanMut, PoolError> {
    let exhausted = || PoolError::Exhausted { capacity: pool.capacity(), waited: Duration::ZERO };
    pool.try_alloc(FRAME_SIZE).ok_or_else(exhausted)
}

fn listen(side: &Side, address: SocketAddr) -> Result<(Thread, Id, SocketAddr), Error> {
    let thread = side.thread(MAX_PAIRS * QueuePair::entries(&queue_pair(false, false)))?;
    let listener = Id::new(&thread.events).map_err(RdmaError::from)?;
    listener.listen(address).map_err(RdmaError::from)?;
    let address = listener.local_address().unwrap_or(address);
    Ok((thread, listener, address))
}

/// The thread's state. Fields are dropped in order: queue pairs before what they are on.
struct Serving {
    /// By the numbers of their queue pairs.
    peers: HashMap<u32, Peer>,
    thread: Thread,
    sessions: Arc<Sessions>,
    /// What clients read.
    blocks: Vec<Span>,
    pool: Pool,
    side: Side,
}

struct Peer {
    pair: QueuePair,
    since: Instant,
    /// What is cancelled at the end of its session, once it has named that.
    session: Option<CancellationToken>,
}

impl Serving {
    /// Serves until `stop` is cancelled.
    fn until(&mut self, stop: &CancellationToken) -> Result<(), forebay_verbs::Error> {
        while !stop.is_cancelled() {
            while let Some(event) = self.thread.events.next_event()? {
                self.told(event);
            }
            self.thread.queue.arm()?;
            let mut completions = Vec::new();
            while self.thread.queue.poll(&mut completions)? > 0 {
                completions.drain(..).for_each(|completion| self.completed(completion));
            }
            self.peers.retain(|_, peer| match &peer.session {
                Some(session) => !session.is_cancelled(),
                None => peer.since.elapsed() < CONNECT_DEADLINE,
            });
            wait_for_either(&self.thread.completions, &self.thread.events, NAP)?;
            self.thread.completions.take_events();
        }
        Ok(())
    }

    fn told(&mut self, event: Event) {
        match (event.kind, event.request) {
            (EventKind::ConnectRequest, Some(request)) if self.peers.len() < MAX_PAIRS => match self.accept(request) {
                Ok(pair) => {
                    let peer = Peer { pair, since: Instant::now(), session: None };
                    _ = self.peers.insert(peer.pair.number(), peer);
                }
                Err(error) => tracing::debug!(%error, "a client of the benchmark did not connect by verbs"),
            },
            // Dropped, a request is rejected.
            (EventKind::ConnectRequest | EventKind::Established | EventKind::TimewaitExit, _) => {}
            _ => self.peers.retain(|_, peer| peer.pair.id().key() != event.about),
        }
    }

    fn accept(&self, request: Id) -> Result<QueuePair, forebay_verbs::Error> {
        let pair = QueuePair::new(request, &self.side.registration, &self.thread.queue, &queue_pair(false, false))?;
        pair.accept(handshake(false))?;
        Ok(pair)
    }

    fn completed(&mut self, completion: Completion) {
        let number = completion.queue_pair();
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let goes_on = match peer.pair.ended(completion) {
            Ended::Sent => true,
            Ended::Failed(_) | Ended::Flushed => false,
            Ended::Received { receive, length } => {
                let greeting = VerbsGreeting::decode(peer.pair.message_in(receive, length));
                let session = greeting.and_then(|greeting| self.sessions.end_of(greeting.session));
                match (greeting, session) {
                    (Some(greeting), Some(session)) if peer.session.is_none() => {
                        peer.session = Some(session);
                        peer.tell(&self.pool, &self.blocks, greeting.writes).is_ok()
                    }
                    _ => false,
                }
            }
        };
        if !goes_on {
            self.peers.remove(&number);
        }
    }
}

impl Peer {
    /// Lets it read, and write if it wants to, and tells it where.
    fn tell(&mut self, pool: &Pool, blocks: &[Span], writes: bool) -> Result<(), forebay_verbs::Error> {
        let mut area = Vec::new();
        if writes {
            let frames: Result<Vec<_>, _> = (0..AREA_FRAMES).map(|_| frame_of(pool)).collect();
            let Ok(frames) = frames else {
                let reason = format!("{MAX_WRITERS} threads write by verbs already; lower --numjobs");
                return self.say(Post::default(), &VerbsAnswer::Refused(reason));
            };
            for frame in frames {
                let exposure = self.pair.expose(frame)?;
                area.push((exposure.remote.address, exposure.remote.key));
                // A message binds one window.
                self.say(Post { bind: Some(exposure.window), ..Post::default() }, &VerbsAnswer::More)?;
            }
        }
        let nothing = || forebay_verbs::Error::Refused {
            what: "show memory to a client",
            reason: "it is not registered".to_owned(),
        };
        let shown = self.pair.show(0)?.ok_or_else(nothing)?;
        let blocks = blocks.iter().map(|span| span.as_ptr().addr() as u64).collect();
        let memory = VerbsMemory { read_key: shown.key, blocks, area };
        self.say(Post { shows: Some(shown.window), ..Post::default() }, &VerbsAnswer::Memory(memory))
    }

    fn say(&mut self, post: Post, answer: &VerbsAnswer) -> Result<(), forebay_verbs::Error> {
        let bytes = encode_verbs(answer);
        self.pair.send(Post { signalled: true, ..post }, |frame| {
            let length = bytes.len().min(frame.len());
            frame[..length].copy_from_slice(&bytes[..length]);
            length
        })
    }
}
