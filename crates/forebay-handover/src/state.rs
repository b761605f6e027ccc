//! What a daemon knows of a mount that the kernel relies on, at a moment when no request is under way. Of files that are open for
//! writing more is to be known ([`Written`]).
//!
//! A state that was read makes sense ([`State::check`]): whoever restores it need not look again whether an inode is there that a
//! handle names. Inodes are named by their place in the list, since a handle may be open on one that the kernel has forgotten
//! meanwhile, while another one has its number.

use std::collections::{HashMap, HashSet};

use forebay_types::{Attr, DirEntry, FileVersion, FsPath};
use serde::{Deserialize, Serialize};

use crate::fields;

/// The number of the root, by FUSE's definition.
const ROOT: u64 = 1;
/// What requests of the kernel may write and read at once is megabytes; a buffer of the size that INIT agreed on is allocated.
const MAX_REQUEST: u32 = 16 << 20;

/// What a daemon knows of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// What INIT agreed on.
    pub agreed: Agreed,
    /// All that the kernel holds, or that a name or a handle leads to.
    pub inodes: Vec<HeldInode>,
    /// Names that lead to an inode which is not found by its number.
    pub names: Vec<Named>,
    /// What must be asked anew at the origin.
    pub suspects: Vec<Suspect>,
    /// Open files.
    pub files: Handles<FileHandle>,
    /// Open directories.
    pub directories: Handles<DirectoryHandle>,
    /// Open files that are in no origin.
    pub virtual_files: Handles<VirtualHandle>,
}

/// What INIT agreed on, of which the kernel is never told again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreed {
    /// The version of the kernel's protocol.
    pub kernel: (u32, u32),
    /// What is used, as bits of the protocol.
    pub capabilities: u64,
    /// How far the kernel reads ahead, in bytes.
    pub max_readahead: u32,
    /// The most that one request writes, in bytes.
    pub max_write: u32,
    /// Pages of a request, at most.
    pub max_pages: u16,
    /// Bytes in a page.
    pub page_size: u32,
    /// Read-ahead and asynchronous direct requests that may be under way.
    pub max_background: u16,
    /// So many of them mean that the daemon cannot keep up.
    pub congestion_threshold: u16,
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldInode {
    /// Its number.
    pub ino: u64,
    /// References that the kernel holds; without any, it is found by a name or a handle only.
    pub lookups: u64,
    /// Where it is, or was before it was removed.
    #[serde(with = "fields::path")]
    pub path: FsPath,
    /// What is known of it, with its version.
    #[serde(with = "fields::attr")]
    pub attr: Attr,
    /// Counts what writing has made of it.
    pub revision: u64,
    /// A read found that the origin has another version.
    pub changed: bool,
    /// Its name leads elsewhere.
    pub removed: bool,
    /// What was written to it could not be uploaded.
    pub lost: bool,
    /// A writer is about to come for it.
    pub kept: bool,
    /// How its handles are open.
    pub open: Open,
}

/// How the handles of an inode are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Open {
    /// There are none.
    Not,
    /// So many, which the daemon serves.
    Served(u32),
    /// All of them pass through to a file.
    Passed {
        /// What the kernel calls it.
        backing: u32,
        /// Its length in bytes.
        size: u64,
        /// How many.
        handles: u32,
    },
}

/// A name that leads to an inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// The name.
    #[serde(with = "fields::path")]
    pub path: FsPath,
    /// The place of the inode in [`State::inodes`].
    pub inode: u32,
}

/// A path of which a reader found another version at the origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    /// The path.
    #[serde(with = "fields::path")]
    pub path: FsPath,
    /// The number of the inode that was found changed.
    pub ino: u64,
}

/// What is open, and which numbers of handles were in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handles<T> {
    /// The handle, and what it stands for.
    pub open: Vec<(u64, T)>,
    /// What the next handles are called.
    pub numbers: HandleNumbers,
}

/// What handles may be called. The lower half of a handle is its slot, the upper half a serial number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandleNumbers {
    /// Slots that were in use and are not.
    pub freed: Vec<u32>,
    /// The serial number that was given last.
    pub serial: u32,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { open: Vec::new(), numbers: HandleNumbers::default() }
    }
}

/// An open file: not for writing, unless the process that had it so has died.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHandle {
    /// The place of its inode in [`State::inodes`].
    pub inode: u32,
    /// The inode's revision when it was opened.
    pub revision: u64,
    /// What it reads while the inode is at that revision.
    pub reads: Reads,
    /// What was read through it, where that is noted.
    pub read: Option<ReadSoFar>,
}

