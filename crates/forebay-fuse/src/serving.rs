//! How a request is answered: at once where that is possible, by a task of the runtime where it must wait.
//!
//! A thread that takes requests never waits for long. What may have to wait is a future: it is polled once where it was made,
//! which is enough whenever the answer is cached in this process, and goes on as a task if it must wait. In that poll a read may wait
//! for a worker's answer itself, for a fraction of a millisecond, where another thread takes requests meanwhile.
//!
//! What is written, synced, removed or renamed may take as long as the origin takes: the requests to workers that it consists of
//! have deadlines of their own.
//!
//! A panic in here does not leave a mount without a server: the session or the runtime catches and logs it, and the
//! dropped reply tells the kernel `EIO`.

use std::fs::OpenOptions;
use std::future::Future;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use forebay_client::driving::permitted;
use forebay_fuse_io::{Answer, Attributes, ChannelInUse, Errno, Kind, Reply, Served};
use forebay_locks::heartbeat::{Excuse, excuse};
use forebay_memory::Spans;
use forebay_types::{Failure, FailureKind};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, warn};

use crate::access_log::Seen;
use crate::described::{Described, time};
use crate::detach::{Detach, detach};
use crate::filesystem::{FileSystem, ReadBytes};
use crate::inode::Inode;
use crate::interrupts::{Interrupts, Waiter};
use crate::keeping::Keeping;
use crate::mount_table::{FS_TYPE, entry_at};
use crate::options::{MountOptions, ReportSource};
use crate::room::Rooms;
use crate::stats::{Counters, MountStats, Operation, channel_report};
use crate::virtual_files::{VirtualFile, VirtualFiles};

/// `st_blksize`, which `cp` and `cat` read at a time: the largest read that the kernel sends.
const PREFERRED_READ: u32 = 1 << 20;

/// Longer than anything that makes progress takes.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// What a request asks for, as far as it may have to wait.
pub(crate) trait Work<T>: Future<Output = Result<T, Failure>> + Send + 'static {}

impl<T, F: Future<Output = Result<T, Failure>> + Send + 'static> Work<T> for F {}

/// What tells the kernel how that ended, and says what it told.
pub(crate) trait Tell<T>: FnOnce(&MountShared, Result<T, Errno>) -> Result<(), Errno> + Send + 'static {}

impl<T, F: FnOnce(&MountShared, Result<T, Errno>) -> Result<(), Errno> + Send + 'static> Tell<T> for F {}

/// What all requests of a mount share.
pub(crate) struct MountShared {
    pub(crate) files: FileSystem,
    pub(crate) counters: Counters,
    pub(crate) virtual_files: VirtualFiles,
    /// What was seen of the room for what is written.
    pub(crate) rooms: Arc<Rooms>,
    /// Requests that wait.
    pub(crate) tasks: TaskTracker,
    /// What no program waits for. It may take hours, and holds up no hand-over.
    pub(crate) aside: TaskTracker,
    /// Which of them may be ended early.
    pub(crate) interrupts: Interrupts,
    /// Cancelled when no program waits for answers any more.
    pub(crate) ended: CancellationToken,
    pub(crate) runtime: Handle,
    mountpoint: PathBuf,
    /// How the kernel is served; set when that begins.
    served: OnceLock<Arc<Served>>,
    /// Set before, where the mount outlives a crash of this process.
    kept: OnceLock<Keeping>,
    /// Requests that a process had taken which is gone.
    pub(crate) resent: AtomicU64,
    /// How often the mount was taken back from a process that was given it.
    pub(crate) taken_back: AtomicU64,
    deadline: Duration,
    presentation: Presentation,
    report: ReportSource,
    /// Threads that are writing into the staging directory just now, which may take a while when the disk is slow.
    writing: AtomicUsize,
    /// How many may at once: all but one, which goes on answering reads.
    max_writing: usize,
    /// How many threads may wait for workers' answers at once: all but one, which goes on taking requests.
    max_driving: usize,
}

/// How long a request may take, who waits for it, and whether the thread that took it may wait itself.
struct Terms {
    deadline: Duration,
    waiter: Option<Waiter>,
    may_wait: bool,
}

impl Terms {
    fn of(deadline: Duration, waiter: Waiter) -> Self {
        Self { deadline, waiter: Some(waiter), may_wait: false }
    }
}

/// What the kernel is told of every inode.
struct Presentation {
    uid: u32,
    gid: u32,
    file_mode: u16,
    directory_mode: u16,
    /// `chmod` and `chown` to something else succeed, and change nothing.
    ignore_mode: bool,
    /// Stands in for the modification time of directories that have none.
    mounted_at: SystemTime,
}

