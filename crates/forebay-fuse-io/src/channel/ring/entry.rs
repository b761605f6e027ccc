//! One entry of a ring: the memory for a request and its answer, and the rules for access to it.
//!
//! An entry is a header page and a payload. From its registration until the kernel has said that the entry is over,
//! both are either the kernel's or ours, never both:
//!
//! ```text
//! WithKernel ─ completion ─▶ Serving ─ answered by this thread ─────────────▶ Answered ─ commit ─▶ WithKernel
//!                               └─ keep ─▶ Kept ─ last hold let go ─▶ Ready ─ commit ─▶ WithKernel
//! ```
//!
//! While an entry is the kernel's no Rust reference to its bytes exists, only raw pointers. [`Taken`] is the owner
//! thread's view of an entry that it serves, [`Kept`] the view of the thread that answers later, which may be any
//! thread, and [`KeptBytes`] a view of what a WRITE brought. Each [`Kept`] and each [`KeptBytes`] counts as one hold;
//! the entry goes back to the kernel only when no hold is left. So an answer can never be written over bytes that a
//! thread still reads (invariant 3).
//!
//! The payload is a [`SpanMut`] of a pool, so that a transport may land a read in it ([`Kept::lend`]). A payload that
//! is lent keeps its entry from the kernel even when the answer is known: the kernel would write the next request where
//! the transport still writes the old one. An empty view of the same extent, the anchor, stays behind: it tells when all
//! others are gone, and then the payload is had from it again. An answer that comes from elsewhere meanwhile, since the
//! operation that it was lent to failed and another did not, is kept beside it and put there when the entry is given away.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;

use forebay_memory::{Pool, Span, SpanMut};

use super::headers::{HEADER_SIZE, Headers};
use super::ready::Ready;
use super::turn::Turn;

/// Where the first argument of an operation lies in the header.
const OP_IN: usize = 128;
/// The most that it takes.
const OP_IN_SIZE: usize = 128;
/// Where `commit_id` lies: what the kernel finds the request by when it is answered.
const COMMIT_ID: usize = 264;
/// Where the length of the payload lies.
const PAYLOAD_SIZE: usize = 272;
/// `struct fuse_in_header`, whose `unique` lies where that of `struct fuse_out_header` does.
const IN_HEADER_SIZE: usize = 40;
/// `struct fuse_out_header`.
const OUT_HEADER_SIZE: usize = 16;

/// All entries of one ring thread. What answers later holds it by an `Arc`, so the memory outlives every answer.
#[derive(Debug)]
pub(crate) struct Entries {
    headers: Headers,
    slots: Box<[Slot]>,
    ready: Ready,
}

/// What belongs to one entry beside its header page.
#[derive(Debug)]
struct Slot {
    /// The first byte of the payload, valid for `capacity` bytes as long as `anchor` lives.
    payload: NonNull<u8>,
    capacity: usize,
    /// An empty view of the payload's extent. It keeps the extent from its pool, and is the only view except while the
    /// payload is lent. Only the [`Kept`] may look at it, and the owner thread when the entry is answered.
    anchor: UnsafeCell<Span>,
    /// What REGISTER points the kernel to: header and payload.
    iovecs: [libc::iovec; 2],
    qid: u16,
    /// Whose it is. Each [`Kept`] and each [`KeptBytes`] is a hold, and the `Kept` answers.
    turn: Turn<Late>,
}

#[derive(Debug)]
struct Late {
    error: i32,
    body: Vec<u8>,
}

// SAFETY: `payload`, `iovecs` and the anchor point to or hold plain memory; `turn` says whose turn it is to touch it,
// and every hand-over from thread to thread goes through it.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

/// Why the memory for entries could not be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no memory for the payload of entry {0}")]
pub(crate) struct NoPayload(pub(crate) usize);

impl Entries {
    /// Entries for `queues` (number of the queue, how many entries), each with a payload of `capacity` bytes of `pool`.
    ///
    /// # Errors
    /// [`NoPayload`] when the pool has no more.
    pub(crate) fn new(queues: &[(u16, u32)], capacity: usize, pool: &Pool, ready: Ready) -> Result<Self, NoPayload> {
        let count = queues.iter().map(|(_, depth)| *depth as usize).sum();
        let headers = Headers::new(count);
        let mut slots = Vec::with_capacity(count);
        for &(qid, depth) in queues {
            for _ in 0..depth {
                let index = slots.len();
                let span = pool.try_alloc(capacity).ok_or(NoPayload(index))?;
                slots.push(Slot::new(qid, headers.at(index), span));
            }
        }
        Ok(Self { headers, slots: slots.into(), ready })
    }

