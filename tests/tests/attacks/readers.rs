//! A reader whose own program asks a worker for what it may not have: to change, free or plant bytes, over TCP and over
//! UCX; and a reader whom another worker has admitted to UCX, or none.

use forebay_e2e::{Bucket, Client, LISTENS_OVER_UCX, Setup, Tree, Worker, eventually, has_ucx};
use forebay_transport::message::{AdoptRequest, Change, FreeRequest, StatReply, UploadRequest};
use forebay_transport::{CallError, Flags, Op, Request};
use forebay_types::{BlockKey, FailureKind, FileVersion, MAX_BLOCK_SIZE, Role};

use crate::{Keys, SOON, set};

const LENGTH: u32 = 64 << 10;

/// A worker with a file in its memory, and who has its key.
struct Scene {
    worker: Worker,
    keys: Keys,
    bucket: Bucket,
}

impl Scene {
    fn new(settings: &[&str]) -> Self {
        let (bucket, keys) = (Bucket::new(), Keys::new());
        Tree::of_equal_files(1, u64::from(LENGTH)).put_into(&bucket, "");
        let worker = set(Setup::of(&bucket), &keys.settings()).options(settings).worker(&bucket);
        Self { worker, keys, bucket }
    }

    fn client(&self, role: Role) -> Client {
        self.client_of(&self.worker, role)
    }

    fn client_of(&self, worker: &Worker, role: Role) -> Client {
        Client::new(worker, u64::from(MAX_BLOCK_SIZE), &self.keys.key(), role, "team-a")
    }

    /// Each way to make the worker, its memory or the bucket another one is refused, and nothing has changed.
    fn assert_changes_nothing(&self, client: &Client, who: &str) {
        let version = stat(client).unwrap();
        assert!(client.call(a_read(&version)).is_ok(), "{who}");
        let gets = self.bucket.gets();
        for request in changes(&version) {
            let op = request.op;
            match client.call(request) {
                Err(CallError::Service(why)) => assert_eq!(why.kind(), FailureKind::PermissionDenied, "{who}: {why}"),
                other => panic!("{who}, {op:?}: {other:?}"),
            }
        }
        assert!(self.bucket.path_of("file00").exists() && !self.bucket.path_of("planted").exists(), "{who}");
        assert_eq!(stat(client).unwrap(), version, "{who}");
        assert!(client.call(a_read(&version)).is_ok(), "{who}");
        assert_eq!(self.bucket.gets(), gets, "{who}: it is cached as before");
    }
}

fn stat(client: &Client) -> Result<FileVersion, CallError> {
    let reply = client.call(Request::on_path(Op::Stat, b"/file00".to_vec().into(), SOON))?;
    Ok(StatReply::decode(&reply.body).unwrap().attr.version().expect("a file").clone())
}

fn on_file(op: Op, version: &FileVersion) -> Request {
    Request::on_block(op, BlockKey { file: version.id(), index: 0 }, 0, LENGTH, SOON)
}

fn a_read(version: &FileVersion) -> Request {
    on_file(Op::Read, version).with_body(version.encode().into())
}

/// All that a reader may not ask for, each as somebody asks who may.
fn changes(version: &FileVersion) -> Vec<Request> {
    let file = || b"/file00".to_vec();
    let on_path = |op, body| Request::on_path(op, body, SOON);
    let plant =
        UploadRequest { path: b"/planted".to_vec(), part: None, only_new: false, bytes: vec![7_u8; 100].into() };
    let free = FreeRequest { files: vec![(version.id(), 1)], below: Some(b"/".to_vec()) };
    let adopt = AdoptRequest { from: "w2".to_owned(), block_length: LENGTH };
    vec![
        on_path(Op::Change, Change::Remove { path: file() }.encode()),
        on_path(Op::Change, Change::Copy { from: file(), to: b"/planted".to_vec() }.encode()),
        on_path(Op::Change, Change::Begin { path: file() }.encode()),
        plant.request(SOON),
        on_path(Op::Free, free.encode()),
        on_file(Op::Adopt, version).with_body(adopt.encode()),
        on_path(Op::Refresh, b"/".to_vec().into()).with_flags(Flags::BELOW),
    ]
}

#[test]
fn a_readers_own_client_changes_frees_and_plants_nothing() {
    let scene = Scene::new(&[]);
    scene.assert_changes_nothing(&scene.client(Role::Reader), "a reader");
    // The control: the first of these is answered where the role may ask for it.
    let admin = scene.client(Role::Admin);
    let version = stat(&admin).unwrap();
    assert!(admin.call(changes(&version).swap_remove(0)).is_ok());
    assert!(!scene.bucket.path_of("file00").exists());
}

/// Over UCX nobody does, whatever the role.
#[test]
fn nobodys_own_client_changes_frees_or_plants_anything_over_ucx() {
    if !has_ucx() {
        return;
    }
    let scene = Scene::new(&LISTENS_OVER_UCX);
    for role in [Role::Reader, Role::Admin, Role::Worker] {
        scene.assert_changes_nothing(&scene.client(role).over_ucx(), role.as_str());
    }
}

#[test]
fn who_was_admitted_by_another_worker_or_by_none_is_not_accepted_over_ucx() {
    if !has_ucx() {
        return;
    }
    let scene = Scene::new(&LISTENS_OVER_UCX);
    let other = set(Setup::of(&scene.bucket), &scene.keys.settings()).options(&LISTENS_OVER_UCX).worker(&scene.bucket);
    let reader = scene.client(Role::Reader);
    let address = reader.ucx_address();
    let reader = reader.over_ucx();
    assert!(stat(&reader).is_ok());

    let of_other = scene.client_of(&other, Role::Reader);
    let admission = of_other.admission();
    let nobodys = scene.client(Role::Reader);
    for (who, stranger) in [
        ("who shows the pass of another worker", of_other.over_ucx_at(&address, Some(admission))),
        ("who was not admitted", nobodys.over_ucx_at(&address, None)),
    ] {
        let refused = stat(&stranger);
        assert!(matches!(refused, Err(CallError::Link(_))), "{who}: {refused:?}");
    }
    eventually("both are counted", SOON, || scene.worker.counter("/rdma/listeners/0/unadmitted_connections") >= 2);
    assert!(stat(&reader).is_ok());
}
