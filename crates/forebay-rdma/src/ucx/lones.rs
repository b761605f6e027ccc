//! Calls whose threads wait for their answers themselves, over UCX: a link's way to the [`WorkerPool`] of its I/O thread.
//!
//! Such a call has a worker of UCX to itself ([`crate::ucx::lone`]), so no other call waits for what this thread does, and it for no
//! other. When its answer is late, it is handed over to the I/O thread, with the worker, which another thread may have again when the
//! call has ended. Workers are made, and connections of them for this link, by tasks of the I/O thread, in the background.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_locks::Mutex;
use forebay_transport::connection::{Liveness, Verdict};
use forebay_transport::driving::{self, Berth, Restraint};
use forebay_transport::{LinkError, Op, Request};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::client_link::{Answer, Call, Command};
use crate::gate::{Asked, Gate};
use crate::io_thread::{Core, IoThread};
use crate::options::ClientOptions;
use crate::ucx::lone::{Came, Linked, Lone};
use crate::ucx::worker_pool::WorkerPool;

/// How long no connection is made after that has failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// And no worker of UCX, which says itself what it lacks: most often a limit, such as that of locked memory, that stays as it is.
const REMAKE_AFTER: Duration = Duration::from_secs(60);

/// A link, as far as threads drive what serves it.
pub(crate) struct UcxLones {
    number: u64,
    address: Arc<str>,
    options: ClientOptions,
    workers: Arc<WorkerPool>,
    connecting: Mutex<Connecting>,
    gate: Gate,
}

/// Whether a connection is to be made. One is made at a time.
#[derive(Default)]
struct Connecting {
    is_under_way: bool,
    retry_at: Option<Instant>,
}

impl UcxLones {
    /// None yet.
    pub(crate) fn new(thread: &IoThread, address: &Arc<str>, options: &ClientOptions) -> Arc<Self> {
        let workers = Arc::clone(thread.workers());
        Arc::new(Self {
            number: workers.number_link(),
            address: Arc::clone(address),
            options: options.clone(),
            workers,
            connecting: Mutex::default(),
            gate: Gate::new(options.drive),
        })
    }

    /// Makes a call of `request`, whose answer goes to `answered`, if the calling thread may wait for that.
    pub(crate) fn call(
        self: &Arc<Self>,
        thread: &IoThread,
        restraint: &Restraint,
        request: &Request,
        call: Call,
        answered: &mut oneshot::Receiver<Answer>,
    ) -> Asked {
        if !self.workers.is_possible() {
            return Asked::Not { call, may_wait: true };
        }
        // First: none is made for reads that are not waited for.
        let entered = match self.gate.enter(request, restraint) {
            Ok(entered) => entered,
            Err(may_wait) => return Asked::Not { call, may_wait },
        };
        let Some(mut lone) = self.take(thread) else { return Asked::Not { call, may_wait: true } };
        let driven = || lone.call(self.number, request, call, answered, (self.gate.waits(), entered.until()));
        match driving::or_lost(|| self.workers.lost(), driven) {
            Came::Answered(result) => {
                entered.answered();
                self.workers.count_driven();
                self.put_back(thread, lone);
                Asked::Ended(result)
            }
            Came::Gone(call) => {
                // A server that closes each of them is not to be connected to for each read.
                entered.late();
                self.put_back(thread, lone);
                Asked::Not { call, may_wait: false }
            }
            Came::Late => {
                entered.late();
                self.hand_over(thread, lone)
            }
        }
    }

    /// A worker that nobody has, and that is connected. Otherwise one is made, or connected, if it is time for that.
    fn take(self: &Arc<Self>, thread: &IoThread) -> Option<Lone> {
        if let Some(lone) = self.workers.take_for(self.number) {
            return Some(lone);
        }
        let mut connecting = self.connecting.lock();
        let rests = connecting.retry_at.is_some_and(|at| Instant::now() < at);
        if rests || connecting.is_under_way {
            return None;
        }
        let lone = match self.workers.take() {
            Berth::Take(lone) => Some(lone),
            Berth::Make => None,
            Berth::Wait => return None,
        };
        connecting.is_under_way = true;
        drop(connecting);
        self.make(thread, lone);
        None
    }

    fn put_back(&self, thread: &IoThread, lone: Lone) {
        if let Some(untidy) = self.workers.rest(lone) {
            let workers = Arc::clone(&self.workers);
            // If that thread has ended, it is ended here.
            thread.run(move |_| drop(tokio::task::spawn_local(workers.tidy(untidy))));
        }
    }

