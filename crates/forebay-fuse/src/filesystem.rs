//! The file system: what each request of the kernel means, whoever carries it.
//!
//! Nothing here knows of a device, a descriptor or a reply. [`crate::device`] feeds it from `/dev/fuse`.
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

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::{Client, OpenFile};
use forebay_memory::Spans;
use forebay_types::{Attr, DirEntry, Failure, FailureKind, FsPath, PathError};
use tokio::sync::Mutex;

use crate::handles::HandleTable;
use crate::inode::{Inode, InodeTable, Known, ROOT};
use crate::listing::{At, Listing};
use crate::options::MountOptions;
use crate::stale::StaleNames;
use crate::virtual_files::VirtualFile;

/// Attributes of a version never change, and nor does what the kernel knows of the root.
const FOR_EVER: Duration = Duration::from_secs(86_400);
/// Within one `open(2)` the kernel looks the name up and then opens the inode. What the lookup asked for just now need
/// not be asked again, also where answers are valid for no time at all.
const LOOKUP_COVERS_OPEN: Duration = Duration::from_millis(100);
/// A directory may have pages without names, but not so many in a row.
const MAX_EMPTY_PAGES: u32 = 1000;
/// Where the names start: before them come `.` and `..`.
const FIRST_NAME: u64 = 2;

/// The file system of one mount.
pub(crate) struct FileSystem {
    client: Client,
    inodes: InodeTable,
    files: HandleTable<FileHandle>,
    directories: HandleTable<Arc<DirectoryHandle>>,
    stale: StaleNames,
    negative_ttl: Duration,
    open_status_cache: bool,
    list_page: u32,
}

/// An inode as the kernel is told of it.
pub(crate) struct Described {
    pub(crate) ino: u64,
    pub(crate) attr: Attr,
    /// How long the attributes may be believed.
    pub(crate) attr_ttl: Duration,
    /// How long the name may be believed to lead here.
    pub(crate) name_ttl: Duration,
}

/// What a name leads to.
pub(crate) enum Found {
    /// This, and the kernel holds it once more.
    Inode(Described),
    /// Nothing, which may be believed for so long.
    Nothing(Duration),
}

/// An open file.
#[derive(Clone)]
pub(crate) struct FileHandle {
    file: Arc<OpenFile>,
    inode: Arc<Inode>,
}

/// What can be said of a read at once.
pub(crate) enum Attempt {
    /// All of it.
    Hit(Spans),
    /// Nothing: it must be waited for with [`FileSystem::read`].
    Miss(FileHandle),
    /// No such handle.
    NotOpen,
}

struct DirectoryHandle {
    inode: Arc<Inode>,
    listing: Mutex<Listing>,
}

/// One name of a directory.
pub(crate) struct Listed<'a> {
    pub(crate) name: &'a [u8],
    /// Where reading goes on after this name.
    pub(crate) next: u64,
    pub(crate) inode: Described,
}

impl FileSystem {
    pub(crate) fn new(client: Client, stale: StaleNames, options: &MountOptions) -> Self {
        Self {
            client,
            inodes: InodeTable::new(Instant::now()),
            files: HandleTable::new(),
            directories: HandleTable::new(),
            stale,
            negative_ttl: options.negative_ttl,
            open_status_cache: options.open_status_cache,
            list_page: options.list_page.max(1),
        }
    }

    /// What `name` in directory `parent` is.
    pub(crate) async fn lookup(&self, parent: u64, name: &[u8]) -> Result<Found, Failure> {
        let path = self.inode(parent)?.path.join(name).map_err(impossible_name)?;
        let revalidate = self.inodes.is_suspect(&path);
        let asked = Instant::now();
        match self.client.stat(&path, revalidate).await {
            Ok(stat) => {
                if revalidate {
                    self.inodes.cleared(&path, Some(&stat.attr));
                }
                let inode = self.inodes.remember(&path, Known::new(stat.attr, asked, stat.valid_for));
                Ok(Found::Inode(describe(&inode, Instant::now())))
            }
            Err(failure) if failure.kind() == FailureKind::NotFound => {
                if revalidate {
                    self.inodes.cleared(&path, None);
                }
                Ok(Found::Nothing(self.negative_ttl))
            }
            Err(failure) => Err(failure),
        }
    }

    /// The kernel no longer holds `count` of its lookups of `ino`.
    pub(crate) fn forget(&self, ino: u64, count: u64) {
        self.inodes.forget(ino, count);
    }

    /// The attributes of `ino`.
    pub(crate) async fn attributes(&self, ino: u64) -> Result<Described, Failure> {
        let inode = self.inode(ino)?;
        let described = describe(&inode, Instant::now());
        if !described.attr_ttl.is_zero() {
            return Ok(described);
        }
        let asked = Instant::now();
        let stat = self.client.stat(&inode.path, false).await?;
        if !inode.is_of(&stat.attr) {
            return Err(stale(&inode.path));
        }
        inode.learn(Known::new(stat.attr, asked, stat.valid_for));
        Ok(describe(&inode, Instant::now()))
    }