    /// The queue that entry `index` belongs to.
    pub(crate) fn qid(&self, index: u32) -> u16 {
        self.slot(index).qid
    }

    /// What a COMMIT of the entry's answer names.
    pub(crate) fn commit_id(&self, index: u32) -> u64 {
        self.headers.read_u64(index, COMMIT_ID)
    }

    /// The two buffers of the entry, as REGISTER wants them: an address that stays valid as long as the entries.
    pub(crate) fn iovecs(&self, index: u32) -> *const libc::iovec {
        self.slot(index).iovecs.as_ptr()
    }

    pub(crate) fn ready(&self) -> &Ready {
        &self.ready
    }

    /// A request has come in entry `index`: the owner thread's view of it.
    pub(crate) fn take(self: &Arc<Self>, index: u32) -> Taken<'_> {
        self.slot(index).turn.take();
        Taken { entries: self, index }
    }

    /// Whether the request of entry `index` was answered before [`Taken`] was let go.
    pub(crate) fn is_answered(&self, index: u32) -> bool {
        self.slot(index).turn.is_answered()
    }

    /// Whether an answered entry must still wait, since its payload may still be written to.
    pub(crate) fn is_lent(&self, index: u32) -> bool {
        self.slot(index).is_lent()
    }

    /// How many bytes the answer of entry `index` has, which is answered and not given away.
    pub(crate) fn answer_length(&self, index: u32) -> usize {
        self.headers.read_u32(index, PAYLOAD_SIZE) as usize
    }

    /// The kernel is asked to take entry `index`, with the answer that is in it or for the first time.
    pub(crate) fn give(&self, index: u32) {
        let slot = self.slot(index);
        if let Some(late) = slot.turn.take_late() {
            let body: &[&[u8]] = &[&late.body];
            self.write(index, if late.error == 0 { Ok(body) } else { Err(late.error) });
        }
        slot.turn.give();
    }

    fn slot(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    /// Writes the answer of an entry that is ours alone.
    fn write(&self, index: u32, answer: Result<&[&[u8]], i32>) {
        let slot = self.slot(index);
        let mut error = answer.err().unwrap_or(0);
        let mut length = 0;
        if let Ok(parts) = answer {
            if parts.iter().map(|part| part.len()).sum::<usize>() > slot.capacity {
                tracing::error!(qid = slot.qid, "a reply is longer than what the kernel gave room for");
                error = libc::EIO;
            } else {
                for part in parts {
                    // SAFETY: the parts fit as was just checked, the payload is ours alone, and no holder of one of
                    // `parts` can have a view of the payload: views of it count as holds.
                    unsafe {
                        std::ptr::copy_nonoverlapping(part.as_ptr(), slot.payload.as_ptr().add(length), part.len());
                    }
                    length += part.len();
                }
            }
        }
        self.write_header(index, error, length);
    }

    /// `unique` stays where the request brought it.
    fn write_header(&self, index: u32, error: i32, length: usize) {
        // The kernel refuses what is no errno, and then the program would see EINVAL.
        let error = if (0..512).contains(&error) { error } else { libc::EIO };
        let length = length as u32;
        self.headers.write_u32(index, 0, OUT_HEADER_SIZE as u32 + length);
        self.headers.write_u32(index, 4, error.wrapping_neg() as u32);
        self.headers.write_u32(index, PAYLOAD_SIZE, length);
    }

    fn payload_size(&self, index: u32) -> usize {
        (self.headers.read_u32(index, PAYLOAD_SIZE) as usize).min(self.slot(index).capacity)
    }

    /// Lets go of one hold; the last one hands the entry to its owner thread.
    fn let_go(&self, index: u32) {
        if self.slot(index).turn.let_go() {
            self.ready.set(index);
        }
    }
}

impl Slot {
    fn new(qid: u16, header: NonNull<u8>, mut span: SpanMut) -> Self {
        let capacity = span.len();
        // From here on the payload is reached through this pointer alone, or through the one `SpanMut`, never both.
        let payload = span.pointer();
        span.truncate(0);
        let iovecs = [
            libc::iovec { iov_base: header.as_ptr().cast(), iov_len: HEADER_SIZE },
            libc::iovec { iov_base: payload.as_ptr().cast(), iov_len: capacity },
        ];
        Self { payload, capacity, anchor: UnsafeCell::new(span.freeze()), iovecs, qid, turn: Turn::new() }
    }

    /// Whether there is a view of the payload besides the anchor. Only for the [`Kept`], and for the owner thread when
    /// the entry is answered.
    fn is_lent(&self) -> bool {
        // SAFETY: only the `Kept` looks at the anchor, and the owner thread when the entry is answered.
        unsafe { (*self.anchor.get()).is_shared() }
    }
}

