//! The libraries, and the cards that they know.

use std::ffi::{CStr, c_uint};
use std::fmt;
use std::sync::Arc;

use forebay_verbs_sys as sys;

use crate::error::{Error, by_result, refused};
use crate::forking;

/// libibverbs and librdmacm.
#[derive(Clone, Copy)]
pub struct Library {
    pub(crate) verbs: &'static sys::Ibverbs,
    pub(crate) cm: &'static sys::Rdmacm,
}

impl Library {
    /// Loads both. They stay loaded.
    ///
    /// # Errors
    /// [`Error::Library`].
    pub fn load() -> Result<Self, Error> {
        let missing = |library, reason: &str| Error::Library { library, reason: reason.to_owned() };
        let verbs = sys::try_load().map_err(|reason| missing(sys::SONAME, reason))?;
        let cm = sys::load_cm().map_err(|reason| missing(sys::CM_SONAME, reason))?;
        forking::prepare(verbs);
        Ok(Self { verbs, cm })
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Library")
    }
}

/// An open card, as rdma_cm opens it: connections that go over it share the context.
pub struct Device {
    pub(crate) library: Library,
    pub(crate) context: *mut sys::ibv_context,
    /// Keeps it open.
    list: *mut *mut sys::ibv_context,
    name: String,
    /// Pieces of memory of one request.
    pub(crate) max_sge: u32,
    /// Requests of one queue.
    pub(crate) max_requests: u32,
    /// Entries of one completion queue.
    pub(crate) max_entries: usize,
    /// Reads of a peer that may be under way on one queue pair, and ours.
    pub(crate) max_reads: u8,
    has_windows: bool,
    is_iwarp: bool,
    /// The flag of a completion whose message has ended the use of a key.
    pub(crate) with_inv: c_uint,
}

// SAFETY: a context may be used by several threads at once, as the library promises; the list is freed by the last owner.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The devices that are open.
struct Opened {
    library: Library,
    list: *mut *mut sys::ibv_context,
}

impl Opened {
    fn new(library: Library) -> Result<Self, Error> {
        // SAFETY: the count may be null.
        let list = unsafe { (library.cm.rdma_get_devices)(std::ptr::null_mut()) };
        if list.is_null() { Err(refused("list the RDMA devices")) } else { Ok(Self { library, list }) }
    }

    /// Each context with the name of its device.
    fn named(&self) -> Vec<(*mut sys::ibv_context, String)> {
        // SAFETY: the list ends with null, and its contexts are open as long as it is not freed.
        let contexts = (0..).map(|index| unsafe { *self.list.add(index) }).take_while(|context| !context.is_null());
        contexts
            .map(|context| {
                // SAFETY: an open context has a device, whose name is a C string that lives as long.
                let name = unsafe { CStr::from_ptr((self.library.verbs.ibv_get_device_name)((*context).device)) };
                (context, name.to_string_lossy().into_owned())
            })
            .collect()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.list.is_null() {
            // SAFETY: it came from the library, and is freed once.
            unsafe { (self.library.cm.rdma_free_devices)(self.list) };
        }
    }
}

impl Device {
    /// The names of this machine's devices.
    ///
    /// # Errors
    /// [`Error::Refused`] when the kernel has no RDMA.
    pub fn names(library: Library) -> Result<Vec<String>, Error> {
        Ok(Opened::new(library)?.named().into_iter().map(|(_, name)| name).collect())
    }

