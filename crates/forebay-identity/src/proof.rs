//! What the two ends of a connection prove to each other, whatever carries it: a stream, or a socket of packets.
//!
//! A transport moves the bytes of the handshake and says which protocol of its own is spoken (ALPN), so that nothing that was proved
//! over one counts over another. Who is at the other end, whether that is who was meant, and until when, is judged here.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, CommonState, ServerConfig};

use crate::live::{LiveIdentity, Standing};
use crate::tls::{client_config, reason, server_config};
use crate::trust::{Peer, Side};
use forebay_types::Role;

/// What helps when keys or certificates do not fit.
const LOOK: &str = "`forebay doctor` says here and there what is wrong with keys, certificates and clocks";

/// Why somebody is not believed and, behind `; `, what helps, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unproved(String);

impl Unproved {
    /// For this reason: what is wrong and, behind `; `, what helps.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }

    /// TLS does not go on.
    #[must_use]
    pub fn of_tls(error: &rustls::Error) -> Self {
        Self(match error {
            rustls::Error::AlertReceived(alert) => {
                format!("it refuses the certificate of this process ({alert:?}); its log says why")
            }
            rustls::Error::InvalidMessage(_) => {
                "it does not speak TLS; set `security.mode` there as it is set here".to_owned()
            }
            error => format!("{}; {LOOK}", reason(error)),
        })
    }
}

/// What a server demands of those who connect.
#[derive(Clone)]
pub struct ServerProof {
    config: Arc<ServerConfig>,
    live: Arc<LiveIdentity>,
    accepts_plain: bool,
}

/// What a client proves, and demands of whom it reaches.
#[derive(Clone)]
pub struct ClientProof {
    config: Arc<ClientConfig>,
    live: Arc<LiveIdentity>,
    role: Role,
    /// `None`: any of that role.
    name: Option<String>,
}

impl std::fmt::Debug for ServerProof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerProof").field("accepts_plain", &self.accepts_plain).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ClientProof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientProof").field("role", &self.role).field("name", &self.name).finish_non_exhaustive()
    }
}

impl ServerProof {
    /// Admits those whom `live` believes, and nobody else, over these protocols, the best one first.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new(live: &Arc<LiveIdentity>, protocols: &[&[u8]]) -> Result<Self, rustls::Error> {
        let config = Arc::new(server_config(live, protocols)?);
        Ok(Self { config, live: Arc::clone(live), accepts_plain: false })
    }

    /// Admits also those who prove nothing, and lets them do everything: for the time in which a cluster is being changed.
    #[must_use]
    pub fn accepting_plain(self) -> Self {
        Self { accepts_plain: true, ..self }
    }

    /// Whether those are admitted who prove nothing.
    #[must_use]
    pub fn accepts_plain(&self) -> bool {
        self.accepts_plain
    }

    /// For the server's end of a handshake.
    #[must_use]
    pub fn config(&self) -> &Arc<ServerConfig> {
        &self.config
    }

    /// Who is at the other end of this handshake, which is done. To be asked in any case: of a session that is resumed, TLS has
    /// judged nobody.
    ///
    /// # Errors
    /// [`Unproved`]; what helps is behind `; `.
    pub fn verify_client(&self, tls: &CommonState, now: SystemTime) -> Result<Peer, Unproved> {
        let peer = judge(&self.live, tls, Side::Client, now)?;
        match tls.alpn_protocol() {
            Some(_) => Ok(peer),
            None => Err(Unproved::new("it does not say which protocol it speaks over TLS")),
        }
    }

    /// Whether somebody who was admitted still may be here.
    #[must_use]
    pub fn standing(&self, peer: &Peer, now: SystemTime) -> Standing {
        self.live.standing(peer, now)
    }
}

impl ClientProof {
    /// Proves what `live` has to a worker, over one of these protocols.
    ///
    /// # Errors
    /// None that a sound build has.
    pub fn to_worker(live: &Arc<LiveIdentity>, protocols: &[&[u8]]) -> Result<Self, rustls::Error> {
        let config = Arc::new(client_config(live, protocols)?);
        Ok(Self { config, live: Arc::clone(live), role: Role::Worker, name: None })
    }

    /// The same to the worker of this name, and to no other one.
    #[must_use]
    pub fn named(&self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self.clone() }
    }

    /// For the client's end of a handshake.
    #[must_use]
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }

    /// Under which name sessions with `address` are remembered, to be resumed. It is not sent. A session holds the certificate that
    /// it began with, so those of an earlier certificate have other names.
    #[must_use]
    pub fn session_name(&self, address: &str) -> ServerName<'static> {
        let mut hasher = DefaultHasher::new();
        address.hash(&mut hasher);
        self.live.material().certified().cert.first().map(|own| own.as_ref()).hash(&mut hasher);
        let name = ServerName::try_from(format!("w{:016x}", hasher.finish()));
        // Otherwise sessions of all share one name, and are not resumed.
        name.unwrap_or(ServerName::IpAddress(Ipv4Addr::LOCALHOST.into()))
    }

    /// Whether the one who is meant is at the other end of this handshake, which is done. To be asked before anything else is sent.
    ///
    /// # Errors
    /// [`Unproved`].
    pub fn verify_server(&self, tls: &CommonState, now: SystemTime) -> Result<(), Unproved> {
        if tls.alpn_protocol().is_none() {
            return Err(Unproved::new("it speaks another protocol over TLS; see which program listens there"));
        }
        let Peer { identity, .. } = judge(&self.live, tls, Side::Server, now)?;
        let (role, name) = (self.role, self.name.as_ref());
        if identity.role() != role || name.is_some_and(|name| identity.name() != name) {
            let meant = name.map(|name| format!(" `{name}`")).unwrap_or_default();
            return Err(Unproved(format!(
                "`{identity}` listens there, and not the {role}{meant}; see which certificate the process there has"
            )));
        }
        Ok(())
    }
}

fn judge(live: &LiveIdentity, tls: &CommonState, side: Side, now: SystemTime) -> Result<Peer, Unproved> {
    let judged = live.material().trust().verify(tls.peer_certificates().unwrap_or_default(), side, now);
    judged.map_err(|error| Unproved(format!("{error}; {LOOK}")))
}
