//! libibverbs: functions, those of the library and those of its header.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::states::ibv_qp_attr;
use crate::verbs::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_mr, ibv_mw, ibv_pd, ibv_port_attr, ibv_qp,
    ibv_recv_wr, ibv_send_wr, ibv_wc,
};

/// The library's soname.
pub const SONAME: &str = "libibverbs.so.1";

functions! {
    /// The library's functions.
    Ibverbs {
        /// Has memory that is registered from then on stay where it is when the process forks. An `errno`.
        ibv_fork_init: unsafe extern "C" fn() -> c_int;
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
        /// Makes a protection domain.
        ibv_alloc_pd: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd;
        /// Ends it; nothing of it may be left.
        ibv_dealloc_pd: unsafe extern "C" fn(*mut ibv_pd) -> c_int;
        /// Registers memory.
        ibv_reg_mr: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        /// Ends a registration; no window may be bound to it.
        ibv_dereg_mr: unsafe extern "C" fn(*mut ibv_mr) -> c_int;
        /// Makes what completion queues tell of their entries through.
        ibv_create_comp_channel: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel;
        /// Ends it; no queue may be left that uses it.
        ibv_destroy_comp_channel: unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int;
        /// Makes a completion queue: entries, its owner's pointer, the channel, the interrupt.
        ibv_create_cq: unsafe extern "C" fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        /// Ends it; no queue pair may be left that uses it. Waits until every event was acknowledged.
        ibv_destroy_cq: unsafe extern "C" fn(*mut ibv_cq) -> c_int;
        /// The next event: which queue it is of, and its owner's pointer.
        ibv_get_cq_event: unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        /// Acknowledges so many events.
        ibv_ack_cq_events: unsafe extern "C" fn(*mut ibv_cq, c_uint);
        /// Changes a queue pair.
        ibv_modify_qp: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        /// Ends it: the card reads and writes nothing more for it.
        ibv_destroy_qp: unsafe extern "C" fn(*mut ibv_qp) -> c_int;
        /// What a completion's status means, a static C string.
        ibv_wc_status_str: unsafe extern "C" fn(c_uint) -> *const c_char;
    }
}

/// What a function of a driver's table says that is not there.
const UNSUPPORTED: c_int = libc::EOPNOTSUPP;

/// `ibv_alloc_mw` of the header; null, perhaps without `errno`, where there are no windows.
///
/// # Safety
/// See ibv_alloc_mw(3).
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    // SAFETY: the caller's: the domain is alive, and so is its context.
    unsafe { (*(*pd).context).ops.alloc_mw.map_or(std::ptr::null_mut(), |alloc| alloc(pd, kind)) }
}

/// `ibv_dealloc_mw` of the header.
///
/// # Safety
/// See ibv_alloc_mw(3).
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller's: the window is alive, and so is its context.
    unsafe { (*(*mw).context).ops.dealloc_mw.map_or(UNSUPPORTED, |dealloc| dealloc(mw)) }
}

/// `ibv_poll_cq` of the header.
///
/// # Safety
/// See ibv_poll_cq(3): `wc` has room for `entries`.
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's: the queue is alive, and so is its context.
    unsafe { (*(*cq).context).ops.poll_cq.map_or(-UNSUPPORTED, |poll| poll(cq, entries, wc)) }
}

/// `ibv_req_notify_cq` of the header.
///
/// # Safety
/// See ibv_req_notify_cq(3).
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's: the queue is alive, and so is its context.
    unsafe { (*(*cq).context).ops.req_notify_cq.map_or(UNSUPPORTED, |notify| notify(cq, solicited_only)) }
}

/// `ibv_post_send` of the header.
///
/// # Safety
/// See ibv_post_send(3): what the requests name stays as long as the card uses it.
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller's: the queue pair is alive, and so is its context.
    unsafe { (*(*qp).context).ops.post_send.map_or(UNSUPPORTED, |post| post(qp, wr, bad)) }
}

/// `ibv_post_recv` of the header.
///
/// # Safety
/// See ibv_post_recv(3): what the requests name stays as long as the card uses it.
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the caller's: the queue pair is alive, and so is its context.
    unsafe { (*(*qp).context).ops.post_recv.map_or(UNSUPPORTED, |post| post(qp, wr, bad)) }
}

/// The library's functions, if this host has all of them. It stays loaded, as its providers have threads and handlers of their own.
#[must_use]
pub fn load() -> Option<&'static Ibverbs> {
    try_load().ok()
}

/// The same, or why not in the words of the dynamic linker.
///
/// # Errors
/// Its words.
pub fn try_load() -> Result<&'static Ibverbs, &'static str> {
    static LOADED: OnceLock<Result<Ibverbs, String>> = OnceLock::new();
    // SAFETY: libibverbs runs no code of ours when it is loaded, and none of its own that needs more than its libraries.
    LOADED.get_or_init(|| unsafe { Ibverbs::open(SONAME) }).as_ref().map_err(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

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
