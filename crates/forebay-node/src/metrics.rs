//! Metrics of each role, made of what its process reports.
//!
//! One function per part of a report, so that a process exports exactly what it has: a worker its requests, store and
//! origins, a mount its operations and where its bytes came from, `up` both. What labels may be is bounded: operations,
//! sources, tiers, outcomes and errors are fixed sets, cards and disks are those of a machine, and of the workers that a mount
//! has paths to only the first [`rdma::MAX_WORKERS`] have a series of their own.

mod cluster;
mod operator;
mod rdma;
mod s3;

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_metrics::{Families, Readiness, Registry, Site, collect_refused};
use serde_json::Value;

use crate::report::{Client, Fuse, FuseIo, Local, Origin, Report, Staging, Store, Window, Worker, ZeroCopy};

/// What a process that reports `report` shows over HTTP.
pub(crate) fn site(readiness: Readiness, report: impl Fn() -> Value + Send + Sync + 'static) -> Site {
    let report = Arc::new(report);
    let collected = Arc::clone(&report);
    let registry = Registry::new().with(move |families: &mut Families| {
        build_info(families);
        collect_refused(families);
        match Report::of(&collected()) {
            Ok(report) => collect(&report, families),
            Err(error) => tracing::warn!(%error, "the counters are not understood"),
        }
    });
    Site::new(registry, readiness, move || report())
}

fn build_info(families: &mut Families) {
    families
        .gauge("forebay_build_info", "The program's version as a label; the value is always 1")
        .add([("version", env!("CARGO_PKG_VERSION"))], 1u64);
}

/// Adds what a process reports.
pub(crate) fn collect(report: &Report, families: &mut Families) {
    if let Some(process) = &report.process {
        process.collect(families);
    }
    for part in report.parts() {
        part.fuse.iter().for_each(|fuse| of_fuse(fuse, families));
        part.staging.iter().for_each(|staging| of_staging(staging, families));
        part.local.iter().for_each(|local| of_local(local, families));
        part.client.iter().for_each(|client| of_client(client, families));
        part.rdma.iter().for_each(|rdma| rdma::of_cards(rdma, families));
        part.window.iter().for_each(|window| of_window(window, families));
        part.zero_copy.iter().for_each(|zero_copy| of_zero_copy(zero_copy, families));
        part.worker.iter().for_each(|worker| of_worker(worker, families));
        part.store.iter().for_each(|store| of_store(store, families));
        part.origins.iter().for_each(|origin| of_origin(origin, families));
        let mut latency = families.histogram(
            "forebay_worker_request_duration_seconds",
            "Time to answer requests from other processes, by operation",
        );
        for (operation, took) in &part.requests {
            latency = latency.record([("operation", operation)], took);
        }
        if let (Some(connections), Some(memory)) = (part.connections, part.upload_memory) {
            families.gauge("forebay_worker_connections", "Open TCP connections").add([], connections);
            let help = "Open connections over TCP and to shared memory whose clients proved no identity";
            families
                .gauge("forebay_worker_unauthenticated_connections", help)
                .add([], part.unauthenticated_connections);
            let help = "Memory of uploads that a worker receives or passes on";
            families.gauge("forebay_worker_upload_memory_bytes", help).add([], memory);
        }
        for (reason, count) in &part.closed_connections {
            let help = "TCP connections that a worker closed or refused, by reason";
            families.counter("forebay_worker_closed_connections_total", help).add([("reason", reason)], *count);
        }
        part.coordinator.iter().for_each(|coordinator| cluster::of_coordinator(coordinator, families));
        part.cluster.iter().for_each(|known| cluster::of_members(known, families));
        part.etcd.iter().for_each(|etcd| cluster::of_etcd(etcd, families));
        part.security.iter().for_each(|security| cluster::of_security(security, families));
        part.audit.iter().for_each(|audit| cluster::of_audit(audit, families));
        part.s3.iter().for_each(|endpoint| s3::of_endpoint(endpoint, families));
        part.operator.iter().for_each(|operator| operator::of_operator(operator, families));
        if let Some(buffers) = &part.buffers {
            families
                .gauge("forebay_client_buffers_capacity_bytes", "Memory that a client may use for fetched data")
                .add([], buffers.capacity);
            families
                .gauge("forebay_client_buffers_used_bytes", "Memory that a client uses for fetched data")
                .add([], buffers.used);
        }
    }
}

