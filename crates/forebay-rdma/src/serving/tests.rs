//! What becomes of connections that take no more calls, over links that are made up.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use forebay_transport::conformance::{until, within};
use forebay_transport::{CallError, Payload, Provenance, Reply};
use tokio::sync::Semaphore;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::task::LocalSet;

use super::*;
use crate::client_link::LinkState;
use crate::ucx::fetches::Fetches;

const LONG: Duration = Duration::from_secs(60);
/// Calls that a connection has under way at once; further ones wait, as those do for which there is no window.
const WINDOWS: usize = 2;
/// How long a fetch may go on after its caller has left.
const PATIENCE: Duration = Duration::from_secs(6);

type Answer = oneshot::Receiver<Result<Reply, CallError>>;

struct Core {
    stop: CancellationToken,
    /// Connections have their client come again as soon as they are made.
    comes_again: bool,
    made: RefCell<Vec<Rc<Fake>>>,
}

/// A connection to a server that answers when the test does.
struct Fake {
    state: LinkState,
    waiting: RefCell<VecDeque<(Request, Call)>>,
    /// Payload is on its way.
    receives: Cell<bool>,
    fetches: Fetches,
    pings: Cell<usize>,
    is_closed: Cell<bool>,
}

impl Fake {
    fn under_way(&self) -> usize {
        self.state.calls.borrow_mut().calls_mut().count()
    }

    /// Answers the call that has a caller.
    fn answer(&self) {
        let mut calls = self.state.calls.borrow_mut();
        let id = calls.calls_mut().find(|(_, call)| call.has_caller()).map(|(id, _)| id).unwrap();
        let call = calls.take(id).unwrap();
        drop(calls);
        call.end(Ok(Reply { provenance: Provenance::default(), body: Bytes::new(), payload: Payload::None }));
    }

    /// Answers the first call, whose payload is on its way until `arrives`.
    fn fetch(self: &Rc<Self>, arrives: oneshot::Receiver<()>) {
        let mut call = self.state.calls.borrow_mut().take(1).unwrap();
        let link = Rc::clone(self);
        link.fetches.begin();
        drop(tokio::task::spawn_local(async move {
            if let Err(why) = link.fetches.end(&link.state, &mut call, PATIENCE, arrives).await {
                call.end(Err(why.into()));
            }
        }));
    }
}

impl ClientLink for Fake {
    type Core = Core;

    fn stop(core: &Core) -> &CancellationToken {
        &core.stop
    }

    async fn greet(
        core: &Rc<Core>,
        peer: &Arc<str>,
        _address: SocketAddr,
        options: &ClientOptions,
    ) -> Result<Rc<Self>, LinkError> {
        let link = Rc::new(Self {
            state: LinkState::new(peer, None, options),
            waiting: RefCell::default(),
            receives: Cell::new(false),
            fetches: Fetches::default(),
            pings: Cell::new(0),
            is_closed: Cell::new(false),
        });
        link.state.outlived.set(core.comes_again);
        core.made.borrow_mut().push(Rc::clone(&link));
        Ok(link)
    }

    fn state(&self) -> &LinkState {
        &self.state
    }

    fn start(
        self: &Rc<Self>,
        _core: &Rc<Core>,
        request: Request,
        call: Call,
        _liveness: &mut Liveness,
    ) -> Option<Command> {
        let mut calls = self.state.calls.borrow_mut();
        if !calls.is_accepting() {
            return Some(Command::Call(request, call));
        }
        if calls.calls_mut().count() == WINDOWS {
            self.waiting.borrow_mut().push_back((request, call));
        } else {
            assert!(calls.begin(call).is_ok(), "it accepts");
        }
        None
    }

    fn ping(&self, _core: &Core, _request: &Request) {
        self.pings.update(|pings| pings + 1);
    }

    fn sweep(&self) {
        let mut calls = self.state.calls.borrow_mut();
        let left: Vec<_> = calls.calls_mut().filter(|(_, call)| !call.has_caller()).map(|(id, _)| id).collect();
        for id in left {
            calls.abandon(id);
        }
    }

    fn watch(&self) -> bool {
        self.state.calls.borrow_mut().watch()
    }

    fn is_spent(&self) -> bool {
        let is_awaited = self.receives.get() || self.fetches.are_awaited();
        self.state.calls.borrow().is_spent() && !is_awaited && self.waiting.borrow().is_empty()
    }

    fn take_waiting(&self) -> VecDeque<(Request, Call)> {
        std::mem::take(&mut *self.waiting.borrow_mut())
    }

    fn forget(&self, _core: &Core) {}

    async fn failed(&self) -> String {
        std::future::pending().await
    }

    async fn close(&self) {
        self.is_closed.set(true);
    }
}

/// A link that is served on this thread.
struct Scene {
    core: Rc<Core>,
    commands: mpsc::UnboundedSender<Command>,
}

impl Scene {
    fn new(comes_again: bool, options: ClientOptions) -> Self {
        let core = Rc::new(Core { stop: CancellationToken::new(), comes_again, made: RefCell::default() });
        let (commands, queue) = mpsc::unbounded_channel();
        let peer: Arc<str> = Arc::from("127.0.0.1:1");
        let again = commands.downgrade();
        drop(tokio::task::spawn_local(serve::<Fake>(Rc::clone(&core), peer, options, queue, again)));
        Self { core, commands }
    }

