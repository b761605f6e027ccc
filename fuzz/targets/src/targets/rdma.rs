//! What comes over RDMA besides UCX's messages: frames of our own over verbs, and who wants to be accepted.

use std::time::Duration;

use bytes::Bytes;
use forebay_one_sided::{LOCATION_LEN, Location, Memory, OPENED_LEN, Opened, Reach};
use forebay_rdma::fuzzing::admission::{self, Members, admission};
use forebay_rdma::verbs::fuzzing::{Step, connection, frame, greeting, offer, payload};
use forebay_transport::wire::{HEADER_LEN, HELLO_LEN, Hello, ReplyHeader, RequestHeader};
use forebay_transport::{Op, Provenance, Request};
use forebay_types::{BlockKey, FailureKind, FileId, MAX_BLOCK_SIZE, SECTOR_SIZE};

use crate::input::{Input, Output};
use crate::targets::Seed;

/// Bytes before what a frame carries.
const FRAME_HEADER: usize = 16;
/// Kinds of frames.
const HELLO: u8 = 1;
const REQUEST: u8 = 2;
const REPLY: u8 = 3;
const CREDITS: u8 = 5;
const MORE: u8 = 6;
const PAYLOAD: u8 = 10;

thread_local! {
    static MEMBERS: Members = Members::new().expect("a worker needs random numbers");
}

/// A frame of this kind, with these flags, that returns so many credits and says this key.
fn header(kind: u8, flags: u8, credits: u16, key: u32) -> Vec<u8> {
    Output::default().u8(kind).u8(flags).u16(credits).u32(key).u64(u64::from(key) << 12).done()
}

pub(super) mod verbs_frames {
    use super::*;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let kind = input.u8();
        match kind % 3 {
            0 => frame(input.rest()),
            1 => {
                let mut told = input.rest().to_vec();
                if kind & 8 != 0 {
                    // What any release of ours begins with.
                    told.iter_mut().zip(b"FBVB\x01\0").for_each(|(byte, ours)| *byte = *ours);
                }
                offer(&told);
            }
            _ => {
                let mut hello = input.rest().to_vec();
                if kind & 8 != 0
                    && let Some(whole) = hello.first_chunk_mut::<HELLO_LEN>()
                {
                    crate::seal::seal(whole);
                }
                greeting(&Hello::ours("prod", MAX_BLOCK_SIZE), &hello);
            }
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let hello = |cluster: &str| Hello::ours(cluster, MAX_BLOCK_SIZE).encode();
        let told = Output::default().bytes(b"FBVB").u16(1).u16(32).u32(1024).u32(0).u64(7).bytes([0; 32]).done();
        vec![
            ("frame", Output::default().u8(0).bytes(header(REQUEST, 0, 3, 7)).bytes(b"a message").done()),
            ("written", Output::default().u8(0).bytes(header(REPLY, 1, 0, 0)).done()),
            ("offer", Output::default().u8(1).bytes(&told).done()),
            ("offer_of_another_version", Output::default().u8(1).bytes(b"FBVB\x09\0").bytes(&told[6..]).done()),
            ("hello", Output::default().u8(2).bytes(hello("prod")).u64(1 << 40).done()),
            ("hello_of_another_cluster", Output::default().u8(2).bytes(hello("x\n")).u64(0).done()),
        ]
    }
}

pub(super) mod verbs_connection {
    use super::*;

    /// Most steps.
    const STEPS: usize = 64;
    /// The longest message that is sent.
    const LONGEST: u16 = 8192;

    /// A step, and the frame that it needs.
    enum Planned {
        Receive(Vec<u8>),
        Send { body: usize, key: u32 },
        Answer { payload: usize },
        Post(usize),
    }

    impl Planned {
        fn read(input: &mut Input<'_>) -> Self {
            let step = input.u8();
            match step & 3 {
                0 | 1 => Self::Receive(received(input, step)),
                2 if step & 0x80 != 0 => Self::Answer { payload: (input.u16() % LONGEST).into() },
                2 => Self::Send { body: (input.u16() % LONGEST).into(), key: (step >> 2).into() },
                _ => Self::Post((step >> 2).into()),
            }
        }