fn of_fuse(fuse: &Fuse, families: &mut Families) {
    let mut latency =
        families.histogram("forebay_fuse_operation_duration_seconds", "Time from the kernel's request to its answer");
    for (operation, took) in &fuse.operations {
        latency = latency.record([("operation", operation)], took);
    }
    let mut errors = families.counter("forebay_fuse_errors_total", "Kernel requests that were answered with an error");
    for (errno, count) in &fuse.failures {
        errors = errors.add([("errno", errno)], *count);
    }
    families.counter("forebay_fuse_read_bytes_total", "Bytes that reads returned").add([], fuse.read_bytes);
    families
        .counter("forebay_fuse_reads_total", "Reads, by whether memory answered them at once (hit) or not (miss)")
        .add([("result", "hit")], fuse.read_hits)
        .add([("result", "miss")], fuse.read_misses);
    families.counter("forebay_fuse_written_bytes_total", "Bytes written").add([], fuse.written_bytes);
    families.gauge("forebay_fuse_inodes", "Inodes that the kernel holds").add([], fuse.inodes);
    families
        .counter("forebay_mount_taken_back_total", "Hand-overs of a mount whose new process did not serve it in time")
        .add([], fuse.taken_back);
    fuse.io.iter().for_each(|io| of_fuse_io(io, families));
}

fn of_fuse_io(io: &FuseIo, families: &mut Families) {
    let mut threads = families
        .gauge("forebay_mount_io_threads", "Threads that serve a mount, by request channel: /dev/fuse or io_uring");
    for mode in ["device", "uring"] {
        threads = threads.add([("mode", mode)], if io.mode == mode { io.threads } else { 0 });
    }
    families
        .gauge("forebay_mount_io_passthrough", "Whether the kernel can read materialised files directly: 1 or 0")
        .add([], io.passthrough);
    let rings = [
        ("forebay_mount_io_requests_total", "Requests that came over io_uring", io.requests),
        ("forebay_mount_io_kept_total", "Requests over io_uring that were not answered at once", io.kept),
        ("forebay_mount_io_submits_total", "System calls of the threads that serve io_uring requests", io.submits),
        ("forebay_mount_io_bells_total", "Wake-ups of io_uring threads to send an answer", io.bells),
        ("forebay_mount_io_starved_total", "Times that all entries of an io_uring queue were in use", io.starved),
        ("forebay_mount_io_malformed_total", "Kernel messages that were malformed", io.malformed),
        ("forebay_mount_io_interrupts_total", "Signals to programs that waited for an answer", io.interrupts),
    ];
    for (name, help, count) in rings {
        families.counter(name, help).add([], count);
    }
}

fn of_staging(staging: &Staging, families: &mut Families) {
    let Staging { drafts, space, uploads } = staging;
    families
        .gauge("forebay_staging_files", "Staged files, by state")
        .add([("state", "clean")], drafts.open.saturating_sub(drafts.dirty))
        .add([("state", "dirty")], drafts.dirty)
        .add([("state", "failed")], drafts.failed);
    families.gauge("forebay_staging_capacity_bytes", "Bytes that a mount may stage").add([], space.size);
    families.gauge("forebay_staging_used_bytes", "Bytes of staging space that a mount uses").add([], space.used);
    families.gauge("forebay_staging_failed_bytes", "Bytes of files that could not be uploaded").add([], space.failed);
    families
        .gauge("forebay_staging_waiting_writers", "Writers that wait for room in the staging directory")
        .add([], space.writers_waiting);
    families
        .gauge("forebay_staging_sending_bytes", "Bytes of files and parts in transit to the origin")
        .add([], uploads.bytes_in_flight);
    families
        .counter("forebay_staging_sent_total", "Files and parts of files sent to the origin")
        .add([("kind", "file")], uploads.puts)
        .add([("kind", "part")], uploads.parts);
    families
        .counter("forebay_staging_sent_bytes_total", "Bytes of files and parts sent to the origin")
        .add([], uploads.bytes);
    families
        .counter("forebay_staging_uploads_total", "Finished multipart uploads, by outcome")
        .add([("outcome", "completed")], uploads.completed)
        .add([("outcome", "aborted")], uploads.aborted);
    families
        .counter("forebay_staging_failures_total", "Failed attempts to upload a file to the origin")
        .add([], uploads.failures);
}

