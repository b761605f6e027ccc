//! What a server over UCX tells whoever keeps a record of what is asked of it: what one over TCP tells, of who showed which pass.

mod common;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use common::admission::{Admitting, HOUR, somebody, worker_of};
use common::raw::{Raw, by_hand, send};
use common::*;
use forebay_identity::testing::Cluster;
use forebay_identity::{Audit, AuditEvent, AuditOutcome, AuditPeer, Auditing, LiveIdentity, Pass, Passes, Peer};
use forebay_locks::Mutex;
use forebay_rdma::{
    ClientOptions, ClientSecurity, IoThread, Library, RdmaServer, RdmaTransport, ServerOptions, ServerSecurity, wire,
};
use forebay_transport::conformance::{Scripted, until};
use forebay_transport::message::{Change, FreeRequest, ListRequest};
use forebay_transport::{Op, Request, Response, Service, Transport as _};
use forebay_types::{AuditEvents, Failure, FailureKind, FileId, Role};
use forebay_ucx::{Endpoint, Payload as Sent};

const ID: NonZeroU64 = NonZeroU64::new(0x1d).unwrap();
const TEAM_A: &str = "spiffe://example.org/forebay/prod/reader/team-a";

/// An event, for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Recorded {
    identity: Option<String>,
    operation: String,
    path: Option<String>,
    files: usize,
    outcome: String,
}

#[derive(Debug, Default)]
struct Record(Mutex<Vec<Recorded>>);

impl Audit for Record {
    fn record(&self, event: &AuditEvent<'_>) {
        assert!(matches!(event.peer, AuditPeer::Address(_)), "{event:?}");
        self.0.lock().push(Recorded {
            identity: event.identity.map(ToString::to_string),
            operation: event.operation.to_owned(),
            path: event.subject.path.as_deref().map(|path| String::from_utf8_lossy(path).into_owned()),
            files: event.subject.files.len(),
            outcome: match event.outcome {
                AuditOutcome::Refused(why) => why.to_owned(),
                outcome => format!("{outcome:?}"),
            },
        });
    }
}

impl Record {
    fn of(&self, operation: &str) -> Vec<Recorded> {
        self.0.lock().iter().filter(|recorded| recorded.operation == operation).cloned().collect()
    }

    /// Waits for `count` events of this operation.
    async fn wait(&self, operation: &str, count: usize) -> Vec<Recorded> {
        until("it is recorded", || self.of(operation).len() >= count).await;
        self.of(operation)
    }
}

/// `operation` of a reader on `path`.
fn recorded(operation: &str, path: Option<&str>, outcome: &str) -> Recorded {
    let (operation, outcome) = (operation.to_owned(), outcome.to_owned());
    Recorded { identity: Some(TEAM_A.to_owned()), operation, path: path.map(str::to_owned), files: 0, outcome }
}

/// Knows `/here` at once, has no `/gone`, and is asked about `/never` in vain.
struct Names(Arc<Scripted>);

#[async_trait::async_trait]
impl Service for Names {
    fn try_handle(&self, request: &Request) -> Option<Response> {
        match request.op {
            Op::Stat if request.body == "/here" => Some(Response::of_body(Bytes::new())),
            _ => self.0.try_handle(request),
        }
    }

    async fn handle(&self, request: Request, takes_files: bool) -> Result<Response, Failure> {
        match request.op {
            Op::Stat if request.body == "/gone" => Err(Failure::new(FailureKind::NotFound, "there is no `/gone`")),
            Op::Stat if request.body == "/never" => std::future::pending().await,
            _ => self.0.handle(request, takes_files).await,
        }
    }
}

/// A server that is recorded.
struct Scene {
    library: &'static Library,
    cluster: Cluster,
    live: Arc<LiveIdentity>,
    passes: Arc<Mutex<Passes>>,
    record: Arc<Record>,
    server: RdmaServer,
}

