//! The file system: what each request of the kernel means, whatever carries it.
//!
//! Nothing here knows of a device, a descriptor or a reply. [`crate::dispatch`] feeds it with requests.
//!
//! How the kernel's caches are kept right:
//!
//! * An inode is one version of a file ([`crate::inode`]), so its attributes never change and its pages are never stale.
//! * What may become stale is which version a *name* leads to. The kernel believes a name for as long as the worker
//!   said that its answer is valid, and no longer.
//! * `open` of an inode that is no longer current answers `ESTALE`, upon which the kernel looks the name up again and
//!   opens what it finds: the program sees only the new version.
//! * A read that finds that the object was replaced fails with `ESTALE`. The inode is marked, the kernel's belief in
//!   the name is taken back, and the next lookup asks the origin itself.
//! * What is written here is in the kernel's pages as it is in the draft ([`crate::inode`]); until it is at the origin, names
//!   and attributes come from the draft and not from a worker.
//!
//! Directories are read in [`crate::directories`]. What changes something is in [`crate::writing`] (bytes), [`crate::directory_ops`]
//! (names) and [`crate::renaming`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_client::{CallerBuffer, Client, OpenFile, ReadPayload};
use forebay_handover::{Journal, Record};
use forebay_materialise::Reading;
use forebay_memory::{SpanMut, Spans};
use forebay_staging::Staging;
use forebay_types::{Attr, Failure, FailureKind, FileId, FsPath};

use crate::described::{Described, Found, nanos};
use crate::failures::{impossible_name, lost, not_open, stale};
use crate::handle::{DirectoryHandle, FileHandle};
use crate::handles::HandleTable;
use crate::inode::{Content, Inode, Known, version_id};
use crate::inodes::{InodeTable, ROOT};
use crate::materialised::Materialised;
use crate::options::MountOptions;
use crate::stale::StaleNames;

/// Attributes of a version never change, and nor does what the kernel knows of the root.
const FOR_EVER: Duration = Duration::from_secs(86_400);
/// A draft's name leads to it for as long as it is there; what ends it tells the kernel.
const DRAFT_NAME_TTL: Duration = Duration::from_secs(1);
/// Within one `open(2)` the kernel looks the name up and then opens the inode. What the lookup asked for just now need
/// not be asked again, also where answers are valid for no time at all.
const LOOKUP_COVERS_OPEN: Duration = Duration::from_millis(100);
/// Reads of up to so many bytes are answered while their bytes are looked at, which keeps these from being evicted for some
/// microseconds. Of more, taking references to them costs little beside the copy.
const LOOKED_AT: usize = 64 << 10;
/// How long a refresh waits until the kernel takes all names. It takes none while it waits itself, for a change of their directory.
/// Those who ask wait a little longer.
const TAKEN_WITHIN: Duration = Duration::from_secs(50);
/// How long a refresh waits until the kernel knows.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// The file system of one mount.
pub(crate) struct FileSystem {
    pub(crate) client: Client,
    pub(crate) inodes: InodeTable,
    pub(crate) files: HandleTable<FileHandle>,
    pub(crate) directories: HandleTable<Arc<DirectoryHandle>>,
    pub(crate) stale: StaleNames,
    pub(crate) negative_ttl: Duration,
    /// `None`: nothing can be written.
    pub(crate) staging: Option<Staging>,
    /// `None`: the kernel passes nothing through.
    pub(crate) materialised: Option<Materialised>,
    pub(crate) open_status_cache: bool,
    pub(crate) list_page: u32,
    /// What changes, for a process that goes on if this one dies.
    pub(crate) journal: Journal,
    /// Shared: what is being written is renamed, for which two drafts may be held. Exclusive: a directory is, for which all below it
    /// are, in any order.
    pub(crate) renaming: tokio::sync::RwLock<()>,
}

/// What can be said of a read at once.
pub(crate) enum Attempt {
    /// All of it was looked at.
    Seen,
    /// All of it.
    Hit(Spans),
    /// Nothing: it must be waited for with [`FileSystem::read`].
    Miss(FileHandle),
    /// No such handle.
    NotOpen,
}

/// The bytes of a read.
pub(crate) enum ReadBytes {
    /// Of a version, as they lie in memory.
    Spans(Spans),
    /// Of a version, in memory that nothing else reads.
    Landed(SpanMut),
    /// Of a draft.
    Copied(Bytes),
}

