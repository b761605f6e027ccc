//! What a mount lives by while no process serves it: memory that a dead one has left, and what is said to keepers.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use forebay_handover::fuzzing::{Listener, Piece, messages};
use forebay_handover::{Identity, Journal, Record, Unreadable, VirtualHandle, encode, read_kept, spend, was_left};
use forebay_types::crc32c;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::input::{Input, Output};
use crate::targets::Seed;
use crate::targets::handover::{empty, makes_sense};

pub(super) mod kept_memory {
    use super::*;

    /// Bytes of the head, and where the checksum is of what follows it there.
    const HEAD: usize = 40;
    const CHECKSUM: usize = 12;
    /// Where the identity is, and where the head says how long it is.
    const IDENTITY_AT: u64 = 4096;
    const IDENTITY_LENGTH_AT: u64 = 32;
    /// A byte of the head is changed.
    const CHANGED: u8 = 1;
    /// The state has another length than is said.
    const OTHER_LENGTH: u8 = 2;
    /// What the head holds is what was changed.
    const SEALED: u8 = 4;
    /// The checksum of the state is put right.
    const STATE_SEALED: u8 = 8;

    pub(crate) fn run(bytes: &[u8]) {
        let memory = memory(&mut Input::new(bytes));
        let (found, is_left) = (read_kept(&memory), was_left(&memory));
        match &found {
            Ok((identity, state)) => {
                makes_sense(state);
                assert!(state.names.iter().all(|named| !state.inodes[named.inode as usize].lost));
                let left = Journal::leave(state, identity).expect("it was read");
                let (again, _) = read_kept(&left).expect("it was written");
                assert!(again == *identity && was_left(&left));
            }
            Err(Unreadable::NoMemory | Unreadable::Layout(_) | Unreadable::GivenUp) => assert!(!is_left),
            Err(_) => {}
        }
        assert_eq!(read_kept(&memory).ok(), found.ok(), "to read changes nothing");
        spend(&memory).expect("it can be written");
        assert!(matches!(read_kept(&memory), Err(Unreadable::GivenUp)) && !was_left(&memory));
    }

    /// What lies where a process leaves it, in less than two megabytes.
    fn memory(input: &mut Input<'_>) -> File {
        let (flags, area) = (input.u8(), u64::from(input.u8()) << 12);
        let length = (flags & OTHER_LENGTH != 0).then(|| input.u32());
        let change = (flags & CHANGED != 0).then(|| (usize::from(input.u8()) % HEAD, input.u8()));
        let (identity, mut state) = (input.piece(), input.piece().to_vec());
        if flags & STATE_SEALED != 0 {
            let checksum = crc32c(state.get(16..).unwrap_or_default());
            if let Some(place) = state.get_mut(12..16) {
                place.copy_from_slice(&checksum.to_le_bytes());
            }
        }
        let length = length.map_or(state.len() as u64, u64::from);
        let head = Output::default().bytes(b"FBKEPT\0\0").u32(1).u32(0).u64(area).u64(length);
        let mut head = head.u32(identity.len() as u32).u32(crc32c(identity)).done();
        let seal = |head: &mut [u8]| {
            let checksum = crc32c(&head[CHECKSUM + 4..]);
            head[CHECKSUM..CHECKSUM + 4].copy_from_slice(&checksum.to_le_bytes());
        };
        seal(&mut head);
        if let Some((at, with)) = change {
            head[at] ^= with;
        }
        if flags & SEALED != 0 {
            seal(&mut head);
        }
        let memory = File::from(memfd_create("forebay-fuzz", MemfdFlags::CLOEXEC).expect("memory is there"));
        let write = |bytes: &[u8], at: u64| memory.write_all_at(bytes, at).expect("memory is there");
        write(&state, area);
        write(input.rest(), area + state.len() as u64);
        write(identity, IDENTITY_AT);
        write(&head, 0);
        memory
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let identity = Identity {
            mountpoint: "/mnt/data".to_owned(),
            namespace: "s3://b".to_owned(),
            read_only: false,
            allow_other: true,
            uid: 0,
            gid: 0,
            file_mode: 0o644,
            directory_mode: 0o755,
            max_read: 512 << 10,
            max_background: 256,
            passthrough: false,
        };
        let left = File::from(Journal::leave(&empty(), &identity).expect("memory is there"));
        let mut length = [0; 4];
        left.read_exact_at(&mut length, IDENTITY_LENGTH_AT).expect("it was written");
        let mut identity = vec![0; u32::from_le_bytes(length) as usize];
        left.read_exact_at(&mut identity, IDENTITY_AT).expect("it was written");
        let state = encode(&empty()).unwrap_or_default();
        let opened = Record::Virtual { handle: 1 << 32, file: VirtualHandle::Log }.encode().unwrap_or_default();
        // In good order is one byte more.
        let died = identity.get(..identity.len() - 1).unwrap_or_default();
        let all = |output: Output, identity: &[u8], journal: &[u8]| {
            output.piece(identity).piece(&state).bytes(journal).done()
        };
        let start = |flags: u8| Output::default().u8(flags).u8(2);
        vec![
            ("left", all(start(0), &identity, &[])),
            ("died", all(start(0), died, &opened)),
            ("cut_off", all(start(0), died, &opened[..opened.len() - 1])),
            ("another_layout", all(start(CHANGED).u8(8).u8(3), died, &[])),
            ("given_up", all(start(CHANGED | SEALED).u8(17).u8(0x20), died, &[])),
            ("damaged", all(start(CHANGED).u8(24).u8(1), died, &[])),
            ("longer_than_it_is", all(start(OTHER_LENGTH).u32(1 << 30), died, &[])),
            ("another_identity", all(start(CHANGED | SEALED).u8(36).u8(1), died, &[])),
        ]
    }
}

