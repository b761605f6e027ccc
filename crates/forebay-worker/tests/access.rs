//! Attacks on what is cached: by path and by known file id, by those whom no list names, after restarts and after
//! mounts were removed or their lists changed.

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::*;
use forebay_origin::{FakeOrigin, FileOrigin, Origin, OriginOptions};
use forebay_transport::message::{Change, CoverageReply, ListRequest, UploadRequest};
use forebay_transport::{Caller, Flags, Op, Request, Response, Service};
use forebay_types::{AccessList, Failure, FailureKind, FileVersion, Role};
use forebay_worker::{Namespace, Worker};

const BYTES: u32 = 100_000;

/// Two tenants, each with a file of its own.
struct Tenants {
    a: Arc<FakeOrigin>,
    b: Arc<FakeOrigin>,
    of_a: FileVersion,
    of_b: FileVersion,
}

impl Tenants {
    fn new() -> Self {
        let (a, b) = (Arc::new(FakeOrigin::new("fake://a")), Arc::new(FakeOrigin::new("fake://b")));
        let put = |origin: &FakeOrigin, seed| origin.put("file", pattern(BYTES as usize, seed));
        let (of_a, of_b) = (put(&a, 1), put(&b, 2));
        Self { a, b, of_a, of_b }
    }

    /// Both mounts, each for the readers and for the writers of these lists.
    fn listed(&self, of_a: [&[&str]; 2], of_b: [&[&str]; 2]) -> Namespace {
        let list = |[read, write]: [&[&str]; 2]| AccessList::new(read, write).unwrap();
        self.open().with_access([(path("/a"), list(of_a)), (path("/b"), list(of_b))])
    }

    /// Each mount for the readers of one team.
    fn apart(&self) -> Namespace {
        self.listed([&["team-a"], &[]], [&["team-b"], &[]])
    }

    fn open(&self) -> Namespace {
        namespace(&[("/a", &self.a), ("/b", &self.b)])
    }

    /// A worker that shows them so.
    async fn worker(&self, disk: Option<&std::path::Path>, namespace: Namespace) -> Arc<Worker> {
        let worker = worker_of(store(64, disk).await, &self.a);
        worker.set_namespace(namespace).await;
        worker
    }
}

fn proved(role: Role, name: &str) -> Caller {
    Caller::proved(role, name, &format!("spiffe://example.org/forebay/prod/{role}/{name}"))
}

fn reader(name: &str) -> Caller {
    proved(Role::Reader, name)
}

/// A request for all of a file by its id alone.
fn by_id(op: Op, version: &FileVersion, caller: &Caller) -> Request {
    Request::on_block(op, block(version, 0), 0, BYTES, 10 * SECOND).by(caller.clone())
}

fn described(op: Op, version: &FileVersion, caller: &Caller) -> Request {
    by_id(op, version, caller).with_body(version.encode().into())
}

fn cached_of(version: &FileVersion, caller: &Caller) -> Request {
    cached(block(version, 0), 0, BYTES).by(caller.clone())
}

fn kind(answer: Result<Response, Failure>) -> FailureKind {
    match answer {
        Ok(response) => panic!("it was answered: {response:?}"),
        Err(failure) => failure.kind(),
    }
}

/// What a caller gets who asks for a file's bytes in each way that there is.
async fn refusals(worker: &Worker, version: &FileVersion, caller: &Caller) -> [FailureKind; 4] {
    let refusals = [
        kind(ask(worker, by_id(Op::Read, version, caller)).await),
        kind(ask(worker, described(Op::Read, version, caller)).await),
        kind(ask(worker, described(Op::Fill, version, caller)).await),
        kind(ask(worker, cached_of(version, caller)).await),
    ];
    let part = Request { offset: 1, ..described(Op::Part, version, caller) };
    assert_eq!(kind(ask(worker, part).await), refusals[2], "nor is it told where its parts begin");
    refusals
}

async fn assert_reads(worker: &Worker, version: &FileVersion, seed: u8, caller: &Caller) {
    let read = ask(worker, described(Op::Read, version, caller)).await.unwrap();
    assert!(bytes_of(&read) == pattern(BYTES as usize, seed), "{caller}");
    let hit = worker.try_handle(&by_id(Op::Read, version, caller)).expect("a hit");
    assert!(bytes_of(&hit) == pattern(BYTES as usize, seed), "{caller}");
}

async fn end(worker: Arc<Worker>) {
    worker.store().flush().await;
    worker.close().await;
    let Ok(worker) = Arc::try_unwrap(worker) else { panic!("the worker is in use") };
    let store = worker.store().clone();
    drop(worker);
    store.close().await;
}

