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

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use forebay_identity::{Live, Peer, Side, reason};
use forebay_transport::{LinkError, Op};
use forebay_types::{Failure, FailureKind, Role, TcpSecurity};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, ClientConfig, ServerConfig};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// The first byte of a TLS handshake (RFC 8446, 5.1). No hello of ours begins with it.
const HANDSHAKE: u8 = 22;
/// That of an alert.
const ALERT: u8 = 21;

/// The name of the protocol with which all is encrypted.
const ENCRYPTED: &[u8] = b"forebay/1";
/// That of the one which goes on in plain text.
const PLAIN_AFTER: &[u8] = b"forebay-auth/1";

/// What helps when keys or certificates do not fit.
const LOOK: &str = "`forebay doctor` says here and there what is wrong with keys, certificates and clocks";

/// What a server demands of those who connect.
#[derive(Clone)]
pub struct ServerSecurity {
    config: Arc<ServerConfig>,
    live: Arc<Live>,
    accepts_plain: bool,
}

/// What a client proves, and demands of whom it reaches.
#[derive(Clone)]
pub struct ClientSecurity {
    config: Arc<ClientConfig>,
    live: Arc<Live>,
    expected: Expected,
}

/// Who is meant by an address.
#[derive(Clone, Debug)]
struct Expected {
    role: Role,
    /// `None`: any of that role.
    name: Option<String>,
}

impl std::fmt::Debug for ServerSecurity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerSecurity").field("accepts_plain", &self.accepts_plain).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ClientSecurity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientSecurity").field("expected", &self.expected).finish_non_exhaustive()
    }
}

/// What is thought of somebody who was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// May stay.
    Good,
    /// Has to come again, with a new certificate.
    Expired,
    /// Has to go, and need not come again.
    Denied,
}

/// Why somebody is not believed and, behind `; `, what helps, for people.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unproved(String);

impl Unproved {
    fn into_link_error(self, peer: &str) -> LinkError {
        LinkError::Unproved { peer: peer.to_owned(), reason: self.0 }
    }
}

impl ServerSecurity {
    /// Admits those whom `live` believes, and nobody else. With [`TcpSecurity::Auth`] a client may still have all encrypted.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new(live: &Arc<Live>, level: TcpSecurity) -> Result<Self, rustls::Error> {
        let protocols: &[&[u8]] = match level {
            TcpSecurity::Encrypt => &[ENCRYPTED],
            TcpSecurity::Auth => &[PLAIN_AFTER, ENCRYPTED],
        };
        let config = Arc::new(forebay_identity::server_config(live, protocols)?);
        Ok(Self { config, live: Arc::clone(live), accepts_plain: false })
    }

    /// Admits also those who prove nothing, and lets them do everything: for the time in which a cluster is being changed.
    #[must_use]
    pub fn accepting_plain(self) -> Self {
        Self { accepts_plain: true, ..self }
    }

    /// Whether a peer that has begun to send like this may go on without proof.
    pub(crate) async fn lets_pass(&self, stream: &TcpStream) -> io::Result<bool> {
        let mut first = [0];
        Ok(self.accepts_plain && stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE)
    }

    /// Has the peer prove who it is.
    pub(crate) async fn accept<'s>(
        &self,
        stream: &'s mut TcpStream,
    ) -> Result<(server::TlsStream<&'s mut TcpStream>, Peer), Unproved> {
        let accepted = TlsAcceptor::from(Arc::clone(&self.config)).accept(stream).await;
        let mut tls =
            accepted.map_err(|error| Unproved(tls_error(&error).map_or_else(|| error.to_string(), describe)))?;
        let judged = judge(&self.live, tls.get_ref().1.peer_certificates(), Side::Client);
        let peer = match judged {
            Ok(peer) => peer,
            Err(unproved) => {
                // Its session was resumed, and TLS has no alert any more. But it has an end in good order, which no accident makes.
                let _ = tls.shutdown().await;
                return Err(unproved);
            }
        };
        if tls.get_ref().1.alpn_protocol().is_none() {
            return Err(Unproved("it does not say which protocol it speaks over TLS".to_owned()));
        }
        Ok((tls, peer))
    }

    /// Whether somebody who was admitted still may be here.
    pub(crate) fn standing(&self, peer: &Peer, now: SystemTime) -> Standing {
        if self.live.material().trust().denies(&peer.identity) {
            Standing::Denied
        } else if now > peer.until {
            Standing::Expired
        } else {
            Standing::Good
        }
    }
}

