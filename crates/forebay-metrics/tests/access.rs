//! Attacks on HTTP listeners that ask who is there, over real sockets.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use forebay_identity::{
    Audit, AuditEvent, Auditing, Identity, LiveIdentity, LiveTokens, Material, TokenFile, http_client_config,
    new_token, testing,
};
use forebay_locks::Mutex;
use forebay_metrics::{Access, HostNames, MetricsServer, Readiness, Registry, Site, routes, serve};
use forebay_types::{AuditEvents, Role};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ClientConfig, SignatureScheme};

const WITHIN: Duration = Duration::from_secs(30);

/// A cluster, of which everybody is called `one`.
struct Cluster(testing::Cluster);

impl Cluster {
    fn new() -> Self {
        Self(testing::Cluster::new())
    }

    fn identity(&self, role: Role) -> Identity {
        self.0.identity(role, "one")
    }

    fn material(&self, role: Role, denied: Option<Identity>) -> Material {
        self.0.material(role, "one", self.0.trust(denied), testing::HOUR)
    }

    /// What somebody of this role asks with.
    fn client(&self, role: Role) -> ClientConfig {
        http_client_config(&self.0.live(role, "one"), None).unwrap()
    }

    /// What somebody asks with who has no certificate, as a browser does.
    fn browser(&self) -> ClientConfig {
        let mut config = self.client(Role::Admin);
        config.client_auth_cert_resolver = Arc::new(NoCertificate);
        config
    }
}

#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// What was recorded, as text.
#[derive(Debug, Default)]
struct Record(Mutex<Vec<String>>);

impl Audit for Record {
    fn record(&self, event: &AuditEvent<'_>) {
        let identity = event.identity.map_or_else(|| "nobody".to_owned(), ToString::to_string);
        self.0.lock().push(format!("{identity} {} {:?} {event:?}", event.operation, event.outcome));
    }
}

/// A worker's pages, for those who prove who they are.
struct Listener {
    cluster: Cluster,
    server: MetricsServer,
    live: Arc<LiveIdentity>,
    /// Tokens of an admin and of a program that scrapes.
    admin: String,
    scrapes: String,
    /// All that is refused.
    record: Arc<Record>,
    _directory: tempfile::TempDir,
}

impl Listener {
    async fn start(accepts_plain: bool) -> Self {
        let (cluster, directory) = (Cluster::new(), tempfile::tempdir().unwrap());
        let file = |role: Role| {
            let (path, token) = (directory.path().join(role.as_str()), new_token().unwrap().to_string());
            std::fs::write(&path, &token).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            (TokenFile { path, role }, token)
        };
        let ((of_admin, admin), (of_scrapes, scrapes)) = (file(Role::Admin), file(Role::Metrics));
        let tokens = LiveTokens::open(vec![of_admin, of_scrapes]).unwrap();
        let live = LiveIdentity::new(cluster.material(Role::Worker, None));
        let record = Arc::new(Record::default());
        let auditing = Auditing { events: AuditEvents::All, audit: Arc::clone(&record) as Arc<dyn Audit> };
        let access = Access::proved(&live, tokens, accepts_plain).unwrap().recorded(Some(auditing));
        let server = serving(access).await;
        Self { cluster, server, live, admin, scrapes, record, _directory: directory }
    }