const DENIED: [FailureKind; 4] = {
    use FailureKind::{NotCached, PermissionDenied};
    [PermissionDenied, PermissionDenied, PermissionDenied, NotCached]
};
const UNKNOWN: [FailureKind; 4] = {
    use FailureKind::{NeedsDescription, NotCached, PermissionDenied};
    [NeedsDescription, PermissionDenied, PermissionDenied, NotCached]
};
const REMOVED: [FailureKind; 4] = {
    use FailureKind::{NotCached, Unavailable};
    [Unavailable, Unavailable, Unavailable, NotCached]
};

#[tokio::test]
async fn a_reader_of_one_mount_reads_the_other_neither_by_path_nor_by_file_id() {
    let tenants = Tenants::new();
    let worker = tenants.worker(None, tenants.apart()).await;
    let (ours, theirs) = (reader("team-a"), reader("team-b"));
    // Not cached yet.
    assert_eq!(refusals(&worker, &tenants.of_b, &ours).await, UNKNOWN);
    assert_eq!(tenants.b.counts().gets, 0, "nothing was fetched for it");
    assert_reads(&worker, &tenants.of_b, 2, &theirs).await;
    assert_reads(&worker, &tenants.of_a, 1, &ours).await;
    for outsider in [&ours, &reader("team-bb"), &proved(Role::Writer, "team-a"), &Caller::Unproved] {
        assert!(worker.try_handle(&by_id(Op::Read, &tenants.of_b, outsider)).is_none(), "{outsider}");
        assert_eq!(refusals(&worker, &tenants.of_b, outsider).await, DENIED, "{outsider}");
        assert_eq!(kind(ask(&worker, by_id(Op::Coverage, &tenants.of_b, outsider)).await), DENIED[0], "{outsider}");
        let list = ListRequest { path: b"/b".to_vec(), token: None, max: 10 }.encode();
        let file = Bytes::from_static(b"/b/file");
        for (op, body) in [(Op::Stat, &file), (Op::StatRead, &file), (Op::List, &list)] {
            // What others have asked for is remembered, and for them alone.
            let asked = |caller: &Caller| Request::on_path(op, body.clone(), SECOND).by(caller.clone());
            ask(&worker, asked(&theirs)).await.unwrap();
            assert_eq!(kind(ask(&worker, asked(outsider)).await), DENIED[0], "{op:?} {outsider}");
        }
    }
    assert_eq!(tenants.b.counts().gets, 1);
    let refused = ask(&worker, described(Op::Read, &tenants.of_b, &ours)).await.unwrap_err();
    let (who, remedy) =
        ("`spiffe://example.org/forebay/prod/reader/team-a`", "; an admin gives the mount a list that does");
    assert!(refused.message().starts_with(who) && refused.message().contains(remedy), "{refused}");
    for insider in [proved(Role::Admin, "x"), proved(Role::Worker, "x"), proved(Role::Coordinator, "x"), Caller::Local]
    {
        assert_reads(&worker, &tenants.of_b, 2, &insider).await;
    }
    assert!(worker.try_read(&block(&tenants.of_b, 0), 0, BYTES).is_some());
    worker.close().await;
}

#[tokio::test]
async fn what_a_restart_found_is_shown_to_nobody_before_it_is_known_whose_it_is() {
    let (tenants, disk) = (Tenants::new(), tempfile::tempdir().unwrap());
    let (ours, theirs, peer) = (reader("team-a"), reader("team-b"), proved(Role::Worker, "node2"));
    let before = tenants.worker(Some(disk.path()), tenants.apart()).await;
    assert_reads(&before, &tenants.of_b, 2, &theirs).await;
    end(before).await;

    let again = tenants.worker(Some(disk.path()), tenants.apart()).await;
    assert_eq!(refusals(&again, &tenants.of_b, &ours).await, UNKNOWN);
    end(again).await;
    let again = tenants.worker(Some(disk.path()), tenants.apart()).await;
    for asked in [&ours, &theirs, &proved(Role::Admin, "x")] {
        assert_eq!(kind(ask(&again, by_id(Op::Read, &tenants.of_b, asked)).await), UNKNOWN[0], "{asked}");
        assert_eq!(kind(ask(&again, cached_of(&tenants.of_b, asked)).await), FailureKind::NotCached, "{asked}");
    }
    assert!(!again.holds(&block(&tenants.of_b, 0), 0, BYTES));
    // Who may not read it does not learn that it is there either.
    let coverage = ask(&again, by_id(Op::Coverage, &tenants.of_b, &ours)).await.unwrap();
    assert_eq!(CoverageReply::decode(&coverage.body), Ok(CoverageReply::default()));
    // Another worker takes it over, and asks in its turn.
    assert_eq!(bytes_of(&ask(&again, cached_of(&tenants.of_b, &peer)).await.unwrap()).len(), BYTES as usize);
    assert_eq!(kind(ask(&again, by_id(Op::Read, &tenants.of_b, &peer)).await), UNKNOWN[0]);
    assert_reads(&again, &tenants.of_b, 2, &theirs).await;
    assert_eq!(refusals(&again, &tenants.of_b, &ours).await, DENIED);
    assert_eq!(tenants.b.counts().gets, 1, "it was cached all the time");
    end(again).await;
}

