//! What the next process that serves the mount must know: taken from a file system in which nothing is under way and nothing is open
//! for writing, and put into a new one. How it gets there is in [`forebay_handover`].
//!
//! What the kernel was told holds on: numbers, handles, positions. What workers said does not: it has expired, and is asked again.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use forebay_fuse_io::Backings;
use forebay_fuse_io::protocol::init::Negotiated;
use forebay_handover::{
    Agreed, DirectoryHandle as HandedDirectory, FileHandle as HandedFile, Handles, HeldInode, Identity, Named, Reads,
    Refusal, State, Suspect, replay,
};
use tokio::sync::Mutex;

use crate::filesystem::FileSystem;
use crate::handle::{DirectoryHandle, FileHandle, Names, ReadThrough};
use crate::handles::HandleTable;
use crate::inode::Inode;
use crate::inodes::{InodeTable, ROOT};
use crate::listing::Listing;
use crate::options::MountOptions;
use crate::pinned::Pinned;
use crate::virtual_files::VirtualFiles;

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
    let named = files.inodes.named().into_iter().filter(|(_, inode)| inode.is_written());
    let named: Vec<_> = named.map(|(path, _)| path.to_string()).collect();
    if !named.is_empty() {
        return named;
    }
    // Those that were removed have no name, and then all that the kernel holds must be looked at.
    let unnamed = files.inodes.held().into_iter().filter(|inode| inode.is_written());
    unnamed.map(|inode| format!("{} (removed)", inode.path())).collect()
}

/// What the next process must know.
///
/// # Errors
/// When something is under way, or open for writing, after all.
pub(crate) fn capture(files: &FileSystem, virtual_files: &VirtualFiles, agreed: &Negotiated) -> Result<State, Refusal> {
    captured(files, virtual_files, agreed, Inode::handed)
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
    if let Ok(state) = capture(files, virtual_files, agreed) {
        return Ok(state);
    }
    let told = |inode: &Inode| {
        let mut told = None;
        inode.noted(|held| told = Some(held));
        told
    };
    let state = captured(files, virtual_files, agreed, told)?;
    // As after a crash: handles are counted anew, and those of writers among them.
    replay(state, &[]).map_err(|nonsense| Refusal::Other(nonsense.to_string()))
}

fn captured(
    files: &FileSystem,
    virtual_files: &VirtualFiles,
    agreed: &Negotiated,
    told: impl Fn(&Inode) -> Option<HeldInode>,
) -> Result<State, Refusal> {
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
    Ok(State {
        agreed: agreed_on(agreed),
        inodes: inodes.ok_or_else(|| Refusal::Writers(being_written(files)))?,
        names,
        suspects,
        files: open,
        directories,
        virtual_files: virtual_files.handed(),
    })
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

/// `files`, in which there is nothing yet, with what another process had; and its files that are in no origin.
pub(crate) fn restore(files: FileSystem, state: State, backings: &Backings) -> (FileSystem, VirtualFiles) {
    let now = Instant::now();
    let pinned = |id, size| Arc::new(Pinned::inherited(backings.adopt(id), size));
    let restored = |held| Arc::new(Inode::restored(held, now, pinned));
    let are_held: Vec<bool> = state.inodes.iter().map(|inode| inode.lookups > 0 || inode.ino == ROOT).collect();
    let inodes: Vec<Arc<Inode>> = state.inodes.into_iter().map(restored).collect();
    // A state whose places lead nowhere is not decoded.
    let at = |place: u32| Arc::clone(&inodes[place as usize]);

    let held = inodes.iter().zip(are_held).filter(|(_, is_held)| *is_held).map(|(inode, _)| Arc::clone(inode));
    let named = state.names.into_iter().map(|named| (named.path, at(named.inode))).collect();
    let suspects = state.suspects.into_iter().map(|suspect| (suspect.path, suspect.ino)).collect();
    let table = InodeTable::restored(held, named, suspects).noting_in(files.journal.clone());
    let open = HandleTable::restored(state.files, |file| restored_file(&files, at(file.inode), file));
    let directories = HandleTable::restored(state.directories, |directory| {
        let HandedDirectory { inode, page, marks, created } = directory;
        let inode = at(inode);
        let names = Names { listing: Listing::restored(&inode.path(), page, marks, now), created, noted: 0 };
        Arc::new(DirectoryHandle { inode, names: Mutex::new(names) })
    });
    let virtual_files = VirtualFiles::restored(state.virtual_files).noting_in(files.journal.clone());
    (FileSystem { inodes: table, files: open, directories, ..files }, virtual_files)
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
