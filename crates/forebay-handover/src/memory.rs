//! What a mount is, in memory that outlives the process that serves it: a state, and behind it the journal of what changed since.
//!
//! ```text
//! 0            4096           area: a multiple of 1 TiB
//! head ··· identity ··· ┈┈┈┈ state, record, record, record ┈┈┈┈ the next area ┈┈┈┈
//! ```
//!
//! It is a file without a disk (`memfd_create(2)`) that is almost all holes. A record is one `pwrite(2)` behind the last one, so it
//! is there when the kernel hears of it, whatever becomes of the process. When the records are as long as the state, a thread makes
//! them the state of the next area: from the same bytes that another process would read, so requests go on meanwhile. What was
//! written until it is done is copied behind it, and then the head, which is one write within a page, leads there.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, OnceLock};
use std::thread;

use forebay_locks::Mutex;
use forebay_types::crc32c;
use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom, memfd_create};
use rustix::io::Errno;
use tracing::{debug, error};

use crate::encoding::{Malformed, decode, encode};
use crate::identity::Identity;
use crate::journal::{Record, recover, replay};
use crate::state::{Nonsense, State};

/// What such memory begins with.
const MAGIC: [u8; 8] = *b"FBKEPT\0\0";
/// The number of what is said above.
const LAYOUT: u32 = 1;
/// Bytes of the head: what it begins with, the layout, a checksum of the rest; then the area, and the lengths of the state and of the
/// identity with the checksum of that.
const HEAD: usize = 40;
/// Where the identity is.
const IDENTITY_AT: u64 = 4096;
/// What follows the identity where the process that wrote it has ended in good order. Who does not know of it reads over it.
const IN_GOOD_ORDER: u8 = 1;
/// Bytes of an identity, at most: paths and options.
const MAX_IDENTITY: u64 = 64 << 10;
/// From one area to the next. Larger than a state and its journal ever are; what is not written takes no memory.
const AREA: u64 = 1 << 40;
/// Where no further area begins: the largest file has 2^63 bytes.
const LAST_AREA: u64 = 1 << 62;
/// Bytes of a state or of a journal, at most.
const MAX: u64 = 2 << 30;
/// So long must a journal be before it is made a state, however short that is.
const REWRITTEN_AT: u64 = 16 << 20;
/// What may be copied while records wait.
const LITTLE: u64 = 1 << 20;

