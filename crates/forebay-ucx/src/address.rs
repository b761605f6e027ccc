//! Socket addresses, in the form that UCX takes and gives.

use std::net::SocketAddr;

use forebay_ucx_sys as sys;
use socket2::SockAddr;

/// An address in the system's form.
pub(crate) struct Raw(SockAddr);

impl Raw {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self(SockAddr::from(address))
    }

    /// Refers to `self`, which must outlive the call that this is for.
    pub(crate) fn as_ucs(&self) -> sys::ucs_sock_addr_t {
        sys::ucs_sock_addr_t { addr: self.0.as_ptr().cast(), addrlen: self.0.len() }
    }
}

/// The address in `storage`; `None` when it is of another family than IP.
pub(crate) fn from_storage(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: UCX fills in an address of the family that it names, and the storage is large enough for any.
    let ((), address) = unsafe {
        SockAddr::try_init(|place, _| {
            place.cast::<libc::sockaddr_storage>().write(*storage);
            Ok(())
        })
    }
    .ok()?;
    address.as_socket()
}
