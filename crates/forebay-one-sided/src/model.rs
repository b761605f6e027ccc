//! A worker that fills, seals, evicts and fills again; memory in which bits flip; and clients whose cards read it by
//! locations, piece by piece and in any order, while all of that goes on. Whatever is believed is right, and what
//! nothing disturbed is believed.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use forebay_types::{BlockKey, FileId, SECTOR_SIZE, SectorChecksums, SectorRange};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

use crate::board::{Board, SealError, Sealed};
use crate::known::{KnownLocations, KnownOptions};
use crate::location::{Location, Plan};
use crate::seal::{Fault, PAGE_SIZE, SEAL_SIZE};

/// What is read or written in one go: so pages are torn, too.
const PIECE: usize = PAGE_SIZE as usize / 2;
const SECTOR: usize = SECTOR_SIZE as usize;
/// Sectors of the slab, and of which extents.
const SLAB: u32 = 5;
const EXTENTS: [Range<u32>; 3] = [0..1, 1..3, 3..5];
const BLOCKS: u64 = 5;

fn key(index: u64) -> BlockKey {
    BlockKey { file: FileId([3; 16]), index }
}

/// What block `index` has from byte `start` on. Both are of whole words.
fn truth(index: u64, start: usize, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length);
    for word in start / 8..(start + length) / 8 {
        let word =
            (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (word as u64 + 1).wrapping_mul(0xd129_0d3b_57f5_3a2d);
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    assert_eq!(bytes.len(), length);
    bytes
}

/// Which bytes of its block a run in this extent has: the last run of a block is short.
fn run_of(extent: usize, index: u64) -> (u32, usize) {
    let sectors = EXTENTS[extent].len();
    let first = (index % 3) as u32;
    (first, sectors * SECTOR - if index.is_multiple_of(2) { 0 } else { 5000 })
}

enum State {
    Free,
    /// So many bytes were written.
    Filling(u64, usize),
    Sealed {
        index: u64,
        _sealed: Sealed<Vec<u8>>,
    },
}

struct Worker {
    board: Arc<Board>,
    slab: Vec<u8>,
    extents: [State; 3],
    /// Bits flipped since it was sealed.
    is_damaged: [bool; 3],
}

impl Worker {
    fn new() -> Self {
        Self {
            board: Board::new(SLAB as usize),
            slab: vec![0xee; SLAB as usize * SECTOR],
            extents: [State::Free, State::Free, State::Free],
            is_damaged: [false; 3],
        }
    }

    /// Goes on with what it does in an extent, or begins with a block. The location, if it has sealed one.
    fn go_on(&mut self, extent: usize, index: u64, pieces: usize) -> Option<(u64, Location)> {
        let start = EXTENTS[extent].start as usize * SECTOR;
        match self.extents[extent] {
            State::Free => self.extents[extent] = State::Filling(index, 0),
            State::Filling(index, written) => {
                let (first, length) = run_of(extent, index);
                let end = length.min(written + pieces * PIECE);
                let from = first as usize * SECTOR + written;
                self.slab[start + written..start + end].copy_from_slice(&truth(index, from, end - written));
                self.extents[extent] = State::Filling(index, end);
                if written == length {
                    return self.seal(extent, index);
                }
            }
            State::Sealed { .. } => {}
        }
        None
    }

    fn seal(&mut self, extent: usize, index: u64) -> Option<(u64, Location)> {
        let (first, length) = run_of(extent, index);
        let at = EXTENTS[extent].start;
        let start = at as usize * SECTOR;
        let bytes = self.slab[start..start + length].to_vec();
        let sectors = SectorRange::new(first, first + EXTENTS[extent].len() as u32).unwrap();
        let published = SectorChecksums::of(&truth(index, first as usize * SECTOR, length));
        match self.board.seal(key(index), sectors, at, &published, bytes) {
            Ok(sealed) => {
                let location = Location { generation: sealed.generation(), at, first, length: length as u32 };
                self.extents[extent] = State::Sealed { index, _sealed: sealed };
                self.is_damaged[extent] = false;
                Some((index, location))
            }
            Err(SealError::Corrupt(_)) => {
                self.extents[extent] = State::Free;
                None
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn evict(&mut self, extent: usize) {
        self.extents[extent] = State::Free;
    }

    /// A bit flips, of the slab or of the board.
    fn flip(&mut self, extent: usize, is_seal: bool, at: prop::sample::Index) {
        let sectors = EXTENTS[extent].clone();
        if is_seal {
            let bit = at.index(sectors.len() * SEAL_SIZE * 8) as u32;
            let bits = SEAL_SIZE as u32 * 8;
            self.board.flip(sectors.start + bit / bits, bit % bits);
        } else {
            let bit = at.index(sectors.len() * SECTOR * 8);
            self.slab[sectors.start as usize * SECTOR + bit / 8] ^= 1 << (bit % 8);
        }
        self.is_damaged[extent] = true;
    }

    fn holds(&self, extent: usize, index: u64) -> bool {
        matches!(self.extents[extent], State::Sealed { index: held, .. } if held == index)
    }
}

/// A read under way: what the card has brought until now.
struct Reading {
    index: u64,
    plan: Plan,
    data: Vec<u8>,
    seals: Vec<u8>,
    /// Which pieces, and then which words of seals, in the order in which the card reads them.
    pieces: Vec<usize>,
    words: Vec<usize>,
    is_disturbed: bool,
}

impl Reading {
    fn of(plan: Plan, turn: usize, is_backwards: bool, is_disturbed: bool) -> Self {
        let order = |count: usize| -> Vec<usize> {
            let mut order: Vec<_> = (0..count).collect();
            order.rotate_left(turn % count);
            if is_backwards {
                order.reverse();
            }
            order
        };
        Self {
            index: plan.block().index,
            data: vec![0; plan.len()],
            seals: vec![0; plan.seals_len()],
            // What is taken off the end first.
            pieces: order(plan.len().div_ceil(PIECE)),
            words: order(plan.seals_len() / 8),
            plan,
            is_disturbed,
        }
    }

    /// Brings some more; what is to be thought of it once that is all.
    fn go_on(&mut self, worker: &Worker, steps: usize) -> Option<Result<(), Fault>> {
        for _ in 0..steps {
            if let Some(piece) = self.pieces.pop() {
                let range = piece * PIECE..((piece + 1) * PIECE).min(self.data.len());
                let from = self.plan.data().start as usize;
                self.data[range.clone()].copy_from_slice(&worker.slab[from + range.start..from + range.end]);
            } else if let Some(word) = self.words.pop() {
                // The fence: only now.
                let at = self.plan.seals().start as usize / 8 + word;
                self.seals[word * 8..(word + 1) * 8].copy_from_slice(&worker.board.word((at / 8) as u32, at % 8));
            } else {
                break;
            }
        }
        (self.pieces.is_empty() && self.words.is_empty()).then(|| self.plan.judge(&self.data, &self.seals))
    }

    fn is_right(&self) -> bool {
        let first = self.plan.location().first as usize * SECTOR;
        let from = first + self.plan.data().start as usize - self.plan.location().at as usize * SECTOR;
        self.data == truth(self.index, from, self.plan.len())
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// The worker goes on in this extent, with this block if it begins one, by so many pieces.
    Work(usize, u64, usize),
    Evict(usize),
    Flip(usize, bool, prop::sample::Index),
    /// Reader, block, first page, how many, and in which order the card reads.
    Begin(usize, u64, u32, u32, usize, bool),
    Read(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let reader = || 0usize..3;
    let extent = || 0usize..EXTENTS.len();
    prop_oneof![
        8 => (extent(), 0..BLOCKS, 1usize..34).prop_map(|(extent, index, pieces)| Step::Work(extent, index, pieces)),
        1 => extent().prop_map(Step::Evict),
        1 => (extent(), any::<bool>(), any::<prop::sample::Index>())
            .prop_map(|(extent, is_seal, at)| Step::Flip(extent, is_seal, at)),
        4 => (reader(), 0..BLOCKS, 0u32..16, 1u32..17, 0usize..40, any::<bool>())
            .prop_map(|(reader, index, page, pages, turn, back)| Step::Begin(reader, index, page, pages, turn, back)),
        8 => (reader(), 1usize..40).prop_map(|(reader, steps)| Step::Read(reader, steps)),
    ]
}

/// What all steps come to: how many reads were believed, and how many were not.
fn run(steps: Vec<Step>) -> Result<(usize, usize), TestCaseError> {
    let (mut worker, now) = (Worker::new(), Instant::now());
    let mut known = KnownLocations::new(KnownOptions { max: 4, ..KnownOptions::default() });
    let mut readings: [Option<Reading>; 3] = [None, None, None];
    let (mut believed, mut refused) = (0, 0);
    for step in steps {
        match step {
            Step::Work(extent, index, pieces) => {
                if let Some((index, location)) = worker.go_on(extent, index, pieces) {
                    known.learn(key(index), location, now);
                }
            }
            Step::Evict(extent) => {
                worker.evict(extent);
                disturb(&mut readings, extent);
            }
            Step::Flip(extent, is_seal, at) => {
                worker.flip(extent, is_seal, at);
                disturb(&mut readings, extent);
            }
            Step::Begin(reader, index, page, pages, turn, is_backwards) => {
                // A client goes by what it knows, whether that is still so or not.
                let first = (index % 3) as u32 * SECTOR_SIZE;
                let offset = first + page * PAGE_SIZE;
                // So many pages, or what is left of the shorter runs.
                let rest = |sectors: usize| (sectors * SECTOR - 5000).checked_sub((page * PAGE_SIZE) as usize);
                let lengths = [Some((pages * PAGE_SIZE) as usize), rest(1), rest(2)];
                let mut lengths = lengths.into_iter().flatten().map(|length| length as u32);
                if let Some(plan) = lengths.find_map(|length| known.find(&key(index), offset, length, now)) {
                    let extent = extent_of(plan.location().at);
                    let is_disturbed = worker.is_damaged[extent] || !worker.holds(extent, index);
                    readings[reader] = Some(Reading::of(plan, turn, is_backwards, is_disturbed));
                }
            }
            Step::Read(reader, steps) => {
                let Some(reading) = &mut readings[reader] else { continue };
                let Some(judged) = reading.go_on(&worker, steps) else { continue };
                match judged {
                    Ok(()) => {
                        prop_assert!(reading.is_right(), "a byte of something else was believed");
                        believed += 1;
                    }
                    Err(fault) => {
                        let generation = reading.plan.location().generation;
                        prop_assert!(reading.is_disturbed, "{fault}: nothing happened, and it was not believed");
                        known.mistaken(&key(reading.index), generation);
                        refused += 1;
                    }
                }
                readings[reader] = None;
            }
        }
    }
    Ok((believed, refused))
}

fn extent_of(at: u32) -> usize {
    EXTENTS.iter().position(|sectors| sectors.contains(&at)).unwrap()
}

fn disturb(readings: &mut [Option<Reading>; 3], extent: usize) {
    for reading in readings.iter_mut().flatten() {
        reading.is_disturbed |= extent_of(reading.plan.location().at) == extent;
    }
}

proptest! {
    #[test]
    fn no_wrong_byte_is_believed_and_no_right_one_is_not_whatever_happens_when(
        steps in prop::collection::vec(step(), 1..500)
    ) {
        run(steps)?;
    }
}

#[test]
fn the_model_reads_and_refuses() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut believed, mut refused) = (0, 0);
    for _ in 0..40 {
        let steps = prop::collection::vec(step(), 400..500).new_tree(&mut runner).unwrap().current();
        let (right, wrong) = run(steps).unwrap();
        believed += right;
        refused += wrong;
    }
    assert!(believed > 10 && refused > 10, "{believed} reads were believed, {refused} not: the model tries too little");
}

/// What the fence is for: without it a seal may be older than the bytes. Then checksums are all that is left.
#[test]
fn bytes_that_are_younger_than_their_seals_are_found_by_their_checksums_alone() {
    let mut worker = Worker::new();
    let sealed = |worker: &mut Worker, index| loop {
        if let Some((_, location)) = worker.go_on(0, index, 16) {
            return location;
        }
    };
    let location = sealed(&mut worker, 0);
    let plan = location.plan(key(0), 0, SECTOR_SIZE).unwrap();
    let mut before = Reading::of(plan, 0, false, false);
    before.pieces.clear();
    assert!(before.go_on(&worker, 8).is_some(), "the seals are here");
    worker.evict(0);
    sealed(&mut worker, 3);
    before.pieces = (0..SECTOR / PIECE).collect();
    assert_eq!(before.go_on(&worker, 100), Some(Err(Fault::Page(0))));
    // In the right order the generation says it.
    let mut after = Reading::of(plan, 0, false, true);
    assert_eq!(after.go_on(&worker, 100), Some(Err(Fault::Gone)));
}