/// Why memory is not that of a mount that could be gone on with.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It is something else.
    #[error("this is no memory of a mount")]
    NoMemory,
    /// Another version wrote it.
    #[error("the memory has layout {}, and this version reads layout {}", .0, LAYOUT)]
    Layout(u32),
    /// It is not as it was written.
    #[error("the memory of the mount is not as it was written")]
    Damaged,
    /// The process that wrote it could not go on writing, or another one has served the mount since without doing so.
    #[error("the process that served the mount had given up to note what changes, or never did; its log says why")]
    GivenUp,
    /// The state is none.
    #[error(transparent)]
    State(#[from] Malformed),
    /// The journal makes no sense.
    #[error("the journal makes no sense: {0}")]
    Journal(#[from] Nonsense),
    /// It cannot be read or written.
    #[error("the memory of the mount cannot be read or written: {0}")]
    Io(#[from] io::Error),
}

/// The journal of a mount. Until [`Journal::begin`] nothing is written. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Journal(Arc<OnceLock<Arc<Memory>>>);

impl Journal {
    /// Begins with `state`, of the mount that `identity` says. The memory that is written to from now on, for whoever keeps it. To be
    /// called once, while nothing changes.
    ///
    /// # Errors
    /// When there is no memory, or no descriptor; when the state makes no sense.
    pub fn begin(&self, state: &State, identity: &Identity) -> io::Result<OwnedFd> {
        self.begin_with(state, identity, REWRITTEN_AT)
    }

    /// Memory with `state` alone, of the mount that `identity` says: this process ends in good order, and leaves the mount to the next
    /// one.
    ///
    /// # Errors
    /// As of [`Journal::begin`].
    pub fn leave(state: &State, identity: &Identity) -> io::Result<OwnedFd> {
        Memory::new(state, identity, REWRITTEN_AT, &[IN_GOOD_ORDER]).map(|memory| memory.file.into())
    }

    /// The same with a journal that is made a state when it is so long.
    pub(crate) fn begin_with(&self, state: &State, identity: &Identity, rewritten_at: u64) -> io::Result<OwnedFd> {
        let memory = Memory::new(state, identity, rewritten_at, &[])?;
        let descriptor = memory.file.as_fd().try_clone_to_owned()?;
        let begun = self.0.set(Arc::new(memory));
        begun.map_err(|_| io::Error::other("the journal was begun before"))?;
        Ok(descriptor)
    }

    /// Whether anything is written.
    #[must_use]
    #[inline]
    pub fn is_written(&self) -> bool {
        self.0.get().is_some()
    }

    /// Writes `record`, if anything is written. When this returns, a crash does not lose it. Records about one thing must be written in
    /// the order in which it changed.
    #[inline]
    pub fn append(&self, record: impl FnOnce() -> Record) {
        if let Some(memory) = self.0.get() {
            memory.append(&record());
        }
    }

    /// Whether it is being made a state just now.
    #[cfg(test)]
    pub(crate) fn is_rewritten(&self) -> bool {
        self.0.get().is_some_and(|memory| memory.place.lock().is_rewritten)
    }

    /// Bytes behind the state, and how often they were made a state; `None` when nothing is written.
    #[must_use]
    pub fn length(&self) -> Option<(u64, u64)> {
        let place = *self.0.get()?.place.lock();
        Some((place.length(), place.rewrites))
    }
}

/// Where what is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    /// 0: nothing is to be believed any more.
    area: u64,
    state_length: u64,
    identity_length: u32,
    identity_checksum: u32,
}

impl Head {
    fn encode(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&LAYOUT.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.area.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.state_length.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.identity_length.to_le_bytes());
        bytes[36..].copy_from_slice(&self.identity_checksum.to_le_bytes());
        let checksum = crc32c(&bytes[16..]);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEAD]) -> Result<Self, Unreadable> {
        let (magic, rest) = bytes.split_first_chunk::<8>().ok_or(Unreadable::NoMemory)?;
        if *magic != MAGIC {
            return Err(Unreadable::NoMemory);
        }
        let (layout, rest) = rest.split_first_chunk().ok_or(Unreadable::NoMemory)?;
        let layout = u32::from_le_bytes(*layout);
        if layout != LAYOUT {
            return Err(Unreadable::Layout(layout));
        }
        let (checksum, rest) = rest.split_first_chunk().ok_or(Unreadable::Damaged)?;
        if u32::from_le_bytes(*checksum) != crc32c(rest) {
            return Err(Unreadable::Damaged);
        }
        let (area, rest) = rest.split_first_chunk().ok_or(Unreadable::Damaged)?;
        let (state_length, rest) = rest.split_first_chunk().ok_or(Unreadable::Damaged)?;
        let (identity_length, rest) = rest.split_first_chunk().ok_or(Unreadable::Damaged)?;
        let (identity_checksum, _) = rest.split_first_chunk().ok_or(Unreadable::Damaged)?;
        Ok(Self {
            area: u64::from_le_bytes(*area),
            state_length: u64::from_le_bytes(*state_length),
            identity_length: u32::from_le_bytes(*identity_length),
            identity_checksum: u32::from_le_bytes(*identity_checksum),
        })
    }
}

#[derive(Debug)]
struct Memory {
    file: File,
    identity_length: u32,
    identity_checksum: u32,
    rewritten_at: u64,
    place: Mutex<Place>,
}

/// Where the next record goes.
#[derive(Clone, Copy, Debug)]
struct Place {
    area: u64,
    state_length: u64,
    end: u64,
    rewrites: u64,
    is_rewritten: bool,
    is_given_up: bool,
}