/// Of the bytes that the kernel reads by itself nobody knows: what is counted is opens.
fn of_local(local: &Local, families: &mut Families) {
    let count = |counts: &BTreeMap<String, u64>, name: &str| counts.get(name).copied().unwrap_or(0);
    families
        .gauge("forebay_mount_local_on", "Whether files are materialised for the kernel to read: 1 or 0")
        .add([], u64::from(local.on));
    let mut files = families.gauge("forebay_mount_local_files", "Materialised files, by state");
    for state in ["queued", "filling", "ready", "pinned", "unchecked", "leaving", "cooling"] {
        files = files.add([("state", state)], count(&local.files, state));
    }
    let mut bytes = families.gauge("forebay_mount_local_bytes", "Space that materialised files use, by state");
    for state in ["ready", "filling", "unchecked", "leaving", "lingering"] {
        bytes = bytes.add([("state", state)], count(&local.bytes, state));
    }
    families
        .gauge("forebay_mount_local_capacity_bytes", "Space that materialised files may use")
        .add([], local.capacity_bytes);
    families
        .gauge("forebay_mount_local_huge_bytes", "Bytes of materialised files in huge pages")
        .add([], local.huge_bytes);
    let mut opens =
        families.counter("forebay_mount_local_opens_total", "Files opened for reading, by how reads are served");
    for (how, name) in [("passed", "passed"), ("direct", "direct"), ("cached", "served")] {
        opens = opens.add([("how", how)], count(&local.handles, name));
    }
    families
        .counter("forebay_mount_local_waits_total", "Opens that waited for a file to be materialised, by result")
        .add([("result", "came")], count(&local.opens, "waited"))
        .add([("result", "late")], count(&local.opens, "in_vain"));
    let mut refused =
        families.counter("forebay_mount_local_refused_total", "Files that were not materialised, by reason");
    for why in ["room", "size", "cooling"] {
        refused = refused.add([("why", why)], count(&local.refused, why));
    }
    refused.add([("why", "kernel")], local.refused_by_kernel);
    let fills = &local.fills;
    families
        .counter("forebay_mount_local_fills_total", "Files fetched to be materialised, by result")
        .add([("result", "done")], fills.done)
        .add([("result", "changed")], fills.changed)
        .add([("result", "cancelled")], fills.cancelled)
        .add([("result", "no_room")], fills.no_room)
        .add([("result", "corrupt")], fills.corrupt)
        .add([("result", "failed")], fills.failed);
    families
        .counter(
            "forebay_mount_local_fill_bytes_total",
            "Bytes of files that were fetched completely to be materialised",
        )
        .add([], fills.bytes);
    families
        .counter("forebay_mount_local_fill_seconds_total", "Time to completely fetch files that were materialised")
        .add([], fills.seconds_sum);
    families
        .counter("forebay_mount_local_evictions_total", "Materialised files evicted to make room for others")
        .add([], local.evictions);
    families
        .counter("forebay_mount_local_corrupt_sectors_total", "Corrupt sectors found in materialised files")
        .add([], local.corrupt_sectors);
    families
        .counter("forebay_mount_local_checked_bytes_total", "Bytes of materialised files that were checked again")
        .add([], local.checked_bytes);
    families
        .counter(
            "forebay_mount_local_splits_total",
            "Opens that got a new inode: writers because readers had the old one open, readers because its copy was found wrong",
        )
        .add([], local.splits);
}

fn of_client(client: &Client, families: &mut Families) {
    families
        .counter("forebay_client_read_bytes_total", "Bytes that a client read, by source")
        .add([("source", "local_memory")], client.local_memory)
        .add([("source", "buffered")], client.buffered)
        .add([("source", "worker_memory")], client.worker_memory)
        .add([("source", "worker_disk")], client.worker_disk)
        .add([("source", "origin")], client.origin);
    families
        .counter("forebay_client_prefetched_bytes_total", "Bytes prefetched ahead of a reader")
        .add([], client.prefetched);
    families
        .counter("forebay_client_files_ahead_total", "Files fetched before they were opened")
        .add([], client.files_ahead);
    families
        .counter(
            "forebay_client_files_ahead_ended_total",
            "Of those, files that were opened then, and files that were not",
        )
        .add([("result", "used")], client.files_ahead_used)
        .add([("result", "wasted")], client.files_ahead_wasted);
    families
        .counter("forebay_client_failovers_total", "Requests that went to a worker other than the first choice")
        .add([], client.failovers);
    families
        .counter(
            "forebay_client_hedges_total",
            "Reads and questions about names sent to another worker, too, because theirs was late",
        )
        .add([("result", "won")], client.hedges_won)
        .add([("result", "wasted")], client.hedges_wasted);
    families.counter("forebay_client_slow_workers_total", "Times a worker was found slow").add([], client.slow_workers);
    families
        .counter(
            "forebay_client_avoided_reads_total",
            "Reads and questions about names that went to another worker because theirs was slow",
        )
        .add([], client.avoided_reads);
    families.counter("forebay_client_outages_total", "Times that no worker could be reached").add([], client.outages);
    families
        .gauge("forebay_client_waiting_requests", "Requests that wait because no worker can be reached")
        .add([], client.waiting_for_workers as f64);
    families
        .counter(
            "forebay_client_direct_requests_total",
            "Requests that went to the origin because no worker could be reached, or theirs was late",
        )
        .add([], client.direct_requests);
    families
        .counter("forebay_client_corrupt_sectors_total", "Received sectors that did not match the worker's checksums")
        .add([], client.corrupt_sectors);
    families.counter("forebay_client_failed_reads_total", "Reads that failed").add([], client.failed_reads);
    families
        .counter("forebay_client_uploads_total", "Files and parts of files that a client uploaded to the origin")
        .add([], client.uploads);
    families
        .counter("forebay_client_uploaded_bytes_total", "Bytes that a client uploaded to the origin")
        .add([], client.uploaded);
    families
        .counter("forebay_client_changes_total", "Namespace changes that a client made, except uploads")
        .add([], client.changes);
    let calls = [("data", &client.data), ("metadata", &client.metadata)];
    for (kind, calls) in calls {
        families
            .histogram("forebay_client_call_duration_seconds", "Time from a request to a worker until the answer")
            .record([("kind", kind)], &calls.latency);
        families
            .counter("forebay_client_failed_calls_total", "Requests that no worker answered")
            .add([("kind", kind)], calls.failures);
        families
            .counter("forebay_client_received_bytes_total", "Bytes received in answers from workers")
            .add([("kind", kind)], calls.bytes_received);
    }
}

