//! Who is at the other end of a session, where that has to be proved.
//!
//! Both ends prove their identities in a TLS 1.3 handshake ([`forebay_identity`]), and exchange hellos within it. The session goes on
//! in plain text: it does not leave the machine. The protocol has a name of its own in the handshake (ALPN, RFC 7301), so what was
//! proved over TCP proves nothing here, nor the other way round.

use std::sync::Arc;
use std::time::SystemTime;

use forebay_identity::{ClientProof, LiveIdentity, Peer, ServerProof, Standing, Unproved};
use rustls::{ClientConnection, CommonState, Connection, ServerConnection};

/// The name of the protocol.
const PROTOCOL: &[u8] = b"forebay-shm/1";

/// What a worker demands of those who want to see its memory.
#[derive(Clone, Debug)]
pub struct ServerSecurity(ServerProof);

/// What a client proves, and demands of the worker whose memory it sees.
#[derive(Clone, Debug)]
pub struct ClientSecurity(ClientProof);

impl ServerSecurity {
    /// Admits those whom `live` believes, if their role may read, and nobody else.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new(live: &Arc<LiveIdentity>) -> Result<Self, rustls::Error> {
        ServerProof::new(live, &[PROTOCOL]).map(Self)
    }

    /// Admits also those who prove nothing: for the time in which a cluster is being changed.
    #[must_use]
    pub fn accepting_plain(self) -> Self {
        Self(self.0.accepting_plain())
    }

    /// Whether those are admitted who prove nothing.
    pub(crate) fn accepts_plain(&self) -> bool {
        self.0.accepts_plain()
    }

    /// The worker's end of a handshake.
    pub(crate) fn begin(&self) -> Result<Connection, Unproved> {
        let tls = ServerConnection::new(Arc::clone(self.0.config()));
        tls.map(Connection::from).map_err(|error| Unproved::of_tls(&error))
    }

    /// Who is at the other end of this handshake, which is done.
    pub(crate) fn verify_client(&self, tls: &CommonState) -> Result<Peer, Unproved> {
        self.0.verify_client(tls, SystemTime::now())
    }

    /// Whether somebody who was admitted still may be here.
    pub(crate) fn standing(&self, peer: &Peer, now: SystemTime) -> Standing {
        self.0.standing(peer, now)
    }
}

impl ClientSecurity {
    /// Proves what `live` has, to a worker.
    ///
    /// # Errors
    /// None that a sound build has.
    pub fn to_worker(live: &Arc<LiveIdentity>) -> Result<Self, rustls::Error> {
        ClientProof::to_worker(live, &[PROTOCOL]).map(Self)
    }

    /// The same to the worker of this name, and to no other one.
    #[must_use]
    pub fn named(&self, name: impl Into<String>) -> Self {
        Self(self.0.named(name))
    }

    /// The client's end of a handshake with the worker that is known as `worker`.
    pub(crate) fn begin(&self, worker: &str) -> Result<Connection, Unproved> {
        let tls = ClientConnection::new(Arc::clone(self.0.config()), self.0.session_name(worker));
        tls.map(Connection::from).map_err(|error| Unproved::of_tls(&error))
    }

    /// Whether the worker that is meant is at the other end of this handshake, which is done.
    pub(crate) fn verify_server(&self, tls: &CommonState) -> Result<(), Unproved> {
        self.0.verify_server(tls, SystemTime::now())
    }
}
