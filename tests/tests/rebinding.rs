//! What pages of other sites, and clients that only hold places, can do to HTTP listeners of real processes: nothing.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use forebay_e2e::{Bucket, Coordinator, Setup, Worker, eventually, ruled_out_by_mode, skipped};
use forebay_testkit::ReservedPort;
use rustix::process::{Resource, getrlimit, setrlimit};

const SOON: Duration = Duration::from_secs(60);

/// A worker and a coordinator, each with a listener for probes.
struct Scene {
    coordinator: Coordinator,
    /// The pages of the worker.
    worker_web: ReservedPort,
    worker_health: ReservedPort,
    coordinator_health: ReservedPort,
    _worker: Worker,
    _bucket: Bucket,
    _state: tempfile::TempDir,
}

impl Scene {
    fn start() -> Self {
        let [worker_web, worker_health, coordinator_health] = [(); 3].map(|()| ReservedPort::new().expect("a port"));
        let port = |key: &str, port: &ReservedPort| format!("{key}={}", port.address().port());
        let probes = "network.health.bind.host=127.0.0.1";
        let (bucket, state) = (Bucket::new(), tempfile::tempdir().expect("a directory"));
        let worker = Setup::of(&bucket)
            .options(&[&port("worker.web.port", &worker_web), &port("worker.health.port", &worker_health), probes])
            .worker(&bucket);
        let coordinator = Setup::default()
            .options(&[
                &format!("cluster.workers={}", worker.address()),
                &format!("coordinator.state_dir={}", state.path().display()),
                &port("coordinator.health.port", &coordinator_health),
                "network.http.hosts=cache.example.org",
                probes,
            ])
            .coordinator();
        Self {
            coordinator,
            worker_web,
            worker_health,
            coordinator_health,
            _worker: worker,
            _bucket: bucket,
            _state: state,
        }
    }

    fn coordinator(&self) -> SocketAddr {
        self.coordinator.address().parse().expect("an address")
    }
}

/// The status and the body of the answer to a request whose head has these further lines.
fn ask(address: SocketAddr, request: &str, lines: &[&str]) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("connecting");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    write!(stream, "{request} HTTP/1.0\r\n{lines}\r\n").expect("asking");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {answer:?}")), body.to_owned())
}

/// That a listener answers to its own names, and to nobody else.
#[track_caller]
fn answers_only_its_own(address: SocketAddr, page: &str) {
    answers_only_its_own_with(&[], address, page);
}

/// The same where each request has these lines, too.
#[track_caller]
fn answers_only_its_own_with(more: &[&str], address: SocketAddr, page: &str) {
    let ask = |address, request: &str, lines: &[&str]| ask(address, request, &[lines, more].concat());
    let port = address.port();
    let request = format!("GET {page}");
    let own = format!("Host: {address}");
    for host in [own.clone(), format!("Host: localhost:{port}"), "Host: 203.0.113.7".to_owned()] {
        assert_eq!(ask(address, &request, &[&host]).0, 200, "{page}, {host}");
    }
    let same = format!("Origin: http://{address}");
    assert_eq!(ask(address, &request, &[&own, &same]).0, 200, "{page}, of its own page");
    let machine = format!("Host: {}:{port}", rustix::system::uname().nodename().to_string_lossy());
    assert_eq!(ask(address, &request, &[&machine]).0, 200, "{page}, {machine}");

    let rebound = format!("Host: evil.example:{port}");
    let page_of_it = format!("Origin: http://evil.example:{port}");
    for lines in [&[rebound.as_str()][..], &[rebound.as_str(), page_of_it.as_str()]] {
        let (status, body) = ask(address, &request, lines);
        assert_eq!(status, 421, "{page}, {lines:?}: {body}");
        assert!(body.contains("`evil.example`") && body.contains("network.http.hosts"), "{body}");
    }
    let absolute = format!("GET http://evil.example{page}");
    assert_eq!(ask(address, &absolute, &[&own]).0, 421, "{absolute}");
    for foreign in ["Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site"] {
        let (status, body) = ask(address, &request, &[&own, foreign]);
        assert_eq!(status, 403, "{page}, {foreign}: {body}");
        assert!(body.contains("network.http.hosts"), "{body}");
    }
    for malformed in [&[][..], &["Host: a b"], &[own.as_str(), own.as_str()]] {
        assert_eq!(ask(address, &request, malformed).0, 400, "{page}, {malformed:?}");
    }
}