fn of_window(window: &Window, families: &mut Families) {
    if let (Some(reads), Some(bytes)) = (window.reads, window.bytes) {
        families
            .counter("forebay_client_window_reads_total", "Reads directly from the memory of workers on the same host")
            .add([], reads);
        families
            .counter(
                "forebay_client_window_bytes_total",
                "Bytes read from workers' memory on the same host, without a copy",
            )
            .add([], bytes);
        families
            .gauge("forebay_client_windows_open", "Workers on the same host whose memory a client can read")
            .add([], window.workers.iter().filter(|worker| worker.state == "open").count());
    }
    if let (Some(connections), Some(pinned)) = (window.connections, window.pinned_bytes) {
        families
            .gauge("forebay_worker_window_connections", "Clients on the same host that can read a worker's memory")
            .add([], connections);
        families
            .gauge(
                "forebay_worker_window_pinned_bytes",
                "Memory that a worker keeps unchanged while clients on the same host read it",
            )
            .add([], pinned);
    }
}

fn of_zero_copy(zero_copy: &ZeroCopy, families: &mut Families) {
    let ZeroCopy { bytes, copied, lost_bytes } = *zero_copy;
    families
        .counter(
            "forebay_worker_zero_copy_bytes_total",
            "Bytes of replies over TCP that the kernel sent without copying",
        )
        .add([], bytes);
    families
        .counter("forebay_worker_zero_copy_copied_total", "Sends that the kernel copied although it was asked not to")
        .add([], copied);
    families
        .gauge("forebay_worker_zero_copy_lost_bytes", "Memory that is lost because the kernel never released it")
        .add([], lost_bytes);
}

fn of_worker(worker: &Worker, families: &mut Families) {
    let mut requests = families.counter("forebay_worker_requests_total", "Requests answered, including failed ones");
    for (operation, count) in &worker.requests {
        requests = requests.add([("operation", operation)], *count);
    }
    families.counter("forebay_worker_failed_requests_total", "Requests that failed").add([], worker.failures);
    let mut limited = families.counter(
        "forebay_worker_rate_limited_total",
        "Requests that had to wait, or were refused, because their sender asked too often",
    );
    for (operation, count) in &worker.rate_limited {
        limited = limited.add([("operation", operation)], *count);
    }
    families
        .counter("forebay_worker_served_bytes_total", "Bytes that a worker served, by source")
        .add([("source", "memory")], worker.bytes_memory)
        .add([("source", "disk")], worker.bytes_disk)
        .add([("source", "origin")], worker.bytes_origin)
        .add([("source", "peer")], worker.bytes_peers);
    families
        .counter("forebay_worker_adopted_bytes_total", "Bytes taken over from leaving workers")
        .add([], worker.bytes_adopted);
    families.counter("forebay_worker_freed_blocks_total", "Blocks dropped on request").add([], worker.blocks_freed);
    families.counter("forebay_worker_freed_bytes_total", "Bytes dropped on request").add([], worker.bytes_freed);
    families
        .counter("forebay_worker_uploaded_bytes_total", "Bytes of files that a worker uploaded to origins")
        .add([], worker.bytes_uploaded);
    families.gauge("forebay_worker_fetches", "Fetches in progress").add([], worker.fetches);
}

