//! A transfer to a device: which piece is read when, what is copied, and when it has ended. Pure.
//!
//! A transfer is a list of pieces. Each of them needs a *slot* from the moment in which its read begins until its copy has ended:
//!
//! ```text
//!   free ──begin──► reading ──come──► copying ──copied──► free
//! ```
//!
//! There are so many slots and no more, which bounds the memory: of pinned buffers, and of what is held of the cache. While some slots are
//! copied from, others are read into. Reads begin in the order of the pieces; what comes is copied at once, since pieces do not overlap.
//!
//! The first failure, or who gives up, ends a transfer: nothing more begins, what is being read is of no use any more, and what comes
//! is not copied. The transfer has *settled* when nothing of it writes to the device: then, and not before, its owner may be told. A copy
//! cannot be called back, so it is waited for.

use std::time::{Duration, Instant};

/// A copy that takes longer is worth a word in the log. A slot's bytes take less than a millisecond.
const LATE: Duration = Duration::from_secs(10);

/// A transfer.
#[derive(Debug)]
pub struct Pipeline {
    slots: Vec<Slot>,
    pieces: usize,
    begun: usize,
    copied: usize,
    is_ending: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    Reading { piece: usize },
    Copying { piece: usize, since: Instant, is_said: bool },
}

/// A read that is to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The slot that is the piece's from now on.
    pub slot: usize,
    /// The number of the piece.
    pub piece: usize,
}

/// What becomes of bytes that have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Come {
    /// This piece is to be copied now.
    Copy(usize),
    /// Nobody wants them any more.
    Drop,
}

impl Pipeline {
    /// A transfer of `pieces`, of which at most `slots` are under way at once: one at least.
    #[must_use]
    pub fn new(slots: usize, pieces: usize) -> Self {
        Self { slots: vec![Slot::Free; slots.clamp(1, pieces.max(1))], pieces, begun: 0, copied: 0, is_ending: false }
    }

    /// The next read, if there is a slot for it. To be called until there is none.
    pub fn begin(&mut self) -> Option<Begun> {
        if self.is_ending || self.begun == self.pieces {
            return None;
        }
        let slot = self.slots.iter().position(|slot| *slot == Slot::Free)?;
        let piece = self.begun;
        self.begun += 1;
        self.slots[slot] = Slot::Reading { piece };
        Some(Begun { slot, piece })
    }

    /// The bytes of a slot's piece have come.
    pub fn come(&mut self, slot: usize, now: Instant) -> Come {
        let Some(Slot::Reading { piece }) = self.slots.get(slot).copied() else { return Come::Drop };
        if self.is_ending {
            self.slots[slot] = Slot::Free;
            return Come::Drop;
        }
        self.slots[slot] = Slot::Copying { piece, since: now, is_said: false };
        Come::Copy(piece)
    }

    /// The copy from a slot has ended.
    pub fn copied(&mut self, slot: usize) {
        if let Some(held @ Slot::Copying { .. }) = self.slots.get_mut(slot) {
            *held = Slot::Free;
            self.copied += 1;
        }
    }

    /// The read into a slot, or the copy from it, has ended with a failure.
    pub fn failed(&mut self, slot: usize) {
        if let Some(held) = self.slots.get_mut(slot) {
            *held = Slot::Free;
        }
        self.is_ending = true;
    }

    /// Nobody wants the rest.
    pub fn give_up(&mut self) {
        self.is_ending = true;
    }

    /// Whether nothing writes to the device any more, and nothing will.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let is_copied = !self.slots.iter().any(|slot| matches!(slot, Slot::Copying { .. }));
        is_copied && (self.is_ending || self.copied == self.pieces)
    }

    /// Whether all of it has arrived.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.copied == self.pieces
    }

    /// The pieces whose copies take suspiciously long; each is said once.
    pub fn overdue(&mut self, now: Instant) -> Vec<usize> {
        let mut late = Vec::new();
        for slot in &mut self.slots {
            if let Slot::Copying { piece, since, is_said } = slot
                && !*is_said
                && now.saturating_duration_since(*since) >= LATE
            {
                *is_said = true;
                late.push(*piece);
            }
        }
        late
    }
}

#[cfg(test)]
mod tests;