impl MountShared {
    pub(crate) fn new(
        files: FileSystem,
        virtual_files: VirtualFiles,
        runtime: Handle,
        mountpoint: PathBuf,
        options: &MountOptions,
    ) -> Arc<Self> {
        let presentation = Presentation {
            uid: options.owner(),
            gid: options.group(),
            file_mode: options.file_mode & 0o777,
            directory_mode: options.directory_mode & 0o777,
            ignore_mode: options.writing.as_ref().is_some_and(|writing| writing.ignore_mode),
            mounted_at: SystemTime::now(),
        };
        Arc::new(Self {
            files,
            counters: Counters::new(),
            virtual_files,
            rooms: Rooms::new(),
            tasks: TaskTracker::new(),
            aside: TaskTracker::new(),
            interrupts: Interrupts::new(options.interrupts),
            ended: CancellationToken::new(),
            runtime,
            mountpoint,
            served: OnceLock::new(),
            kept: OnceLock::new(),
            resent: AtomicU64::new(0),
            taken_back: AtomicU64::new(0),
            deadline: options.deadline,
            presentation,
            report: options.report.clone(),
            writing: AtomicUsize::new(0),
            max_writing: options.thread_count().saturating_sub(1).max(1),
            max_driving: options.thread_count().saturating_sub(1),
        })
    }

    /// The kernel is served, in this way.
    pub(crate) fn begin(&self, served: Arc<Served>) {
        // A mount begins once.
        let _ = self.served.set(served);
    }

    /// The mount outlives a crash of this process.
    pub(crate) fn keep(&self, keeping: Keeping) {
        // A mount begins once.
        let _ = self.kept.set(keeping);
    }

    /// The mount as it is kept, if it is.
    pub(crate) fn kept(&self) -> Option<&Keeping> {
        self.kept.get()
    }

    /// How requests come from the kernel; waits until that is settled, but not longer than `within`.
    pub(crate) fn carried_within(&self, within: Duration) -> Option<ChannelInUse> {
        self.served.get()?.wait(within)
    }

    /// No program waits for answers any more. With an `error`, the mount is there but cannot be served, and is taken
    /// away: programs get errors from it, rather than wait for ever.
    pub(crate) fn end(&self, error: Option<&io::Error>) {
        self.ended.cancel();
        let Some(error) = error else { return };
        let mountpoint = self.mountpoint.clone();
        error!(
            mountpoint = %mountpoint.display(), %error,
            "the mount cannot be served any more and is taken away; with fuse.io = \"device\" it does without io_uring"
        );
        let take_away = move || {
            // First: what waits gets an error even where the mount cannot be taken away, or only lazily.
            if let Err(error) = abort(&mountpoint) {
                debug!(mountpoint = %mountpoint.display(), %error, "the connection of a mount is not ended by itself");
            }
            if let Err(error) = detach(&mountpoint, Detach::Forced) {
                warn!(mountpoint = %mountpoint.display(), %error, "a mount that is not served is left behind");
            }
        };
        drop(self.tasks.spawn_blocking_on(take_away, &self.runtime));
    }

    /// What has been counted.
    pub(crate) fn stats(&self) -> MountStats {
        self.counters.snapshot(self.files.held_inodes())
    }

    /// The same, with what the client and the process say.
    pub(crate) fn report(&self) -> Value {
        let mut report = self.files.client().report();
        if let (Some(report), Value::Object(more)) = (report.as_object_mut(), self.report.report()) {
            report.extend(more);
            let mut fuse = self.stats().report();
            if let Some(served) = self.served.get() {
                fuse["io"] = channel_report(served);
                fuse["io"]["landed"] = self.counters.landed().into();
                fuse["io"]["driven"] = self.counters.driven().into();
            }
            fuse["taken_back"] = self.taken_back.load(Ordering::Relaxed).into();
            if let Some(kept) = self.kept() {
                fuse["kept"] = kept.report();
                fuse["kept"]["resent"] = self.resent.load(Ordering::Relaxed).into();
            }
            report.insert("fuse".to_owned(), fuse);
            if let Some(staging) = self.files.staging() {
                report.insert("staging".to_owned(), json!(staging.report()));
            }
            if let Some(materialised) = &self.files.materialised {
                report.insert("local".to_owned(), materialised.report());
            }
        }
        report
    }

    /// The attributes of a file that is in no origin.
    pub(crate) fn virtual_attributes(&self, file: VirtualFile) -> Attributes {
        file.attributes(self.presentation.uid, self.presentation.gid)
    }

