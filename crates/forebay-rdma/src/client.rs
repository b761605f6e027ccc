//! The client: a handle that any thread may use, in front of a connection that lives on an I/O thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use forebay_memory::SpanMut;
use forebay_transport::driving::{self, DriveOptions, Restraint};
use forebay_transport::{CallError, LinkError, Op, Reply, Request, Transport, TransportKind};
use forebay_ucx::{Patience, Spin};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::client_link::{Answer, Call, Command};
use crate::connection::Connection;
use crate::gate::Asked;
use crate::io_thread::IoThread;
use crate::options::ClientOptions;
use crate::serving::serve;
use crate::trace::{Kind, Recorder, Timing};
use crate::ucx::lones::UcxLones;
use crate::verbs::{Lones, VerbsConnection, VerbsThread};
use crate::wire;

/// The longest read whose answer a thread waits for itself.
const SHORT: u32 = 64 << 10;

/// The link to one worker over one I/O thread. Nothing is connected before the first call.
pub struct RdmaTransport {
    address: Arc<str>,
    commands: mpsc::UnboundedSender<Command>,
    /// One permit for each call under way. Closed with the link.
    places: Arc<Semaphore>,
    max_outstanding: usize,
    /// For answers to calls that are alone.
    patience: Mutex<Patience>,
    drive: DriveOptions,
    restraint: Restraint,
    recorder: Option<Recorder>,
    thread: Thread,
}

/// What serves the connection, with what threads drive themselves.
enum Thread {
    Ucx(Arc<IoThread>, Arc<UcxLones>),
    Verbs(Arc<VerbsThread>, Arc<Lones>),
}

impl Thread {
    fn spin(&self) -> &Spin {
        match self {
            Self::Ucx(thread, _) => thread.spin(),
            Self::Verbs(thread, _) => thread.spin(),
        }
    }
}

/// Tells the connection to look for calls whose caller has left.
struct Leaving<'a>(&'a mpsc::UnboundedSender<Command>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let _ = self.0.send(Command::Sweep);
    }
}

impl RdmaTransport {
    /// A link to the worker at `address`, written `HOST:PORT`, over `io_thread`.
    #[must_use]
    pub fn new(address: impl Into<Arc<str>>, io_thread: Arc<IoThread>, options: ClientOptions) -> Self {
        let address = address.into();
        let lones = UcxLones::new(&io_thread, &address, &options);
        Self::over(address, Thread::Ucx(io_thread, lones), options)
    }

    /// The same over verbs.
    #[must_use]
    pub fn over_verbs(address: impl Into<Arc<str>>, thread: Arc<VerbsThread>, options: ClientOptions) -> Self {
        let address = address.into();
        let lones = Lones::new(&address, &options);
        Self::over(address, Thread::Verbs(thread, lones), options)
    }

    fn over(address: Arc<str>, thread: Thread, options: ClientOptions) -> Self {
        let (commands, queue) = mpsc::unbounded_channel();
        let max_outstanding = options.max_outstanding.clamp(1, Semaphore::MAX_PERMITS);
        let places = Arc::new(Semaphore::new(max_outstanding));
        let patience = Mutex::new(Patience::new(thread.spin()));
        let peer = Arc::clone(&address);
        let drive = options.drive;
        let recorder = options.trace.as_ref().map(|trace| Recorder::new(trace, &address));
        let again = commands.downgrade();
        // If the I/O thread has ended, so has the queue, and calls learn of it.
        match &thread {
            Thread::Ucx(thread, _) => thread.run(move |core| {
                drop(tokio::task::spawn_local(serve::<Connection>(core.clone(), peer, options, queue, again)));
            }),
            Thread::Verbs(thread, _) => thread.run(move |core| {
                drop(tokio::task::spawn_local(serve::<VerbsConnection>(core.clone(), peer, options, queue, again)));
            }),
        };
        let restraint = Restraint::default();
        Self { address, commands, places, max_outstanding, patience, drive, restraint, recorder, thread }
    }

    fn closed(&self) -> LinkError {
        LinkError::Lost { peer: self.address.to_string(), reason: "it was closed".to_owned() }
    }

