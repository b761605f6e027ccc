//! Who may ask a coordinator for what, and whom a coordinator takes for the one that leads.

mod support;

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_coordinator::api::{Mount, Policy};
use forebay_coordinator::{
    ApiClient, ApiError, Coordinator, CoordinatorOptions, Listen, PlainConnector, SecureConnector,
};
use forebay_identity::{
    Audit, AuditEvent, AuditOutcome, AuditPeer, Auditing, LiveIdentity, LiveTokens, http_client_config, new_token,
    testing,
};
use forebay_locks::Mutex;
use forebay_metrics::Access;
use forebay_private::socket_address;
use forebay_state::{StateStore, Transaction};
use forebay_types::{AuditEvents, Role, Subject};
use serde_json::json;

use support::{Cluster, PATIENCE, bare, end, leads, load, path, refusal, until};

/// A free port of this machine.
const LOOPBACK: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// A key, and all that whoever has it can be.
struct Key(testing::Cluster);

impl Key {
    fn new() -> Self {
        Self(testing::Cluster::new())
    }

    fn live(&self, role: Role) -> Arc<LiveIdentity> {
        self.0.live(role, "one")
    }

    /// A coordinator that demands proof. It has the identity of `role`, which may be a wrong one.
    async fn coordinator(&self, cluster: &Cluster, name: &str, role: Role) -> Coordinator {
        cluster.start(self.options(name, role)).await
    }

    fn options(&self, name: &str, role: Role) -> CoordinatorOptions {
        let live = self.live(role);
        let leader = http_client_config(&live, Some(Role::Coordinator)).unwrap();
        let mut options = CoordinatorOptions::new(name, SocketAddr::from(LOOPBACK), "9.9.9");
        options.access = Access::proved(&live, LiveTokens::open(Vec::new()).unwrap(), false).unwrap();
        options.leader = Arc::new(SecureConnector::over(PlainConnector::default(), leader));
        options
    }

    /// Somebody of this role, who asks `coordinator`.
    fn client(&self, role: Role, coordinator: &Coordinator) -> ApiClient {
        let config = http_client_config(&self.live(role), Some(Role::Coordinator)).unwrap();
        ApiClient::from_source(&coordinator.address().unwrap().to_string(), None, Some(config)).unwrap()
    }
}

/// What was recorded, in the order of its answers: who, with which token, from where, what, about what, and what became of it.
#[derive(Debug, Default)]
struct Record(Mutex<Vec<Recorded>>);

#[derive(Debug)]
struct Recorded {
    who: Option<String>,
    token: Option<Role>,
    peer: AuditPeer,
    operation: String,
    subject: Subject,
    outcome: String,
}

impl Audit for Record {
    fn record(&self, event: &AuditEvent<'_>) {
        self.0.lock().push(Recorded {
            who: event.identity.map(|identity| format!("{}/{}", identity.role(), identity.name())),
            token: event.token,
            peer: event.peer,
            operation: event.operation.to_owned(),
            subject: event.subject.clone(),
            outcome: match event.outcome {
                AuditOutcome::Refused(why) => format!("refused: {why}"),
                outcome => format!("{outcome:?}"),
            },
        });
    }
}

impl Record {
    fn auditing(self: &Arc<Self>, events: AuditEvents) -> Option<Auditing> {
        Some(Auditing { events, audit: Arc::clone(self) as Arc<dyn Audit> })
    }

    /// What was recorded since the last time.
    fn take(&self) -> Vec<Recorded> {
        std::mem::take(&mut *self.0.lock())
    }

    /// The only event since the last time, which must come soon: an answer may be there before it.
    async fn only(&self) -> Recorded {
        let events = until(|| async { Some(self.take()).filter(|events| !events.is_empty()) }).await;
        assert_eq!(events.len(), 1, "{events:?}");
        events.into_iter().next().unwrap()
    }
}

impl Recorded {
    /// Who asked for what, and what became of it.
    fn told(&self) -> (Option<&str>, &str, &str) {
        (self.who.as_deref(), &self.operation, &self.outcome)
    }

    fn path(&self) -> Option<&str> {
        self.subject.path.as_deref().map(|path| std::str::from_utf8(path).unwrap())
    }
}

