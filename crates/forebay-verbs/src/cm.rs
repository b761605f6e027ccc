//! rdma_cm: ids that become connections or listeners, and the events that tell how far they are.

use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use forebay_verbs_sys as sys;

use crate::address::{Raw, from_storage};
use crate::completion::set_nonblocking;
use crate::device::{Device, Library};
use crate::error::{Error, by_errno, refused};
use crate::readiness::Readiness;

/// How many requests to connect wait for this process at once; the kernel rejects more.
const BACKLOG: i32 = 1024;
/// What a card's waiting time for acknowledgements is a power of two of, in nanoseconds (InfiniBand, "Local ACK Timeout").
const ACK_UNIT: u128 = 4096;
/// The longest: two hours and a half.
const MAX_ACK: u8 = 31;

/// Where events come from.
pub struct EventChannel {
    pub(crate) library: Library,
    channel: *mut sys::rdma_event_channel,
}

// SAFETY: a channel may be used by several threads at once, as librdmacm promises: an id that is ended by one waits for the events
// of it that another has taken. It is ended by its last owner.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The peer's address is known.
    AddressResolved,
    /// So is the way there.
    RouteResolved,
    /// Somebody wants to connect to a listener.
    ConnectRequest,
    /// The peer said yes to a connection whose path is chosen: [`QueuePair::establish`](crate::QueuePair::establish).
    Accepted,
    /// There is a connection.
    Established,
    /// The peer said no.
    Rejected,
    /// The connection has ended.
    Disconnected,
    /// Its number may be used again: of no interest.
    TimewaitExit,
    /// It failed.
    Failed,
}

/// An event, and what it is about.
#[derive(Debug)]
pub struct Event {
    /// The key of the id ([`Id::key`]); of a request to connect, that of the listener.
    pub about: usize,
    /// What has happened.
    pub kind: EventKind,
    /// That in the library's words.
    pub name: String,
    /// An `errno`, negative, or a number of the connection manager's.
    pub status: i32,
    /// What the peer said, and perhaps zeros.
    pub private_data: Vec<u8>,
    /// Of a request to connect: what may become the connection. Dropped, it is rejected.
    pub request: Option<Id>,
}

impl EventChannel {
    /// A channel.
    ///
    /// # Errors
    /// [`Error::Refused`] when the kernel has no rdma_cm.
    pub fn new(library: Library) -> Result<Arc<Self>, Error> {
        // SAFETY: it takes nothing.
        let channel = unsafe { (library.cm.rdma_create_event_channel)() };
        if channel.is_null() {
            return Err(refused("use rdma_cm"));
        }
        let this = Self { library, channel };
        set_nonblocking(this.as_raw_fd())?;
        Ok(Arc::new(this))
    }

    /// What tells when there is an event.
    ///
    /// # Errors
    /// [`Error::Refused`] outside of a runtime.
    pub fn readiness(self: &Arc<Self>) -> Result<Readiness<Self>, Error> {
        // SAFETY: the library closes the descriptor with the channel.
        unsafe { Readiness::of(self) }
    }

