//! A report for tests of what is made of reports.

use std::time::Duration;

use forebay_metrics::{LatencyHistogram, ProcessStats};
use serde_json::{Value, json};

/// A report of everything that any role has, `scale` times.
#[must_use]
pub fn everything(scale: u64) -> Value {
    let latency = LatencyHistogram::new();
    (0..scale).for_each(|_| latency.record(Duration::from_micros(100)));
    let numbers = |names: &[&str]| -> Value {
        names.iter().map(|name| ((*name).to_owned(), json!(scale))).collect::<serde_json::Map<_, _>>().into()
    };
    let memory = numbers(&["capacity", "used", "runs_evicted", "corrupt_sectors", "waits", "failures"]);
    let calls = json!({ "failures": scale, "bytes_received": 4096 * scale, "latency": latency });
    let origin = |operation: &str| json!({ "operation": operation, "outcomes": [["ok", scale], ["failed", 0]], "latency": latency });
    let mut worker = numbers(&[
        "failures",
        "bytes_memory",
        "bytes_disk",
        "bytes_origin",
        "bytes_peers",
        "bytes_uploaded",
        "fetches",
    ]);
    worker["requests"] = json!({ "read": scale, "stat": scale, "change": scale, "upload": scale });
    worker["rate_limited"] = json!({ "refresh": scale, "refresh_below": scale, "free": scale, "scrub": scale });
    let node = json!({
        "worker": worker,
        "store": { "blocks": scale, "memory": memory, "disks": [{ "dir": "/d", "used": scale, "degraded": false }] },
        "origins": [{ "path": "/", "counts": {
            "bytes": 4096 * scale, "uploaded": 2048 * scale, "retries": scale,
            "operations": [origin("read"), origin("put"), origin("part"), origin("remove")],
        } }],
        "requests": { "read": latency, "stat": latency },
        "connections": 1,
        "unauthenticated_connections": 1,
        "closed_connections": { "idle": scale, "late_hello": scale },
        "upload_memory": 65536,
        "window": { "servers": 1, "connections": 2, "pinned_bytes": 4096 },
        "zero_copy": { "bytes": 1048576, "copied": 3, "lost_bytes": 0 },
        "rdma": { "listeners": [{
            "card": "mlx5_0:1", "bytes_sent": 4096 * scale, "bytes_received": 64 * scale, "replies": scale,
            "requests": scale, "latency": latency,
        }] },
    });
    let mut client = numbers(&[
        "local_memory",
        "buffered",
        "worker_memory",
        "worker_disk",
        "origin",
        "prefetched",
        "files_ahead",
        "files_ahead_used",
        "files_ahead_wasted",
        "failovers",
        "hedges_sent",
        "hedges_won",
        "hedges_wasted",
        "slow_workers",
        "avoided_reads",
        "outages",
        "direct_requests",
        "uploads",
        "uploaded",
        "changes",
    ]);
    client["data"] = calls.clone();
    client["metadata"] = calls;
    let traffic = json!({ "bytes_received": 4096 * scale, "latency": latency });
    json!({
        "process": ProcessStats { cpu_seconds: scale as f64, resident_bytes: 1 << 30, ..ProcessStats::default() },
        "fuse": {
            "operations": { "read": latency, "lookup": latency }, "failures": { "ESTALE": scale },
            "read_bytes": 4096 * scale, "read_hits": scale, "read_misses": scale, "written_bytes": 1024 * scale, "inodes": 3,
            "io": { "mode": "uring", "threads": 2, "queues": 2, "depth": 64, "passthrough": true, "requests": scale, "submits": scale },
        },
        "staging": {
            "drafts": { "open": 3, "dirty": 2, "failed": 1 },
            "space": { "size": 1 << 30, "used": 4096, "failed": 1, "writers_waiting": 1 },
            "uploads": numbers(&["bytes_in_flight", "completed", "aborted", "puts", "parts", "bytes", "failures"]),
        },
        "local": {
            "on": true, "capacity_bytes": 1u64 << 40, "huge_bytes": 1 << 30, "files": { "ready": 3, "pinned": 1 },
            "bytes": { "ready": 1 << 30, "filling": 1 << 20 }, "handles": { "passed": 3 * scale, "served": scale },
            "opens": { "waited": scale }, "fills": { "done": scale, "bytes": 4096 * scale, "seconds_sum": scale },
        },
        "client": client,
        "buffers": memory,
        "coordinator": { "leads": true, "jobs": { "RUNNING": 1 }, "bytes_per_second": 5.0, "failures": 1 },
        "cluster": { "members": [{ "name": "node1" }], "last_known": { "seconds": 3 } },
        "security": { "identity": "spiffe://forebay/forebay/prod/worker/node1", "certificate_expires_seconds": 7200 },
        "audit": { "lost": scale },
        "s3": {
            "operations": { "GetObject": latency }, "answers": { "2xx": scale, "4xx": scale }, "sent_bytes": 4096 * scale,
            "received_bytes": 1024 * scale, "unsigned": scale, "under_way": 1, "memory_bytes": 65536,
        },
        "operator": {
            "kinds": { "ForebayMount": {
                "objects": 2, "unready": 1, "latency": latency,
                "outcomes": { "done": scale, "refused": scale, "failed": scale },
            } },
            "leaving": 1, "drain_timeouts": scale, "coordinator_errors": { "unreachable": scale, "refused": scale },
            "kubernetes_errors": scale, "lost_events": scale,
        },
        "etcd": { "certificate_renewals": scale, "certificate_refused_seconds": 3 },
        "rdma": {
            "paths": {
                "rdma": traffic, "tcp": traffic, "fell_back": scale,
                "striping": numbers(&["reads", "parts", "late", "failed", "not_cached"]),
            },
            "workers": [{ "worker": "node1:29999", "data": [{ "rdma": true, "up": true }, { "rdma": false, "up": true }] }],
            "cards": [{
                "card": "mlx5_1:1", "registered_bytes": 1, "bytes_received": 4096 * scale, "one_sided_reads": scale,
                "one_sided_refused": scale, "bytes_in_messages": 4096 * scale,
            }],
        },
        "window": {
            "reads": scale, "bytes": 4096 * scale, "workers": [{ "worker": "node1:29999", "state": "open", "why": null }],
        },
        "node": node,
    })
}
