//! What another process finds in the memory of a mount.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use forebay_types::FsPath;

use super::journals::{directory, file, inode};
use super::states::{empty, full};
use crate::identity::tests::identity;
use crate::journal::Record;
use crate::memory::{Journal, Unreadable, read_kept, spend, was_left};
use crate::sealed::sealed;
use crate::state::Open;

#[test]
fn what_was_written_last_is_what_another_process_finds() {
    for state in [empty(), full()] {
        let journal = Journal::default();
        journal.append(|| unreachable!("nothing is written yet"));
        let memory = journal.begin(&state, &identity()).unwrap();
        assert_eq!(read_kept(&memory).unwrap(), (identity(), state.clone()));
        journal.append(|| Record::Inode(inode(1, 2)));
        journal.append(|| Record::File { handle: 9 << 32 | 5, ino: 101, file: file() });
        let (_, found) = read_kept(&memory).unwrap();
        let held = found.inodes.iter().find(|inode| inode.ino == 101).unwrap();
        assert_eq!((held.lookups, held.open, found.files.open.len()), (2, Open::Served(1), state.files.open.len() + 1));
        assert!(journal.begin(&state, &identity()).is_err(), "there is one");
    }
}

#[test]
fn what_was_left_in_good_order_is_found_as_what_a_dead_process_had_and_told_apart() {
    for state in [empty(), full()] {
        let left = Journal::leave(&state, &identity()).unwrap();
        assert_eq!(read_kept(&left).unwrap(), (identity(), state.clone()));
        assert!(was_left(&left));
        let of_dead = Journal::default().begin(&state, &identity()).unwrap();
        assert!(!was_left(&of_dead));
        spend(&left).unwrap();
        assert!(matches!(read_kept(&left), Err(Unreadable::GivenUp)) && !was_left(&left), "another process goes on");
    }
    assert!(!was_left(tempfile::tempfile().unwrap()));
}

#[test]
fn a_long_journal_becomes_a_state_and_nothing_of_it_is_lost() {
    let journal = Journal::default();
    let memory = journal.begin_with(&empty(), &identity(), 2_000).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let mut count = 0;
    while journal.length().unwrap().1 < 5 {
        assert!(Instant::now() < until, "the journal is never made a state");
        count += 1;
        journal.append(|| Record::Inode(inode(count, 1)));
        journal.append(|| Record::Directory { handle: count << 32 | count, ino: 1, directory: directory() });
        journal.append(|| Record::DirectoryClosed { handle: count << 32 | count });
        if journal.is_rewritten() {
            continue;
        }
        // Only what is written begins it.
        let (_, found) = read_kept(&memory).unwrap();
        assert_eq!((found.inodes.len() as u64, found.directories.open.len()), (count + 1, 0));
        assert_eq!(u64::from(found.directories.numbers.serial), count);
    }
}

#[test]
fn what_is_no_memory_of_a_mount_is_told_apart() {
    assert!(matches!(read_kept(tempfile::tempfile().unwrap()), Err(Unreadable::NoMemory)));
    assert!(matches!(read_kept(sealed(&[7; 100]).unwrap()), Err(Unreadable::NoMemory)));
    let journal = Journal::default();
    let memory = File::from(journal.begin(&empty(), &identity()).unwrap());
    let mut head = [0; 40];
    memory.read_exact_at(&mut head, 0).unwrap();
    let found = |at: usize, to: u8| {
        let mut changed = head;
        changed[at] = to;
        memory.write_all_at(&changed, 0).unwrap();
        read_kept(&memory).unwrap_err()
    };
    assert!(matches!(found(8, 2), Unreadable::Layout(2)));
    assert!(matches!(found(20, 0xff), Unreadable::Damaged));
    memory.write_all_at(&head, 0).unwrap();
    read_kept(&memory).unwrap();
    memory.write_all_at(b"x", 4096).unwrap();
    assert!(matches!(read_kept(&memory), Err(Unreadable::Damaged)));
}

#[test]
fn a_journal_that_cannot_be_written_is_not_believed() {
    let journal = Journal::default();
    let memory = journal.begin(&empty(), &identity()).unwrap();
    // A record that is longer than any.
    let token = "x".repeat(17 << 20);
    journal.append(|| Record::Listed { handle: 1, page: None, marks: vec![(1, token)], created: Vec::new() });
    assert!(matches!(read_kept(&memory), Err(Unreadable::GivenUp)));
    journal.append(|| Record::Unnamed { path: FsPath::root() });
    assert!(matches!(read_kept(&memory), Err(Unreadable::GivenUp)), "for good");
}
