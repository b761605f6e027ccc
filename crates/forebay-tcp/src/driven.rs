//! Calls whose threads wait for their answers themselves: the shell around [`Berths`].
//!
//! Such a call has a connection to itself ([`crate::lone`]), so no other call waits for what this thread does, and it for no other.
//! When its answer is late, it is handed over to the runtime, as a connection of its own that ends with it; another one is made in
//! its place in the background. Every connection is made, and given up when nobody has used it for a while, by a task of the
//! link: there is none while no thread has driven for some seconds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use forebay_transport::driving::{self, Berth, Berths, LINGER, Restraint, Waits};
use forebay_transport::{CallError, LinkError, Op, Reply, Request};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::Connection;
use crate::lone::{Came, LateCall, Lone};
use crate::options::{ClientOptions, LARGE_BODY};
use crate::replies::{Call, Ended, Unread};

/// The longest read that a thread waits for itself: what is longer takes more time than the hand-over.
const SHORT: u32 = 64 << 10;

/// The connections of one link that threads drive.
pub(crate) struct DrivenConnections {
    address: Arc<str>,
    options: ClientOptions,
    berths: Mutex<Berths<Lone>>,
    waits: Waits,
    restraint: Restraint,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// A call that was sent, and waits for its answer.
pub(crate) struct Asked {
    pub(crate) connection: Arc<Connection>,
    /// Its number there.
    pub(crate) id: u64,
    pub(crate) answered: oneshot::Receiver<Ended>,
}

/// What came of a call that the calling thread may have waited for.
pub(crate) enum Driven {
    /// Its answer.
    Ended(Result<Reply, CallError>),
    /// It is under way.
    Late(Asked),
    /// It has not been made: there is no connection for it now, or the thread may not wait.
    Not(Unread),
}

impl DrivenConnections {
    /// None yet. Their tasks are among `tasks`, and end with `stop`.
    pub(crate) fn new(
        address: &Arc<str>,
        options: &ClientOptions,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            address: Arc::clone(address),
            options: options.clone(),
            berths: Mutex::new(Berths::new()),
            waits: Waits::new(options.drive.spin),
            restraint: Restraint::default(),
            tasks: tasks.clone(),
            stop: stop.clone(),
        })
    }

    /// Makes a call of `request`, which has so much time `left`, if the calling thread may wait for its answer. `others` says how many
    /// more calls are under way on the link: what comes for many is received together, by the tasks of connections that they share.
    pub(crate) fn call(
        self: &Arc<Self>,
        request: &mut Request,
        limit: u32,
        owned: Unread,
        left: impl Fn() -> Duration,
        others: impl FnOnce() -> usize,
    ) -> Driven {
        let is_short = request.op == Op::Read && request.length <= SHORT && request.body_len() <= LARGE_BODY;
        if !is_short || !driving::is_permitted() {
            return Driven::Not(owned);
        }
        let left = left();
        let Some(turn) = driving::begin(&self.options.drive, left) else { return Driven::Not(owned) };
        if others() > 0 || self.restraint.holds_back() {
            return Driven::Not(owned);
        }
        let Some(lone) = self.take() else { return Driven::Not(owned) };
        // Who closes the link waits for what is under way.
        let _token = self.tasks.token();
        request.deadline = left;
        let (answer, answered) = oneshot::channel();
        let Unread { into, permit } = owned;
        let call = Call { into, limit, answer, load: None, permit };
        let driven = || lone.call(request, call, answered, &self.waits, turn.until());
        match driving::or_lost(|| self.berths.lock().lost(), driven) {
            Came::Answered(lone, result) => {
                turn.answered();
                self.restraint.prompt();
                let mut berths = self.berths.lock();
                let unwanted = match lone {
                    Some(lone) => berths.put_back(lone, Instant::now()),
                    None => {
                        berths.lost();
                        None
                    }
                };
                drop(berths);
                drop(unwanted);
                Driven::Ended(result)
            }
            Came::Gone(call) => {
                // A peer that closes each of them is not to be connected to for each read.
                self.restraint.late();
                self.berths.lock().lost();
                self.not_made(call)
            }
            Came::Late(late) => {
                self.restraint.late();
                self.berths.lock().lost();
                self.hand_over(late)
            }
        }
    }

    /// A connection that nobody has, if there is one. Otherwise one is made if there are not enough.
    fn take(self: &Arc<Self>) -> Option<Lone> {
        let berth = self.berths.lock().take(Instant::now());
        match berth {
            Berth::Take(lone) => Some(lone),
            Berth::Make => {
                let this = Arc::clone(self);
                self.tasks.spawn(async move { this.make().await });
                None
            }
            Berth::Wait => None,
        }
    }

    /// Has the runtime wait for the answer.
    #[cold]
    fn hand_over(&self, late: LateCall) -> Driven {
        let LateCall { stream, replies, id, call, answered } = late;
        let stream = match TcpStream::from_std(stream) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(peer = %self.address, %error, "the runtime does not take a connection");
                return self.not_made(call.or_else(|| replies.into_call()));
            }
        };
        let connection = Arc::new(Connection::of_late(&self.address, stream, id, call, &self.options));
        let (served, stop) = (Arc::clone(&connection), self.stop.clone());
        self.tasks.spawn(async move { served.run(replies, &stop).await });
        Driven::Late(Asked { connection, id, answered })
    }

    /// A call whose connection has ended, for another one.
    #[cold]
    fn not_made(&self, call: Option<Call>) -> Driven {
        match call {
            Some(Call { into, permit, .. }) => Driven::Not(Unread { into, permit }),
            // Its answer was arriving, and nobody has it: as for any connection that is lost.
            None => {
                let reason = "it ended in the middle of a reply".to_owned();
                Driven::Ended(Err(LinkError::Lost { peer: self.address.to_string(), reason }.into()))
            }
        }
    }

    /// Makes one, and looks then for those that nobody uses, if nobody does.
    async fn make(&self) {
        let attempt = tokio::select! {
            () = self.stop.cancelled() => Ok(None),
            attempt = Lone::connect(&self.address, &self.options) => attempt,
        };
        let attempt = attempt.inspect_err(|error| {
            tracing::debug!(peer = %self.address, %error, "no connection for threads that wait for answers themselves");
        });
        // None: all is encrypted, or the link is closed: so it stays.
        let (unwanted, is_keeper) = self.berths.lock().attempted(attempt, Instant::now());
        drop(unwanted);
        let mut is_kept = is_keeper;
        while is_kept {
            tokio::select! {
                () = self.stop.cancelled() => break,
                () = tokio::time::sleep(LINGER) => {}
            }
            let (expired, are_left) = self.berths.lock().expire(Instant::now());
            drop(expired);
            is_kept = are_left;
        }
        if is_keeper && self.stop.is_cancelled() {
            let left = self.berths.lock().close();
            drop(left);
        }
    }
}