impl ClientSecurity {
    /// Proves what `live` has, to a worker.
    ///
    /// # Errors
    /// None that a sound build has.
    pub fn to_worker(live: &Arc<Live>, level: TcpSecurity) -> Result<Self, rustls::Error> {
        let protocol = match level {
            TcpSecurity::Encrypt => ENCRYPTED,
            TcpSecurity::Auth => PLAIN_AFTER,
        };
        let config = Arc::new(forebay_identity::client_config(live, &[protocol])?);
        let expected = Expected { role: Role::Worker, name: None };
        Ok(Self { config, live: Arc::clone(live), expected })
    }

    /// The same to the worker of this name, and to no other one.
    #[must_use]
    pub fn named(&self, name: impl Into<String>) -> Self {
        let expected = Expected { name: Some(name.into()), ..self.expected.clone() };
        Self { expected, ..self.clone() }
    }

    /// Proves who this process is, and finds out whom it has reached at `address`.
    ///
    /// # Errors
    /// [`LinkError::Unproved`], and [`LinkError::Connect`] when the socket failed.
    pub(crate) async fn connect<'s>(
        &self,
        stream: &'s mut TcpStream,
        address: &str,
    ) -> Result<client::TlsStream<&'s mut TcpStream>, LinkError> {
        let connecting = TlsConnector::from(Arc::clone(&self.config)).connect(session_name(address), stream);
        let tls = connecting.await.map_err(|error| link_error(address, &error))?;
        self.recognise(tls.get_ref().1).map_err(|unproved| unproved.into_link_error(address))?;
        Ok(tls)
    }

    /// Whether the one who is meant is at the other end.
    fn recognise(&self, tls: &rustls::CommonState) -> Result<(), Unproved> {
        if tls.alpn_protocol().is_none() {
            return Err(Unproved("it speaks another protocol over TLS; see which program listens there".to_owned()));
        }
        let peer = judge(&self.live, tls.peer_certificates(), Side::Server)?;
        let identity = &peer.identity;
        let Expected { role, name } = &self.expected;
        if identity.role() != *role || name.as_ref().is_some_and(|name| identity.name() != name) {
            let meant = name.as_ref().map(|name| format!(" `{name}`")).unwrap_or_default();
            return Err(Unproved(format!(
                "`{identity}` listens there, and not the {role}{meant}; see which certificate the process there has"
            )));
        }
        Ok(())
    }
}

/// Whether what follows the hellos of this connection is encrypted, too.
pub(crate) fn is_encrypted(tls: &rustls::CommonState) -> bool {
    tls.alpn_protocol() == Some(ENCRYPTED)
}

/// Why somebody of this role may not ask for `op`, if that is so. Who had to prove nothing may ask for everything.
pub(crate) fn refusal(role: Option<Role>, op: Op) -> Option<Failure> {
    let (role, permission) = (role?, op.permission()?);
    if role.may(permission) {
        return None;
    }
    let message = format!(
        "a {role} may not {permission}, which `{}` asks for; `forebay key issue --role` makes a certificate for another role",
        op.name()
    );
    Some(Failure::new(FailureKind::PermissionDenied, message))
}

fn judge(live: &Live, chain: Option<&[CertificateDer<'_>]>, side: Side) -> Result<Peer, Unproved> {
    let judged = live.material().trust().verify(chain.unwrap_or_default(), side, SystemTime::now());
    judged.map_err(|error| Unproved(format!("{error}; {LOOK}")))
}

/// Under which name sessions with `address` are remembered, to be resumed. It is not sent.
fn session_name(address: &str) -> ServerName<'static> {
    let mut hasher = DefaultHasher::new();
    address.hash(&mut hasher);
    let name = ServerName::try_from(format!("w{:016x}", hasher.finish()));
    // Otherwise sessions of all share one name, and are not resumed.
    name.unwrap_or(ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into()))
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
    Some(Unproved(reason.to_owned()).into_link_error(peer))
}

/// What ended a handshake with `peer`, or what came within it: TLS says why, or else the socket failed.
pub(crate) fn link_error(peer: &str, error: &io::Error) -> LinkError {
    match tls_error(error) {
        Some(tls) => Unproved(describe(tls)).into_link_error(peer),
        None => LinkError::Connect { peer: peer.to_owned(), reason: error.to_string() },
    }
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Why a handshake, or what came within it, failed and, behind `; `, what helps.
fn describe(error: &rustls::Error) -> String {
    match error {
        rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "it takes no other connections than those of which all is encrypted; set `network.tcp.security` here as it is \
             set there"
                .to_owned()
        }
        rustls::Error::NoApplicationProtocol => {
            "it would go on in plain text, and `network.tcp.security=encrypt` is set here; set it there, too".to_owned()
        }
        rustls::Error::AlertReceived(alert) => {
            format!("it refuses the certificate of this process ({alert:?}); its log says why")
        }
        rustls::Error::InvalidMessage(_) => {
            "it does not speak TLS; set `security.mode` there as it is set here".to_owned()
        }
        error => format!("{}; {LOOK}", reason(error)),
    }
}
