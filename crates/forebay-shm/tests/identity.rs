//! Attacks on identities at the window: each by a real session, or what begins like one, with a real server.

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use common::identities::{Cluster, HOUR, PROTOCOL, RawTls, demanding, options_of, proving};
use common::*;
use forebay_identity::{Audit, AuditEvent, AuditOutcome, AuditPeer, Auditing, Credentials, LiveIdentity};
use forebay_locks::Mutex;
use forebay_shm::{ClientOptions, NearTransport, ServerOptions, socket_path};
use forebay_transport::conformance::{until, within};
use forebay_transport::message::Change;
use forebay_transport::{Op, PeerMemory as _, Request, Transport};
use forebay_types::{AuditEvents, FailureKind, Role};
use rustix::process::{Pid, PidfdFlags};

/// A worker with block 1, whose clients prove to `live` who they are.
fn worker_of(
    live: &Arc<LiveIdentity>,
    change: impl FnOnce(ServerOptions) -> ServerOptions,
) -> (Worker, Arc<BlockService>) {
    let (pool, service) = (shared_pool(4), BlockService::new());
    service.put(&pool, 1, FRAME);
    let security = Some(demanding(live));
    let worker = Worker::start_with(&pool, service.clone(), |options| change(ServerOptions { security, ..options }));
    (worker, service)
}

fn worker(cluster: &Cluster) -> (Worker, Arc<BlockService>) {
    worker_of(&cluster.live(Role::Worker, "node1"), |options| options)
}

fn client(worker: &Worker, options: ClientOptions) -> Arc<NearTransport> {
    near_with(worker.tcp.local_addr(), options)
}

async fn assert_sees(near: &NearTransport) {
    until_open(near).await;
    assert!(is_right(&within("a read", view(near, 1, 7, 5000)).await, 1, 7));
}

