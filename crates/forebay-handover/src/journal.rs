//! What changed since a state was written: for a daemon that has no time to write another one.
//!
//! A record says what something is from now on, not how it changed: to read a record twice does no harm. It is written before the
//! kernel is told, so after a crash the kernel knows of nothing that is not here; and what it was not told of any more is one
//! reference too many, which it never gives back, or a handle that it does not close. Both end with the mount.
//!
//! What was being written when the daemon died is lost to its inode: names lead to what the origin has, which is asked.
//!
//! A record has its length and a checksum before it. Where one is not whole, the journal ends: the daemon died while it wrote, and
//! the kernel was not told.

use std::collections::{BTreeMap, BTreeSet};

use forebay_types::{FsPath, crc32c};
use serde::{Deserialize, Serialize};

use crate::fields;
use crate::state::{
    DirectoryHandle, FileHandle, HandleNumbers, Handles, HeldInode, Named, Names, Nonsense, Open, State, Suspect,
    VirtualHandle,
};

/// Bytes before a record.
const HEADER: usize = 8;
/// Bytes of a record, at most: a page of a directory.
const MAX_RECORD: usize = 16 << 20;
/// How far slots may lie apart that are in use: as many as a table has.
const MAX_SLOTS: u32 = 1 << 26;
/// Slots in use that no record tells of, at most: each is of a thread that has taken one and not written it down yet.
const UNTOLD: u32 = 1 << 16;

/// What something is from now on. The place of its inode in a handle has no meaning here: the number of the inode is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// An inode is held, and this.
    Inode(HeldInode),
    /// So many references to an inode are the kernel's.
    Lookups {
        /// Its number.
        ino: u64,
        /// How many in all.
        lookups: u64,
    },
    /// An inode is not held any more.
    Forgotten {
        /// Its number.
        ino: u64,
    },
    /// A name leads to an inode, whatever its number.
    Named {
        /// The name.
        #[serde(with = "fields::path")]
        path: FsPath,
        /// The number.
        ino: u64,
    },
    /// It does so no more.
    Unnamed {
        /// The name.
        #[serde(with = "fields::path")]
        path: FsPath,
    },
    /// A file is open.
    File {
        /// Its handle.
        handle: u64,
        /// Its inode.
        ino: u64,
        /// What it is.
        file: FileHandle,
    },
    /// A directory is open.
    Directory {
        /// Its handle.
        handle: u64,
        /// Its inode.
        ino: u64,
        /// What it is.
        directory: DirectoryHandle,
    },
    /// A file that is in no origin is open.
    Virtual {
        /// Its handle.
        handle: u64,
        /// What it is.
        file: VirtualHandle,
    },
    /// A file is closed.
    FileClosed {
        /// Its handle.
        handle: u64,
    },
    /// A directory is closed.
    DirectoryClosed {
        /// Its handle.
        handle: u64,
    },
    /// A file that is in no origin is closed.
    VirtualClosed {
        /// Its handle.
        handle: u64,
    },
    /// A directory was read on, unless it is closed by now.
    Listed {
        /// Its handle.
        handle: u64,
        /// The names that were listed last.
        page: Option<Names>,
        /// Positions of names, and the tokens that list from there on.
        marks: Vec<(u64, String)>,
        /// Names that are not at the origin yet.
        created: Vec<Box<[u8]>>,
    },
}

impl Record {
    /// Its bytes, with what goes before them. `None`: it is too long for a journal, and a state must be written.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let body = postcard::to_stdvec(self).ok().filter(|body| body.len() <= MAX_RECORD)?;
        let length = u32::try_from(body.len()).ok()?;
        let mut bytes = Vec::with_capacity(HEADER + body.len());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&crc32c(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        Some(bytes)
    }

    /// The record that `bytes` begin with, and what follows it. `None`: there is none, or none that is whole.
    fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (checksum, rest) = rest.split_first_chunk()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok().filter(|length| *length <= MAX_RECORD)?;
        let (body, rest) = rest.split_at_checked(length)?;
        // Memory that was not written to is zeros, of which no record consists.
        if length == 0 || crc32c(body) != u32::from_le_bytes(*checksum) {
            return None;
        }
        let (record, left) = postcard::take_from_bytes(body).ok()?;
        left.is_empty().then_some((record, rest))
    }
}

/// What a mount was when the last whole record of `journal` was written, which began after `state`. A handle or a name that leads to
/// an inode that is not there is left out: the kernel had forgotten that, so it was never told of the handle.
///
/// # Errors
/// [`Nonsense`] when records contradict each other: they are of another state.
pub fn replay(state: State, mut journal: &[u8]) -> Result<State, Nonsense> {
    let mut replayed = Replayed::of(state)?;
    while let Some((record, rest)) = Record::decode(journal) {
        replayed.take(record);
        journal = rest;
    }
    replayed.into_state()
}

