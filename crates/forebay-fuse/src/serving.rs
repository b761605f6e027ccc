//! How a request is answered: at once where that is possible, by a task of the runtime where it must wait.
//!
//! A thread that takes requests never waits. What may have to wait is a future: it is polled once where it was made,
//! which is enough whenever the answer is cached in this process, and goes on as a task if it must wait.
//!
//! What is written, synced, removed or renamed may take as long as the origin takes: the requests to workers that it consists of
//! have deadlines of their own.
//!
//! A panic in here must not leave a mount that nobody serves: it is caught and logged, and the dropped reply tells the
//! kernel `EIO`.

use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use forebay_memory::Spans;
use forebay_types::{Failure, FailureKind};
use fuser::{Errno, FileAttr, FileType, INodeNo, ReplyData};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, warn};

use crate::access_log::Seen;
use crate::filesystem::{Described, FileSystem, ReadBytes, time};
use crate::inode::Inode;
use crate::options::{MountOptions, ReportSource};
use crate::stats::{Counters, MountStats, Operation};
use crate::virtual_files::{VirtualFile, VirtualFiles};

/// `st_blksize`, which `cp` and `cat` read at a time: the largest read that the kernel sends.
const PREFERRED_READ: u32 = 1 << 20;

/// Longer than anything that makes progress takes.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// What all requests of a mount share.
pub(crate) struct Shared {
    pub(crate) files: FileSystem,
    pub(crate) counters: Counters,
    pub(crate) virtual_files: VirtualFiles,
    /// Requests that wait.
    pub(crate) tasks: TaskTracker,
    /// Cancelled when nobody waits for answers any more.
    pub(crate) ended: CancellationToken,
    pub(crate) runtime: Handle,
    deadline: Duration,
    presentation: Presentation,
    report: ReportSource,
    /// Threads that are writing into the staging directory just now, which may take a while when the disk is slow.
    writing: AtomicUsize,
    /// How many may at once: all but one, which goes on answering reads.
    most_writing: usize,
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

impl Shared {
    pub(crate) fn new(files: FileSystem, runtime: Handle, options: &MountOptions) -> Arc<Self> {
        let presentation = Presentation {
            uid: options.uid.unwrap_or_else(|| rustix::process::getuid().as_raw()),
            gid: options.gid.unwrap_or_else(|| rustix::process::getgid().as_raw()),
            file_mode: options.file_mode & 0o777,
            directory_mode: options.directory_mode & 0o777,
            ignore_mode: options.writing.as_ref().is_some_and(|writing| writing.ignore_mode),
            mounted_at: SystemTime::now(),
        };
        Arc::new(Self {
            files,
            counters: Counters::new(),
            virtual_files: VirtualFiles::new(),
            tasks: TaskTracker::new(),
            ended: CancellationToken::new(),
            runtime,
            deadline: options.deadline,
            presentation,
            report: options.report.clone(),
            writing: AtomicUsize::new(0),
            most_writing: options.thread_count().saturating_sub(1).max(1),
        })
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
            report.insert("fuse".to_owned(), self.stats().report());
            if let Some(staging) = self.files.staging() {
                report.insert("staging".to_owned(), staging.report());
            }
        }
        report
    }

    /// The attributes of a file that is in no origin.
    pub(crate) fn virtual_attributes(&self, file: VirtualFile) -> FileAttr {
        file.attributes(self.presentation.uid, self.presentation.gid)
    }

