//! Identities of a cluster that exists in tests alone, and a TLS client that no library would make.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "for tests: what fails is an assertion")]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_types::Role;
use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};

use crate::authority::Authority;
use crate::cluster_key::ClusterKey;
use crate::credentials::{Credentials, private_key};
use crate::live::{LiveIdentity, Material};
use crate::name::{Identity, Scope};
use crate::provider::provider;
use crate::trust::Trust;

/// How long certificates last that are not about their end.
pub const HOUR: Duration = Duration::from_secs(3600);

/// The cluster `prod` of the trust domain `example.org`.
///
/// # Panics
/// In no sound build.
#[must_use]
pub fn scope() -> Scope {
    Scope::new("example.org", "prod").unwrap()
}

/// A cluster of this [`scope`], with a key of its own.
#[derive(Debug)]
pub struct Cluster(ClusterKey);

impl Default for Cluster {
    fn default() -> Self {
        Self::new()
    }
}

impl Cluster {
    /// One with a new key: those of others are strangers to it.
    ///
    /// # Panics
    /// When the system has no random numbers.
    #[must_use]
    pub fn new() -> Self {
        Self(ClusterKey::generate().unwrap())
    }

    /// The identity of this role and name.
    ///
    /// # Panics
    /// When the name cannot be in one.
    #[must_use]
    pub fn identity(&self, role: Role, name: &str) -> Identity {
        scope().identity(role, name).unwrap()
    }

    /// Believes everybody of this cluster but `denied`.
    ///
    /// # Panics
    /// In no sound build.
    #[must_use]
    pub fn trust(&self, denied: Option<Identity>) -> Trust {
        let authorities = Role::ALL.map(|role| self.authority(role).certificate().clone());
        Trust::new(scope(), &authorities, denied).unwrap()
    }

    /// A certificate that ends at `until`, which may be over, and was valid for three hours before.
    ///
    /// # Panics
    /// When the name cannot be in an identity.
    #[must_use]
    pub fn credentials(&self, role: Role, name: &str, until: SystemTime) -> Credentials {
        self.authority(role).issue(name, until - 3 * HOUR, until).unwrap()
    }

    /// What [`Self::credentials`] gives, valid for an hour, in another cluster that has this key.
    ///
    /// # Panics
    /// When the name cannot be in an identity.
    #[must_use]
    pub fn credentials_elsewhere(&self, role: Role, name: &str) -> Credentials {
        let (elsewhere, now) = (Scope::new("example.org", "test").unwrap(), SystemTime::now());
        self.0.authority(&elsewhere, role).unwrap().issue(name, now - HOUR, now + HOUR).unwrap()
    }

    /// What a process has that believes `trust`, and whose certificate `lasts` so long from now.
    ///
    /// # Panics
    /// As [`Self::credentials`].
    #[must_use]
    pub fn material(&self, role: Role, name: &str, trust: Trust, lasts: Duration) -> Material {
        let now = SystemTime::now();
        Material::new(self.credentials(role, name, now + lasts), trust, now).unwrap()
    }

    /// A process that is in order: its certificate lasts an hour, and nobody is denied.
    ///
    /// # Panics
    /// As [`Self::credentials`].
    #[must_use]
    pub fn live(&self, role: Role, name: &str) -> Arc<LiveIdentity> {
        LiveIdentity::new(self.material(role, name, self.trust(None), HOUR))
    }

    fn authority(&self, role: Role) -> Authority {
        self.0.authority(&scope(), role).unwrap()
    }
}

/// A client that presents `credentials`, if it has any, whatever is wrong with them, offers these `protocols` (ALPN), and believes
/// every server.
///
/// # Panics
/// In no sound build.
#[must_use]
pub fn hostile_client(credentials: Option<&Credentials>, protocols: &[&[u8]]) -> ClientConfig {
    let presented = credentials.map(|it| {
        let key = provider().key_provider.load_private_key(private_key(&it.key_pem()).unwrap()).unwrap();
        Arc::new(CertifiedKey::new(it.chain().to_vec(), key))
    });
    let config = ClientConfig::builder_with_provider(Arc::clone(provider()));
    let config = config.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(BelievesAll));
    let mut config = config.with_client_cert_resolver(Arc::new(Presents(presented)));
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config
}

/// Shows what it has, whatever it is asked for.
#[derive(Debug)]
struct Presents(Option<Arc<CertifiedKey>>);

impl ResolvesClientCert for Presents {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.clone()
    }

    fn has_certs(&self) -> bool {
        self.0.is_some()
    }
}

/// Takes every certificate and every signature.
#[derive(Debug)]
struct BelievesAll;

impl ServerCertVerifier for BelievesAll {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
