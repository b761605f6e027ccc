//! What sysfs does not have of a device: its vendor as InfiniBand numbers it, and the MTUs of its ports. libibverbs has, which
//! RDMA needs anyway; where it is missing these stay unknown.
//!
//! Why not the kernel's own interface: before it tells anything it wants a context opened with data that each driver
//! defines for its own library. libibverbs is loaded at run time, as libucp is, and the layouts here are those of its stable
//! ABI (`IBVERBS_1.1`, in use since 2006): the beginnings of `ibv_device_attr` and of the `ibv_port_attr` of that time.

use std::ffi::{CStr, c_char, c_int, c_void};

use libloading::Library;
use serde::{Deserialize, Serialize};

use crate::facts::rdma::Rdma;

/// The library's soname.
const LIBRARY: &str = "libibverbs.so.1";

/// What libibverbs says of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerbsDevice {
    /// Its name.
    pub name: String,
    /// Who made it, by the number that makers of network cards have: `0x02c9`.
    pub vendor_id: u32,
    /// The maker's number of the part.
    pub part_id: u32,
    /// The hardware's version.
    pub hardware: u32,
    /// Number of a port, the largest packet that it takes, and the one in use, in bytes.
    pub ports: Vec<(u32, Option<u32>, Option<u32>)>,
}

/// The beginning of `struct ibv_device_attr`, and more than the rest of it.
#[repr(C)]
struct DeviceAttributes {
    firmware: [u8; 64],
    node_guid: u64,
    system_guid: u64,
    largest_region: u64,
    page_sizes: u64,
    vendor_id: u32,
    part_id: u32,
    hardware: u32,
    rest: [u8; 1024],
}

/// The beginning of `struct ibv_port_attr`, and more than the rest of it.
#[repr(C)]
struct PortAttributes {
    state: u32,
    max_mtu: u32,
    active_mtu: u32,
    rest: [u8; 512],
}

type GetDeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut c_void;
type FreeDeviceList = unsafe extern "C" fn(*mut *mut c_void);
type GetDeviceName = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type OpenDevice = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type CloseDevice = unsafe extern "C" fn(*mut c_void) -> c_int;
type QueryDevice = unsafe extern "C" fn(*mut c_void, *mut DeviceAttributes) -> c_int;
type QueryPort = unsafe extern "C" fn(*mut c_void, u8, *mut PortAttributes) -> c_int;

struct Verbs {
    get_device_list: GetDeviceList,
    free_device_list: FreeDeviceList,
    get_device_name: GetDeviceName,
    open_device: OpenDevice,
    close_device: CloseDevice,
    query_device: QueryDevice,
    query_port: QueryPort,
}

impl VerbsDevice {
    /// Asks libibverbs for the devices of this machine that are in `rdma`. Without any the library is not even loaded.
    #[must_use]
    pub fn of_this_machine(rdma: &Rdma) -> Vec<Self> {
        if rdma.devices.is_empty() {
            return Vec::new();
        }
        Verbs::load().map_or_else(Vec::new, |verbs| verbs.devices(rdma))
    }
}

impl Rdma {
    /// The same with what libibverbs says.
    #[must_use]
    pub fn with_verbs(mut self, verbs: &[VerbsDevice]) -> Self {
        for device in &mut self.devices {
            let Some(said) = verbs.iter().find(|said| said.name == device.name) else { continue };
            device.vendor_id = Some(format!("0x{:04x}", said.vendor_id));
            device.part_id = Some(said.part_id);
            device.hardware = Some(format!("{:x}", said.hardware));
            for port in &mut device.ports {
                if let Some((_, max, active)) = said.ports.iter().find(|(number, ..)| *number == port.number) {
                    (port.max_mtu, port.active_mtu) = (*max, *active);
                }
            }
        }
        self
    }
}

