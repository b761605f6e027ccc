//! The connections of a server, and how they are told to go. The shell around [`Admission`]: a lock, which no
//! connection takes but when it comes, has greeted, and leaves.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_identity::{Identity, Peer, Standing};
use forebay_locks::Mutex;
use forebay_transport::connection::{Admission, AdmissionLimits, Arrival, LastUse};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::closings::{CloseReason, Closings};
use crate::end::End;
use crate::options::ServerOptions;

/// All connections of a server.
#[derive(Debug)]
pub(crate) struct Connections {
    admission: Mutex<Admission<CancellationToken>>,
    /// A place is free for a connection that has not greeted.
    left: Notify,
    closings: Closings,
    /// Those who proved who they are.
    known: Mutex<HashMap<u64, Known>>,
}

/// Somebody who proved who it is, and how it is told to go.
#[derive(Debug)]
struct Known {
    peer: Peer,
    told: CancellationToken,
    is_denied: bool,
}

/// The place of a connection; free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    connections: Arc<Connections>,
    number: u64,
    peer: SocketAddr,
    /// It is to go, or the server ends.
    told: CancellationToken,
    last_use: Arc<LastUse>,
}

impl Connections {
    pub(crate) fn new(options: &ServerOptions) -> Arc<Self> {
        let limits = AdmissionLimits {
            greeted: options.max_connections.max(1),
            greeted_per_client: options.max_connections_per_client.max(1),
            greeting: options.max_greeting.max(1),
            greeting_per_client: options.max_greeting_per_client.max(1),
            makes_way_after: options.makes_way_after,
        };
        let admission = Mutex::new(Admission::new(limits));
        Arc::new(Self { admission, left: Notify::new(), closings: Closings::default(), known: Mutex::default() })
    }

    /// A place for a connection from `peer`, as soon as there is one. `None`: it is refused, or `stop` was cancelled.
    pub(crate) async fn arrive(self: &Arc<Self>, peer: SocketAddr, stop: &CancellationToken) -> Option<Place> {
        let told = stop.child_token();
        loop {
            let now = Instant::now().into_std();
            let arrival = self.admission.lock().arrive(peer.ip(), &told, now);
            match arrival {
                Arrival::Taken { number, makes_way } => {
                    if let Some(oldest) = makes_way {
                        self.closings.tell(CloseReason::GreetingLimit, peer, &"another made way: it said no hello");
                        oldest.cancel();
                    }
                    let (connections, last_use) = (Arc::clone(self), Arc::new(LastUse::new(now)));
                    return Some(Place { connections, number, peer, told, last_use });
                }
                Arrival::Refused => {
                    let cause = "too many connections of its host have not said hello";
                    self.closings.tell(CloseReason::GreetingLimit, peer, &cause);
                    return None;
                }
                Arrival::Later(wait) => tokio::select! {
                    () = stop.cancelled() => return None,
                    // What happens before this waits for it is not forgotten.
                    () = self.left.notified() => {}
                    () = tokio::time::sleep(wait) => {}
                },
            }
        }
    }

    /// Tells those to go that have been idle for `timeout`.
    pub(crate) fn expire(&self, timeout: Duration) {
        let expired = self.admission.lock().expire(timeout, Instant::now().into_std());
        for idle in expired {
            self.closings.count(CloseReason::Idle);
            idle.cancel();
        }
    }

    /// Tells those to go who are denied, at once, and those whose certificate has expired, as if they were idle: their calls are
    /// answered, or made again over a new connection.
    pub(crate) fn look_over(&self, standing: impl Fn(&Peer) -> Standing) {
        for known in self.known.lock().values_mut().filter(|known| !known.told.is_cancelled()) {
            match standing(&known.peer) {
                Standing::Good => continue,
                Standing::Expired => self.closings.count(CloseReason::Expired),
                Standing::Denied => known.is_denied = true,
            }
            known.told.cancel();
        }
    }

    /// How many there are that have greeted.
    pub(crate) fn greeted(&self) -> usize {
        self.admission.lock().greeted_count()
    }

    /// How many of them had to prove nothing.
    pub(crate) fn unauthenticated(&self) -> usize {
        let known = self.known.lock().len();
        self.greeted().saturating_sub(known)
    }

    /// How many there are that have not greeted yet.
    pub(crate) fn greeting(&self) -> usize {
        self.admission.lock().greeting_count()
    }

    /// How many were closed or refused, by reason.
    pub(crate) fn closed(&self) -> [(CloseReason, u64); CloseReason::ALL.len()] {
        self.closings.now()
    }
}

impl Place {
    /// Who connected.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Cancelled when the connection is to go, or the server ends.
    pub(crate) fn told(&self) -> &CancellationToken {
        &self.told
    }

    /// Its peer, who proved to be `peer`, may talk: whether there is room for it.
    ///
    /// # Errors
    /// [`End::Full`], [`End::ClientFull`] and [`End::Crowded`].
    pub(crate) fn greeted(&self, peer: Option<Peer>) -> Result<(), End> {
        let now = Instant::now().into_std();
        self.last_use.set(Some(now));
        let makes_way = self.connections.admission.lock().greeted(self.number, &self.last_use, now)?;
        self.connections.left.notify_one();
        if let Some(idle) = makes_way {
            self.connections.closings.count(CloseReason::MadeWay);
            idle.cancel();
        }
        if let Some(peer) = peer {
            let known = Known { peer, told: self.told.clone(), is_denied: false };
            self.connections.known.lock().insert(self.number, known);
        }
        Ok(())
    }

    /// Who its peer is, if it may not be here any more.
    pub(crate) fn denied(&self) -> Option<Box<Identity>> {
        let known = self.connections.known.lock();
        known.get(&self.number).filter(|known| known.is_denied).map(|known| Box::new(known.peer.identity.clone()))
    }

    /// Who its peer proved to be. `None`: it had to prove nothing, or has not greeted yet.
    pub(crate) fn proved(&self) -> Option<Peer> {
        self.connections.known.lock().get(&self.number).map(|known| known.peer.clone())
    }

    /// It is idle since then; `None`: it is being answered. Costs no lock.
    pub(crate) fn used(&self, idle_since: Option<Instant>) {
        self.last_use.set(idle_since.map(Instant::into_std));
    }

    /// Counts its end, and tells an operator if one should know.
    pub(crate) fn ended(&self, end: &End) {
        match end.reason() {
            Some(reason) => self.connections.closings.tell(reason, self.peer, end),
            None => tracing::debug!(peer = %self.peer, reason = %end, "connection ended"),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.known.lock().remove(&self.number);
        self.connections.admission.lock().leave(self.number);
        self.connections.left.notify_one();
    }
}