/// The same for whoever goes on after a crash: what was being written is lost, and its name leads to what the origin has.
///
/// # Errors
/// As of [`replay`].
pub fn recover(state: State, journal: &[u8]) -> Result<State, Nonsense> {
    let mut state = replay(state, journal)?;
    let inodes = &state.inodes;
    state.names.retain(|named| inodes.get(named.inode as usize).is_some_and(|inode| !inode.lost));
    Ok(state)
}

/// A state by numbers of inodes and handles.
struct Replayed {
    state: State,
    inodes: BTreeMap<u64, HeldInode>,
    names: BTreeMap<FsPath, u64>,
    files: BTreeMap<u64, (u64, FileHandle)>,
    directories: BTreeMap<u64, (u64, DirectoryHandle)>,
    virtual_files: BTreeMap<u64, VirtualHandle>,
    /// What handles were called: of files, directories, and files that are in no origin.
    given: [Given; 3],
}

/// What handles of a table were called.
#[derive(Clone, Copy)]
struct Given {
    /// The latest serial number.
    serial: u32,
    /// Slots that were in use: all before this one. They go on being counted when all of them are free, as the table does.
    slots: u32,
    /// How many that can be: each handle that was given took one more at most.
    most: u32,
}

impl Replayed {
    fn of(mut state: State) -> Result<Self, Nonsense> {
        let inodes = std::mem::take(&mut state.inodes);
        let number = |place: u32| inodes.get(place as usize).map(|inode| inode.ino).ok_or(Nonsense::NoInode);
        let names = std::mem::take(&mut state.names).into_iter().map(|named| Ok((named.path, number(named.inode)?)));
        let names = names.collect::<Result<_, Nonsense>>()?;
        let files = std::mem::take(&mut state.files);
        let directories = std::mem::take(&mut state.directories);
        let virtual_files = std::mem::take(&mut state.virtual_files);
        let given = [Given::before(&files), Given::before(&directories), Given::before(&virtual_files)];
        let files = files.open.into_iter().map(|(handle, file)| Ok((handle, (number(file.inode)?, file))));
        let files = files.collect::<Result<_, Nonsense>>()?;
        let of_directory = |(handle, directory): (u64, DirectoryHandle)| {
            let ino = number(directory.inode)?;
            Ok((handle, (ino, directory)))
        };
        let directories = directories.open.into_iter().map(of_directory).collect::<Result<_, Nonsense>>()?;
        let virtual_files = virtual_files.open.into_iter().collect();
        let mut by_number: BTreeMap<u64, HeldInode> = BTreeMap::new();
        for inode in inodes {
            // Two may have one number, of which the kernel holds one.
            let held = by_number.entry(inode.ino).or_insert_with(|| inode.clone());
            if held.lookups == 0 && inode.lookups > 0 {
                *held = inode;
            }
        }
        let inodes = by_number;
        Ok(Self { state, inodes, names, files, directories, virtual_files, given })
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Inode(inode) => {
                self.inodes.insert(inode.ino, inode);
            }
            Record::Lookups { ino, lookups } => self.held(ino, lookups),
            // A name or a handle may lead to it still.
            Record::Forgotten { ino } => self.held(ino, 0),
            Record::Named { path, ino } => {
                self.names.insert(path, ino);
            }
            Record::Unnamed { path } => {
                self.names.remove(&path);
            }
            Record::File { handle, ino, file } => {
                self.given(0, handle);
                self.files.insert(handle, (ino, file));
            }
            Record::Directory { handle, ino, directory } => {
                self.given(1, handle);
                self.directories.insert(handle, (ino, directory));
            }
            Record::Virtual { handle, file } => {
                self.given(2, handle);
                self.virtual_files.insert(handle, file);
            }
            Record::FileClosed { handle } => {
                self.files.remove(&handle);
            }
            Record::DirectoryClosed { handle } => {
                self.directories.remove(&handle);
            }
            Record::VirtualClosed { handle } => {
                self.virtual_files.remove(&handle);
            }
            Record::Listed { handle, page, marks, created } => {
                if let Some((_, directory)) = self.directories.get_mut(&handle) {
                    *directory = DirectoryHandle { page, marks, created, ..*directory };
                }
            }
        }
    }

    fn held(&mut self, ino: u64, lookups: u64) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.lookups = lookups;
        }
    }

    fn given(&mut self, table: usize, handle: u64) {
        if let Some(given) = self.given.get_mut(table) {
            given.take(handle);
        }
    }

    fn into_state(mut self) -> Result<State, Nonsense> {
        self.leave_out_what_leads_nowhere();
        self.leave_out_what_nothing_leads_to();
        let suspects = self.suspects();
        let places: BTreeMap<u64, u32> = (0..).zip(self.inodes.keys()).map(|(place, ino)| (*ino, place)).collect();
        let place = |ino: u64| places.get(&ino).copied().ok_or(Nonsense::NoInode);
        let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
        let mut files = Vec::new();
        for (handle, (ino, file)) in self.files {
            *counts.entry(ino).or_default() += 1;
            files.push((handle, FileHandle { inode: place(ino)?, ..file }));
        }
        let mut directories = Vec::new();
        for (handle, (ino, directory)) in self.directories {
            directories.push((handle, DirectoryHandle { inode: place(ino)?, ..directory }));
        }
        let names = self.names.into_iter().map(|(path, ino)| Ok(Named { path, inode: place(ino)? }));
        let names = names.collect::<Result<_, Nonsense>>()?;
        let inodes = self.inodes.into_iter().map(|(ino, inode)| {
            let open = opened(inode.open, counts.get(&ino).copied().unwrap_or_default());
            HeldInode { open, ..inode }
        });
        let [of_files, of_directories, of_virtual] = self.given;
        let state = State {
            inodes: inodes.collect(),
            names,
            suspects,
            files: of_files.numbered(files)?,
            directories: of_directories.numbered(directories)?,
            virtual_files: of_virtual.numbered(self.virtual_files.into_iter().collect())?,
            ..self.state
        };
        state.check()?;
        Ok(state)
    }

    fn leave_out_what_leads_nowhere(&mut self) {
        let inodes = &self.inodes;
        self.names.retain(|_, ino| inodes.contains_key(ino));
        self.files.retain(|_, (ino, _)| inodes.contains_key(ino));
        self.directories.retain(|_, (ino, _)| inodes.contains_key(ino));
    }

    /// What was found changed must be asked anew for as long as the kernel holds it.
    fn suspects(&self) -> Vec<Suspect> {
        let changed = self.inodes.values().filter(|inode| inode.changed && inode.lookups > 0);
        let by_path: BTreeMap<&FsPath, u64> = changed.map(|inode| (&inode.path, inode.ino)).collect();
        by_path.into_iter().map(|(path, ino)| Suspect { path: path.clone(), ino }).collect()
    }

    /// An inode stays while the kernel holds it, or a name or a handle leads to it.
    fn leave_out_what_nothing_leads_to(&mut self) {
        let named = self.names.values().copied();
        let opened = self.files.values().map(|(ino, _)| *ino).chain(self.directories.values().map(|(ino, _)| *ino));
        let led_to: BTreeSet<u64> = named.chain(opened).collect();
        self.inodes.retain(|ino, inode| inode.lookups > 0 || inode.path.is_root() || led_to.contains(ino));
    }
}

