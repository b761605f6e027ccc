//! Calls whose threads wait for their answers themselves: the shell around [`Berths`].
//!
//! Such a call has a connection to itself ([`crate::verbs::lone`]), so no other call waits for what this thread does, and it for no other.
//! When its answer is late, it is handed over to the I/O thread, as a connection of its own that ends with it; another one is made in its
//! place in the background. Every connection is made, and given up when nobody has used it for a while, by a task of the I/O thread: there
//! is none while no thread has driven for some seconds.
//!
//! Where the worker lets its memory be read without it, there are none: those reads, and what is known for them, are the I/O thread's.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use forebay_locks::Mutex;
use forebay_transport::driving::{self, Berth, Berths, LINGER, Restraint};
use forebay_transport::{LinkError, Request};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::client_link::{Answer, Call, ClientLink, Command, LinkState};
use crate::gate::{Asked, Gate};
use crate::gauges::Counted;
use crate::options::ClientOptions;
use crate::serving::{serve_last, to_an_address};
use crate::verbs::connection::Connection;
use crate::verbs::core::Core;
use crate::verbs::lone::{Came, Lone, Parts};
use crate::verbs::own_queue::OwnQueue;
use crate::verbs::thread::VerbsThread;

/// The connections of one link that threads drive.
pub(crate) struct Lones {
    address: Arc<str>,
    options: ClientOptions,
    berths: Mutex<Berths<Lone>>,
    gate: Gate,
}

impl Lones {
    /// None yet.
    pub(crate) fn new(address: &Arc<str>, options: &ClientOptions) -> Arc<Self> {
        Arc::new(Self {
            address: Arc::clone(address),
            options: options.clone(),
            berths: Mutex::new(Berths::new()),
            gate: Gate::new(options.drive),
        })
    }

    /// Makes a call of `request`, whose answer goes to `answered`, if the calling thread may wait for that.
    pub(crate) fn call(
        self: &Arc<Self>,
        thread: &VerbsThread,
        restraint: &Restraint,
        request: &Request,
        call: Call,
        answered: &mut oneshot::Receiver<Answer>,
    ) -> Asked {
        // First: none is made for reads that are not waited for.
        let entered = match self.gate.enter(request, restraint) {
            Ok(entered) => entered,
            Err(may_wait) => return Asked::Not { call, may_wait },
        };
        let Some(lone) = self.take(thread) else { return Asked::Not { call, may_wait: true } };
        let driven = || lone.call(request, call, answered, self.gate.waits(), entered.until());
        match driving::or_lost(|| self.berths.lock().lost(), driven) {
            Came::Answered(lone, result) => {
                entered.answered();
                match lone {
                    Some(lone) => self.put_back(lone),
                    None => self.berths.lock().lost(),
                }
                Asked::Ended(result)
            }
            Came::Full(lone, call) => {
                self.put_back(lone);
                Asked::Not { call, may_wait: true }
            }
            Came::Gone(call) => {
                // A peer that closes each of them is not to be connected to for each read.
                entered.late();
                self.berths.lock().lost();
                match call {
                    Some(call) => Asked::Not { call, may_wait: false },
                    None => Asked::Ended(Err(self.lost("it ended in the middle of a reply").into())),
                }
            }
            Came::Late(lone) => {
                entered.late();
                self.berths.lock().lost();
                self.hand_over(thread, lone)
            }
        }
    }

    fn lost(&self, reason: &str) -> LinkError {
        LinkError::Lost { peer: self.address.to_string(), reason: reason.to_owned() }
    }

    /// A connection that nobody has, if there is one. Otherwise one is made if there are not enough.
    fn take(self: &Arc<Self>, thread: &VerbsThread) -> Option<Lone> {
        loop {
            let berth = self.berths.lock().take(Instant::now());
            match berth {
                Berth::Take(lone) if lone.has_ended() => {
                    self.berths.lock().lost();
                    // If that thread has ended, it is ended here.
                    thread.run(move |_| lone.end());
                }
                Berth::Take(lone) => return Some(lone),
                Berth::Make => {
                    self.make(thread);
                    return None;
                }
                Berth::Wait => return None,
            }
        }
    }

    fn put_back(&self, lone: Lone) {
        let unwanted = self.berths.lock().put_back(lone, Instant::now());
        if let Some(lone) = unwanted {
            lone.end();
        }
    }

    /// Has the I/O thread wait for the answer. If that has ended, so has the call, as its caller sees.
    #[cold]
    fn hand_over(self: &Arc<Self>, thread: &VerbsThread, lone: Lone) -> Asked {
        let (commands, queue) = mpsc::unbounded_channel();
        let (this, token) = (Arc::clone(self), self.gate.token());
        thread.run(move |core| this.go_on(core, lone.into_parts(), queue, token));
        Asked::Late(commands)
    }

