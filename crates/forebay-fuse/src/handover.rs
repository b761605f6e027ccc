//! What the next process that serves the mount must know: taken from a file system in which nothing is under way, and put into a new
//! one. How it gets there is in [`forebay_handover`].
//!
//! What is open for writing goes beside it ([`Moving`]), with its bytes: the next process goes on where this one stopped. In the state
//! itself it is lost, for those who go on without.
//!
//! What the kernel was told holds on: numbers, handles, positions. What workers said does not: it has expired, and is asked again.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use forebay_fuse_io::Backings;
use forebay_fuse_io::protocol::init::Negotiated;
use forebay_handover::{
    Agreed, DirectoryHandle as HandedDirectory, FileHandle as HandedFile, Handles, HeldInode, Identity, Named, Reads,
    Refusal, State, Suspect, Written, replay,
};
use forebay_staging::{Draft, Handing, adopt};
use forebay_types::Failure;
use tokio::sync::Mutex;

use crate::failures::read_only;
use crate::filesystem::FileSystem;
use crate::handle::{DirectoryHandle, FileHandle, Names, ReadThrough};
use crate::handles::HandleTable;
use crate::inode::Inode;
use crate::inodes::{InodeTable, ROOT};
use crate::listing::Listing;
use crate::options::MountOptions;
use crate::pinned::Pinned;
use crate::virtual_files::VirtualFiles;
use crate::writers::pid_namespace;

/// Handles of a file that write, at most, whose processes are told of: it all goes in one message.
const MAX_KNOWN: usize = 256;

impl MountOptions {
    /// What a hand-over cannot change of a mount with these options at `mountpoint` that shows `namespace`: an origin, or a cluster.
    #[must_use]
    pub fn identity(&self, mountpoint: &Path, namespace: &str) -> Identity {
        Identity {
            mountpoint: mountpoint.display().to_string(),
            namespace: namespace.to_owned(),
            read_only: self.writing.is_none(),
            allow_other: self.allow_other,
            uid: self.owner(),
            gid: self.group(),
            file_mode: self.file_mode,
            directory_mode: self.directory_mode,
            max_read: self.max_read_bytes(),
            max_background: self.max_background,
            passthrough: self.local.is_some(),
        }
    }
}

/// Paths of files that are open for writing, or of which something is on its way.
pub(crate) fn being_written(files: &FileSystem) -> Vec<String> {
    paths_of(files, Inode::is_written)
}

/// Paths of those files that cannot go on in another process as they are: those that were removed, and those that are on their way.
pub(crate) fn held_back(files: &FileSystem) -> Vec<String> {
    paths_of(files, |inode| inode.is_written() && inode.movable().is_none())
}

fn paths_of(files: &FileSystem, is_meant: impl Fn(&Inode) -> bool) -> Vec<String> {
    let named = files.inodes.named().into_iter().filter(|(_, inode)| is_meant(inode));
    let named: Vec<_> = named.map(|(path, _)| path.to_string()).collect();
    if !named.is_empty() {
        return named;
    }
    // Those that were removed have no name, and then all that the kernel holds must be looked at.
    let unnamed = files.inodes.held().into_iter().filter(|inode| is_meant(inode));
    unnamed.map(|inode| format!("{} (removed)", inode.path())).collect()
}

/// A file that is open for writing, and about to go on in the next process.
pub(crate) struct Moving {
    pub(crate) written: Written,
    pub(crate) handing: Handing,
}

/// What the next process must know, and what is open for writing, which is held still from now on. Waits until then for what is on its
/// way.
///
/// # Errors
/// When something is under way, or cannot go on in another process, after all.
pub(crate) fn capture(
    files: &FileSystem,
    virtual_files: &VirtualFiles,
    agreed: &Negotiated,
    until: Instant,
) -> Result<(State, Vec<Moving>), Refusal> {
    let told = |inode: &Inode| inode.handed().or_else(|| inode.movable().map(|_| inode.without_draft()));
    let (state, inodes) = captured(files, virtual_files, agreed, told)?;
    let mut writers: HashMap<*const Inode, Vec<(u64, Vec<u32>)>> = HashMap::new();
    let writing = |file: &FileHandle| Some((Arc::as_ptr(&file.inode), file.writers.as_ref()?.handed()));
    for (handle, file) in files.files.handed(writing).open {
        if let Some((inode, processes)) = file {
            writers.entry(inode).or_default().push((handle, processes));
        }
    }
    let pid_namespace = pid_namespace();
    let mut moving = Vec::new();
    for (place, inode) in (0..).zip(&inodes) {
        let Some(draft) = inode.draft() else { continue };
        let handing = Handing::begin(&draft, until).map_err(|failure| Refusal::Other(failure.to_string()))?;
        let writers = writers.remove(&Arc::as_ptr(inode)).unwrap_or_default();
        let (writers, mut processes): (Vec<_>, Vec<_>) = writers.into_iter().unzip();
        processes.truncate(MAX_KNOWN);
        let (changed, draft) = (inode.is_changed(), handing.passed().to_vec());
        let written = Written { inode: place, writers, processes, pid_namespace, changed, draft };
        moving.push(Moving { written, handing });
    }
    Ok((state, moving))
}

