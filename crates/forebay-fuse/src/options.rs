//! What can be chosen of a mount.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_fuse_io::{FuseIo, ReadDirPlus, SessionOptions};
use forebay_staging::StagingOptions;
use forebay_types::ByteSize;
use serde_json::Value;

use crate::keeping::Survival;

/// The largest write that the kernel sends; more gains nothing.
const MAX_WRITE: u32 = 1 << 20;
const PAGE: u64 = 4096;
/// Pages of a request where the kernel does not say how many it allows.
const MAX_PAGES: u64 = 256;

/// What can be chosen of a mount. [`MountOptions::default`] suits most.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What `mount` and `df` show as the source: the origin, `s3://bucket/prefix`.
    pub source: String,
    /// Whether other users than the one who mounts may use it. Mounting as root: yes by default, since jobs run as
    /// users; mounting as a user: it also needs `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// The SELinux label of every file, `system_u:object_r:container_file_t:s0`; without one, what the system's policy says.
    /// Only root can say it.
    pub selinux_context: Option<String>,
    /// Owner of every file; the mounting user by default.
    pub uid: Option<u32>,
    /// Group of every file; the mounting user's by default.
    pub gid: Option<u32>,
    /// How requests come from the kernel.
    pub io: FuseIo,
    /// Requests that may be under way in each processor's queue of io_uring.
    pub ring_depth: u32,
    /// Address space for the buffers of those queues.
    pub ring_memory: ByteSize,
    /// Whether a request of a thread that is being killed ends early.
    pub interrupts: bool,
    /// Threads that take requests from the kernel; 0: one a core, at least 2. Of io_uring: at most one a core.
    pub threads: usize,
    /// Whether each thread gets a descriptor of `/dev/fuse` of its own.
    pub clone_fd: bool,
    /// How long a thread on `/dev/fuse` busy-polls for the next request after a read of little.
    pub spin: Duration,
    /// Whether a thread on `/dev/fuse` answers long reads through a pipe.
    pub splice: bool,
    /// Whether `open` believes what was asked of a name for as long as the worker said, rather than ask again.
    pub open_status_cache: bool,
    /// The largest read that the kernel sends; rounded down to whole pages. Measured: of 512 KiB rather than 1 MiB, two threads answer
    /// one reader of 1 MiB at once, and what they answer fits into their pipes.
    pub max_read: ByteSize,
    /// How many read-ahead and asynchronous direct requests the kernel may have under way. Measured: with 256 sixteen buffered readers
    /// get 16 to 27 % more than with 64, one reader and direct reads the same; with 1024 nothing more.
    pub max_background: u16,
    /// With so many of them the kernel takes the mount to be congested, and holds back requests that no program waits
    /// for. `None`: the same number as [`MountOptions::max_background`].
    pub congestion_threshold: Option<u16>,
    /// How far the kernel reads ahead of a buffered reader. Only root can set it; otherwise the kernel's 128 KiB stay.
    pub read_ahead: ByteSize,
    /// How long the kernel may believe that a name does not exist.
    pub negative_ttl: Duration,
    /// The last limit for a request that gets no answer: the client has shorter deadlines of its own.
    pub deadline: Duration,
    /// Names asked for at a time when a directory is read.
    pub list_page: u32,
    /// Permissions of every file, as far as it can be written: `0o644`.
    pub file_mode: u16,
    /// Permissions of every directory, as far as it can be changed: `0o755`.
    pub directory_mode: u16,
    /// How files are written; `None`: nothing can be changed, and the kernel is told so.
    pub writing: Option<WritingOptions>,
    /// Which files are materialised, for the kernel to read by itself; `None`: none are.
    pub local: Option<LocalOptions>,
    /// How it outlives a crash of the process that serves it; `None`: it does not.
    pub survival: Option<Survival>,
    /// What `.stats` shows besides what mount and client count.
    pub report: ReportSource,
}

/// How files are written.
#[derive(Clone, Debug)]
pub struct WritingOptions {
    /// Where written data waits for the origin.
    pub staging: StagingOptions,
    /// Changes of modes and owners succeed and change nothing, rather than fail with `EPERM`.
    pub ignore_mode: bool,
}

