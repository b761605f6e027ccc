//! What the kernel puts into the entries of its rings.

use forebay_fuse_io::fuzzing::{How, Later, Step, rings};
use forebay_fuse_io::protocol::abi::{IN_HEADER, opcode};
use forebay_fuse_io::protocol::request::head_size;

use crate::input::{Input, Output};
use crate::targets::Seed;
use crate::targets::fuse::{message, samples};

pub(super) mod fuse_rings {
    use super::*;

    /// Most steps.
    const STEPS: usize = 64;
    /// Entries of each queue.
    const SHAPES: [&[u32]; 4] = [&[1], &[2], &[1, 2], &[4, 1]];
    /// Bytes of a header page.
    const PAGE: usize = 288;
    /// Where the head of an operation lies in it, what the kernel calls the request, and how long the payload is.
    const HEAD: usize = 128;
    const COMMIT_ID: usize = 264;
    const PAYLOAD_SIZE: usize = 272;

    /// A step, and the bytes that it needs.
    enum Planned {
        Complete { entry: u8, result: i16, page: Vec<u8>, payload: Vec<u8>, how: How },
        Later { which: u8, what: Later },
        End,
    }

    impl Planned {
        fn read(input: &mut Input<'_>) -> Self {
            let what = input.u8();
            match what & 7 {
                0..=3 => {
                    let (entry, operation, unique, how) = (input.u8(), input.u8(), input.u8(), how(input));
                    let mut size = None;
                    if what & 0x10 != 0 {
                        size = Some(input.u32());
                    }
                    let (page, payload) = asked(operation.into(), unique.into(), size, input.piece());
                    Self::Complete { entry, result: 0, page, payload, how }
                }
                4 => {
                    let (entry, how, page) = (input.u8(), how(input), input.piece().to_vec());
                    Self::Complete { entry, result: 0, page, payload: input.piece().to_vec(), how }
                }
                5 | 6 => {
                    let (which, kind, number) = (input.u8(), input.u8(), input.u16());
                    let what = match kind % 5 {
                        0 => Later::Data(number),
                        1 => Later::Error(number.into()),
                        2 => Later::Filled(number),
                        3 => Later::LetGo,
                        _ => Later::Drop,
                    };
                    Self::Later { which, what }
                }
                _ if what & 0x80 != 0 => Self::End,
                _ => {
                    let (entry, error) = (input.u8(), i16::from(input.u8()));
                    Self::Complete { entry, result: -error, page: Vec::new(), payload: Vec::new(), how: How::Dropped }
                }
            }
        }

