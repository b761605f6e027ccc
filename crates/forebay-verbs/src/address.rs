//! Socket addresses, in the form that rdma_cm takes and gives.

use std::net::SocketAddr;

use socket2::SockAddr;

/// The address in `storage`; `None` when it is of another family than IP.
pub(crate) fn from_storage(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: rdma_cm fills in an address of the family that it names, and the storage is large enough for any.
    let ((), address) = unsafe {
        SockAddr::try_init(|place, _| {
            place.cast::<libc::sockaddr_storage>().write(*storage);
            Ok(())
        })
    }
    .ok()?;
    address.as_socket()
}

/// In the system's form, for a call that it outlives and that only reads it.
pub(crate) struct Raw(SockAddr);

impl Raw {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self(SockAddr::from(address))
    }

    /// The library declares its arguments mutable, and writes to none.
    pub(crate) fn as_mut_ptr(&self) -> *mut libc::sockaddr {
        self.0.as_ptr().cast::<libc::sockaddr>().cast_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_as_it_went() {
        for text in ["10.77.0.1:59999", "[fe80::1]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let raw = Raw::new(address);
            // SAFETY: zeroes are a value of each field.
            let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
            // SAFETY: both are longer than an address of either family, and the source has its whole length.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    raw.as_mut_ptr().cast::<u8>(),
                    (&raw mut storage).cast(),
                    raw.0.len() as usize,
                )
            };
            assert_eq!(from_storage(&storage), Some(address));
        }
    }
}
