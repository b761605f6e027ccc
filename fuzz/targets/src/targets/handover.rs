//! What one process tells the next of a mount.

use forebay_handover::{
    Agreed, DirectoryHandle, FileHandle, Handles, HeldInode, Open, Reads, Record, State, VirtualHandle, decode, encode,
    recover, replay,
};
use forebay_types::{Attr, FileVersion, FsPath, VersionTag, crc32c};

use crate::input::{Input, Output};
use crate::targets::Seed;

/// A mount of which the kernel knows nothing but its root.
pub(super) fn empty() -> State {
    let agreed = Agreed {
        kernel: (7, 45),
        capabilities: 0,
        max_readahead: 128 << 10,
        max_write: 1 << 20,
        max_pages: 256,
        page_size: 4096,
        max_background: 256,
        congestion_threshold: 256,
    };
    let root = HeldInode {
        ino: 1,
        lookups: 1,
        path: FsPath::root(),
        attr: Attr::directory(),
        revision: 0,
        changed: false,
        removed: false,
        lost: false,
        kept: false,
        open: Open::Not,
    };
    State {
        agreed,
        inodes: vec![root],
        names: Vec::new(),
        suspects: Vec::new(),
        files: Handles::default(),
        directories: Handles::default(),
        virtual_files: Handles::default(),
    }
}

/// A state that was read can be restored, and is written as what it was.
pub(super) fn makes_sense(state: &State) {
    assert_eq!(state.check(), Ok(()));
    let written = encode(state).expect("it makes sense");
    assert_eq!(decode(&written).expect("it was written"), *state);
}

/// The state of a mount.
pub(super) mod handover_state {
    use super::*;

    /// As they are, and with the checksum that they should have.
    pub(crate) fn run(bytes: &[u8]) {
        check(bytes);
        check(&corrected(bytes));
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        vec![("empty", encode(&empty()).unwrap_or_default())]
    }

    fn check(bytes: &[u8]) {
        let Ok(state) = decode(bytes) else { return };
        makes_sense(&state);
    }

    fn corrected(bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let checksum = crc32c(bytes.get(16..).unwrap_or_default());
        if let Some(place) = bytes.get_mut(12..16) {
            place.copy_from_slice(&checksum.to_le_bytes());
        }
        bytes
    }
}

/// What changed since, as a process leaves it that dies.
pub(super) mod handover_journal {
    use super::*;