    fn call(&self) -> Answer {
        let (answer, answered) = oneshot::channel();
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let call = Call { into: None, window: None, came: 0, limit: 0, answer, timing: None, _permit: permit };
        let request = Request::on_path(Op::Stat, Bytes::new(), LONG);
        assert!(self.commands.send(Command::Call(request, call)).is_ok(), "it is served");
        answered
    }

    /// The caller of this call leaves.
    fn leave(&self, call: Answer) {
        drop(call);
        assert!(self.commands.send(Command::Sweep).is_ok(), "it is served");
    }

    /// The connection that was made as this one, from 0 on.
    async fn made(&self, index: usize) -> Rc<Fake> {
        until("a connection", || self.core.made.borrow().len() > index).await;
        Rc::clone(&self.core.made.borrow()[index])
    }
}

/// With more than so many calls that were given up a connection retires. A server may be silent for longer than a test takes.
fn options(max_abandoned: usize) -> ClientOptions {
    let patient = ClientOptions::new("test", 1 << 20);
    ClientOptions { max_abandoned, connect_timeout: LONG, keepalive: LONG, dead_after: 2 * LONG, ..patient }
}

/// A server that says nothing for so long is dead.
fn impatient(max_abandoned: usize) -> ClientOptions {
    let (keepalive, dead_after) = (Duration::from_millis(5), Duration::from_millis(20));
    ClientOptions { keepalive, dead_after, ..options(max_abandoned) }
}

#[tokio::test(start_paused = true)]
async fn with_too_many_calls_that_were_given_up_a_connection_serves_the_others_and_what_waits_goes_to_the_next() {
    let test = async {
        let scene = Scene::new(false, options(0));
        let (mut stays, leaves, waits) = (scene.call(), scene.call(), scene.call());
        scene.leave(leaves);
        let (first, second) = (scene.made(0).await, scene.made(1).await);
        until("what waited has begun over the other one", || second.under_way() == 1).await;
        tokio::time::sleep(10 * LOOK).await;
        assert!(matches!(stays.try_recv(), Err(TryRecvError::Empty)), "it is answered, or failed");
        assert!(!first.is_closed.get(), "a caller waits for it");
        second.answer();
        assert!(within("what waited", waits).await.unwrap().is_ok());
        first.receives.set(true);
        first.answer();
        assert!(within("what stayed", stays).await.unwrap().is_ok());
        tokio::time::sleep(10 * LOOK).await;
        assert!(!first.is_closed.get(), "payload is on its way");
        first.receives.set(false);
        until("it ends, with a call that is never answered", || first.is_closed.get()).await;
        let another = scene.call();
        until("another call begins", || second.under_way() == 1).await;
        second.answer();
        assert!(within("another call", another).await.unwrap().is_ok());
        assert_eq!(scene.core.made.borrow().len(), 2);
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_retired_ends_with_the_last_of_its_callers() {
    let test = async {
        let scene = Scene::new(false, options(0));
        let (stays, leaves) = (scene.call(), scene.call());
        scene.leave(leaves);
        let first = scene.made(0).await;
        tokio::time::sleep(10 * LOOK).await;
        assert!(!first.is_closed.get(), "a caller waits for it");
        scene.leave(stays);
        until("it ends", || first.is_closed.get()).await;
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_goes_on_without_its_caller_ends_its_connection_when_the_others_have_their_answers() {
    let test = async {
        let scene = Scene::new(false, options(256));
        let (leaves, mut stays) = (scene.call(), scene.call());
        let first = scene.made(0).await;
        until("both are under way", || first.under_way() == 2).await;
        let (_arrives, arriving) = oneshot::channel();
        first.fetch(arriving);
        scene.leave(leaves);
        tokio::time::sleep(2 * PATIENCE).await;
        assert!(matches!(stays.try_recv(), Err(TryRecvError::Empty)), "it is answered, or failed");
        assert!(!first.is_closed.get(), "a caller waits for it");
        let next = scene.call();
        let second = scene.made(1).await;
        until("the next has begun over the other one", || second.under_way() == 1).await;
        second.answer();
        assert!(within("the next", next).await.unwrap().is_ok());
        first.answer();
        assert!(within("what stayed", stays).await.unwrap().is_ok());
        until("it ends, though the fetch goes on", || first.is_closed.get()).await;
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_connection_that_retired_is_given_up_when_its_server_stays_silent() {
    let test = async {
        let scene = Scene::new(false, impatient(0));
        let (stays, leaves) = (scene.call(), scene.call());
        scene.leave(leaves);
        let result = within("it is given up", stays).await.unwrap();
        assert!(matches!(&result, Err(CallError::Link(LinkError::Lost { .. }))), "{result:?}");
        let first = scene.made(0).await;
        assert!(first.pings.get() > 0, "it was not asked");
        until("it ends", || first.is_closed.get()).await;
    };
    LocalSet::new().run_until(test).await;
}

/// It hears nothing by then but what it was asked before.
#[tokio::test]
async fn a_server_that_has_its_client_come_again_may_be_silent_until_it_answers() {
    let test = async {
        let scene = Scene::new(true, impatient(256));
        let (mut stays, leaves) = (scene.call(), scene.call());
        scene.leave(leaves);
        let first = scene.made(0).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(matches!(stays.try_recv(), Err(TryRecvError::Empty)), "it is answered, or failed");
        assert_eq!((first.pings.get(), first.is_closed.get()), (0, false));
        first.answer();
        assert!(within("what stayed", stays).await.unwrap().is_ok());
        until("it ends, with a call that is never answered", || first.is_closed.get()).await;
    };
    LocalSet::new().run_until(test).await;
}