impl Place {
    fn length(&self) -> u64 {
        self.end - self.area - self.state_length
    }
}

impl Memory {
    /// `more` goes behind the identity.
    fn new(state: &State, identity: &Identity, rewritten_at: u64, more: &[u8]) -> io::Result<Self> {
        let state = encode(state).map_err(io::Error::other)?;
        let mut identity = postcard::to_stdvec(identity).map_err(io::Error::other)?;
        identity.extend_from_slice(more);
        let too_long = || io::Error::other("the options of the mount are too long to be kept");
        let fits = u64::try_from(identity.len()).is_ok_and(|length| length <= MAX_IDENTITY);
        let identity_length = u32::try_from(identity.len()).ok().filter(|_| fits).ok_or_else(too_long)?;
        let file = File::from(memfd_create("forebay-journal", MemfdFlags::CLOEXEC)?);
        file.write_all_at(&identity, IDENTITY_AT)?;
        file.write_all_at(&state, AREA)?;
        let state_length = state.len() as u64;
        let place = Place {
            area: AREA,
            state_length,
            end: AREA + state_length,
            rewrites: 0,
            is_rewritten: false,
            is_given_up: false,
        };
        let identity_checksum = crc32c(&identity);
        let memory = Self { file, identity_length, identity_checksum, rewritten_at, place: Mutex::new(place) };
        memory.lead_to(AREA, state_length)?;
        Ok(memory)
    }

    /// Whoever reads it finds this state.
    fn lead_to(&self, area: u64, state_length: u64) -> io::Result<()> {
        let (identity_length, identity_checksum) = (self.identity_length, self.identity_checksum);
        let head = Head { area, state_length, identity_length, identity_checksum };
        self.file.write_all_at(&head.encode(), 0)
    }

    fn append(self: &Arc<Self>, record: &Record) {
        let Some(bytes) = record.encode() else { return self.give_up("a record is too long") };
        let mut place = self.place.lock();
        if place.is_given_up {
            return;
        }
        let written = self.file.write_all_at(&bytes, place.end);
        if let Err(error) = written {
            drop(place);
            return self.give_up(error);
        }
        place.end += bytes.len() as u64;
        let length = place.length();
        let is_long = length >= self.rewritten_at.max(place.state_length);
        let begins = is_long && !std::mem::replace(&mut place.is_rewritten, true);
        drop(place);
        if length > MAX {
            return self.give_up("the journal is too long");
        }
        if begins {
            self.rewrite_beside();
        }
    }

    /// Makes the journal a state, in a thread of its own.
    fn rewrite_beside(self: &Arc<Self>) {
        let memory = Arc::clone(self);
        let work = move || {
            if let Err(error) = memory.rewrite() {
                memory.give_up(error);
            }
        };
        if let Err(error) = thread::Builder::new().name("forebay-journal".to_owned()).spawn(work) {
            self.give_up(error);
        }
    }

    fn rewrite(&self) -> Result<(), Unreadable> {
        let before = *self.place.lock();
        let area = before.area + AREA;
        if area >= LAST_AREA {
            return Err(io::Error::other("there is no room for a further state").into());
        }
        let start = before.area + before.state_length;
        let state = decode(&read(&self.file, before.area, before.state_length)?)?;
        let state = encode(&replay(state, &read(&self.file, start, before.length())?)?)?;
        self.file.write_all_at(&state, area)?;
        let state_length = state.len() as u64;
        let (mut copied, mut end) = (before.end, area + state_length);
        loop {
            let mut place = self.place.lock();
            if place.is_given_up {
                return Ok(());
            }
            let left = place.end - copied;
            if left > LITTLE {
                drop(place);
            } else {
                self.copy(copied, left, end)?;
                self.lead_to(area, state_length)?;
                let rewrites = place.rewrites + 1;
                *place =
                    Place { area, state_length, end: end + left, rewrites, is_rewritten: false, is_given_up: false };
                break;
            }
            self.copy(copied, left, end)?;
            (copied, end) = (copied + left, end + left);
        }
        debug!(bytes = state_length, "the journal of the mount was made a state");
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, flags, before.area, AREA).map_err(io::Error::from)?;
        Ok(())
    }

    fn copy(&self, from: u64, length: u64, to: u64) -> Result<(), Unreadable> {
        let bytes = read(&self.file, from, length)?;
        Ok(self.file.write_all_at(&bytes, to)?)
    }

    /// Writes no more, and says so to whoever reads it.
    #[cold]
    fn give_up(&self, why: impl Display) {
        let mut place = self.place.lock();
        if !std::mem::replace(&mut place.is_given_up, true) {
            error!(%why, "what changes is not noted any more: the mount ends if this process is killed");
            // If this is not written either, what is there is older than what the kernel knows. There is nothing left to do.
            let _ = self.lead_to(0, 0);
        }
    }
}

