use super::*;
use crate::options::MountOptions;
use crate::pinned::Pinned;
use forebay_fuse_io::Backings;
use forebay_handover::{Agreed, Handles, HeldInode, Open, State, read_kept};
use forebay_types::{Failure, FailureKind, FileKind, FileVersion, VersionTag};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

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
fn what_lost_its_name_gets_no_other_and_what_got_another_keeps_that() {
    let now = Instant::now();
    let table = InodeTable::new(now);
    let inode = table.remember(&path("a"), known(Some(1), now));
    assert!(!table.rename(&inode, (&path("a"), &path("b")), None, || false));
    assert_eq!((inode.path(), table.local(&path("b")).is_none()), (path("a"), true));
    assert!(table.rename(&inode, (&path("a"), &path("b")), None, || true));
    // Whoever removes what was there before comes too late.
    assert!(!table.remove(&path("a"), &inode) && !inode.is_removed());
    assert!(table.remove(&path("b"), &inode) && inode.is_removed());
    assert!(!table.rename(&inode, (&path("b"), &path("c")), None, || true));
    assert!(table.local(&path("b")).is_none() && table.local(&path("c")).is_none());
}

#[test]
fn what_lost_its_name_to_another_one_gives_it_to_no_successor() {
    let now = Instant::now();
    let table = InodeTable::new(now);
    let replaced = table.remember(&path("a"), known(Some(1), now));
    let other = table.create(&path("b"), known(Some(2), now));
    assert!(table.remove(&path("a"), &replaced));
    assert!(table.rename(&other, (&path("b"), &path("a")), None, || true));
    // A writer of what was replaced had looked at it just before.
    assert!(!table.supersede_named(&replaced));
    assert_eq!(table.local(&path("a")).unwrap().ino, other.ino);
    assert!(table.supersede_named(&other));
    assert_ne!(table.local(&path("a")).unwrap().ino, other.ino);
}

#[test]
fn what_was_written_is_not_taken_for_what_was_there_under_the_name_before() {
    let now = Instant::now();
    let table = InodeTable::new(now);
    let inode = table.create(&path("a"), known(Some(1), now));
    // Its last writer has synced it, and then its directory was renamed.
    assert!(table.rename(&inode, (&path("a"), &path("b")), Some(known(Some(3), now)), || true));
    assert!(!table.settle(&inode, Some(known(Some(2), now)), |at, _| *at == path("a")));
    assert!(inode.is_of(&known(Some(3), now).attr));
    assert!(table.settle(&inode, Some(known(Some(4), now)), |at, _| *at == path("b")));
    assert!(inode.is_of(&known(Some(4), now).attr));
    // There is nothing new of what was not written to.
    assert!(!table.settle(&inode, None, |_, _| true));
    assert!(inode.is_of(&known(Some(4), now).attr));
}

#[test]
fn who_has_waited_for_an_inode_finds_the_one_that_its_name_leads_to_by_now() {
    let now = Instant::now();
    let table = InodeTable::new(now);
    let old = table.remember(&path("a"), known(Some(1), now));
    assert!(table.replaced_by(&path("a"), &old).is_none());
    let new = table.supersede(&old);
    assert_eq!(table.replaced_by(&path("a"), &old).map(|inode| inode.ino), Some(new.ino));
    assert!(table.replaced_by(&path("a"), &new).is_none());
    assert!(table.remove(&path("a"), &new));
    assert!(table.replaced_by(&path("a"), &old).is_none() && table.replaced_by(&path("a"), &new).is_none());
}

#[test]
fn who_writes_or_removes_while_an_inode_is_renamed_finds_it_with_its_new_name() {
    let now = Instant::now();
    let table = InodeTable::new(now);
    let inode = table.remember(&path("a"), known(Some(1), now));
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let renamed = table.rename(&inode, (&path("a"), &path("b")), None, || {
            scope.spawn(|| {
                let begun = table.begin_writing(&inode, |path, _| {
                    tell.send(path.clone()).unwrap();
                    Err(Failure::new(FailureKind::Internal, "only its name is wanted"))
                });
                assert!(begun.is_err());
            });
            scope.spawn(|| assert!(!table.remove(&path("a"), &inode)));
            // Whoever did not wait for the rename would be there soon.
            assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
            true
        });
        assert!(renamed);
    });
    assert_eq!(told.try_recv(), Ok(path("b")));
    assert!(!inode.is_removed() && table.local(&path("a")).is_none());
    assert_eq!(table.local(&path("b")).unwrap().ino, inode.ino);
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

