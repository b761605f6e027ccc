//! The layouts of the bindings are those of the headers of this machine, where it has headers and a compiler.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use forebay_verbs_sys::*;

/// What C says is a number, and the number that it is here.
type Number = (&'static str, usize);

fn of_verbs() -> Vec<Number> {
    vec![
        ("offsetof(struct ibv_context, ops.alloc_mw)", offset_of!(ibv_context, ops.alloc_mw)),
        ("offsetof(struct ibv_context, ops.dealloc_mw)", offset_of!(ibv_context, ops.dealloc_mw)),
        ("offsetof(struct ibv_context, ops.poll_cq)", offset_of!(ibv_context, ops.poll_cq)),
        ("offsetof(struct ibv_context, ops.req_notify_cq)", offset_of!(ibv_context, ops.req_notify_cq)),
        ("offsetof(struct ibv_context, ops.post_send)", offset_of!(ibv_context, ops.post_send)),
        ("offsetof(struct ibv_context, ops.post_recv)", offset_of!(ibv_context, ops.post_recv)),
        ("offsetof(struct ibv_context, num_comp_vectors)", offset_of!(ibv_context, num_comp_vectors)),
        ("offsetof(struct ibv_device_attr, max_qp_wr)", offset_of!(ibv_device_attr, max_qp_wr)),
        ("offsetof(struct ibv_device_attr, device_cap_flags)", offset_of!(ibv_device_attr, device_cap_flags)),
        ("offsetof(struct ibv_device_attr, max_sge)", offset_of!(ibv_device_attr, max_sge)),
        ("offsetof(struct ibv_device_attr, max_cqe)", offset_of!(ibv_device_attr, max_cqe)),
        ("offsetof(struct ibv_device_attr, max_qp_rd_atom)", offset_of!(ibv_device_attr, max_qp_rd_atom)),
        ("offsetof(struct ibv_qp_attr, path_mtu)", offset_of!(ibv_qp_attr, path_mtu)),
        ("offsetof(struct ibv_qp_attr, ah_attr.sl)", offset_of!(ibv_qp_attr, ah_attr.sl)),
        ("offsetof(struct ibv_qp_attr, ah_attr.grh.traffic_class)", offset_of!(ibv_qp_attr, ah_attr.traffic_class)),
        ("offsetof(struct ibv_qp_attr, max_rd_atomic)", offset_of!(ibv_qp_attr, max_rd_atomic)),
        ("offsetof(struct ibv_qp_attr, max_dest_rd_atomic)", offset_of!(ibv_qp_attr, max_dest_rd_atomic)),
        ("offsetof(struct ibv_mr, lkey)", offset_of!(ibv_mr, lkey)),
        ("offsetof(struct ibv_mw, rkey)", offset_of!(ibv_mw, rkey)),
        ("offsetof(struct ibv_comp_channel, fd)", offset_of!(ibv_comp_channel, fd)),
        ("offsetof(struct ibv_cq, cqe)", offset_of!(ibv_cq, cqe)),
        ("offsetof(struct ibv_qp, qp_num)", offset_of!(ibv_qp, qp_num)),
        ("offsetof(struct ibv_qp_init_attr, cap)", offset_of!(ibv_qp_init_attr, cap)),
        ("offsetof(struct ibv_qp_init_attr, qp_type)", offset_of!(ibv_qp_init_attr, qp_type)),
        ("offsetof(struct ibv_qp_init_attr, sq_sig_all)", offset_of!(ibv_qp_init_attr, sq_sig_all)),
        ("sizeof(struct ibv_qp_init_attr)", size_of::<ibv_qp_init_attr>()),
        ("sizeof(struct ibv_sge)", size_of::<ibv_sge>()),
        ("sizeof(struct ibv_recv_wr)", size_of::<ibv_recv_wr>()),
        ("sizeof(struct ibv_send_wr)", size_of::<ibv_send_wr>()),
        ("offsetof(struct ibv_send_wr, opcode)", offset_of!(ibv_send_wr, opcode)),
        ("offsetof(struct ibv_send_wr, send_flags)", offset_of!(ibv_send_wr, send_flags)),
        ("offsetof(struct ibv_send_wr, invalidate_rkey)", offset_of!(ibv_send_wr, invalidate_rkey)),
        ("offsetof(struct ibv_send_wr, wr.rdma.rkey)", offset_of!(ibv_send_wr, wr) + offset_of!(ibv_remote, rkey)),
        ("offsetof(struct ibv_send_wr, bind_mw.rkey)", offset_of!(ibv_send_wr, bind_mw.rkey)),
        ("offsetof(struct ibv_send_wr, bind_mw.bind_info.length)", offset_of!(ibv_send_wr, bind_mw.bind_info.length)),
        ("sizeof(struct ibv_wc)", size_of::<ibv_wc>()),
        ("offsetof(struct ibv_wc, byte_len)", offset_of!(ibv_wc, byte_len)),
        ("offsetof(struct ibv_wc, invalidated_rkey)", offset_of!(ibv_wc, invalidated_rkey)),
        ("offsetof(struct ibv_wc, qp_num)", offset_of!(ibv_wc, qp_num)),
        ("offsetof(struct ibv_wc, wc_flags)", offset_of!(ibv_wc, wc_flags)),
        ("IBV_DEVICE_MEM_WINDOW_TYPE_2A", IBV_DEVICE_MEM_WINDOW_TYPE_2A as usize),
        ("IBV_DEVICE_MEM_WINDOW_TYPE_2B", IBV_DEVICE_MEM_WINDOW_TYPE_2B as usize),
        ("IBV_ACCESS_LOCAL_WRITE", IBV_ACCESS_LOCAL_WRITE as usize),
        ("IBV_ACCESS_REMOTE_WRITE", IBV_ACCESS_REMOTE_WRITE as usize),
        ("IBV_ACCESS_REMOTE_READ", IBV_ACCESS_REMOTE_READ as usize),
        ("IBV_ACCESS_MW_BIND", IBV_ACCESS_MW_BIND as usize),
        ("IBV_MW_TYPE_2", IBV_MW_TYPE_2 as usize),
        ("IBV_QPT_RC", IBV_QPT_RC as usize),
        ("IBV_QPS_INIT", IBV_QPS_INIT as usize),
        ("IBV_QPS_RTR", IBV_QPS_RTR as usize),
        ("IBV_QPS_RTS", IBV_QPS_RTS as usize),
        ("IBV_QPS_ERR", IBV_QPS_ERR as usize),
        ("IBV_QP_STATE", IBV_QP_STATE as usize),
        ("IBV_WR_RDMA_WRITE", IBV_WR_RDMA_WRITE as usize),
        ("IBV_WR_SEND", IBV_WR_SEND as usize),
        ("IBV_WR_RDMA_READ", IBV_WR_RDMA_READ as usize),
        ("IBV_WR_BIND_MW", IBV_WR_BIND_MW as usize),
        ("IBV_WR_SEND_WITH_INV", IBV_WR_SEND_WITH_INV as usize),
        ("IBV_SEND_FENCE", IBV_SEND_FENCE as usize),
        ("IBV_SEND_SIGNALED", IBV_SEND_SIGNALED as usize),
        ("IBV_SEND_INLINE", IBV_SEND_INLINE as usize),
        ("IBV_WC_SUCCESS", IBV_WC_SUCCESS as usize),
        ("IBV_WC_WR_FLUSH_ERR", IBV_WC_WR_FLUSH_ERR as usize),
        ("IBV_WC_WITH_INV", IBV_WC_WITH_INV as usize),
    ]
}

fn of_cm() -> Vec<Number> {
    vec![
        ("offsetof(struct rdma_event_channel, fd)", offset_of!(rdma_event_channel, fd)),
        ("offsetof(struct rdma_cm_id, channel)", offset_of!(rdma_cm_id, channel)),
        ("offsetof(struct rdma_cm_id, qp)", offset_of!(rdma_cm_id, qp)),
        ("offsetof(struct rdma_cm_id, route.addr.src_addr)", offset_of!(rdma_cm_id, addr.src_addr)),
        ("offsetof(struct rdma_cm_id, route.addr.dst_addr)", offset_of!(rdma_cm_id, addr.dst_addr)),
        ("offsetof(struct rdma_cm_id, ps)", offset_of!(rdma_cm_id, ps)),
        ("offsetof(struct rdma_cm_id, port_num)", offset_of!(rdma_cm_id, port_num)),
        ("sizeof(struct rdma_conn_param)", size_of::<rdma_conn_param>()),
        ("offsetof(struct rdma_conn_param, private_data_len)", offset_of!(rdma_conn_param, private_data_len)),
        ("offsetof(struct rdma_conn_param, rnr_retry_count)", offset_of!(rdma_conn_param, rnr_retry_count)),
        ("offsetof(struct rdma_cm_event, listen_id)", offset_of!(rdma_cm_event, listen_id)),
        ("offsetof(struct rdma_cm_event, status)", offset_of!(rdma_cm_event, status)),
        ("offsetof(struct rdma_cm_event, param.conn)", offset_of!(rdma_cm_event, conn)),
        ("RDMA_PS_TCP", RDMA_PS_TCP as usize),
        ("RDMA_CM_EVENT_ADDR_RESOLVED", RDMA_CM_EVENT_ADDR_RESOLVED as usize),
        ("RDMA_CM_EVENT_ROUTE_RESOLVED", RDMA_CM_EVENT_ROUTE_RESOLVED as usize),
        ("RDMA_CM_EVENT_CONNECT_REQUEST", RDMA_CM_EVENT_CONNECT_REQUEST as usize),
        ("RDMA_CM_EVENT_CONNECT_RESPONSE", RDMA_CM_EVENT_CONNECT_RESPONSE as usize),
        ("RDMA_CM_EVENT_REJECTED", RDMA_CM_EVENT_REJECTED as usize),
        ("RDMA_CM_EVENT_ESTABLISHED", RDMA_CM_EVENT_ESTABLISHED as usize),
        ("RDMA_CM_EVENT_DISCONNECTED", RDMA_CM_EVENT_DISCONNECTED as usize),
        ("RDMA_CM_EVENT_TIMEWAIT_EXIT", RDMA_CM_EVENT_TIMEWAIT_EXIT as usize),
        ("RDMA_OPTION_ID", RDMA_OPTION_ID as usize),
        ("RDMA_OPTION_ID_TOS", RDMA_OPTION_ID_TOS as usize),
        ("RDMA_OPTION_ID_REUSEADDR", RDMA_OPTION_ID_REUSEADDR as usize),
        ("RDMA_OPTION_ID_ACK_TIMEOUT", RDMA_OPTION_ID_ACK_TIMEOUT as usize),
    ]
}

/// A program that compiles where all of it is so.
fn program() -> String {
    let mut text = "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n".to_owned();
    for (c, ours) in of_verbs().into_iter().chain(of_cm()) {
        writeln!(text, "_Static_assert({c} == {ours}, \"{c} is not {ours}\");").unwrap();
    }
    // What the library writes has to fit.
    for (c, room) in
        [("struct ibv_device_attr", size_of::<ibv_device_attr>()), ("struct ibv_qp_attr", size_of::<ibv_qp_attr>())]
    {
        writeln!(text, "_Static_assert(sizeof({c}) <= {room}, \"{c} has more than {room} bytes\");").unwrap();
    }
    text
}

#[test]
fn the_compiler_of_this_machine_agrees() {
    let has = |header: &str| Path::new("/usr/include").join(header).exists();
    if !has("infiniband/verbs.h") || !has("rdma/rdma_cma.h") {
        println!("skipped: no headers of libibverbs and librdmacm (Debian: libibverbs-dev, librdmacm-dev)");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("layout.c");
    std::fs::write(&source, program()).unwrap();
    match Command::new("cc").args(["-std=gnu11", "-fsyntax-only"]).arg(&source).output() {
        Ok(said) => assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr)),
        Err(error) => println!("skipped: no C compiler: {error}"),
    }
}
