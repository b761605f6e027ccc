//! librdmacm: connections, by IP addresses.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::states::ibv_qp_attr;
use crate::verbs::{ibv_context, ibv_pd, ibv_qp, ibv_qp_init_attr};

/// The library's soname.
pub const CM_SONAME: &str = "librdmacm.so.1";

/// The port space of reliable connections (`rdma_port_space`).
pub const RDMA_PS_TCP: c_uint = 0x0106;
/// The peer's address is known (`rdma_cm_event_type`).
pub const RDMA_CM_EVENT_ADDR_RESOLVED: c_uint = 0;
/// The way to the peer is known.
pub const RDMA_CM_EVENT_ROUTE_RESOLVED: c_uint = 2;
/// Somebody wants to connect.
pub const RDMA_CM_EVENT_CONNECT_REQUEST: c_uint = 4;
/// The peer said yes, and the queue pair is ours to be changed.
pub const RDMA_CM_EVENT_CONNECT_RESPONSE: c_uint = 5;
/// The peer said no.
pub const RDMA_CM_EVENT_REJECTED: c_uint = 8;
/// There is a connection.
pub const RDMA_CM_EVENT_ESTABLISHED: c_uint = 9;
/// It has ended.
pub const RDMA_CM_EVENT_DISCONNECTED: c_uint = 10;
/// The connection's number may be used again.
pub const RDMA_CM_EVENT_TIMEWAIT_EXIT: c_uint = 15;
/// Options of an id.
pub const RDMA_OPTION_ID: c_int = 0;
/// The type of service, one byte.
pub const RDMA_OPTION_ID_TOS: c_int = 0;
/// The port may be in use by a connection that has ended, an `int`.
pub const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
/// How long the card waits for an acknowledgement, one byte: 4.096 µs times two to that power.
pub const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;

/// Where events come from.
#[repr(C)]
pub struct rdma_event_channel {
    /// Readable when there is one.
    pub fd: c_int,
}

/// The beginning of `struct rdma_route`.
#[repr(C)]
pub struct rdma_addr {
    /// Our end.
    pub src_addr: libc::sockaddr_storage,
    /// The peer's.
    pub dst_addr: libc::sockaddr_storage,
    _addr: [u64; 5],
}

/// The beginning of what stands for a connection, a listener, or what becomes one.
#[repr(C)]
pub struct rdma_cm_id {
    /// The device, once it is known.
    pub verbs: *mut ibv_context,
    /// Where its events come from.
    pub channel: *mut rdma_event_channel,
    /// Its owner's.
    pub context: *mut c_void,
    /// Its queue pair, or null.
    pub qp: *mut ibv_qp,
    /// Its addresses.
    pub addr: rdma_addr,
    _path_rec: *mut c_void,
    // With what the compiler leaves free behind it.
    _num_paths: [c_int; 2],
    /// `enum rdma_port_space`.
    pub ps: c_uint,
    /// The device's port, once it is known.
    pub port_num: u8,
}

/// How a connection is to be.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_conn_param {
    /// What the peer is told.
    pub private_data: *const c_void,
    /// How many bytes that is. In an event it may be more than was sent, and the rest is zeros.
    pub private_data_len: u8,
    /// How many reads of the peer's may be under way.
    pub responder_resources: u8,
    /// How many of ours.
    pub initiator_depth: u8,
    /// Whether there is flow control.
    pub flow_control: u8,
    /// How often a message that was not acknowledged is sent again, 7 at most.
    pub retry_count: u8,
    /// How often one is for which there was no receive; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Ignored where the id has a queue pair.
    pub srq: u8,
    /// Ignored where the id has a queue pair.
    pub qp_num: u32,
}

/// An event.
#[repr(C)]
pub struct rdma_cm_event {
    /// What it is about.
    pub id: *mut rdma_cm_id,
    /// Of a request to connect: the listener.
    pub listen_id: *mut rdma_cm_id,
    /// `enum rdma_cm_event_type`.
    pub event: c_uint,
    /// An `errno`, negative, or a reason of the connection manager's.
    pub status: c_int,
    /// The beginning of a union.
    pub conn: rdma_conn_param,
}

