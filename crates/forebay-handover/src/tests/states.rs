//! States of mounts as bytes.

use forebay_types::{Attr, DirEntry, FileKind, FileVersion, FsPath, VersionTag};
use proptest::prelude::*;

use crate::state::{
    Agreed, DirectoryHandle, FileHandle, HandleNumbers, Handles, HeldInode, Named, Names, Nonsense, Open, ReadSoFar,
    Reads, State, Suspect, VirtualHandle,
};
use crate::{FORMAT, Malformed, decode, encode};

pub(super) fn agreed() -> Agreed {
    Agreed {
        kernel: (7, 45),
        capabilities: 1 << 37 | 1,
        max_readahead: 128 << 10,
        max_write: 1 << 20,
        max_pages: 256,
        page_size: 4096,
        max_background: 256,
        congestion_threshold: 192,
    }
}

fn version(nanos: i64) -> FileVersion {
    let tag = VersionTag::Modified { nanos, inode: 7 };
    FileVersion { origin: "file:///o".into(), path: b"a/b".as_slice().into(), size: 10, tag }
}

fn file(nanos: i64) -> Attr {
    Attr { modified_nanos: nanos, replicas: 2, writable: true, ..Attr::file(version(nanos)) }
}

fn path(text: &str) -> FsPath {
    FsPath::new(text).unwrap()
}

fn inode(ino: u64, path: FsPath, attr: Attr) -> HeldInode {
    HeldInode {
        ino,
        lookups: 1,
        path,
        attr,
        revision: 0,
        changed: false,
        removed: false,
        lost: false,
        kept: false,
        open: Open::Not,
    }
}

/// A root, and nothing else.
pub(super) fn empty() -> State {
    State {
        agreed: agreed(),
        inodes: vec![inode(1, FsPath::root(), Attr::directory())],
        names: Vec::new(),
        suspects: Vec::new(),
        files: Handles::default(),
        directories: Handles::default(),
        virtual_files: Handles::default(),
    }
}

/// Something of everything.
pub(super) fn full() -> State {
    let opened = HeldInode { open: Open::Served(1), revision: 3, ..inode(20, path("/a"), file(1)) };
    let passed = Open::Passed { backing: 9, size: 10, handles: 1 };
    let reads = Reads::Version(version(2));
    let read = Some(ReadSoFar { bytes: 9, sequential: 8, end: 7 });
    let names = Names {
        start: 1000,
        entries: vec![DirEntry { name: b"\xff".as_slice().into(), attr: file(3) }],
        next: Some("token".to_owned()),
    };
    let directory = DirectoryHandle {
        inode: 0,
        page: Some(names),
        marks: vec![(500, "a".to_owned()), (1000, "b".to_owned())],
        created: vec![b"new".as_slice().into()],
    };
    State {
        inodes: vec![
            inode(1, FsPath::root(), Attr::directory()),
            opened,
            HeldInode { open: passed, changed: true, ..inode(21, path("/b"), file(2)) },
            HeldInode { lookups: 0, kept: true, ..inode(22, path("/c"), file(3)) },
        ],
        names: vec![Named { path: path("/c"), inode: 3 }],
        suspects: vec![Suspect { path: path("/b"), ino: 21 }],
        files: Handles {
            open: vec![
                (5 << 32, FileHandle { inode: 1, revision: 3, reads, read }),
                (6 << 32 | 2, FileHandle { inode: 2, revision: 0, reads: Reads::WhatItsInodeIs, read: None }),
            ],
            numbers: HandleNumbers { freed: vec![1], serial: 6 },
        },
        directories: Handles { open: vec![(1 << 32, directory)], numbers: HandleNumbers { freed: vec![], serial: 1 } },
        virtual_files: Handles {
            open: vec![(1 << 32, VirtualHandle::Text(b"a 1\n".as_slice().into())), (2 << 32 | 1, VirtualHandle::Log)],
            numbers: HandleNumbers { freed: vec![], serial: 2 },
        },
        ..empty()
    }
}

#[test]
fn a_state_is_what_was_written() {
    for state in [empty(), full()] {
        assert_eq!(decode(&encode(&state).unwrap()), Ok(state));
    }
}

/// A mount of which nothing was looked at, as format 1 has it.
const FORMAT_1: &[u8] = b"\
    \x46\x42\x4d\x4f\x55\x4e\x54\x00\x01\x00\x00\x00\x70\xa5\x88\x9a\x07\x2d\x00\x80\x80\x08\x80\x80\
    \x40\x80\x02\x80\x20\x80\x02\x80\x02\x01\x01\x01\x01\x2f\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\
    \x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";

