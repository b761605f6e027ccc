//! What comes over UCX besides single messages: the answers to calls, and keys of a peer's memory.

use forebay_rdma::fuzzing::Data;
use forebay_rdma::fuzzing::answers::{FetchEnd, Step, answers};
use forebay_transport::Provenance;
use forebay_transport::wire::{HEADER_LEN, HELLO_LEN, Hello, ReplyHeader, set_tag};
use forebay_types::{FailureKind, MAX_BLOCK_SIZE};

use crate::input::{Input, Output};
use crate::targets::Seed;

pub(super) mod ucx_answers {
    use super::*;

    /// Most steps.
    const STEPS: usize = 64;
    /// What the two sides show.
    const PASS: (u64, u64) = (1 << 40, 7 << 40);
    /// What is done for a message: it is put right, shows the pass, and its payload waits at the sender.
    const MAKES_SENSE: u8 = 8;
    const SHOWS_THE_PASS: u8 = 16;
    const IS_ANNOUNCED: u8 = 32;

    /// A step, and the bytes that it needs.
    enum Planned {
        Call(u16),
        Leave(u8),
        Welcome(Vec<u8>),
        Reply { header: Vec<u8>, announced: Option<u32>, data: Vec<u8> },
        Fetched { which: u8, end: FetchEnd },
    }

    impl Planned {
        fn read(input: &mut Input<'_>) -> Self {
            let what = input.u8();
            match what & 7 {
                0 => Self::Call(input.u16()),
                1 => Self::Leave(input.u8()),
                2 => {
                    let mut hello = input.piece().to_vec();
                    if what & MAKES_SENSE != 0
                        && let Some(whole) = hello.first_chunk_mut::<HELLO_LEN>()
                    {
                        crate::seal::seal(whole);
                    }
                    Self::Welcome(hello)
                }
                3..=5 => reply(input, what),
                _ => {
                    let (which, count) = (input.u8(), input.u16());
                    let end = match count {
                        0xfffe => FetchEnd::NoMemory,
                        0xfffd => FetchEnd::Canceled,
                        count => FetchEnd::Bytes(count),
                    };
                    Self::Fetched { which, end }
                }
            }
        }

