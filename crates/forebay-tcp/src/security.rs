//! Who is at the other end of a connection.
//!
//! Both ends prove their identities in a TLS 1.3 handshake ([`forebay_identity`]), and exchange hellos within it. Then there are
//! two ways to go on, which the protocol's name in the handshake (ALPN, RFC 7301) tells apart, so that nobody on the path can
//! choose:
//!
//! * [`TcpSecurity::Encrypt`]: all that follows is in records of TLS, too ([`crate::records`]).
//! * [`TcpSecurity::Auth`]: the connection goes on in plain text on the same socket. What was proved is proved of this connection,
//!   and nothing that was sent before, or to somebody else, proves anything here. Whoever sits on the path can still read, and
//!   change, what follows: checksums find accidents and no intent. No byte of TLS is taken for plain text, nor the other way
//!   round: the server says its hello when it has the client's, and after all else that TLS has to say; the client sends
//!   nothing in plain text before it has that hello.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use forebay_identity::{ClientProof, LiveIdentity, Peer, ServerProof, Standing, Unproved};
use forebay_transport::LinkError;
use forebay_types::TcpSecurity;
use rustls::AlertDescription;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::by_record::ByRecord;

/// The first byte of a TLS handshake (RFC 8446, 5.1). No hello of ours begins with it.
const HANDSHAKE: u8 = 22;
/// That of an alert.
const ALERT: u8 = 21;

/// The name of the protocol with which all is encrypted.
const ENCRYPTED: &[u8] = b"forebay/1";
/// That of the one which goes on in plain text.
const PLAIN_AFTER: &[u8] = b"forebay-auth/1";

/// What a server demands of those who connect.
#[derive(Clone, Debug)]
pub struct ServerSecurity(ServerProof);

/// What a client proves, and demands of whom it reaches.
#[derive(Clone, Debug)]
pub struct ClientSecurity(ClientProof);

impl ServerSecurity {
    /// Admits those whom `live` believes, and nobody else. With [`TcpSecurity::Auth`] a client may still have all encrypted.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new(live: &Arc<LiveIdentity>, level: TcpSecurity) -> Result<Self, rustls::Error> {
        let protocols: &[&[u8]] = match level {
            TcpSecurity::Encrypt => &[ENCRYPTED],
            TcpSecurity::Auth => &[PLAIN_AFTER, ENCRYPTED],
        };
        ServerProof::new(live, protocols).map(Self)
    }

    /// Admits also those who prove nothing, and lets them do everything: for the time in which a cluster is being changed.
    #[must_use]
    pub fn accepting_plain(self) -> Self {
        Self(self.0.accepting_plain())
    }

    /// Whether a peer that has begun to send like this may go on without proof.
    pub(crate) async fn lets_pass(&self, stream: &TcpStream) -> io::Result<bool> {
        let mut first = [0];
        Ok(self.0.accepts_plain() && stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE)
    }

    /// Has the peer prove who it is.
    pub(crate) async fn accept<'s>(
        &self,
        stream: &'s mut TcpStream,
    ) -> Result<(server::TlsStream<ByRecord<'s>>, Peer), Unproved> {
        let accepted = TlsAcceptor::from(Arc::clone(self.0.config())).accept(ByRecord::new(stream)).await;
        let why = |error: io::Error| tls_error(&error).map_or_else(|| Unproved::new(error.to_string()), unproved);
        let mut tls = accepted.map_err(why)?;
        let peer = self.0.verify_client(tls.get_ref().1, SystemTime::now());
        if peer.is_err() {
            // Its session was resumed, and TLS has no alert any more. But it has an end in good order, which no accident makes.
            let _ = tls.shutdown().await;
        }
        Ok((tls, peer?))
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
    pub fn to_worker(live: &Arc<LiveIdentity>, level: TcpSecurity) -> Result<Self, rustls::Error> {
        let protocol = match level {
            TcpSecurity::Encrypt => ENCRYPTED,
            TcpSecurity::Auth => PLAIN_AFTER,
        };
        ClientProof::to_worker(live, &[protocol]).map(Self)
    }

    /// The same to the worker of this name, and to no other one.
    #[must_use]
    pub fn named(&self, name: impl Into<String>) -> Self {
        Self(self.0.named(name))
    }

    /// Proves who this process is, and finds out whom it has reached at `address`.
    ///
    /// # Errors
    /// [`LinkError::Unproved`], and [`LinkError::Connect`] when the socket failed.
    pub(crate) async fn connect<'s>(
        &self,
        stream: &'s mut TcpStream,
        address: &str,
    ) -> Result<client::TlsStream<ByRecord<'s>>, LinkError> {
        let connector = TlsConnector::from(Arc::clone(self.0.config()));
        let connecting = connector.connect(self.0.session_name(address), ByRecord::new(stream));
        let tls = connecting.await.map_err(|error| link_error(address, &error))?;
        self.0.verify_server(tls.get_ref().1, SystemTime::now()).map_err(|why| not_proved(address, &why))?;
        Ok(tls)
    }
}

/// Whether what follows the hellos of this connection is encrypted, too.
pub(crate) fn is_encrypted(tls: &rustls::CommonState) -> bool {
    tls.alpn_protocol() == Some(ENCRYPTED)
}

/// A peer that says it does not want us, without a hello: `bytes` are what came in its place, and nothing if it ended the
/// connection in good order. `None`: it does not say that.
pub(crate) fn turned_away(peer: &str, bytes: &[u8], over_tls: bool) -> Option<LinkError> {
    let reason = match bytes {
        // It remembers a session of ours, and would not begin another.
        [] if over_tls => "it left when it had seen the certificate of this process; its log says why",
        [ALERT, 3, ..] if !over_tls => "it speaks TLS only; set `security.mode` as it is set there",
        _ => return None,
    };
    Some(not_proved(peer, &Unproved::new(reason)))
}

/// What ended a handshake with `peer`, or what came within it: TLS says why, or else the socket failed.
pub(crate) fn link_error(peer: &str, error: &io::Error) -> LinkError {
    match tls_error(error) {
        Some(tls) => not_proved(peer, &unproved(tls)),
        None => LinkError::Connect { peer: peer.to_owned(), reason: error.to_string() },
    }
}

fn not_proved(peer: &str, why: &Unproved) -> LinkError {
    LinkError::Unproved { peer: peer.to_owned(), reason: why.to_string() }
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Why a handshake, or what came within it, failed and, behind `; `, what helps.
fn unproved(error: &rustls::Error) -> Unproved {
    match error {
        rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol) => Unproved::new(
            "it takes no other connections than those of which all is encrypted; set `network.tcp.security` here as it is set \
             there",
        ),
        rustls::Error::NoApplicationProtocol => Unproved::new(
            "it would go on in plain text, and `network.tcp.security=encrypt` is set here; set it there, too",
        ),
        error => Unproved::of_tls(error),
    }
}
