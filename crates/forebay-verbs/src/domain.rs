//! A protection domain, and what is registered in it.

use std::fmt;
use std::sync::Arc;

use forebay_types::ByteSize;
use forebay_verbs_sys as sys;

use crate::device::Device;
use crate::error::{Error, refused};

/// What belongs together on a card: queue pairs of one domain use the memory that is registered in it.
pub struct Domain {
    pub(crate) device: Arc<Device>,
    pub(crate) pd: *mut sys::ibv_pd,
}

// SAFETY: a domain may be used by several threads at once, as the library promises; it is ended by its last owner.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// A domain on `device`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn new(device: Arc<Device>) -> Result<Arc<Self>, Error> {
        // SAFETY: the context is open as long as the device lives.
        let pd = unsafe { (device.library.verbs.ibv_alloc_pd)(device.context) };
        if pd.is_null() {
            return Err(refused("make a protection domain"));
        }
        Ok(Arc::new(Self { device, pd }))
    }

    /// Its card.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: whatever is of the domain holds it, so nothing is left. A failure leaks it, and does no harm.
        unsafe { (self.device.library.verbs.ibv_dealloc_pd)(self.pd) };
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Domain({})", self.device.name())
    }
}

/// Registered memory. Its pages stay pinned until this is dropped, so a card never reaches memory that is somebody else's by then,
/// whatever became of the mapping.
pub(crate) struct Region {
    domain: Arc<Domain>,
    mr: *mut sys::ibv_mr,
}

// SAFETY: a region is read by several threads at once and changed by none; it is ended by its owner.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Registers `length` bytes at `base` for reading and writing by the card, and for windows if it has them. Peers reach nothing of it.
    ///
    /// # Errors
    /// [`Error::Register`].
    ///
    /// # Safety
    /// The memory is mapped, for reading and writing, until this returns. As long as the region lives, nothing but work requests
    /// has the card touch it, and who posts those answers for them.
    pub(crate) unsafe fn register(domain: &Arc<Domain>, base: *mut u8, length: usize) -> Result<Self, Error> {
        // What a card has not, it may refuse.
        let binds = if domain.device.has_windows() { sys::IBV_ACCESS_MW_BIND } else { 0 };
        let access = sys::IBV_ACCESS_LOCAL_WRITE | binds;
        // SAFETY: the domain is alive, and the memory is mapped, as the caller promises.
        let mr =
            unsafe { (domain.device.library.verbs.ibv_reg_mr)(domain.pd, base.cast(), length, access.cast_signed()) };
        if mr.is_null() {
            let reason = std::io::Error::last_os_error().to_string();
            let (size, device) = (ByteSize::bytes(length as u64), domain.device.name().to_owned());
            return Err(Error::Register { size, device, reason });
        }
        Ok(Self { domain: Arc::clone(domain), mr })
    }

    /// Its key in our own work requests.
    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: the region is alive, and the library does not change it.
        unsafe { (*self.mr).lkey }
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_mr {
        self.mr
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: it is ended once, and its owner has ended the windows before. A failure leaves pages pinned.
        let result = unsafe { (self.domain.device.library.verbs.ibv_dereg_mr)(self.mr) };
        if result != 0 {
            let reason = std::io::Error::from_raw_os_error(result.abs());
            tracing::error!(device = self.domain.device.name(), %reason, "memory stays registered");
        }
    }
}