impl ReadBytes {
    /// How many.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Spans(spans) => total(spans),
            Self::Landed(bytes) => bytes.len(),
            Self::Copied(bytes) => bytes.len(),
        }
    }

    /// In memory of their own.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Self::Spans(spans) => spans.iter().flat_map(|span| span.iter().copied()).collect(),
            Self::Landed(bytes) => Bytes::copy_from_slice(&bytes),
            Self::Copied(bytes) => bytes,
        }
    }
}

impl FileSystem {
    pub(crate) fn new(client: Client, staging: Option<Staging>, stale: StaleNames, options: &MountOptions) -> Self {
        let journal = Journal::default();
        Self {
            client,
            inodes: InodeTable::new(Instant::now()).noting_in(journal.clone()),
            files: HandleTable::new(),
            directories: HandleTable::new(),
            stale,
            staging,
            materialised: None,
            negative_ttl: options.negative_ttl,
            open_status_cache: options.open_status_cache,
            list_page: options.list_page.max(1),
            journal,
            renaming: tokio::sync::RwLock::default(),
        }
    }

    /// The same with materialised files.
    pub(crate) fn with(self, materialised: Option<Materialised>) -> Self {
        Self { materialised, ..self }
    }

    /// A handle for `open`; `None` when there are too many.
    pub(crate) fn insert(&self, open: FileHandle) -> Option<u64> {
        let noted = self.journal.is_written().then(|| (open.inode.ino, open.handed(0)));
        let handle = self.files.insert(open)?;
        if let Some((ino, file)) = noted {
            self.journal.append(|| Record::File { handle, ino, file });
        }
        Some(handle)
    }

    /// The handle is no more. Whether it was one.
    pub(crate) fn remove(&self, handle: u64) -> bool {
        // Before its slot is another one's.
        self.journal.append(|| Record::FileClosed { handle });
        self.files.remove(handle)
    }

    /// What `name` in directory `parent` is.
    pub(crate) async fn lookup(&self, parent: u64, name: &[u8]) -> Result<Found, Failure> {
        let path = self.child(parent, name)?;
        if let Some(inode) = self.inodes.local(&path).filter(|inode| inode.draft().is_some()) {
            self.inodes.hold(&inode);
            return Ok(Found::Inode(self.describe(&inode, Instant::now())));
        }
        match self.find(&path, self.inodes.is_suspect(&path)).await? {
            Some(known) => {
                let inode = self.inodes.remember(&path, known);
                Ok(Found::Inode(self.describe(&inode, Instant::now())))
            }
            None => Ok(Found::Nothing(self.negative_ttl)),
        }
    }