    /// Answers a request that may have to wait. `work` does what is asked, unless `waiter` is killed meanwhile; `answer` tells the
    /// kernel and says what it told.
    pub(crate) fn serve<T: Send + 'static>(
        self: &Arc<Self>,
        waiter: Waiter,
        operation: Operation,
        seen: Option<Seen>,
        work: impl Work<T>,
        answer: impl Tell<T>,
    ) {
        self.serve_within(Terms::of(self.deadline, waiter), operation, seen, work, answer);
    }

    /// The same for a read. If the thread that takes requests `may_wait`, because others take them meanwhile, it waits a moment for the
    /// answer of a worker itself ([`forebay_client::driving`]).
    pub(crate) fn serve_read<T: Send + 'static>(
        self: &Arc<Self>,
        waiter: Waiter,
        may_wait: bool,
        seen: Option<Seen>,
        work: impl Work<T>,
        answer: impl Tell<T>,
    ) {
        let terms = Terms { may_wait, ..Terms::of(self.deadline, waiter) };
        self.serve_within(terms, Operation::Read, seen, work, answer);
    }

    /// The same for what consists of any number of requests to workers, each of which has a deadline, and must come to its end: it
    /// changes something.
    pub(crate) fn serve_patiently<T: Send + 'static>(
        self: &Arc<Self>,
        operation: Operation,
        seen: Option<Seen>,
        work: impl Work<T>,
        answer: impl Tell<T>,
    ) {
        let terms = Terms { deadline: PATIENCE, waiter: None, may_wait: false };
        self.serve_within(terms, operation, seen, work, answer);
    }

    fn serve_within<T: Send + 'static>(
        self: &Arc<Self>,
        Terms { deadline, waiter, may_wait }: Terms,
        operation: Operation,
        seen: Option<Seen>,
        work: impl Work<T>,
        answer: impl Tell<T>,
    ) {
        let started = Instant::now();
        let finish = move |shared: &MountShared, outcome: Result<T, Errno>| {
            let told = answer(shared, outcome);
            shared.answered(operation, seen, told, started);
        };
        let shared = Arc::clone(self);
        let mut work = Box::pin(async move {
            match tokio::time::timeout(deadline, work).await {
                Ok(outcome) => outcome.map_err(|failure| shared.failed(operation, &failure)),
                Err(_) => {
                    let failure = Failure::new(FailureKind::TimedOut, format!("no answer within {deadline:?}"));
                    Err(shared.failed(operation, &failure))
                }
            }
        });
        let first = {
            let _context = self.runtime.enter();
            let mut poll = || work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            match may_wait {
                true => self.driven(poll),
                false => poll(),
            }
        };
        if let Poll::Ready(outcome) = first {
            return finish(self, outcome);
        }
        let (shared, ended) = (Arc::clone(self), self.ended.clone());
        let task = async move {
            let outcome = async {
                match waiter {
                    Some(waiter) => shared.interrupts.unless_killed(waiter, work).await.unwrap_or(Err(Errno::EINTR)),
                    None => work.await,
                }
            };
            if let Some(outcome) = ended.run_until_cancelled(outcome).await {
                finish(&shared, outcome);
            }
        };
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Polls on a thread that takes requests, which may wait for a worker's answer.
    fn driven<T>(&self, poll: impl FnOnce() -> Poll<T>) -> Poll<T> {
        let (polled, answered) = permitted(self.max_driving, poll);
        if answered > 0 && polled.is_ready() {
            self.counters.read_driven();
        }
        polled
    }

    /// Settles a file whose last writer is gone. No request waits for it, but the mount's end does.
    pub(crate) fn finish(self: &Arc<Self>, inode: Arc<Inode>) {
        let shared = Arc::clone(self);
        self.tasks.spawn_on(async move { shared.files.finish(&inode).await }, &self.runtime);
    }

    /// Leave to write into the staging directory from a thread that takes requests.
    pub(crate) fn may_write(&self) -> Option<Writing<'_>> {
        // A slow disk is no reason to end the process, which has what is not uploaded yet.
        let writing = Writing { writing: &self.writing, _excuse: excuse() };
        (self.writing.fetch_add(1, Ordering::Relaxed) < self.max_writing).then_some(writing)
    }

    /// Whether a file or directory has these attributes already, or such changes are to be ignored.
    pub(crate) fn may_be(
        &self,
        inode: &Described,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(), Failure> {
        let shown = self.attributes(inode);
        let is_same = mode.is_none_or(|mode| mode & 0o7777 == u32::from(shown.perm))
            && uid.is_none_or(|uid| uid == shown.uid)
            && gid.is_none_or(|gid| gid == shown.gid);
        if is_same || self.presentation.ignore_mode {
            return Ok(());
        }
        let message = "an object store keeps no modes and owners; set posix.ignore_mode to have such changes ignored";
        Err(Failure::new(FailureKind::NotPermitted, message))
    }

    /// Counts a request that was answered, and logs it for readers of the access log.
    pub(crate) fn answered(&self, operation: Operation, seen: Option<Seen>, told: Result<(), Errno>, since: Instant) {
        let took = since.elapsed();
        self.counters.answered(operation, took);
        if let Some(seen) = seen {
            self.virtual_files.log().answered(&seen, operation, told, took);
        }
    }

    /// Counts and logs a failure, and gives what the kernel is told.
    pub(crate) fn failed(&self, operation: Operation, failure: &Failure) -> Errno {
        self.counters.failed(failure.kind());
        let operation = operation.name();
        match failure.kind() {
            FailureKind::Internal | FailureKind::Corrupt => error!(operation, %failure, "request failed"),
            FailureKind::Unavailable | FailureKind::TimedOut | FailureKind::OutOfResources => {
                warn!(operation, %failure, "request failed");
            }
            _ => debug!(operation, %failure, "request failed"),
        }
        Errno::new(failure.kind().errno())
    }

    pub(crate) fn attributes(&self, inode: &Described) -> Attributes {
        let (kind, perm, nlink) = match inode.is_directory {
            true => (Kind::Directory, self.presentation.directory_mode, 2),
            false => (Kind::RegularFile, self.presentation.file_mode, 1),
        };
        let is_writable = inode.is_writable && self.files.staging().is_some();
        let modified = match (inode.modified_nanos, inode.is_directory) {
            (0, true) => self.presentation.mounted_at,
            (nanos, _) => time(nanos),
        };
        Attributes {
            ino: inode.ino,
            size: inode.size,
            blocks: inode.size.div_ceil(512),
            atime: modified,
            mtime: modified,
            ctime: modified,
            kind,
            perm: if is_writable { perm } else { perm & !0o222 },
            nlink: if inode.is_removed { 0 } else { nlink },
            uid: self.presentation.uid,
            gid: self.presentation.gid,
            rdev: 0,
            blksize: PREFERRED_READ,
        }
    }
}