fn of_store(store: &Store, families: &mut Families) {
    let disks: Vec<(String, _)> = store.disks.iter().map(|disk| (disk.dir.display().to_string(), disk)).collect();
    let Store { blocks, memory, disk_queue_bytes, disk_write_skipped, .. } = store;
    families.gauge("forebay_store_blocks", "Blocks that the store holds, whole or in part").add([], *blocks);
    families
        .gauge("forebay_store_disk_queue_bytes", "Bytes that wait to be written to disk")
        .add([], *disk_queue_bytes);
    families
        .counter(
            "forebay_store_disk_writes_skipped_total",
            "Runs of sectors that left memory without being written to a disk",
        )
        .add([], *disk_write_skipped);
    families.counter("forebay_store_memory_waits_total", "Memory allocations that had to wait").add([], memory.waits);
    families
        .counter("forebay_store_memory_failures_total", "Memory allocations that waited in vain")
        .add([], memory.failures);
    let tiers = [("memory", "", memory.capacity, memory.used, memory.runs_evicted, memory.corrupt_sectors)];
    let disk_tiers = disks
        .iter()
        .map(|(dir, disk)| ("disk", &**dir, disk.capacity, disk.used, disk.runs_evicted, disk.corrupt_sectors));
    for (tier, dir, capacity, used, evicted, corrupt) in tiers.into_iter().chain(disk_tiers) {
        let labels = [("tier", tier), ("dir", dir)];
        families.gauge("forebay_store_capacity_bytes", "Bytes that a tier may hold").add(labels, capacity);
        families.gauge("forebay_store_used_bytes", "Bytes that a tier holds").add(labels, used);
        families.counter("forebay_store_evictions_total", "Runs of sectors that a tier evicted").add(labels, evicted);
        families.counter("forebay_store_corrupt_sectors_total", "Corrupt sectors found in a tier").add(labels, corrupt);
    }
    for (dir, disk) in &disks {
        let dir = [("dir", &**dir)];
        families.counter("forebay_store_disk_read_bytes_total", "Bytes read from a disk").add(dir, disk.bytes_read);
        families
            .counter("forebay_store_disk_written_bytes_total", "Bytes written to a disk")
            .add(dir, disk.bytes_written);
        families
            .counter(
                "forebay_store_disk_errors_total",
                "Disk reads and writes that failed with an error from the kernel",
            )
            .add([dir[0], ("direction", "read")], disk.read_errors)
            .add([dir[0], ("direction", "write")], disk.write_errors);
        families
            .gauge("forebay_store_disk_degraded", "Whether writes to a disk are stopped because it failed: 1 or 0")
            .add(dir, disk.degraded);
        families
            .gauge("forebay_store_disk_out", "Whether a disk is not used because it hangs: 1 or 0")
            .add(dir, disk.out);
        families
            .counter("forebay_store_disk_read_timeouts_total", "Disk reads that were not answered in time")
            .add(dir, disk.read_timeouts);
        families
            .counter("forebay_store_disk_taken_out_total", "Times that a disk was taken out because it hung")
            .add(dir, disk.taken_out);
        families
            .counter("forebay_store_disk_returned_total", "Times that a disk that hung was used again")
            .add(dir, disk.returned);
    }
}

/// All origins together: there may be many, and `/stats` has each alone.
fn of_origin(origin: &Origin, families: &mut Families) {
    let counts = &origin.counts;
    families
        .counter("forebay_origin_received_bytes_total", "Bytes of files received from origins")
        .add([], counts.bytes);
    families.counter("forebay_origin_sent_bytes_total", "Bytes of files sent to origins").add([], counts.uploaded);
    families
        .counter("forebay_origin_retries_total", "Repeated requests to origins after a failure")
        .add([], counts.retries);
    families
        .counter("forebay_origin_errors_total", "Operations on origins that failed after any retries")
        .add([], counts.errors);
    for of in &counts.operations {
        let mut requests =
            families.counter("forebay_origin_requests_total", "Requests to origins, by operation and outcome");
        for (outcome, count) in &of.outcomes {
            requests = requests.add([("operation", &of.operation), ("outcome", outcome)], *count);
        }
        families
            .histogram("forebay_origin_request_duration_seconds", "Time that requests to origins took")
            .record([("operation", &of.operation)], &of.latency);
    }
}

#[cfg(test)]
mod tests;
