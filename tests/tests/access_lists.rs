//! Mounts with access lists, attacked between real processes, over TCP and over UCX: by path and by known file id, after a
//! restart, after a removal.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use forebay_e2e::{
    BLOCK, Client, Cluster, Coordinator, Finished, LISTENS_OVER_UCX, Setup, Tree, Worker, eventually, finish, forebay,
    has_ucx, once, ruled_out_by_mode,
};
use forebay_transport::message::StatReply;
use forebay_transport::{Flags, Op, Payload, Reply, Request};
use forebay_types::{BlockKey, Failure, FailureKind, FileVersion, Role};

const SOON: Duration = Duration::from_secs(60);
/// How much is read of a file.
const LENGTH: u32 = 64 << 10;

/// What an operator keeps.
struct Secrets(tempfile::TempDir);

impl Secrets {
    fn new() -> Self {
        let secrets = Self(tempfile::tempdir().unwrap());
        let (key, made) = (secrets.key(), finish(forebay(&[]).args(["key", "create"]), SOON).succeeded().text());
        std::fs::write(&key, made).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let settings = format!("[security]\nmode = \"key\"\nkey_file = {key:?}\n");
        std::fs::write(secrets.configuration(), settings).unwrap();
        secrets
    }

    fn key(&self) -> PathBuf {
        self.0.path().join("cluster.key")
    }

    fn configuration(&self) -> PathBuf {
        self.0.path().join("forebay.toml")
    }

    /// A part of the cluster.
    fn part(&self, setup: Setup) -> Setup {
        setup.option("security.mode=key").option(&format!("security.key_file={}", self.key().display()))
    }

    /// The settings of a tenant that may read.
    fn tenant(&self, name: &str) -> [String; 4] {
        let output = self.0.path().join(name);
        let key = format!("security.key_file={}", self.key().display());
        let issue = ["key", "issue", "--role", "reader", "--client", name, "-o", &key, "--output"];
        let _ = finish(forebay(&[]).args(issue).arg(&output), SOON).succeeded();
        let file = |key: &str, name: &str| format!("security.{key}={}", output.join(name).display());
        let mode = "security.mode=mtls".to_owned();
        [mode, file("cert_file", "tls.crt"), file("cert_key_file", "tls.key"), file("ca_file", "ca.crt")]
    }

    /// Has an admin's command ask the coordinator.
    fn command(&self, coordinator: &Coordinator, command: &[String]) -> Finished {
        let address = coordinator.address();
        let mut asking = forebay(&[]);
        asking.args(command).args(["--coordinator", &address, "--config"]).arg(self.configuration());
        finish(&mut asking, SOON)
    }
}

/// Somebody who asks for what may be another's.
struct Reader(Client);

impl Reader {
    fn call(&self, request: Request) -> Result<Reply, FailureKind> {
        self.0.call(request).map_err(|error| Failure::from(error).kind())
    }

    fn stat(&self, path: &str) -> Result<FileVersion, FailureKind> {
        let reply = self.call(Request::on_path(Op::Stat, path.as_bytes().to_vec().into(), SOON))?;
        Ok(StatReply::decode(&reply.body).unwrap().attr.version().expect("a file").clone())
    }

    fn read(&self, version: &FileVersion) -> Result<usize, FailureKind> {
        match self.call(described(Op::Read, version))?.payload {
            Payload::Landed(span) => Ok(span.len()),
            payload => panic!("{payload:?}"),
        }
    }

    /// Tries each way to the bytes of a file whose id is known, and gives what came of it.
    fn attack(&self, version: &FileVersion) -> [FailureKind; 4] {
        let cached = by_id(version).with_flags(Flags::CACHED);
        [by_id(version), described(Op::Read, version), described(Op::Fill, version), cached].map(|request| {
            let asked = format!("{:?}", request.op);
            match self.call(request) {
                Ok(reply) => panic!("{asked} is answered: {reply:?}"),
                Err(kind) => kind,
            }
        })
    }
}

fn on_file(op: Op, version: &FileVersion) -> Request {
    Request::on_block(op, BlockKey { file: version.id(), index: 0 }, 0, LENGTH, SOON)
}

fn by_id(version: &FileVersion) -> Request {
    on_file(Op::Read, version)
}

fn described(op: Op, version: &FileVersion) -> Request {
    on_file(op, version).with_body(version.encode().into())
}

#[test]
fn a_reader_of_one_mount_never_reads_another_and_nobody_reads_one_that_was_removed() {
    if !ruled_out_by_mode("it is about modes itself") {
        attack(&[], |client| client);
    }
}

