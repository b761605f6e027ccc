//! The inodes that the kernel holds, and their numbers.
//!
//! The number of a file's inode is a hash of the path and the version's id, that of a directory's a hash of its path. Being pure
//! hashes, numbers stay the same across evictions and mounts; the root is 1, and where two hashes meet (once in 2^64) the
//! later one takes the next free number. What was created, written or renamed through this mount keeps the number that it
//! had, as the kernel goes on using it: such inodes are found by their path ([`InodeTable::local`]) for as long as
//! the kernel holds them, or they are being written.
//!
//! The table holds exactly what the kernel holds: each lookup is counted, and `forget` removes. It is cut into shards,
//! each behind a lock of its own; reads of files never come here.
//!
//! What changes is noted in the journal, if there is one ([`forebay_handover::Journal`]), under the lock that orders such changes:
//! so the last record is about the last change.

mod naming;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use blake3::hazmat::{ContextKey, HasherExt as _, hash_derive_key_context};
use forebay_handover::{Journal, Record};
use forebay_locks::{Mutex, RwLock};
use forebay_types::{Attr, FileId, FsPath};

use crate::inode::{Inode, KEPT_FOR_WRITER, Known, version_id};

/// The root's number, by FUSE's definition.
pub(crate) const ROOT: u64 = 1;
/// Numbers up to here are the root's and those of files that are in no origin ([`crate::virtual_files`]).
pub(crate) const LAST_RESERVED: u64 = 15;
/// Enough that some tens of threads seldom meet.
const SHARDS: usize = 64;

/// How the number of a path, and of a version of it, is made.
type NumberOf = fn(&FsPath, Option<&FileId>) -> u64;

type Shard = RwLock<HashMap<u64, Arc<Inode>>>;

/// The inodes that the kernel holds.
pub(crate) struct InodeTable {
    shards: Box<[Shard]>,
    number_of: NumberOf,
    /// Those whose number is not the one that their path and version would give. Bounded by what the kernel holds and what is
    /// being written.
    local: RwLock<HashMap<FsPath, Arc<Inode>>>,
    local_count: AtomicUsize,
    /// Paths that must be asked anew at the origin, with the inode that was found changed. Bounded by the inodes.
    suspects: Mutex<HashMap<FsPath, u64>>,
    suspect_count: AtomicUsize,
    /// Names whose writer was sent to look them up again, and until when it is awaited. Whatever inode it finds it must be able to
    /// write: the kernel asks no third time. Bounded by how many such writers come within [`KEPT_FOR_WRITER`].
    awaited: Mutex<Awaited>,
    is_any_awaited: AtomicBool,
    /// Held while an inode's name changes, by what the inode is then. Before any other lock of the table.
    naming: Mutex<()>,
    journal: Journal,
}

/// Names that are kept for their writers, and until when.
#[derive(Default)]
struct Awaited {
    names: HashMap<FsPath, Instant>,
    /// Until when any of them is.
    last: Option<Instant>,
}

impl Awaited {
    fn of(names: HashMap<FsPath, Instant>) -> Self {
        Self { last: names.values().max().copied(), names }
    }

    fn add(&mut self, path: &FsPath, now: Instant) -> Instant {
        let until = now + KEPT_FOR_WRITER;
        self.names.retain(|_, until| now < *until);
        self.names.insert(path.clone(), until);
        self.last = self.last.max(Some(until));
        until
    }

    /// Until when this one is. When none is any more, they are forgotten.
    fn until(&mut self, path: &FsPath, now: Instant) -> Option<Instant> {
        if self.last.is_none_or(|last| last <= now) {
            *self = Self::default();
        }
        self.names.get(path).copied().filter(|until| now < *until)
    }
}

impl InodeTable {
    /// A table with nothing but the root.
    pub(crate) fn new(now: Instant) -> Self {
        Self::with_numbers(now, number_of)
    }

