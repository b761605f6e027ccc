//! Where the payload of a reply lands that comes from another process.
//!
//! Nowhere, if this process sees the memory of the worker: then the reply says where in it the bytes lie. Whether it does may change
//! between the question and the call, and a worker may be unable to show some bytes. The call then ends with
//! [`forebay_transport::LinkError::OtherPath`], and the next attempt has a buffer whatever the link says.
//!
//! Otherwise it lands in a buffer of the client's, which network cards know, or in memory that the reader lends: then its bytes need
//! not be copied to where they are wanted. Either way the transport owns the memory until its operation has ended (invariant 3),
//! which may be after the reader was told that it failed. So whoever lends cannot count on having it back, and is asked anew for
//! each attempt.
//!
//! What a mount lends, the payloads of its rings, does not come from the client's buffers, of which the rings would keep a part for
//! ever that prefetching lives on. TCP writes to any memory, so there it costs nothing. Network cards write to what they know: they
//! come to know those payloads that are in use ([`Connector::knows`]), since all of them, `fuse.uring.memory`, would be pinned.

use forebay_memory::SpanMut;
use forebay_store::Store;
use forebay_transport::TransportKind;
use forebay_types::Failure;

use crate::connector::Connector;
use crate::routes::Link;

/// Lends memory for bytes to land in, if there is some to lend.
pub type Lend<'a> = dyn FnMut() -> Option<SpanMut> + Send + 'a;

/// The most that lands over UCX in memory that is lent whether or not network cards know it. So little comes along with the reply,
/// and is copied from there to wherever it is wanted; more is fetched by the card, and it knows the client's own buffers.
const LENT_OVER_UCX: u32 = 4 << 10;

/// Where the payload of a request may land.
pub(crate) struct Landing<'a, 'l> {
    pub(crate) buffers: &'a Store,
    pub(crate) lend: &'a mut Lend<'l>,
    connector: &'a dyn Connector,
    /// A link did not show what it was asked for: now it lands, whatever links say.
    pub(crate) must_land: bool,
}

impl<'a, 'l> Landing<'a, 'l> {
    pub(crate) fn new(buffers: &'a Store, lend: &'a mut Lend<'l>, connector: &'a dyn Connector) -> Self {
        Self { buffers, lend, connector, must_land: false }
    }

    /// Room for `length` bytes from `link`; `None` where they do not land but are shown where they lie.
    ///
    /// # Errors
    /// When there is no buffer.
    pub(crate) async fn room(&mut self, link: &Link, length: u32) -> Result<Option<SpanMut>, Failure> {
        if link.is_near() && !self.must_land {
            return Ok(None);
        }
        let goes_anywhere = length <= LENT_OVER_UCX || link.transport.kind() != TransportKind::Ucx;
        if let Some(mut lent) = (self.lend)().filter(|lent| lent.len() >= length as usize)
            && (goes_anywhere || self.connector.knows(&lent))
        {
            lent.truncate(length as usize);
            return Ok(Some(lent));
        }
        Ok(Some(self.buffers.landing(length).await?))
    }
}