#[tokio::test]
async fn what_is_cached_of_a_mount_that_was_removed_is_nobodys() {
    let (tenants, disk) = (Tenants::new(), tempfile::tempdir().unwrap());
    let everybody =
        [Caller::Unproved, Caller::Local, reader("team-b"), proved(Role::Worker, "x"), proved(Role::Admin, "x")];
    // Without any list, and without any proof.
    let worker = tenants.worker(Some(disk.path()), tenants.open()).await;
    for caller in &everybody {
        assert_reads(&worker, &tenants.of_b, 2, caller).await;
    }
    let without = || namespace(&[("/a", &tenants.a)]);
    worker.set_namespace(without()).await;
    for caller in &everybody {
        assert!(worker.try_handle(&by_id(Op::Read, &tenants.of_b, caller)).is_none(), "{caller}");
        assert_eq!(refusals(&worker, &tenants.of_b, caller).await, REMOVED, "{caller}");
    }
    let key = block(&tenants.of_b, 0);
    assert!(worker.try_read(&key, 0, BYTES).is_none() && !worker.holds(&key, 0, BYTES));
    assert!(!worker.try_look(&key, 0, BYTES, &mut |_| panic!("it is shown")));
    // What another origin shows in its place is not taken for it.
    worker.set_namespace(namespace(&[("/b", &tenants.a)])).await;
    assert_eq!(refusals(&worker, &tenants.of_b, &Caller::Unproved).await, REMOVED);
    worker.set_namespace(tenants.open()).await;
    assert_reads(&worker, &tenants.of_b, 2, &Caller::Unproved).await;
    assert_eq!(tenants.b.counts().gets, 1);
    end(worker).await;

    // It was removed while the worker was away.
    let again = tenants.worker(Some(disk.path()), without().guarded()).await;
    for caller in &everybody {
        let asked = kind(ask(&again, by_id(Op::Read, &tenants.of_b, caller)).await);
        assert_eq!(asked, FailureKind::NeedsDescription, "{caller}");
    }
    let learned = kind(ask(&again, described(Op::Read, &tenants.of_b, &Caller::Unproved)).await);
    assert_eq!(learned, FailureKind::Unavailable);
    for caller in &everybody {
        assert_eq!(refusals(&again, &tenants.of_b, caller).await, REMOVED, "{caller}");
    }
    end(again).await;
}

#[tokio::test]
async fn a_list_that_changes_holds_for_the_next_hit_of_a_connection_that_is_open() {
    let tenants = Tenants::new();
    let worker = tenants.worker(None, tenants.open()).await;
    let caller = reader("team-a");
    let hit = |caller: &Caller| worker.try_handle(&by_id(Op::Read, &tenants.of_b, caller)).is_some();
    assert_reads(&worker, &tenants.of_b, 2, &caller).await;
    worker.set_namespace(tenants.apart()).await;
    assert!(!hit(&caller));
    assert_eq!(refusals(&worker, &tenants.of_b, &caller).await, DENIED);
    worker.set_namespace(tenants.listed([&[], &[]], [&["team-*"], &[]])).await;
    assert!(hit(&caller) && !hit(&Caller::Unproved));
    worker.set_namespace(tenants.listed([&[], &[]], [&[], &["team-a"]])).await;
    assert!(hit(&caller), "who may write may read");
    worker.set_namespace(tenants.listed([&["*"], &["*"]], [&[], &[]])).await;
    assert!(!hit(&caller));
    worker.set_namespace(tenants.open()).await;
    assert!(hit(&caller) && hit(&Caller::Unproved));
    worker.close().await;
}