#[test]
fn no_listener_answers_under_a_name_of_another_site_or_to_its_pages() {
    if ruled_out_by_mode("it speaks plain text to pages") {
        return;
    }
    let scene = Scene::start();
    let at_coordinator = scene.coordinator();
    for page in ["/", "/api/v1/version", "/metrics", "/healthz"] {
        answers_only_its_own(at_coordinator, page);
    }
    answers_only_its_own(scene.worker_web.address(), "/stats");
    for health in [&scene.worker_health, &scene.coordinator_health] {
        answers_only_its_own(health.address(), "/healthz");
        let own = format!("Host: {}", health.address());
        eventually("it is ready", SOON, || {
            ask(health.address(), "GET /readyz", &[&own]) == (200, "ready\n".to_owned())
        });
        assert_eq!(ask(health.address(), "GET /metrics", &[&own]).0, 404, "nothing else is there");
    }
    // What the configuration lists.
    let listed = "Host: cache.example.org";
    assert_eq!(ask(at_coordinator, "GET /api/v1/version", &[listed, "Origin: https://cache.example.org"]).0, 200);
    assert_eq!(ask(scene.worker_web.address(), "GET /stats", &[listed]).0, 421, "its configuration does not");
    // A page that would have a job run.
    let host = format!("Host: {at_coordinator}");
    let foreign = [host.as_str(), "Origin: http://evil.example", "Content-Type: application/json"];
    assert_eq!(ask(at_coordinator, "POST /api/v1/jobs", &foreign).0, 403);
    let metrics = scene.coordinator.get("/metrics").1;
    for reason in ["host", "origin", "malformed"] {
        let counted = format!("forebay_http_refused_total{{reason=\"{reason}\"}} ");
        let line = metrics.lines().find(|line| line.starts_with(&counted)).unwrap_or_else(|| panic!("{metrics}"));
        assert!(!line.ends_with(" 0.0"), "{line}");
    }
    // Commands name it by its address.
    assert!(scene.coordinator.status()["cluster"]["members"].is_array());
}

#[test]
fn the_listeners_of_a_mount_answer_only_under_their_own_names() {
    if ruled_out_by_mode("it speaks plain text to pages") {
        return;
    }
    let bucket = Bucket::new();
    let mount = Setup::of(&bucket).flag("--web=0").up(&bucket);
    let url = mount.summary()["page"].as_str().expect("the page's URL");
    let (address, token) = url.trim_start_matches("http://").split_once("/#token=").expect("a token");
    let authorization = format!("Authorization: Bearer {token}");
    let metrics = mount.summary()["web"].as_str().expect("the address of the metrics");
    for (address, page) in [(address, "/"), (address, "/api/v1/version"), (metrics, "/metrics")] {
        answers_only_its_own_with(&[&authorization], address.parse().expect("an address"), page);
    }
}

/// Raises this process's limit of descriptors to `descriptors`, if it is lower.
fn may_open(descriptors: u64) -> bool {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < descriptors) {
        limit.current = Some(descriptors);
        return setrlimit(Resource::Nofile, limit).is_ok();
    }
    true
}

#[test]
fn a_thousand_idle_connections_keep_nobody_from_the_coordinator_or_its_probes() {
    if ruled_out_by_mode("it speaks plain text to pages") {
        return;
    }
    if !may_open(4096) {
        return skipped("this process may not have 4096 descriptors");
    }
    let scene = Scene::start();
    let address = scene.coordinator();
    // Half of them have asked something, and keep their connection as browsers do.
    let idle: Vec<TcpStream> = (0..1000)
        .map(|number| {
            let mut stream = TcpStream::connect(address).expect("connecting");
            if number % 2 == 0 {
                write!(stream, "GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("asking");
            }
            stream
        })
        .collect();
    assert_eq!(scene.coordinator.get("/healthz").0, 200);
    assert!(scene.coordinator.status()["cluster"]["members"].is_array());
    let health = scene.coordinator_health.address();
    assert_eq!(ask(health, "GET /healthz", &[&format!("Host: {health}")]), (200, "ok\n".to_owned()));
    drop(idle);
}

#[test]
fn a_client_that_reads_no_answer_or_sends_no_body_is_closed() {
    if ruled_out_by_mode("it speaks plain text to pages") {
        return;
    }
    let scene = Scene::start();
    let address = scene.coordinator();
    let mut unread = TcpStream::connect(address).expect("connecting");
    unread.set_write_timeout(Some(SOON)).expect("a timeout");
    // 20 MB of answers: more than the kernel keeps of what nobody reads.
    let request = format!("GET /api/v1/openapi.json HTTP/1.1\r\nHost: {address}\r\n\r\n");
    unread.write_all(request.repeat(400).as_bytes()).expect("asking");
    let mut unsent = TcpStream::connect(address).expect("connecting");
    unsent.set_read_timeout(Some(SOON)).expect("a timeout");
    let head = format!("POST /api/v1/jobs HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n");
    write!(unsent, "{head}Content-Length: 9\r\n\r\n{{").expect("asking");
    let mut answer = String::new();
    unsent.read_to_string(&mut answer).expect("it is closed");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    // What nobody reads ends with a reset, which is an error of the socket.
    eventually("it is closed", SOON, || unread.take_error().expect("the socket").is_some());
    assert_eq!(scene.coordinator.get("/healthz").0, 200);
}
