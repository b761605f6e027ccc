//! The one side of one-sided reads and the other: a queue pair reads its peer's memory, or shows it some.

use std::sync::Arc;

use forebay_memory::{SpanMut, Spans};
use forebay_verbs_sys as sys;

use super::{Posted, QueuePair, Regions};
use crate::domain::Region;
use crate::error::{Error, by_result};
use crate::reads::{Read, ReadDone, Reads, UnderWay};
use crate::shown::{ReadableBoard, Shown};

/// Requests of a read.
const REQUESTS: u32 = 2;

impl QueuePair {
    /// Whether a read of so many bytes and seals can be posted now: nothing is registered for one read alone.
    #[must_use]
    pub fn can_read(&self, into: &SpanMut, length: usize, seals_length: usize) -> bool {
        let has_room = !self.is_broken && self.room >= REQUESTS && self.memory.reads.has_free();
        has_room && (Reads::takes_both(length, seals_length) || self.lkey_of(into, length).is_some())
    }

    /// The key of the first bytes of a buffer, if these are registered.
    fn lkey_of(&self, into: &SpanMut, length: usize) -> Option<u32> {
        self.registration.region(into.pointer().addr().get(), length).map(Region::lkey)
    }

    /// Reads the peer's memory: bytes, and their seals when all of them are here. There has to be room
    /// ([`QueuePair::can_read`]).
    ///
    /// # Errors
    /// [`Error`]: the connection is to be ended.
    pub fn read(&mut self, read: Read) -> Result<(), Error> {
        let posted = self.post_read(read);
        self.is_broken |= posted.is_err();
        posted
    }

    fn post_read(&mut self, read: Read) -> Result<(), Error> {
        let refuse = |reason: &str| Error::Refused { what: "read the peer's memory", reason: reason.to_owned() };
        let Read { number, into, length, data, seals, seals_length } = read;
        if length == 0 || length > into.len() || !Reads::takes(seals_length) {
            return Err(refuse("there is no room for what it brings"));
        }
        let registered = self.lkey_of(&into, length);
        if registered.is_none() && !Reads::takes_both(length, seals_length) {
            return Err(refuse("its buffer is not registered"));
        }
        let (frame, place, frame_lkey) = self.memory.reads.take().ok_or_else(|| refuse("no frame is free"))?;
        let (addr, lkey) = match registered {
            Some(lkey) => (into.pointer().addr().get() as u64, lkey),
            None => (place + seals_length as u64, frame_lkey),
        };
        // A buffer is a part of an extent, of 4 MiB at most, and seals are far less.
        let mut bytes = sys::ibv_sge { addr, length: length as u32, lkey };
        let mut proof = sys::ibv_sge { addr: place, length: seals_length as u32, lkey: frame_lkey };
        let request = |piece: *mut sys::ibv_sge, remote: crate::requests::Remote, flags| {
            let mut request = sys::ibv_send_wr::new(0, sys::IBV_WR_RDMA_READ, flags);
            request.wr.rdma = sys::ibv_remote { remote_addr: remote.address, rkey: remote.key };
            (request.sg_list, request.num_sge) = (piece, 1);
            request
        };
        let mut first = request(&raw mut bytes, data, 0);
        let mut second = request(&raw mut proof, seals, sys::IBV_SEND_FENCE | sys::IBV_SEND_SIGNALED);
        (first.wr_id, second.wr_id) = (self.next, self.next + 1);
        first.next = &raw mut second;
        self.next += u64::from(REQUESTS);
        // From here on the card may have them, whatever the library says.
        self.room = self.room.saturating_sub(REQUESTS);
        // Its completion is that of all before it.
        self.unsignalled = 0;
        let copied = registered.is_none().then_some(length);
        let read = Some(UnderWay { number, into, frame, seals_length, copied });
        let (last, spans, regions) = (self.next - 1, Spans::new(), Regions::new());
        self.memory.posted.push_back(Posted {
            last,
            requests: REQUESTS,
            frame: None,
            read,
            plain: None,
            _regions: regions,
            _spans: spans,
        });
        let mut failed = std::ptr::null_mut();
        // SAFETY: the pair is alive; the requests are linked, and name pieces that live until this returns, and memory
        // that is kept until they have ended: the buffer, and the frame.
        let result = unsafe { sys::ibv_post_send(self.pair.as_ptr(), &raw mut first, &raw mut failed) };
        by_result("post a read", result)
    }

    /// The next read that has ended as it should, after a completion was handed in.
    pub fn next_read(&mut self) -> Option<ReadDone> {
        self.memory.reads.next_done()
    }

    /// A window through which the peer may read the part of the pool that its byte `offset` lies in, once that is bound
    /// ([`Post::shows`](crate::Post::shows)). `None` when that part is not registered.
    ///
    /// # Errors
    /// [`Error::Refused`] when there is no window.
    pub fn show(&mut self, offset: u64) -> Result<Option<Shown>, Error> {
        let Ok(offset) = usize::try_from(offset) else { return Ok(None) };
        self.memory.shown.of_pool(offset, &self.registration)
    }

    /// The same of a board, of this pair's domain.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn show_board(&mut self, board: &Arc<ReadableBoard>) -> Result<Shown, Error> {
        self.memory.shown.of_board(board)
    }

    /// Ends all windows through which the peer may read. If it reads on, its connection breaks.
    pub fn hide(&mut self) {
        self.memory.shown.clear();
    }
}
