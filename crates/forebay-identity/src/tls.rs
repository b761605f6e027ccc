//! TLS 1.3, mutual: who is at the other end is a name in its certificate, and no host name.
//!
//! Verifiers and resolvers look at what is current at each handshake, so a configuration lives as long as its process and
//! certificates come and go beneath it. Nothing older than TLS 1.3 is spoken, and no data is sent before the handshake ends. Only
//! HTTP listeners go on with somebody who has no certificate.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::verify_tls13_signature;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError, PeerIncompatible,
    ServerConfig, SignatureScheme,
};

use crate::error::IdentityError;
use crate::live::LiveIdentity;
use crate::provider::provider;
use crate::trust::{Peer, Side};
use forebay_types::Role;

/// The protocol of HTTP listeners and of those who ask them (RFC 7301).
const HTTP: &[u8] = b"http/1.1";
/// Sessions that a client remembers, to resume them: a mount has some with each worker.
const SESSIONS: usize = 4096;

/// For who listens, and speaks these protocols (ALPN), the best one first. One who connects and names none is not refused here.
/// The keys of a connection may be taken out of it, to protect records with them.
///
/// # Errors
/// When the system has no random numbers for the keys of tickets.
pub fn server_config(live: &Arc<LiveIdentity>, protocols: &[&[u8]]) -> Result<ServerConfig, rustls::Error> {
    let mut config = server(Current { demands: true, ..Current::of(live) })?;
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    // A ticket holds the client's chain, encrypted: it is judged anew when it comes back (`Trust::verify`).
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new()?;
    config.send_tls13_tickets = 1;
    config.enable_secret_extraction = true;
    Ok(config)
}

/// For who connects, to speak one of these protocols. Whom it reached, it has to compare with whom it meant, before it sends a byte.
/// The keys of a connection may be taken out of it, too.
///
/// # Errors
/// None that a sound build has: versions and algorithms are constants.
pub fn client_config(live: &Arc<LiveIdentity>, protocols: &[&[u8]]) -> Result<ClientConfig, rustls::Error> {
    let mut config = client(Current::of(live))?;
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    config.enable_secret_extraction = true;
    Ok(config)
}

/// For an HTTP listener. Who connects is asked for a certificate and need not have one: a browser shows a token. One that is shown
/// is judged as anywhere else.
///
/// # Errors
/// None that a sound build has.
pub fn http_server_config(live: &Arc<LiveIdentity>) -> Result<ServerConfig, rustls::Error> {
    let mut config = server(Current::of(live))?;
    config.alpn_protocols = vec![HTTP.to_vec()];
    // Connections are few: each handshake is a whole one, and judged as such.
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// For who asks an HTTP listener of this cluster: of this role, or, without one, of any. The handshake ends before a byte is sent to
/// somebody else.
///
/// # Errors
/// None that a sound build has.
pub fn http_client_config(live: &Arc<LiveIdentity>, expects: Option<Role>) -> Result<ClientConfig, rustls::Error> {
    let mut config = client(Current { expects, ..Current::of(live) })?;
    config.alpn_protocols = vec![HTTP.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn server(current: Current) -> Result<ServerConfig, rustls::Error> {
    let current = Arc::new(current);
    let config = ServerConfig::builder_with_provider(Arc::clone(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?;
    Ok(config.with_client_cert_verifier(Arc::clone(&current) as _).with_cert_resolver(current))
}

fn client(current: Current) -> Result<ClientConfig, rustls::Error> {
    let current = Arc::new(current);
    let config = ClientConfig::builder_with_provider(Arc::clone(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?;
    let config = config.dangerous().with_custom_certificate_verifier(Arc::clone(&current) as _);
    let mut config = config.with_client_cert_resolver(current);
    // The name of the host says nothing here, and nobody who listens in needs to know it.
    config.enable_sni = false;
    Ok(config)
}

/// What the certificates, authorities and denied of this moment say.
struct Current {
    live: Arc<LiveIdentity>,
    /// Whether who connects must have a certificate.
    demands: bool,
    /// The role that is meant to listen; `None`: any, or somebody else compares.
    expects: Option<Role>,
}

impl std::fmt::Debug for Current {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Current").field(&self.live.material().identity()).finish()
    }
}

impl Current {
    fn of(live: &Arc<LiveIdentity>) -> Self {
        Self { live: Arc::clone(live), demands: false, expects: None }
    }

    fn judge(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        side: Side,
        now: UnixTime,
    ) -> Result<Peer, rustls::Error> {
        let mut chain = Vec::with_capacity(1 + intermediates.len());
        chain.push(end_entity.clone());
        chain.extend(intermediates.iter().cloned());
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs());
        self.live.material().trust().verify(&chain, side, now).map_err(refused)
    }

    fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(self.live.material().certified())
    }
}

fn refused(error: IdentityError) -> rustls::Error {
    CertificateError::Other(OtherError(Arc::new(error))).into()
}

/// Why a handshake ended, as a log should have it: what we refused says who it was.
#[must_use]
pub fn reason(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(reason))) => reason.to_string(),
        other => other.to_string(),
    }
}

fn signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    verify_tls13_signature(message, certificate, signed, &provider().signature_verification_algorithms)
}

/// TLS 1.2 is in no configuration of ours.
fn too_old() -> rustls::Error {
    PeerIncompatible::Tls12NotOffered.into()
}

impl ServerCertVerifier for Current {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Peer { identity, .. } = self.judge(end_entity, intermediates, Side::Server, now)?;
        if let Some(meant) = self.expects.filter(|meant| *meant != identity.role()) {
            return Err(refused(IdentityError::Role(Box::new(identity), meant)));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(too_old())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Current {
    fn client_auth_mandatory(&self) -> bool {
        self.demands
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.judge(end_entity, intermediates, Side::Client, now)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(too_old())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.certified())
    }
}

impl ResolvesClientCert for Current {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.certified())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