/// An entry that its owner thread serves. Dropped unanswered it answers EIO.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    entries: &'a Arc<Entries>,
    index: u32,
}

impl Taken<'_> {
    /// The request's header.
    pub(crate) fn header(&self) -> &[u8] {
        self.entries.headers.bytes(self.index, 0, IN_HEADER_SIZE)
    }

    /// The request's first argument, and whatever an older one left behind it: 128 bytes, of which the operation
    /// defines how many count.
    pub(crate) fn head(&self) -> &[u8] {
        self.entries.headers.bytes(self.index, OP_IN, OP_IN_SIZE)
    }

    /// The other arguments: names, or what is to be written.
    pub(crate) fn tail(&self) -> &[u8] {
        let length = self.entries.payload_size(self.index);
        // SAFETY: the payload is `capacity >= length` bytes long and ours alone until `self` is consumed, which this
        // borrow prevents.
        unsafe { std::slice::from_raw_parts(self.entries.slot(self.index).payload.as_ptr(), length) }
    }

    /// Answers here and now: a body of some parts, or an errno (positive).
    pub(crate) fn answer(self, answer: Result<&[&[u8]], i32>) {
        self.entries.write(self.index, answer);
        self.entries.slot(self.index).turn.answer();
        std::mem::forget(self);
    }

    /// To be answered later, by any thread.
    pub(crate) fn keep(self) -> Kept {
        self.keep_with(1)
    }

    /// As [`Taken::keep`], with the bytes that a WRITE brought, uncopied.
    pub(crate) fn keep_bytes(self) -> (Kept, KeptBytes) {
        let length = self.entries.payload_size(self.index);
        let kept = self.keep_with(2);
        let bytes = KeptBytes { entries: Arc::clone(&kept.entries), index: kept.index, length };
        (kept, bytes)
    }

    fn keep_with(self, holds: u32) -> Kept {
        self.entries.slot(self.index).turn.keep(holds);
        let kept = Kept { entries: Arc::clone(self.entries), index: self.index };
        std::mem::forget(self);
        kept
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.entries.write(self.index, Err(libc::EIO));
        self.entries.slot(self.index).turn.answer();
    }
}

/// An entry that is answered later. Dropped unanswered it answers EIO.
#[derive(Debug)]
pub(crate) struct Kept {
    entries: Arc<Entries>,
    index: u32,
}

impl Kept {
    /// A body of some parts, or an errno (positive).
    pub(crate) fn answer(self, answer: Result<&[&[u8]], i32>) {
        let slot = self.entries.slot(self.index);
        if slot.turn.is_sole() && !slot.is_lent() {
            self.entries.write(self.index, answer);
        } else {
            self.answer_late(answer);
        }
        self.end();
    }

    /// The payload itself, `length` bytes of it, to be filled and then sent by [`Kept::send_payload`]. `None` while
    /// there is another view of it.
    pub(crate) fn payload(&mut self) -> Option<&mut [u8]> {
        let slot = self.entries.slot(self.index);
        if !slot.turn.is_sole() || slot.is_lent() {
            return None;
        }
        // SAFETY: the payload is `capacity` bytes long, and there is no other view of it until `self` is consumed or
        // lends it, which this borrow prevents.
        Some(unsafe { std::slice::from_raw_parts_mut(slot.payload.as_ptr(), slot.capacity) })
    }

    /// Answers with the first `length` bytes of the payload as [`Kept::payload`] or a lent span left them.
    pub(crate) fn send_payload(self, length: usize) {
        let slot = self.entries.slot(self.index);
        if slot.turn.is_sole() && length <= slot.capacity {
            self.entries.write_header(self.index, 0, length);
        } else {
            self.answer_late(Err(libc::EIO));
        }
        self.end();
    }

    /// The payload, for an operation that lands a read in it. It comes back by [`Kept::filled`]; if it is dropped
    /// instead, the answer waits until it is. `None` while it is lent.
    pub(crate) fn lend(&mut self) -> Option<SpanMut> {
        let slot = self.entries.slot(self.index);
        if !slot.turn.is_sole() {
            return None;
        }
        // SAFETY: only the `Kept` looks at the anchor until the entry is answered, and `self` is not consumed.
        unsafe { (*slot.anchor.get()).reclaim(slot.capacity) }
    }