#[test]
fn over_ucx_a_reader_of_one_mount_never_reads_another_and_nobody_reads_one_that_was_removed() {
    if !ruled_out_by_mode("it is about modes itself") && has_ucx() {
        attack(&LISTENS_OVER_UCX, Client::over_ucx);
    }
}

/// By clients that ask a worker with these settings over what `over` makes of their TCP.
fn attack(settings: &[&str], over: impl Fn(Client) -> Client) {
    use FailureKind::{NeedsDescription, NotCached, PermissionDenied, Unavailable};
    let Some(cluster) = Cluster::start(1) else { return };
    let (tree, secrets, disk) = (Tree::of_equal_files(2, 200 << 10), Secrets::new(), tempfile::tempdir().unwrap());
    let worker = secrets.part(cluster.setup()).options(settings).memory("128MiB").disk(disk.path(), "128MiB");
    let (mut worker, coordinator) = (worker.member("w1"), secrets.part(cluster.setup()).coordinator());
    for team in ["team-a", "team-b"] {
        tree.put_into(&cluster.bucket, &format!("{team}/"));
        let (at, origin) = (format!("/{team}"), format!("{}/{team}", cluster.bucket.url()));
        let mut add = ["mounts", "add", &at, &origin, "--read", team].map(str::to_owned).to_vec();
        add.extend(cluster.mount_options());
        let _ = secrets.command(&coordinator, &add).succeeded();
    }
    let list = ["mounts", "list"].map(str::to_owned);
    let listed = secrets.command(&coordinator, &list).succeeded().text();
    assert!(listed.contains("--read team-a") && listed.contains("--read team-b"), "{listed}");

    // Those of a worker that was started again: over UCX it listens at another port.
    let clients = |worker: &Worker| {
        let somebody = [(Role::Reader, "team-a"), (Role::Reader, "team-b"), (Role::Admin, "operator")];
        somebody.map(|(role, name)| Reader(over(Client::new(worker, BLOCK, &secrets.key(), role, name))))
    };
    let [ours, theirs, admin] = clients(&worker);
    let secret = once("the worker shows the mount", SOON, || theirs.stat("/team-b/file00").ok());
    assert_eq!(theirs.read(&secret), Ok(LENGTH as usize));
    assert_eq!(ours.stat("/team-b/file00"), Err(PermissionDenied));
    let denied = [PermissionDenied, PermissionDenied, PermissionDenied, NotCached];
    assert_eq!(ours.attack(&secret), denied);
    assert!(ours.stat("/team-a/file00").is_ok() && admin.read(&secret).is_ok());

    // As a tenant has it.
    let tenant = Setup::without_origin().options(&["block.size=256KiB", "client.memory.size=8MiB"]);
    let tenant = secrets.tenant("team-a").iter().fold(tenant, |setup, setting| setup.option(setting));
    let mount = tenant.mount(std::slice::from_ref(&worker));
    tree.verify(&mount.path("team-a"));
    let refused = std::fs::read(mount.path("team-b/file00")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "{refused}");
    drop((mount, ours, theirs, admin));

    let gets = cluster.bucket.gets();
    worker.terminate();
    worker.start_again();
    let [ours, theirs, admin] = clients(&worker);
    // Whatever it knows by then, it answers none of this.
    eventually("the worker knows who may read", SOON, || ours.attack(&secret)[1] == PermissionDenied);
    assert_eq!(theirs.read(&secret), Ok(LENGTH as usize));
    assert_eq!(cluster.bucket.gets(), gets, "it was on disk");
    assert_eq!(ours.attack(&secret), denied);

    let remove = ["mounts", "remove", "/team-b"].map(str::to_owned);
    let _ = secrets.command(&coordinator, &remove).succeeded();
    eventually("the worker knows that it is removed", SOON, || theirs.read(&secret) == Err(Unavailable));
    for somebody in [&ours, &theirs, &admin] {
        assert_eq!(somebody.attack(&secret), [Unavailable, Unavailable, Unavailable, NotCached]);
    }
    drop((ours, theirs, admin));
    worker.terminate();
    worker.start_again();
    let [.., admin] = clients(&worker);
    eventually("the worker knows what is mounted", SOON, || admin.stat("/team-a/file00").is_ok());
    assert_eq!(admin.attack(&secret), [NeedsDescription, Unavailable, Unavailable, NotCached]);
    assert_eq!(cluster.bucket.gets(), gets, "nobody had it fetched");
}