    /// Answers a request that may have to wait. `work` does what is asked, `answer` tells the kernel and says what it told.
    pub(crate) fn serve<T, F>(
        self: &Arc<Self>,
        operation: Operation,
        seen: Option<Seen>,
        work: F,
        answer: impl FnOnce(&Shared, Result<T, Errno>) -> Result<(), Errno> + Send + 'static,
    ) where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        self.serve_within(self.deadline, operation, seen, work, answer);
    }

    /// The same for what consists of any number of requests to workers, each of which has a deadline.
    pub(crate) fn serve_patiently<T, F>(
        self: &Arc<Self>,
        operation: Operation,
        seen: Option<Seen>,
        work: F,
        answer: impl FnOnce(&Shared, Result<T, Errno>) -> Result<(), Errno> + Send + 'static,
    ) where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        self.serve_within(PATIENCE, operation, seen, work, answer);
    }

    fn serve_within<T, F>(
        self: &Arc<Self>,
        deadline: Duration,
        operation: Operation,
        seen: Option<Seen>,
        work: F,
        answer: impl FnOnce(&Shared, Result<T, Errno>) -> Result<(), Errno> + Send + 'static,
    ) where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let started = Instant::now();
        let shared = Arc::clone(self);
        let mut request = Box::pin(async move {
            let outcome = match tokio::time::timeout(deadline, work).await {
                Ok(outcome) => outcome.map_err(|failure| shared.failed(operation, &failure)),
                Err(_) => {
                    let failure = Failure::new(FailureKind::TimedOut, format!("no answer within {deadline:?}"));
                    Err(shared.failed(operation, &failure))
                }
            };
            let told = answer(&shared, outcome);
            shared.answered(operation, seen, told, started);
        });
        let first = contained(operation, || {
            let _context = self.runtime.enter();
            request.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        });
        if let Some(Poll::Pending) = first {
            let ended = self.ended.clone();
            let task = async move {
                ended.run_until_cancelled(request).await;
            };
            self.tasks.spawn_on(task, &self.runtime);
        }
    }

    /// Settles a file whose last writer is gone. Nobody waits for it, but the mount's end does.
    pub(crate) fn finish(self: &Arc<Self>, inode: Arc<Inode>) {
        let shared = Arc::clone(self);
        self.tasks.spawn_on(async move { shared.files.finish(&inode).await }, &self.runtime);
    }

    /// Leave to write into the staging directory from a thread that takes requests.
    pub(crate) fn may_write(&self) -> Option<Writing<'_>> {
        let writing = Writing(&self.writing);
        (self.writing.fetch_add(1, Ordering::Relaxed) < self.most_writing).then_some(writing)
    }

    /// Whether a file or directory has these attributes already, or nobody minds that it will not get them.
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

    /// Counts a request that was answered, and logs it for whoever wants to know.
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
        Errno::from_i32(failure.kind().errno())
    }

    pub(crate) fn attributes(&self, inode: &Described) -> FileAttr {
        let (kind, perm, nlink) = match inode.is_directory {
            true => (FileType::Directory, self.presentation.directory_mode, 2),
            false => (FileType::RegularFile, self.presentation.file_mode, 1),
        };
        let is_writable = inode.is_writable && self.files.staging().is_some();
        let modified = match (inode.modified_nanos, inode.is_directory) {
            (0, true) => self.presentation.mounted_at,
            (nanos, _) => time(nanos),
        };
        FileAttr {
            ino: INodeNo(inode.ino),
            size: inode.size,
            blocks: inode.size.div_ceil(512),
            atime: modified,
            mtime: modified,
            ctime: modified,
            crtime: modified,
            kind,
            perm: if is_writable { perm } else { perm & !0o222 },
            nlink: if inode.is_removed { 0 } else { nlink },
            uid: self.presentation.uid,
            gid: self.presentation.gid,
            rdev: 0,
            blksize: PREFERRED_READ,
            flags: 0,
        }
    }
}

/// Leave to write; given back when it is dropped.
pub(crate) struct Writing<'a>(&'a AtomicUsize);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs `work`; a panic in it is logged and gives `None`.
pub(crate) fn contained<T>(operation: Operation, work: impl FnOnce() -> T) -> Option<T> {
    // Nothing that a panic may leave half done is used again: requests share only concurrent tables.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => Some(done),
        Err(_) => {
            error!(operation = operation.name(), "a request panicked; it is answered with an i/o error");
            None
        }
    }
}

/// Answers a read of what may be a draft.
pub(crate) fn send_bytes(reply: ReplyData, bytes: &ReadBytes) {
    match bytes {
        ReadBytes::Spans(spans) => send(reply, spans),
        ReadBytes::Copied(bytes) => reply.data(bytes),
    }
}

/// Answers a read. `fuser` takes one slice, so the rare read that lies in several is copied together.
pub(crate) fn send(reply: ReplyData, spans: &Spans) {
    thread_local! {
        static GATHERED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    match spans.as_slice() {
        [] => reply.data(&[]),
        [span] => reply.data(span),
        spans => GATHERED.with_borrow_mut(|gathered| {
            gathered.clear();
            spans.iter().for_each(|span| gathered.extend_from_slice(span));
            reply.data(gathered);
        }),
    }
}
