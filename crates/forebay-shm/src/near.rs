//! The client: another transport to the worker, and its memory, when that is on this host and to be seen.
//!
//! No read waits for connecting: it happens beside the calls, which go over the other transport until it has. When
//! the session is lost, a read that was under way is to be asked again ([`LinkError::OtherPath`]), and then finds another way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use forebay_locks::Mutex;
use forebay_memory::SpanMut;
use forebay_transport::wire::{MAX_PAYLOAD, MAX_REQUEST_BODY};
use forebay_transport::{CallError, LinkError, Op, Payload, PeerMemory, Reply, Request, Transport, TransportKind};
use forebay_types::{Failure, FailureKind};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::attempts::{Attempts, Step};
use crate::call::ReadError;
use crate::connection::Connection;
use crate::options::ClientOptions;
use crate::reach::NotSeen;

/// How a worker's memory is seen, for people and programs.
#[derive(Clone, Debug, Serialize)]
pub struct WindowReport {
    /// The worker's address.
    pub worker: String,
    /// `open`, `trying` or `closed`.
    pub state: &'static str,
    /// Why it is not open, if something was tried.
    pub why: Option<String>,
    /// Reads that were answered by a view of the worker's memory.
    pub reads: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The link to one worker over `other`, with reads shown where they lie for as long as that can be. Must be used within a tokio
/// runtime.
pub struct NearTransport {
    near: Arc<Near>,
}

struct Near {
    worker: Arc<str>,
    other: Arc<dyn Transport>,
    options: ClientOptions,
    /// Whether reads go by the session: what callers look at.
    is_open: AtomicBool,
    /// Whether they ever may.
    may_open: AtomicBool,
    /// Before when nothing is to be done about that, in milliseconds since it `began`.
    not_before: AtomicU64,
    began: Instant,
    session: ArcSwapOption<Connection>,
    state: Mutex<NearState>,
    reads: AtomicU64,
    bytes: AtomicU64,
    tasks: TaskTracker,
    stop: CancellationToken,
}

struct NearState {
    attempts: Attempts,
    why: Option<String>,
    /// The reason that people were last told.
    told: Option<String>,
}

impl NearTransport {
    /// A link to `worker`, written `HOST:PORT`, that `other` leads to as well. Nothing is tried before the first call.
    #[must_use]
    pub fn new(worker: impl Into<Arc<str>>, other: Arc<dyn Transport>, options: ClientOptions) -> Self {
        let state = Mutex::new(NearState { attempts: Attempts::new(), why: None, told: None });
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        Self {
            near: Arc::new(Near {
                worker: worker.into(),
                other,
                options,
                is_open: AtomicBool::new(false),
                may_open: AtomicBool::new(true),
                not_before: AtomicU64::new(0),
                began: Instant::now(),
                session: ArcSwapOption::empty(),
                state,
                reads: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
                tasks,
                stop,
            }),
        }
    }

    /// How things stand.
    #[must_use]
    pub fn report(&self) -> WindowReport {
        let near = &*self.near;
        let state = near.state.lock();
        WindowReport {
            worker: near.worker.to_string(),
            state: state.attempts.name(),
            why: state.why.clone(),
            reads: near.reads.load(Ordering::Relaxed),
            bytes: near.bytes.load(Ordering::Relaxed),
        }
    }
}

/// Has another session be looked for when the task that had one ends, however it does.
struct Looking<'a>(&'a Near);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.lost();
    }
}

impl Near {
    /// The session, if reads go by it. Otherwise sees to it that it is tried for when it is time.
    fn session(self: &Arc<Self>) -> Option<Arc<Connection>> {
        if !self.is_open.load(Ordering::Acquire) {
            // Most links of a cluster lead to other hosts: their calls take no lock for that.
            let not_before = self.not_before.load(Ordering::Relaxed);
            if self.began.elapsed().as_millis() < u128::from(not_before) || !self.seek() {
                return None;
            }
        }
        let session = self.session.load_full()?;
        if session.is_open() {
            return Some(session);
        }
        // It still has calls, perhaps, but takes no more.
        self.not_by(&session, |_| true);
        None
    }

    /// Tries to have reads go by a session again. True when they do.
    #[cold]
    fn seek(self: &Arc<Self>) -> bool {
        let mut state = self.state.lock();
        let step = state.attempts.step(Instant::now());
        self.note(&state);
        match step {
            Step::Wait => false,
            Step::Connect => {
                self.tasks.spawn(Arc::clone(self).look());
                false
            }
            Step::Resume => {
                let is_open = self.session.load().as_ref().is_some_and(|session| session.is_open());
                self.is_open.store(is_open, Ordering::Release);
                is_open
            }
        }
    }

    /// Keeps in mind when something is to be done next. After each change of the attempts.
    fn note(&self, state: &NearState) {
        let after = |next: Instant| next.saturating_duration_since(self.began).as_millis() as u64;
        self.not_before.store(state.attempts.not_before().map_or(u64::MAX, after), Ordering::Relaxed);
    }

    /// Connects to the worker that the other way leads to.
    async fn connect(&self) -> Result<Connection, NotSeen> {
        let session = Connection::connect(&self.worker, &self.options).await?;
        let limit = self.options.connect_timeout;
        let ping = self.other.call(Request::on_path(Op::Ping, Bytes::new(), limit), None);
        let pong = tokio::time::timeout(limit, ping).await.map_err(|_| NotSeen::Late(limit))?;
        let said = pong.map_err(|error| NotSeen::Silent(error.to_string()))?.body;
        let is_the_same = match session.instance() {
            0 => said.is_empty(),
            instance => said[..] == instance.to_le_bytes(),
        };
        if is_the_same { Ok(session) } else { Err(NotSeen::OtherWorker) }
    }