    /// The same, on the I/O thread.
    fn go_on(
        self: Arc<Self>,
        core: &Rc<Core>,
        late: Parts,
        commands: mpsc::UnboundedReceiver<Command>,
        token: TaskTrackerToken,
    ) {
        let Parts { peer, pair, channel, own, pass, has_ended, call, id, counted } = late;
        // There is one: it is late.
        let Some(call) = call else { return };
        let state = LinkState::of_late(&peer, pass, &self.options, id, call);
        let link = core.links.add(pair, channel);
        // What is told from here on, the link hears.
        if has_ended.load(Ordering::Acquire) {
            link.fail("the peer has ended the connection");
        }
        let connection = Connection::over(core, Rc::clone(&link), state, None);
        core.gauges.count_connection();
        drop(counted);
        let core = Rc::clone(core);
        drop(tokio::task::spawn_local(async move {
            let _token = token;
            let stop = self.gate.stop().clone();
            let served = serve_last::<Connection>(Rc::clone(&core), connection, &self.options, commands, stop);
            let driven = async {
                let error = own.drive(&core.links).await;
                link.fail(error.to_string());
                link.destroy();
                // Who serves it sees that.
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = served => {}
                () = driven => {}
            }
        }));
    }

    /// Has one made, on the I/O thread.
    fn make(self: &Arc<Self>, thread: &VerbsThread) {
        let (this, token) = (Arc::clone(self), self.gate.token());
        let has_begun = thread.run(move |core| {
            let core = Rc::clone(core);
            drop(tokio::task::spawn_local(async move {
                let _token = token;
                this.make_and_keep(&core).await;
            }));
        });
        if !has_begun {
            self.berths.lock().failed(Instant::now());
        }
    }

    /// Makes one, and looks then for those that nobody uses, if nobody does.
    async fn make_and_keep(self: Arc<Self>, core: &Rc<Core>) {
        let attempt = tokio::select! {
            () = self.gate.stop().cancelled() => Ok(None),
            attempt = self.connect(core) => attempt,
        };
        let attempt = attempt.inspect_err(|error| {
            tracing::debug!(peer = %self.address, %error, "no connection for threads that wait for answers themselves");
        });
        // None: the worker's memory is read without it, or the link is closed: so it stays.
        let (unwanted, is_keeper) = self.berths.lock().attempted(attempt, Instant::now());
        unwanted.into_iter().for_each(Lone::end);
        if !is_keeper {
            return;
        }
        let mut keeper = Keeper(Some(Arc::clone(&self)));
        loop {
            tokio::select! {
                () = self.gate.stop().cancelled() => return,
                () = core.stop.cancelled() => return,
                () = tokio::time::sleep(LINGER) => {}
            }
            let (expired, are_left) = self.berths.lock().expire(Instant::now());
            expired.into_iter().for_each(Lone::end);
            if !are_left {
                keeper.0 = None;
                return;
            }
        }
    }

    /// A connection. `None`: the worker's memory is read without it.
    async fn connect(&self, core: &Rc<Core>) -> Result<Option<Lone>, LinkError> {
        let (peer, options) = (&self.address, &self.options);
        let failed = |reason: String| LinkError::Connect { peer: peer.to_string(), reason };
        let own = OwnQueue::new(core).map_err(|error| failed(error.to_string()))?;
        let made = async {
            let queues = Some(own.queues());
            let greet = |address: SocketAddr| Connection::greet_on(core, queues, peer, address, options);
            let connection = to_an_address(peer, options, greet).await?;
            let has_ended = Arc::new(AtomicBool::new(false));
            if let Some(parts) = connection.apart(&has_ended) {
                return Ok(Some((parts, connection.state().pass, has_ended)));
            }
            connection.forget(core);
            connection.close().await;
            if connection.reads_alone() { Ok(None) } else { Err(failed("it has ended".to_owned())) }
        };
        let made = tokio::select! {
            made = made => made?,
            error = own.drive(&core.links) => return Err(failed(error.to_string())),
        };
        let Some((parts, pass, has_ended)) = made else { return Ok(None) };
        let (in_messages, counted) = (core.fabric.client().in_messages, Counted::new(&core.gauges));
        Ok(Some(Lone::new(peer, parts, own, (pass, in_messages), (has_ended, counted))))
    }

    /// Ends all of them, once no thread waits and no call is late; none is made any more.
    pub(crate) async fn close(&self) {
        self.gate.close().await;
        self.end_all();
    }

    /// The same without waiting.
    pub(crate) fn give_up(&self) {
        self.gate.give_up();
    }

    fn end_all(&self) {
        let left = self.berths.lock().close();
        left.into_iter().for_each(Lone::end);
    }
}

/// Who looks for connections that nobody uses. With it, or with its thread, all of them end.
struct Keeper(Option<Arc<Lones>>);

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(lones) = self.0.take() {
            lones.end_all();
        }
    }
}