    /// Opens the device called `name`, as `rdma link` calls it.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::Refused`].
    pub fn open(library: Library, name: &str) -> Result<Arc<Self>, Error> {
        let mut opened = Opened::new(library)?;
        let named = opened.named();
        let Some((context, _)) = named.iter().find(|(_, known)| known == name) else {
            let found: Vec<_> = named.iter().map(|(_, name)| name.as_str()).collect();
            let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
            return Err(Error::NoDevice { name: name.to_owned(), found });
        };
        // SAFETY: numbers and arrays of them, for which zero is a value.
        let mut attributes: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and there is room for all that the library writes.
        let result = unsafe { (library.verbs.ibv_query_device)(*context, &raw mut attributes) };
        by_result("ask an RDMA device what it can do", result)?;
        let at_least_one = |number: i32| u32::try_from(number).unwrap_or(1).max(1);
        let windows = sys::IBV_DEVICE_MEM_WINDOW_TYPE_2A | sys::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        Ok(Arc::new(Self {
            library,
            context: *context,
            list: std::mem::replace(&mut opened.list, std::ptr::null_mut()),
            name: name.to_owned(),
            max_sge: at_least_one(attributes.max_sge),
            max_requests: at_least_one(attributes.max_qp_wr),
            max_entries: at_least_one(attributes.max_cqe) as usize,
            max_reads: u8::try_from(attributes.max_qp_rd_atom.max(0)).unwrap_or(u8::MAX),
            has_windows: attributes.device_cap_flags & windows != 0,
            is_iwarp: is_iwarp(name),
            with_inv: match attributes.vendor_id {
                sys::RXE_VENDOR_ID => sys::IBV_WC_WITH_INV | sys::IB_WC_WITH_INVALIDATE,
                _ => sys::IBV_WC_WITH_INV,
            },
        }))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it binds memory windows of type 2: whether peers can be let write to single buffers
    /// ([`QueuePair::expose`](crate::QueuePair::expose)), and read what they are shown ([`QueuePair::show`](crate::QueuePair::show)).
    #[must_use]
    pub fn has_windows(&self) -> bool {
        self.has_windows
    }

    /// Whether it is one of iWARP, whose connections are those of TCP. Who connects has to send first there (RFC 5044, section 7.1.2).
    #[must_use]
    pub fn is_iwarp(&self) -> bool {
        self.is_iwarp
    }

    /// Whether the path of a connection can be chosen here ([`PathOptions`](crate::PathOptions)).
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Library`].
    pub fn check_path(&self) -> Result<(), Error> {
        if self.is_iwarp {
            let reason = format!("{} is a card of iWARP, whose connections are those of TCP", self.name);
            return Err(Error::Refused { what: "choose service level or MTU of a connection", reason });
        }
        let missing = |reason: &str| Error::Library { library: sys::CM_SONAME, reason: reason.to_owned() };
        sys::load_cm_paths().map(|_| ()).map_err(missing)
    }

    /// Whether its port of this number is one of InfiniBand.
    pub(crate) fn is_infiniband(&self, port: u8) -> bool {
        let layer = std::fs::read_to_string(format!("/sys/class/infiniband/{}/ports/{port}/link_layer", self.name));
        layer.is_ok_and(|layer| layer.trim() == "InfiniBand")
    }

    /// Whether it reads the peer's memory ([`QueuePair::read`](crate::QueuePair::read)) into buffers that the peer may not
    /// write to: over iWARP an answer to a read is a write of the peer's.
    #[must_use]
    pub fn reads_safely(&self) -> bool {
        !self.is_iwarp
    }
}

/// Whether a device is of the kind that the kernel numbers 4.
fn is_iwarp(name: &str) -> bool {
    let kind = std::fs::read_to_string(format!("/sys/class/infiniband/{name}/node_type"));
    kind.is_ok_and(|kind| kind.starts_with("4:"))
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: it came from the library, and is freed once; whatever is of this context holds the device.
        unsafe { (self.library.cm.rdma_free_devices)(self.list) };
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_named_with_those_that_are() {
        let Ok(library) = Library::load() else { return println!("skipped: no libibverbs and librdmacm") };
        match Device::open(library, "nowhere0") {
            Err(Error::NoDevice { name, .. }) => assert_eq!(name, "nowhere0"),
            // A kernel without RDMA.
            Err(Error::Refused { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}