    /// Connects, and serves the session for as long as it lasts.
    async fn look(self: Arc<Self>) {
        let looking = Looking(&self);
        let attempt = tokio::select! {
            () = self.stop.cancelled() => return,
            attempt = self.connect() => attempt,
        };
        let session = match attempt {
            Ok(session) => Arc::new(session),
            Err(why) => {
                self.failed(&why);
                // Not lost: it never was there.
                std::mem::forget(looking);
                return;
            }
        };
        {
            let mut state = self.state.lock();
            if !state.attempts.opened() {
                return;
            }
            (state.why, state.told) = (None, None);
            self.may_open.store(true, Ordering::Relaxed);
            self.session.store(Some(Arc::clone(&session)));
            self.is_open.store(true, Ordering::Release);
        }
        tracing::info!(worker = %self.worker, "the worker is on this host and shares its memory: reads are not copied on their way");
        let end = session.run(&self.stop).await;
        tracing::debug!(worker = %self.worker, reason = %end, "the worker's memory is not seen any more");
        self.state.lock().why = Some(end.to_string());
    }

    fn lost(&self) {
        let mut state = self.state.lock();
        self.is_open.store(false, Ordering::Release);
        self.session.store(None);
        state.attempts.lost(Instant::now());
        self.note(&state);
    }

    fn failed(&self, why: &NotSeen) {
        let reason = why.to_string();
        let mut state = self.state.lock();
        state.attempts.failed(Instant::now(), why.is_lasting());
        self.note(&state);
        // To choose among workers one need not ask whether this one is seen now.
        self.may_open.store(!matches!(why, NotSeen::Elsewhere), Ordering::Relaxed);
        if why.is_remarkable() && state.told.as_ref() != Some(&reason) {
            tracing::info!(worker = %self.worker, %reason, "the worker's memory cannot be seen, its blocks are read over the network");
            state.told = Some(reason.clone());
        }
        state.why = Some(reason);
    }

    /// A read by the session.
    async fn read(&self, session: Arc<Connection>, request: Request) -> Result<Reply, CallError> {
        let (length, body) = (request.length, request.body_len());
        if length > MAX_PAYLOAD || body > MAX_REQUEST_BODY as usize {
            let message = format!("a read of {length} bytes with a body of {body} is over the limits");
            return Err(CallError::Service(Failure::new(FailureKind::InvalidArgument, message)));
        }
        let waited = request.deadline;
        let Ok(outcome) = tokio::time::timeout(waited, session.read(request)).await else {
            return Err(LinkError::TimedOut { peer: self.worker.to_string(), waited }.into());
        };
        match outcome {
            Ok(reply) => {
                if let Payload::Shared(spans) = &reply.payload {
                    let bytes: usize = spans.iter().map(|span| span.len()).sum();
                    self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                }
                self.reads.fetch_add(1, Ordering::Relaxed);
                Ok(reply)
            }
            Err(ReadError::Service(failure)) => Err(CallError::Service(failure)),
            Err(ReadError::Link(error)) => {
                self.not_by(&session, |_| true);
                Err(self.other_path(&error))
            }
            Err(ReadError::Elsewhere) => {
                self.not_by(&session, |attempts| attempts.aside(Instant::now()));
                Err(self.other_path(&"the bytes do not lie where they can be seen"))
            }
        }
    }

    /// Has reads go another way, if they still go by `session` and `is_so`.
    fn not_by(&self, session: &Arc<Connection>, is_so: impl FnOnce(&mut Attempts) -> bool) {
        let mut state = self.state.lock();
        let is_current = self.session.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, session));
        if is_current && is_so(&mut state.attempts) {
            self.is_open.store(false, Ordering::Release);
            self.note(&state);
        }
    }

    fn other_path(&self, reason: &dyn std::fmt::Display) -> CallError {
        LinkError::OtherPath { peer: self.worker.to_string(), reason: reason.to_string() }.into()
    }
}

impl PeerMemory for NearTransport {
    fn is_open(&self) -> bool {
        self.near.is_open.load(Ordering::Relaxed)
    }

    fn may_open(&self) -> bool {
        self.near.may_open.load(Ordering::Relaxed)
    }

    fn visible_bytes(&self) -> u64 {
        let session = self.near.session.load();
        session.as_ref().filter(|session| session.is_open()).map_or(0, |session| session.memory())
    }
}

#[async_trait::async_trait]
impl Transport for NearTransport {
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        let session = self.near.session();
        if request.op != Op::Read || into.is_some() {
            return self.near.other.call(request, into).await;
        }
        match session {
            Some(session) => self.near.read(session, request).await,
            // A caller that brought no buffer was told that it needs none, a moment ago.
            None if request.length > 0 => Err(self.near.other_path(&"its memory is not seen any more")),
            None => self.near.other.call(request, into).await,
        }
    }

    fn memory(&self) -> Option<&dyn PeerMemory> {
        Some(self)
    }

    fn kind(&self) -> TransportKind {
        self.near.other.kind()
    }

    fn peer(&self) -> &str {
        self.near.other.peer()
    }

    async fn close(&self) {
        self.near.state.lock().attempts.end();
        self.near.stop.cancel();
        self.near.tasks.close();
        self.near.tasks.wait().await;
        self.near.is_open.store(false, Ordering::Release);
        self.near.other.close().await;
    }
}

impl Drop for NearTransport {
    fn drop(&mut self) {
        self.near.stop.cancel();
    }
}
