//! Who may ask coordinators and pages of metrics, asked of real processes: certificates, tokens, and plain text.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_e2e::{
    Bucket, Coordinator, Finished, Setup, Tree, Worker, browser, eventually, finish, forebay, page, ruled_out_by_mode,
};
use forebay_identity::{ClusterKeys, LiveIdentity, Material, Scope, Trust, http_client_config};
use forebay_testkit::ReservedPort;
use forebay_types::Role;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, SignatureScheme, StreamOwned};

const SOON: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// A worker and a coordinator that demand proof.
struct Scene {
    coordinator: Coordinator,
    /// The pages of the worker.
    worker_web: ReservedPort,
    coordinator_health: ReservedPort,
    secrets: Secrets,
    worker: Worker,
    _bucket: Bucket,
}

/// The files of a cluster, as an operator makes them.
struct Secrets(tempfile::TempDir);

impl Secrets {
    fn new() -> Self {
        let secrets = Self(tempfile::tempdir().unwrap());
        secrets.make("cluster.key", "create");
        secrets.make("token", "token");
        secrets.make("metrics-token", "token");
        let file = format!("[security]\nmode = \"key\"\nkey_file = {:?}\n", secrets.path("cluster.key"));
        std::fs::write(secrets.path("forebay.toml"), file).unwrap();
        secrets
    }

    /// Has `forebay key COMMAND` make a secret.
    fn make(&self, name: &str, command: &str) {
        let made = finish(forebay(&[]).args(["key", command]), SOON).succeeded().text();
        self.write(name, &made, 0o600);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str, mode: u32) {
        let beside = self.path("new");
        std::fs::write(&beside, text).unwrap();
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(mode)).unwrap();
        std::fs::rename(&beside, self.path(name)).unwrap();
    }

    fn token(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap().trim().to_owned()
    }

    fn settings(&self) -> Vec<String> {
        let mut settings = vec!["security.mode=key".to_owned()];
        let files = [("key_file", "cluster.key"), ("token_file", "token"), ("metrics_token_file", "metrics-token")];
        settings.extend(files.map(|(key, name)| format!("security.{key}={}", self.path(name).display())));
        settings
    }
}

impl Scene {
    fn start() -> Self {
        Self::with(|_| Vec::new())
    }

    /// The same, with more settings of the coordinator.
    fn with(more: impl FnOnce(&Secrets) -> Vec<String>) -> Self {
        let (secrets, bucket) = (Secrets::new(), Bucket::new());
        Tree::of_equal_files(2, 1 << 20).put_into(&bucket, "");
        let [worker_web, coordinator_health] = [(); 2].map(|()| ReservedPort::new().expect("a port"));
        let port = |key: &str, port: &ReservedPort| format!("{key}={}", port.address().port());
        let set = |setup: Setup| secrets.settings().iter().fold(setup, |setup, setting| setup.option(setting));
        let worker = set(Setup::of(&bucket)).option(&port("worker.web.port", &worker_web)).worker(&bucket);
        let of_coordinator = more(&secrets).iter().fold(Setup::default(), |setup, setting| setup.option(setting));
        let coordinator = set(of_coordinator)
            .options(&[
                &format!("cluster.workers={}", worker.address()),
                &format!("coordinator.state_dir={}", secrets.path("state").display()),
                &port("coordinator.health.port", &coordinator_health),
                "network.health.bind.host=127.0.0.1",
            ])
            .coordinator();
        Self { coordinator, worker_web, coordinator_health, secrets, worker, _bucket: bucket }
    }

    fn coordinator(&self) -> SocketAddr {
        self.coordinator.address().parse().unwrap()
    }

    /// What a browser gets, which has no certificate and sends these lines.
    fn browse(&self, address: SocketAddr, page: &str, lines: &str) -> (u16, String) {
        let mut config = client(&self.secrets.path("cluster.key"), Role::Admin);
        config.client_auth_cert_resolver = Arc::new(NoCertificate);
        ask(config, address, page, lines)
    }