        fn step(&self) -> Step<'_> {
            match self {
                Self::Call(limit) => Step::Call { limit: *limit },
                Self::Leave(which) => Step::Leave { which: *which },
                Self::Welcome(hello) => Step::Welcome(hello),
                Self::Reply { header, announced, data } => {
                    let data = announced.map_or(Data::Eager(data), |length| Data::Rendezvous(length as usize));
                    Step::Reply { header, data }
                }
                Self::Fetched { which, end } => Step::Fetched { which: *which, end: *end },
            }
        }
    }

    /// A reply as the input has it, or one that makes more sense: to a call that there may be, with the payload that it says.
    fn reply(input: &mut Input<'_>, what: u8) -> Planned {
        let mut header = input.piece().to_vec();
        let announced = (what & IS_ANNOUNCED != 0).then(|| input.u32());
        let data = input.piece().to_vec();
        if what & MAKES_SENSE != 0 && header.len() >= HEADER_LEN {
            let id = u64::from(header[8] % 16);
            header[8..16].copy_from_slice(&id.to_le_bytes());
            // Unless the body is in the data.
            if what & 7 != 5 {
                header[16..20].copy_from_slice(&announced.unwrap_or(data.len() as u32).to_le_bytes());
            }
            let _ = crate::seal::reply(&mut header);
        }
        if what & SHOWS_THE_PASS != 0
            && let Some(whole) = header.first_chunk_mut::<HEADER_LEN>()
        {
            set_tag(whole, PASS.1);
        }
        Planned::Reply { header, announced, data }
    }

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        let mut planned = Vec::new();
        while !input.is_empty() && planned.len() < STEPS {
            planned.push(Planned::read(&mut input));
        }
        let steps: Vec<Step<'_>> = planned.iter().map(Planned::step).collect();
        answers((flags & 1 != 0).then_some(PASS), flags & 2 != 0, &steps);
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let start = |flags: u8| Output::default().u8(flags).u8(0).u16(5000).u8(0).u16(0);
        let told = |id: u64, failure: Option<FailureKind>, body: &[u8], payload_len: u32| {
            let (body_len, provenance) = (body.len() as u32, Provenance::default());
            [&ReplyHeader { id, failure, body_len, payload_len, provenance }.encode()[..], body].concat()
        };
        let here = |output: Output, header: &[u8], data: &[u8]| {
            output.u8(3 | MAKES_SENSE | SHOWS_THE_PASS).piece(header).piece(data)
        };
        let announced = |output: Output, header: &[u8], length: u32| {
            output.u8(3 | MAKES_SENSE | SHOWS_THE_PASS | IS_ANNOUNCED).piece(header).u32(length).piece(b"")
        };
        let fetched = |output: Output, count: u16| output.u8(6).u8(0).u16(count);
        let waits = announced(start(3), &told(1, None, b"body", 5000), 5000);
        let in_data = told(2, None, b"", 0);
        let in_data = [&in_data[..4], &7_u32.to_le_bytes(), &in_data[8..]].concat();
        let version = [1_u8, 0, 20, 0];
        let hello = [&Hello::ours("prod", MAX_BLOCK_SIZE).encode()[..], &version, &PASS.1.to_le_bytes()].concat();
        let failure = told(1, Some(FailureKind::NotFound), b"no such\nfile", 0);
        vec![
            ("here", here(start(3), &told(1, None, b"body", 7), b"payload").done()),
            ("fetched", fetched(waits.clone(), u16::MAX).done()),
            ("fetched_in_part", fetched(waits.clone(), 4999).done()),
            ("no_memory_to_fetch", fetched(waits.clone(), 0xfffe).done()),
            ("canceled", fetched(waits.clone(), 0xfffd).done()),
            ("left_while_it_was_fetched", fetched(waits.clone().u8(1).u8(0), u16::MAX).done()),
            ("announced_twice", announced(waits, &told(1, None, b"body", 5000), 5000).done()),
            ("left_before", announced(start(3).u8(1).u8(0), &told(1, None, b"", 9), 9).done()),
            ("too_much", announced(start(0), &told(1, None, b"", 5001), 5001).done()),
            ("nobody_asked", here(start(0), &told(3, None, b"", 0), b"").done()),
            ("none_was_asked_for", here(start(2), &told(2, None, b"", 1), b"x").done()),
            ("failure", here(start(2), &failure, b"").done()),
            ("goodbye", here(start(2), &told(0, Some(FailureKind::NotReady), b"later", 0), b"").done()),
            ("of_another_connection", start(3).u8(3).piece(told(1, None, b"", 0)).piece(b"").done()),
            ("listing_in_data", start(2).u8(5 | MAKES_SENSE).piece(in_data).piece(b"listing").done()),
            ("welcome", start(1).u8(2).piece(&hello).u8(2).piece(&hello).done()),
            ("welcome_of_another", start(1).u8(2).piece(&hello[..HELLO_LEN + 4]).done()),
        ]
    }
}

pub(super) mod ucx_keys {
    use super::*;

    /// Most accesses.
    const ACCESSES: usize = 16;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let packed = input.piece();
        let mut accesses = Vec::new();
        while !input.is_empty() && accesses.len() < ACCESSES {
            accesses.push((input.u64(), input.u32()));
        }
        forebay_ucx::fuzzing::key(packed, &accesses);
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let key = |base: u64, length: u64, packed: &[u8]| Output::default().u64(base).u64(length).bytes(packed).done();
        let of_a_frame = key(0x7f00_0000_0000, 4 << 20, &[7; 40]);
        let asked = |key: &[u8], offset: u64, length: u32| Output::default().piece(key).u64(offset).u32(length);
        vec![
            ("whole", asked(&of_a_frame, 0, 4 << 20).done()),
            ("behind_its_end", asked(&of_a_frame, (4 << 20) - 1, 2).u64(u64::MAX).u32(1).done()),
            ("at_its_end", asked(&of_a_frame, 4 << 20, 0).done()),
            ("beyond_all_addresses", asked(&key(u64::MAX, 1, &[7; 40]), 0, 1).done()),
            ("cut_off", asked(&of_a_frame[..15], 0, 1).done()),
            ("without_a_key", asked(&of_a_frame[..16], 0, 1).done()),
            ("too_long", asked(&key(4096, 4096, &[7; 17_000]), 0, 1).done()),
        ]
    }
}