/// Where and when files are materialised.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Where, and which.
    pub files: forebay_materialise::LocalOptions,
    /// Also files that may be written through this mount. A reader of such a file goes on seeing the version that it
    /// opened when a program writes to the file.
    pub on_writable: bool,
}

/// A function that returns the counters of other parts, as a JSON object. By default there is none.
#[derive(Clone, Default)]
pub struct ReportSource(Option<Arc<dyn Fn() -> Value + Send + Sync>>);

impl ReportSource {
    /// What `report` returns.
    pub fn new(report: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(report)))
    }

    /// The counters now.
    #[must_use]
    pub fn report(&self) -> Value {
        self.0.as_ref().map_or_else(|| Value::Object(Default::default()), |report| report())
    }
}

impl fmt::Debug for ReportSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "ReportSource(..)" } else { "ReportSource(none)" })
    }
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "forebay".to_owned(),
            allow_other: rustix::process::geteuid().is_root(),
            selinux_context: None,
            uid: None,
            gid: None,
            io: FuseIo::Auto,
            ring_depth: 64,
            ring_memory: ByteSize::gib(4),
            interrupts: true,
            threads: 0,
            clone_fd: true,
            spin: Duration::from_micros(20),
            splice: true,
            open_status_cache: true,
            max_read: ByteSize::kib(512),
            max_background: 256,
            congestion_threshold: None,
            read_ahead: ByteSize::mib(4),
            negative_ttl: Duration::from_secs(1),
            deadline: Duration::from_secs(300),
            list_page: 1000,
            file_mode: 0o644,
            directory_mode: 0o755,
            writing: None,
            local: None,
            survival: None,
            report: ReportSource::default(),
        }
    }
}

impl MountOptions {
    /// `max_read` as the kernel takes it: whole pages, at least one.
    pub(crate) fn max_read_bytes(&self) -> u64 {
        (self.max_read.as_u64() / PAGE * PAGE).max(PAGE)
    }

    /// Who owns every file.
    pub(crate) fn owner(&self) -> u32 {
        self.uid.unwrap_or_else(|| rustix::process::getuid().as_raw())
    }

    /// Which group every file is of.
    pub(crate) fn group(&self) -> u32 {
        self.gid.unwrap_or_else(|| rustix::process::getgid().as_raw())
    }

    /// The part of it that is about the kernel.
    pub(crate) fn session(&self) -> SessionOptions {
        let max_background = self.max_background.max(1);
        SessionOptions {
            io: self.io,
            threads: self.thread_count(),
            clone_fd: self.clone_fd,
            spin: self.spin,
            splice: self.splice,
            max_write: MAX_WRITE,
            max_read: u32::try_from(self.max_read_bytes()).unwrap_or(u32::MAX),
            max_background,
            congestion_threshold: self.congestion_threshold.unwrap_or(max_background),
            readdirplus: ReadDirPlus::Auto,
            passthrough: self.local.is_some(),
            ring_depth: self.ring_depth,
            ring_memory: self.ring_memory.as_u64(),
            pool: None,
        }
    }

    /// How many threads take requests.
    pub(crate) fn thread_count(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(2, |cores| cores.get().max(2)),
            threads => threads,
        }
    }
}

/// How far the kernel reads ahead unless it is told, as root may.
const KERNELS_READ_AHEAD: ByteSize = ByteSize::kib(128);

/// How far the kernel reads ahead on a mount of this process when `wanted` is asked for: only root can raise it.
#[must_use]
pub fn read_ahead(wanted: ByteSize) -> ByteSize {
    if rustix::process::geteuid().is_root() { wanted } else { wanted.min(KERNELS_READ_AHEAD) }
}

/// The largest read that this machine's kernel sends when `wanted` is asked for. It is more than 1 MiB only where the
/// system's `max_pages_limit` allows that.
#[must_use]
pub fn largest_read(wanted: ByteSize) -> ByteSize {
    let limit = std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit").ok();
    let pages = limit.and_then(|pages| pages.trim().parse().ok()).unwrap_or(MAX_PAGES);
    wanted.min(ByteSize::bytes(pages.saturating_mul(PAGE)))
}
