//! What a server tells whoever keeps a record of what is asked of it.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::identities::{Cluster, server_security};
use common::{LONG, assert_serves, call, client_options, link, serve, server_options};
use forebay_identity::{Audit, AuditEvent, AuditOutcome, Auditing};
use forebay_locks::Mutex;
use forebay_tcp::{ServerOptions, TcpSecurity, TcpServer};
use forebay_transport::conformance::{Scripted, until};
use forebay_transport::message::{Change, UploadRequest};
use forebay_transport::{Op, Request, Response, Service};
use forebay_types::{AuditEvents, Failure, FailureKind, Role};

/// An event, for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Recorded {
    identity: Option<String>,
    operation: String,
    path: Option<Vec<u8>>,
    outcome: String,
}

#[derive(Debug, Default)]
struct Record(Mutex<Vec<Recorded>>);

impl Audit for Record {
    fn record(&self, event: &AuditEvent<'_>) {
        self.0.lock().push(Recorded {
            identity: event.identity.map(ToString::to_string),
            operation: event.operation.to_owned(),
            path: event.subject.path.clone(),
            outcome: match event.outcome {
                AuditOutcome::Refused(why) => why.to_owned(),
                outcome => format!("{outcome:?}"),
            },
        });
    }
}

impl Record {
    /// A worker that is recorded here, whose clients have to prove who they are.
    fn worker(self: &Arc<Self>, cluster: &Cluster, events: AuditEvents) -> TcpServer {
        let security = Some(server_security(&cluster.live(Role::Worker, "node1"), TcpSecurity::Encrypt));
        let audit = Some(self.auditing(events));
        serve(ServerOptions { security, audit, ..server_options() }, Scripted::new())
    }

    fn auditing(self: &Arc<Self>, events: AuditEvents) -> Auditing {
        Auditing { events, audit: Arc::clone(self) as Arc<dyn Audit> }
    }

    fn of(&self, operation: &str) -> Vec<Recorded> {
        self.0.lock().iter().filter(|recorded| recorded.operation == operation).cloned().collect()
    }
}

fn remove(path: &str) -> Request {
    Request::on_path(Op::Change, Change::Remove { path: path.into() }.encode(), LONG)
}

fn upload(path: &str, length: usize) -> Request {
    let upload = UploadRequest { path: path.into(), part: None, only_new: false, bytes: Bytes::from(vec![7; length]) };
    upload.request(LONG)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_readers_refused_change_is_one_event_with_its_identity() {
    let (cluster, record) = (Cluster::new(), Arc::new(Record::default()));
    let server = record.worker(&cluster, AuditEvents::Changes);
    let reader = cluster.link(&server, Role::Reader);
    assert!(call(&reader, remove("/secret")).await.is_err());
    let identity = Some("spiffe://example.org/forebay/prod/reader/team-a".to_owned());
    let outcome =
        "a reader may not write, which `change` asks for; `forebay key issue --role` makes a certificate for \
                   another role"
            .to_owned();
    let path = Some(b"/secret".to_vec());
    let expected = Recorded { identity: identity.clone(), operation: "change".to_owned(), path, outcome };
    assert_eq!(record.of("change"), [expected]);
    let connected = record.of("connect");
    assert!(!connected.is_empty());
    assert!(connected.iter().all(|it| it.identity == identity && it.outcome == "Allowed"), "{connected:?}");

    // What is refused unread has no path; and reads are no events.
    assert!(call(&reader, upload("/secret", 1 << 20)).await.is_err());
    let uploads = record.of("upload");
    assert_eq!((uploads.len(), &uploads[0].identity, &uploads[0].path), (1, &identity, &None));
    assert_serves(&reader).await;
    assert!(call(&reader, Request::on_path(Op::Stat, Bytes::from_static(b"/a"), LONG)).await.is_ok());
    assert!(record.of("read").is_empty() && record.of("stat").is_empty());
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_permitted_is_recorded_as_far_as_that_is_wanted() {
    let (cluster, record) = (Cluster::new(), Arc::new(Record::default()));
    let server = record.worker(&cluster, AuditEvents::All);
    let writer = cluster.link(&server, Role::Writer);
    assert!(call(&writer, upload("/large", 1 << 20)).await.is_ok());
    assert!(call(&writer, Request::on_path(Op::Stat, Bytes::from_static(b"/a"), LONG)).await.is_ok());
    assert_serves(&writer).await;
    let identity = Some("spiffe://example.org/forebay/prod/writer/team-a".to_owned());
    for (operation, path) in [("upload", "/large"), ("stat", "/a")] {
        let (operation, path, outcome) = (operation.to_owned(), Some(path.into()), "Allowed".to_owned());
        assert_eq!(record.of(&operation), [Recorded { identity: identity.clone(), operation, path, outcome }]);
    }
    assert!(record.of("read").is_empty());
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_proves_nothing_is_recorded_with_the_reason() {
    let (cluster, record) = (Cluster::new(), Arc::new(Record::default()));
    let server = record.worker(&cluster, AuditEvents::Changes);
    assert!(call(&link(server.local_addr(), client_options()), remove("/secret")).await.is_err());
    until("it is recorded", || !record.of("connect").is_empty()).await;
    let connected = record.of("connect");
    assert!(connected.iter().all(|it| it.identity.is_none() && it.outcome != "Allowed"), "{connected:?}");
    assert!(record.of("change").is_empty());
    server.close().await;
}

/// Fails to remove `/fails`, and never comes to an end with anything else, which it counts.
#[derive(Default)]
struct Stuck(AtomicUsize);

#[async_trait::async_trait]
impl Service for Stuck {
    async fn handle(&self, request: Request, _takes_files: bool) -> Result<Response, Failure> {
        if Change::decode(&request.body) == Ok(Change::Remove { path: b"/fails".to_vec() }) {
            return Err(Failure::new(FailureKind::ReadOnly, "the mount takes no writes"));
        }
        self.0.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    }
}

/// Nobody gets around the record by leaving in the middle of a change.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_fails_or_is_left_unanswered_is_recorded() {
    let record = Arc::new(Record::default());
    let audit = Some(record.auditing(AuditEvents::Changes));
    let service = Arc::new(Stuck::default());
    let server = serve(ServerOptions { audit, ..server_options() }, Arc::clone(&service) as Arc<dyn Service>);
    let client = link(server.local_addr(), client_options());
    assert!(call(&client, remove("/fails")).await.is_err());
    let of = |path: &str, outcome: &str| {
        let (path, outcome) = (Some(path.into()), outcome.to_owned());
        Recorded { identity: None, operation: "change".to_owned(), path, outcome }
    };
    assert_eq!(record.of("change"), [of("/fails", "Failed(ReadOnly)")]);

    let left = Request { deadline: Duration::from_millis(200), ..remove("/left") };
    assert!(call(&client, left).await.is_err());
    until("it is recorded", || record.of("change").len() == 2).await;
    assert_eq!(record.of("change")[1], of("/left", "Failed(TimedOut)"));

    let broken = {
        let client = Arc::clone(&client);
        tokio::spawn(async move { call(&client, remove("/broken")).await })
    };
    until("the request is there", || service.0.load(Ordering::SeqCst) == 2).await;
    server.close().await;
    assert!(broken.await.unwrap().is_err());
    assert_eq!(record.of("change")[2..], [of("/broken", "Unanswered")]);
}