    /// What the workers know of `path`; with `revalidate`, the origin. `None` when there is nothing.
    pub(crate) async fn find(&self, path: &FsPath, revalidate: bool) -> Result<Option<Known>, Failure> {
        let asked = Instant::now();
        match self.client.stat(path, revalidate).await {
            Ok(stat) => {
                if revalidate {
                    self.inodes.cleared(path, Some(&stat.attr));
                }
                Ok(Some(Known::new(stat.attr, asked, stat.valid_for)))
            }
            Err(failure) if failure.kind() == FailureKind::NotFound => {
                if revalidate {
                    self.inodes.cleared(path, None);
                }
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// The path of `name` in directory `parent`.
    pub(crate) fn child(&self, parent: u64, name: &[u8]) -> Result<FsPath, Failure> {
        self.inode(parent)?.path().join(name).map_err(impossible_name)
    }

    /// The kernel no longer holds `count` of its lookups of `ino`.
    pub(crate) fn forget(&self, ino: u64, count: u64) {
        self.inodes.forget(ino, count);
    }

    /// The attributes of `ino`.
    pub(crate) async fn attributes(&self, ino: u64) -> Result<Described, Failure> {
        let inode = self.inode(ino)?;
        let described = self.describe(&inode, Instant::now());
        if !described.attr_ttl.is_zero() || inode.draft().is_some() || inode.is_removed() {
            return Ok(described);
        }
        let (asked, path) = (Instant::now(), inode.path());
        let stat = self.client.stat(&path, false).await?;
        let known = Known::new(stat.attr, asked, stat.valid_for);
        if !inode.is_meant_by(&known) {
            return Err(stale(&path));
        }
        inode.learn(known);
        Ok(self.describe(&inode, Instant::now()))
    }

    /// What an inode that is not being written is, asked again where that may have changed.
    ///
    /// # Errors
    /// `VersionChanged` when it is not what its name leads to any more.
    pub(crate) async fn current(&self, inode: &Inode) -> Result<Attr, Failure> {
        if inode.is_changed() {
            return Err(stale(&inode.path()));
        }
        let known = inode.known();
        let now = Instant::now();
        let believed = self.open_status_cache && known.fresh_until > now;
        if believed || inode.is_removed() || now.duration_since(known.asked) <= LOOKUP_COVERS_OPEN {
            return Ok(known.attr);
        }
        let path = inode.path();
        let stat = self.client.stat(&path, false).await.map_err(gone_is_stale)?;
        let known = Known::new(stat.attr, now, stat.valid_for);
        if !inode.is_meant_by(&known) {
            self.forget_copy(version_id(&inode.known().attr));
            return Err(stale(&path));
        }
        inode.learn(known);
        Ok(inode.known().attr)
    }

    /// Reads what can be read without waiting. A short read is shown to `look` where its bytes lie, and then the attempt is
    /// [`Attempt::Seen`]; what a longer one gives can be held on to.
    /// `pid`: the thread that asks, if it is known.
    pub(crate) fn try_read(
        &self,
        handle: u64,
        (offset, length): (u64, u32),
        pid: u32,
        look: impl FnOnce(&[&[u8]]),
    ) -> Attempt {
        let attempt = self.files.with(handle, |open| {
            let Some(file) = open.file.as_ref().filter(|_| open.inode.revision() == open.revision) else {
                return Attempt::Miss(open.clone());
            };
            let expected = expected_length(file.version().size, offset, length);
            if expected == 0 {
                return Attempt::Hit(Spans::new());
            }
            if let Some(read) = &open.read
                && let Some(reading) = read.note(offset, expected as u64)
            {
                self.tell_of(file, reading, (open.inode.ino, Some(pid).filter(|_| read.may_be_faults())));
            }
            if expected <= LOOKED_AT {
                let shown = file.try_look(offset, length, |bytes| {
                    let is_whole = bytes.iter().map(|bytes| bytes.len()).sum::<usize>() == expected;
                    if is_whole {
                        look(bytes);
                    }
                    is_whole
                });
                return match shown {
                    Some(true) => Attempt::Seen,
                    _ => Attempt::Miss(open.clone()),
                };
            }
            match file.try_read(offset, length) {
                Some(spans) if total(&spans) == expected => Attempt::Hit(spans),
                _ => Attempt::Miss(open.clone()),
            }
        });
        attempt.unwrap_or(Attempt::NotOpen)
    }

    /// A handle on an inode that we serve has read so much of a file by now; the thread, where that may have been by faults.
    #[cold]
    fn tell_of(&self, file: &OpenFile, reading: Reading, by: (u64, Option<u32>)) {
        if let Some(materialised) = &self.materialised {
            materialised.reads(file.id(), file.version(), reading, by);
        }
    }

    /// Reads, waiting for workers.
    pub(crate) async fn read(&self, open: &FileHandle, offset: u64, length: u32) -> Result<ReadBytes, Failure> {
        self.read_into(open, offset, length, &mut || None).await
    }

    /// The same. What a worker in another process sends may land in the buffer that `caller_buffer` returns.
    pub(crate) async fn read_into(
        &self,
        open: &FileHandle,
        offset: u64,
        length: u32,
        caller_buffer: &mut CallerBuffer<'_>,
    ) -> Result<ReadBytes, Failure> {
        if open.is_lost {
            return Err(lost(&open.inode.path()));
        }
        loop {
            let revision = open.inode.revision();
            let file = match &open.file {
                Some(file) if open.revision == revision => Arc::clone(file),
                _ => match open.inode.content(&self.client) {
                    Content::Version(file) => file,
                    Content::Draft(draft) => {
                        let read = draft.read(offset, length).await;
                        return read.map(ReadBytes::Copied).map_err(|failure| failure.context(open.inode.path()));
                    }
                    Content::Lost => return Err(stale(&open.inode.path())),
                    Content::None => return Err(not_open()),
                },
            };
            match self.read_version(&open.inode, &file, offset, length, caller_buffer).await {
                // It was written or renamed here meanwhile: what it is now is what is to be read.
                Err(failure) if failure.kind() == FailureKind::VersionChanged && open.inode.revision() != revision => {}
                Err(failure) => {
                    if failure.kind() == FailureKind::VersionChanged {
                        self.found_changed(&open.inode);
                    }
                    return Err(failure.context(open.inode.path()));
                }
                Ok(ReadPayload::Shared(spans)) => return Ok(ReadBytes::Spans(spans)),
                Ok(ReadPayload::Landed(bytes)) => return Ok(ReadBytes::Landed(bytes)),
            }
        }
    }

    async fn read_version(
        &self,
        inode: &Inode,
        file: &Arc<OpenFile>,
        offset: u64,
        length: u32,
        caller_buffer: &mut CallerBuffer<'_>,
    ) -> Result<ReadPayload, Failure> {
        let payload = file.read_into(offset, length, caller_buffer).await?;
        let expected = expected_length(file.version().size, offset, length);
        if payload.len() == expected {
            return Ok(payload);
        }
        // The kernel would fill up a short answer with zeros.
        let (path, got) = (inode.path(), payload.len());
        let message = format!("{path}: read of {length} bytes at {offset} gave {got}, not {expected}");
        Err(Failure::new(FailureKind::Corrupt, message))
    }

    /// The client whose namespace this is.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// How many inodes the kernel holds.
    pub(crate) fn held_inodes(&self) -> usize {
        self.inodes.len()
    }

    pub(crate) fn inode(&self, ino: u64) -> Result<Arc<Inode>, Failure> {
        let unknown = || Failure::new(FailureKind::VersionChanged, format!("inode {ino} is unknown"));
        self.inodes.get(ino).ok_or_else(unknown)
    }

    /// An inode as the kernel is to be told of it.
    pub(crate) fn describe(&self, inode: &Inode, now: Instant) -> Described {
        let shown = inode.shown();
        let mut described = Described::new(inode.ino, &shown.known.attr);
        described.is_removed = shown.removed;
        if let Some(draft) = shown.draft {
            // Asked for each time: it changes as it is written. Its name leads here for as long as it is there.
            (described.size, described.modified_nanos) = (draft.size(), nanos(draft.modified()));
            described.name_ttl = DRAFT_NAME_TTL;
            return described;
        }
        described.name_ttl = shown.known.remaining(now);
        // Whether the root can be written may change as mounts do.
        let is_fixed = (inode.ino == ROOT && self.staging.is_none()) || !described.is_directory;
        described.attr_ttl = if is_fixed && !shown.removed { FOR_EVER } else { described.name_ttl };
        described
    }

    #[cold]
    pub(crate) fn found_changed(&self, inode: &Inode) {
        self.inodes.mark_changed(inode);
        self.forget_copy(version_id(&inode.known().attr));
        self.forget_name(&inode.path());
    }

    /// No program will open this version any more.
    pub(crate) fn forget_copy(&self, version: Option<FileId>) {
        if let (Some(materialised), Some(version)) = (&self.materialised, version) {
            materialised.files().forget(version);
        }
    }

    /// Has the kernel look up `path` again, and the origin be asked about it; with `below`, also all below it that the kernel holds.
    /// `None`: the kernel did not take all names in time.
    pub(crate) fn refresh(&self, path: &FsPath, below: bool) -> Option<u64> {
        let now = Instant::now();
        let held = self.inodes.held_below(path);
        let wanted: Vec<_> = held.into_iter().filter(|inode| below || inode.path() == *path).collect();
        let mut names: BTreeSet<FsPath> = wanted.iter().map(|inode| inode.path()).collect();
        wanted.iter().for_each(|inode| inode.expire(now));
        // Also a name that the kernel believes not to be there.
        names.insert(path.clone());
        for name in names.iter().filter(|name| !name.is_root()) {
            if !self.stale.push_patiently(self.inodes.directory(&name.parent()), name.name(), now + TAKEN_WITHIN) {
                return None;
            }
        }
        self.stale.wait(TOLD_WITHIN);
        Some(names.len() as u64)
    }

    /// The kernel shall look this name up again.
    pub(crate) fn forget_name(&self, path: &FsPath) {
        self.stale.push(self.inodes.directory(&path.parent()), path.name());
    }
}

/// For a handle that is about to be opened, "no such file" would be final; the kernel shall look the name up again.
fn gone_is_stale(failure: Failure) -> Failure {
    match failure.kind() {
        FailureKind::NotFound => Failure::new(FailureKind::VersionChanged, failure.message()),
        _ => failure,
    }
}

fn expected_length(size: u64, offset: u64, length: u32) -> usize {
    size.saturating_sub(offset).min(u64::from(length)) as usize
}

fn total(spans: &Spans) -> usize {
    spans.iter().map(|span| span.len()).sum()
}