impl Verbs {
    /// The library's functions; it stays loaded, as its providers have threads and handlers of their own.
    fn load() -> Option<Self> {
        // SAFETY: libibverbs runs no code of ours when it is loaded, and none of its own that needs more than its libraries.
        let library: &'static Library = Box::leak(Box::new(unsafe { Library::new(LIBRARY) }.ok()?));
        // SAFETY: the types are those of `infiniband/verbs.h`, for the symbols' default version.
        unsafe {
            Some(Self {
                get_device_list: *library.get::<GetDeviceList>(b"ibv_get_device_list\0").ok()?,
                free_device_list: *library.get::<FreeDeviceList>(b"ibv_free_device_list\0").ok()?,
                get_device_name: *library.get::<GetDeviceName>(b"ibv_get_device_name\0").ok()?,
                open_device: *library.get::<OpenDevice>(b"ibv_open_device\0").ok()?,
                close_device: *library.get::<CloseDevice>(b"ibv_close_device\0").ok()?,
                query_device: *library.get::<QueryDevice>(b"ibv_query_device\0").ok()?,
                query_port: *library.get::<QueryPort>(b"ibv_query_port\0").ok()?,
            })
        }
    }

    fn devices(&self, rdma: &Rdma) -> Vec<VerbsDevice> {
        let mut count = 0;
        // SAFETY: the count is ours to be written to.
        let list = unsafe { (self.get_device_list)(&raw mut count) };
        if list.is_null() {
            return Vec::new();
        }
        let mut found = Vec::new();
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has so many entries, and is freed below.
            let device = unsafe { *list.add(index) };
            if !device.is_null() {
                found.extend(self.device(device, rdma));
            }
        }
        // SAFETY: the library's own list, freed once; no device of it is used after this.
        unsafe { (self.free_device_list)(list) };
        found
    }

    /// What `device`, an entry of the library's list, says.
    fn device(&self, device: *mut c_void, rdma: &Rdma) -> Option<VerbsDevice> {
        // SAFETY: the name belongs to the device, which lives as long as the list; it is copied.
        let name = unsafe { CStr::from_ptr((self.get_device_name)(device)) }.to_string_lossy().into_owned();
        let known = rdma.devices.iter().find(|known| known.name == name)?;
        // SAFETY: an entry of the list.
        let context = unsafe { (self.open_device)(device) };
        if context.is_null() {
            return None;
        }
        let numbers = known.ports.iter().map(|port| port.number);
        let ports = numbers.filter_map(|number| self.port(context, number)).collect();
        // SAFETY: zeroes are a value of each field.
        let mut attributes: DeviceAttributes = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and there is room for all of the structure.
        let result = unsafe { (self.query_device)(context, &raw mut attributes) };
        // SAFETY: the context is open, and not used after this.
        unsafe { (self.close_device)(context) };
        let DeviceAttributes { vendor_id, part_id, hardware, .. } = attributes;
        (result == 0).then_some(VerbsDevice { name, vendor_id, part_id, hardware, ports })
    }

    fn port(&self, context: *mut c_void, number: u32) -> Option<(u32, Option<u32>, Option<u32>)> {
        // SAFETY: zeroes are a value of each field.
        let mut attributes: PortAttributes = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and there is room for all of the structure.
        let result = unsafe { (self.query_port)(context, u8::try_from(number).ok()?, &raw mut attributes) };
        (result == 0).then(|| (number, bytes(attributes.max_mtu), bytes(attributes.active_mtu)))
    }
}

/// `enum ibv_mtu`: 1 is 256 bytes, 5 is 4096.
fn bytes(mtu: u32) -> Option<u32> {
    (1..=5).contains(&mtu).then(|| 128 << mtu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Root;

    #[test]
    fn mtus_are_those_of_infiniband() {
        assert_eq!([0, 1, 3, 5, 6].map(bytes), [None, Some(256), Some(1024), Some(4096), None]);
    }

    #[test]
    fn asking_does_no_harm_whatever_this_machine_has() {
        let rdma = Rdma::read(&Root::default());
        assert!(VerbsDevice::of_this_machine(&rdma).len() <= rdma.devices.len());
        if let Some(verbs) = Verbs::load() {
            assert!(verbs.devices(&rdma).len() <= rdma.devices.len());
        }
    }
}
