//! libibverbs: structures and numbers.

use std::ffi::{c_int, c_uint, c_void};

/// The card or its driver can bind windows of type 2 that belong to a queue pair's protection domain (`ibv_device_cap_flags`).
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2A: c_uint = 1 << 23;
/// The same, and the window belongs to the queue pair that bound it.
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2B: c_uint = 1 << 24;
/// The card may write to the memory (`ibv_access_flags`).
pub const IBV_ACCESS_LOCAL_WRITE: c_uint = 1;
/// So may peers that have its key.
pub const IBV_ACCESS_REMOTE_WRITE: c_uint = 1 << 1;
/// Peers that have its key may read it.
pub const IBV_ACCESS_REMOTE_READ: c_uint = 1 << 2;
/// Windows may be bound to it.
pub const IBV_ACCESS_MW_BIND: c_uint = 1 << 4;
/// A window that is bound by a work request (`ibv_mw_type`).
pub const IBV_MW_TYPE_2: c_uint = 2;
/// A reliable connection (`ibv_qp_type`).
pub const IBV_QPT_RC: c_uint = 2;
/// Write to the peer's memory (`ibv_wr_opcode`).
pub const IBV_WR_RDMA_WRITE: c_uint = 0;
/// Send a message.
pub const IBV_WR_SEND: c_uint = 2;
/// Read the peer's memory.
pub const IBV_WR_RDMA_READ: c_uint = 4;
/// Bind a window of type 2.
pub const IBV_WR_BIND_MW: c_uint = 8;
/// Send a message that ends the use of a key of the receiver's.
pub const IBV_WR_SEND_WITH_INV: c_uint = 9;
/// Begin when all reads before it have ended (`ibv_send_flags`).
pub const IBV_SEND_FENCE: c_uint = 1;
/// There is to be a completion also if the request succeeds (`ibv_send_flags`).
pub const IBV_SEND_SIGNALED: c_uint = 1 << 1;
/// The bytes are copied when the request is posted.
pub const IBV_SEND_INLINE: c_uint = 1 << 3;
/// The request was carried out (`ibv_wc_status`).
pub const IBV_WC_SUCCESS: c_uint = 0;
/// It was not, as the queue pair works no more.
pub const IBV_WC_WR_FLUSH_ERR: c_uint = 5;
/// `ibv_wc.invalidated_rkey` is set (`ibv_wc_flags`).
pub const IBV_WC_WITH_INV: c_uint = 1 << 3;
/// The same, as the kernel calls it and as Soft-RoCE passes it on (`enum ib_wc_flags`, `rxe_resp.c`). Elsewhere this bit says
/// that a checksum is right.
pub const IB_WC_WITH_INVALIDATE: c_uint = 1 << 2;
/// `ibv_device_attr.vendor_id` of Soft-RoCE (`rxe_param.h`).
pub const RXE_VENDOR_ID: u32 = 0xff_ffff;

/// A device: opaque.
#[repr(C)]
pub struct ibv_device {
    _opaque: [u8; 0],
}

/// The table of a context's driver, for the functions that are inline in the header. Those that Forebay does not use are left
/// as pointers.
#[repr(C)]
pub struct ibv_context_ops {
    _before: [*const c_void; 7],
    /// `ibv_alloc_mw`.
    pub alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_uint) -> *mut ibv_mw>,
    _bind_mw: *const c_void,
    /// `ibv_dealloc_mw`.
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    _create_cq: *const c_void,
    /// `ibv_poll_cq`.
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    /// `ibv_req_notify_cq`.
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    _between: [*const c_void; 12],
    /// `ibv_post_send`.
    pub post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    /// `ibv_post_recv`.
    pub post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    _after: [*const c_void; 5],
}