    /// Has one made, or the one that there is connected, on the I/O thread. One that was made the next read has connected.
    #[cold]
    fn make(self: &Arc<Self>, thread: &IoThread, lone: Option<Lone>) {
        let (this, token, is_new) = (Arc::clone(self), self.gate.token(), lone.is_none());
        let has_begun = thread.run(move |core| {
            let stop = core.stop.clone();
            drop(tokio::task::spawn_local(async move {
                let _token = token;
                let outcome = match lone {
                    Some(lone) => this.connect(lone).await,
                    None => this.make_one(&stop).await,
                };
                let rests = if is_new { REMAKE_AFTER } else { RETRY_AFTER };
                let retry_at = outcome.is_err().then(|| Instant::now() + rests);
                *this.connecting.lock() = Connecting { is_under_way: false, retry_at };
                if let Err(error) = outcome {
                    let peer = &*this.address;
                    tracing::debug!(peer, %error, "no connection for threads that wait for answers themselves");
                }
            }));
        });
        if !has_begun {
            if is_new { self.workers.failed() } else { self.workers.lost() }
        }
    }

    async fn make_one(&self, stop: &CancellationToken) -> Result<(), LinkError> {
        let workers = Arc::clone(&self.workers);
        // Not on the I/O thread, which it would hold up.
        let made = tokio::task::spawn_blocking(move || workers.make()).await;
        // It ends by panic only, or with the runtime.
        let made = made.unwrap_or(Err(forebay_ucx::Error::Closed));
        let failed = |error: &forebay_ucx::Error| LinkError::Connect {
            peer: self.address.to_string(),
            reason: error.to_string(),
        };
        let outcome = made.as_ref().map(|_| ()).map_err(failed);
        self.workers.made(made, stop);
        outcome
    }

    async fn connect(&self, mut lone: Lone) -> Result<(), LinkError> {
        let (number, peer, options, stop) = (self.number, &self.address, &self.options, self.gate.stop());
        let link = Linked { number, peer, options, stop, client_id: self.workers.client_id() };
        let connected = tokio::select! {
            () = stop.cancelled() => Ok(()),
            connected = lone.connect(&link) => connected,
        };
        // What was begun in vain is ended there, as is what the link has no use for any more.
        Arc::clone(&self.workers).tidy(lone).await;
        connected
    }

    /// Has the I/O thread wait for the answer. If that has ended, so has the call, as its caller sees.
    #[cold]
    fn hand_over(self: &Arc<Self>, thread: &IoThread, lone: Lone) -> Asked {
        let (commands, queue) = mpsc::unbounded_channel();
        let (this, token) = (Arc::clone(self), self.gate.token());
        thread.run(move |core| {
            let core = Rc::clone(core);
            drop(tokio::task::spawn_local(async move {
                let _token = token;
                this.go_on(&core, lone, queue).await;
            }));
        });
        Asked::Late(commands)
    }

    /// The same, on the I/O thread.
    async fn go_on(&self, core: &Core, mut lone: Lone, mut commands: mpsc::UnboundedReceiver<Command>) {
        if let Some(why) = self.outcome(core, &mut lone, &mut commands).await {
            lone.give_up(self.number, &why);
        }
        Arc::clone(&self.workers).tidy(lone).await;
    }

    /// Returns when the call has ended, or is to be given up: why, then.
    async fn outcome(
        &self,
        core: &Core,
        lone: &mut Lone,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) -> Option<LinkError> {
        let lost = |reason: String| LinkError::Lost { peer: self.address.to_string(), reason };
        let ClientOptions { keepalive, dead_after, .. } = self.options;
        let mut liveness = Liveness::new(keepalive, dead_after, Instant::now());
        let mut due = Instant::now() + keepalive;
        loop {
            tokio::select! {
                biased;
                outcome = lone.ended(self.number) => return outcome,
                () = self.gate.stop().cancelled() => return Some(lost("it was closed".to_owned())),
                () = core.stop.cancelled() => return Some(lost("it was closed".to_owned())),
                // There is one caller, and it says nothing else; it says that it has left by its end, too.
                _ = commands.recv() => return Some(lost("its caller has left".to_owned())),
                () = tokio::time::sleep_until(due.into()) => {}
            }
            let now = Instant::now();
            if let Some(heard) = lone.heard(self.number).filter(|heard| *heard + keepalive > now) {
                liveness.heard(heard);
            }
            due = match liveness.check(now) {
                Verdict::Wait(at) => at,
                Verdict::Ping(at) => {
                    lone.ping(self.number, &Request::on_path(Op::Ping, Bytes::new(), dead_after));
                    at
                }
                Verdict::Dead => return Some(lost(format!("it was silent for {dead_after:?}"))),
            };
        }
    }

    /// Ends all connections of the link, once no thread waits and no call is late; none is made any more.
    pub(crate) async fn close(&self, thread: &IoThread) {
        self.gate.close().await;
        for lone in self.workers.take_all(self.number) {
            let workers = Arc::clone(&self.workers);
            let (ended, is_ended) = oneshot::channel();
            thread.run(move |_| {
                drop(tokio::task::spawn_local(async move {
                    workers.tidy(lone).await;
                    // Who closes it may have left.
                    let _ = ended.send(());
                }));
            });
            // Dropped without a word when the I/O thread ends first.
            let _ = is_ended.await;
        }
    }

    /// The same without waiting: they end when nobody uses them, or somebody has used them.
    pub(crate) fn give_up(&self) {
        self.gate.give_up();
    }
}