    /// A handle on the version that `ino` stands for.
    pub(crate) async fn open(&self, ino: u64, flags: i32) -> Result<u64, Failure> {
        // The kernel says this by itself on a read-only mount; remounted read-write, it would come here.
        if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & (libc::O_TRUNC | libc::O_APPEND) != 0 {
            return Err(read_only());
        }
        let inode = self.inode(ino)?;
        if inode.is_changed() {
            return Err(stale(&inode.path));
        }
        let known = inode.known();
        let now = Instant::now();
        let believed = self.open_status_cache && known.fresh_until > now;
        if !believed && now.duration_since(known.asked) > LOOKUP_COVERS_OPEN {
            let stat = self.client.stat(&inode.path, false).await.map_err(gone_is_stale)?;
            if !inode.is_of(&stat.attr) {
                return Err(stale(&inode.path));
            }
            inode.learn(Known::new(stat.attr, now, stat.valid_for));
        }
        let Some(version) = known.attr.version().cloned() else {
            return Err(Failure::new(FailureKind::IsADirectory, format!("{} is a directory", inode.path)));
        };
        let file = self.client.open_replicated(version, known.attr.replicas);
        self.files.insert(FileHandle { file, inode }).ok_or_else(too_many_open)
    }

    /// Reads what can be read without waiting. Takes no lock.
    pub(crate) fn try_read(&self, handle: u64, offset: u64, length: u32) -> Attempt {
        let attempt = self.files.with(handle, |open| {
            let expected = expected_length(open.file.version().size, offset, length);
            if expected == 0 {
                return Attempt::Hit(Spans::new());
            }
            match open.file.try_read(offset, length) {
                Some(spans) if total(&spans) == expected => Attempt::Hit(spans),
                _ => Attempt::Miss(open.clone()),
            }
        });
        attempt.unwrap_or(Attempt::NotOpen)
    }

    /// Reads, waiting for workers.
    pub(crate) async fn read(&self, open: &FileHandle, offset: u64, length: u32) -> Result<Spans, Failure> {
        match open.file.read(offset, length).await {
            Ok(spans) => {
                let expected = expected_length(open.file.version().size, offset, length);
                if total(&spans) == expected {
                    return Ok(spans);
                }
                // The kernel would fill up a short answer with zeros.
                let message = format!(
                    "{}: read of {length} bytes at {offset} gave {}, not {expected}",
                    open.inode.path,
                    total(&spans)
                );
                Err(Failure::new(FailureKind::Corrupt, message))
            }
            Err(failure) => {
                if failure.kind() == FailureKind::VersionChanged {
                    self.found_changed(&open.inode);
                }
                Err(failure.context(&open.inode.path))
            }
        }
    }

    /// The file is closed.
    pub(crate) fn release(&self, handle: u64) {
        self.files.remove(handle);
    }

    /// A handle on the directory `ino`.
    pub(crate) fn open_directory(&self, ino: u64) -> Result<u64, Failure> {
        let inode = self.inode(ino)?;
        if inode.known().attr.version().is_some() {
            return Err(Failure::new(FailureKind::NotADirectory, format!("{} is a file", inode.path)));
        }
        let handle = DirectoryHandle { inode, listing: Mutex::default() };
        self.directories.insert(Arc::new(handle)).ok_or_else(too_many_open)
    }