    async fn connect(&self, config: ClientConfig) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.server.local_addr()).await?;
        let name = ServerName::try_from("listener").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// The whole answer to one request, with these lines in its head.
    async fn ask(&self, config: ClientConfig, page: &str, lines: &str) -> io::Result<String> {
        let stream = self.connect(config).await?;
        asked(stream, page, &format!("connection: close\r\n{lines}")).await
    }

    async fn status(&self, config: ClientConfig, page: &str, lines: &str) -> String {
        let answer = self.ask(config, page, lines).await.unwrap();
        assert!(!answer.contains(&self.admin) && !answer.contains(&self.scrapes), "{answer}");
        answer.split(' ').nth(1).unwrap().to_owned()
    }

    /// Waits until something is recorded that begins so.
    async fn recorded(&self, beginning: &str) {
        let is_there = || self.record.0.lock().iter().any(|event| event.starts_with(beginning));
        let waiting = async {
            while !is_there() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let found = tokio::time::timeout(WITHIN, waiting).await;
        assert!(found.is_ok(), "{beginning}: {:?}", self.record);
    }

    async fn close(self) {
        tokio::time::timeout(WITHIN, self.server.close()).await.unwrap();
        for event in self.record.0.lock().iter() {
            // Counters are read all the time.
            assert!(!event.contains("Allowed"), "{event}");
            assert!(!event.contains(&self.admin) && !event.contains(&self.scrapes), "{event}");
        }
    }
}

/// The pages of a process, for those whom `access` allows it.
async fn serving(access: Access) -> MetricsServer {
    let site = Site::new(Registry::new(), Readiness::new(), || json!({ "answer": "the counters" }));
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    serve(address, routes(site), access, HostNames::new()).await.unwrap()
}

async fn asked(mut stream: impl AsyncRead + AsyncWrite + Unpin, page: &str, lines: &str) -> io::Result<String> {
    stream.write_all(format!("GET {page} HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n").as_bytes()).await?;
    let mut answer = String::new();
    tokio::time::timeout(WITHIN, stream.read_to_string(&mut answer)).await.expect("an end of the answer")?;
    Ok(answer)
}

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

#[tokio::test]
async fn who_proves_nothing_sees_nothing() {
    let listener = Listener::start(false).await;
    let (browser, admin) = (|| listener.cluster.browser(), &listener.admin);
    let wrong = new_token().unwrap();
    let attempts = [
        ("/metrics".to_owned(), String::new()),
        ("/metrics".to_owned(), bearer(&wrong)),
        ("/metrics".to_owned(), bearer("")),
        ("/metrics".to_owned(), bearer(&admin[..63])),
        ("/metrics".to_owned(), format!("authorization: Basic {admin}\r\n")),
        ("/metrics".to_owned(), format!("cookie: token={admin}; authorization=Bearer {admin}\r\n")),
        ("/metrics".to_owned(), format!("{}{}", bearer(admin), bearer(&wrong))),
        (format!("/metrics?token={admin}"), String::new()),
        (format!("/metrics?access_token={admin}"), String::new()),
        ("/stats".to_owned(), String::new()),
        ("/healthz".to_owned(), String::new()),
        ("/readyz".to_owned(), String::new()),
        ("/nowhere".to_owned(), String::new()),
    ];
    for (page, lines) in attempts {
        let answer = listener.ask(browser(), &page, &lines).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 401 "), "{page}: {answer}");
        assert!(answer.to_lowercase().contains("\r\nwww-authenticate: bearer\r\n"), "{answer}");
        assert!(answer.contains("UNAUTHENTICATED") && !answer.contains(&**admin), "{answer}");
    }
    assert_eq!(listener.status(browser(), "/stats", &bearer(admin)).await, "200");
    listener.recorded("nobody GET /metrics Refused(\"neither a certificate").await;
    listener.recorded("nobody GET Refused(\"neither a certificate").await;
    listener.close().await;
}