/// Waits until the memory is not seen, for a reason with these words.
async fn until_refused(near: &NearTransport, words: &str) {
    let began = Instant::now();
    loop {
        let _ = near.call(Request::on_path(Op::Ping, Bytes::new(), LONG), None).await;
        let why = near.report().why.unwrap_or_default();
        if why.contains(words) {
            assert!(!near.is_open());
            return;
        }
        assert!(began.elapsed() < LONG, "{words}: {:?}", near.report());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_of_the_cluster_and_may_read_sees_the_memory() {
    let cluster = Cluster::new();
    let (worker, _service) = worker(&cluster);
    for role in [Role::Reader, Role::Writer, Role::Admin, Role::Worker, Role::Coordinator] {
        assert_sees(&client(&worker, cluster.options(role, "team-a"))).await;
    }
    let scrapes = client(&worker, cluster.options(Role::Metrics, "scrapes"));
    until_refused(&scrapes, "a metrics may not read").await;
    let named = |name: &str| {
        let security = Some(proving(&cluster.live(Role::Reader, "team-a")).named(name));
        client(&worker, ClientOptions { security, ..client_options() })
    };
    assert_sees(&named("node1")).await;
    until_refused(&named("node2"), "worker/node1` listens there, and not the worker `node2`").await;
}

/// Who wanted to see the memory, or what else it asked for, and what became of it.
#[derive(Debug, Default)]
struct Record(Mutex<Vec<(Option<String>, String)>>);

impl Audit for Record {
    fn record(&self, event: &AuditEvent<'_>) {
        let (user, process) = (rustix::process::getuid().as_raw(), std::process::id());
        assert_eq!(event.peer, AuditPeer::Process { user: Some(user), process: Some(process) });
        let who = event.identity.map(|identity| format!("{}/{}", identity.role(), identity.name()));
        let outcome = match event.outcome {
            AuditOutcome::Refused(why) => format!("refused: {why}"),
            outcome => format!("{outcome:?}"),
        };
        let path = event.subject.path.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        let is_of_memory = event.operation == AuditEvent::SEE_MEMORY;
        let told = if is_of_memory { outcome } else { format!("{} {path}: {outcome}", event.operation) };
        self.0.lock().push((who, told));
    }
}

impl Record {
    fn has(&self, who: Option<&str>, outcome: &str) -> bool {
        self.0.lock().iter().any(|(of, found)| of.as_deref() == who && found.starts_with(outcome))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sees_the_memory_and_who_may_not_is_recorded() {
    let (cluster, record) = (Cluster::new(), Arc::new(Record::default()));
    let audit = Arc::clone(&record) as Arc<dyn Audit>;
    let audit = Some(Auditing { events: AuditEvents::Changes, audit });
    let live = cluster.live(Role::Worker, "node1");
    let (worker, service) = worker_of(&live, |options| ServerOptions { audit, ..options });
    let reader = client(&worker, cluster.options(Role::Reader, "team-a"));
    assert_sees(&reader).await;
    until("it is recorded", || record.has(Some("reader/team-a"), "Allowed")).await;
    assert_sees(&reader).await;
    assert_eq!(record.0.lock().len(), 1, "reads are no events");

    let scrapes = client(&worker, cluster.options(Role::Metrics, "scrapes"));
    until_refused(&scrapes, "a metrics may not read").await;
    until_refused(&near(worker.tcp.local_addr()), "clients prove to this worker who they are").await;
    let stranger = client(&worker, Cluster::new().options(Role::Admin, "root"));
    until_refused(&stranger, "identities do not fit").await;
    *service.confines.lock() = Some("reader/team-b");
    until_refused(&client(&worker, cluster.options(Role::Reader, "team-b")), "a mount has an access list").await;
    for (who, outcome) in [
        (Some("metrics/scrapes"), "refused: a metrics may not read"),
        (None, "refused: clients prove to this worker"),
        (Some("reader/team-b"), "refused: a mount has an access list"),
    ] {
        until("it is recorded", || record.has(who, outcome)).await;
    }
    // It proves to be nobody whom the worker knows, whatever it is called elsewhere.
    assert!(record.0.lock().iter().all(|(who, _)| who.as_deref() != Some("admin/root")));

    let denied = cluster.identity(Role::Reader, "team-a");
    live.replace(cluster.material(Role::Worker, "node1", cluster.trust(Some(denied)), HOUR));
    until("it is recorded", || record.has(Some("reader/team-a"), "refused: ")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_proof_no_memory() {
    let cluster = Cluster::new();
    let (worker, _service) = worker(&cluster);
    until_refused(&near(worker.tcp.local_addr()), "clients prove to this worker who they are").await;
    let stranger = client(&worker, Cluster::new().options(Role::Admin, "root"));
    until_refused(&stranger, "identities do not fit: no authority").await;
    let late = LiveIdentity::new(cluster.material(Role::Admin, "late", cluster.trust(None), Duration::from_secs(1)));
    tokio::time::sleep(Duration::from_secs(2)).await;
    until_refused(&client(&worker, options_of(&late)), "refuses the certificate of this process").await;
    until("nobody is left", || worker.window.connections() == 0).await;
}

/// Who has the right user, as root of another container has, and not the right key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_descriptor_is_passed_to_nobody_who_did_not_prove_who_it_is() {
    let cluster = Cluster::new();
    let (worker, _service) = worker(&cluster);
    let path = socket_of(worker.tcp.local_addr());
    let now = SystemTime::now();
    let good = cluster.credentials(Role::Reader, "team-a", now + HOUR);
    let expired = cluster.credentials(Role::Reader, "late", now - HOUR);
    let early = cluster.credentials(Role::Reader, "early", now + 4 * HOUR);
    let foreign = Cluster::new().credentials(Role::Admin, "root", now + HOUR);
    let elsewhere = cluster.credentials_elsewhere(Role::Admin, "root");
    let metrics = cluster.credentials(Role::Metrics, "scrapes", now + HOUR);
    type Case<'a> = (&'a str, Option<&'a Credentials>, &'a [&'a [u8]]);
    let cases: [Case<'_>; 8] = [
        ("no certificate", None, &[PROTOCOL]),
        ("another key", Some(&foreign), &[PROTOCOL]),
        ("one of another cluster with this key", Some(&elsewhere), &[PROTOCOL]),
        ("an expired one", Some(&expired), &[PROTOCOL]),
        ("one that is not valid yet", Some(&early), &[PROTOCOL]),
        ("one that may not read", Some(&metrics), &[PROTOCOL]),
        ("a proof for TCP", Some(&good), &[b"forebay/1", b"forebay-auth/1"]),
        ("a proof for nothing", Some(&good), &[]),
    ];
    for (what, credentials, protocols) in cases {
        let mut hostile = RawTls::begin(&path, credentials, protocols, 0);
        let ended = hostile.hear(GREETING_LEN + 8);
        assert!(ended.is_err(), "{what}: {ended:?}");
        assert_eq!(hostile.descriptors_in_all(), 0, "{what}");
    }
    // Another process says so, as the kernel can tell.
    let mut relayed = RawTls::begin(&path, Some(&good), &[PROTOCOL], 1);
    let ended = relayed.hear(GREETING_LEN + 8);
    if ended.is_err() {
        assert_eq!(relayed.descriptors_in_all(), 0);
    }
    let plain = Raw::connect(&path);
    plain.send(&forebay_transport::wire::Hello::ours(CLUSTER, BLOCK_SIZE).encode());
    while let Some((packet, descriptors)) = plain.receive_any() {
        assert!(descriptors == 0 && !packet.starts_with(b"FOREBAY"));
    }
    let mut admitted = RawTls::begin(&path, Some(&good), &[PROTOCOL], 0);
    assert_eq!((admitted.hear(GREETING_LEN + 8).map(|greeting| greeting.len()), admitted.descriptors), (Ok(160), 1));
    drop((plain, admitted));
    until("nobody is left", || worker.window.connections() == 0).await;
}

/// What a client has said proves nothing in another session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replayed_handshake_gets_no_descriptor() {
    let cluster = Cluster::new();
    let (worker, _service) = worker(&cluster);
    let path = socket_of(worker.tcp.local_addr());
    let good = cluster.credentials(Role::Reader, "team-a", SystemTime::now() + HOUR);
    let mut admitted = RawTls::begin(&path, Some(&good), &[PROTOCOL], 0);
    admitted.hear(GREETING_LEN + 8).unwrap();
    assert!(admitted.descriptors == 1 && admitted.said.len() > 1, "{:?}", admitted.said);
    let replay = Raw::connect(&path);
    admitted.said.iter().for_each(|packet| replay.send(packet));
    while let Some((_, descriptors)) = replay.receive_any() {
        assert_eq!(descriptors, 0);
    }
    drop((replay, admitted));
    until("nobody is left", || worker.window.connections() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_changes_frees_and_plants_nothing() {
    let (cluster, record) = (Cluster::new(), Arc::new(Record::default()));
    let audit = Some(Auditing { events: AuditEvents::Changes, audit: Arc::clone(&record) as Arc<dyn Audit> });
    let live = cluster.live(Role::Worker, "node1");
    let (worker, _service) = worker_of(&live, |options| ServerOptions { audit, ..options });
    let path = socket_of(worker.tcp.local_addr());
    let session = |role| {
        let credentials = cluster.credentials(role, "team-a", SystemTime::now() + HOUR);
        let mut session = RawTls::begin(&path, Some(&credentials), &[PROTOCOL], 0);
        session.hear(GREETING_LEN + 8).unwrap();
        session.raw
    };
    let asks = |raw: &Raw, id, op| {
        raw.ask(id, &Request { body: Bytes::from_static(b"x"), ..Request::on_path(op, Bytes::new(), LONG) });
        let (header, body) = raw.reply().unwrap();
        assert_eq!(header.id, id);
        header.failure(&body).map(|why| (why.kind(), why.message().to_owned()))
    };
    let reader = session(Role::Reader);
    for (id, op) in (1..).zip([Op::Change, Op::Upload, Op::Free, Op::Adopt, Op::Stats]) {
        let (kind, message) = asks(&reader, id, op).unwrap();
        assert_eq!(kind, FailureKind::PermissionDenied, "{message}");
        assert!(message.contains("a reader may not"), "{message}");
    }
    // What it may do is no matter of windows either, and the session goes on.
    let writer = session(Role::Writer);
    assert_eq!(asks(&writer, 1, Op::Change).map(|(kind, _)| kind), Some(FailureKind::InvalidArgument));
    // Both are recorded with what they named.
    let removed = Request::on_path(Op::Change, Change::Remove { path: b"/secret".to_vec() }.encode(), LONG);
    for (session, who, why) in [
        (&reader, "reader/team-a", "a reader may not write"),
        (&writer, "writer/team-a", "a change is not for a session of this kind"),
    ] {
        session.ask(8, &removed);
        assert!(session.reply().unwrap().0.failure.is_some(), "{who}");
        let outcome = format!("change /secret: refused: {why}");
        assert!(record.has(Some(who), &outcome), "{outcome}: {record:?}");
    }
    reader.ask(9, &read(1, 0, 100, LONG));
    assert_eq!(reader.reply().unwrap().0.payload_len, 100);
}

/// A process that listens in the place of a worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_impostor_in_a_workers_place_is_not_looked_at() {
    let cluster = Cluster::new();
    let (impostor, _service) = worker_of(&cluster.live(Role::Reader, "mallory"), |options| options);
    let reader = |worker| client(worker, cluster.options(Role::Reader, "team-a"));
    until_refused(&reader(&impostor), "reader/mallory` listens there, and not the worker").await;
    let plain = Worker::start(&shared_pool(1), BlockService::new());
    until_refused(&reader(&plain), "this worker takes no proofs").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_denied_is_gone_within_seconds_and_what_it_looked_at_stays_until_it_is_let_go() {
    let cluster = Cluster::new();
    let live = cluster.live(Role::Worker, "node1");
    let (worker, service) = worker_of(&live, |options| options);
    let good = client(&worker, cluster.options(Role::Reader, "team-a"));
    let bad = client(&worker, cluster.options(Role::Reader, "mallory"));
    assert_sees(&good).await;
    until_open(&bad).await;
    let seen = view(&bad, 1, 0, FRAME as u32).await;
    let mallory = cluster.identity(Role::Reader, "mallory");
    live.replace(cluster.material(Role::Worker, "node1", cluster.trust(Some(mallory)), HOUR));
    until("its session ends", || !bad.is_open()).await;
    until("it knows why", || bad.report().why.is_some_and(|why| why.contains("reader/mallory` is denied; "))).await;
    until_refused(&bad, "the certificate of this process").await;
    // Bytes with a reader do not change, whoever it is.
    service.remove(1);
    assert!(worker.window.pinned() > 0 && is_right(&seen, 1, 0));
    drop((seen, bad));
    worker.until_free().await;
    until("only the other is left", || worker.window.connections() == 1).await;
    service.put(&worker.pool, 1, FRAME);
    assert_sees(&good).await;
}

/// Access lists come and go while sessions last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_read_some_of_it_only_does_not_see_the_memory() {
    let cluster = Cluster::new();
    let (worker, service) = worker(&cluster);
    let [team_a, team_b] = ["team-a", "team-b"].map(|name| client(&worker, cluster.options(Role::Reader, name)));
    assert_sees(&team_a).await;
    assert_sees(&team_b).await;
    *service.confines.lock() = Some("reader/team-b");
    until("its session ends", || !team_b.is_open()).await;
    until_refused(&team_b, "a mount has an access list").await;
    let now = SystemTime::now();
    let credentials = cluster.credentials(Role::Reader, "team-b", now + HOUR);
    let mut hostile = RawTls::begin(&socket_of(worker.tcp.local_addr()), Some(&credentials), &[PROTOCOL], 0);
    assert!(hostile.hear(GREETING_LEN + 8).is_err());
    assert_eq!(hostile.descriptors_in_all(), 0);
    assert_sees(&team_a).await;
    *service.confines.lock() = None;
    assert_sees(&client(&worker, cluster.options(Role::Reader, "team-b"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_with_the_certificate_of_its_client_which_comes_again_with_the_next() {
    let cluster = Cluster::new();
    let (worker, _service) = worker(&cluster);
    let live = LiveIdentity::new(cluster.material(Role::Reader, "short", cluster.trust(None), Duration::from_secs(8)));
    let reader = client(&worker, options_of(&live));
    assert_sees(&reader).await;
    live.replace(cluster.material(Role::Reader, "short", cluster.trust(None), HOUR));
    until("its session ends", || !reader.is_open()).await;
    assert_sees(&reader).await;
}

/// While a cluster is being changed, both are let in, and counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_text_is_let_in_where_that_is_said() {
    let cluster = Cluster::new();
    let live = cluster.live(Role::Worker, "node1");
    let (worker, _service) = worker_of(&live, |options| {
        let security = options.security.map(|security| security.accepting_plain());
        ServerOptions { security, ..options }
    });
    let plain = open(worker.tcp.local_addr()).await;
    let reader = client(&worker, cluster.options(Role::Reader, "team-a"));
    assert_sees(&plain).await;
    assert_sees(&reader).await;
    assert_eq!((worker.window.connections(), worker.window.unauthenticated()), (2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_prove_nothing_take_no_places_from_those_who_did() {
    let cluster = Cluster::new();
    let live = cluster.live(Role::Worker, "node1");
    let hello_timeout = Duration::from_secs(2);
    let (worker, _service) = worker_of(&live, |options| ServerOptions { max_greeting: 2, hello_timeout, ..options });
    let reader = client(&worker, cluster.options(Role::Reader, "team-a"));
    assert_sees(&reader).await;
    let path = socket_of(worker.tcp.local_addr());
    let silent = [Raw::connect(&path), Raw::connect(&path)];
    // On a slow machine the time of the other two may be over.
    let said = Raw::connect(&path).goodbye();
    assert!(said.contains("2 clients have not said hello yet") || said.contains("no hello within"), "{said}");
    assert_sees(&reader).await;
    for raw in silent {
        assert!(raw.goodbye().contains("no hello within"));
    }
    until("only the reader is left", || worker.window.connections() == 1).await;
    assert_sees(&client(&worker, cluster.options(Role::Reader, "team-b"))).await;
}

/// What the test below starts: a process that passes on what both say.
#[test]
#[ignore = "a process of other tests"]
fn a_process_in_between() {
    let path = |name: &str| PathBuf::from(std::env::var(name).expect("another test starts this"));
    let listener = Raw::listen(&path("FOREBAY_TEST_RELAY_FROM"));
    println!("\nlistening");
    std::io::stdout().flush().unwrap();
    loop {
        let (client, worker) = (Arc::new(listener.accept()), Arc::new(Raw::connect(&path("FOREBAY_TEST_RELAY_TO"))));
        for (from, to) in [(Arc::clone(&client), Arc::clone(&worker)), (worker, client)] {
            std::thread::spawn(move || {
                while let Some(packet) = from.receive() {
                    to.send(&packet);
                }
            });
        }
    }
}

/// Whether the kernel gives processes numbers of their own: since Linux 6.9.
fn is_told_apart(child: &Child) -> bool {
    let number = |pid| {
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
        rustix::fs::fstat(&process).ok().map(|file| file.st_ino)
    };
    number(Pid::from_child(child)) != number(rustix::process::getpid())
}

/// Root of another container that has taken the worker's place in the directory, and passes on what both prove.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_in_between_is_noticed_and_gets_no_descriptor() {
    let cluster = Cluster::new();
    let (worker, _service) = worker(&cluster);
    let (address, directory) = (worker.tcp.local_addr(), tempfile::tempdir().unwrap());
    let taken = directory.path().join("sockets");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_in_between", "--ignored", "--nocapture"])
        .env("FOREBAY_TEST_RELAY_FROM", socket_path(&taken, address))
        .env("FOREBAY_TEST_RELAY_TO", socket_of(address))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = tokio::task::spawn_blocking(move || {
        let mut said = lines.map_while(Result::ok).filter(|line| line == "listening");
        (said.next(), said)
    });
    let (said, _rest) = within("the process listens", said).await.unwrap();
    assert!(said.is_some());
    if is_told_apart(&child) {
        let options = ClientOptions { directory: taken, ..cluster.options(Role::Reader, "team-a") };
        until_refused(&client(&worker, options), "another process than").await;
    } else {
        let _ = writeln!(std::io::stderr(), "skipped: this kernel does not tell processes apart (Linux 6.9 does)");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    until("nobody is left", || worker.window.connections() == 0).await;
}