        fn step(&self) -> Step<'_> {
            match self {
                Self::Receive(frame) => Step::Receive(frame),
                Self::Send { body, key } => Step::Send { body: *body, key: *key },
                Self::Answer { payload } => Step::Answer { payload: *payload },
                Self::Post(room) => Step::Post(*room),
            }
        }
    }

    /// A frame that comes: as the input has it, or one that makes more sense.
    fn received(input: &mut Input<'_>, step: u8) -> Vec<u8> {
        if step & 4 != 0 {
            return input.piece().to_vec();
        }
        let (kind, credits) = (input.u8(), input.u8());
        let mut frame = header(kind & 15, kind >> 7, u16::from(credits % 4), u32::from(credits >> 4));
        frame.extend_from_slice(input.piece());
        if step & 8 != 0 {
            let message = &mut frame[FRAME_HEADER..];
            match kind & 15 {
                REQUEST => drop(crate::seal::request(message)),
                REPLY => drop(crate::seal::reply(message)),
                _ => {}
            }
        }
        frame
    }

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let (ours, theirs) = (u16::from(input.u8() % 8), u16::from(input.u8() % 8));
        let longest = if input.u8() & 1 == 0 { 256 } else { 1024 };
        let mut steps = Vec::new();
        while !input.is_empty() && steps.len() < STEPS {
            steps.push(Planned::read(&mut input));
        }
        let steps: Vec<Step<'_>> = steps.iter().map(Planned::step).collect();
        connection((ours, 1024), (theirs, longest), &steps);
    }

    /// A frame comes that is put right: its kind, its flags, the credits that it returns, and what it carries.
    fn comes(output: Output, kind: u8, is_written: bool, credits: u8, carried: &[u8]) -> Output {
        output.u8(8).u8(kind | u8::from(is_written) << 7).u8(credits).piece(carried)
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let start = || Output::default().u8(4).u8(4).u8(0);
        let asked = |body: &[u8]| {
            let request = Request::on_path(Op::Stat, Bytes::copy_from_slice(body), Duration::from_secs(1));
            [&RequestHeader::of(1, &request).encode()[..], body].concat()
        };
        let told = |failure: Option<FailureKind>, body: &[u8], payload_len: u32| -> [u8; HEADER_LEN] {
            let (body_len, provenance) = (body.len() as u32, Provenance::default());
            ReplyHeader { id: 1, failure, body_len, payload_len, provenance }.encode()
        };
        let hello = Hello::ours("prod", MAX_BLOCK_SIZE).encode();
        let long = asked(&[7; 300]);
        let in_pieces = comes(start(), REQUEST, false, 0, &long[..200]);
        let in_pieces = comes(in_pieces, MORE, false, 0, &long[200..]).u8(3 | 4 << 2);
        let begun = comes(start(), REQUEST, false, 0, &long[..100]);
        let beyond = (0..6).fold(start(), |output, _| comes(output, REQUEST, false, 0, &asked(b"/a")));
        let sends = start().u8(2 | 7 << 2).u16(1000).u8(2).u16(0).u8(3 | 8 << 2);
        let sends = comes(sends, CREDITS, false, 3, b"").u8(3 | 8 << 2);
        let answers = start().u8(2 | 0x80).u16(1000).u8(3 | 8 << 2);
        let answers = comes(answers, CREDITS, false, 3, b"").u8(3 | 8 << 2);
        let payload = comes(start(), PAYLOAD, false, 0, &[7; 200]);
        let reply = [&told(None, b"body", 7)[..], b"body", b"payload"].concat();
        let written = told(None, b"", 70_000);
        vec![
            ("greets", comes(start(), HELLO, false, 0, &[&hello[..], &[0; 8]].concat()).u8(3 | 1 << 2).done()),
            ("in_pieces", in_pieces.done()),
            ("without_credits", beyond.u8(3 | 4 << 2).done()),
            ("sends", sends.done()),
            ("answers", answers.done()),
            ("payload", comes(payload, REPLY, true, 0, &told(None, b"", 200)).done()),
            ("reply", comes(start(), REPLY, false, 0, &reply).done()),
            ("written", comes(start(), REPLY, true, 0, &written).done()),
            ("failure", comes(start(), REPLY, false, 0, &told(Some(FailureKind::NotFound), b"", 0)).done()),
            ("credits_for_nothing", comes(start(), CREDITS, false, 0, b"").done()),
            ("another_begins", comes(begun, REQUEST, false, 0, &asked(b"/b")).done()),
        ]
    }
}

