//! The task that owns a client's connection, on an I/O thread: it connects when there is a call, sends requests, and watches for
//! silence and for the connection's end. What carries the messages, UCX or verbs, is a [`ClientLink`].
//!
//! A connection that takes no more calls serves those that it has beside the one that is made for the next: too many of its calls were
//! given up, which hold what they have until they are answered, a reply does not arrive, or its server has it come again.

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_transport::connection::{Liveness, Verdict};
use forebay_transport::{LinkError, Op, Request};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client_link::{Call, ClientLink, Command};
use crate::options::ClientOptions;

/// How often it is looked whether anybody waits for a connection that takes no more calls.
const LOOK: Duration = Duration::from_millis(20);

/// Serves the callers of one transport until they are gone, it is closed, or the I/O thread ends. `again` sends to `commands`.
pub(crate) async fn serve<C: ClientLink>(
    core: Rc<C::Core>,
    peer: Arc<str>,
    options: ClientOptions,
    mut commands: mpsc::UnboundedReceiver<Command>,
    again: mpsc::WeakUnboundedSender<Command>,
) {
    let mut next = None;
    let mut closing = JoinSet::new();
    // For connections that serve the last of their calls.
    let stop = C::stop(&core).clone();
    let hurry = stop.child_token();
    loop {
        while closing.try_join_next().is_some() {}
        let command = match next.take() {
            Some(command) => Some(command),
            None => tokio::select! {
                () = stop.cancelled() => None,
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
            () = stop.cancelled() => return,
            connected = connect::<C>(&core, &peer, &options) => connected,
        };
        match connected {
            Ok(connection) => {
                let ended = run::<C>(&core, &connection, &options, Some(first), &mut commands).await;
                let (error, then) = match ended {
                    End::Lost(error) => (error, Next::Again),
                    End::Closed(closed) => (connection.state().lost("it was closed"), Next::End(closed)),
                    End::Retired(command) => {
                        next = command;
                        let (core, options) = (Rc::clone(&core), options.clone());
                        closing.spawn_local(finish::<C>(core, connection, options, Some(again.clone()), hurry.clone()));
                        continue;
                    }
                };
                end::<C>(&core, &connection, &error);
                // A card whose link is down may take long to let go of what it was told to do; the next connection does
                // not wait for that.
                closing.spawn_local(async move { connection.close().await });
                if let Next::End(closed) = then {
                    hurry.cancel();
                    while closing.join_next().await.is_some() {}
                    if let Some(closed) = closed {
                        let _ = closed.send(());
                    }
                    return;
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
fn end<C: ClientLink>(core: &C::Core, connection: &C, error: &LinkError) {
    connection.forget(core);
    let left = connection.state().calls.borrow_mut().end();
    // What a call still owns nobody writes to, so that may go back at once: what the card may write to is the connection's.
    left.into_iter().for_each(|call| call.end(Err(error.clone().into())));
    connection.state().ended.cancel();
}

/// Ends a connection that takes no more calls, when no caller waits for what it has, or what they wait for cannot come. Calls that have
/// not begun go to the one that is made in its place, by `next`; without it, there are none.
async fn finish<C: ClientLink>(
    core: Rc<C::Core>,
    connection: Rc<C>,
    options: ClientOptions,
    next: Option<mpsc::WeakUnboundedSender<Command>>,
    hurry: CancellationToken,
) {
    let state = connection.state();
    let served = async {
        let mut liveness = Liveness::new(options.keepalive, options.dead_after, Instant::now());
        loop {
            connection.sweep();
            hand_over::<C>(&connection, next.as_ref());
            if connection.is_spent() {
                return state.lost("it took no more calls, and nobody waited for those that it had");
            }
            // A server that has its client come again hears no question after that, and answers none.
            if !state.outlived.get()
                && let Err(error) = judge::<C>(&core, &connection, &options, &mut liveness)
            {
                return error;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    let broken = async {
        loop {
            if let Some(error) = state.broken.borrow_mut().take() {
                return error;
            }
            state.changed.notified().await;
        }
    };
    let error = tokio::select! {
        error = served => error,
        error = broken => error,
        reason = connection.failed() => state.lost(reason),
        () = hurry.cancelled() => state.lost("it was closed"),
    };
    end::<C>(&core, &connection, &error);
    connection.close().await;
}

/// Sends calls that a connection has not begun, and will not, to the next one.
fn hand_over<C: ClientLink>(connection: &C, next: Option<&mpsc::WeakUnboundedSender<Command>>) {
    for (request, call) in connection.take_waiting() {
        match next.and_then(mpsc::WeakUnboundedSender::upgrade) {
            Some(commands) => drop(commands.send(Command::Call(request, call))),
            None => call.end(Err(connection.state().lost("it was closed").into())),
        }
    }
}

/// What the silence of a peer means by now: it is asked whether it lives when it is time for that. When to look again.
///
/// # Errors
/// It is taken for dead.
fn judge<C: ClientLink>(
    core: &C::Core,
    connection: &C,
    options: &ClientOptions,
    liveness: &mut Liveness,
) -> Result<Instant, LinkError> {
    let (state, now) = (connection.state(), Instant::now());
    if state.heard.get() + options.keepalive > now {
        liveness.heard(state.heard.get());
    }
    match liveness.check(now) {
        Verdict::Wait(at) => Ok(at),
        Verdict::Ping(at) => {
            connection.ping(core, &Request::on_path(Op::Ping, Bytes::new(), options.dead_after));
            Ok(at)
        }
        Verdict::Dead => Err(state.lost(format!("it was silent for {:?}", options.dead_after))),
    }
}

/// Connects and exchanges hellos.
async fn connect<C: ClientLink>(
    core: &Rc<C::Core>,
    peer: &Arc<str>,
    options: &ClientOptions,
) -> Result<Rc<C>, LinkError> {
    to_an_address(peer, options, |address: SocketAddr| C::greet(core, peer, address, options)).await
}

/// What `greet` makes of the first address of `peer` that it does with.
pub(crate) async fn to_an_address<T>(
    peer: &str,
    options: &ClientOptions,
    mut greet: impl AsyncFnMut(SocketAddr) -> Result<T, LinkError>,
) -> Result<T, LinkError> {
    let failed = |reason: String| LinkError::Connect { peer: peer.to_owned(), reason };
    let attempt = async {
        let addresses = tokio::net::lookup_host(peer).await.map_err(|error| failed(error.to_string()))?;
        let mut last = failed("it has no address".to_owned());
        for address in addresses {
            match greet(address).await {
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

/// Serves a connection that takes no more calls, until the one that it has is answered, or `commands` end with its caller, or `stop`
/// is cancelled.
pub(crate) async fn serve_last<C: ClientLink>(
    core: Rc<C::Core>,
    connection: Rc<C>,
    options: &ClientOptions,
    mut commands: mpsc::UnboundedReceiver<Command>,
    stop: CancellationToken,
) {
    let ended = tokio::select! {
        ended = run::<C>(&core, &connection, options, None, &mut commands) => ended,
        () = stop.cancelled() => End::Closed(None),
    };
    let error = match ended {
        End::Lost(error) => error,
        End::Closed(_) => connection.state().lost("it was closed"),
        End::Retired(_) => return finish::<C>(core, connection, options.clone(), None, stop).await,
    };
    end::<C>(&core, &connection, &error);
    connection.close().await;
}

/// What to do after a connection.
enum Next {
    /// Wait for calls.
    Again,
    /// Nothing more.
    End(Option<oneshot::Sender<()>>),
}

/// How a connection ended.
#[expect(clippy::large_enum_variant, reason = "there is one for each connection")]
enum End {
    /// It broke.
    Lost(LinkError),
    /// It takes no more calls, and serves those that it has; this command is for the next one.
    Retired(Option<Command>),
    /// It is not wanted any more.
    Closed(Option<oneshot::Sender<()>>),
}

async fn run<C: ClientLink>(
    core: &Rc<C::Core>,
    connection: &Rc<C>,
    options: &ClientOptions,
    first: Option<(Request, Call)>,
    commands: &mut mpsc::UnboundedReceiver<Command>,
) -> End {
    let state = connection.state();
    let mut liveness = Liveness::new(options.keepalive, options.dead_after, Instant::now());
    // Silence means something only while calls wait; `None` then.
    let mut watching = false;
    let mut command = first.map(|(request, call)| Command::Call(request, call));
    // Made once: registering with what they wait for would cost as much as a call, each time.
    let failed = connection.failed();
    let stopped = C::stop(core).cancelled();
    let due = tokio::time::sleep(options.keepalive);
    tokio::pin!(failed, stopped, due);
    loop {
        while let Some(next) = command.take() {
            match next {
                Command::Call(request, call) => {
                    if let Some(again) = connection.start(core, request, call, &mut liveness) {
                        return End::Retired(Some(again));
                    }
                }
                Command::Sweep => {
                    connection.sweep();
                    if !state.calls.borrow().is_accepting() {
                        return End::Retired(None);
                    }
                }
                Command::Close(closed) => return End::Closed(Some(closed)),
            }
            command = commands.try_recv().ok();
        }
        if state.outlived.get() || state.retires.get() {
            state.calls.borrow_mut().retire();
            return End::Retired(None);
        }
        if !watching && connection.watch() {
            watching = true;
            due.as_mut().reset((Instant::now() + options.keepalive).into());
        }
        tokio::select! {
            biased;
            () = &mut stopped => return End::Closed(None),
            reason = &mut failed => return End::Lost(state.lost(reason)),
            () = state.changed.notified() => {
                if let Some(error) = state.broken.borrow_mut().take() {
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
                match judge::<C>(core, connection, options, &mut liveness) {
                    Ok(again) => {
                        watching = true;
                        due.as_mut().reset(again.into());
                    }
                    Err(error) => return End::Lost(error),
                }
            }
        }
    }
}
