//! Reads and writes of the peer's memory by themselves, without a message: what a benchmark of the network does.

use forebay_memory::Spans;
use forebay_verbs_sys as sys;

use super::{Posted, QueuePair, Regions};
use crate::domain::Region;
use crate::error::{Error, by_result};
use crate::requests::{Plain, Remote};

impl QueuePair {
    /// Whether so many of them can be posted now.
    #[must_use]
    pub fn takes_plain(&self, count: u32) -> bool {
        !self.is_broken && self.room >= count
    }

    /// Posts one, which is known by `number` when it has ended. Its memory has to be of the registered pool.
    ///
    /// # Errors
    /// [`Error`]: the connection is to be ended.
    pub fn post_plain(&mut self, number: u64, plain: Plain, remote: Remote) -> Result<(), Error> {
        let posted = self.try_post_plain(number, plain, remote);
        self.is_broken |= posted.is_err();
        posted
    }

    fn try_post_plain(&mut self, number: u64, plain: Plain, remote: Remote) -> Result<(), Error> {
        let refuse =
            |reason: &str| Error::Refused { what: "read or write the peer's memory", reason: reason.to_owned() };
        let (address, length) = plain.place();
        let lkey = self.registration.region(address, length).map(Region::lkey);
        let lkey = lkey.ok_or_else(|| refuse("the memory here is not registered"))?;
        if !self.takes_plain(1) {
            return Err(refuse("too much is under way"));
        }
        let opcode = match plain {
            Plain::Read(_) => sys::IBV_WR_RDMA_READ,
            Plain::Write(_) => sys::IBV_WR_RDMA_WRITE,
        };
        // A span is a part of an extent, of 4 MiB at most.
        let mut piece = sys::ibv_sge { addr: address as u64, length: length as u32, lkey };
        let mut request = sys::ibv_send_wr::new(self.next, opcode, sys::IBV_SEND_SIGNALED);
        request.wr.rdma = sys::ibv_remote { remote_addr: remote.address, rkey: remote.key };
        (request.sg_list, request.num_sge) = (&raw mut piece, 1);
        // From here on the card may have it, whatever the library says.
        self.memory.posted.push_back(Posted {
            last: self.next,
            requests: 1,
            frame: None,
            read: None,
            plain: Some((number, plain)),
            _regions: Regions::new(),
            _spans: Spans::new(),
        });
        self.next += 1;
        self.room = self.room.saturating_sub(1);
        // Its completion is that of all before it.
        self.unsignalled = 0;
        let mut failed = std::ptr::null_mut();
        // SAFETY: the pair is alive; the request names a piece that lives until this returns, and memory that is kept until it
        // has ended.
        let result = unsafe { sys::ibv_post_send(self.pair.as_ptr(), &raw mut request, &raw mut failed) };
        by_result("post a read or write", result)
    }

    /// The next that has ended as it should, after a completion was handed in.
    pub fn next_plain(&mut self) -> Option<(u64, Plain)> {
        self.memory.plain_done.pop_front()
    }
}