/// Has the kernel end the connection of our mount at `mountpoint`, without a look at the mount itself: that would wait.
fn abort(mountpoint: &Path) -> io::Result<()> {
    let entry = entry_at(mountpoint).map_err(io::Error::other)?.filter(|entry| entry.fs_type == FS_TYPE);
    let file = entry.and_then(|entry| abort_file(&entry.device)).ok_or(io::ErrorKind::NotFound)?;
    OpenOptions::new().write(true).open(file)?.write_all(b"1")
}

/// What is written to for it, of a mount with the device number `MAJOR:MINOR`.
fn abort_file(device: &str) -> Option<PathBuf> {
    let (_, minor) = device.split_once(':')?;
    let minor: u32 = minor.parse().ok()?;
    Some(format!("/sys/fs/fuse/connections/{minor}/abort").into())
}

/// Leave to write; given back when it is dropped.
pub(crate) struct Writing<'a> {
    writing: &'a AtomicUsize,
    _excuse: Excuse,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.writing.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells the kernel whether something was done, where there is no more to say; gives what it was told.
pub(crate) fn tell(reply: Reply, done: Result<(), Errno>) -> Result<(), Errno> {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
    done
}

/// Answers a read that was waited for. Whether it landed where the kernel takes it from.
pub(crate) fn send_bytes(reply: Reply, bytes: ReadBytes) -> bool {
    match bytes {
        ReadBytes::Spans(spans) => send(reply, &spans),
        ReadBytes::Landed(bytes) => {
            let length = bytes.len();
            return reply.filled(bytes, length);
        }
        ReadBytes::Copied(bytes) => reply.data(&bytes),
    }
    false
}

/// Answers a read, from where the bytes lie.
#[inline]
pub(crate) fn send(reply: impl Answer, spans: &Spans) {
    match spans.as_slice() {
        [] => reply.data(&[]),
        [span] => reply.data(span),
        [first, second] => reply.slices(&[first, second]),
        spans => {
            let slices: Vec<&[u8]> = spans.iter().map(|span| &**span).collect();
            reply.slices(&slices);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_ended_by_the_number_of_its_device() {
        assert_eq!(abort_file("0:57"), Some("/sys/fs/fuse/connections/57/abort".into()));
        assert_eq!(abort_file("0:../.."), None);
        assert_eq!(abort_file(""), None);
        // A directory that is no mount of ours is left alone.
        assert!(abort(&std::env::temp_dir()).is_err());
    }
}