/// What another process makes of a table that was handed over.
fn handed_over(table: &InodeTable, now: Instant) -> InodeTable {
    let copy = |inode: &Arc<Inode>| {
        let handed = inode.handed().expect("nothing is written");
        Arc::new(Inode::restored(handed, now, |_, _| unreachable!("nothing is passed through")))
    };
    let held: BTreeMap<u64, Arc<Inode>> = table.held().iter().map(|inode| (inode.ino, copy(inode))).collect();
    let leads = |inode: &Arc<Inode>| held.get(&inode.ino).cloned().unwrap_or_else(|| copy(inode));
    let named = table.named().iter().map(|(path, inode)| (path.clone(), leads(inode))).collect();
    let copy = InodeTable::restored(held.values().cloned(), named, table.suspects().into_iter().collect());
    InodeTable { number_of: table.number_of, ..copy }
}

#[test]
fn a_writer_that_looks_again_finds_what_it_can_write_whatever_the_kernel_forgot_meanwhile() {
    let now = Instant::now();
    let table = InodeTable::new(now);
    let passed = table.remember(&path("file"), known(Some(1), now));
    let first = table.supersede(&passed);
    // The kernel looks up a name twice whose inode is another one than before, and forgets what it was told first.
    assert_eq!(table.remember(&path("file"), known(Some(1), now)).ino, first.ino);
    table.forget(first.ino, 1);
    let second = table.remember(&path("file"), known(Some(1), now));
    assert!(second.is_kept(), "no reader has it passed through before its writer comes");
    // All of it is forgotten, and another writer has replaced it: those are new inodes.
    table.forget(second.ino, 1);
    table.forget(passed.ino, 1);
    for version in [1, 2] {
        let found = table.remember(&path("file"), known(Some(version), now));
        assert!(found.is_kept(), "version {version}");
    }
    assert!(!table.remember(&path("other"), known(Some(1), now)).is_kept());
}

#[test]
fn names_are_kept_for_a_while_and_then_forgotten_together() {
    let (mut awaited, now) = (Awaited::default(), Instant::now());
    let (first, later) = (awaited.add(&path("a"), now), now + KEPT_FOR_WRITER / 2);
    awaited.add(&path("b"), later);
    assert_eq!((awaited.until(&path("a"), later), awaited.until(&path("c"), later)), (Some(first), None));
    assert_eq!(awaited.until(&path("a"), first), None);
    assert!(awaited.until(&path("b"), first).is_some());
    assert_eq!(awaited.until(&path("b"), first + KEPT_FOR_WRITER), None);
    assert!(awaited.names.is_empty() && awaited.last.is_none());
}

#[test]
fn a_writer_that_looks_again_is_not_led_to_what_readers_have_passed_through() {
    let now = Instant::now();
    let table = InodeTable::new(now);
    let old = table.remember(&path("file"), known(Some(1), now));
    let newer = table.remember(&path("file"), known(Some(2), now));
    let open = Open::Passed { backing: 1, size: 1, handles: 1 };
    let passed = HeldInode { open, ..newer.handed().unwrap() };
    let pinned = |backing, size| Arc::new(Pinned::inherited(Backings::default().adopt(backing), size));
    let newer = Arc::new(Inode::restored(passed, now, pinned));
    let held = [Arc::clone(&old), Arc::clone(&newer)];
    let table = InodeTable::restored(held, HashMap::new(), HashMap::new());
    let first = table.supersede(&old);
    // The version that readers have open is the current one by now.
    table.unname(&path("file"), &first);
    let found = table.remember(&path("file"), known(Some(2), now));
    assert!(found.ino != newer.ino && found.is_kept());
    assert!(newer.is_removed());
    assert_eq!(table.remember(&path("file"), known(Some(2), now)).ino, found.ino);
}

#[test]
fn what_was_found_and_made_here_is_so_in_the_next_process() {
    let now = Instant::now();
    let table = InodeTable::new(now);
    let changed = table.remember(&path("changed"), known(Some(1), now));
    table.mark_changed(&changed);
    let made = table.create(&path("made"), known(Some(1), now));
    let old = table.remember(&path("split"), known(Some(1), now));
    table.supersede(&old);
    made.settle(Some(known(Some(2), Instant::now())));

    let next = handed_over(&table, Instant::now());
    assert!(next.is_suspect(&path("changed")) && next.get(changed.ino).unwrap().is_changed());
    assert_eq!(next.remember(&path("made"), known(Some(2), Instant::now())).ino, made.ino);
    assert_eq!(next.get(made.ino).unwrap().revision(), made.revision());
    assert!(next.get(old.ino).unwrap().is_removed());
    let new = next.remember(&path("split"), known(Some(1), now));
    assert!(new.is_kept(), "the writer that it was made for may come");
    assert_eq!(new.ino, table.remember(&path("split"), known(Some(1), now)).ino);
    assert!(next.get(ROOT).is_some());
    let remaining = next.get(changed.ino).unwrap().known().remaining(Instant::now());
    assert_eq!(remaining, Duration::ZERO, "it is asked again");
}

