//! libibverbs: the states of a queue pair, and what is changed of it on the way from one to the next.

use std::ffi::{c_int, c_uint};

use crate::verbs::ibv_qp_cap;

/// `ibv_qp_attr.qp_state` is set (`ibv_qp_attr_mask`).
pub const IBV_QP_STATE: c_int = 1;
/// A queue pair whose receives can be posted (`ibv_qp_state`).
pub const IBV_QPS_INIT: c_uint = 1;
/// One that receives.
pub const IBV_QPS_RTR: c_uint = 2;
/// One that sends, too.
pub const IBV_QPS_RTS: c_uint = 3;
/// One that works no more.
pub const IBV_QPS_ERR: c_uint = 6;

/// How packets find the peer. Its GIDs, of 16 bytes, are 64-bit numbers in C, too.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_ah_attr {
    dgid: [u64; 2],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    /// The traffic class.
    pub traffic_class: u8,
    dlid: u16,
    /// The service level; over RoCE the priority of Ethernet.
    pub sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
}

/// What is changed of a queue pair, with room for what newer libraries have.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_qp_attr {
    /// `enum ibv_qp_state`.
    pub qp_state: c_uint,
    cur_qp_state: c_uint,
    /// `enum ibv_mtu`: the largest packet, the same at both ends.
    pub path_mtu: c_uint,
    path_mig_state: c_uint,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: c_uint,
    cap: ibv_qp_cap,
    /// The way to the peer.
    pub ah_attr: ibv_ah_attr,
    alt_ah_attr: ibv_ah_attr,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    /// How many reads of ours may be under way.
    pub max_rd_atomic: u8,
    /// How many of the peer's.
    pub max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    rate_limit: u32,
    rest: [u32; 92],
}

impl ibv_qp_attr {
    /// The change to another state.
    #[must_use]
    pub const fn to_state(qp_state: c_uint) -> Self {
        // SAFETY: numbers, structures and arrays of them, for which zero is a value.
        let nothing: Self = unsafe { std::mem::zeroed() };
        Self { qp_state, ..nothing }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn fields_lie_where_the_abi_has_them() {
        assert_eq!((offset_of!(ibv_qp_attr, ah_attr), offset_of!(ibv_qp_attr, max_rd_atomic)), (56, 126));
        assert_eq!((offset_of!(ibv_ah_attr, sl), size_of::<ibv_ah_attr>()), (26, 32));
        assert_eq!(offset_of!(ibv_qp_attr, rate_limit), 136);
        assert!(size_of::<ibv_qp_attr>() >= 2 * 144, "there is room for what newer libraries have");
    }

    #[test]
    fn a_change_of_the_state_alone_says_nothing_else() {
        let change = ibv_qp_attr::to_state(IBV_QPS_ERR);
        assert_eq!((change.qp_state, change.path_mtu, change.ah_attr.sl), (IBV_QPS_ERR, 0, 0));
    }
}