    /// A table of what another process had: inodes that the kernel holds, the root among them; names that lead to one whatever its
    /// number; and suspects.
    pub(crate) fn restored(
        held: impl IntoIterator<Item = Arc<Inode>>,
        named: HashMap<FsPath, Arc<Inode>>,
        suspects: HashMap<FsPath, u64>,
    ) -> Self {
        let table = Self::empty(number_of);
        for inode in held {
            table.shard(inode.ino).write().insert(inode.ino, inode);
        }
        let kept = |(path, inode): (&FsPath, &Arc<Inode>)| Some((path.clone(), inode.kept_until()?));
        let awaited = Awaited::of(named.iter().filter_map(kept).collect());
        table.local_count.store(named.len(), Ordering::Release);
        table.suspect_count.store(suspects.len(), Ordering::Release);
        table.is_any_awaited.store(awaited.last.is_some(), Ordering::Release);
        Self { local: RwLock::new(named), suspects: Mutex::new(suspects), awaited: Mutex::new(awaited), ..table }
    }

    fn empty(number_of: NumberOf) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            number_of,
            local: RwLock::default(),
            local_count: AtomicUsize::new(0),
            suspects: Mutex::default(),
            suspect_count: AtomicUsize::new(0),
            awaited: Mutex::default(),
            is_any_awaited: AtomicBool::new(false),
            naming: Mutex::default(),
            journal: Journal::default(),
        }
    }

    /// The same, which notes what changes in `journal`.
    pub(crate) fn noting_in(self, journal: Journal) -> Self {
        Self { journal, ..self }
    }

    fn with_numbers(now: Instant, number_of: NumberOf) -> Self {
        let table = Self::empty(number_of);
        let root = Inode::new(ROOT, FsPath::root(), Known::new(Attr::directory(), now, Duration::ZERO));
        table.shard(ROOT).write().insert(ROOT, Arc::new(root));
        table
    }

    /// The inode with this number, if the kernel holds it.
    pub(crate) fn get(&self, ino: u64) -> Option<Arc<Inode>> {
        self.shard(ino).read().get(&ino).cloned()
    }

    /// How many inodes the kernel holds, the root included.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// The inode of `path` with the attributes in `known`; counts one lookup.
    pub(crate) fn remember(&self, path: &FsPath, known: Known) -> Arc<Inode> {
        let version = version_id(&known.attr);
        self.remember_numbered(path, version, || self.number(path, version.as_ref()), known)
    }

    /// The same of the version with this id, where `number` knows [`InodeTable::number`] of both.
    pub(crate) fn remember_numbered(
        &self,
        path: &FsPath,
        version: Option<FileId>,
        number: impl FnOnce() -> u64,
        known: Known,
    ) -> Arc<Inode> {
        if let Some(inode) = self.local(path) {
            if inode.is_meant_by(&known) {
                inode.learn(known);
                let inode = if self.is_ready(path, &inode) { inode } else { self.supersede(&inode) };
                self.hold(&inode);
                return inode;
            }
            // Another writer has replaced it.
            self.unname(path, &inode);
        }
        let first = number();
        let mut ino = first;
        let passed = loop {
            match self.shard(ino).write().entry(ino) {
                Entry::Vacant(vacant) => {
                    let inode = Inode::of_version(ino, path.clone(), version, known);
                    self.is_ready(path, &inode);
                    let inode = Arc::clone(vacant.insert(Arc::new(inode)));
                    self.note_held(&inode);
                    if ino != first {
                        self.name(path, &inode);
                    }
                    return inode;
                }
                Entry::Occupied(occupied) if occupied.get().is_at(path, version) => {
                    let inode = occupied.get();
                    if !self.is_ready(path, inode) {
                        break Arc::clone(inode);
                    }
                    let lookups = inode.lookups.fetch_add(1, Ordering::Relaxed) + 1;
                    self.journal.append(|| Record::Lookups { ino, lookups });
                    if ino != ROOT {
                        inode.learn(known);
                    }
                    return Arc::clone(inode);
                }
                Entry::Occupied(_) => ino = unreserved(ino.wrapping_add(1)),
            }
        };
        let successor = self.supersede(&passed);
        self.hold(&successor);
        successor
    }

    /// An inode with a number of its own for something that was created here; the kernel holds it once.
    pub(crate) fn create(&self, path: &FsPath, known: Known) -> Arc<Inode> {
        loop {
            let ino = unreserved(rand::random());
            if let Entry::Vacant(vacant) = self.shard(ino).write().entry(ino) {
                let inode = Arc::clone(vacant.insert(Arc::new(Inode::new(ino, path.clone(), known))));
                self.note_held(&inode);
                self.name(path, &inode);
                return inode;
            }
        }
    }

    /// Whether an inode that `path` leads to can be written, where a writer of it is awaited: it is kept for that writer.
    fn is_ready(&self, path: &FsPath, inode: &Inode) -> bool {
        if !self.is_any_awaited.load(Ordering::Acquire) {
            return true;
        }
        let mut awaited = self.awaited.lock();
        let until = awaited.until(path, Instant::now());
        self.is_any_awaited.store(awaited.last.is_some(), Ordering::Release);
        drop(awaited);
        until.is_none_or(|until| inode.keep(until))
    }

    /// Counts one lookup of an inode that the kernel may have forgotten meanwhile.
    pub(crate) fn hold(&self, inode: &Arc<Inode>) {
        let mut shard = self.shard(inode.ino).write();
        let held = shard.entry(inode.ino).or_insert_with(|| {
            inode.lookups.store(0, Ordering::Relaxed);
            Arc::clone(inode)
        });
        let (ino, lookups) = (inode.ino, held.lookups.fetch_add(1, Ordering::Relaxed) + 1);
        if lookups == 1 {
            self.note_held(held);
        } else {
            self.journal.append(|| Record::Lookups { ino, lookups });
        }
    }

    /// Notes what `inode` is by now, after a change of it.
    pub(crate) fn note(&self, inode: &Inode) {
        if !self.journal.is_written() {
            return;
        }
        // No lookup is counted meanwhile.
        let shard = self.shard(inode.ino).read();
        // It may be forgotten, and its number another one's.
        if shard.get(&inode.ino).is_none_or(|held| std::ptr::eq(&**held, inode)) {
            self.note_held(inode);
        }
    }

    /// The same, with the lock of its shard held.
    fn note_held(&self, inode: &Inode) {
        if self.journal.is_written() {
            inode.noted(|held| self.journal.append(|| Record::Inode(held)));
        }
    }

    /// Takes back `count` lookups; with the last one the inode goes.
    pub(crate) fn forget(&self, ino: u64, count: u64) {
        if ino == ROOT {
            return;
        }
        let mut shard = self.shard(ino).write();
        let Some(inode) = shard.get(&ino) else { return };
        let left = inode.lookups.load(Ordering::Relaxed).saturating_sub(count);
        inode.lookups.store(left, Ordering::Relaxed);
        if left > 0 {
            return self.journal.append(|| Record::Lookups { ino, lookups: left });
        }
        let gone = shard.remove(&ino);
        self.journal.append(|| Record::Forgotten { ino });
        drop(shard);
        let Some(inode) = gone else { return };
        if inode.is_changed() {
            self.unsuspect(&inode.path(), Some(ino));
        }
        self.let_go(&inode);
        // Its name may lead to a successor that the kernel does not hold either: that goes, too.
        if inode.is_removed()
            && let Some(successor) = self.local(&inode.path())
        {
            self.let_go(&successor);
        }
    }

    /// An inode that the kernel does not hold and that is not being written is not found by its path any more.
    pub(crate) fn let_go(&self, inode: &Arc<Inode>) {
        if self.local_count.load(Ordering::Acquire) > 0 && inode.draft().is_none() && self.get(inode.ino).is_none() {
            self.unname(&inode.path(), inode);
        }
    }

    /// The inode at `path`, if it was created, written or renamed here.
    pub(crate) fn local(&self, path: &FsPath) -> Option<Arc<Inode>> {
        if self.local_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.local.read().get(path).cloned()
    }

    /// `path` leads to this inode, whatever its number.
    pub(crate) fn name(&self, path: &FsPath, inode: &Arc<Inode>) {
        let mut local = self.local.write();
        local.insert(path.clone(), Arc::clone(inode));
        self.journal.append(|| Record::Named { path: path.clone(), ino: inode.ino });
        self.local_count.store(local.len(), Ordering::Release);
    }

    /// `path` no longer leads to this inode.
    pub(crate) fn unname(&self, path: &FsPath, inode: &Arc<Inode>) {
        let mut local = self.local.write();
        if local.get(path).is_some_and(|held| Arc::ptr_eq(held, inode)) {
            local.remove(path);
            self.journal.append(|| Record::Unnamed { path: path.clone() });
            self.local_count.store(local.len(), Ordering::Release);
        }
    }

    /// The inodes at and below `directory` that were created, written or renamed here.
    pub(crate) fn local_below(&self, directory: &FsPath) -> Vec<(FsPath, Arc<Inode>)> {
        if self.local_count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let is_below = |path: &FsPath| path.relative_to(directory).is_some();
        let local = self.local.read();
        local.iter().filter(|(path, _)| is_below(path)).map(|(path, inode)| (path.clone(), Arc::clone(inode))).collect()
    }

    /// The inodes at and below `directory` that the kernel holds. Goes through all of them.
    pub(crate) fn held_below(&self, directory: &FsPath) -> Vec<Arc<Inode>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            found.extend(shard.values().filter(|inode| inode.path().relative_to(directory).is_some()).cloned());
        }
        found
    }

    /// All inodes that the kernel holds.
    pub(crate) fn held(&self) -> Vec<Arc<Inode>> {
        self.held_below(&FsPath::root())
    }

    /// All names that lead to an inode whatever its number.
    pub(crate) fn named(&self) -> Vec<(FsPath, Arc<Inode>)> {
        self.local_below(&FsPath::root())
    }

    /// All paths that must be asked anew at the origin, with the inode that was found changed.
    pub(crate) fn suspects(&self) -> Vec<(FsPath, u64)> {
        self.suspects.lock().iter().map(|(path, ino)| (path.clone(), *ino)).collect()
    }

    /// The number of the directory at `path`.
    pub(crate) fn directory(&self, path: &FsPath) -> u64 {
        self.local(path).map_or_else(|| self.number(path, None), |inode| inode.ino)
    }

    /// The number that the inode of `path` has, or would have, as one that was only read here.
    pub(crate) fn number(&self, path: &FsPath, version: Option<&FileId>) -> u64 {
        if path.is_root() { ROOT } else { unreserved((self.number_of)(path, version)) }
    }

    /// Notes that the origin has another version than this inode's: the next lookup of its path must ask the origin.
    pub(crate) fn mark_changed(&self, inode: &Inode) {
        inode.set_changed(true);
        self.note(inode);
        let mut suspects = self.suspects.lock();
        // An inode that the kernel has forgotten meanwhile would stay a suspect for ever.
        if self.get(inode.ino).is_some() {
            suspects.insert(inode.path(), inode.ino);
            self.suspect_count.store(suspects.len(), Ordering::Release);
        }
    }

    /// Whether the next lookup of `path` must ask the origin.
    pub(crate) fn is_suspect(&self, path: &FsPath) -> bool {
        self.suspect_count.load(Ordering::Acquire) > 0 && self.suspects.lock().contains_key(path)
    }

    /// Notes that the origin said what `path` is now: `attr`, or nothing.
    pub(crate) fn cleared(&self, path: &FsPath, attr: Option<&Attr>) {
        let suspect = self.unsuspect(path, None).and_then(|ino| self.get(ino));
        if let Some(inode) = suspect.filter(|inode| attr.is_some_and(|attr| inode.is_of(attr))) {
            // The version is the current one after all (again).
            inode.set_changed(false);
            self.note(&inode);
        }
    }

    fn unsuspect(&self, path: &FsPath, only: Option<u64>) -> Option<u64> {
        let mut suspects = self.suspects.lock();
        let ino = suspects.get(path).copied().filter(|ino| only.is_none_or(|only| only == *ino))?;
        suspects.remove(path);
        self.suspect_count.store(suspects.len(), Ordering::Release);
        Some(ino)
    }

    fn shard(&self, ino: u64) -> &Shard {
        &self.shards[(ino % SHARDS as u64) as usize]
    }
}

/// 0 means "no inode" to the kernel.
fn unreserved(ino: u64) -> u64 {
    if ino <= LAST_RESERVED { ino + LAST_RESERVED + 1 } else { ino }
}

/// What numbers are hashed with: the hash of what they are for.
static NUMBER_KEY: LazyLock<ContextKey> = LazyLock::new(|| hash_derive_key_context("forebay 2026 inode number"));

/// A keyed BLAKE3, so that a user who chooses object names cannot make numbers collide.
fn number_of(path: &FsPath, version: Option<&FileId>) -> u64 {
    let mut hasher = blake3::Hasher::new_from_context_key(&NUMBER_KEY);
    hasher.update(path.as_bytes());
    if let Some(FileId(id)) = version {
        // No path has a NUL, so this cannot be a longer path.
        hasher.update(&[0]);
        hasher.update(id);
    }
    let mut number = [0; 8];
    number.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests;