fn s3() -> Mount {
    Mount { path: "/s3".into(), origin: "s3://bucket".into(), options: [].into(), acl: None }
}

/// The status of a refusal; 200 for none.
fn status<T>(answer: Result<T, ApiError>) -> u16 {
    answer.err().map_or(200, |error| refusal(error).0)
}

#[tokio::test]
async fn an_admin_changes_what_a_coordinator_reads_and_nobody_else_sees_anything() {
    let (cluster, key) = (Cluster::new().await, Key::new());
    let coordinator = key.coordinator(&cluster, "one", Role::Coordinator).await;
    leads(&coordinator).await;
    for role in [Role::Reader, Role::Writer, Role::Worker, Role::Metrics] {
        let client = key.client(role, &coordinator);
        let read = client.mounts().await;
        assert!(read.as_ref().unwrap_err().to_string().contains(&format!("a {role} may not manage")), "{read:?}");
        assert_eq!(status(read), 403);
        assert_eq!(status(client.stats().await), 403);
        assert_eq!(status(client.add_mount(&s3()).await), 403);
        assert_eq!(status(client.submit(&load()).await), 403);
    }
    let (admin, other) = (key.client(Role::Admin, &coordinator), key.client(Role::Coordinator, &coordinator));
    assert_eq!(status(other.mounts().await), 200);
    assert_eq!(status(other.add_mount(&s3()).await), 403);
    assert_eq!(status(other.set_policy(&Policy { path: "/s3".into(), ..Policy::default() }).await), 403);
    assert_eq!(status(other.drain("w1").await), 403);
    assert_eq!(admin.add_mount(&s3()).await.unwrap(), s3());
    admin.remove_mount(&path("/s3")).await.unwrap();
    assert_eq!(admin.mounts().await.unwrap(), []);
    let (told, text) = bare(&coordinator, "GET", "/api/v1/mounts", None).await;
    assert!(told == 400 && text.contains("TLS_ONLY") && text.contains("security.mode"), "{told} {text}");
    coordinator.close().await;
}

#[tokio::test]
async fn who_proves_itself_asks_no_one_who_is_no_coordinator() {
    let (cluster, key) = (Cluster::new().await, Key::new());
    let impostor = key.coordinator(&cluster, "impostor", Role::Reader).await;
    let refused = key.client(Role::Admin, &impostor).mounts().await.unwrap_err();
    assert!(refused.to_string().contains("listens there, and no coordinator"), "{refused}");
    let stranger = Key::new().client(Role::Admin, &impostor).mounts().await.unwrap_err();
    assert!(stranger.to_string().contains("no authority"), "{stranger}");
    let (plain, _) = cluster.coordinator("plain").await;
    let refused = key.client(Role::Admin, &plain).mounts().await.unwrap_err();
    assert!(refused.to_string().contains("does not speak TLS"), "{refused}");
    impostor.close().await;
    plain.close().await;
}

#[tokio::test]
async fn a_job_is_passed_on_to_a_coordinator_that_proves_to_be_one_and_to_nobody_else() {
    let (cluster, key) = (Cluster::new().await, Key::new());
    let leader = key.coordinator(&cluster, "leader", Role::Coordinator).await;
    leads(&leader).await;
    let other = key.coordinator(&cluster, "other", Role::Coordinator).await;
    let admin = key.client(Role::Admin, &other);
    let submitted = admin.submit(&load()).await.unwrap();
    assert_eq!(end(&admin, &submitted.job.id).await.coordinator, "leader");
    leader.close().await;
    other.close().await;

    // Somebody who may write to the state names a server of its own.
    let cluster = Cluster::new().await;
    let theirs = Cluster::new().await;
    let impostor = key.coordinator(&theirs, "impostor", Role::Reader).await;
    leads(&impostor).await;
    let record = json!({ "name": "impostor", "address": impostor.address().unwrap().to_string() }).to_string();
    cluster.store.commit(Transaction::new().put("leader", record)).await.unwrap();
    let coordinator = key.coordinator(&cluster, "one", Role::Coordinator).await;
    let refused = key.client(Role::Admin, &coordinator).submit(&load()).await.unwrap_err();
    let (status, code, message) = refusal(refused);
    assert_eq!((status, &*code), (503, "NO_LEADER"), "{message}");
    assert!(message.contains("listens there, and no coordinator"), "{message}");
    assert!(impostor.reports().is_empty(), "it was asked for nothing");
    coordinator.close().await;
    impostor.close().await;
}

