//! How a session with a worker on the same host begins: packets over a Unix socket, with a proof of who both are or without.

use forebay_shm::fuzzing::handshake::{Demand, How, Members, Party, Step, begin};
use forebay_transport::wire::{HELLO_LEN, Hello};

use crate::input::{Input, Output};
use crate::support::block_on;
use crate::targets::Seed;

thread_local! {
    static MEMBERS: Members = Members::new().expect("a worker needs 8 MiB of memory, and random numbers");
}

pub(super) mod window_handshake {
    use super::*;

    /// Most steps of whoever is in between.
    const STEPS: usize = 16;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        let demand = [Demand::Nothing, Demand::Proof, Demand::Either][usize::from(flags & 3) % 3];
        let mut steps = Vec::new();
        while !input.is_empty() && steps.len() < STEPS {
            steps.push(Planned::read(&mut input));
        }
        let steps: Vec<Step<'_>> = steps.iter().map(Planned::step).collect();
        MEMBERS.with(|members| block_on(begin(members, demand, flags & 4 != 0, flags & 8 != 0, &steps)));
    }

    /// A step, and the packet that it needs.
    enum Planned {
        Say { to: Party, packet: Vec<u8>, descriptor: bool },
        Have { from: Party, how: How },
        Leave,
    }

    impl Planned {
        fn read(input: &mut Input<'_>) -> Self {
            let step = input.u8();
            let party = if step & 16 == 0 { Party::Client } else { Party::Worker };
            let how = match step & 7 {
                0 => {
                    let mut packet = input.piece().to_vec();
                    if step & 64 != 0
                        && let Some(hello) = packet.first_chunk_mut::<HELLO_LEN>()
                    {
                        crate::seal::seal(hello);
                    }
                    return Self::Say { to: party, packet, descriptor: step & 32 != 0 };
                }
                1 => How::Pass,
                2 => How::Keep,
                3 => How::Twice,
                4 => How::Split(input.u16().into()),
                5 => How::Change { at: input.u16().into(), flip: input.u8() },
                6 => How::Rob,
                _ => return Self::Leave,
            };
            Self::Have { from: party, how }
        }

        fn step(&self) -> Step<'_> {
            match self {
                Self::Say { to, packet, descriptor } => Step::Say { to: *to, packet, descriptor: *descriptor },
                Self::Have { from, how } => Step::Have { from: *from, how: *how },
                Self::Leave => Step::Leave,
            }
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        const WORKER: u8 = 16;
        let start = |flags: u8| Output::default().u8(flags);
        let hello = Hello::ours("prod", 4 << 20).encode();
        let other = Hello::ours("test", 4 << 20).encode();
        let client_hello = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00";
        vec![
            ("plain", start(0).done()),
            ("proofs", start(1 | 4).done()),
            ("resumed", start(1 | 4 | 8).done()),
            ("either_proves", start(2 | 4).done()),
            ("either_is_plain", start(2).done()),
            ("one_proves", start(4).done()),
            ("the_other_demands", start(1).done()),
            ("own_hello", start(0).u8(WORKER | 64).piece(hello).u8(2 | WORKER).done()),
            ("left", start(0).u8(WORKER | 64).piece(hello).u8(7).done()),
            ("of_another_cluster", start(0).u8(WORKER | 64).piece(other).done()),
            ("hello_to_who_demands", start(1).u8(WORKER | 64).piece(hello).done()),
            ("no_tls", start(1 | 4).u8(WORKER).piece(client_hello).done()),
            ("changed", start(1 | 4).u8(1).u8(5 | WORKER).u16(50).u8(1).done()),
            ("changed_when_resumed", start(1 | 4 | 8).u8(1).u8(5 | WORKER).u16(9).u8(128).done()),
            ("in_pieces", start(1 | 4).u8(4).u16(3).u8(4 | WORKER).u16(100).done()),
            ("again", start(1 | 4).u8(3).u8(3 | WORKER).done()),
            ("robbed", start(0).u8(1).u8(6 | WORKER).done()),
            ("another_memory", start(0).u8(2).u8(32).piece([&hello[..], &[0; 24]].concat()).done()),
        ]
    }
}
