//! What sysfs does not have of a device: its vendor as InfiniBand numbers it, and the MTUs of its ports. libibverbs has, which
//! RDMA needs anyway; where it is missing these stay unknown.
//!
//! Why not the kernel's own interface: before it tells anything it wants a context opened with data that each driver
//! defines for its own library.

use std::ffi::CStr;

use forebay_verbs_sys::{
    IBV_DEVICE_MEM_WINDOW_TYPE_2A, IBV_DEVICE_MEM_WINDOW_TYPE_2B, Ibverbs, ibv_context, ibv_device, ibv_device_attr,
    ibv_port_attr,
};
use serde::{Deserialize, Serialize};

use crate::facts::rdma::Rdma;

/// What to type where one of the libraries is missing.
pub(crate) const INSTALL_VERBS: &str =
    "apt-get install ibverbs-providers librdmacm1, or dnf install libibverbs librdmacm";

/// What libibverbs says of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerbsDevice {
    /// Its name.
    pub name: String,
    /// Its maker, by the number that makers of network cards have: `0x02c9`.
    pub vendor_id: u32,
    /// The maker's number of the part.
    pub part_id: u32,
    /// The hardware's version.
    pub hardware: u32,
    /// Number of a port, the largest packet that it takes, and the one in use, in bytes.
    pub ports: Vec<(u32, Option<u32>, Option<u32>)>,
    /// Whether it binds memory windows of type 2; not known of a machine that an earlier release recorded.
    #[serde(default)]
    pub has_windows: Option<bool>,
}

/// The library of this machine.
#[derive(Clone, Copy)]
struct Verbs(&'static Ibverbs);

impl VerbsDevice {
    /// Asks libibverbs for the devices of this machine that are in `rdma`. Without any the library is not even loaded.
    #[must_use]
    pub fn of_this_machine(rdma: &Rdma) -> Vec<Self> {
        if rdma.devices.is_empty() {
            return Vec::new();
        }
        forebay_verbs_sys::load().map_or_else(Vec::new, |verbs| Verbs(verbs).devices(rdma))
    }

    /// Which of the two libraries that verbs need cannot be loaded, and why. Without RDMA devices neither is tried.
    #[must_use]
    pub fn missing_library(rdma: &Rdma) -> Option<String> {
        if rdma.devices.is_empty() { None } else { missing() }
    }
}

/// Which of the two libraries cannot be loaded, and why.
pub(super) fn missing() -> Option<String> {
    let missing = |library, reason: &str| format!("{library}: {reason}");
    let verbs = forebay_verbs_sys::try_load().err().map(|reason| missing(forebay_verbs_sys::SONAME, reason));
    let cm = || forebay_verbs_sys::load_cm().err().map(|reason| missing(forebay_verbs_sys::CM_SONAME, reason));
    verbs.or_else(cm)
}

impl Rdma {
    /// The same with what libibverbs says.
    #[must_use]
    pub fn with_verbs(mut self, verbs: &[VerbsDevice]) -> Self {
        for device in &mut self.devices {
            let Some(said) = verbs.iter().find(|said| said.name == device.name) else { continue };
            device.vendor_id = Some(format!("0x{:04x}", said.vendor_id));
            device.part_id = Some(said.part_id);
            device.has_windows = said.has_windows;
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
    fn devices(self, rdma: &Rdma) -> Vec<VerbsDevice> {
        let mut count = 0;
        // SAFETY: the count is ours to be written to.
        let list = unsafe { (self.0.ibv_get_device_list)(&raw mut count) };
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
        unsafe { (self.0.ibv_free_device_list)(list) };
        found
    }

    /// What `device`, an entry of the library's list, says.
    fn device(self, device: *mut ibv_device, rdma: &Rdma) -> Option<VerbsDevice> {
        // SAFETY: the name belongs to the device, which lives as long as the list; it is copied.
        let name = unsafe { CStr::from_ptr((self.0.ibv_get_device_name)(device)) }.to_string_lossy().into_owned();
        let known = rdma.devices.iter().find(|known| known.name == name)?;
        // SAFETY: an entry of the list.
        let context = unsafe { (self.0.ibv_open_device)(device) };
        if context.is_null() {
            return None;
        }
        let numbers = known.ports.iter().map(|port| port.number);
        let ports = numbers.filter_map(|number| self.port(context, number)).collect();
        // SAFETY: zeroes are a value of each field.
        let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and there is room for all of the structure.
        let result = unsafe { (self.0.ibv_query_device)(context, &raw mut attributes) };
        // SAFETY: the context is open, and not used after this.
        unsafe { (self.0.ibv_close_device)(context) };
        let ibv_device_attr { vendor_id, vendor_part_id: part_id, hw_ver: hardware, device_cap_flags, .. } = attributes;
        let has_windows = Some(device_cap_flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0);
        (result == 0).then_some(VerbsDevice { name, vendor_id, part_id, hardware, ports, has_windows })
    }

    fn port(self, context: *mut ibv_context, number: u32) -> Option<(u32, Option<u32>, Option<u32>)> {
        // SAFETY: zeroes are a value of each field.
        let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and there is room for all of the structure.
        let result = unsafe { (self.0.ibv_query_port)(context, u8::try_from(number).ok()?, &raw mut attributes) };
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
        if let Some(verbs) = forebay_verbs_sys::load() {
            assert!(Verbs(verbs).devices(&rdma).len() <= rdma.devices.len());
        }
    }
}
