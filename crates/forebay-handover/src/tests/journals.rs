//! What changed since a state was written, and what a crash leaves of it.

use forebay_types::{Attr, FileVersion, FsPath, VersionTag};
use proptest::prelude::*;

use super::states::{empty, full};
use crate::journal::{Record, recover, replay};
use crate::state::{DirectoryHandle, FileHandle, HeldInode, Nonsense, Open, Reads, State, Suspect, VirtualHandle};

pub(super) fn inode(number: u64, lookups: u64) -> HeldInode {
    let tag = VersionTag::Modified { nanos: 1, inode: number };
    let version = FileVersion { origin: "file:///o".into(), path: b"f".as_slice().into(), size: 1, tag };
    let path = FsPath::new(format!("/f{number}")).unwrap();
    HeldInode { ino: 100 + number, lookups, path, attr: Attr::file(version), ..empty().inodes[0].clone() }
}

pub(super) fn file() -> FileHandle {
    FileHandle { inode: 0, revision: 0, reads: Reads::ItsInodesVersion, read: None }
}

pub(super) fn directory() -> DirectoryHandle {
    DirectoryHandle { inode: 0, page: None, marks: Vec::new(), created: Vec::new() }
}

fn journal(records: &[Record]) -> Vec<u8> {
    records.iter().flat_map(|record| record.encode().unwrap()).collect()
}

#[test]
fn a_journal_without_records_changes_nothing() {
    for state in [empty(), full()] {
        assert_eq!(replay(state.clone(), &[]).unwrap(), state);
        assert_eq!(replay(state.clone(), &[0; 100]).unwrap(), state, "memory that was never written to");
    }
}

#[test]
fn what_is_open_after_a_crash_is_what_was_opened_and_not_closed() {
    let records = [
        Record::Inode(inode(1, 1)),
        Record::File { handle: 1 << 32, ino: 101, file: file() },
        Record::File { handle: 2 << 32 | 1, ino: 101, file: file() },
        Record::Lookups { ino: 101, lookups: 5 },
        Record::Directory { handle: 1 << 32, ino: 1, directory: directory() },
        Record::Virtual { handle: 1 << 32, file: VirtualHandle::Log },
        Record::FileClosed { handle: 1 << 32 },
        Record::VirtualClosed { handle: 1 << 32 },
        Record::Named { path: FsPath::new("/f1").unwrap(), ino: 101 },
    ];
    let state = replay(empty(), &journal(&records)).unwrap();
    let held = state.inodes.iter().find(|inode| inode.ino == 101).unwrap();
    assert_eq!((held.lookups, held.open), (5, Open::Served(1)));
    assert_eq!(state.files.open.iter().map(|(handle, _)| *handle).collect::<Vec<_>>(), [2 << 32 | 1]);
    assert_eq!((state.files.numbers.freed.clone(), state.files.numbers.serial), (vec![0], 2));
    assert_eq!((state.directories.open.len(), state.virtual_files.open.len(), state.names.len()), (1, 0, 1));
    assert_eq!(state.virtual_files.numbers.serial, 1, "a handle that was given is not given again");

    let more = [Record::Forgotten { ino: 101 }, Record::FileClosed { handle: 2 << 32 | 1 }];
    let state = replay(state, &journal(&more)).unwrap();
    assert_eq!(state.inodes.len(), 2, "its name leads to it");
    let more = [Record::Unnamed { path: FsPath::new("/f1").unwrap() }];
    assert_eq!(replay(state, &journal(&more)).unwrap().inodes.len(), 1);
}

#[test]
fn records_of_another_state_are_refused() {
    let records = [Record::Inode(inode(1, 1)), Record::File { handle: u64::from(u32::MAX), ino: 101, file: file() }];
    assert_eq!(replay(empty(), &journal(&records)), Err(Nonsense::Slots));
}