    /// Runs a command that asks the coordinator, with this configuration.
    fn command(&self, command: &[&str], config: &Path) -> Finished {
        let address = self.coordinator.address();
        finish(forebay(&[]).args(command).args(["--coordinator", &address, "--config"]).arg(config), SOON)
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

/// What somebody asks with whom the key makes one of this role.
fn client(key: &Path, role: Role) -> ClientConfig {
    let (keys, scope) = (ClusterKeys::read(key).unwrap(), Scope::new("forebay", "forebay").unwrap());
    let now = SystemTime::now();
    let credentials = keys.current().authority(&scope, role).unwrap().issue("one", now - HOUR, now + HOUR).unwrap();
    let trust = Trust::new(scope.clone(), &keys.authorities(&scope).unwrap(), []).unwrap();
    http_client_config(&LiveIdentity::new(Material::new(credentials, trust, now).unwrap()), None).unwrap()
}

/// The status and the body of the answer to a request whose head has these lines.
fn ask(config: ClientConfig, address: SocketAddr, page: &str, lines: &str) -> (u16, String) {
    let tcp = TcpStream::connect(address).expect("connecting");
    tcp.set_read_timeout(Some(SOON)).expect("a timeout");
    let name = ServerName::try_from("listener").unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), tcp);
    write!(stream, "GET {page} HTTP/1.0\r\nHost: {address}\r\n{lines}\r\n").expect("asking");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {answer:?}")), body.to_owned())
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

fn run(arguments: &[&str], settings: &[String]) -> Finished {
    let settings = settings.iter().flat_map(|setting| ["-o", setting]);
    finish(forebay(&[]).args(arguments).args(settings), SOON)
}

#[test]
fn commands_prove_who_they_are_by_themselves_and_who_may_not_is_told() {
    if ruled_out_by_mode("it is about modes itself") {
        return;
    }
    let scene = Scene::start();
    let ours = scene.secrets.path("forebay.toml");
    let status = scene.command(&["cluster", "status", "--json"], &ours).succeeded().text();
    assert!(status.contains(&scene.worker.address().to_string()), "{status}");
    let load = ["job", "load", "--path", "/", "--submit", "--watch"];
    let _ = scene.command(&load, &ours).succeeded();

    // Nobody, somebody of another cluster, and a tenant.
    scene.command(&["cluster", "status"], Path::new("/dev/null")).failed(2, &["speaks TLS only", "security.mode"]);
    let theirs = Secrets::new();
    scene.command(&["cluster", "status"], &theirs.path("forebay.toml")).failed(4, &["no authority"]);
    let tenant = scene.secrets.path("team-a");
    let issue = ["key", "issue", "--role", "reader", "--client", "team-a", "--output", tenant.to_str().unwrap()];
    let key = [format!("security.key_file={}", scene.secrets.path("cluster.key").display())];
    let _ = run(&issue, &key).succeeded();
    let files = [("cert_file", "tls.crt"), ("cert_key_file", "tls.key"), ("ca_file", "ca.crt")];
    let files = files.map(|(key, name)| format!("{key} = {:?}\n", tenant.join(name))).concat();
    std::fs::write(tenant.join("forebay.toml"), format!("[security]\nmode = \"mtls\"\n{files}")).unwrap();
    for command in [&["cluster", "status"][..], &["mounts", "list"], &load] {
        scene.command(command, &tenant.join("forebay.toml")).failed(5, &["a reader may not manage"]);
    }

    // The pages of a worker.
    let web = format!("127.0.0.1:{}", scene.worker_web.address().port());
    let counters = run(&["stats", &web, "--all", "--json"], &scene.secrets.settings()).succeeded().text();
    assert!(counters.contains("bytes_memory"), "{counters}");
    run(&["stats", &web], &[]).failed(2, &["speaks TLS only"]);
}

#[test]
fn a_token_is_taken_from_authorization_alone_and_one_for_scrapes_opens_counters_alone() {
    if ruled_out_by_mode("it is about modes itself") {
        return;
    }
    let scene = Scene::start();
    let (coordinator, worker) = (scene.coordinator(), scene.worker_web.address());
    let worker = SocketAddr::from(([127, 0, 0, 1], worker.port()));
    let (admin, scrapes) = (scene.secrets.token("token"), scene.secrets.token("metrics-token"));
    let wrong = admin.chars().rev().collect::<String>();
    let of = |address, page: &str, lines: &str| scene.browse(address, page, lines).0;
    for (address, page, with_admin, with_scrapes) in [
        (coordinator, "/api/v1/mounts", 200, 403),
        (coordinator, "/api/v1/jobs", 200, 403),
        (coordinator, "/api/v1/stats", 200, 403),
        (coordinator, "/api/v1/nowhere", 404, 403),
        (coordinator, "/stats", 200, 200),
        (coordinator, "/metrics", 200, 200),
        (worker, "/stats", 200, 200),
        (worker, "/metrics", 200, 200),
    ] {
        assert_eq!(of(address, page, &bearer(&admin)), with_admin, "{page}");
        assert_eq!(of(address, page, &bearer(&scrapes)), with_scrapes, "{page}");
        let (status, body) = scene.browse(address, page, "");
        assert!(status == 401 && body.contains("UNAUTHENTICATED"), "{page}: {status} {body}");
        for lines in [bearer(&wrong), format!("Cookie: token={admin}\r\n"), format!("Authorization: Basic {admin}\r\n")]
        {
            assert_eq!(of(address, page, &lines), 401, "{page}");
        }
        assert_eq!(of(address, &format!("{page}?token={admin}&access_token={admin}"), ""), 401, "{page}");
    }
    // The page comes to everybody, and shows nothing by itself.
    for file in ["/", "/forebay.js", "/forebay.css"] {
        assert_eq!(of(coordinator, file, ""), 200, "{file}");
    }
    let reader = client(&scene.secrets.path("cluster.key"), Role::Reader);
    assert_eq!(ask(reader, worker, "/metrics", "").0, 403);

    // In plain text nothing is answered; probes have a listener of their own.
    let (status, body) = scene.coordinator.get("/api/v1/mounts");
    assert!(status == 400 && body.contains("TLS_ONLY"), "{status} {body}");
    let mut probe = TcpStream::connect(("127.0.0.1", scene.coordinator_health.address().port())).unwrap();
    write!(probe, "GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    probe.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200"), "{answer}");

