//! Those who have a certificate, and not one that is good here and now: each port of a worker and a coordinator ends
//! the handshake. The one that is good is the control.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_e2e::{Bucket, Setup, Tree, member};
use forebay_identity::{Authority, ClusterKey, ClusterKeys, Credentials, Scope, http_client_config};
use forebay_testkit::ReservedPort;
use forebay_transport::wire::Hello;
use forebay_types::{MAX_BLOCK_SIZE, Role};
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, SignatureScheme, StreamOwned};

use crate::{Keys, SOON, put, run, set};

const HOUR: Duration = Duration::from_secs(3600);
/// What the ends of a connection for data, of shared memory and of HTTP call what they speak within TLS.
const DATA: &[u8] = b"forebay/1";
const MEMORY: &[u8] = b"forebay-shm/1";
pub(crate) const HTTP: &[u8] = b"http/1.1";

/// Presents what it has, whatever anybody thinks of it.
#[derive(Debug)]
struct Presents(Option<Arc<CertifiedKey>>);

impl ResolvesClientCert for Presents {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.clone()
    }

    fn has_certs(&self) -> bool {
        self.0.is_some()
    }
}

/// A port, and what is asked there.
struct Port<'a> {
    what: &'a str,
    address: SocketAddr,
    protocol: &'a [u8],
    asks: Vec<u8>,
    /// How a good answer begins.
    answers: &'a [u8],
}

impl Port<'_> {
    fn http(what: &'static str, address: SocketAddr, page: &str) -> Self {
        let asks = format!("GET {page} HTTP/1.0\r\nHost: {address}\r\n\r\n").into_bytes();
        Self { what, address, protocol: HTTP, asks, answers: b"HTTP/1." }
    }

    /// The first bytes that come in answer to one who presents `credentials` and offers `protocol`, or how that ends.
    fn hear(&self, keys: &Keys, credentials: Option<&Credentials>, protocol: &[u8]) -> io::Result<Vec<u8>> {
        let tcp = TcpStream::connect(self.address)?;
        tcp.set_read_timeout(Some(SOON))?;
        let name = ServerName::try_from("listener").unwrap();
        let tls = ClientConnection::new(Arc::new(presenting(keys, credentials, protocol)), name).unwrap();
        let mut stream = StreamOwned::new(tls, tcp);
        stream.write_all(&self.asks)?;
        let mut first = vec![0; self.answers.len()];
        stream.read_exact(&mut first)?;
        Ok(first)
    }

    fn assert_answers(&self, keys: &Keys, credentials: &Credentials) {
        let heard = self.hear(keys, Some(credentials), self.protocol);
        assert_eq!(heard.expect(self.what), self.answers, "{}", self.what);
    }

    fn assert_ends(&self, keys: &Keys, credentials: Option<&Credentials>, protocol: &[u8], case: &str) {
        let ended = self.hear(keys, credentials, protocol).expect_err(case);
        let waited = matches!(ended.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        assert!(!waited, "{case} is neither answered nor sent away by {}", self.what);
    }
}

/// A client of this cluster that presents `credentials` and offers `protocol`.
pub(crate) fn presenting(keys: &Keys, credentials: Option<&Credentials>, protocol: &[u8]) -> ClientConfig {
    let mut config = http_client_config(&member(&keys.key(), Role::Admin, "root"), None).unwrap();
    let presented = credentials.map(|it| {
        let key = PrivateKeyDer::from_pem_slice(it.key_pem().as_bytes()).unwrap();
        Arc::new(CertifiedKey::from_der(it.chain().to_vec(), key, config.crypto_provider()).unwrap())
    });
    config.client_auth_cert_resolver = Arc::new(Presents(presented));
    config.alpn_protocols = vec![protocol.to_vec()];
    config
}

/// An admin of this authority, from so long ago until so long from now.
fn admin(authority: &Authority, from: SystemTime, until: SystemTime) -> Credentials {
    authority.issue("root", from, until).unwrap()
}