#[tokio::test]
async fn a_coordinator_of_one_user_asks_for_nothing_at_its_socket_and_for_a_token_at_its_port() {
    let (cluster, directory, token) = (Cluster::new().await, tempfile::tempdir().unwrap(), new_token().unwrap());
    let socket = directory.path().join("private/rest.sock");
    let listen = Listen { address: Some(SocketAddr::from(LOOPBACK)), socket: Some(socket.clone()) };
    let mut options = CoordinatorOptions::new("one", listen, "9.9.9");
    options.access = Access::by_token(LiveTokens::only(&token, Role::Admin));
    let coordinator = cluster.start(options).await;
    leads(&coordinator).await;
    assert_eq!(coordinator.socket(), Some(&*socket));
    let address = coordinator.address().unwrap();

    let own = ApiClient::new(&socket_address(&socket)).unwrap();
    assert_eq!(own.add_mount(&s3()).await.unwrap(), s3());
    let proving = http_client_config(&Key::new().live(Role::Admin), Some(Role::Coordinator)).unwrap();
    let proving = ApiClient::from_source(&socket_address(&socket), None, Some(proving)).unwrap();
    assert_eq!(proving.mounts().await.unwrap(), [s3()], "nothing is to be proved to a socket");

    let stranger = ApiClient::new(&address.to_string()).unwrap();
    assert_eq!(status(stranger.mounts().await), 401);
    assert_eq!(status(stranger.remove_mount(&path("/s3")).await), 401);
    for (at, expected) in [("/", 200), ("/forebay.css", 200), ("/forebay.js", 200), ("/metrics", 401), ("/readyz", 401)]
    {
        assert_eq!(bare(&coordinator, "GET", at, None).await.0, expected, "{at}");
    }
    let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
    for (shown, expected) in [(token.as_str(), 200), (&token[..63], 401), ("", 401)] {
        let asked = http.get(format!("http://{address}/api/v1/mounts")).bearer_auth(shown).send().await.unwrap();
        assert_eq!(asked.status(), expected, "{shown}");
    }
    coordinator.close().await;
    assert!(!socket.exists());
}