pub(super) mod verbs_payload {
    use super::*;

    /// Most frames.
    const FRAMES: usize = 64;
    /// The call that there is.
    const CALL: u64 = 7;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let (limit, said) = (input.u16(), input.u16());
        let (mut came, mut frames) = (0_u32, Vec::new());
        while !input.is_empty() && frames.len() < FRAMES {
            let what = input.u8();
            if what & 1 != 0 {
                frames.push(input.piece().to_vec());
                continue;
            }
            let call = if what & 2 == 0 { CALL } else { u64::from(what) };
            let offset = if what & 4 == 0 { came } else { input.u16().into() };
            let piece = input.piece();
            frames.push(Output::default().u8(PAYLOAD).u8(0).u16(0).u32(offset).u64(call).bytes(piece).done());
            if what & 6 == 0 {
                came += piece.len() as u32;
            }
        }
        let said = if said == u16::MAX { came } else { said.into() };
        let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        payload(limit, &frames, said);
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let start = |limit: u16| Output::default().u16(limit).u16(u16::MAX);
        let two = |output: Output| output.u8(0).piece([1; 100]).u8(0).piece([2; 50]);
        let raw = [header(PAYLOAD, 0, 0, 7), vec![3; 10]].concat();
        vec![
            ("whole", two(start(150)).done()),
            ("beyond_the_limit", two(start(149)).done()),
            ("of_another_call", two(start(200)).u8(2).piece([3; 10]).done()),
            ("a_gap", two(start(200)).u8(4).u16(151).piece([3; 10]).done()),
            ("the_same_again", two(start(200)).u8(4).u16(0).piece([3; 10]).done()),
            ("as_it_was_sent", start(200).u8(1).piece(raw).done()),
        ]
    }
}

pub(super) mod one_sided_places {
    use super::*;

    /// Most regions.
    const REGIONS: u8 = 8;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let told = input.array::<LOCATION_LEN>();
        let location = match Location::decode(&told) {
            Ok(Some(location)) => {
                assert_eq!(location.encode(), told);
                Some(location)
            }
            Ok(None) => {
                assert_eq!(told[..8], [0; 8]);
                None
            }
            Err(error) => {
                assert!(!error.to_string().contains(char::is_control), "{error}");
                None
            }
        };
        let (index, offset, length) = (input.u64(), input.u32(), input.u32());
        let (mut reach, mut regions) = (Reach::default(), Vec::new());
        for _ in 0..input.u8() % (REGIONS + 1) {
            let told = input.array::<OPENED_LEN>();
            match Opened::decode(&told) {
                Ok(opened) => {
                    assert_eq!(opened.encode(), told);
                    reach.open(opened).expect("they are few");
                    regions.push(opened);
                }
                Err(error) => assert!(!error.to_string().contains(char::is_control), "{error}"),
            }
        }
        let block = BlockKey { file: FileId([1; 16]), index };
        let Some(plan) = location.and_then(|location| location.plan(block, offset, length)) else { return };
        let (location, data, seals) = (*plan.location(), plan.data(), plan.seals());
        let run = u64::from(location.at) * u64::from(SECTOR_SIZE);
        assert!(run <= data.start && data.end <= run + u64::from(location.length));
        assert_eq!((data.end - data.start, plan.len() as u64), (u64::from(length), u64::from(length)));
        assert_eq!(seals.end - seals.start, plan.seals_len() as u64);
        let Some(requests) = reach.requests(&plan) else { return };
        for (place, memory, range) in [(requests.data, Memory::Slab, data), (requests.seals, Memory::Board, seals)] {
            let is_of_it = |region: &Opened| {
                let is_within = region.start <= range.start && range.end <= region.start + region.length;
                let is_its_memory = region.memory == memory && region.key == place.key;
                is_within && is_its_memory && place.address == region.address + (range.start - region.start)
            };
            assert!(regions.iter().any(is_of_it), "{place:?} is in no region that was opened");
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let told = |generation: u64, at: u32, first: u32, length: u32| {
            Output::default().u64(generation).u32(at).u32(first).u32(length)
        };
        let wanted = |output: Output, offset: u32, length: u32| output.u64(9).u32(offset).u32(length);
        let opened = |output: Output, memory: u32, key: u32, start: u64, length: u64| {
            output.u32(memory).u32(key).u64(start).u64(length).u64(0x10_0000 + start)
        };
        let both = |output: Output| opened(opened(output.u8(2), 0, 1, 0, 4 << 20), 1, 2, 0, 4096);
        let whole = wanted(told(1, 33, 0, 40_000), 0, 40_000);
        let elsewhere = opened(wanted(told(1, 33, 0, 40_000), 0, 40_000).u8(1), 0, 1, 4 << 20, 4 << 20);
        vec![
            ("whole", both(whole).done()),
            ("pages", both(wanted(told(7, 2, 3, 65_536), 3 * 32_768 + 4096, 8192)).done()),
            ("elsewhere", elsewhere.done()),
            ("no_location", both(wanted(told(0, 0, 0, 0), 0, 1)).done()),
            ("beyond_a_block", both(wanted(told(1, 0, 127, 65_536), 0, 1)).done()),
            ("beyond_all_slabs", both(wanted(told(1, u32::MAX, 0, 1), 0, 1)).done()),
            ("nothing_is_opened", opened(wanted(told(1, 0, 0, 1), 0, 1).u8(1), 0, 1, 0, 0).done()),
            ("another_memory", opened(wanted(told(1, 0, 0, 1), 0, 1).u8(1), 9, 1, 0, 1).done()),
        ]
    }
}