/// What a handle is pinned to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reads {
    /// Nothing of its own: the inode says what there is to read, or the kernel reads.
    WhatItsInodeIs,
    /// The version that its inode has now.
    ItsInodesVersion,
    /// Another version.
    Version(#[serde(with = "fields::version")] FileVersion),
    /// Nothing: it was open for writing in a process that died, and what was written is not known.
    Lost,
}

/// A file that is open for writing, and goes on being written by the next process. It goes beside the state, in which its inode is lost,
/// and its handles that write are ([`Reads::Lost`]): for whoever goes on without its bytes, as after a crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// The place of its inode in [`State::inodes`].
    pub inode: u32,
    /// The handles that write.
    pub writers: Vec<u64>,
    /// The processes that write through each of those, in the same order. None: it may be any.
    pub processes: Vec<Vec<u32>>,
    /// The PID namespace in which they have these numbers, by the number of its file, where the system says.
    pub pid_namespace: Option<u64>,
    /// A read has found that the origin has another version.
    pub changed: bool,
    /// What is known of its bytes, as whoever stages them has it.
    pub draft: Vec<u8>,
}

/// What was read through a handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadSoFar {
    /// Bytes in all.
    pub bytes: u64,
    /// Bytes of reads that began where one before ended.
    pub sequential: u64,
    /// Where the last one ended.
    pub end: u64,
}

/// An open directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryHandle {
    /// The place of its inode in [`State::inodes`].
    pub inode: u32,
    /// The names that were listed last.
    pub page: Option<Names>,
    /// Positions of names, and the tokens that list from there on.
    pub marks: Vec<(u64, String)>,
    /// Names that are not at the origin yet.
    pub created: Vec<Box<[u8]>>,
}

/// A page of names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// The position of the first one.
    pub start: u64,
    /// The names.
    #[serde(with = "fields::entries")]
    pub entries: Vec<DirEntry>,
    /// The token that lists what follows; `None`: nothing does.
    pub next: Option<String>,
}

/// An open file that is in no origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VirtualHandle {
    /// A text.
    Text(Box<[u8]>),
    /// The access log.
    Log,
}

/// Why a state makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Nonsense {
    /// Limits that no kernel has.
    #[error("what INIT agreed on is nothing that a kernel agrees on")]
    Agreed,
    /// The root's number and path belong together, and it is always held.
    #[error("there is no root, or another inode is called like it")]
    Root,
    /// The kernel could not tell them apart.
    #[error("two inodes that the kernel holds have one number")]
    Number,
    /// A place beyond the list.
    #[error("an inode is named that is not there")]
    NoInode,
    /// A name is given twice.
    #[error("a name is there twice")]
    Name,
    /// Each slot is in use once, or free once.
    #[error("slots of handles are in use twice, or there are gaps between them")]
    Slots,
    /// Handles are counted by their inode.
    #[error("an inode says another number of handles than there are")]
    Count,
    /// Handles of files are on files, and those of directories on directories.
    #[error("a handle on a directory is on a file, or the other way round")]
    Kind,
    /// Whoever writes has a handle for it.
    #[error("a file that is open for writing has no handle that writes, or is named twice")]
    Writer,
    /// Positions ascend, and end before the largest number.
    #[error("a position in a directory is beyond all positions, or they do not ascend")]
    Position,
}