    /// Answers with the first `length` bytes of what [`Kept::lend`] gave, or of something else. Whether they were where the kernel
    /// takes them from.
    pub(crate) fn filled(self, span: SpanMut, length: usize) -> bool {
        let slot = self.entries.slot(self.index);
        let Some(bytes) = span.get(..length) else {
            drop(span);
            self.answer(Err(libc::EIO));
            return false;
        };
        let is_in_place = std::ptr::eq(bytes.as_ptr(), slot.payload.as_ptr());
        if is_in_place {
            drop(span);
            self.send_payload(length);
        } else {
            // Not so if it is a later part of the payload, which is lent then: it is copied aside first.
            self.answer(Ok(&[bytes]));
        }
        is_in_place
    }

    /// Leaves the answer beside the payload until there is no other view of the payload any more.
    #[cold]
    fn answer_late(&self, answer: Result<&[&[u8]], i32>) {
        let late = match answer {
            Ok(parts) => Late { error: 0, body: parts.concat() },
            Err(error) => Late { error, body: Vec::new() },
        };
        // SAFETY: the `Kept` answers, and its hold is not let go yet.
        unsafe { self.entries.slot(self.index).turn.leave(late) };
    }

    fn end(self) {
        self.entries.let_go(self.index);
        // SAFETY: `self` is forgotten right after, so its `Arc` is dropped once.
        drop(unsafe { std::ptr::read(&raw const self.entries) });
        std::mem::forget(self);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.answer_late(Err(libc::EIO));
        self.entries.let_go(self.index);
    }
}

/// What a WRITE brought, where the kernel left it. The entry is not answered before it is dropped.
#[derive(Debug)]
pub(crate) struct KeptBytes {
    entries: Arc<Entries>,
    index: u32,
    length: usize,
}

impl std::ops::Deref for KeptBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the payload is at least that long, and is not written to while there is a hold besides the answer's.
        unsafe { std::slice::from_raw_parts(self.entries.slot(self.index).payload.as_ptr(), self.length) }
    }
}

impl Drop for KeptBytes {
    fn drop(&mut self) {
        self.entries.let_go(self.index);
    }
}

/// What the kernel does with an entry that it has, for those that play it.
#[cfg(any(test, feature = "fuzzing"))]
impl Entries {
    /// Puts bytes into the header page of entry `index`, and into its payload, from the front on.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn place(&self, index: u32, page: &[u8], payload: &[u8]) {
        let slot = self.slot(index);
        assert!(slot.turn.is_with_kernel(), "the entry is not the kernel's");
        assert!(page.len() <= HEADER_SIZE && payload.len() <= slot.capacity);
        // SAFETY: both fit, as was just checked, and the entry is the kernel's, which this plays.
        unsafe {
            std::ptr::copy_nonoverlapping(page.as_ptr(), self.headers.at(index as usize).as_ptr(), page.len());
            std::ptr::copy_nonoverlapping(payload.as_ptr(), slot.payload.as_ptr(), payload.len());
        }
    }

    /// Puts a request into entry `index`.
    #[cfg(test)]
    pub(crate) fn bring(&self, index: u32, header: &[u8], head: &[u8], tail: &[u8]) {
        let slot = self.slot(index);
        assert!(slot.turn.is_with_kernel(), "the entry is not the kernel's");
        assert!(header.len() == IN_HEADER_SIZE && head.len() <= OP_IN_SIZE && tail.len() <= slot.capacity);
        let page = self.headers.at(index as usize).as_ptr();
        // SAFETY: all three fit, as was just checked, and the entry is the kernel's, which this plays.
        unsafe {
            std::ptr::copy_nonoverlapping(header.as_ptr(), page, header.len());
            std::ptr::copy_nonoverlapping(head.as_ptr(), page.add(OP_IN), head.len());
            std::ptr::copy_nonoverlapping(header.as_ptr().add(8), page.add(COMMIT_ID), 8);
            std::ptr::copy_nonoverlapping(tail.as_ptr(), slot.payload.as_ptr(), tail.len());
        }
        self.headers.write_u32(index, PAYLOAD_SIZE, tail.len() as u32);
    }

    /// What entry `index` answers: the number of the request, the error as it stands there, and the body.
    pub(crate) fn fetch(&self, index: u32) -> (u64, i32, Vec<u8>) {
        let slot = self.slot(index);
        let length = self.headers.read_u32(index, PAYLOAD_SIZE) as usize;
        assert!(length <= slot.capacity, "the kernel reads no further than the payload");
        assert_eq!(self.headers.read_u32(index, 0) as usize, OUT_HEADER_SIZE + length, "an answer says its length");
        // SAFETY: the answer lies in the payload, and the entry is being given to the kernel, which this plays.
        let body = unsafe { std::slice::from_raw_parts(slot.payload.as_ptr(), length) }.to_vec();
        (self.headers.read_u64(index, 8), self.headers.read_u32(index, 4) as i32, body)
    }
}

#[cfg(test)]
mod tests;