pub(super) mod rdma_admission {
    use super::*;
    use admission::Step;

    /// Most steps.
    const STEPS: usize = 64;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let accepts_plain = input.u8() & 1 != 0;
        let mut steps = Vec::new();
        while !input.is_empty() && steps.len() < STEPS {
            let (what, number) = (input.u8(), input.u8());
            // Few, so that they meet.
            let (client_id, tag) = (u64::from(what >> 3 & 3), u64::from(number & 7));
            steps.push(match what & 7 {
                0 | 1 => Step::Admit {
                    client: usize::from(what >> 5),
                    client_id,
                    number: tag,
                    until: Duration::from_secs(u64::from(number >> 3)),
                },
                2 | 3 => Step::Connect { client_id },
                4 | 5 => Step::Greet { client_id, tag },
                6 => Step::Wait(Duration::from_millis(u64::from(number) * 100)),
                _ => Step::Deny(number),
            });
        }
        MEMBERS.with(|members| admission(members, accepts_plain, &steps));
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let step = |what: u8, client_id: u8, client: u8| what | client_id << 3 | client << 5;
        let steps = |accepts_plain: u8, steps: &[(u8, u8, u8, u8)]| {
            let each = |output: Output, (what, client_id, client, number): &(u8, u8, u8, u8)| {
                output.u8(step(*what, *client_id, *client)).u8(*number)
            };
            steps.iter().fold(Output::default().u8(accepts_plain), each).done()
        };
        vec![
            ("comes_in", steps(0, &[(0, 1, 0, 0xf9), (2, 1, 0, 0), (4, 1, 0, 1), (4, 1, 0, 1)])),
            ("another_tag", steps(0, &[(0, 1, 0, 0xf9), (2, 1, 0, 0), (4, 1, 0, 2), (4, 2, 0, 1)])),
            ("plain", steps(1, &[(2, 0, 0, 0), (4, 0, 0, 3), (2, 1, 0, 0)])),
            ("plain_is_refused", steps(0, &[(2, 0, 0, 0)])),
            ("too_late", steps(0, &[(0, 1, 0, 0xf9), (2, 1, 0, 0), (6, 0, 0, 100), (4, 1, 0, 1)])),
            ("denied_before", steps(0, &[(0, 1, 2, 0xf9), (7, 0, 0, 4), (2, 1, 0, 0), (4, 1, 0, 1)])),
            ("denied_later", steps(0, &[(0, 1, 5, 0xf9), (2, 1, 0, 0), (4, 1, 0, 1), (7, 0, 0, 32), (7, 0, 0, 0)])),
            ("expires", steps(0, &[(0, 1, 3, 0x11), (2, 1, 0, 0), (4, 1, 0, 1), (6, 0, 0, 30)])),
        ]
    }
}