    /// Most records.
    const RECORDS: usize = 64;
    /// Most free slots that they can lead to: all threads of a process may have taken one before.
    const MAX_FREED: usize = (1 << 16) + RECORDS;
    /// What stands for the root.
    const ROOT: u8 = 0xff;
    /// Inodes with this bit are directories.
    const IS_DIRECTORY: u8 = 8;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let (which, at, bit) = (usize::from(input.u8()), usize::from(input.u16()), input.u8() % 8);
        let mut records: Vec<Vec<u8>> = Vec::new();
        while !input.is_empty() && records.len() < RECORDS {
            records.extend(record(&mut input).encode());
        }
        let whole = records.concat();
        if let Ok(state) = replay(empty(), &whole) {
            makes_sense(&state);
            let freed = [&state.files.numbers, &state.directories.numbers, &state.virtual_files.numbers];
            assert!(freed.iter().all(|numbers| numbers.freed.len() <= MAX_FREED), "slots that were never in use");
            let recovered = recover(empty(), &whole).expect("it was read");
            makes_sense(&recovered);
            assert!(recovered.names.iter().all(|named| !recovered.inodes[named.inode as usize].lost));
        }
        let which = which % records.len().max(1);
        let Some(last) = records.get(which) else { return };
        // It ends with the last record before the one that is damaged, or not all there.
        let before = records[..which].concat();
        let place = before.len() + at % last.len();
        let expected = replay(empty(), &before);
        assert_eq!(replay(empty(), &whole[..place]), expected);
        let mut damaged = whole;
        damaged[place] ^= 1 << bit;
        assert_eq!(replay(empty(), &damaged), expected);
    }

    fn record(input: &mut Input<'_>) -> Record {
        let (kind, which, number) = (input.u8(), input.u8(), input.u16());
        let ino = ino(which);
        let handle = u64::from(number >> 8) << 32 | u64::from(slot(number as u8));
        match kind % 12 {
            0 => Record::Inode(inode(which, number)),
            1 => Record::Lookups { ino, lookups: number.into() },
            2 => Record::Forgotten { ino },
            3 => Record::Named { path: path(number), ino },
            4 => Record::Unnamed { path: path(number) },
            5 => {
                let file = FileHandle { inode: 0, revision: 0, reads: Reads::ItsInodesVersion, read: None };
                Record::File { handle, ino, file }
            }
            6 => Record::FileClosed { handle },
            7 => {
                let directory = DirectoryHandle { inode: 0, page: None, marks: Vec::new(), created: Vec::new() };
                Record::Directory { handle, ino, directory }
            }
            8 => Record::DirectoryClosed { handle },
            9 => Record::Virtual { handle, file: VirtualHandle::Log },
            10 => Record::VirtualClosed { handle },
            _ => {
                let marks = vec![(which.into(), "token".to_owned())];
                Record::Listed { handle, page: None, marks, created: Vec::new() }
            }
        }
    }

    /// Small ones, and those at powers of two.
    fn slot(number: u8) -> u32 {
        if number < 0x80 { number.into() } else { (1u32 << (number & 0x1f)) - u32::from(number >> 5 & 1) }
    }

    fn ino(which: u8) -> u64 {
        if which == ROOT { 1 } else { 100 + u64::from(which % 16) }
    }

    fn path(number: u16) -> FsPath {
        FsPath::new(format!("/f{}", number % 16)).expect("it is a path")
    }

    fn inode(which: u8, number: u16) -> HeldInode {
        let is_directory = which & IS_DIRECTORY != 0;
        let path = if which == ROOT { FsPath::root() } else { path(which.into()) };
        let tag = VersionTag::Modified { nanos: 1, inode: ino(which) };
        let version = FileVersion { origin: "file:///o".into(), path: b"f".as_slice().into(), size: 1, tag };
        let has = |bit: u16| number & bit != 0;
        HeldInode {
            ino: ino(which),
            lookups: (number & 7).into(),
            path,
            attr: if is_directory { Attr::directory() } else { Attr::file(version) },
            revision: 0,
            changed: has(8),
            removed: has(16),
            lost: has(32),
            kept: has(64),
            open: if has(128) { Open::Passed { backing: 1, size: 1, handles: 1 } } else { Open::Not },
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let start = |which: u8, at: u16| Output::default().u8(which).u16(at).u8(3);
        let record = |output: Output, kind: u8, which: u8, number: u16| output.u8(kind).u8(which).u16(number);
        let held = record(record(start(2, 9), 0, 1, 1), 3, 1, 1);
        let open = record(record(held.clone(), 5, 1, 0x0100), 1, 1, 5);
        let closed = record(record(open.clone(), 6, 1, 0x0100), 2, 1, 0);
        let listed = record(record(record(start(0, 4), 7, ROOT, 0x0101), 11, 4, 0x0101), 11, 5, 0x0101);
        let far_off = record(held.clone(), 5, 1, 0x0199);
        let many = record(held.clone(), 5, 1, 0x0190);
        let twice = record(record(held.clone(), 5, 1, 0x0100), 5, 1, 0x0200);
        vec![
            ("held", held.done()),
            ("open", open.done()),
            ("closed", closed.done()),
            ("listed", listed.done()),
            ("a_slot_twice", twice.done()),
            ("a_slot_far_off", far_off.done()),
            ("many_slots", many.done()),
            ("lost", record(record(start(1, 0), 0, 2, 32 | 1), 3, 2, 2).done()),
            ("passed", record(record(start(1, 0), 0, 2, 128 | 8 | 1), 5, 2, 0).done()),
            ("virtual", record(record(start(1, 1), 9, 0, 0x0100), 10, 0, 0x0100).done()),
            ("unnamed", record(record(start(1, 1), 3, 9, 9), 4, 0, 9).done()),
        ]
    }
}