#[tokio::test]
async fn each_role_sees_what_it_may_and_a_token_for_scrapes_opens_nothing_else() {
    let listener = Listener::start(false).await;
    for (role, status) in [
        (Role::Reader, "403"),
        (Role::Writer, "403"),
        (Role::Admin, "200"),
        (Role::Worker, "200"),
        (Role::Coordinator, "200"),
        (Role::Metrics, "200"),
    ] {
        for page in ["/metrics", "/stats", "/healthz", "/readyz"] {
            let found = listener.status(listener.cluster.client(role), page, "").await;
            assert_eq!(found, status, "a {role} asks for {page}");
        }
    }
    let (browser, scrapes) = (|| listener.cluster.browser(), bearer(&listener.scrapes));
    assert_eq!(listener.status(browser(), "/metrics", &scrapes).await, "200");
    assert_eq!(listener.status(browser(), "/nowhere", &scrapes).await, "403");
    assert_eq!(listener.status(browser(), "/nowhere", &bearer(&listener.admin)).await, "404");
    // The better of the two counts.
    let reader = || listener.cluster.client(Role::Reader);
    assert_eq!(listener.status(reader(), "/stats", &bearer(&listener.admin)).await, "200");
    assert_eq!(listener.status(reader(), "/stats", &bearer("wrong")).await, "403");
    assert_eq!(listener.status(listener.cluster.client(Role::Admin), "/stats", &bearer("wrong")).await, "200");
    let reader = listener.cluster.identity(Role::Reader);
    listener.recorded(&format!("{reader} GET /stats Refused(\"a reader may not observe")).await;
    listener.close().await;
}

#[tokio::test]
async fn a_certificate_of_another_cluster_ends_the_handshake() {
    let listener = Listener::start(false).await;
    let mut config = listener.cluster.browser();
    let stranger = Cluster::new().client(Role::Admin);
    config.client_auth_cert_resolver = stranger.client_auth_cert_resolver;
    let answer = listener.ask(config, "/metrics", &bearer(&listener.admin)).await;
    assert!(answer.is_err(), "{answer:?}");
    listener.recorded("nobody connect Refused(").await;
    listener.close().await;
}

