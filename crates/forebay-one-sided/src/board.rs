//! The board: the seals of a slab, in memory that cards read, and who may change them.
//!
//! A seal is there for as long as its [`Sealed`] is. That owns the bytes, so they are given to nobody else before the
//! seal has ended: whoever reads a seal after bytes, and finds the generation that it looked for, has read bytes that
//! were not yet anybody else's.

use std::fmt;
use std::sync::Arc;

use forebay_types::{BlockKey, SECTOR_SIZE, SectorChecksums, SectorRange};

use crate::seal::{Generation, SEAL_SIZE, SealedAs, WORDS};
use crate::sync::{AtomicU8, AtomicU64, Ordering};

/// A seal, in a cache line of its own.
#[repr(C, align(64))]
struct Line([AtomicU64; WORDS]);

/// The seals of a slab, one for each sector of it.
pub struct Board {
    lines: Box<[Line]>,
    /// Which of them are somebody's. Nobody else reads this, so a bit that flips in a line takes no memory out of use.
    taken: Box<[AtomicU8]>,
    /// The next generation. It does not come round: at a thousand million a second it would take five hundred years.
    next: AtomicU64,
}

/// Why bytes cannot be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// They are not what they were when they were published: this sector of the block.
    #[error("sector {0} is corrupt")]
    Corrupt(u32),
    /// They are not so many sectors, or lie beyond the slab.
    #[error("the bytes are not where they are said to be")]
    Place,
    /// Some of the memory has a seal already.
    #[error("the memory is sealed already")]
    Taken,
}

impl Board {
    /// That of a slab of so many sectors: of each 64 bytes.
    #[must_use]
    pub fn new(sectors: usize) -> Arc<Self> {
        let line = |_| Line(std::array::from_fn(|_| AtomicU64::new(0)));
        Arc::new(Self {
            lines: (0..sectors).map(line).collect(),
            taken: (0..sectors).map(|_| AtomicU8::new(0)).collect(),
            next: AtomicU64::new(1),
        })
    }

    /// Where its memory is, and how many bytes, for a transport that lets clients read it. It stays there while the
    /// board lives.
    #[must_use]
    pub fn memory(&self) -> (*const u8, usize) {
        (self.lines.as_ptr().cast(), self.lines.len() * SEAL_SIZE)
    }

    /// Seals `bytes`, the `sectors` of a block, which lie in the slab from its sector `at` on, and stay as they are
    /// while they are owned. `checksums` are those that they were published with: what has changed since then is not
    /// sealed. Reads all of the bytes twice.
    ///
    /// # Errors
    /// [`SealError`]; nothing is sealed.
    pub fn seal<B: AsRef<[u8]>>(
        self: &Arc<Self>,
        block: BlockKey,
        sectors: SectorRange,
        at: u32,
        checksums: &SectorChecksums,
        bytes: B,
    ) -> Result<Sealed<B>, SealError> {
        let lines = self.lines_of(at, sectors.len()).ok_or(SealError::Place)?;
        let pieces = bytes.as_ref().chunks(SECTOR_SIZE as usize);
        if pieces.len() != lines.len() || checksums.len() != lines.len() {
            return Err(SealError::Place);
        }
        // What was taken is given back where it goes no further.
        let mut seals = Seals { board: Arc::clone(self), at, count: 0 };
        for place in &self.taken[at as usize..at as usize + lines.len()] {
            place.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).map_err(|_| SealError::Taken)?;
            seals.count += 1;
        }
        // Each is given out once, so the order in which that is seen does not matter.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let generation = Generation::new(number).ok_or(SealError::Taken)?;
        let seal = |(sector, piece)| SealedAs { block, sector, generation }.seal(piece);
        let written: Vec<_> = (sectors.start..).zip(pieces).map(seal).collect();
        // After the seals were computed: a bit that flips meanwhile is in the one or the other.
        checksums.check(bytes.as_ref()).map_err(|sector| SealError::Corrupt(sectors.start + sector))?;
        for (line, words) in lines.iter().zip(&written) {
            let [first, rest @ ..] = words;
            line.0[1..].iter().zip(rest).for_each(|(place, word)| place.store(word.to_le(), Ordering::Relaxed));
            line.0[0].store(first.to_le(), Ordering::Release);
        }
        Ok(Sealed { _seals: seals, generation, at, bytes })
    }

    fn lines_of(&self, at: u32, count: u32) -> Option<&[Line]> {
        let start = at as usize;
        self.lines.get(start..start.checked_add(count as usize)?)
    }

    /// What a card reads there, word by word.
    #[cfg(test)]
    pub(crate) fn word(&self, at: u32, word: usize) -> [u8; 8] {
        self.lines[at as usize].0[word].load(Ordering::Acquire).to_ne_bytes()
    }

    /// A bit flips.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn flip(&self, at: u32, bit: u32) {
        self.lines[at as usize].0[bit as usize / 64].fetch_xor(1 << (bit % 64), Ordering::Relaxed);
    }
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Board({} seals)", self.lines.len())
    }
}