    async fn begin(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        let limit = request.payload_limit(into.as_ref()).map_err(CallError::Service)?;
        wire::check_body(request.body_len()).map_err(CallError::Service)?;
        let began = tokio::time::Instant::now();
        let kind = if request.op == Op::Read { Kind::Read } else { Kind::Call };
        let timing = self.recorder.as_ref().map(|recorder| Timing::new(recorder, kind));
        let permit = Arc::clone(&self.places).acquire_owned().await.map_err(|_| self.closed())?;
        let request = Request { deadline: request.deadline.saturating_sub(began.elapsed()), ..request };
        let into = into.filter(|_| request.op.brings_payload());
        // Of a read that a thread may wait for itself: for how long.
        let mut awaited = (request.op == Op::Read && request.length <= SHORT).then_some(request.deadline);
        let (answer, mut answered) = oneshot::channel();
        let mut call = Call { into, window: None, came: 0, limit, answer, timing, _permit: permit };
        if awaited.is_some() && driving::is_permitted() && self.is_lone() {
            let asked = match &self.thread {
                Thread::Ucx(thread, lones) => lones.call(thread, &self.restraint, &request, call, &mut answered),
                Thread::Verbs(thread, lones) => lones.call(thread, &self.restraint, &request, call, &mut answered),
            };
            match asked {
                Asked::Ended(result) => return result,
                Asked::Late(commands) => return self.when_it_comes(answered, &commands).await,
                Asked::Not { call: back, may_wait } => {
                    call = back;
                    awaited = awaited.filter(|_| may_wait);
                }
            }
        }
        self.commands.send(Command::Call(request, call)).map_err(|_| self.closed())?;
        let leaving = Leaving(&self.commands);
        // Dropped without an answer when the I/O thread ends.
        let result = self.answer(answered, awaited).await.unwrap_or_else(|_| Err(self.closed().into()));
        std::mem::forget(leaving);
        result
    }

    /// Whether the call that has its place is the only one of the link.
    fn is_lone(&self) -> bool {
        self.places.available_permits() + 1 == self.max_outstanding
    }

    /// The answer to a call that a thread has waited for, which has a connection to itself.
    async fn when_it_comes(
        &self,
        answered: oneshot::Receiver<Answer>,
        commands: &mpsc::UnboundedSender<Command>,
    ) -> Answer {
        let leaving = Leaving(commands);
        let result = answered.await.unwrap_or_else(|_| Err(self.closed().into()));
        std::mem::forget(leaving);
        result
    }

    /// Waits for the answer to a call that was just sent: awake for a while, if it is the only one. The task does not let others
    /// run for that time, which is within what tokio allows for; with more calls under way one of those would be held up. Then a thread
    /// that may wait itself sleeps until the I/O thread has the answer (`awaited`), rather than until a task has.
    async fn answer(
        &self,
        mut answered: oneshot::Receiver<Answer>,
        awaited: Option<Duration>,
    ) -> Result<Answer, oneshot::error::RecvError> {
        let spin = self.thread.spin();
        let is_lone = self.is_lone();
        let awaited = awaited.filter(|_| is_lone);
        let began = Instant::now();
        if !is_lone || !spin.is_welcome(began) {
            return match self.wait_here(&mut answered, awaited) {
                Some(answer) => answer,
                None => answered.await,
            };
        }
        let limit = self.patience.lock().limit();
        let mut now = began;
        while now.duration_since(began) < limit && spin.is_welcome(now) {
            now = spin.give_way();
            match answered.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => {}
                Ok(answer) => {
                    self.patience.lock().caught(now.duration_since(began));
                    if awaited.is_some() {
                        driving::note_answer();
                    }
                    return Ok(answer);
                }
                // As the future says it.
                Err(oneshot::error::TryRecvError::Closed) => break,
            }
        }
        let answer = match self.wait_here(&mut answered, awaited) {
            Some(answer) => answer,
            None => answered.await,
        };
        self.patience.lock().slept(began.elapsed(), now.duration_since(began));
        answer
    }

    /// Waits on this thread, if it may.
    fn wait_here(
        &self,
        answered: &mut oneshot::Receiver<Answer>,
        awaited: Option<Duration>,
    ) -> Option<Result<Answer, oneshot::error::RecvError>> {
        let turn = driving::begin(&self.drive, awaited?)?;
        if self.restraint.holds_back() {
            return None;
        }
        let answer = turn.wait_for(answered);
        match answer {
            Some(_) => {
                turn.answered();
                self.restraint.prompt();
            }
            None => self.restraint.late(),
        }
        answer
    }
}

#[async_trait::async_trait]
impl Transport for RdmaTransport {
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        let waited = request.deadline;
        match tokio::time::timeout(waited, self.begin(request, into)).await {
            Ok(result) => result,
            Err(_) => Err(LinkError::TimedOut { peer: self.address.to_string(), waited }.into()),
        }
    }

    fn kind(&self) -> TransportKind {
        match self.thread {
            Thread::Ucx(..) => TransportKind::Ucx,
            Thread::Verbs(..) => TransportKind::Verbs,
        }
    }

    fn peer(&self) -> &str {
        &self.address
    }

    async fn close(&self) {
        self.places.close();
        let (closed, is_closed) = oneshot::channel();
        let is_told = self.commands.send(Command::Close(closed)).is_ok();
        match &self.thread {
            Thread::Ucx(thread, lones) => lones.close(thread).await,
            Thread::Verbs(_, lones) => lones.close().await,
        }
        if is_told {
            // Dropped without a word when the I/O thread ends first.
            let _ = is_closed.await;
        }
    }
}

impl Drop for RdmaTransport {
    fn drop(&mut self) {
        self.places.close();
        match &self.thread {
            Thread::Ucx(_, lones) => lones.give_up(),
            Thread::Verbs(_, lones) => lones.give_up(),
        }
    }
}