    /// The next event, if there is one.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn next_event(self: &Arc<Self>) -> Result<Option<Event>, Error> {
        let cm = self.library.cm;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the channel is alive, and there is a place for the answer.
        if unsafe { (cm.rdma_get_cm_event)(self.channel, &raw mut raw) } != 0 {
            let error = std::io::Error::last_os_error();
            return match error.kind() {
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted => Ok(None),
                _ => Err(Error::Refused { what: "get an event of rdma_cm", reason: error.to_string() }),
            };
        }
        // SAFETY: the library gave an event, which is acknowledged below and not used after that.
        let event = unsafe { self.read(&*raw) };
        // SAFETY: once for each event.
        unsafe { (cm.rdma_ack_cm_event)(raw) };
        Ok(Some(event))
    }

    /// # Safety
    /// The event is the library's own and was not acknowledged.
    unsafe fn read(self: &Arc<Self>, raw: &sys::rdma_cm_event) -> Event {
        let kind = match raw.event {
            sys::RDMA_CM_EVENT_ADDR_RESOLVED => EventKind::AddressResolved,
            sys::RDMA_CM_EVENT_ROUTE_RESOLVED => EventKind::RouteResolved,
            sys::RDMA_CM_EVENT_CONNECT_REQUEST => EventKind::ConnectRequest,
            sys::RDMA_CM_EVENT_CONNECT_RESPONSE => EventKind::Accepted,
            sys::RDMA_CM_EVENT_REJECTED => EventKind::Rejected,
            sys::RDMA_CM_EVENT_ESTABLISHED => EventKind::Established,
            sys::RDMA_CM_EVENT_DISCONNECTED => EventKind::Disconnected,
            sys::RDMA_CM_EVENT_TIMEWAIT_EXIT => EventKind::TimewaitExit,
            _ => EventKind::Failed,
        };
        let said = matches!(
            kind,
            EventKind::ConnectRequest | EventKind::Rejected | EventKind::Accepted | EventKind::Established
        );
        let private_data = if said && !raw.conn.private_data.is_null() {
            let length = raw.conn.private_data_len.into();
            // SAFETY: in these events the library tells so many bytes, which live as long as the event.
            unsafe { std::slice::from_raw_parts(raw.conn.private_data.cast::<u8>(), length) }.to_vec()
        } else {
            Vec::new()
        };
        // SAFETY: the words of a kind of event are static.
        let name = unsafe { std::ffi::CStr::from_ptr((self.library.cm.rdma_event_str)(raw.event)) };
        let is_request = kind == EventKind::ConnectRequest;
        Event {
            about: if is_request { raw.listen_id.addr() } else { raw.id.addr() },
            kind,
            name: name.to_string_lossy().into_owned(),
            status: raw.status,
            private_data,
            // Such an id is new, and nobody else's.
            request: is_request.then(|| Id { channel: Arc::clone(self), id: raw.id, answers: Cell::new(true) }),
        }
    }
}

impl AsRawFd for EventChannel {
    /// Readable when there is an event.
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel is alive.
        unsafe { (*self.channel).fd }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: its ids hold it, so none is left, and every event was acknowledged.
        unsafe { (self.library.cm.rdma_destroy_event_channel)(self.channel) };
    }
}

/// What stands for a connection, a listener, or what is to become one. It has no queue pair; a [`QueuePair`](crate::QueuePair) has
/// its id. Of one thread at a time.
pub struct Id {
    pub(crate) channel: Arc<EventChannel>,
    pub(crate) id: *mut sys::rdma_cm_id,
    /// Somebody waits for an answer, and gets a no if this is dropped.
    pub(crate) answers: Cell<bool>,
}

// SAFETY: an id belongs to no thread, and its owner alone uses it.
unsafe impl Send for Id {}

