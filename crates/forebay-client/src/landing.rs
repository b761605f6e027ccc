//! Where the payload of a reply lands that comes from another process.
//!
//! Nowhere, if this process sees the memory of the worker: then the reply says where in it the bytes lie. Whether it does may change
//! between the question and the call, and a worker may be unable to show some bytes. The call then ends with
//! [`forebay_transport::LinkError::OtherPath`], and the next attempt has a buffer whatever the link says.
//!
//! Otherwise it lands in a buffer of the client's, which is registered with network cards, or in a buffer of the caller's: then its
//! bytes need not be copied to where they are wanted. Either way the transport owns the memory until its operation has ended
//! (invariant 3), which may be after the reader was told that it failed. So a caller cannot count on having its buffer back, and is
//! asked for another one for each attempt.
//!
//! The buffers of a mount, the payloads of its rings, do not come from the client's buffers, of which the rings would keep a part
//! for ever that prefetching needs. TCP writes to any memory, so there it costs nothing. Network cards write to registered memory:
//! those payloads that are in use are registered ([`Connector::is_registered`]), since all of them, `fuse.uring.memory`, would be
//! pinned.

use forebay_memory::SpanMut;
use forebay_store::Store;
use forebay_types::Failure;

use crate::connector::Connector;
use crate::routes::Link;

/// Returns a buffer of the caller's for bytes to land in, if it has one.
pub type CallerBuffer<'a> = dyn FnMut() -> Option<SpanMut> + Send + 'a;

/// The most that lands over UCX in a caller's buffer that is not registered. So little comes along with the reply, and is copied
/// from there to wherever it is wanted; more is fetched by the card, with which the client's own buffers are registered.
const MAX_UNREGISTERED_OVER_UCX: u32 = 4 << 10;

/// Where the payload of a request may land.
pub(crate) struct Landing<'a, 'l> {
    pub(crate) buffers: &'a Store,
    pub(crate) caller_buffer: &'a mut CallerBuffer<'l>,
    connector: &'a dyn Connector,
    /// A link did not show what it was asked for: now it lands, whatever links say.
    pub(crate) must_land: bool,
}

impl<'a, 'l> Landing<'a, 'l> {
    pub(crate) fn new(
        buffers: &'a Store,
        caller_buffer: &'a mut CallerBuffer<'l>,
        connector: &'a dyn Connector,
    ) -> Self {
        Self { buffers, caller_buffer, connector, must_land: false }
    }

    /// Room for `length` bytes from `link`; `None` where they do not land but are shown where they lie.
    ///
    /// # Errors
    /// When there is no buffer.
    pub(crate) async fn room(&mut self, link: &Link, length: u32) -> Result<Option<SpanMut>, Failure> {
        if link.is_near() && !self.must_land {
            return Ok(None);
        }
        let is_rdma = link.transport.kind().is_rdma();
        let needs_no_registration = length <= MAX_UNREGISTERED_OVER_UCX || !is_rdma;
        // A card holds on to the buffer of a call that was given up, and a mount answers when it has its own back. So a worker
        // that is slow, and likely to be overtaken, does not get it.
        let may_be_kept = is_rdma && link.speed.is_slow();
        if !may_be_kept
            && let Some(mut buffer) = (self.caller_buffer)().filter(|buffer| buffer.len() >= length as usize)
            && (needs_no_registration || self.connector.is_registered(&buffer))
        {
            buffer.truncate(length as usize);
            return Ok(Some(buffer));
        }
        Ok(Some(self.buffers.landing(length).await?))
    }
}