/// Bytes that have seals. They own the bytes: when this is dropped the seals end, and the bytes are let go of after
/// that.
#[derive(Debug)]
pub struct Sealed<B> {
    // First: fields are dropped in order.
    _seals: Seals,
    generation: Generation,
    at: u32,
    bytes: B,
}

impl<B> Sealed<B> {
    /// The generation of their seals.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The sector of the slab that they begin with.
    #[must_use]
    pub fn at(&self) -> u32 {
        self.at
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &B {
        &self.bytes
    }
}

/// Seals that end when this is dropped.
#[derive(Debug)]
struct Seals {
    board: Arc<Board>,
    at: u32,
    count: u32,
}

impl Drop for Seals {
    fn drop(&mut self) {
        let lines = self.board.lines_of(self.at, self.count).unwrap_or_default();
        for line in lines {
            // The owner of the bytes lets go of them after this, which is a release at least: whoever has the memory
            // next does all that it does there later.
            line.0[0].store(0, Ordering::Release);
            // With its checksum, so that no single bit that flips makes it what it was.
            line.0[1].store(0, Ordering::Release);
        }
        for place in self.board.taken.iter().skip(self.at as usize).take(lines.len()) {
            place.store(0, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use forebay_types::FileId;

    use super::*;

    const BLOCK: BlockKey = BlockKey { file: FileId([1; 16]), index: 0 };

    fn sectors(start: u32, end: u32) -> SectorRange {
        SectorRange::new(start, end).unwrap()
    }

    fn bytes(sectors: u32) -> Vec<u8> {
        (0..sectors * SECTOR_SIZE).map(|at| (at % 253) as u8).collect()
    }

    #[test]
    fn a_seal_ends_with_its_owner_before_the_bytes_are_let_go_of() {
        struct Looks<'a>(&'a Board, Vec<u8>);
        impl AsRef<[u8]> for Looks<'_> {
            fn as_ref(&self) -> &[u8] {
                &self.1
            }
        }
        impl Drop for Looks<'_> {
            fn drop(&mut self) {
                assert_eq!([2, 3].map(|at| self.0.word(at, 0)), [[0; 8]; 2], "others may have the memory by now");
            }
        }
        let board = Board::new(4);
        let bytes = bytes(2);
        let checksums = SectorChecksums::of(&bytes);
        let sealed = board.seal(BLOCK, sectors(5, 7), 2, &checksums, Looks(&board, bytes)).unwrap();
        assert_eq!(u64::from_le_bytes(board.word(3, 0)), sealed.generation().get());
        assert_eq!((board.word(1, 0), sealed.at()), ([0; 8], 2));
        drop(sealed);
    }

    #[test]
    fn no_generation_comes_again_and_no_memory_has_two_seals() {
        let board = Board::new(4);
        let bytes = bytes(2);
        let checksums = SectorChecksums::of(&bytes);
        let seal = |at| board.seal(BLOCK, sectors(0, 2), at, &checksums, &bytes);
        let first = seal(0).unwrap();
        assert_eq!(seal(1).unwrap_err(), SealError::Taken);
        let second = seal(2).unwrap();
        assert_ne!(first.generation(), second.generation());
        let generation = first.generation();
        drop(first);
        assert_ne!(seal(0).unwrap().generation(), generation);
    }

    #[test]
    fn what_is_not_what_was_published_or_not_there_is_not_sealed() {
        let board = Board::new(4);
        let mut bytes = bytes(2);
        let checksums = SectorChecksums::of(&bytes);
        for at in [3, u32::MAX] {
            assert_eq!(board.seal(BLOCK, sectors(0, 2), at, &checksums, &bytes).unwrap_err(), SealError::Place);
        }
        assert_eq!(board.seal(BLOCK, sectors(0, 3), 0, &checksums, &bytes).unwrap_err(), SealError::Place);
        *bytes.last_mut().unwrap() ^= 1;
        assert_eq!(board.seal(BLOCK, sectors(8, 10), 0, &checksums, &bytes).unwrap_err(), SealError::Corrupt(9));
        assert!((0..4).all(|at| board.word(at, 0) == [0; 8]));
        assert_eq!(board.memory().1, 4 * SEAL_SIZE);
        assert!(board.memory().0.addr().is_multiple_of(SEAL_SIZE), "a seal lies in one cache line");
    }
}