    // No output shows a token.
    let counters = scene.browse(worker, "/stats", &bearer(&admin)).1;
    let settings = run(&["conf", "show"], &scene.secrets.settings()).succeeded().text();
    let logs = [scene.coordinator.log_text(), scene.worker.log_text(), counters, settings];
    assert!(logs.iter().all(|text| !text.contains(&admin) && !text.contains(&scrapes)), "{logs:?}");
}

/// As an auditor reads it: whoever asks for a change is named, with the reason of a refusal, and no token is there to be found.
#[test]
fn who_asked_a_coordinator_for_what_is_recorded_and_never_a_token() {
    if ruled_out_by_mode("it is about modes itself") {
        return;
    }
    let scene = Scene::with(|secrets| {
        let file = format!("security.audit.file={}", secrets.path("audit.jsonl").display());
        vec![file, "security.audit.events=all".to_owned()]
    });
    let ours = scene.secrets.path("forebay.toml");
    let _ = scene.command(&["job", "load", "--path", "/", "--submit", "--watch"], &ours).succeeded();
    let _ = scene.command(&["policy", "set", "/file00", "--pin"], &ours).succeeded();
    let _ = scene.command(&["mounts", "add", "/more", "file:///srv/more"], &ours).succeeded();
    let _ = scene.command(&["mounts", "remove", "/more"], &ours).succeeded();

    let (coordinator, admin, scrapes) =
        (scene.coordinator(), scene.secrets.token("token"), scene.secrets.token("metrics-token"));
    let with_secret = format!("/api/v1/jobs/{admin}?token={admin}");
    for (page, lines, status) in [
        ("/api/v1/mounts", bearer(&admin), 200),
        ("/api/v1/mounts", bearer(&scrapes), 403),
        ("/api/v1/mounts", bearer(&admin[1..]), 401),
        (with_secret.as_str(), String::new(), 401),
        ("/api/v1/jobs?path=/more%2Fdata&token=hush", bearer(&scrapes), 403),
        ("/api/v1/jobs/load-1", bearer(&scrapes), 403),
        (with_secret.as_str(), bearer(&admin), 404),
    ] {
        assert_eq!(scene.browse(coordinator, page, &lines).0, status, "{page}");
    }
    let reader = client(&scene.secrets.path("cluster.key"), Role::Reader);
    assert_eq!(ask(reader, coordinator, "/api/v1/jobs", "").0, 403);

    let log = scene.secrets.path("audit.jsonl");
    let text = || std::fs::read_to_string(&log).unwrap();
    let has = |parts: &[&str]| text().lines().any(|line| parts.iter().all(|part| line.contains(part)));
    let by_us = r#""identity":"spiffe://forebay/forebay/forebay/admin/"#;
    let (by_nobody, allowed) = (r#""identity":null"#, r#""outcome":"allowed""#);
    for parts in [
        &[by_us, r#""operation":"POST /api/v1/jobs","#, r#""change":"load","path":"/""#, allowed][..],
        &[by_us, r#""operation":"PUT /api/v1/policies""#, r#""path":"/file00""#, allowed],
        &[by_us, r#""operation":"POST /api/v1/mounts""#, r#""path":"/more","origin":"file:///srv/more""#, allowed],
        &[by_us, r#""operation":"DELETE /api/v1/mounts""#, r#""path":"/more","origin":"file:///srv/more""#, allowed],
        &[by_nobody, r#""token":"admin""#, r#""operation":"GET /api/v1/mounts""#, allowed],
        &[by_nobody, r#""token":"metrics""#, r#""outcome":"refused","why":"a metrics may not manage"#],
        &[by_nobody, r#""operation":"GET /api/v1/mounts","outcome":"refused","why":"neither a certificate"#],
        &["/reader/one\"", r#""operation":"GET /api/v1/jobs","outcome":"refused","why":"a reader may not"#],
        &[r#""operation":"GET /api/v1/jobs","path":"/more/data","outcome":"refused""#],
        &[r#""operation":"GET /api/v1/jobs/{id}","job":"load-1","outcome":"refused""#],
        &[r#""operation":"GET /api/v1/jobs/{id}","job":"(masked)","outcome":"refused""#],
        &[r#""peer":"127.0.0.1:"#],
    ] {
        eventually("it is recorded", SOON, || has(parts));
    }
    let text = text();
    let is_free_of = |secret: &str| !text.contains(secret);
    assert!(is_free_of(&admin[1..]) && is_free_of(&scrapes) && is_free_of("Bearer") && is_free_of("hush"), "{text}");
    assert_eq!(std::fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
}

/// With a kind of key that a browser does not take there would be no warning, and nothing to go on to.
#[test]
fn a_browser_goes_on_after_its_warning_and_shows_what_the_token_opens() {
    if ruled_out_by_mode("it is about modes itself") {
        return;
    }
    let Some(browser) = browser() else { return };
    let (scene, profile) = (Scene::start(), tempfile::tempdir().unwrap());
    let url = format!("https://{}/", scene.coordinator());
    let shown = |url: &str| {
        let arguments = ["--ignore-certificate-errors", "--dump-dom"];
        page(browser, url, profile.path(), &arguments).succeeded().text()
    };
    eventually("the page asks for a token", SOON * 2, || shown(&url).contains("asks for a token"));
    let token = scene.secrets.token("token");
    let with_token = format!("{url}#token={token}");
    eventually("the page shows the worker", SOON * 2, || {
        let page = shown(&with_token);
        assert!(!page.contains(&token), "the page shows its token: {page}");
        page.contains("1 active of 1")
    });
    let warned = page(browser, &with_token, profile.path(), &["--dump-dom"]).text();
    assert!(!warned.contains("1 active of 1"), "it knows no such authority: {warned}");
}

#[test]
fn tokens_are_replaced_while_processes_run() {
    if ruled_out_by_mode("it is about modes itself") {
        return;
    }
    let scene = Scene::start();
    let of = |token: &str| scene.browse(scene.coordinator(), "/api/v1/mounts", &bearer(token)).0;
    let old = scene.secrets.token("token");
    assert_eq!(of(&old), 200);
    scene.secrets.write("token", &old[..20], 0o600);
    eventually("it is told", SOON, || scene.coordinator.log_text().contains("previous ones stay in use"));
    assert_eq!(of(&old), 200, "half a file changes nothing");
    scene.secrets.make("token", "token");
    let new = scene.secrets.token("token");
    eventually("the new token is taken", SOON, || of(&new) == 200);
    assert_eq!(of(&old), 401);
}

#[test]
fn a_token_that_others_may_read_or_that_nobody_asks_for_stops_the_start() {
    if ruled_out_by_mode("it is about modes itself") {
        return;
    }
    let secrets = Secrets::new();
    let mut settings = secrets.settings();
    settings.push("coordinator.bind.host=127.0.0.1".to_owned());
    settings.push("coordinator.port=0".to_owned());
    settings.push(format!("coordinator.state_dir={}", secrets.path("state").display()));
    secrets.write("token", &secrets.token("token"), 0o644);
    run(&["coordinator"], &settings).failed(2, &["0644", "chmod 600"]);
    secrets.write("token", "admin", 0o600);
    run(&["coordinator"], &settings).failed(2, &["less than 32 characters", "forebay key token"]);
    settings[0] = "security.mode=off".to_owned();
    run(&["coordinator"], &settings).failed(2, &["tokens are set", "security.mode"]);
}