fn good(keys: &Keys) -> Credentials {
    admin(&authority(keys, "forebay", "forebay"), SystemTime::now() - HOUR, SystemTime::now() + HOUR)
}

/// That of admins of a cluster, which follows from the key.
fn authority(keys: &Keys, domain: &str, cluster: &str) -> Authority {
    let all = ClusterKeys::read(&keys.key()).unwrap();
    all.current().authority(&Scope::new(domain, cluster).unwrap(), Role::Admin).unwrap()
}

/// Certificates of admins that are of no use in the cluster of this key, and why.
fn bad(keys: &Keys) -> Vec<(&'static str, Credentials)> {
    let now = SystemTime::now();
    let (ours, scope) = (authority(keys, "forebay", "forebay"), Scope::new("forebay", "forebay").unwrap());
    let valid = |authority: &Authority| admin(authority, now - HOUR, now + HOUR);
    vec![
        // To those who have certificates alone it is a foreign authority.
        ("another key", valid(&ClusterKey::generate().unwrap().authority(&scope, Role::Admin).unwrap())),
        ("a certificate that has expired", admin(&ours, now - 2 * HOUR, now - HOUR)),
        ("one that is not valid yet", admin(&ours, now + HOUR, now + 2 * HOUR)),
        ("the right key of another cluster", valid(&authority(keys, "forebay", "other"))),
        ("the right key of another trust domain", valid(&authority(keys, "example.org", "forebay"))),
    ]
}

#[test]
fn a_certificate_that_is_not_good_here_and_now_opens_no_port() {
    let (bucket, keys, web) = (Bucket::new(), Keys::new(), ReservedPort::new().unwrap());
    Tree::of_equal_files(1, 4096).put_into(&bucket, "");
    // One end of the cluster has the key, and the other a certificate alone.
    let worker = set(Setup::of(&bucket), &keys.issue("worker", "worker"));
    let worker = worker.option(&format!("worker.web.port={}", web.address().port())).worker(&bucket);
    let coordinator = set(Setup::default(), &keys.settings()).options(&[
        &format!("cluster.workers={}", worker.address()),
        &format!("coordinator.state_dir={}", keys.path("state").display()),
    ]);
    let coordinator = coordinator.coordinator();
    let hello = Hello::ours("forebay", MAX_BLOCK_SIZE).encode().to_vec();
    let web = SocketAddr::from(([127, 0, 0, 1], web.address().port()));
    let ports = [
        Port { what: "data", address: worker.address(), protocol: DATA, asks: hello, answers: b"FOREBAY" },
        Port::http("pages", web, "/stats"),
        Port::http("REST", coordinator.address().parse().unwrap(), "/api/v1/mounts"),
    ];
    let good = good(&keys);
    for port in &ports {
        port.assert_answers(&keys, &good);
        for (case, credentials) in &bad(&keys) {
            port.assert_ends(&keys, Some(credentials), port.protocol, case);
        }
        // What is proved for one kind of port is proved for no other.
        for protocol in [DATA, MEMORY, HTTP].into_iter().filter(|other| *other != port.protocol) {
            port.assert_ends(&keys, Some(&good), protocol, "a proof for another port");
        }
        port.assert_answers(&keys, &good);
    }
    // A browser has no certificate, and shows a token instead.
    ports[0].assert_ends(&keys, None, DATA, "no certificate");
}

#[test]
fn the_private_key_of_a_certificate_that_others_may_read_stops_the_start() {
    let keys = Keys::new();
    let listens = ["mounts=/=file:///tmp", "worker.rpc.bind.host=127.0.0.1", "worker.rpc.port=0"].map(str::to_owned);
    let settings = [keys.issue("worker", "worker"), listens.to_vec()].concat();
    let key = keys.path("worker").join("tls.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    run(&["worker"], &settings).failed(2, &["tls.key", "0644", "chmod 600"]);
    // So does half of another pair.
    let _ = keys.issue("worker", "other");
    put(&key, &std::fs::read(keys.path("other").join("tls.key")).unwrap());
    run(&["worker"], &settings).failed(2, &["are no pair"]);
}