#[test]
fn no_record_makes_more_slots_than_can_have_been_in_use() {
    let opened = |slot: u64| Record::File { handle: 1 << 32 | slot, ino: 101, file: file() };
    let after = |state: State, slot: u64| replay(state, &journal(&[Record::Inode(inode(1, 1)), opened(slot)]));
    assert_eq!(after(empty(), 1 << 25), Err(Nonsense::Slots), "128 MiB of free ones");
    // As of many threads at once, the last of which came first to its record.
    assert_eq!(after(empty(), 1000).unwrap().files.numbers.freed.len(), 1000);

    // Many were open at once, and one of them is: a state that is made of the journal says so, and what comes then is believed.
    let log = |handle: u64| Record::Virtual { handle, file: VirtualHandle::Log };
    let many: Vec<Record> = (0..100_000).map(log).collect();
    let closed: Vec<Record> = (1..100_000).map(|handle| Record::VirtualClosed { handle }).collect();
    let state = replay(empty(), &[journal(&many), journal(&closed)].concat()).unwrap();
    assert_eq!((state.virtual_files.open.len(), state.virtual_files.numbers.freed.len()), (1, 99_999));
    let state = replay(state, &journal(&[log(1 << 32 | 99_999)])).unwrap();
    assert_eq!((state.virtual_files.open.len(), state.virtual_files.numbers.freed.len()), (2, 99_998));
}

#[test]
fn a_handle_on_what_the_kernel_had_forgotten_was_never_told_to_it() {
    let records = [
        Record::File { handle: 1 << 32, ino: 999, file: file() },
        Record::Directory { handle: 1 << 32, ino: 999, directory: directory() },
        Record::Named { path: FsPath::new("/gone").unwrap(), ino: 999 },
    ];
    let state = replay(empty(), &journal(&records)).unwrap();
    assert!(state.files.open.is_empty() && state.directories.open.is_empty() && state.names.is_empty());
    assert_eq!(state.files.numbers.serial, 1, "its number is not given again");
}

#[test]
fn a_directory_is_read_on_where_it_was_and_not_after_it_was_closed() {
    let listed = |position: u64| Record::Listed {
        handle: 1 << 32,
        page: None,
        marks: vec![(position, "token".to_owned())],
        created: Vec::new(),
    };
    let mut records = vec![Record::Directory { handle: 1 << 32, ino: 1, directory: directory() }, listed(5), listed(7)];
    let state = replay(empty(), &journal(&records)).unwrap();
    assert_eq!(state.directories.open[0].1.marks, [(7, "token".to_owned())]);
    records.extend([Record::DirectoryClosed { handle: 1 << 32 }, listed(9)]);
    assert!(replay(empty(), &journal(&records)).unwrap().directories.open.is_empty());
}

#[test]
fn what_was_being_written_is_lost_and_its_name_asked_anew() {
    let lost = HeldInode { lost: true, changed: true, removed: true, ..inode(1, 1) };
    let path = lost.path.clone();
    let records = [
        Record::Inode(inode(1, 1)),
        Record::Named { path: path.clone(), ino: 101 },
        Record::File { handle: 1 << 32, ino: 101, file: FileHandle { reads: Reads::Lost, ..file() } },
        Record::Inode(lost),
    ];
    let state = recover(empty(), &journal(&records)).unwrap();
    assert_eq!((state.names.len(), state.suspects.clone()), (0, vec![Suspect { path, ino: 101 }]));
    assert_eq!(state.files.open[0].1.reads, Reads::Lost);
    // While the daemon lives it may be uploaded after all.
    let state = replay(empty(), &journal(&records)).unwrap();
    let state = recover(state, &journal(&[Record::Inode(inode(1, 1))])).unwrap();
    assert_eq!((state.names.len(), state.suspects.len()), (1, 0));
}

