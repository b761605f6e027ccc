//! The task that owns a client's connection, on an I/O thread: it connects when there is a call, sends requests, and watches for
//! silence and for the connection's end.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_transport::connection::{Liveness, Outstanding, Verdict};
use forebay_transport::wire::{CONNECTION_ID, Hello};
use forebay_transport::{LinkError, Op, Request};
use forebay_ucx::Protocol;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::connection::{Call, Command, Connection};
use crate::io_thread::Core;
use crate::options::ClientOptions;
use crate::wire;

/// How often it is looked whether a connection that was outlived has all its answers.
const LOOK: Duration = Duration::from_millis(20);

/// Serves the callers of one transport until they are gone, it is closed, or the I/O thread ends.
pub(crate) async fn serve(
    core: Rc<Core>,
    peer: Arc<str>,
    options: ClientOptions,
    mut commands: mpsc::UnboundedReceiver<Command>,
) {
    let mut next = None;
    let mut closing = JoinSet::new();
    // For connections that wait for their last answers.
    let hurry = core.stop.child_token();
    loop {
        while closing.try_join_next().is_some() {}
        let command = match next.take() {
            Some(command) => Some(command),
            None => tokio::select! {
                () = core.stop.cancelled() => None,
                command = commands.recv() => command,
            },
        };
        let first = match command {
            None => {
                hurry.cancel();
                while closing.join_next().await.is_some() {}
                return;
            }
            Some(Command::Sweep) => continue,
            Some(Command::Close(closed)) => {
                hurry.cancel();
                while closing.join_next().await.is_some() {}
                let _ = closed.send(());
                return;
            }
            Some(Command::Call(request, call)) => (request, call),
        };
        let connected = tokio::select! {
            () = core.stop.cancelled() => return,
            connected = connect(&core, &peer, &options) => connected,
        };
        match connected {
            Ok(connection) => {
                let ended = run(&core, &connection, &options, first, &mut commands).await;
                let (error, again) = match ended {
                    End::Lost(error) => (error, Next::Again(None)),
                    End::Spent(command) => {
                        (connection.lost("too many of its calls were abandoned"), Next::Again(command))
                    }
                    End::Closed(closed) => (connection.lost("it was closed"), Next::End(closed)),
                    End::Outlived => {
                        closing.spawn_local(finish(Rc::clone(&core), connection, hurry.clone()));
                        continue;
                    }
                };
                end(&core, &connection, &error);
                // A card whose link is down may take long to let go of what it was told to do; the next connection does
                // not wait for that.
                closing.spawn_local(async move { connection.endpoint.close(true).await });
                match again {
                    Next::Again(command) => next = command,
                    Next::End(closed) => {
                        hurry.cancel();
                        while closing.join_next().await.is_some() {}
                        if let Some(closed) = closed {
                            let _ = closed.send(());
                        }
                        return;
                    }
                }
            }
            Err(error) => {
                // Calls that came meanwhile wanted this very connection; a call that comes after one of them has failed is to
                // get another attempt. So they are collected first, and failed then.
                let mut waited = vec![first.1];
                while let Ok(command) = commands.try_recv() {
                    match command {
                        Command::Call(_, call) => waited.push(call),
                        Command::Sweep => {}
                        close @ Command::Close(_) => {
                            next = Some(close);
                            break;
                        }
                    }
                }
                waited.into_iter().for_each(|call| call.end(Err(error.clone().into())));
            }
        }
    }
}

/// Fails the calls of a connection that takes no more.
fn end(core: &Core, connection: &Connection, error: &LinkError) {
    core.forget(connection.endpoint.key());
    let left = connection.calls.borrow_mut().end();
    // Nothing has begun to arrive for these, so their buffers may go back at once.
    left.into_iter().for_each(|call| call.end(Err(error.clone().into())));
    connection.ended.cancel();
}

/// Ends a connection in whose place another one is made, when all that was asked over it is answered, or it cannot be.
async fn finish(core: Rc<Core>, connection: Rc<Connection>, hurry: CancellationToken) {
    let answered = async {
        while connection.watch() {
            tokio::time::sleep(LOOK).await;
            connection.sweep();
        }
    };
    let broken = async {
        while connection.broken.borrow().is_none() {
            connection.changed.notified().await;
        }
    };
    tokio::select! {
        () = answered => {}
        () = broken => {}
        _ = connection.endpoint.failed() => {}
        () = hurry.cancelled() => {}
    }
    let broken = connection.broken.borrow_mut().take();
    let error = broken.unwrap_or_else(|| connection.lost("its server had it come again, and answered no more"));
    end(&core, &connection, &error);
    connection.endpoint.close(true).await;
}

/// Connects and exchanges hellos.
async fn connect(core: &Rc<Core>, peer: &Arc<str>, options: &ClientOptions) -> Result<Rc<Connection>, LinkError> {
    let failed = |reason: String| LinkError::Connect { peer: peer.to_string(), reason };
    let attempt = async {
        let addresses = tokio::net::lookup_host(&**peer).await.map_err(|error| failed(error.to_string()))?;
        let mut last = failed("it has no address".to_owned());
        for address in addresses {
            match greet(core, peer, address, options).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last)
    };
    match tokio::time::timeout(options.connect_timeout, attempt).await {
        Ok(connected) => connected,
        Err(_) => Err(failed(format!("no answer within {:?}", options.connect_timeout))),
    }
}

/// Forgets a connection that did not come to be.
struct Greeting<'a> {
    core: &'a Core,
    key: Option<usize>,
}

impl Drop for Greeting<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.core.forget(key);
        }
    }
}

