//! A bucket, a client and a mount, which goes when the test ends however it ends.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::{Client, ClientOptions, Connector};
use forebay_cluster::{Member, StaticMembership};
use forebay_fuse::{FuseIo, Mount, MountError, MountOptions};
use forebay_memory::{Pool, PoolOptions};
use forebay_store::{Store, StoreOptions};
use forebay_transport::{LocalTransport, Service, Transport};
use forebay_types::ByteSize;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::bucket::{BLOCK_SIZE, Bucket};

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Says why a test does not run here, past the test harness, which shows what it captured of failed tests only.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn skipped(reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}

struct Local(Arc<Bucket>);

impl Connector for Local {
    fn connect(&self, _: &Member) -> Arc<dyn Transport> {
        Arc::new(LocalTransport::new(Arc::clone(&self.0) as Arc<dyn Service>))
    }
}

/// In order of their going.
pub(crate) struct Mounted {
    pub(crate) mount: Mount,
    pub(crate) bucket: Arc<Bucket>,
    pub(crate) runtime: Runtime,
    pub(crate) directory: TempDir,
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub(crate) fn client(bucket: &Arc<Bucket>, runtime: &Runtime, request_timeout: Duration) -> Client {
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(16))).unwrap();
    let buffers = runtime.block_on(Store::open(StoreOptions::in_memory(pool))).unwrap();
    let options = ClientOptions { block_size: BLOCK_SIZE, request_timeout, ..ClientOptions::default() };
    let membership = Arc::new(StaticMembership::new(["local"]));
    Client::new(membership, Arc::new(Local(Arc::clone(bucket))), buffers, options, runtime.handle().clone())
}

/// Says how requests come from the kernel in these tests.
pub(crate) const IO: &str = "FOREBAY_TEST_FUSE_IO";

/// `/dev/fuse` without it: a test runs all the others again, over io_uring.
pub(crate) fn io() -> FuseIo {
    match std::env::var(IO).as_deref() {
        Ok("uring") => FuseIo::Uring,
        Ok("device") | Err(_) => FuseIo::Device,
        Ok(other) => panic!("{IO} is {other}, neither uring nor device"),
    }
}

pub(crate) fn options() -> MountOptions {
    let source = "memory://bucket".to_owned();
    MountOptions { source, io: io(), negative_ttl: Duration::ZERO, ..MountOptions::default() }
}

/// Mounts `bucket` at `mountpoint`.
pub(crate) fn start(bucket: &Arc<Bucket>, runtime: &Runtime, mountpoint: &Path) -> Result<Mount, MountError> {
    Mount::start(client(bucket, runtime, MINUTE), runtime.handle().clone(), mountpoint, &options())
}

impl Mounted {
    pub(crate) fn new(bucket: Arc<Bucket>) -> Self {
        Self::with(bucket, MINUTE, &options())
    }

    pub(crate) fn with(bucket: Arc<Bucket>, request_timeout: Duration, options: &MountOptions) -> Self {
        let (runtime, directory) = (runtime(), tempfile::tempdir().unwrap());
        let client = client(&bucket, &runtime, request_timeout);
        let mount = Mount::start(client, runtime.handle().clone(), directory.path(), options).unwrap();
        Self { mount, bucket, runtime, directory }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn open(&self, name: &str) -> File {
        File::open(self.path(name)).unwrap()
    }

    pub(crate) fn open_direct(&self, name: &str) -> File {
        File::options().read(true).custom_flags(libc::O_DIRECT).open(self.path(name)).unwrap()
    }
}

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    wait_within(MINUTE, what, condition);
}

/// The same, for longer or shorter.
#[track_caller]
pub(crate) fn wait_within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
