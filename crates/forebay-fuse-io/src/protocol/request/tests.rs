use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;

use super::samples::{Pieces, encode, message};
use super::*;
use crate::errno::Errno;

fn header() -> Header {
    Header { unique: 0xfeed, node: 0xbeef_0001, uid: 1000, gid: 2000, pid: 3000, ..Header::default() }
}

fn times() -> impl Strategy<Value = [SystemTime; 3]> {
    let time = (any::<bool>(), 0..1u64 << 40, 0..1_000_000_000u32).prop_map(|(is_before, seconds, nanos)| {
        let distance = Duration::new(seconds, nanos);
        if is_before { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
    });
    prop::array::uniform3(time)
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_map(|byte| if matches!(byte, 0 | b'/') { b'x' } else { byte });
    prop::collection::vec(byte, 1..=255)
}

prop_compose! {
    fn pieces()(
        numbers: [u64; 6], words: [u32; 4], yes: bool, times in times(), name in name(), other_name in name(),
        data in prop::collection::vec(any::<u8>(), 0..200),
    ) -> Pieces {
        Pieces { numbers, words, yes, times, name, other_name, data }
    }
}

proptest! {
    #[test]
    fn every_operation_is_read_as_it_was_written(pieces in pieces()) {
        for operation in pieces.operations() {
            let (opcode, head, tail) = encode(&operation);
            prop_assert_eq!(parse(opcode, &head, &tail), Ok(operation));
        }
    }

    #[test]
    fn a_message_in_one_piece_is_the_same_as_one_in_three(pieces in pieces()) {
        for operation in pieces.operations() {
            let message = message(header(), &operation);
            let header = Header::parse(&message).unwrap();
            let (head, tail) = split(&header, &message).unwrap();
            prop_assert_eq!(parse(header.opcode, head, tail), Ok(operation));
            // A ring's place for the head is larger than any head.
            let mut place = vec![0xdd; 128];
            if header.opcode != opcode::INIT {
                place[..head.len()].copy_from_slice(head);
                prop_assert_eq!(parse(header.opcode, &place, tail), Ok(operation));
            }
        }
    }

    #[test]
    fn no_message_that_is_cut_short_is_another_request(pieces in pieces()) {
        for operation in pieces.operations() {
            let (opcode, head, tail) = encode(&operation);
            // Of INIT only so much is needed as old kernels have.
            let needed = if opcode == opcode::INIT { 20 } else { head.len() };
            for length in 0..needed {
                prop_assert!(parse(opcode, &head[..length], &tail).is_err(), "{operation:?} with {length} bytes of head");
            }
            for length in 0..tail.len() {
                let parsed = parse(opcode, &head, &tail[..length]);
                match (operation, parsed) {
                    // What there is of them is taken.
                    (Operation::BatchForget(whole), Ok(Operation::BatchForget(part))) => {
                        prop_assert!(part.iter().eq(whole.iter().take(length / 16)));
                    }
                    (_, parsed) => prop_assert!(parsed.is_err(), "{operation:?} with {length} bytes of tail"),
                }
            }
            let whole = message(header(), &operation);
            for length in 0..whole.len() {
                let cut = &whole[..length];
                let split = Header::parse(cut).and_then(|header| split(&header, cut).map(drop));
                prop_assert!(split.is_err());
            }
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic(
        opcode in prop_oneof![0..60u32, any::<u32>()],
        head in prop::collection::vec(any::<u8>(), 0..130),
        tail in prop::collection::vec(prop_oneof![Just(0u8), Just(b'/'), any::<u8>()], 0..300),
    ) {
        if let Ok(Operation::BatchForget(forgets)) = parse(opcode, &head, &tail) {
            prop_assert!(forgets.iter().count() <= tail.len() / 16);
        }
        let message = [head, tail].concat();
        if let Ok(header) = Header::parse(&message) {
            let _ = split(&header, &message);
            let honest = Header { length: message.len() as u32, ..header };
            if let Ok((head, tail)) = split(&honest, &message) {
                let _ = parse(opcode, head, tail);
            }
        }
    }
}

#[test]
fn every_operation_of_the_kernel_is_known_but_those_that_we_do_not_have() {
    let unknown = [7, 19, 31, 32, 33, 37, 39, 40, 48, 49, 50, 51, 52];
    let known = Pieces::some().operations().iter().map(|operation| encode(operation).0).collect::<Vec<_>>();
    for opcode in (1..=53).filter(|opcode| !unknown.contains(opcode)) {
        assert!(known.contains(&opcode), "{opcode}");
    }
    for opcode in unknown.into_iter().chain([0, 54, 4096, u32::MAX]) {
        assert_eq!(parse(opcode, &[], b"anything"), Ok(Operation::Unknown { opcode }));
    }
}

/// Of §2's table in the kernel's `fuse.h`: how large the first argument of each operation is.
#[test]
fn heads_are_as_long_as_the_kernels_structures() {
    let sizes = [
        (0, &[1, 5, 6, 10, 11, 17, 24, 38][..]),
        (8, &[2, 9, 12, 13, 14, 21, 22, 23, 27, 34, 36, 42]),
        (16, &[3, 8, 20, 30, 35, 45]),
        (24, &[18, 25, 29, 46]),
        (32, &[43]),
        (40, &[15, 16, 28, 44]),
        (56, &[47, 53]),
        (88, &[4]),
    ];
    for (size, opcodes) in sizes {
        for opcode in opcodes {
            assert_eq!(head_size(*opcode), size, "{opcode}");
        }
    }
}

#[cfg(target_endian = "little")]
#[test]
fn a_lookup_and_a_read_have_these_bytes() {
    let lookup = [
        44, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xe8, 3, 0, 0, 0xe9, 3, 0, 0, 7, 0, 0,
        0, 0, 0, 0, 0, b'a', b'b', b'c', 0,
    ];
    let header = Header::parse(&lookup).unwrap();
    let expected = Header { length: 44, opcode: 1, unique: 2, node: 1, uid: 1000, gid: 1001, pid: 7, extensions: 0 };
    assert_eq!(header, expected);
    let (head, tail) = split(&header, &lookup).unwrap();
    assert_eq!(parse(header.opcode, head, tail), Ok(Operation::Lookup { name: b"abc" }));

    let read = [
        9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0,
        0, 0, 0, 0,
    ];
    let expected = Operation::Read { handle: 9, offset: 1 << 20, size: 128 << 10, flags: 0x8000 };
    assert_eq!(parse(opcode::READ, &read, &[]), Ok(expected));
}

#[test]
fn a_read_is_never_larger_than_a_payload() {
    let huge = Operation::Read { handle: 1, offset: 2, size: u32::MAX, flags: 0 };
    let (opcode, head, tail) = encode(&huge);
    let clamped = Operation::Read { handle: 1, offset: 2, size: 4 << 20, flags: 0 };
    assert_eq!(parse(opcode, &head, &tail), Ok(clamped));

    let (opcode, head, tail) = encode(&Operation::ReadDirPlus { handle: 1, offset: 2, size: u32::MAX });
    let clamped = Operation::ReadDirPlus { handle: 1, offset: 2, size: 1 << 20 };
    assert_eq!(parse(opcode, &head, &tail), Ok(clamped));
}

#[test]
fn names_are_checked() {
    let lookup = |tail: &'static [u8]| parse(opcode::LOOKUP, &[], tail);
    assert_eq!(lookup(b"\0"), Err(Malformed::Name));
    assert_eq!(lookup(b"a/b\0"), Err(Malformed::Name));
    assert_eq!(lookup(b"not ended"), Err(Malformed::Short));
    assert_eq!(lookup(b""), Err(Malformed::Short));
    // What follows the last name is nothing to us.
    assert_eq!(lookup(b"a\0b"), Ok(Operation::Lookup { name: b"a" }));

    let longest = [&[b'n'; 255][..], b"\0"].concat();
    assert_eq!(parse(opcode::UNLINK, &[], &longest), Ok(Operation::Unlink { name: &longest[..255] }));
    let longer = [&[b'n'; 256][..], b"\0"].concat();
    assert_eq!(parse(opcode::UNLINK, &[], &longer), Err(Malformed::LongName));
    assert_eq!(Malformed::LongName.errno(), Errno::ENAMETOOLONG);
    assert_eq!(Malformed::Name.errno(), Errno::EIO);

    // One name is not enough for a rename.
    assert_eq!(parse(opcode::RENAME, &[0; 8], b"only\0"), Err(Malformed::Short));
    assert_eq!(parse(opcode::RENAME, &[0; 8], b"a\0b/c\0"), Err(Malformed::Name));
}

#[test]
fn a_write_has_as_many_bytes_as_it_says() {
    let (opcode, head, tail) =
        encode(&Operation::Write { handle: 1, offset: 2, data: b"bytes", flags: 0, cached: false });
    assert_eq!(parse(opcode, &head, &tail[..4]), Err(Malformed::Length));
    assert_eq!(parse(opcode, &head, b"bytes and more"), Err(Malformed::Length));
    let (opcode, head, _) = encode(&Operation::SetXattr { name: b"user.a", value: b"value", flags: 0 });
    assert_eq!(parse(opcode, &head, b"user.a\0val"), Err(Malformed::Length));
}

#[test]
fn a_time_that_there_is_not_is_refused_and_one_before_1970_is_not() {
    let set = |seconds: i64, nanos: u32| {
        let set = SetAttr { mtime: Some(SetTime::At(UNIX_EPOCH)), ..SetAttr::default() };
        let (opcode, mut head, _) = encode(&Operation::SetAttr(set));
        head[40..48].copy_from_slice(&seconds.to_ne_bytes());
        head[60..64].copy_from_slice(&nanos.to_ne_bytes());
        match parse(opcode, &head, &[]) {
            Ok(Operation::SetAttr(set)) => Ok(set.mtime),
            Ok(_) => unreachable!("it is a SETATTR"),
            Err(malformed) => Err(malformed),
        }
    };
    assert_eq!(set(0, 1_000_000_000), Err(Malformed::Time));
    assert_eq!(Malformed::Time.errno(), Errno::EINVAL);
    let before = UNIX_EPOCH - Duration::from_millis(500);
    assert_eq!(set(-1, 500_000_000), Ok(Some(SetTime::At(before))));
    // The furthest times there are.
    assert!(set(i64::MAX, 999_999_999).is_ok());
    assert!(set(i64::MIN, 0).is_ok());
}

#[test]
fn more_forgets_than_there_are_bytes_for_are_those_that_there_are() {
    let pairs = [1u64, 10, 2, 20].iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<_>>();
    let head = [u32::MAX.to_ne_bytes(), [0; 4]].concat();
    let Ok(Operation::BatchForget(forgets)) = parse(opcode::BATCH_FORGET, &head, &pairs[..31]) else {
        panic!("it is a BATCH_FORGET");
    };
    assert_eq!(forgets.iter().collect::<Vec<_>>(), [(1, 10)]);
    let head = [1u32.to_ne_bytes(), [0; 4]].concat();
    let Ok(Operation::BatchForget(forgets)) = parse(opcode::BATCH_FORGET, &head, &pairs) else {
        panic!("it is a BATCH_FORGET");
    };
    assert_eq!(forgets.iter().collect::<Vec<_>>(), [(1, 10)], "no more than are announced");
}

#[test]
fn extensions_are_neither_names_nor_data() {
    let write = Operation::Write { handle: 1, offset: 2, data: b"bytes", flags: 0, cached: false };
    let mut bytes = message(Header { extensions: 2, ..header() }, &write);
    bytes.extend([0xaa; 16]);
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    let told = Header::parse(&bytes).unwrap();
    let (head, tail) = split(&told, &bytes).unwrap();
    assert_eq!(parse(told.opcode, head, tail), Ok(write));

    let more_than_there_is = Header { extensions: u16::MAX, ..told };
    assert_eq!(split(&more_than_there_is, &bytes), Err(Malformed::Length));
}

#[test]
fn a_message_is_as_long_as_it_says() {
    let mut bytes = message(header(), &Operation::Statfs);
    let told = Header::parse(&bytes).unwrap();
    assert!(split(&told, &bytes).is_ok());
    bytes.push(0);
    assert_eq!(split(&told, &bytes), Err(Malformed::Length));
}

#[test]
fn what_was_handed_out_before_is_told_by_its_number_and_only_what_changes_nothing_is_done_twice() {
    let header = |unique| Header { unique, ..Header::default() };
    assert!(header(1 << 63 | 2).is_resent() && !header(2).is_resent() && !header(u64::MAX >> 1).is_resent());
    for operation in [opcode::READ, opcode::LOOKUP, opcode::GETATTR, opcode::OPEN, opcode::READDIRPLUS, opcode::RELEASE]
    {
        assert!(may_be_repeated(operation), "{operation}");
    }
    let changes = [opcode::WRITE, opcode::CREATE, opcode::UNLINK, opcode::RENAME2, opcode::MKDIR, opcode::SETATTR];
    for operation in changes.into_iter().chain([opcode::FLUSH, opcode::FSYNC, opcode::FALLOCATE, u32::MAX]) {
        assert!(!may_be_repeated(operation), "{operation}");
    }
}