#[test]
fn a_format_that_was_released_stays_what_it_is() {
    let state = decode(FORMAT_1).unwrap();
    assert_eq!((state.inodes.clone(), state.agreed.congestion_threshold), (empty().inodes, 256));
    // Whoever changes the format makes another number of it, and this test one that reads both. The bodies of 1 and 2 are the same.
    let written = encode(&state).unwrap();
    assert_eq!((&written[..8], &written[8..12], &written[12..]), (&FORMAT_1[..8], &[2, 0, 0, 0][..], &FORMAT_1[12..]));
}

#[test]
fn a_state_of_another_format_is_told_by_its_number() {
    let mut bytes = encode(&empty()).unwrap();
    bytes[8..12].copy_from_slice(&(FORMAT + 1).to_le_bytes());
    assert_eq!(decode(&bytes), Err(Malformed::Format(FORMAT + 1)));
    assert!(Malformed::Format(FORMAT + 1).to_string().contains(&format!("format {}", FORMAT + 1)));
    bytes[0] = b'X';
    assert_eq!(decode(&bytes), Err(Malformed::NoState));
    assert_eq!(decode(b""), Err(Malformed::NoState));
}

#[test]
fn what_nobody_could_restore_is_neither_written_nor_read() {
    type Change = fn(&mut State);
    let changes: [(Nonsense, Change); 18] = [
        (Nonsense::Agreed, |state| state.agreed.max_write = u32::MAX),
        (Nonsense::Agreed, |state| state.agreed.page_size = 0),
        (Nonsense::Agreed, |state| state.agreed.kernel = (8, 0)),
        (Nonsense::Root, |state| state.inodes.clear()),
        (Nonsense::Root, |state| state.inodes[1].ino = 1),
        (Nonsense::Root, |state| state.inodes[1].ino = 0),
        (Nonsense::Number, |state| state.inodes[1].ino = 21),
        (Nonsense::NoInode, |state| state.names[0].inode = 4),
        (Nonsense::NoInode, |state| state.files.open[0].1.inode = u32::MAX),
        (Nonsense::Name, |state| state.names.extend(state.names.clone())),
        (Nonsense::Name, |state| state.suspects.extend(state.suspects.clone())),
        (Nonsense::Slots, |state| state.files.open[0].0 = 6 << 32 | 2),
        (Nonsense::Slots, |state| state.files.numbers.freed = vec![u32::MAX]),
        (Nonsense::Slots, |state| state.virtual_files.numbers.freed = vec![0]),
        (Nonsense::Count, |state| state.inodes[1].open = Open::Served(2)),
        (Nonsense::Count, |state| state.inodes[3].open = Open::Served(0)),
        (Nonsense::Kind, |state| state.directories.open[0].1.inode = 1),
        (Nonsense::Position, |state| state.directories.open[0].1.marks.reverse()),
    ];
    for (expected, change) in changes {
        let mut state = full();
        change(&mut state);
        assert_eq!(state.check(), Err(expected));
        assert_eq!(encode(&state), Err(Malformed::Nonsense(expected)));
    }
    let mut state = full();
    state.directories.open[0].1.page.as_mut().unwrap().start = u64::MAX;
    assert_eq!(state.check(), Err(Nonsense::Position));
}

/// Bytes whose checksum is right.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = forebay_types::crc32c(bytes.get(16..).unwrap_or_default());
    if let Some(place) = bytes.get_mut(12..16) {
        place.copy_from_slice(&checksum.to_le_bytes());
    }
    bytes
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(decode(&bytes).is_err());
        let header = &encode(&empty()).unwrap()[..16];
        let _ = decode(&sealed([header, &bytes[..]].concat()));
    }

    #[test]
    fn a_changed_byte_is_noticed_and_one_with_a_right_checksum_makes_nothing_wrong(at: usize, to: u8) {
        let whole = encode(&full()).unwrap();
        let mut bytes = whole.clone();
        let at = at % bytes.len();
        bytes[at] = to;
        prop_assert_eq!(decode(&bytes).is_ok(), bytes == whole);
        if let Ok(state) = decode(&sealed(bytes)) {
            prop_assert_eq!(state.check(), Ok(()));
        }
    }

    #[test]
    fn what_is_cut_off_is_noticed(length in 0usize..500) {
        let whole = encode(&full()).unwrap();
        prop_assume!(length < whole.len());
        prop_assert!(decode(&sealed(whole[..length].to_vec())).is_err());
    }
}

#[test]
fn attributes_keep_what_they_are() {
    for attr in [Attr::directory(), file(-5), Attr { kind: FileKind::Directory, ..file(1) }] {
        let mut state = empty();
        state.inodes.push(inode(30, path("/x"), attr));
        assert_eq!(decode(&encode(&state).unwrap()), Ok(state));
    }
}