#[tokio::test]
async fn only_the_writers_of_a_mount_change_it() {
    let tenants = Tenants::new();
    let worker = tenants.worker(None, tenants.listed([&["team-*"], &["team-a"]], [&[], &["team-b"]])).await;
    let (writes_a, writes_b) = (proved(Role::Writer, "team-a"), proved(Role::Writer, "team-b"));
    let change = |change: Change, caller: &Caller| {
        let request = Request::on_path(Op::Change, change.encode(), SECOND).by(caller.clone());
        ask(&worker, request)
    };
    let changes = |at: &str| {
        let path = |name: &str| format!("{at}/{name}").into_bytes();
        [
            Change::Remove { path: path("file") },
            Change::MakeDirectory { path: path("made") },
            Change::RemoveDirectory { path: path("made") },
            Change::Copy { from: b"/a/file".to_vec(), to: path("copy") },
            Change::Begin { path: path("large") },
            Change::Complete { path: path("large"), upload: "u".into(), size: 1, parts: vec!["t".into()] },
            Change::Abort { path: path("large"), upload: "u".into() },
            Change::Parts { path: path("large"), upload: "u".into(), after: 0, max: 10 },
            Change::Uploads { path: at.into(), prefix: Vec::new(), after: None, max: 10 },
        ]
    };
    let upload = |at: &str, caller: &Caller| {
        let upload =
            UploadRequest { path: at.into(), part: None, only_new: false, bytes: b"planted".as_slice().into() };
        upload.request(SECOND).by(caller.clone())
    };
    for (at, outsider) in [("/a", &writes_b), ("/b", &writes_a), ("/b", &Caller::Unproved)] {
        for wanted in changes(at) {
            let asked = format!("{wanted:?}");
            assert_eq!(kind(change(wanted, outsider).await), FailureKind::PermissionDenied, "{outsider} {asked}");
        }
        let planted = upload(&format!("{at}/planted"), outsider);
        assert_eq!(kind(ask(&worker, planted).await), FailureKind::PermissionDenied, "{outsider}");
    }
    // Nor is what somebody may not read copied to where it may be read.
    let out = Change::Copy { from: b"/b/file".to_vec(), to: b"/a/copy".to_vec() };
    assert_eq!(kind(change(out, &writes_a).await), FailureKind::PermissionDenied);
    for origin in [&tenants.a, &tenants.b] {
        assert!(origin.version("file").is_some() && origin.version("planted").is_none());
        assert!(origin.version("copy").is_none() && origin.uploads().is_empty());
    }
    ask(&worker, upload("/a/ours", &writes_a)).await.unwrap();
    change(Change::Remove { path: b"/b/file".to_vec() }, &writes_b).await.unwrap();
    change(Change::Remove { path: b"/a/file".to_vec() }, &proved(Role::Admin, "x")).await.unwrap();
    assert!(tenants.a.version("ours").is_some() && tenants.b.version("file").is_none());
    worker.close().await;
}

/// What `df` of a mount shows.
#[tokio::test]
async fn a_client_is_told_the_room_of_the_mounts_that_it_may_read_and_no_counter() {
    let (tenants, directory) = (Tenants::new(), tempfile::tempdir().unwrap());
    let room = FileOrigin::new("file:///d", directory.path(), &OriginOptions::default()).unwrap();
    let mounts = [
        (path("/a"), Arc::clone(&tenants.a) as Arc<dyn Origin>),
        (path("/b"), Arc::clone(&tenants.b) as Arc<dyn Origin>),
        (path("/d"), Arc::new(room) as Arc<dyn Origin>),
    ];
    let list = |reader: &str| AccessList::new(&[reader], &[]).unwrap();
    let lists = [(path("/b"), list("team-b")), (path("/d"), list("team-*"))];
    let worker = tenants.worker(None, Namespace::new(mounts).unwrap().with_access(lists)).await;
    let told = async |caller: &Caller| {
        let request = Request::on_path(Op::Stats, Bytes::new(), 10 * SECOND).with_flags(Flags::BELOW);
        let body = ask(&worker, request.by(caller.clone())).await.unwrap().body;
        let told: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(told.as_object().unwrap().keys().collect::<Vec<_>>(), ["origins"], "{told}");
        let origins = told["origins"].as_array().unwrap().clone();
        assert!(origins.iter().all(|origin| origin.as_object().unwrap().len() == 2), "{told}");
        origins
    };
    let admin = proved(Role::Admin, "root");
    let seen: [(&Caller, &[&str]); 4] = [
        (&reader("team-a"), &["/a", "/d"]),
        (&proved(Role::Writer, "team-b"), &["/a", "/b", "/d"]),
        (&reader("other"), &["/a"]),
        (&admin, &["/a", "/b", "/d"]),
    ];
    for (caller, paths) in seen {
        let origins = told(caller).await;
        let told: Vec<_> = origins.iter().map(|origin| origin["path"].as_str().unwrap()).collect();
        assert_eq!(told, paths, "{caller}");
    }
    // A busy machine may look at a file system for longer than it is waited for.
    let deadline = std::time::Instant::now() + 60 * SECOND;
    loop {
        let origins = told(&reader("team-a")).await;
        assert!(origins[0]["room"].is_null(), "an object store has none: {origins:?}");
        if origins[1]["room"]["total"].as_u64().is_some_and(|total| total > 0) {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{origins:?}");
        tokio::time::sleep(SECOND / 100).await;
    }
    worker.close().await;
}