    /// Tells `take` the names from position `offset` on, until it says that it has no room for the last one it was
    /// told. With `hold`, the kernel holds each inode that was taken once more.
    pub(crate) async fn read_directory(
        &self,
        handle: u64,
        offset: u64,
        hold: bool,
        mut take: impl FnMut(Listed<'_>) -> bool + Send,
    ) -> Result<(), Failure> {
        let Some(directory) = self.directories.with(handle, Arc::clone) else { return Err(not_open()) };
        let mut listing = directory.listing.lock().await;
        if offset == 0 {
            listing.rewind();
        }
        let mut position = offset;
        while position < FIRST_NAME {
            let (name, ino): (&[u8], u64) = match position {
                0 => (b".", directory.inode.ino),
                _ => (b"..", self.inodes.number(&directory.inode.path.parent(), None)),
            };
            position += 1;
            let inode = Described { ino, attr: Attr::directory(), attr_ttl: Duration::ZERO, name_ttl: Duration::ZERO };
            if !take(Listed { name, next: position, inode }) {
                return Ok(());
            }
        }
        loop {
            let filled = self.fill(&directory.inode.path, &mut listing, position - FIRST_NAME).await;
            let names = match filled {
                // What was taken is not lost: the kernel comes back for the rest, and gets the failure then.
                Err(_) if position > offset => return Ok(()),
                Err(failure) => return Err(failure),
                Ok(At::Names { entries, fresh_until }) => Some((entries, fresh_until)),
                Ok(At::End | At::Unlisted { .. }) => None,
            };
            let Some((entries, fresh_until)) = names else { return Ok(()) };
            for entry in entries {
                position += 1;
                let Some(inode) = self.describe_entry(&directory.inode.path, entry, fresh_until, hold) else {
                    continue;
                };
                let ino = inode.ino;
                if !take(Listed { name: &entry.name, next: position, inode }) {
                    if hold {
                        self.inodes.forget(ino, 1);
                    }
                    return Ok(());
                }
            }
        }
    }

    /// The directory is closed.
    pub(crate) fn release_directory(&self, handle: u64) {
        self.directories.remove(handle);
    }

    /// The client whose namespace this is.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// How many inodes the kernel holds.
    pub(crate) fn held_inodes(&self) -> usize {
        self.inodes.len()
    }

    /// Lists until there are names at `position`, or none.
    async fn fill<'a>(&self, path: &FsPath, listing: &'a mut Listing, position: u64) -> Result<At<'a>, Failure> {
        for _ in 0..MAX_EMPTY_PAGES {
            let At::Unlisted { start, token } = listing.at(position) else { return Ok(listing.at(position)) };
            let asked = Instant::now();
            let page = self.client.list(path, token, self.list_page).await?;
            let fresh_until = Known::new(Attr::directory(), asked, page.valid_for).fresh_until;
            listing.listed(start, page.entries, page.next, fresh_until);
        }
        Err(Failure::new(FailureKind::Internal, format!("{path}: {MAX_EMPTY_PAGES} pages without a name")))
    }

    /// `None` for a name that no file can have: the kernel would fail the whole listing for it; and for one that is hidden by
    /// a file of ours.
    fn describe_entry(&self, parent: &FsPath, entry: &DirEntry, fresh_until: Instant, hold: bool) -> Option<Described> {
        if parent.is_root() && VirtualFile::named(&entry.name).is_some() {
            return None;
        }
        let path = match parent.join(&entry.name) {
            Ok(path) => path,
            Err(error) => {
                tracing::debug!(%error, "a name is left out of a listing");
                return None;
            }
        };
        if hold {
            let now = Instant::now();
            // A page may have been listed a while ago, and then it covers no open.
            let known = Known { attr: entry.attr.clone(), asked: fresh_until.min(now), fresh_until };
            let inode = self.inodes.remember(&path, known);
            return Some(describe(&inode, now));
        }
        let ino = self.inodes.number(&path, entry.attr.version().map(|version| version.id()).as_ref());
        Some(Described { ino, attr: entry.attr.clone(), attr_ttl: Duration::ZERO, name_ttl: Duration::ZERO })
    }

    fn inode(&self, ino: u64) -> Result<Arc<Inode>, Failure> {
        let unknown = || Failure::new(FailureKind::VersionChanged, format!("inode {ino} is unknown"));
        self.inodes.get(ino).ok_or_else(unknown)
    }

    #[cold]
    fn found_changed(&self, inode: &Inode) {
        self.inodes.mark_changed(inode);
        let parent = self.inodes.number(&inode.path.parent(), None);
        self.stale.push(parent, inode.path.name());
    }
}

fn describe(inode: &Inode, now: Instant) -> Described {
    let known = inode.known();
    let name_ttl = known.remaining(now);
    let attr_ttl = if inode.ino == ROOT || known.attr.version().is_some() { FOR_EVER } else { name_ttl };
    Described { ino: inode.ino, attr: known.attr, attr_ttl, name_ttl }
}

fn expected_length(size: u64, offset: u64, length: u32) -> usize {
    size.saturating_sub(offset).min(u64::from(length)) as usize
}

fn total(spans: &Spans) -> usize {
    spans.iter().map(|span| span.len()).sum()
}

fn stale(path: &FsPath) -> Failure {
    Failure::new(FailureKind::VersionChanged, format!("{path} has another version by now"))
}

/// For a handle that is about to be opened, "no such file" would be final; the kernel shall look the name up again.
fn gone_is_stale(failure: Failure) -> Failure {
    match failure.kind() {
        FailureKind::NotFound => Failure::new(FailureKind::VersionChanged, failure.message()),
        _ => failure,
    }
}

fn impossible_name(error: PathError) -> Failure {
    let kind = match error {
        PathError::NameTooLong(_) => FailureKind::NameTooLong,
        PathError::Relative(_) | PathError::BadName(_) => FailureKind::InvalidArgument,
    };
    Failure::new(kind, error.to_string())
}

pub(crate) fn read_only() -> Failure {
    Failure::new(FailureKind::ReadOnly, "the mount does not take writes")
}

pub(crate) fn not_open() -> Failure {
    Failure::new(FailureKind::InvalidArgument, "the handle is not open")
}

fn too_many_open() -> Failure {
    Failure::new(FailureKind::OutOfResources, "too many files are open")
}