proptest! {
    #[test]
    fn the_next_process_goes_on_as_this_one_would(before in steps(), after in steps(), collide: bool) {
        let now = Instant::now();
        let table = if collide { InodeTable::with_numbers(now, |_, _| u64::MAX) } else { InodeTable::new(now) };
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        let mut step = |tables: &[&InodeTable], step: Step| match step {
            Step::Lookup(name, version) => {
                let lookup = |table: &&InodeTable| table.remember(&path(&name.to_string()), known(version, now)).ino;
                let inos: Vec<u64> = tables.iter().map(lookup).collect();
                assert!(inos.windows(2).all(|pair| pair[0] == pair[1]), "{inos:?}");
                *held.entry(inos[0]).or_default() += 1;
            }
            Step::Forget(which, count) => {
                let Some(ino) = held.keys().nth(which % held.len().max(1)).copied() else { return };
                let count = count.min(held[&ino]);
                tables.iter().for_each(|table| table.forget(ino, count));
                held.entry(ino).and_modify(|left| *left -= count);
                held.retain(|_, left| *left > 0);
            }
        };
        before.into_iter().for_each(|what| step(&[&table], what));
        let next = handed_over(&table, now);
        prop_assert_eq!(next.len(), table.len());
        after.into_iter().for_each(|what| step(&[&table, &next], what));
        prop_assert_eq!(next.len(), table.len());
    }
}

/// The memory that `journal` writes to from now on, of a table with nothing but the root.
fn begun(journal: &Journal) -> OwnedFd {
    let agreed = Agreed {
        kernel: (7, 45),
        capabilities: 0,
        max_readahead: 0,
        max_write: 4096,
        max_pages: 1,
        page_size: 4096,
        max_background: 1,
        congestion_threshold: 1,
    };
    let root = Inode::new(ROOT, FsPath::root(), Known::new(Attr::directory(), Instant::now(), Duration::ZERO));
    let state = State {
        agreed,
        inodes: vec![root.handed().unwrap()],
        names: Vec::new(),
        suspects: Vec::new(),
        files: Handles::default(),
        directories: Handles::default(),
        virtual_files: Handles::default(),
    };
    journal.begin(&state, &MountOptions::default().identity(Path::new("/mnt"), "test")).unwrap()
}

#[test]
fn what_was_found_and_made_here_is_known_after_a_crash() {
    let (now, journal) = (Instant::now(), Journal::default());
    let table = InodeTable::new(now).noting_in(journal.clone());
    let memory = begun(&journal);
    let changed = table.remember(&path("changed"), known(Some(1), now));
    table.mark_changed(&changed);
    let made = table.create(&path("made"), known(Some(1), now));
    let old = table.remember(&path("split"), known(Some(1), now));
    table.supersede(&old);
    let moved = table.remember(&path("before"), known(None, now));
    table.unname(&path("before"), &moved);
    moved.moved(path("after"), None);
    table.note(&moved);
    table.name(&path("after"), &moved);

    let (_, left) = read_kept(&memory).unwrap();
    let at = |name: &str| {
        let named = left.names.iter().find(|named| named.path == path(name)).expect("a name");
        left.inodes[named.inode as usize].clone()
    };
    assert_eq!((at("made").ino, at("after").ino), (made.ino, moved.ino));
    assert_eq!((at("after").path, at("split").lookups, at("split").kept), (path("after"), 0, true));
    assert_eq!(left.names.len(), 3);
    let suspects: Vec<_> = left.suspects.iter().map(|suspect| (&suspect.path, suspect.ino)).collect();
    assert_eq!(suspects, [(&path("changed"), changed.ino)]);
    assert!(left.inodes.iter().any(|inode| inode.ino == old.ino && inode.removed));
}

proptest! {
    #[test]
    fn what_a_crash_leaves_of_a_table_is_what_the_kernel_holds(steps in steps(), collide: bool) {
        let (now, journal) = (Instant::now(), Journal::default());
        let table = if collide { InodeTable::with_numbers(now, |_, _| u64::MAX) } else { InodeTable::new(now) };
        let table = table.noting_in(journal.clone());
        let memory = begun(&journal);
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Lookup(name, version) => {
                    let ino = table.remember(&path(&name.to_string()), known(version, now)).ino;
                    *held.entry(ino).or_default() += 1;
                }
                Step::Forget(which, count) => {
                    let Some(ino) = held.keys().nth(which % held.len().max(1)).copied() else { continue };
                    let count = count.min(held[&ino]);
                    table.forget(ino, count);
                    held.entry(ino).and_modify(|left| *left -= count);
                    held.retain(|_, left| *left > 0);
                }
            }
        }
        let (_, left) = read_kept(&memory).unwrap();
        let left = left.inodes.iter().filter(|inode| inode.ino != ROOT && inode.lookups > 0);
        let left: BTreeMap<u64, u64> = left.map(|inode| (inode.ino, inode.lookups)).collect();
        prop_assert_eq!(left, held);
    }
}
