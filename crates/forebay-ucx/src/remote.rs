//! One-sided access to a peer's memory: what the benchmark compares the cache's request path with.

use std::rc::Rc;

use forebay_types::ByteSize;
use forebay_ucx_sys as sys;
use smallvec::smallvec;

use forebay_memory::{Span, SpanMut};

use crate::endpoint::Endpoint;
use crate::error::{Error, Status};
use crate::operation::{Hold, Receiving, Sending, on_sent};
use crate::registration::Registration;

/// Our own prefix of a packed key: address and length, little-endian.
pub(crate) const KEY_PREFIX: usize = 16;
/// UCX reads a packed key without knowing its length: a map of at most 64 domains, and up to 256 bytes for each. A copy
/// with so many zeros after it keeps a key that was cut short from having it read beyond.
pub(crate) const KEY_ROOM: usize = 64 * 257 + 64;

/// The key of memory that a peer exposed ([`crate::Exposed::key`]). Clones are the same one.
#[derive(Clone)]
pub struct RemoteKey {
    state: Rc<KeyState>,
}

pub(crate) struct KeyState {
    handle: sys::ucp_rkey_h,
    area: Area,
    /// A key is good for one endpoint only, and must go before it.
    endpoint: Endpoint,
}

/// The memory that a key is of, as the peer has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) base: u64,
    pub(crate) length: u64,
}

impl Area {
    /// What a peer says of its memory, and what UCX is to unpack, with room behind it.
    ///
    /// # Errors
    /// [`Error::RemoteKey`].
    pub(crate) fn split(key: &[u8]) -> Result<(Self, Vec<u8>), Error> {
        let number = |range| Some(u64::from_le_bytes(key.get::<std::ops::Range<usize>>(range)?.try_into().ok()?));
        let (Some(base), Some(length)) = (number(0..8), number(8..KEY_PREFIX)) else {
            return Err(Error::RemoteKey(format!("{} bytes are too short", key.len())));
        };
        let packed = &key[KEY_PREFIX..];
        if packed.is_empty() || packed.len() > KEY_ROOM || base.checked_add(length).is_none() {
            return Err(Error::RemoteKey(format!("{} bytes are not of this protocol", key.len())));
        }
        let mut padded = packed.to_vec();
        padded.resize(packed.len() + KEY_ROOM, 0);
        Ok((Self { base, length }, padded))
    }

    /// Where the peer has `length` bytes from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub(crate) fn address(self, offset: u64, length: usize) -> Result<u64, Error> {
        let end = offset.checked_add(length as u64);
        if end.is_none_or(|end| end > self.length) {
            return Err(Error::OutOfBounds { offset, length, size: ByteSize::bytes(self.length) });
        }
        Ok(self.base + offset)
    }
}

impl RemoteKey {
    /// Unpacks a key that came from the peer of `endpoint`. UCX believes what is in it: take keys from trusted peers only.
    ///
    /// # Errors
    /// [`Error::RemoteKey`], and [`Error::Closed`] or [`Error::Ended`] by the endpoint's state.
    pub fn unpack(endpoint: &Endpoint, key: &[u8]) -> Result<Self, Error> {
        let (area, padded) = Area::split(key)?;
        let handle = endpoint.usable(None)?;
        let ucp = endpoint.worker().core().ucp();
        let mut key = std::ptr::null_mut();
        // SAFETY: a live endpoint, bytes that live for the call, and a place for the answer.
        let status = unsafe { (ucp.ucp_ep_rkey_unpack)(handle, padded.as_ptr().cast(), &mut key) };
        if status != sys::UCS_OK {
            let reason = format!("{}; both sides need the same version of UCX", Status(status));
            return Err(Error::RemoteKey(reason));
        }
        Ok(Self { state: Rc::new(KeyState { handle: key, area, endpoint: endpoint.clone() }) })
    }

    /// How much memory it is of.
    #[must_use]
    pub fn size(&self) -> ByteSize {
        ByteSize::bytes(self.state.area.length)
    }

    /// Reads the peer's bytes from `offset` on into the whole of `into`.
    #[must_use]
    pub fn get(&self, offset: u64, into: SpanMut, registration: Option<&Registration>) -> Receiving {
        let KeyState { area, endpoint, .. } = &*self.state;
        let length = into.len();
        let ready = area.address(offset, length).and_then(|address| Ok((address, endpoint.usable(registration)?)));
        let (address, handle) = match ready {
            Ok(ready) => ready,
            Err(error) => return Receiving::refused(smallvec![into], error),
        };
        let core = endpoint.worker().core();
        let sending = endpoint.start(Hold::Receive(smallvec![into]), |op, pointer| {
            op.keep_key(Rc::clone(&self.state));
            let buffers = op.buffers();
            let mut params = buffers.params(pointer, registration);
            params.cb.send = Some(on_sent);
            // SAFETY: a live endpoint, and a key of it, which the op holds; buffers and parameters belong to the op, which
            // lives until UCX has called back or answered that it will not.
            unsafe {
                (core.ucp().ucp_get_nbx)(handle, buffers.base, buffers.count, address, self.state.handle, &params)
            }
        });
        Receiving::of(sending, length)
    }

    /// Writes `from` over the peer's bytes from `offset` on. When the operation has ended, `from` may be freed; when a
    /// later [`Endpoint::flush`] has, the bytes are there.
    pub fn put(&self, offset: u64, from: Span, registration: Option<&Registration>) -> Sending {
        let KeyState { area, endpoint, .. } = &*self.state;
        let ready = area.address(offset, from.len()).and_then(|address| Ok((address, endpoint.usable(registration)?)));
        let (address, handle) = match ready {
            Ok(ready) => ready,
            Err(error) => return Sending::refused(error),
        };
        let core = endpoint.worker().core();
        endpoint.start(Hold::Send(from.into()), |op, pointer| {
            op.keep_key(Rc::clone(&self.state));
            let buffers = op.buffers();
            let mut params = buffers.params(pointer, registration);
            params.cb.send = Some(on_sent);
            let base = buffers.base.cast_const();
            // SAFETY: as in `get`.
            unsafe { (core.ucp().ucp_put_nbx)(handle, base, buffers.count, address, self.state.handle, &params) }
        })
    }
}

impl std::fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteKey({} bytes)", self.state.area.length)
    }
}

impl Drop for KeyState {
    fn drop(&mut self) {
        // SAFETY: no operation uses the key: each holds this. The worker is held by the endpoint.
        unsafe { (self.endpoint.worker().core().ucp().ucp_rkey_destroy)(self.handle) }
    }
}
