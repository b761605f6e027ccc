//! What a browser makes of a coordinator that has its certificate from the cluster's key. It looks for the host that it asked for, and
//! takes ECDSA with P-256, and no Ed25519.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_identity::{ClusterKey, Credentials, LiveIdentity, Material, Scope, Trust, http_server_config};
use forebay_types::Role;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, SignatureScheme,
};
use webpki::aws_lc_rs::ECDSA_P256_SHA256;
use x509_parser::certificate::X509Certificate;
use x509_parser::oid_registry::{OID_SIG_ECDSA_WITH_SHA256, OID_X509_EXT_BASIC_CONSTRAINTS, OID_X509_EXT_KEY_USAGE};

const HOUR: Duration = Duration::from_secs(3600);
const HOSTS: [&str; 4] = ["localhost", "node1.example.org", "10.0.0.1", "fd00::1"];

/// Of what browsers take, what a key of ours can sign with.
static OF_BROWSERS: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[ECDSA_P256_SHA256],
    mapping: &[(SignatureScheme::ECDSA_NISTP256_SHA256, &[ECDSA_P256_SHA256])],
};

fn scope() -> Scope {
    Scope::new("example.org", "prod").unwrap()
}

fn authority(key: &ClusterKey) -> CertificateDer<'static> {
    key.authority(&scope(), Role::Coordinator).unwrap().certificate().clone()
}

fn credentials(key: &ClusterKey) -> Credentials {
    let (authority, now) = (key.authority(&scope(), Role::Coordinator).unwrap(), SystemTime::now());
    authority.issue_at("c1", &HOSTS.map(str::to_owned), now - HOUR, now + HOUR).unwrap()
}

fn listener(key: &ClusterKey) -> ServerConfig {
    let trust = Trust::new(scope(), &[authority(key)], []).unwrap();
    let material = Material::new(credentials(key), trust, SystemTime::now()).unwrap();
    http_server_config(&LiveIdentity::new(material)).unwrap()
}

/// A browser that somebody has told to believe this authority.
fn browser(authority: CertificateDer<'_>) -> ClientConfig {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.signature_verification_algorithms = OF_BROWSERS;
    let mut roots = RootCertStore::empty();
    roots.add(authority).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(provider));
    let config = config.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    config.with_root_certificates(roots).with_no_client_auth()
}

/// Carries the handshake to its end, or to what one of the two has against it.
fn open(browser: ClientConfig, host: &'static str, listener: ServerConfig) -> Result<(), rustls::Error> {
    let mut client = ClientConnection::new(Arc::new(browser), ServerName::try_from(host).unwrap())?;
    let mut server = ServerConnection::new(Arc::new(listener))?;
    for _ in 0..10 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        let mut read = &wire[..];
        while !read.is_empty() {
            server.read_tls(&mut read).unwrap();
            server.process_new_packets()?;
        }
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        let mut read = &wire[..];
        while !read.is_empty() {
            client.read_tls(&mut read).unwrap();
            client.process_new_packets()?;
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking(), "it does not end");
    Ok(())
}

#[test]
fn a_browser_that_believes_the_authority_opens_the_page_of_a_coordinator() {
    let key = ClusterKey::generate().unwrap();
    for host in HOSTS {
        // The authority of another node: the same one, though its certificate has other bytes.
        open(browser(authority(&key)), host, listener(&key)).unwrap_or_else(|error| panic!("{host}: {error}"));
    }
    let refused = open(browser(authority(&key)), "node2.example.org", listener(&key)).unwrap_err();
    let reason = matches!(
        refused,
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        )
    );
    assert!(reason, "{refused:?}");
    let stranger = authority(&ClusterKey::generate().unwrap());
    assert!(open(browser(stranger), HOSTS[0], listener(&key)).is_err());
}

fn parsed<'c>(certificate: &'c CertificateDer<'_>) -> X509Certificate<'c> {
    x509_parser::parse_x509_certificate(certificate).unwrap().1
}

#[test]
fn certificates_have_what_browsers_ask_for_and_nothing_critical_that_they_do_not_know() {
    let key = ClusterKey::generate().unwrap();
    let (of_authority, issued) = (authority(&key), credentials(&key));
    let (signer, leaf) = (parsed(&of_authority), parsed(&issued.chain()[0]));
    for certificate in [&signer, &leaf] {
        assert_eq!(certificate.signature_algorithm.algorithm, OID_SIG_ECDSA_WITH_SHA256);
        let known = [OID_X509_EXT_BASIC_CONSTRAINTS, OID_X509_EXT_KEY_USAGE];
        for extension in certificate.extensions().iter().filter(|extension| extension.critical) {
            assert!(known.contains(&extension.oid), "{extension:?}");
        }
    }
    assert!(signer.basic_constraints().unwrap().unwrap().value.ca);
    assert!(signer.key_usage().unwrap().unwrap().value.key_cert_sign());
    assert!(!leaf.basic_constraints().unwrap().unwrap().value.ca);
    assert!(leaf.key_usage().unwrap().unwrap().value.digital_signature());
    assert!(leaf.extended_key_usage().unwrap().unwrap().value.server_auth);
}