/// How so many handles of an inode are open, which was open like that.
fn opened(before: Open, count: u32) -> Open {
    match (before, count) {
        (_, 0) => Open::Not,
        (Open::Passed { backing, size, .. }, handles) => Open::Passed { backing, size, handles },
        (Open::Not | Open::Served(_), handles) => Open::Served(handles),
    }
}

impl Given {
    fn before<T>(handles: &Handles<T>) -> Self {
        let slots = u32::try_from(handles.open.len() + handles.numbers.freed.len()).unwrap_or(u32::MAX);
        Self { serial: handles.numbers.serial, slots, most: slots.saturating_add(UNTOLD) }
    }

    /// A handle was given: later ones have later serial numbers, which begin anew after four billions.
    fn take(&mut self, handle: u64) {
        // The upper half is the serial number, the lower one the slot.
        let (serial, slot) = ((handle >> 32) as u32, handle as u32);
        if serial.wrapping_sub(self.serial) < u32::MAX / 2 {
            self.serial = serial;
        }
        self.slots = self.slots.max(slot.saturating_add(1));
        self.most = self.most.saturating_add(1);
    }

    /// These handles, and the other slots, which are free.
    fn numbered<T>(self, open: Vec<(u64, T)>) -> Result<Handles<T>, Nonsense> {
        // The lower half is the slot.
        let in_use: BTreeSet<u32> = open.iter().map(|(handle, _)| *handle as u32).collect();
        let end = in_use.last().map_or(0, |last| last.saturating_add(1)).max(self.slots);
        // Without the first of these, one record costs memory for all the slots before its own.
        if end > self.most || end > MAX_SLOTS || in_use.len() != open.len() {
            return Err(Nonsense::Slots);
        }
        let freed = (0..end).filter(|slot| !in_use.contains(slot)).collect();
        Ok(Handles { open, numbers: HandleNumbers { freed, serial: self.serial } })
    }
}