/// What a process must know that goes on without what is open for writing.
///
/// # Errors
/// When something is under way.
pub(crate) fn capture_without_drafts(
    files: &FileSystem,
    virtual_files: &VirtualFiles,
    agreed: &Negotiated,
) -> Result<State, Refusal> {
    captured(files, virtual_files, agreed, |inode| Some(inode.without_draft())).map(|(state, _)| state)
}

/// The same for whoever goes on when this process has ended: what is open for writing is lost then, as after a crash.
///
/// # Errors
/// When something is under way.
pub(crate) fn capture_to_leave(
    files: &FileSystem,
    virtual_files: &VirtualFiles,
    agreed: &Negotiated,
) -> Result<State, Refusal> {
    if let Ok((state, _)) = captured(files, virtual_files, agreed, Inode::handed) {
        return Ok(state);
    }
    let state = capture_without_drafts(files, virtual_files, agreed)?;
    // As after a crash: handles are counted anew, and those of writers among them.
    replay(state, &[]).map_err(|nonsense| Refusal::Other(nonsense.to_string()))
}

fn captured(
    files: &FileSystem,
    virtual_files: &VirtualFiles,
    agreed: &Negotiated,
    told: impl Fn(&Inode) -> Option<HeldInode>,
) -> Result<(State, Vec<Arc<Inode>>), Refusal> {
    let mut places = Places::default();
    for inode in files.inodes.held() {
        places.of(&inode);
    }
    let names = files.inodes.named().into_iter().map(|(path, inode)| Named { path, inode: places.of(&inode) });
    let names = names.collect();
    let suspects = files.inodes.suspects().into_iter().map(|(path, ino)| Suspect { path, ino }).collect();
    let open = files.files.handed(|file| file.handed(places.of(&file.inode)));
    let directories = handed_directories(files, &mut places)?;
    let inodes: Option<Vec<_>> = places.inodes.iter().map(|inode| told(inode)).collect();
    let state = State {
        agreed: agreed_on(agreed),
        inodes: inodes.ok_or_else(|| Refusal::Writers(being_written(files)))?,
        names,
        suspects,
        files: open,
        directories,
        virtual_files: virtual_files.handed(),
    };
    Ok((state, places.inodes))
}

/// Inodes, and where each is in the state.
#[derive(Default)]
struct Places {
    inodes: Vec<Arc<Inode>>,
    places: HashMap<*const Inode, u32>,
}

impl Places {
    fn of(&mut self, inode: &Arc<Inode>) -> u32 {
        *self.places.entry(Arc::as_ptr(inode)).or_insert_with(|| {
            self.inodes.push(Arc::clone(inode));
            // Of four billion inodes there is no state that anybody could take.
            u32::try_from(self.inodes.len() - 1).unwrap_or(u32::MAX)
        })
    }
}

fn handed_directories(files: &FileSystem, places: &mut Places) -> Result<Handles<HandedDirectory>, Refusal> {
    let mut busy = 0;
    let handles = files.directories.handed(|directory| {
        let inode = places.of(&directory.inode);
        let Ok(names) = directory.names.try_lock() else {
            busy += 1;
            return HandedDirectory { inode, page: None, marks: Vec::new(), created: Vec::new() };
        };
        let (page, marks) = names.listing.handed();
        HandedDirectory { inode, page, marks, created: names.created.clone() }
    });
    if busy == 0 { Ok(handles) } else { Err(Refusal::Unanswered(busy)) }
}

/// What another process had.
pub(crate) struct Restored {
    pub(crate) files: FileSystem,
    /// Its files that are in no origin.
    pub(crate) virtual_files: VirtualFiles,
    /// What is open for writing. To be [made this process's](Draft::own) when it serves.
    pub(crate) drafts: Vec<Arc<Draft>>,
}