        fn step(&self) -> Step<'_> {
            match self {
                Self::Complete { entry, result, page, payload, how } => {
                    Step::Complete { entry: *entry, result: *result, page, payload, how: *how }
                }
                Self::Later { which, what } => Step::Later { which: *which, what: *what },
                Self::End => Step::End,
            }
        }
    }

    fn how(input: &mut Input<'_>) -> How {
        let (kind, number) = (input.u8(), input.u16());
        match kind % 7 {
            0 => How::Data(number),
            1 => How::Error(number.into()),
            2 => How::Dropped,
            3 => How::Names(number),
            4 => How::Kept,
            5 => How::KeptBytes,
            _ => How::Lent,
        }
    }

    /// A request as it lies in an entry: the header page and the payload, whose length may be said to be another one.
    fn asked(operation: u32, unique: u64, size: Option<u32>, body: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (head, tail) = body.split_at(head_size(operation).min(body.len()));
        let mut page = vec![0; PAGE];
        page[..IN_HEADER].copy_from_slice(&message(operation, unique, 1, 0, body)[..IN_HEADER]);
        page[HEAD..HEAD + head.len()].copy_from_slice(head);
        page[COMMIT_ID..COMMIT_ID + 8].copy_from_slice(&unique.to_ne_bytes());
        page[PAYLOAD_SIZE..PAYLOAD_SIZE + 4].copy_from_slice(&size.unwrap_or(tail.len() as u32).to_ne_bytes());
        (page, tail.to_vec())
    }

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let shape = input.u8();
        let capacity = if shape & 4 == 0 { 4096 } else { 64 };
        let mut planned = Vec::new();
        while !input.is_empty() && planned.len() < STEPS {
            planned.push(Planned::read(&mut input));
        }
        let steps: Vec<Step<'_>> = planned.iter().map(Planned::step).collect();
        rings(SHAPES[usize::from(shape & 3)], capacity, &steps);
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        const DATA: u8 = 0;
        const ERROR: u8 = 1;
        const NAMES: u8 = 3;
        const KEPT: u8 = 4;
        const KEPT_BYTES: u8 = 5;
        const LENT: u8 = 6;
        const FILLED: u8 = 2;
        const LET_GO: u8 = 3;
        const DROP: u8 = 4;
        let start = |shape: u8| Output::default().u8(shape);
        let comes = |output: Output, entry: u8, operation: u32, how: u8, number: u16, body: &[u8]| {
            output.u8(0).u8(entry).u8(operation as u8).u8(9).u8(how).u16(number).piece(body)
        };
        let later = |output: Output, kind: u8, number: u16| output.u8(5).u8(0).u8(kind).u16(number);
        let fails = |output: Output, entry: u8, error: i32| output.u8(7).u8(entry).u8(error as u8);
        let part = |length: u64| Output::default().u64(9).u64(0).u64(length).u64(0).u64(0).done();
        let (read, write) = (part(4096), [&part(5)[..], b"bytes"].concat());
        let all = samples().into_iter().filter(|(name, ..)| *name != "init");
        let all = all.fold(start(0), |output, (_, operation, body)| comes(output, 0, operation, DATA, 16, &body));
        let lent = comes(start(1), 0, opcode::READ, LENT, 0, &read);
        let too_late = later(later(later(lent.clone(), ERROR, 5), FILLED, 0), LET_GO, 0);
        let held = comes(start(1), 1, opcode::WRITE, KEPT_BYTES, 0, &write);
        let with_bytes = [&read[..], b"bytes"].concat();
        let nothing_to_hold = comes(start(1), 1, opcode::READ, KEPT_BYTES, 0, &with_bytes);
        let kept = comes(comes(start(3), 0, opcode::READ, KEPT, 0, &read), 4, opcode::READ, KEPT, 0, &read);
        let lies = start(4).u8(0x10).u8(0).u8(opcode::WRITE as u8).u8(9).u8(KEPT_BYTES).u16(0).u32(u32::MAX);
        let without_number = start(0).u8(0).u8(0).u8(opcode::READ as u8).u8(0).u8(DATA).u16(9).piece(&read);
        let again = fails(comes(fails(start(0), 0, 11), 0, opcode::STATFS, DATA, 80, b""), 0, 4);
        vec![
            ("all_sorts", all.done()),
            ("errors", comes(start(2), 2, opcode::LOOKUP, ERROR, 2, b"x\0").done()),
            ("names", comes(start(0), 0, opcode::READDIR, NAMES, 200, &read).done()),
            ("too_long", comes(start(4), 0, opcode::READ, DATA, 65, &read).done()),
            ("lent", later(lent, FILLED, 4096).done()),
            ("lent_for_too_long", too_late.done()),
            ("held", later(later(held.clone(), DATA, 8), LET_GO, 0).done()),
            ("nothing_to_hold", later(later(nothing_to_hold, DATA, 8), LET_GO, 0).done()),
            ("held_and_dropped", later(later(held, DROP, 0), LET_GO, 0).done()),
            ("kept", later(later(kept.clone(), DATA, 4096), ERROR, 2).done()),
            ("kept_to_the_end", kept.clone().u8(0x87).done()),
            ("unmounted_meanwhile", later(fails(kept, 1, 107), DATA, 9).done()),
            ("a_length_that_is_not", lies.piece(&write).done()),
            ("as_it_was_sent", start(0).u8(4).u8(0).u8(KEPT).u16(0).piece([7; 300]).piece([8; 50]).done()),
            ("without_a_number", without_number.done()),
            ("again", again.done()),
            ("an_entry_is_lost", comes(fails(start(1), 0, 2), 1, opcode::STATFS, DATA, 80, b"").done()),
            ("a_queue_is_lost", fails(start(2), 0, 22).done()),
        ]
    }
}