/// Passes on what both ends say, and writes down what the client does.
async fn taps(listener: TcpListener, server: SocketAddr) -> Vec<u8> {
    let (mut from_client, mut to_client) = listener.accept().await.unwrap().0.into_split();
    let (mut from_server, mut to_server) = TcpStream::connect(server).await.unwrap().into_split();
    tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
    let (mut said, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = from_client.read(&mut piece).await {
        said.extend_from_slice(&piece[..count]);
        to_server.write_all(&piece[..count]).await.unwrap();
    }
    said
}

/// What a client has sent proves nothing on another connection, nor does it ask for anything there.
#[tokio::test]
async fn a_replayed_request_is_not_answered() {
    let listener = Listener::start(false).await;
    let on_the_path = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (address, server) = (on_the_path.local_addr().unwrap(), listener.server.local_addr());
    let tap = tokio::spawn(taps(on_the_path, server));
    let stream = TcpStream::connect(address).await.unwrap();
    let connector = TlsConnector::from(Arc::new(listener.cluster.client(Role::Admin)));
    let stream = connector.connect(ServerName::try_from("listener").unwrap(), stream).await.unwrap();
    let answer = asked(stream, "/stats", "connection: close\r\n").await.unwrap();
    assert!(answer.contains("the counters"), "{answer}");
    let said = tokio::time::timeout(WITHIN, tap).await.expect("the tap ends").unwrap();
    assert!(said.len() > 500, "{}", said.len());

    let mut replay = TcpStream::connect(server).await.unwrap();
    replay.write_all(&said).await.unwrap();
    let mut heard = Vec::new();
    // Reset, perhaps: a server that has had enough does not read the rest.
    let _ = tokio::time::timeout(WITHIN, replay.read_to_end(&mut heard)).await.expect("the connection ends");
    listener.recorded("nobody connect Refused(").await;
    listener.close().await;
}

#[tokio::test]
async fn who_is_denied_is_so_on_connections_that_are_open_too() {
    is_locked_out_by(|cluster| cluster.material(Role::Worker, Some(cluster.identity(Role::Admin)))).await;
}

/// Who has stolen a key makes itself certificates that last for ever.
#[tokio::test]
async fn who_was_let_in_by_a_key_that_was_taken_away_is_so_no_more_on_connections_that_are_open() {
    is_locked_out_by(|_| Cluster::new().material(Role::Worker, None)).await;
}

/// An admin asks, and once more over the same connection when the listener has what `replace` makes.
async fn is_locked_out_by(replace: impl FnOnce(&Cluster) -> Material) {
    let listener = Listener::start(false).await;
    let mut stream = listener.connect(listener.cluster.client(Role::Admin)).await.unwrap();
    stream.write_all(b"GET /stats HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut seen = String::new();
    while !seen.contains("the counters") {
        let mut part = [0; 1024];
        let read = tokio::time::timeout(WITHIN, stream.read(&mut part)).await.expect("an answer").unwrap();
        assert!(read > 0, "{seen}");
        seen.push_str(std::str::from_utf8(&part[..read]).unwrap());
    }
    listener.live.replace(replace(&listener.cluster));
    let answer = asked(stream, "/stats", "").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401 ") && !answer.contains("the counters"), "{answer}");
    assert!(listener.ask(listener.cluster.client(Role::Admin), "/stats", "").await.is_err());
    listener.close().await;
}

#[tokio::test]
async fn plain_text_is_told_to_speak_tls_unless_it_is_accepted_for_a_while() {
    for accepts_plain in [false, true] {
        let listener = Listener::start(accepts_plain).await;
        let plain = async |lines: &str| {
            let stream = TcpStream::connect(listener.server.local_addr()).await.unwrap();
            asked(stream, "/stats", &format!("connection: close\r\n{lines}")).await.unwrap()
        };
        let (bare, wrong) = (plain("").await, plain(&bearer("wrong")).await);
        if accepts_plain {
            assert!(bare.starts_with("HTTP/1.1 200 ") && wrong.starts_with("HTTP/1.1 401 "), "{bare} {wrong}");
        } else {
            assert!(bare.starts_with("HTTP/1.1 400 ") && bare.contains("TLS_ONLY"), "{bare}");
            // Not even a good token opens anything there, where anybody could have read it.
            let good = plain(&bearer(&listener.admin)).await;
            assert!(good.starts_with("HTTP/1.1 400 ") && !good.contains("the counters"), "{good}");
        }
        let status = if accepts_plain { "200" } else { "401" };
        assert_eq!(listener.status(listener.cluster.browser(), "/stats", "").await, status);
        assert_eq!(listener.status(listener.cluster.client(Role::Reader), "/stats", "").await, "403");
        listener.close().await;
    }
}

#[tokio::test]
async fn where_nothing_leaves_the_machine_a_token_is_asked_for_in_plain_text() {
    let (token, other) = (new_token().unwrap(), new_token().unwrap());
    let server = serving(Access::by_token(LiveTokens::only(&token, Role::Admin))).await;
    let (good, wrong, half) = (bearer(&token), bearer(&other), bearer(&token[..63]));
    for (page, lines, status) in [
        ("/stats", "", "401"),
        ("/stats", &*wrong, "401"),
        ("/stats", &half, "401"),
        ("/healthz", "", "401"),
        ("//stats", "", "401"),
        ("/nowhere", "", "401"),
        ("/stats", &good, "200"),
        ("/nowhere", &good, "404"),
    ] {
        let stream = TcpStream::connect(server.local_addr()).await.unwrap();
        let answer = asked(stream, page, &format!("connection: close\r\n{lines}")).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{page}, {lines}: {answer}");
        assert!(!answer.contains(token.as_str()), "{answer}");
    }
    tokio::time::timeout(WITHIN, server.close()).await.unwrap();
}

#[tokio::test]
async fn handshakes_that_do_not_go_on_keep_nobody_out() {
    let listener = Listener::start(false).await;
    let mut silent = Vec::new();
    for number in 0..256 {
        let mut stream = TcpStream::connect(listener.server.local_addr()).await.unwrap();
        if number % 2 == 0 {
            // The beginning of a handshake. One that was closed meanwhile is as good.
            let _ = stream.write_all(&[22, 3, 1]).await;
        }
        silent.push(stream);
    }
    let asked = listener.status(listener.cluster.client(Role::Metrics), "/metrics", "");
    assert_eq!(tokio::time::timeout(WITHIN, asked).await.expect("no place is made"), "200");
    listener.close().await;
    drop(silent);
}