async fn greet(
    core: &Rc<Core>,
    peer: &Arc<str>,
    address: SocketAddr,
    options: &ClientOptions,
) -> Result<Rc<Connection>, LinkError> {
    let failed = |reason: String| LinkError::Connect { peer: peer.to_string(), reason };
    // For this attempt: a pass is good for one.
    let pass = match &options.security {
        Some(security) => Some(security.pass(core.client_id, peer, options.connect_timeout).await?),
        None => None,
    };
    let endpoint = match pass {
        Some(_) => core.worker.connect_with_id(address, options.bind),
        None => core.worker.connect(address, options.bind),
    };
    let endpoint = endpoint.map_err(|error| failed(error.to_string()))?;
    let connection = Rc::new(Connection {
        peer: Arc::clone(peer),
        hello: Hello::ours(&options.cluster, options.block_size),
        pass,
        endpoint: endpoint.clone(),
        calls: RefCell::new(Outstanding::new(options.max_abandoned)),
        heard: Cell::new(Instant::now()),
        fetching: Cell::new(0),
        patience: options.dead_after,
        greeted: Cell::new(false),
        outlived: Cell::new(false),
        broken: RefCell::new(None),
        changed: Notify::new(),
        ended: CancellationToken::new(),
    });
    let key = endpoint.key();
    core.remember(&connection);
    let mut greeting = Greeting { core, key: Some(key) };
    let tag = pass.map_or(0, |pass| pass.client);
    let hello = wire::hello_with(&connection.hello, core.worker.context().library().version(), tag);
    endpoint.am_send(wire::HELLO, &hello, Bytes::new(), None, Protocol::Eager).detach();
    loop {
        if let Some(error) = connection.broken.borrow_mut().take() {
            return Err(error);
        }
        if connection.greeted.get() {
            break;
        }
        tokio::select! {
            () = connection.changed.notified() => {}
            status = endpoint.failed() => return Err(failed(status.to_string())),
        }
    }
    let lanes = endpoint.lanes().map_err(|error| failed(error.to_string()))?;
    let named: Vec<_> = lanes.iter().map(ToString::to_string).collect();
    if options.require_rdma && !lanes.iter().any(forebay_ucx::Resource::is_rdma) {
        let reason =
            format!("UCX reaches it by {}, which is not RDMA; check the cards of both sides", named.join(", "));
        return Err(connection.refused(reason));
    }
    tracing::info!(peer = &**peer, lanes = named.join(", "), "RDMA client connected");
    greeting.key = None;
    Ok(connection)
}

/// What to do after a connection.
#[expect(clippy::large_enum_variant, reason = "there is one for each connection")]
enum Next {
    /// Wait for calls, after this one.
    Again(Option<Command>),
    /// Nothing more.
    End(Option<oneshot::Sender<()>>),
}

/// How a connection ended.
enum End {
    /// It broke.
    Lost(LinkError),
    /// It takes no more calls; this command is for the next one.
    Spent(Option<Command>),
    /// Its server wants another one in its place, and answers what was asked.
    Outlived,
    /// It is not wanted any more.
    Closed(Option<oneshot::Sender<()>>),
}

async fn run(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    options: &ClientOptions,
    first: (Request, Call),
    commands: &mut mpsc::UnboundedReceiver<Command>,
) -> End {
    let mut liveness = Liveness::new(options.keepalive, options.dead_after, Instant::now());
    // Silence means something only while calls wait; `None` then.
    let mut watching = false;
    let mut command = Some(Command::Call(first.0, first.1));
    // Made once: registering with what they wait for would cost as much as a call, each time.
    let failed = connection.endpoint.failed();
    let stopped = core.stop.cancelled();
    let due = tokio::time::sleep(options.keepalive);
    tokio::pin!(failed, stopped, due);
    loop {
        while let Some(next) = command.take() {
            match next {
                Command::Call(request, call) => {
                    if let Some(again) = connection.start(core, request, call, &mut liveness) {
                        return End::Spent(Some(again));
                    }
                }
                Command::Sweep => {
                    connection.sweep();
                    if connection.calls.borrow().is_spent() {
                        return End::Spent(None);
                    }
                }
                Command::Close(closed) => return End::Closed(Some(closed)),
            }
            command = commands.try_recv().ok();
        }
        if connection.outlived.get() {
            return End::Outlived;
        }
        if !watching && connection.watch() {
            watching = true;
            due.as_mut().reset((Instant::now() + options.keepalive).into());
        }
        tokio::select! {
            biased;
            () = &mut stopped => return End::Closed(None),
            status = &mut failed => return End::Lost(connection.lost(status.to_string())),
            () = connection.changed.notified() => {
                if let Some(error) = connection.broken.borrow_mut().take() {
                    return End::Lost(error);
                }
            }
            next = commands.recv() => match next {
                Some(next) => command = Some(next),
                // Calls whose transport is gone have no caller either.
                None => return End::Closed(None),
            },
            () = &mut due, if watching => {
                watching = false;
                if !connection.watch() {
                    continue;
                }
                let now = Instant::now();
                if connection.heard.get() + options.keepalive > now {
                    liveness.heard(connection.heard.get());
                }
                let again = match liveness.check(now) {
                    Verdict::Wait(at) => at,
                    Verdict::Ping(at) => {
                        let ping = Request::on_path(Op::Ping, Bytes::new(), options.dead_after);
                        connection.send(core, CONNECTION_ID, &ping);
                        at
                    }
                    Verdict::Dead => {
                        return End::Lost(connection.lost(format!("it was silent for {:?}", options.dead_after)));
                    }
                };
                watching = true;
                due.as_mut().reset(again.into());
            }
        }
    }
}
