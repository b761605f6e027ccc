//! Raw bindings to the part of libibverbs that Forebay uses, loaded at run time.
//!
//! One binary must run on hosts with and without RDMA, so nothing is linked: [`load`] resolves every function of [`Ibverbs`] in
//! the library that the host has, or none. The layouts are those of the stable ABI (`IBVERBS_1.1`, in use since 2006): structures only
//! grew at the end, so each has its beginning here, and room for more than the rest. Names are those of `infiniband/verbs.h`.
//!
//! No safety here: a function's contract is its manual page, ibv_get_device_list(3), ibv_open_device(3), ibv_query_device(3),
//! ibv_query_port(3).

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]
#![allow(non_camel_case_types, reason = "names are those of the C header")]

use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

use libloading::Library;

/// The library's soname.
pub const SONAME: &str = "libibverbs.so.1";

/// A device: opaque.
#[repr(C)]
pub struct ibv_device {
    _opaque: [u8; 0],
}

/// An open device: opaque.
#[repr(C)]
pub struct ibv_context {
    _opaque: [u8; 0],
}

/// The beginning of `struct ibv_device_attr`.
#[repr(C)]
pub struct ibv_device_attr {
    /// The firmware's version, a C string.
    pub fw_ver: [u8; 64],
    /// The GUID of the node, in network byte order.
    pub node_guid: u64,
    /// The GUID of the system image, in network byte order.
    pub sys_image_guid: u64,
    /// Bytes of the largest memory region.
    pub max_mr_size: u64,
    /// Page sizes, a bit for each.
    pub page_size_cap: u64,
    /// The vendor, as the IEEE numbers it.
    pub vendor_id: u32,
    /// The vendor's number of the part.
    pub vendor_part_id: u32,
    /// The hardware's version.
    pub hw_ver: u32,
    rest: [u8; 1024],
}

/// The beginning of `struct ibv_port_attr`.
#[repr(C)]
pub struct ibv_port_attr {
    /// `enum ibv_port_state`.
    pub state: u32,
    /// `enum ibv_mtu`: the largest MTU.
    pub max_mtu: u32,
    /// `enum ibv_mtu`: the MTU in use.
    pub active_mtu: u32,
    rest: [u8; 512],
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {
        /// The library's functions.
        pub struct Ibverbs {
            $($(#[$doc])* pub $name: $type,)*
        }

        impl Ibverbs {
            /// # Safety
            /// `library` is libibverbs.
            unsafe fn resolve(library: &Library) -> Option<Self> {
                // SAFETY: the types are those of `infiniband/verbs.h`, for the symbols' default version.
                unsafe { Some(Self { $($name: *library.get::<$type>(concat!(stringify!($name), "\0").as_bytes()).ok()?,)* }) }
            }
        }
    };
}

functions! {
    /// The devices of this machine, and how many there are.
    ibv_get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device;
    /// Frees that list.
    ibv_free_device_list: unsafe extern "C" fn(*mut *mut ibv_device);
    /// A device's name, which lives as long as the list.
    ibv_get_device_name: unsafe extern "C" fn(*mut ibv_device) -> *const c_char;
    /// Opens a device.
    ibv_open_device: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context;
    /// Closes it.
    ibv_close_device: unsafe extern "C" fn(*mut ibv_context) -> c_int;
    /// What a device is.
    ibv_query_device: unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    /// What a port of it is.
    ibv_query_port: unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
}

/// The library's functions, if this host has all of them. It stays loaded, as its providers have threads and handlers of their own.
#[must_use]
pub fn load() -> Option<&'static Ibverbs> {
    static LOADED: OnceLock<Option<Ibverbs>> = OnceLock::new();
    let resolve = || {
        // SAFETY: libibverbs runs no code of ours when it is loaded, and none of its own that needs more than its libraries.
        let library: &'static Library = Box::leak(Box::new(unsafe { Library::new(SONAME) }.ok()?));
        // SAFETY: it is libibverbs.
        unsafe { Ibverbs::resolve(library) }
    };
    LOADED.get_or_init(resolve).as_ref()
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_lie_where_the_abi_has_them() {
        assert_eq!(offset_of!(ibv_device_attr, vendor_id), 96);
        assert_eq!(offset_of!(ibv_device_attr, hw_ver), 104);
        assert_eq!(offset_of!(ibv_port_attr, active_mtu), 8);
    }

    #[test]
    fn the_devices_of_this_machine_can_be_listed_if_there_is_a_library() {
        let Some(verbs) = load() else {
            println!("skipped: {SONAME} is not installed");
            return;
        };
        let mut count = -1;
        // SAFETY: the count is ours to be written to.
        let list = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
        // Without a kernel that knows of RDMA there is none.
        if !list.is_null() {
            assert!(count >= 0, "{count} devices");
            // SAFETY: freed once, and not used after that.
            unsafe { (verbs.ibv_free_device_list)(list) };
        }
    }
}