/// `files`, in which there is nothing yet, with what another process had, of which `written` is open for writing.
///
/// # Errors
/// When what is open for writing cannot go on here.
pub(crate) fn restore(
    files: FileSystem,
    state: State,
    written: Vec<(Written, OwnedFd)>,
    backings: &Backings,
) -> Result<Restored, Failure> {
    let now = Instant::now();
    let mut drafts = HashMap::new();
    let mut writers = HashMap::new();
    let here = pid_namespace();
    for (mut file, bytes) in written {
        let staging = files.staging.as_ref().ok_or_else(read_only)?;
        // Elsewhere they have other numbers.
        let is_here = here.is_some() && here == file.pid_namespace;
        let known = if is_here { std::mem::take(&mut file.processes) } else { Vec::new() };
        let processes = known.into_iter().chain(std::iter::repeat_with(Vec::new));
        writers.extend(file.writers.iter().copied().zip(processes));
        drafts.insert(file.inode, (adopt(staging, &file.draft, bytes)?, file));
    }
    let pinned = |id, size| Arc::new(Pinned::inherited(backings.adopt(id), size));
    let restored = |(place, held): (u32, HeldInode)| {
        let mut inode = Inode::restored(held, now, pinned);
        if let Some((draft, file)) = drafts.get(&place) {
            // As many as there are handles.
            inode.goes_on(Arc::clone(draft), u32::try_from(file.writers.len()).unwrap_or(u32::MAX), file.changed);
        }
        Arc::new(inode)
    };
    let are_held: Vec<bool> = state.inodes.iter().map(|inode| inode.lookups > 0 || inode.ino == ROOT).collect();
    let inodes: Vec<Arc<Inode>> = (0..).zip(state.inodes).map(restored).collect();
    // A state whose places lead nowhere is not decoded.
    let at = |place: u32| Arc::clone(&inodes[place as usize]);

    let held = inodes.iter().zip(are_held).filter(|(_, is_held)| *is_held).map(|(inode, _)| Arc::clone(inode));
    let named = state.names.into_iter().map(|named| (named.path, at(named.inode))).collect();
    let suspects = state.suspects.into_iter().map(|suspect| (suspect.path, suspect.ino)).collect();
    let table = InodeTable::restored(held, named, suspects).noting_in(files.journal.clone());
    let Handles { open, numbers } = state.files;
    let numbered = Handles { open: open.into_iter().map(|(handle, file)| (handle, (handle, file))).collect(), numbers };
    let open = HandleTable::restored(numbered, |(handle, file): (u64, HandedFile)| {
        let inode = at(file.inode);
        match writers.remove(&handle) {
            Some(processes) => FileHandle::writing_on(inode, file.revision, processes),
            None => restored_file(&files, inode, file),
        }
    });
    let directories = HandleTable::restored(state.directories, |directory| {
        let HandedDirectory { inode, page, marks, created } = directory;
        let inode = at(inode);
        let names = Names { listing: Listing::restored(&inode.path(), page, marks, now), created, noted: 0 };
        Arc::new(DirectoryHandle { inode, names: Mutex::new(names) })
    });
    let virtual_files = VirtualFiles::restored(state.virtual_files).noting_in(files.journal.clone());
    let drafts = drafts.into_values().map(|(draft, _)| draft).collect();
    Ok(Restored { files: FileSystem { inodes: table, files: open, directories, ..files }, virtual_files, drafts })
}

fn restored_file(files: &FileSystem, inode: Arc<Inode>, handed: HandedFile) -> FileHandle {
    let attr = inode.known().attr;
    let version = match handed.reads {
        Reads::Lost => return FileHandle::lost(inode, handed.revision),
        Reads::WhatItsInodeIs => None,
        Reads::ItsInodesVersion => attr.version().cloned(),
        Reads::Version(version) => Some(version),
    };
    let file = version.map(|version| files.client.open_replicated(version, attr.replicas));
    let read = handed.read.filter(|_| files.materialised.is_some()).map(|read| Arc::new(ReadThrough::after(read)));
    FileHandle::for_reading(inode, file, handed.revision, read)
}

/// What INIT agreed on, as the next process is told of it.
fn agreed_on(negotiated: &Negotiated) -> Agreed {
    Agreed {
        kernel: negotiated.kernel,
        capabilities: negotiated.capabilities,
        max_readahead: negotiated.max_readahead,
        max_write: negotiated.max_write,
        max_pages: negotiated.max_pages,
        page_size: negotiated.page_size,
        max_background: negotiated.max_background,
        congestion_threshold: negotiated.congestion_threshold,
    }
}

/// The other way round.
pub(crate) fn negotiated(agreed: &Agreed) -> Negotiated {
    Negotiated {
        kernel: agreed.kernel,
        capabilities: agreed.capabilities,
        max_readahead: agreed.max_readahead,
        max_write: agreed.max_write,
        max_pages: agreed.max_pages,
        page_size: agreed.page_size,
        max_background: agreed.max_background,
        congestion_threshold: agreed.congestion_threshold,
    }
}