#[test]
fn of_two_inodes_with_one_number_the_kernels_counts() {
    let mut state = empty();
    state.inodes.extend([inode(1, 0), inode(1, 3), inode(1, 0)]);
    let held = replay(state, &[]).unwrap().inodes;
    assert_eq!(held.iter().map(|inode| (inode.ino, inode.lookups)).collect::<Vec<_>>(), [(1, 1), (101, 3)]);
}

#[derive(Clone, Debug)]
enum Step {
    Look(u64),
    Forget(u64),
    Open(u64),
    Close(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..5u64).prop_map(Step::Look),
        (0..5u64).prop_map(Step::Forget),
        (0..5u64).prop_map(Step::Open),
        any::<usize>().prop_map(Step::Close),
    ];
    prop::collection::vec(step, 0..60)
}

/// What a daemon with nothing but counters would write, record by record, and what it has after each of them.
fn written(steps: Vec<Step>) -> Vec<(Record, [u64; 5], Vec<u64>)> {
    let (mut lookups, mut open, mut serial, mut written) = ([0u64; 5], Vec::<(u64, u64)>::new(), 0u64, Vec::new());
    for step in steps {
        let record = match step {
            Step::Look(number) => {
                lookups[number as usize] += 1;
                Record::Inode(inode(number, lookups[number as usize]))
            }
            Step::Forget(number) if lookups[number as usize] > 0 && open.iter().all(|(_, of)| *of != number) => {
                lookups[number as usize] = 0;
                Record::Forgotten { ino: 100 + number }
            }
            Step::Open(number) if lookups[number as usize] > 0 => {
                serial += 1;
                let slot = (0..).find(|slot| open.iter().all(|(handle, _)| handle & 0xffff_ffff != *slot)).unwrap();
                let handle = serial << 32 | slot;
                open.push((handle, number));
                Record::File { handle, ino: 100 + number, file: file() }
            }
            Step::Close(which) if !open.is_empty() => {
                let (handle, _) = open.swap_remove(which % open.len());
                Record::FileClosed { handle }
            }
            Step::Forget(_) | Step::Open(_) | Step::Close(_) => continue,
        };
        let mut handles: Vec<u64> = open.iter().map(|(handle, _)| *handle).collect();
        handles.sort_unstable();
        written.push((record, lookups, handles));
    }
    written
}

fn is_as_written(state: &State, lookups: &[u64; 5], handles: &[u64]) -> bool {
    let of = |number: u64| state.inodes.iter().find(|inode| inode.ino == 100 + number).map_or(0, |inode| inode.lookups);
    let open: Vec<u64> = state.files.open.iter().map(|(handle, _)| *handle).collect();
    (0..5).all(|number| of(number) == lookups[number as usize]) && open == handles
}

proptest! {
    #[test]
    fn wherever_a_crash_cuts_it_off_a_journal_is_what_was_written_until_then(steps in steps(), cut: usize) {
        let written = written(steps);
        let records: Vec<Record> = written.iter().map(|(record, ..)| record.clone()).collect();
        let whole = journal(&records);
        let cut = cut % (whole.len() + 1);
        let (mut length, mut count) = (0, 0_usize);
        for record in &records {
            length += record.encode().unwrap().len();
            if length > cut {
                break;
            }
            count += 1;
        }
        let state = replay(empty(), &whole[..cut]).unwrap();
        let (lookups, handles) = count.checked_sub(1).map_or(([0; 5], Vec::new()), |last: usize| {
            let (_, lookups, handles) = &written[last];
            (*lookups, handles.clone())
        });
        prop_assert!(is_as_written(&state, &lookups, &handles));
        prop_assert_eq!(state.check(), Ok(()));
    }

    #[test]
    fn no_journal_makes_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), at: usize) {
        let _ = replay(full(), &bytes);
        let mut damaged = journal(&[Record::Inode(inode(1, 1)), Record::Forgotten { ino: 20 }]);
        let at = at % damaged.len();
        damaged[at] ^= 0x40;
        let _ = replay(full(), &damaged);
    }
}