#[tokio::test]
async fn who_asks_for_which_change_is_recorded_allowed_or_refused() {
    let (cluster, key, record) = (Cluster::new().await, Key::new(), Arc::new(Record::default()));
    let audit = record.auditing(AuditEvents::Changes);
    let options = CoordinatorOptions { audit, ..key.options("one", Role::Coordinator) };
    let coordinator = cluster.start(options).await;
    leads(&coordinator).await;
    let (reader, admin) = (key.client(Role::Reader, &coordinator), key.client(Role::Admin, &coordinator));

    assert_eq!(status(reader.add_mount(&s3()).await), 403);
    let refused = record.only().await;
    let why = "refused: a reader may not administer, which this asks for";
    assert_eq!(refused.told(), (Some("reader/one"), "POST /api/v1/mounts", why));
    assert!(matches!(refused.peer, AuditPeer::Address(from) if from.ip().is_loopback()), "{refused:?}");
    assert_eq!(refused.subject, Subject::default(), "it is refused unread");
    // What its URL names is told, and nothing else that somebody writes there.
    let of_job = |job: &str| Subject { job: Some(job.to_owned()), ..Subject::default() };
    let of_worker = Subject { worker: Some("w1".to_owned()), ..Subject::default() };
    assert_eq!(status(reader.remove_mount(&path("/s3")).await), 403);
    assert_eq!(record.only().await.subject, Subject::of_path(b"/s3"));
    assert_eq!(status(reader.stop("load-1").await), 403);
    assert_eq!(record.only().await.subject, of_job("load-1"));
    assert_eq!(status(reader.drain("w1").await), 403);
    assert_eq!(record.only().await.subject, of_worker);
    let secret = new_token().unwrap();
    assert_eq!(status(reader.stop(&secret).await), 403);
    assert_eq!(record.only().await.subject, of_job("(masked)"));

    // Of options and their references nothing is told.
    let options = [("s3.secret_access_key".to_owned(), "env:FOREBAY_SECRET".to_owned())].into();
    admin.add_mount(&Mount { options, ..s3() }).await.unwrap();
    let added = record.only().await;
    assert_eq!(added.told(), (Some("admin/one"), "POST /api/v1/mounts", "Allowed"));
    let expected = Subject { origin: Some("s3://bucket".to_owned()), ..Subject::of_path(b"/s3") };
    assert_eq!((&added.subject, added.token), (&expected, None));
    let with_secret = Mount { path: "/other".into(), origin: "s3://id:hush@bucket".into(), ..s3() };
    assert_eq!(status(admin.add_mount(&with_secret).await), 400);
    let malformed = record.only().await;
    assert_eq!((malformed.outcome.as_str(), &malformed.subject), ("Failed(InvalidArgument)", &Subject::default()));

    admin.set_policy(&Policy { path: "/s3/a".into(), pin: Some(true), ..Policy::default() }).await.unwrap();
    assert_eq!(record.only().await.path(), Some("/s3/a"));
    let submitted = admin.submit(&load()).await.unwrap();
    let job = record.only().await;
    assert_eq!((job.told().1, job.path(), job.subject.change), ("POST /api/v1/jobs", Some("/s3"), Some("load")));
    assert_eq!(job.subject.job.as_ref(), Some(&submitted.job.id));
    admin.stop(&submitted.job.id).await.unwrap();
    let stopped = record.only().await;
    let of_job = (stopped.told().1, stopped.path(), stopped.subject.job.as_ref());
    assert_eq!(of_job, ("POST /api/v1/jobs/{id}/stop", Some("/s3"), Some(&submitted.job.id)));
    assert_eq!(status(admin.undrain("hush").await), 404);
    let unknown = record.only().await;
    let operation = "DELETE /api/v1/cluster/drains/{worker}";
    assert_eq!(unknown.told(), (Some("admin/one"), operation, "Failed(NotFound)"));
    assert_eq!(unknown.subject, Subject::default(), "what is not there has no name");
    admin.remove_mount(&path("/s3")).await.unwrap();
    let removed = record.only().await;
    assert_eq!((removed.told().1, &removed.subject), ("DELETE /api/v1/mounts", &expected));

    assert_eq!(status(admin.mounts().await), 200);
    assert_eq!(status(reader.mounts().await), 403);
    assert_eq!(record.only().await.told().1, "GET /api/v1/mounts", "the refused one alone");
    assert_eq!(bare(&coordinator, "GET", "/api/v1/mounts?hush", None).await.0, 400);
    let plain = record.only().await;
    assert_eq!(plain.told(), (None, "connect", "refused: this listener speaks TLS only"));
    coordinator.close().await;
}