impl Scene {
    /// Its clients have to be admitted.
    async fn new(events: AuditEvents) -> Option<Self> {
        Self::accepting_plain(events, false).await
    }

    async fn accepting_plain(events: AuditEvents, accepts_plain: bool) -> Option<Self> {
        let library = library()?;
        let cluster = Cluster::new();
        let (live, passes) = (LiveIdentity::new(worker_of(&cluster, None)), Arc::<Mutex<Passes>>::default());
        let record = Arc::new(Record::default());
        let security = ServerSecurity { live: Arc::clone(&live), passes: Arc::clone(&passes), accepts_plain };
        let audit = Auditing { events, audit: Arc::clone(&record) as Arc<dyn Audit> };
        let defaults = ServerOptions::new(address(0), CLUSTER, BLOCK_SIZE);
        let options = ServerOptions { security: Some(security), audit: Some(audit), ..defaults };
        let io_thread = io_thread_of(library, "server", pool(64));
        let server = RdmaServer::bind(io_thread, options, Arc::new(Names(Scripted::new()))).await.unwrap();
        Some(Self { library, cluster, live, passes, record, server })
    }

    /// A client that is admitted as somebody of this role.
    fn link(&self, role: Role) -> (Arc<IoThread>, Arc<RdmaTransport>) {
        let security = Some(ClientSecurity::over(Admitting::new(&self.passes, role, [HOUR; 2])));
        link_with(self.library, self.server.local_addr(), ClientOptions { security, ..client_options() })
    }

    /// As the worker does over TCP.
    fn admit(&self, peer: Peer) -> Pass {
        let pass = Pass::random().unwrap();
        self.passes.lock().issue(ID.get(), pass, peer, Instant::now()).unwrap();
        pass
    }

    fn raw(&self) -> Raw {
        Raw::with_client_id(self.library, &[wire::WELCOME, wire::REPLY], Some(ID))
    }
}

fn stat(path: &'static str) -> Request {
    Request::on_path(Op::Stat, Bytes::from_static(path.as_bytes()), LONG)
}

#[test]
fn lookups_over_rdma_are_recorded_with_the_identity_of_the_pass() {
    by_hand(async {
        let Some(scene) = Scene::new(AuditEvents::All).await else { return };
        let (_io_thread, link) = scene.link(Role::Reader);
        assert!(call(&link, stat("/here")).await.is_ok());
        assert!(call(&link, stat("/gone")).await.is_err());
        let list = ListRequest { path: b"/here".to_vec(), token: None, max: 10 };
        assert!(call(&link, Request::on_path(Op::List, list.encode(), LONG)).await.is_ok());
        assert_serves(&link).await;
        let stats = [recorded("stat", Some("/here"), "Allowed"), recorded("stat", Some("/gone"), "Failed(NotFound)")];
        assert_eq!(scene.record.wait("stat", 2).await, stats);
        assert_eq!(scene.record.wait("list", 1).await, [recorded("list", Some("/here"), "Allowed")]);
        let connected = scene.record.of("connect");
        assert!(!connected.is_empty() && connected.iter().all(|it| *it == recorded("connect", None, "Allowed")));
        assert!(scene.record.of("read").is_empty(), "blocks are read unrecorded");
        link.close().await;
        scene.server.close().await;
    });
}

