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

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_types::{Attr, FileId, FsPath};
use parking_lot::{Mutex, RwLock};

use crate::inode::{Inode, Known, version_id};

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
}

impl InodeTable {
    /// A table with nothing but the root.
    pub(crate) fn new(now: Instant) -> Self {
        Self::with_numbers(now, number_of)
    }

    fn with_numbers(now: Instant, number_of: NumberOf) -> Self {
        let table = Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            number_of,
            local: RwLock::default(),
            local_count: AtomicUsize::new(0),
            suspects: Mutex::default(),
            suspect_count: AtomicUsize::new(0),
        };
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
        if let Some(inode) = self.local(path) {
            if inode.is_meant_by(&known) {
                inode.learn(known);
                self.hold(&inode);
                return inode;
            }
            // Another writer has replaced it.
            self.unname(path, &inode);
        }
        let version = version_id(&known.attr);
        let first = self.number(path, version.as_ref());
        let mut ino = first;
        loop {
            match self.shard(ino).write().entry(ino) {
                Entry::Vacant(vacant) => {
                    let inode = Arc::clone(vacant.insert(Arc::new(Inode::new(ino, path.clone(), known))));
                    if ino != first {
                        self.name(path, &inode);
                    }
                    return inode;
                }
                Entry::Occupied(occupied) if is_same(occupied.get(), path, &known) => {
                    let inode = occupied.get();
                    inode.lookups.fetch_add(1, Ordering::Relaxed);
                    if ino != ROOT {
                        inode.learn(known);
                    }
                    return Arc::clone(inode);
                }
                Entry::Occupied(_) => ino = unreserved(ino.wrapping_add(1)),
            }
        }
    }

    /// An inode with a number of its own for something that was created here; the kernel holds it once.
    pub(crate) fn create(&self, path: &FsPath, known: Known) -> Arc<Inode> {
        loop {
            let ino = unreserved(rand::random());
            if let Entry::Vacant(vacant) = self.shard(ino).write().entry(ino) {
                let inode = Arc::clone(vacant.insert(Arc::new(Inode::new(ino, path.clone(), known))));
                self.name(path, &inode);
                return inode;
            }
        }
    }

    /// The name of an inode that cannot be written leads from now on to one that can, and that the kernel does not hold yet.
    pub(crate) fn supersede(&self, inode: &Inode) {
        let successor = Arc::new(inode.successor(unreserved(rand::random())));
        inode.remove();
        self.name(&inode.path(), &successor);
    }

    /// Counts one lookup of an inode that the kernel may have forgotten meanwhile.
    pub(crate) fn hold(&self, inode: &Arc<Inode>) {
        let mut shard = self.shard(inode.ino).write();
        let held = shard.entry(inode.ino).or_insert_with(|| {
            inode.lookups.store(0, Ordering::Relaxed);
            Arc::clone(inode)
        });
        held.lookups.fetch_add(1, Ordering::Relaxed);
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
            return;
        }
        let gone = shard.remove(&ino);
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
        self.local_count.store(local.len(), Ordering::Release);
    }

    /// `path` no longer leads to this inode.
    pub(crate) fn unname(&self, path: &FsPath, inode: &Arc<Inode>) {
        let mut local = self.local.write();
        if local.get(path).is_some_and(|held| Arc::ptr_eq(held, inode)) {
            local.remove(path);
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

/// Whether an inode is the one of `path` that `known` is about.
fn is_same(inode: &Inode, path: &FsPath, known: &Known) -> bool {
    !inode.is_removed() && inode.path() == *path && inode.is_of(&known.attr)
}

/// 0 means "no inode" to the kernel.
fn unreserved(ino: u64) -> u64 {
    if ino <= LAST_RESERVED { ino + LAST_RESERVED + 1 } else { ino }
}

/// A keyed BLAKE3, so that a user who chooses object names cannot make numbers collide.
fn number_of(path: &FsPath, version: Option<&FileId>) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("forebay 2026 inode number");
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
mod tests {
    use super::*;
    use forebay_types::{FileKind, FileVersion, VersionTag};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn known(version: Option<u64>, now: Instant) -> Known {
        let kind = version.map_or(FileKind::Directory, |nanos| {
            let tag = VersionTag::Modified { nanos: nanos as i64, inode: 0 };
            FileKind::File(FileVersion { origin: "file:///o".into(), path: b"p".as_slice().into(), size: 1, tag })
        });
        Known::new(Attr { kind, ..Attr::directory() }, now, Duration::from_secs(60))
    }

    fn path(name: &str) -> FsPath {
        FsPath::root().join(name.as_bytes()).unwrap()
    }

    #[test]
    fn a_version_keeps_its_number_across_forgetting_and_across_tables() {
        let now = Instant::now();
        let table = InodeTable::new(now);
        let first = table.remember(&path("a"), known(Some(1), now)).ino;
        table.forget(first, 1);
        assert!(table.get(first).is_none());
        assert_eq!(table.remember(&path("a"), known(Some(1), now)).ino, first);
        assert_eq!(InodeTable::new(now).remember(&path("a"), known(Some(1), now)).ino, first);
    }

    #[test]
    fn another_version_path_or_kind_is_another_inode() {
        let now = Instant::now();
        let table = InodeTable::new(now);
        let numbers = [("a", Some(1)), ("a", Some(2)), ("a", None), ("b", Some(1))]
            .map(|(name, version)| table.remember(&path(name), known(version, now)).ino);
        assert_eq!(numbers.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    }

    #[test]
    fn the_root_is_one_and_is_never_forgotten() {
        let table = InodeTable::new(Instant::now());
        table.forget(ROOT, u64::MAX);
        assert!(table.get(ROOT).unwrap().path().is_root());
        assert_eq!(table.number(&FsPath::root(), None), ROOT);
    }

    #[test]
    fn a_changed_path_is_suspect_until_the_origin_was_asked() {
        let now = Instant::now();
        let table = InodeTable::new(now);
        let old = table.remember(&path("a"), known(Some(1), now));
        table.mark_changed(&old);
        assert!(table.is_suspect(&path("a")) && !table.is_suspect(&path("b")));
        table.cleared(&path("a"), Some(&known(Some(2), now).attr));
        assert!(!table.is_suspect(&path("a")));
        assert!(old.is_changed(), "the old version stays closed to new opens");
        table.mark_changed(&old);
        table.cleared(&path("a"), Some(&known(Some(1), now).attr));
        assert!(!old.is_changed(), "the origin says that it is current");
    }

    #[test]
    fn forgetting_a_changed_inode_forgets_the_suspicion() {
        let now = Instant::now();
        let table = InodeTable::new(now);
        let old = table.remember(&path("a"), known(Some(1), now));
        table.mark_changed(&old);
        table.forget(old.ino, 1);
        assert!(!table.is_suspect(&path("a")));
        table.mark_changed(&old);
        assert!(!table.is_suspect(&path("a")));
    }

    #[test]
    fn what_was_created_here_is_found_by_its_path_until_it_is_forgotten() {
        let now = Instant::now();
        let table = InodeTable::new(now);
        let made = table.create(&path("a"), known(Some(1), now));
        assert_ne!(made.ino, table.number(&path("a"), Some(&version_id(&known(Some(1), now).attr).unwrap())));
        assert_eq!(table.remember(&path("a"), known(Some(1), now)).ino, made.ino);
        table.forget(made.ino, 2);
        assert!(table.local(&path("a")).is_none());
        assert_ne!(table.remember(&path("a"), known(Some(1), now)).ino, made.ino);
    }

    #[test]
    fn an_answer_to_an_older_question_does_not_undo_what_was_written_here() {
        let before = Instant::now();
        let table = InodeTable::new(before);
        let made = table.create(&path("a"), known(Some(1), before));
        made.settle(Some(known(Some(2), Instant::now())));
        assert_eq!(table.remember(&path("a"), known(Some(1), before)).ino, made.ino, "asked before");
        assert!(made.is_of(&known(Some(2), before).attr));
        let replaced = table.remember(&path("a"), known(Some(3), Instant::now()));
        assert_ne!(replaced.ino, made.ino, "somebody else has written since");
        assert!(table.local(&path("a")).is_none());
    }

    #[test]
    fn a_directory_that_moved_keeps_its_number_and_its_old_path_gets_another() {
        let now = Instant::now();
        let table = InodeTable::new(now);
        let moved = table.remember(&path("a"), known(None, now));
        moved.moved(path("b"), Some(known(None, Instant::now())));
        table.name(&path("b"), &moved);
        assert_eq!(table.directory(&path("b")), moved.ino);
        let again = table.remember(&path("a"), known(None, Instant::now()));
        assert_ne!(again.ino, moved.ino);
        assert_eq!(table.directory(&path("a")), again.ino);
    }

    #[test]
    fn a_writer_of_what_cannot_be_written_gets_an_inode_of_its_own() {
        let now = Instant::now();
        let table = InodeTable::new(now);
        let old = table.remember(&path("a"), known(Some(1), now));
        table.supersede(&old);
        assert!(old.is_removed() && table.get(old.ino).is_some(), "who has it open goes on");
        assert_eq!(table.len(), 2, "the kernel does not hold the new one yet");
        let new = table.remember(&path("a"), known(Some(1), now));
        assert_ne!(new.ino, old.ino);
        assert_eq!(new.lookups.load(Ordering::Relaxed), 1);
        table.forget(old.ino, 1);
        assert_eq!(table.remember(&path("a"), known(Some(1), now)).ino, new.ino);
    }

    #[test]
    fn an_inode_that_no_writer_came_for_goes_with_the_one_that_it_was_made_for() {
        let now = Instant::now();
        let table = InodeTable::new(now);
        let old = table.remember(&path("a"), known(Some(1), now));
        table.supersede(&old);
        table.forget(old.ino, 1);
        assert!(table.local(&path("a")).is_none());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Lookup(u8, Option<u64>),
        Forget(usize, u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..4u8, prop::option::of(0..3u64)).prop_map(|(name, version)| Step::Lookup(name, version)),
            (any::<usize>(), 1..4u64).prop_map(|(which, count)| Step::Forget(which, count)),
        ];
        prop::collection::vec(step, 0..120)
    }

    proptest! {
        #[test]
        fn the_table_holds_what_the_kernel_holds_even_when_all_hashes_meet(steps in steps(), collide: bool) {
            let now = Instant::now();
            let table =
                if collide { InodeTable::with_numbers(now, |_, _| u64::MAX) } else { InodeTable::new(now) };
            let mut model: BTreeMap<u64, (u8, Option<u64>, u64)> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Lookup(name, version) => {
                        let ino = table.remember(&path(&name.to_string()), known(version, now)).ino;
                        prop_assert!(ino > LAST_RESERVED);
                        let held = model.entry(ino).or_insert((name, version, 0));
                        prop_assert_eq!((held.0, held.1), (name, version), "a held number has one meaning");
                        held.2 += 1;
                    }
                    Step::Forget(which, count) => {
                        let Some(ino) = model.keys().nth(which % model.len().max(1)).copied() else { continue };
                        let count = count.min(model[&ino].2);
                        table.forget(ino, count);
                        let held = model.get_mut(&ino).unwrap();
                        held.2 -= count;
                        if held.2 == 0 {
                            model.remove(&ino);
                        }
                    }
                }
                prop_assert_eq!(table.len(), model.len() + 1);
                for (ino, (name, version, _)) in &model {
                    let inode = table.get(*ino).unwrap();
                    prop_assert_eq!(&inode.path(), &path(&name.to_string()));
                    prop_assert!(inode.is_of(&known(*version, now).attr));
                }
            }
        }
    }
}