/// The beginning of an open device.
#[repr(C)]
pub struct ibv_context {
    /// The device.
    pub device: *mut ibv_device,
    /// Its driver's functions.
    pub ops: ibv_context_ops,
    /// Commands to the kernel go there.
    pub cmd_fd: c_int,
    /// Events of the device come from there.
    pub async_fd: c_int,
    /// How many interrupts completion queues can be spread over.
    pub num_comp_vectors: c_int,
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
    /// The most queue pairs.
    pub max_qp: c_int,
    /// The most work requests of a queue.
    pub max_qp_wr: c_int,
    /// What it can do.
    pub device_cap_flags: c_uint,
    /// The most pieces of memory of one work request.
    pub max_sge: c_int,
    /// The same of one that reads.
    pub max_sge_rd: c_int,
    /// The most completion queues.
    pub max_cq: c_int,
    /// The most entries of one.
    pub max_cqe: c_int,
    /// The most memory regions.
    pub max_mr: c_int,
    /// The most protection domains.
    pub max_pd: c_int,
    /// The most reads of peers that may be under way on one queue pair.
    pub max_qp_rd_atom: c_int,
    rest: [u8; 1012],
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

/// The beginning of a protection domain.
#[repr(C)]
pub struct ibv_pd {
    /// Its device.
    pub context: *mut ibv_context,
    handle: u32,
}

/// A memory region.
#[repr(C)]
pub struct ibv_mr {
    /// Its device.
    pub context: *mut ibv_context,
    /// Its protection domain.
    pub pd: *mut ibv_pd,
    /// Where it begins.
    pub addr: *mut c_void,
    /// Its length in bytes.
    pub length: usize,
    handle: u32,
    /// Its key in work requests of this process.
    pub lkey: u32,
    /// Its key for peers.
    pub rkey: u32,
}

/// A memory window.
#[repr(C)]
pub struct ibv_mw {
    /// Its device.
    pub context: *mut ibv_context,
    /// Its protection domain.
    pub pd: *mut ibv_pd,
    /// Its key for peers. After a bind request was posted, its owner writes the new one here.
    pub rkey: u32,
    handle: u32,
    kind: c_uint,
}

/// What a completion queue tells of its entries through.
#[repr(C)]
pub struct ibv_comp_channel {
    /// Its device.
    pub context: *mut ibv_context,
    /// Readable when there is an event.
    pub fd: c_int,
    /// How many queues use it.
    pub refcnt: c_int,
}

/// The beginning of a completion queue.
#[repr(C)]
pub struct ibv_cq {
    /// Its device.
    pub context: *mut ibv_context,
    /// What it tells of its entries through.
    pub channel: *mut ibv_comp_channel,
    /// Its owner's.
    pub cq_context: *mut c_void,
    handle: u32,
    /// How many entries it has room for.
    pub cqe: c_int,
}

/// The beginning of a queue pair.
#[repr(C)]
pub struct ibv_qp {
    /// Its device.
    pub context: *mut ibv_context,
    /// Its owner's.
    pub qp_context: *mut c_void,
    /// Its protection domain.
    pub pd: *mut ibv_pd,
    /// Where its sends end.
    pub send_cq: *mut ibv_cq,
    /// Where its receives end.
    pub recv_cq: *mut ibv_cq,
    srq: *mut c_void,
    handle: u32,
    /// Its number on this device.
    pub qp_num: u32,
}

/// What a queue pair has room for.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_qp_cap {
    /// Work requests of the send queue.
    pub max_send_wr: u32,
    /// Those of the receive queue.
    pub max_recv_wr: u32,
    /// Pieces of memory of a send request.
    pub max_send_sge: u32,
    /// Those of a receive request.
    pub max_recv_sge: u32,
    /// Bytes that are copied when a request is posted.
    pub max_inline_data: u32,
}

/// How a queue pair is made.
#[repr(C)]
pub struct ibv_qp_init_attr {
    /// Its owner's.
    pub qp_context: *mut c_void,
    /// Where its sends end.
    pub send_cq: *mut ibv_cq,
    /// Where its receives end.
    pub recv_cq: *mut ibv_cq,
    /// A shared receive queue, or null.
    pub srq: *mut c_void,
    /// What it is to have room for; the library writes what it has.
    pub cap: ibv_qp_cap,
    /// `enum ibv_qp_type`.
    pub qp_type: c_uint,
    /// Whether every send request has a completion.
    pub sq_sig_all: c_int,
}

/// A piece of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_sge {
    /// Where it begins.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u32,
    /// The key of the region that it lies in.
    pub lkey: u32,
}

/// What a write goes to: a member of a union.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_remote {
    /// The address at the peer.
    pub remote_addr: u64,
    /// The key that the peer gave for it.
    pub rkey: u32,
}

