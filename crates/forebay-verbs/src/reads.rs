//! Reads of the peer's memory: what they own until they have ended.
//!
//! A read is two requests (ADR 0035): of bytes, into a buffer of the caller's, and, when all of these are here, of what
//! says whether they are right, into a frame of the queue pair's own. The second one is fenced.
//!
//! Few bytes for a buffer that is not registered go into the frame, too, and are copied: to register it would take longer.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_memory::SpanMut;
use forebay_one_sided::SEAL_SIZE;
use forebay_types::MAX_SECTORS;

use crate::domain::Domain;
use crate::error::Error;
use crate::frames::Frames;
use crate::requests::Remote;

/// The most bytes of seals that a read brings: of a whole block.
const MAX_SEALS: usize = MAX_SECTORS as usize * SEAL_SIZE;

/// A read of the peer's memory.
#[derive(Debug)]
pub struct Read {
    /// By which it is known when it has ended.
    pub number: u64,
    /// Where the bytes go: to its beginning.
    pub into: SpanMut,
    /// How many.
    pub length: usize,
    /// Where they are.
    pub data: Remote,
    /// Where their seals are.
    pub seals: Remote,
    /// Bytes of these.
    pub seals_length: usize,
}

/// One that has ended as it should.
#[derive(Debug)]
pub struct ReadDone {
    /// As [`Read::number`].
    pub number: u64,
    /// The buffer.
    pub into: SpanMut,
    /// The seals, as they were when all bytes were there.
    pub seals: Vec<u8>,
}

/// One under way.
pub(crate) struct UnderWay {
    pub(crate) number: u64,
    pub(crate) into: SpanMut,
    pub(crate) frame: u32,
    pub(crate) seals_length: usize,
    /// So many bytes lie behind the seals in the frame, and are to be copied from there.
    pub(crate) copied: Option<usize>,
}

/// The frames of reads, and reads that have ended.
pub(crate) struct Reads {
    frames: Option<Frames>,
    free: Vec<u32>,
    done: VecDeque<ReadDone>,
}

impl Reads {
    /// Room for `count` of them; no memory for none.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn new(domain: &Arc<Domain>, count: u32) -> Result<Self, Error> {
        let frames = (count > 0).then(|| Frames::new(domain, count, MAX_SEALS)).transpose()?;
        Ok(Self { frames, free: (0..count).rev().collect(), done: VecDeque::new() })
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// A free frame: its number, its address and its key.
    pub(crate) fn take(&mut self) -> Option<(u32, u64, u32)> {
        let frames = self.frames.as_ref()?;
        let frame = self.free.pop()?;
        Some((frame, frames.at(frame).addr().get() as u64, frames.lkey()))
    }

    /// Whether a frame holds so many bytes of seals.
    pub(crate) fn takes(seals_length: usize) -> bool {
        seals_length <= MAX_SEALS
    }

    /// Whether it holds these and so many bytes of data.
    pub(crate) fn takes_both(length: usize, seals_length: usize) -> bool {
        length.checked_add(seals_length).is_some_and(Self::takes)
    }

    /// A read has ended, as it should or not.
    pub(crate) fn ended(&mut self, read: UnderWay, is_good: bool) {
        let UnderWay { number, mut into, frame, seals_length, copied } = read;
        self.free.push(frame);
        let Some(frames) = self.frames.as_ref().filter(|_| is_good) else { return };
        // SAFETY: the card has filled the frame, and does nothing with it any more; the next read that takes it comes
        // after this.
        let came = unsafe { std::slice::from_raw_parts(frames.at(frame).as_ptr(), frames.length()) };
        // Both fit: that was looked at when the read was posted.
        let (seals, rest) = came.split_at(seals_length.min(came.len()));
        let copied = copied.unwrap_or_default();
        if let (Some(room), Some(bytes)) = (into.get_mut(..copied), rest.get(..copied)) {
            room.copy_from_slice(bytes);
        }
        self.done.push_back(ReadDone { number, into, seals: seals.to_vec() });
    }

    /// The next one that has ended as it should.
    pub(crate) fn next_done(&mut self) -> Option<ReadDone> {
        self.done.pop_front()
    }
}