#[tokio::test]
async fn reads_are_recorded_where_that_is_wanted_and_counters_and_tokens_never() {
    let (cluster, directory, record) =
        (Cluster::new().await, tempfile::tempdir().unwrap(), Arc::new(Record::default()));
    let (token, socket) = (new_token().unwrap(), directory.path().join("private/rest.sock"));
    let listen = Listen { address: Some(SocketAddr::from(LOOPBACK)), socket: Some(socket.clone()) };
    let mut options = CoordinatorOptions::new("one", listen, "9.9.9");
    options.access = Access::by_token(LiveTokens::only(&token, Role::Admin));
    options.audit = record.auditing(AuditEvents::All);
    let coordinator = cluster.start(options).await;
    let address = coordinator.address().unwrap();
    let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
    let ask = async |page: &str, shown: Option<&str>| {
        let asking = http.get(format!("http://{address}{page}"));
        let asking = shown.into_iter().fold(asking, |asking, shown| asking.bearer_auth(shown));
        asking.send().await.unwrap().status().as_u16()
    };
    let (mistaken, nowhere) = (format!("/api/v1/jobs/{}?token={}", *token, *token), format!("/{}", *token));
    let at_path = format!("/api/v1/jobs?path=/{}", *token);
    for (page, shown, expected) in [
        ("/api/v1/mounts", Some(token.as_str()), (200, Some(Role::Admin), "GET /api/v1/mounts", "Allowed")),
        ("/api/v1/mounts", None, (401, None, "GET /api/v1/mounts", "refused: neither")),
        ("/api/v1/mounts", Some(&token[..63]), (401, None, "GET /api/v1/mounts", "refused: neither")),
        (mistaken.as_str(), None, (401, None, "GET /api/v1/jobs/{id}", "refused: neither")),
        (
            mistaken.as_str(),
            Some(token.as_str()),
            (404, Some(Role::Admin), "GET /api/v1/jobs/{id}", "Failed(NotFound)"),
        ),
        (nowhere.as_str(), None, (401, None, "GET", "refused: neither")),
        (at_path.as_str(), None, (401, None, "GET /api/v1/jobs", "refused: neither")),
    ] {
        let (status, role, operation, outcome) = expected;
        assert_eq!(ask(page, shown).await, status, "{page}");
        let event = record.only().await;
        assert_eq!((event.who.as_deref(), event.token, &*event.operation), (None, role, operation), "{event:?}");
        assert!(event.outcome.starts_with(outcome), "{event:?}");
        assert!(!format!("{event:?}").contains(&token[..16]), "{event:?}");
    }
    // Counters and the page are no events; what a page of another site sends is one.
    assert_eq!((ask("/healthz", Some(token.as_str())).await, ask("/", None).await), (200, 200));
    let posted = http.post(format!("http://{address}/api/v1/jobs")).header("origin", "http://evil.example");
    assert_eq!(posted.bearer_auth(token.as_str()).send().await.unwrap().status(), 403);
    let foreign = record.only().await;
    assert!(foreign.operation == "POST /api/v1/jobs" && foreign.outcome.starts_with("refused: "), "{foreign:?}");

    // Who comes by the socket is known by what the kernel says.
    ApiClient::new(&socket_address(&socket)).unwrap().mounts().await.unwrap();
    let own = record.only().await;
    let (user, process) = (rustix::process::getuid().as_raw(), std::process::id());
    assert_eq!(own.peer, AuditPeer::Process { user: Some(user), process: Some(process) });
    coordinator.close().await;
}

/// The one that is asked knows who asks, and the one that leads knows who passed it on.
#[tokio::test]
async fn a_job_that_is_passed_on_is_recorded_where_it_was_asked_for_and_where_it_runs() {
    let (cluster, key) = (Cluster::new().await, Key::new());
    let records = [(); 2].map(|()| Arc::new(Record::default()));
    let options = |name: &str, record: &Arc<Record>| {
        let audit = record.auditing(AuditEvents::Changes);
        CoordinatorOptions { audit, ..key.options(name, Role::Coordinator) }
    };
    let leader = cluster.start(options("leader", &records[0])).await;
    leads(&leader).await;
    let other = cluster.start(options("other", &records[1])).await;
    let admin = key.client(Role::Admin, &other);
    let submitted = admin.submit(&load()).await.unwrap();
    let [at_leader, at_other] = [records[0].only().await, records[1].only().await];
    let operation = "POST /api/v1/jobs";
    assert_eq!(at_other.told(), (Some("admin/one"), operation, "Allowed"));
    assert_eq!((at_other.path(), at_other.subject.change), (Some("/s3"), Some("load")));
    assert_eq!(at_leader.told(), (Some("coordinator/one"), operation, "Allowed"));
    assert_eq!((at_leader.path(), at_leader.subject.job.as_ref()), (Some("/s3"), Some(&submitted.job.id)));
    admin.stop(&submitted.job.id).await.unwrap();
    let [at_leader, at_other] = [records[0].only().await, records[1].only().await];
    for stopped in [&at_leader, &at_other] {
        assert_eq!(stopped.subject.job.as_ref(), Some(&submitted.job.id), "{stopped:?}");
    }
    leader.close().await;
    other.close().await;
}