/// What a request goes to.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_target {
    /// Of a write.
    pub rdma: ibv_remote,
    /// The longest member, that of an atomic operation.
    _atomic: [u64; 4],
}

/// What a window is bound to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mw_bind_info {
    /// A region that has [`IBV_ACCESS_MW_BIND`].
    pub mr: *mut ibv_mr,
    /// Where the window begins.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u64,
    /// What peers may do.
    pub mw_access_flags: c_uint,
}

/// The binding of a window.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_bind {
    /// The window.
    pub mw: *mut ibv_mw,
    /// Its key from then on: that of before, with another lowest byte.
    pub rkey: u32,
    /// What it is bound to.
    pub bind_info: ibv_mw_bind_info,
}

/// A send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr {
    /// Comes back in its completion.
    pub wr_id: u64,
    /// The next of a list.
    pub next: *mut ibv_send_wr,
    /// What is sent.
    pub sg_list: *mut ibv_sge,
    /// How many pieces that is.
    pub num_sge: c_int,
    /// `enum ibv_wr_opcode`.
    pub opcode: c_uint,
    /// `enum ibv_send_flags`.
    pub send_flags: c_uint,
    /// A union: of [`IBV_WR_SEND_WITH_INV`], the key whose use ends.
    pub invalidate_rkey: u32,
    /// Where a write goes.
    pub wr: ibv_target,
    _remote_srqn: u32,
    /// A union: what is bound.
    pub bind_mw: ibv_bind,
}

impl ibv_send_wr {
    /// One that does nothing yet.
    #[must_use]
    pub const fn new(wr_id: u64, opcode: c_uint, send_flags: c_uint) -> Self {
        let bind_info = ibv_mw_bind_info { mr: std::ptr::null_mut(), addr: 0, length: 0, mw_access_flags: 0 };
        Self {
            wr_id,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
            opcode,
            send_flags,
            invalidate_rkey: 0,
            wr: ibv_target { _atomic: [0; 4] },
            _remote_srqn: 0,
            bind_mw: ibv_bind { mw: std::ptr::null_mut(), rkey: 0, bind_info },
        }
    }
}

/// A receive request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_recv_wr {
    /// Comes back in its completion.
    pub wr_id: u64,
    /// The next of a list.
    pub next: *mut ibv_recv_wr,
    /// Where what is received goes.
    pub sg_list: *mut ibv_sge,
    /// How many pieces that is.
    pub num_sge: c_int,
}

/// An entry of a completion queue.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_wc {
    /// That of the request.
    pub wr_id: u64,
    /// `enum ibv_wc_status`. Unless it is [`IBV_WC_SUCCESS`], of the rest only `vendor_err` and `qp_num` mean anything.
    pub status: c_uint,
    /// `enum ibv_wc_opcode`.
    pub opcode: c_uint,
    /// The vendor's number of the error.
    pub vendor_err: u32,
    /// Bytes that were received.
    pub byte_len: u32,
    /// A union: with [`IBV_WC_WITH_INV`], the key whose use has ended.
    pub invalidated_rkey: u32,
    /// The queue pair's number.
    pub qp_num: u32,
    /// The peer's, of datagrams.
    pub src_qp: u32,
    /// `enum ibv_wc_flags`.
    pub wc_flags: c_uint,
    _pkey_index: u16,
    _slid: u16,
    _sl: u8,
    _dlid_path_bits: u8,
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn fields_lie_where_the_abi_has_them() {
        assert_eq!(offset_of!(ibv_device_attr, vendor_id), 96);
        assert_eq!(offset_of!(ibv_device_attr, hw_ver), 104);
        assert_eq!(offset_of!(ibv_device_attr, max_cqe), 132);
        assert_eq!(offset_of!(ibv_port_attr, active_mtu), 8);
        assert_eq!((size_of::<ibv_context_ops>(), size_of::<ibv_send_wr>(), size_of::<ibv_wc>()), (256, 128, 48));
        assert_eq!((offset_of!(ibv_send_wr, wr), offset_of!(ibv_send_wr, bind_mw)), (40, 80));
        assert_eq!(offset_of!(ibv_device_attr, max_qp_rd_atom), 144);
    }
}