#[test]
fn lookups_over_rdma_are_recorded_only_where_that_is_wanted_and_refusals_always() {
    by_hand(async {
        let Some(scene) = Scene::new(AuditEvents::Changes).await else { return };
        let (_io_thread, reader) = scene.link(Role::Reader);
        assert!(call(&reader, stat("/here")).await.is_ok());
        let removed = Change::Remove { path: b"/secret".to_vec() }.encode();
        assert!(call(&reader, Request::on_path(Op::Change, removed, LONG)).await.is_err());
        let changes = scene.record.wait("change", 1).await;
        assert_eq!((&changes[0].identity, changes[0].path.as_deref()), (&Some(TEAM_A.to_owned()), Some("/secret")));
        assert!(changes[0].outcome.starts_with("a reader may not write"), "{changes:?}");

        // Whose role may free may not do so here.
        let (_its_io_thread, admin) = scene.link(Role::Admin);
        let files = [1, 2, 3].map(|number| (FileId([number; 16]), 1)).to_vec();
        let free = FreeRequest { files, below: Some(b"/all".to_vec()) };
        assert!(call(&admin, Request::on_path(Op::Free, free.encode(), LONG)).await.is_err());
        let freed = scene.record.wait("free", 1).await;
        assert_eq!((freed[0].files, freed[0].path.as_deref()), (3, Some("/all")));
        assert!(freed[0].outcome.contains("nobody may ask for `free` over RDMA"), "{freed:?}");
        assert!(freed[0].identity.as_deref().is_some_and(|identity| identity.ends_with("/admin/team-a")), "{freed:?}");
        assert!(scene.record.of("stat").is_empty());
        reader.close().await;
        admin.close().await;
        scene.server.close().await;
    });
}

/// Nobody gets around the record by leaving before the answer.
#[test]
fn a_lookup_that_nobody_waits_for_is_recorded() {
    by_hand(async {
        let Some(scene) = Scene::new(AuditEvents::All).await else { return };
        let (_io_thread, link) = scene.link(Role::Reader);
        let asking = tokio::task::spawn_local({
            let link = Arc::clone(&link);
            async move { call(&link, stat("/never")).await }
        });
        until("the request is there", || scene.server.stats().requests >= 1).await;
        link.close().await;
        assert!(asking.await.unwrap().is_err());
        assert_eq!(scene.record.wait("stat", 1).await, [recorded("stat", Some("/never"), "Unanswered")]);
        scene.server.close().await;
    });
}

#[test]
fn who_has_to_prove_nothing_is_recorded_without_a_name() {
    by_hand(async {
        let Some(scene) = Scene::accepting_plain(AuditEvents::All, true).await else { return };
        let (_io_thread, link) = link(scene.library, scene.server.local_addr());
        assert!(call(&link, stat("/here")).await.is_ok());
        let expected = Recorded { identity: None, ..recorded("stat", Some("/here"), "Allowed") };
        assert_eq!(scene.record.wait("stat", 1).await, [expected]);
        link.close().await;
        scene.server.close().await;
    });
}

#[test]
fn who_is_turned_away_is_recorded_by_its_name_if_it_showed_a_pass() {
    by_hand(async {
        let Some(scene) = Scene::new(AuditEvents::Changes).await else { return };
        let raw = scene.raw();
        let say_hello = |endpoint: &Endpoint, tag: u64| {
            send(endpoint, wire::HELLO, &wire::hello_with(&ours(), raw.version(), tag), Sent::None);
        };
        // Nobody admitted it.
        let endpoint = raw.worker.connect_with_id(scene.server.local_addr(), None).unwrap();
        say_hello(&endpoint, 0);
        let refused = scene.record.wait("connect", 1).await;
        assert!(refused[0].identity.is_none() && refused[0].outcome.contains("was admitted over TCP"), "{refused:?}");
        endpoint.close(true).await;

        // It was admitted, and is denied before it comes.
        let reader = somebody(Role::Reader, HOUR);
        let pass = scene.admit(reader.clone());
        scene.live.replace(worker_of(&scene.cluster, Some(reader.identity)));
        let endpoint = raw.worker.connect_with_id(scene.server.local_addr(), None).unwrap();
        say_hello(&endpoint, pass.client);
        let denied = || scene.record.of("connect").into_iter().find(|it| it.identity.as_deref() == Some(TEAM_A));
        until("it is recorded", || denied().is_some()).await;
        assert!(denied().unwrap().outcome.contains("is denied"), "{:?}", scene.record);
        endpoint.close(true).await;
        scene.server.close().await;
    });
}
