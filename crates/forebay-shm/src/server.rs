//! The server: takes in clients, within its bounds, and owns their sessions.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use forebay_locks::Mutex;
use forebay_memory::Pool;
use forebay_private::{may_talk, nobody, our_user};
use forebay_transport::Service;
use forebay_transport::wire::Hello;
use forebay_types::{ByteSize, FailureKind};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::WindowError;
use crate::audit::SessionAudit;
use crate::known::Known;
use crate::listener::Listener;
use crate::options::ServerOptions;
use crate::session::serve;
use crate::sessions::{Counted, Line, SessionsShared};
use crate::socket::Socket;
use crate::wire;

/// How long accepting rests after an error, such as too many open files, that would only come back at once.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// How often those who proved who they are are looked over: whoever is denied is gone within five seconds.
const LOOK_OVER: Duration = Duration::from_secs(2);
/// Half of the pool is what clients may look at, unless it is said: the rest is for what is read next.
const SHOWN: u64 = 2;

/// A worker's memory, open to clients on its host. Dropping it ends its tasks without waiting for them; what clients still see is not
/// used again then.
pub struct WindowServer {
    stop: CancellationToken,
    shared: Arc<SessionsShared>,
    connections: Arc<AtomicUsize>,
    /// A task for each socket.
    accepting: Mutex<Vec<JoinHandle<()>>>,
}

impl WindowServer {
    /// Listens as `options` say and has `service`, whose bytes lie in `pool`, answer reads. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`WindowError`] when the pool is not one that can be shared, or it cannot listen there.
    pub fn bind(options: ServerOptions, pool: &Pool, service: Arc<dyn Service>) -> Result<Self, WindowError> {
        if pool.descriptor().is_none() {
            return Err(WindowError::Private);
        }
        let listener = Listener::bind(&options.path)?;
        let (stop, connections) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
        let shared = Arc::new(SessionsShared {
            hello: Hello::ours(&options.cluster, options.block_size),
            service,
            pool: pool.clone(),
            stop: stop.clone(),
            sessions: AtomicU64::new(0),
            line: Mutex::new(Line::new(options.max_pinned.map_or(pool.capacity().as_u64() / SHOWN, ByteSize::as_u64))),
            greeting: Arc::default(),
            known: Known::default(),
            options,
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared), Arc::clone(&connections)));
        Ok(Self { stop, shared, connections, accepting: Mutex::new(vec![accepting]) })
    }

    /// Listens at another path, too: one worker with one bound, known by two addresses. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`WindowError`] when it cannot listen there.
    pub fn also_listen(&self, path: &Path) -> Result<(), WindowError> {
        let listener = Listener::bind(path)?;
        let (shared, connections) = (Arc::clone(&self.shared), Arc::clone(&self.connections));
        self.accepting.lock().push(tokio::spawn(accept(listener, shared, connections)));
        Ok(())
    }

    /// How many clients there are now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// How many of them had to prove nothing.
    #[must_use]
    pub fn unauthenticated(&self) -> usize {
        let others = self.shared.greeting.load(Ordering::Relaxed) + self.shared.known.count();
        self.connections().saturating_sub(others)
    }

    /// Bytes of the pool that clients look at, in whole frames.
    #[must_use]
    pub fn pinned(&self) -> u64 {
        self.shared.line.lock().bound.pinned()
    }

    /// Stops listening, drops the requests in flight, and waits for clients to be done with what they see, for as long as the
    /// options say. Returns when no task is left.
    pub async fn close(&self) {
        self.stop.cancel();
        let accepting = std::mem::take(&mut *self.accepting.lock());
        for accepting in accepting {
            // It ends by panic only when accepting itself does, and then there is nothing left to wait for.
            let _ = accepting.await;
        }
    }
}

impl Drop for WindowServer {
    fn drop(&mut self) {
        // Also ends what a dropped `close` was waiting for.
        self.stop.cancel();
        self.accepting.lock().drain(..).for_each(|accepting| accepting.abort());
    }
}

async fn accept(listener: Listener, shared: Arc<SessionsShared>, connections: Arc<AtomicUsize>) {
    let mut sessions = JoinSet::new();
    let mut strangers = false;
    let mut look = tokio::time::interval(LOOK_OVER);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let accepted = tokio::select! {
            () = shared.stop.cancelled() => break,
            accepted = listener.accept() => accepted,
            _ = look.tick(), if shared.options.security.is_some() => {
                shared.look_over(SystemTime::now());
                continue;
            }
            Some(ended) = sessions.join_next(), if !sessions.is_empty() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a session failed; what its client was shown is not used again");
                }
                continue;
            }
        };
        let client = match accepted {
            Ok(client) => client,
            Err(error) => {
                tracing::warn!(%error, "cannot take in a client on this host; if files are short, raise `ulimit -n`");
                tokio::time::sleep(ACCEPT_REST).await;
                continue;
            }
        };
        let audit = shared.options.audit.as_ref().map(|auditing| SessionAudit::new(auditing, &client));
        if let Err(refusal) = admit(&client, &shared, connections.load(Ordering::Relaxed), &mut strangers) {
            audit.iter().for_each(|audit| audit.refused(&refusal));
            // A courtesy: one try.
            let _ = client.send(&[IoSlice::new(&wire::goodbye(refusal.kind(), &refusal))]);
            continue;
        }
        let (counted, greeting) = (Counted::new(&connections), Counted::new(&shared.greeting));
        let shared = Arc::clone(&shared);
        let number = shared.sessions.fetch_add(1, Ordering::Relaxed);
        sessions.spawn(async move {
            serve(client, number, shared, greeting, audit).await;
            drop(counted);
        });
    }
    drop(listener);
    while sessions.join_next().await.is_some() {}
}

/// Why a client is not taken in.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the worker runs as user {ours} and shows its memory to that user and to root; run both as one user")]
    OtherUser { ours: u32 },
    #[error("it has its {0} sessions; raise its limit")]
    Full(usize),
    #[error("{0} clients have not said hello yet")]
    Crowded(usize),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Refusal {
    /// What it is to the client: whether it may try again soon.
    fn kind(&self) -> FailureKind {
        match self {
            Self::Crowded(_) => FailureKind::Unavailable,
            Self::OtherUser { .. } | Self::Full(_) | Self::Io(_) => FailureKind::InvalidArgument,
        }
    }
}

/// Whether a client may look. `strangers`: whether one of another user has been spoken of.
fn admit(client: &Socket, shared: &SessionsShared, connections: usize, strangers: &mut bool) -> Result<(), Refusal> {
    let (user, ours) = (client.peer_user()?, our_user());
    if !may_talk(user, ours, nobody()) {
        if !std::mem::replace(strangers, true) {
            tracing::info!(
                user,
                ours,
                "clients of another user on this host read over the network; run both as one user"
            );
        }
        return Err(Refusal::OtherUser { ours });
    }
    let (limit, greeting) = (shared.options.max_connections, shared.options.max_greeting);
    if connections >= limit {
        return Err(Refusal::Full(limit));
    }
    if shared.greeting.load(Ordering::Relaxed) >= greeting { Err(Refusal::Crowded(greeting)) } else { Ok(()) }
}
