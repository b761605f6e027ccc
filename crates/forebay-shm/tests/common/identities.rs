//! Who takes part in tests of identities, and a client that speaks TLS by hand.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_identity::{ClusterKey, Credentials, Identity, Live, Material, Scope, Trust};
use forebay_shm::{ClientOptions, ClientSecurity, ServerSecurity};
use forebay_transport::wire::Hello;
use forebay_types::Role;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};

use super::{BLOCK_SIZE, CLUSTER, Raw, client_options};

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// What both ends call the protocol.
pub(crate) const PROTOCOL: &[u8] = b"forebay-shm/1";

/// A cluster of this key.
pub(crate) struct Cluster(ClusterKey);

impl Cluster {
    pub(crate) fn new() -> Self {
        Self(ClusterKey::generate().unwrap())
    }

    pub(crate) fn scope() -> Scope {
        Scope::new("example.org", "prod").unwrap()
    }

    pub(crate) fn trust(&self, denied: Option<Identity>) -> Trust {
        let scope = Self::scope();
        let authorities = Role::ALL.map(|role| self.0.authority(&scope, role).unwrap().certificate().clone());
        Trust::new(scope, &authorities, denied).unwrap()
    }

    /// A certificate that ends so long from now, or did so long ago.
    pub(crate) fn credentials(&self, role: Role, name: &str, until: SystemTime) -> Credentials {
        self.0.authority(&Self::scope(), role).unwrap().issue(name, until - 3 * HOUR, until).unwrap()
    }

    /// The same of another cluster that has this key.
    pub(crate) fn credentials_elsewhere(&self, role: Role, name: &str) -> Credentials {
        let (scope, now) = (Scope::new("example.org", "test").unwrap(), SystemTime::now());
        self.0.authority(&scope, role).unwrap().issue(name, now - HOUR, now + HOUR).unwrap()
    }

    pub(crate) fn material(&self, role: Role, name: &str, trust: Trust, lasts: Duration) -> Material {
        let now = SystemTime::now();
        Material::new(self.credentials(role, name, now + lasts), trust, now).unwrap()
    }

    pub(crate) fn live(&self, role: Role, name: &str) -> Arc<Live> {
        Live::new(self.material(role, name, self.trust(None), HOUR))
    }

    pub(crate) fn options(&self, role: Role, name: &str) -> ClientOptions {
        options_of(&self.live(role, name))
    }
}

/// Of a client that proves what `live` has.
pub(crate) fn options_of(live: &Arc<Live>) -> ClientOptions {
    ClientOptions { security: Some(proving(live)), ..client_options() }
}

pub(crate) fn proving(live: &Arc<Live>) -> ClientSecurity {
    ClientSecurity::to_worker(live).unwrap()
}

pub(crate) fn demanding(live: &Arc<Live>) -> ServerSecurity {
    ServerSecurity::new(live).unwrap()
}

/// A client that a library would not make: it presents whatever it has, and believes everybody.
#[derive(Debug)]
struct Hostile(Option<Arc<CertifiedKey>>);

impl rustls::client::ResolvesClientCert for Hostile {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.clone()
    }

    fn has_certs(&self) -> bool {
        self.0.is_some()
    }
}

#[derive(Debug)]
struct Believes;

impl ServerCertVerifier for Believes {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// A client that presents `credentials`, if it has any, and offers these protocols.
fn hostile(credentials: Option<&Credentials>, protocols: &[&[u8]]) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let presented = credentials.map(|it| {
        let key = PrivateKeyDer::from_pem_slice(it.key_pem().as_bytes()).unwrap();
        let key = provider.key_provider.load_private_key(key).unwrap();
        Arc::new(CertifiedKey::new(it.chain().to_vec(), key))
    });
    let config =
        ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(Believes));
    let mut config = config.with_client_cert_resolver(Arc::new(Hostile(presented)));
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config
}

/// A client that speaks TLS by hand, and then what the test says.
pub(crate) struct RawTls {
    pub(crate) raw: Raw,
    tls: ClientConnection,
    /// How many descriptors came.
    pub(crate) descriptors: usize,
    /// All packets that it has sent.
    pub(crate) said: Vec<Vec<u8>>,
}

impl RawTls {
    /// It presents `credentials`, if it has any, and says hello as soon as TLS lets it, and that it is `process`.
    pub(crate) fn begin(path: &Path, credentials: Option<&Credentials>, protocols: &[&[u8]], process: u64) -> Self {
        let name = ServerName::try_from("worker").unwrap();
        let mut tls = ClientConnection::new(Arc::new(hostile(credentials, protocols)), name).unwrap();
        let hello = Hello::ours(CLUSTER, BLOCK_SIZE).encode();
        tls.writer().write_all(&[&hello[..], &process.to_le_bytes()].concat()).unwrap();
        Self { raw: Raw::connect(path), tls, descriptors: 0, said: Vec::new() }
    }

    /// The next `length` bytes that the worker says within TLS, or how it ends that.
    pub(crate) fn hear(&mut self, length: usize) -> Result<Vec<u8>, String> {
        let (mut heard, mut piece) = (Vec::new(), [0; 1000]);
        loop {
            self.flush();
            if let Ok(count) = self.tls.reader().read(&mut piece) {
                heard.extend_from_slice(&piece[..count]);
            }
            if heard.len() >= length {
                return Ok(heard);
            }
            let Some((packet, descriptors)) = self.raw.receive_any() else { return Err("it closed".to_owned()) };
            self.descriptors += descriptors;
            if !matches!(packet.first(), Some(20..=23)) {
                return Err(String::from_utf8_lossy(&packet).into_owned());
            }
            self.take(&packet)?;
        }
    }

    /// How many descriptors came until the worker closed its end.
    pub(crate) fn descriptors_in_all(mut self) -> usize {
        while let Some((_, descriptors)) = self.raw.receive_any() {
            self.descriptors += descriptors;
        }
        self.descriptors
    }

    fn take(&mut self, mut packet: &[u8]) -> Result<(), String> {
        while !packet.is_empty() {
            if self.tls.read_tls(&mut packet).unwrap() == 0 {
                return Err("it left".to_owned());
            }
            self.tls.process_new_packets().map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn flush(&mut self) {
        let mut flight = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut flight).unwrap();
        }
        if !flight.is_empty() {
            self.raw.send(&flight);
            self.said.push(flight);
        }
    }
}