/// Whose mount it is that `memory` is of, and what it was when the process that served it died. Nobody may write to it any more.
///
/// # Errors
/// [`Unreadable`]; no bytes make it panic.
pub fn read_kept(memory: impl AsFd) -> Result<(Identity, State), Unreadable> {
    let file = File::from(memory.as_fd().try_clone_to_owned()?);
    let (head, identity, _) = beginning(&file)?;
    let state = decode(&read(&file, head.area, head.state_length)?)?;
    let start = head.area.checked_add(head.state_length).ok_or(Unreadable::Damaged)?;
    let journal = read(&file, start, journal_length(&file, start)?)?;
    Ok((identity, recover(state, &journal)?))
}

/// Nobody goes on with what `memory` says from now on: this process serves the mount, and notes there nothing of what changes.
///
/// # Errors
/// When it cannot be written.
pub fn spend(memory: impl AsFd) -> io::Result<()> {
    let file = File::from(memory.as_fd().try_clone_to_owned()?);
    let nothing = Head { area: 0, state_length: 0, identity_length: 0, identity_checksum: 0 };
    file.write_all_at(&nothing.encode(), 0)
}

/// Whether the process that wrote `memory` has ended in good order, by [`Journal::leave`].
#[must_use]
pub fn was_left(memory: impl AsFd) -> bool {
    let looked = || -> Result<bool, Unreadable> {
        let file = File::from(memory.as_fd().try_clone_to_owned()?);
        let (_, _, is_left) = beginning(&file)?;
        Ok(is_left)
    };
    looked().unwrap_or(false)
}

/// What the memory begins with, and whether it was left in good order.
fn beginning(file: &File) -> Result<(Head, Identity, bool), Unreadable> {
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, 0).map_err(|_| Unreadable::NoMemory)?;
    let head = Head::decode(&head)?;
    if head.area == 0 {
        return Err(Unreadable::GivenUp);
    }
    let length = u64::from(head.identity_length);
    if length > MAX_IDENTITY {
        return Err(Unreadable::Damaged);
    }
    let identity = read(file, IDENTITY_AT, length)?;
    if crc32c(&identity) != head.identity_checksum {
        return Err(Unreadable::Damaged);
    }
    let (identity, more) = postcard::take_from_bytes(&identity).map_err(|_| Unreadable::Damaged)?;
    let is_left = more.first() == Some(&IN_GOOD_ORDER);
    Ok((head, identity, is_left))
}

/// To the first hole: that is the end of the page in which the last record is.
fn journal_length(file: &File, start: u64) -> Result<u64, Unreadable> {
    match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        Ok(end) => Ok(end.saturating_sub(start)),
        // There is nothing from there on.
        Err(Errno::NXIO) => Ok(0),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

/// `length` bytes at `at`, which are there.
fn read(file: &File, at: u64, length: u64) -> Result<Vec<u8>, Unreadable> {
    let end = at.checked_add(length).ok_or(Unreadable::Damaged)?;
    if length > MAX + LITTLE || end > file.metadata()?.len() {
        return Err(Unreadable::Damaged);
    }
    // At most 2 GiB and a little.
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}