impl Id {
    /// A new one.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn new(channel: &Arc<EventChannel>) -> Result<Self, Error> {
        let mut id = std::ptr::null_mut();
        // SAFETY: the channel is alive, and there is a place for the answer.
        let result = unsafe {
            (channel.library.cm.rdma_create_id)(channel.channel, &raw mut id, std::ptr::null_mut(), sys::RDMA_PS_TCP)
        };
        by_errno("make an id of rdma_cm", result)?;
        Ok(Self { channel: Arc::clone(channel), id, answers: Cell::new(false) })
    }

    /// Its key among the ids of this process.
    #[must_use]
    pub fn key(&self) -> usize {
        self.id.addr()
    }

    /// Sets the byte that carries the DSCP over RoCE, and from which InfiniBand's subnet manager chooses the service level. Before
    /// an address is resolved.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn set_traffic_class(&self, class: u8) -> Result<(), Error> {
        self.set(sys::RDMA_OPTION_ID_TOS, class, "set the traffic class")
    }

    /// Has a message that was not acknowledged be given up after about `within`, if it is sent `retries` times again. Before it
    /// connects.
    ///
    /// # Errors
    /// [`Error::Refused`] where the kernel leaves that to itself.
    pub fn set_ack_timeout(&self, within: Duration, retries: u8) -> Result<(), Error> {
        self.set(sys::RDMA_OPTION_ID_ACK_TIMEOUT, ack_exponent(within, retries), "set the timeout of acknowledgements")
    }

    fn set<T>(&self, option: i32, mut value: T, what: &'static str) -> Result<(), Error> {
        // SAFETY: the id is alive, and the value is as long as it says.
        let result = unsafe {
            let value = (&raw mut value).cast();
            (self.channel.library.cm.rdma_set_option)(self.id, sys::RDMA_OPTION_ID, option, value, size_of::<T>())
        };
        by_errno(what, result)
    }

    /// Listens at `address`, also if a connection that has ended still has its port.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub fn listen(&self, address: SocketAddr) -> Result<(), Error> {
        self.set(sys::RDMA_OPTION_ID_REUSEADDR, 1_i32, "let a port be used again")?;
        let raw = Raw::new(address);
        let cm = self.channel.library.cm;
        // SAFETY: the id and the address are alive.
        let listens =
            unsafe { (cm.rdma_bind_addr)(self.id, raw.as_mut_ptr()) == 0 && (cm.rdma_listen)(self.id, BACKLOG) == 0 };
        if listens {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        let is_taken = error.kind() == std::io::ErrorKind::AddrInUse;
        Err(Error::Address { address, is_taken, reason: error.to_string() })
    }

    /// Looks for the peer at `to`, from the address `from` if given: [`EventKind::AddressResolved`], or not.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub fn resolve_address(&self, from: Option<SocketAddr>, to: SocketAddr, within: Duration) -> Result<(), Error> {
        let (from_raw, to_raw) = (from.map(Raw::new), Raw::new(to));
        let source = from_raw.as_ref().map_or(std::ptr::null_mut(), Raw::as_mut_ptr);
        let cm = self.channel.library.cm;
        // SAFETY: the id and the addresses are alive.
        let result = unsafe { (cm.rdma_resolve_addr)(self.id, source, to_raw.as_mut_ptr(), millis(within)) };
        if result == 0 {
            return Ok(());
        }
        let reason = std::io::Error::last_os_error().to_string();
        Err(Error::Address { address: from.unwrap_or(to), is_taken: false, reason })
    }

    /// Looks for the way to the peer, whose address is known: [`EventKind::RouteResolved`], or not.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn resolve_route(&self, within: Duration) -> Result<(), Error> {
        // SAFETY: the id is alive.
        let result = unsafe { (self.channel.library.cm.rdma_resolve_route)(self.id, millis(within)) };
        by_errno("find the way to the peer", result)
    }

    /// Whether it goes over `device`. False as long as that is not known.
    #[must_use]
    pub fn is_on(&self, device: &Device) -> bool {
        // SAFETY: the id is alive.
        unsafe { (*self.id).verbs == device.context }
    }

    /// Our end.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: the id is alive.
        from_storage(unsafe { &(*self.id).addr.src_addr })
    }

    /// The peer's.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: the id is alive.
        from_storage(unsafe { &(*self.id).addr.dst_addr })
    }

    /// Tells who wants to connect why it may not: what is beyond what fits is cut off ([`Id::MAX_REASON`]).
    pub fn reject(self, why: &[u8]) {
        let why = &why[..why.len().min(Self::MAX_REASON)];
        self.answers.set(false);
        // SAFETY: the id is alive, and so are the bytes, fewer than 256. A failure is as good: the peer times out.
        unsafe { (self.channel.library.cm.rdma_reject)(self.id, why.as_ptr().cast(), why.len() as u8) };
    }

    /// Bytes of a reason that go with a rejection (InfiniBand, "REJ Private Data").
    pub const MAX_REASON: usize = 148;
}

impl Drop for Id {
    fn drop(&mut self) {
        let cm = self.channel.library.cm;
        if self.answers.get() {
            // SAFETY: the id is alive.
            unsafe { (cm.rdma_reject)(self.id, std::ptr::null(), 0) };
        }
        // SAFETY: it has no queue pair, its events were acknowledged, and it is ended once.
        unsafe { (cm.rdma_destroy_id)(self.id) };
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({:#x})", self.key())
    }
}

fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// The longest waiting time for one acknowledgement with which `retries` further attempts are over `within`, as a power of two.
fn ack_exponent(within: Duration, retries: u8) -> u8 {
    let each = within.as_nanos() / (u128::from(retries) + 1) / ACK_UNIT;
    // 0 would be to wait for ever.
    u8::try_from(each.checked_ilog2().unwrap_or(0)).unwrap_or(MAX_ACK).clamp(1, MAX_ACK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_attempts_are_over_in_time_and_not_in_half_of_it() {
        for (seconds, retries) in [(1, 7), (6, 7), (60, 7), (6, 0)] {
            let within = Duration::from_secs(seconds);
            let each = ACK_UNIT << ack_exponent(within, retries);
            let all = each * (u128::from(retries) + 1);
            assert!(all <= within.as_nanos() && 2 * all > within.as_nanos(), "{within:?}: {all}");
        }
        assert_eq!(ack_exponent(Duration::ZERO, 7), 1, "0 is for ever");
        assert_eq!(ack_exponent(Duration::MAX, 7), MAX_ACK);
    }
}