pub(super) mod keeper_messages {
    use super::*;

    /// Most pieces: all fit into a socket.
    const PIECES: usize = 24;
    /// No message, but bytes of one.
    const BYTES: u8 = 1;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let listener = match input.u8() % 5 {
            0 => Listener::Keeper,
            1 => Listener::Daemon,
            2 => Listener::Launcher,
            3 => Listener::Giving,
            _ => Listener::Taking,
        };
        let mut pieces = Vec::new();
        while !input.is_empty() && pieces.len() < PIECES {
            let flags = input.u8();
            let bytes = input.piece();
            pieces.push(Piece { bytes, descriptors: flags >> 4, is_message: flags & BYTES == 0 });
        }
        messages(listener, &pieces);
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let seed = |listener: u8, pieces: &[(u8, &[u8])]| {
            let begin = Output::default().u8(listener);
            pieces.iter().fold(begin, |output, (flags, bytes)| output.u8(*flags).piece(bytes)).done()
        };
        let descriptors = |count: u8| count << 4;
        let written = b"\x07\0\x01\x09\x01\x01\x05\0\0\x02xy";
        vec![
            (
                "keep",
                seed(0, &[(descriptors(2), &[0, 3, 0]), (descriptors(2), &[1]), (descriptors(1), &[1]), (0, &[4])]),
            ),
            ("more_clones", seed(0, &[(descriptors(2), &[0, 1, 0]), (descriptors(8), &[1])])),
            ("too_many_at_once", seed(0, &[(descriptors(2), &[0, 9, 0]), (descriptors(9), &[1])])),
            ("take", seed(0, &[(0, &[2]), (0, &[3])])),
            ("given", seed(1, &[(descriptors(2), &[1, 0]), (0, &[3])])),
            ("start", seed(2, &[(0, b"\x04/bin\x01\x01a\x01\x01K\x01v\x01/\x00")])),
            ("asks", seed(3, &[(0, &[1]), (0, b"\x03\x02no")])),
            ("says", seed(4, &[(0, &[0]), (0, b"\x01\x01\x01a"), (descriptors(1), written)])),
            ("in_parts", seed(0, &[(BYTES, &[1, 0]), (BYTES | descriptors(1), &[0, 0, 1, 0]), (BYTES, &[1, 0, 1])])),
            ("too_long", seed(0, &[(BYTES, &[255, 255, 255, 255, 1, 0, 0, 0])])),
            ("another_protocol", seed(0, &[(BYTES, &[1, 0, 0, 0, 9, 0, 0, 0, 2])])),
        ]
    }
}