impl State {
    /// Whether it makes sense, so that it can be restored.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<(), Nonsense> {
        self.agreed.check()?;
        self.check_inodes()?;
        self.check_names()?;
        self.check_files()?;
        self.check_directories()?;
        self.virtual_files.check()
    }

    /// Whether these are files of it that are open for writing, each named once.
    ///
    /// # Errors
    /// What they are not.
    pub fn check_written<'a>(&self, written: impl IntoIterator<Item = &'a Written>) -> Result<(), Nonsense> {
        let is_writer = |(_, file): &&(u64, FileHandle)| file.reads == Reads::Lost;
        let writers: HashMap<u64, u32> =
            self.files.open.iter().filter(is_writer).map(|(handle, file)| (*handle, file.inode)).collect();
        let mut inodes = HashSet::new();
        for file in written {
            if self.inode(file.inode)?.attr.version().is_none() {
                return Err(Nonsense::Kind);
            }
            let is_of_it = |handle: &u64| writers.get(handle) == Some(&file.inode);
            let mut handles = HashSet::new();
            let are_writers = file.writers.iter().all(|handle| is_of_it(handle) && handles.insert(*handle));
            if handles.is_empty() || !are_writers || !inodes.insert(file.inode) {
                return Err(Nonsense::Writer);
            }
        }
        Ok(())
    }

    fn check_inodes(&self) -> Result<(), Nonsense> {
        let mut held = HashSet::new();
        for inode in &self.inodes {
            if inode.ino == 0 || (inode.ino == ROOT) != inode.path.is_root() {
                return Err(Nonsense::Root);
            }
            let is_held = inode.lookups > 0 || inode.ino == ROOT;
            if is_held && !held.insert(inode.ino) {
                return Err(Nonsense::Number);
            }
        }
        if held.contains(&ROOT) { Ok(()) } else { Err(Nonsense::Root) }
    }

    fn check_names(&self) -> Result<(), Nonsense> {
        let mut names = HashSet::new();
        for named in &self.names {
            self.inode(named.inode)?;
            if !names.insert(&named.path) {
                return Err(Nonsense::Name);
            }
        }
        let mut suspects = HashSet::new();
        let is_once = self.suspects.iter().all(|suspect| suspects.insert(&suspect.path));
        if is_once { Ok(()) } else { Err(Nonsense::Name) }
    }

    fn check_files(&self) -> Result<(), Nonsense> {
        self.files.check()?;
        let mut counts = vec![0u32; self.inodes.len()];
        for (_, file) in &self.files.open {
            let inode = self.inode(file.inode)?;
            if inode.attr.version().is_none() {
                return Err(Nonsense::Kind);
            }
            // It is there: `inode` found it.
            if let Some(count) = counts.get_mut(file.inode as usize) {
                *count = count.saturating_add(1);
            }
        }
        let said = |inode: &HeldInode| match inode.open {
            Open::Not => 0,
            Open::Served(handles) | Open::Passed { handles, .. } => handles,
        };
        // Ways to be open without a handle are not one, either.
        let is_open = |inode: &HeldInode| inode.open == Open::Not || said(inode) > 0;
        let is_right = self.inodes.iter().zip(counts).all(|(inode, count)| said(inode) == count && is_open(inode));
        if is_right { Ok(()) } else { Err(Nonsense::Count) }
    }

    fn check_directories(&self) -> Result<(), Nonsense> {
        self.directories.check()?;
        for (_, directory) in &self.directories.open {
            if self.inode(directory.inode)?.attr.version().is_some() {
                return Err(Nonsense::Kind);
            }
            // Reading goes on behind the page, and counts `.` and `..`.
            let end = |page: &Names| page.start.checked_add(page.entries.len() as u64)?.checked_add(2);
            let is_beyond = directory.page.as_ref().is_some_and(|page| end(page).is_none());
            let is_ascending = directory.marks.windows(2).all(|pair| matches!(pair, [a, b] if a.0 < b.0));
            if is_beyond || !is_ascending {
                return Err(Nonsense::Position);
            }
        }
        Ok(())
    }

    fn inode(&self, place: u32) -> Result<&HeldInode, Nonsense> {
        self.inodes.get(place as usize).ok_or(Nonsense::NoInode)
    }
}

impl Agreed {
    fn check(&self) -> Result<(), Nonsense> {
        let request = u64::from(self.max_pages) * u64::from(self.page_size);
        let is_possible = self.kernel.0 == 7
            && self.page_size.is_power_of_two()
            && self.max_pages > 0
            && request <= u64::from(MAX_REQUEST)
            && (1..=MAX_REQUEST).contains(&self.max_write)
            && self.max_background > 0;
        if is_possible { Ok(()) } else { Err(Nonsense::Agreed) }
    }
}

impl<T> Handles<T> {
    /// Slots from 0 on are each in use once, or free once.
    fn check(&self) -> Result<(), Nonsense> {
        let in_use = self.open.iter().map(|(handle, _)| slot_of(*handle));
        let mut slots: Vec<u32> = in_use.chain(self.numbers.freed.iter().copied()).collect();
        slots.sort_unstable();
        let is_whole = (0..).zip(&slots).all(|(expected, slot): (u64, _)| u64::from(*slot) == expected);
        if is_whole { Ok(()) } else { Err(Nonsense::Slots) }
    }
}

/// The lower half.
fn slot_of(handle: u64) -> u32 {
    handle as u32
}