functions! {
    /// The library's functions.
    Rdmacm {
        /// The devices, open; a list that ends with null.
        rdma_get_devices: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_context;
        /// Frees that list; the devices stay open as long as something uses them.
        rdma_free_devices: unsafe extern "C" fn(*mut *mut ibv_context);
        /// Makes what events come from.
        rdma_create_event_channel: unsafe extern "C" fn() -> *mut rdma_event_channel;
        /// Ends it; no id may be left that uses it.
        rdma_destroy_event_channel: unsafe extern "C" fn(*mut rdma_event_channel);
        /// The next event.
        rdma_get_cm_event: unsafe extern "C" fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        /// Frees it.
        rdma_ack_cm_event: unsafe extern "C" fn(*mut rdma_cm_event) -> c_int;
        /// What kind of event it is, a static C string.
        rdma_event_str: unsafe extern "C" fn(c_uint) -> *const c_char;
        /// Makes an id.
        rdma_create_id: unsafe extern "C" fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_uint) -> c_int;
        /// Ends it, which has no queue pair any more. Waits until its events were acknowledged.
        rdma_destroy_id: unsafe extern "C" fn(*mut rdma_cm_id) -> c_int;
        /// Sets an option.
        rdma_set_option: unsafe extern "C" fn(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
        /// Gives it an address.
        rdma_bind_addr: unsafe extern "C" fn(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
        /// Looks for the peer: from, to, milliseconds.
        rdma_resolve_addr: unsafe extern "C" fn(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        /// Looks for the way to it: milliseconds.
        rdma_resolve_route: unsafe extern "C" fn(*mut rdma_cm_id, c_int) -> c_int;
        /// Makes its queue pair, ready to receive.
        rdma_create_qp: unsafe extern "C" fn(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        /// Connects.
        rdma_connect: unsafe extern "C" fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        /// Listens.
        rdma_listen: unsafe extern "C" fn(*mut rdma_cm_id, c_int) -> c_int;
        /// Says yes.
        rdma_accept: unsafe extern "C" fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        /// Says no, and why.
        rdma_reject: unsafe extern "C" fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        /// Ends the connection.
        rdma_disconnect: unsafe extern "C" fn(*mut rdma_cm_id) -> c_int;
        /// The port of our end, in network byte order.
        rdma_get_src_port: unsafe extern "C" fn(*mut rdma_cm_id) -> u16;
    }
}

functions! {
    /// Functions by which a process changes the states of its queue pairs itself, from rdma-core 23 on.
    RdmacmPaths {
        /// What the connection manager would change of the queue pair to bring it into the state that the attributes name, and
        /// which of them are set.
        rdma_init_qp_attr: unsafe extern "C" fn(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
        /// Tells the peer that the queue pair is ready, of an id that has none.
        rdma_establish: unsafe extern "C" fn(*mut rdma_cm_id) -> c_int;
    }
}

/// Those of newer libraries, as [`load_cm`].
///
/// # Errors
/// The dynamic linker's words.
pub fn load_cm_paths() -> Result<&'static RdmacmPaths, &'static str> {
    static LOADED: OnceLock<Result<RdmacmPaths, String>> = OnceLock::new();
    // SAFETY: as below.
    LOADED.get_or_init(|| unsafe { RdmacmPaths::open(CM_SONAME) }).as_ref().map_err(String::as_str)
}

/// The library's functions, if this host has all of them, or why not in the words of the dynamic linker. It stays loaded.
///
/// # Errors
/// Its words.
pub fn load_cm() -> Result<&'static Rdmacm, &'static str> {
    static LOADED: OnceLock<Result<Rdmacm, String>> = OnceLock::new();
    // SAFETY: librdmacm runs no code of ours when it is loaded, and none of its own that needs more than its libraries.
    LOADED.get_or_init(|| unsafe { Rdmacm::open(CM_SONAME) }).as_ref().map_err(String::as_str)
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn fields_lie_where_the_abi_has_them() {
        assert_eq!((offset_of!(rdma_cm_id, qp), offset_of!(rdma_cm_id, addr)), (24, 32));
        assert_eq!((offset_of!(rdma_cm_id, ps), offset_of!(rdma_cm_id, port_num)), (344, 348));
        assert_eq!((size_of::<rdma_conn_param>(), offset_of!(rdma_cm_event, conn)), (24, 24));
    }

    #[test]
    fn a_library_that_is_not_there_is_said_so_once_and_for_all() {
        match load_cm() {
            Ok(library) => assert!(std::ptr::eq(library, load_cm().ok().unwrap())),
            Err(reason) => assert!(!reason.is_empty()),
        }
    }
}
