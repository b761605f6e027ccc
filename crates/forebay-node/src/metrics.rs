//! Metrics of each role, made of what its process reports.
//!
//! One function per part of a report, so that a process exports exactly what it has: a worker its requests, store and
//! origins, a mount its operations and where its bytes came from, `up` both. What labels may be is bounded: operations,
//! sources, tiers, outcomes and errors are fixed sets, cards and disks are those of a machine, and of the workers that a mount
//! has paths to only the first [`MAX_WORKERS`] have a series of their own.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_metrics::{Families, Readiness, Registry, Site};
use serde_json::Value;

use crate::report::{
    Client, Coordinator, Fuse, FuseIo, Local, Origin, Rdma, Report, Staging, Store, Window, Worker, ZeroCopy,
};

/// Workers with series of their own in a mount's metrics.
const MAX_WORKERS: usize = 256;

/// What a process that reports `report` shows over HTTP.
pub(crate) fn site(readiness: Readiness, report: impl Fn() -> Value + Send + Sync + 'static) -> Site {
    let report = Arc::new(report);
    let collected = Arc::clone(&report);
    let registry = Registry::new().with(move |families: &mut Families| {
        build_info(families);
        match Report::of(&collected()) {
            Ok(report) => collect(&report, families),
            Err(error) => tracing::warn!(%error, "the counters are not understood"),
        }
    });
    Site::new(registry, readiness, move || report())
}

fn build_info(families: &mut Families) {
    families
        .gauge("forebay_build_info", "The program's version, as a label of a series that is always 1")
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
        part.rdma.iter().for_each(|rdma| of_rdma(rdma, families));
        part.window.iter().for_each(|window| of_window(window, families));
        part.zero_copy.iter().for_each(|zero_copy| of_zero_copy(zero_copy, families));
        part.worker.iter().for_each(|worker| of_worker(worker, families));
        part.store.iter().for_each(|store| of_store(store, families));
        part.origins.iter().for_each(|origin| of_origin(origin, families));
        let mut latency = families.histogram(
            "forebay_worker_request_duration_seconds",
            "Time to answer requests from other processes, by what they ask for",
        );
        for (operation, took) in &part.requests {
            latency = latency.record([("operation", operation)], took);
        }
        if let Some(connections) = part.connections {
            families.gauge("forebay_worker_connections", "Connections over TCP").add([], connections);
        }
        part.coordinator.iter().for_each(|coordinator| of_coordinator(coordinator, families));
        if let Some(cluster) = &part.cluster {
            families
                .gauge("forebay_cluster_members", "Workers in the ring, as known here")
                .add([], cluster.members.len());
            families
                .gauge(
                    "forebay_cluster_last_known_seconds",
                    "Age of what is known of the members; 0 while it is current",
                )
                .add([], cluster.last_known.as_ref().map_or(0, |known| known.seconds));
        }
        if let Some(buffers) = &part.buffers {
            families
                .gauge("forebay_client_buffers_capacity_bytes", "Memory that a client may have for what it fetches")
                .add([], buffers.capacity);
            families.gauge("forebay_client_buffers_used_bytes", "Memory of that in use").add([], buffers.used);
        }
    }
}

fn of_coordinator(coordinator: &Coordinator, families: &mut Families) {
    families
        .gauge("forebay_coordinator_leader", "Whether this coordinator leads: 1 or 0")
        .add([], u64::from(coordinator.leads));
    let mut jobs = families.gauge("forebay_coordinator_jobs", "Jobs that the leader remembers, by their state");
    for state in ["WAITING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED"] {
        jobs = jobs.add([("state", state)], coordinator.jobs.get(state).copied().unwrap_or(0));
    }
    families
        .gauge("forebay_coordinator_job_rate_bytes", "Bytes that the jobs under way load, free or check in a second")
        .add([], coordinator.bytes_per_second);
    families
        .gauge("forebay_coordinator_job_failures", "Files that the remembered jobs could not do")
        .add([], coordinator.failures);
}

fn of_fuse(fuse: &Fuse, families: &mut Families) {
    let mut latency =
        families.histogram("forebay_fuse_operation_duration_seconds", "Time from the kernel's request to its answer");
    for (operation, took) in &fuse.operations {
        latency = latency.record([("operation", operation)], took);
    }
    let mut errors =
        families.counter("forebay_fuse_errors_total", "Requests of the kernel that were answered with an error");
    for (errno, count) in &fuse.failures {
        errors = errors.add([("errno", errno)], *count);
    }
    families.counter("forebay_fuse_read_bytes_total", "Bytes that reads returned").add([], fuse.read_bytes);
    families
        .counter("forebay_fuse_reads_total", "Reads, by whether they were answered at once from memory")
        .add([("result", "hit")], fuse.read_hits)
        .add([("result", "miss")], fuse.read_misses);
    families.counter("forebay_fuse_written_bytes_total", "Bytes that were written").add([], fuse.written_bytes);
    families.gauge("forebay_fuse_inodes", "Inodes that the kernel holds").add([], fuse.inodes);
    fuse.io.iter().for_each(|io| of_fuse_io(io, families));
}

fn of_fuse_io(io: &FuseIo, families: &mut Families) {
    let mut threads = families.gauge("forebay_mount_io_threads", "Threads that serve a mount, by what brings requests");
    for mode in ["device", "uring"] {
        threads = threads.add([("mode", mode)], if io.mode == mode { io.threads } else { 0 });
    }
    families
        .gauge("forebay_mount_io_passthrough", "Whether the kernel can read materialised files by itself: 1 or 0")
        .add([], io.passthrough);
    let rings = [
        ("forebay_mount_io_requests_total", "Requests that came over io_uring", io.requests),
        ("forebay_mount_io_kept_total", "Requests over io_uring that were not answered at once", io.kept),
        ("forebay_mount_io_submits_total", "System calls of the threads that serve rings", io.submits),
        ("forebay_mount_io_bells_total", "Times that one of them was woken to send an answer", io.bells),
        ("forebay_mount_io_starved_total", "Times that all entries of a queue were in use", io.starved),
        ("forebay_mount_io_malformed_total", "Messages of the kernel that made no sense", io.malformed),
        ("forebay_mount_io_interrupts_total", "Signals to programs that waited for an answer", io.interrupts),
    ];
    for (name, help, count) in rings {
        families.counter(name, help).add([], count);
    }
}

fn of_staging(staging: &Staging, families: &mut Families) {
    let Staging { drafts, space, uploads } = staging;
    families
        .gauge("forebay_staging_files", "Files that are staged, by what becomes of them")
        .add([("state", "clean")], drafts.open.saturating_sub(drafts.dirty))
        .add([("state", "dirty")], drafts.dirty)
        .add([("state", "failed")], drafts.failed);
    families.gauge("forebay_staging_capacity_bytes", "Bytes that a mount may stage").add([], space.size);
    families.gauge("forebay_staging_used_bytes", "Bytes of that in use").add([], space.used);
    families.gauge("forebay_staging_failed_bytes", "Bytes of files that could not be uploaded").add([], space.failed);
    families
        .gauge("forebay_staging_waiting_writers", "Writers that wait for room in the staging directory")
        .add([], space.writers_waiting);
    families
        .gauge("forebay_staging_sending_bytes", "Bytes of files and parts on their way to the origin")
        .add([], uploads.bytes_in_flight);
    families
        .counter("forebay_staging_sent_total", "Files and parts of files that were sent to the origin")
        .add([("kind", "file")], uploads.puts)
        .add([("kind", "part")], uploads.parts);
    families.counter("forebay_staging_sent_bytes_total", "Bytes of those").add([], uploads.bytes);
    families
        .counter("forebay_staging_uploads_total", "Uploads in parts that ended, by how")
        .add([("outcome", "completed")], uploads.completed)
        .add([("outcome", "aborted")], uploads.aborted);
    families
        .counter("forebay_staging_failures_total", "Attempts to take a file to the origin that failed")
        .add([], uploads.failures);
}

/// Of the bytes that the kernel reads by itself nobody knows: what is counted is opens.
fn of_local(local: &Local, families: &mut Families) {
    let count = |counts: &BTreeMap<String, u64>, name: &str| counts.get(name).copied().unwrap_or(0);
    families
        .gauge("forebay_mount_local_on", "Whether files are materialised for the kernel to read: 1 or 0")
        .add([], u64::from(local.on));
    let mut files = families.gauge("forebay_mount_local_files", "Materialised files, by their state");
    for state in ["queued", "filling", "ready", "pinned", "unchecked", "leaving", "cooling"] {
        files = files.add([("state", state)], count(&local.files, state));
    }
    let mut bytes = families.gauge("forebay_mount_local_bytes", "Room that they take, by what for");
    for state in ["ready", "filling", "unchecked", "leaving", "lingering"] {
        bytes = bytes.add([("state", state)], count(&local.bytes, state));
    }
    families.gauge("forebay_mount_local_capacity_bytes", "Room that they may take").add([], local.capacity_bytes);
    families.gauge("forebay_mount_local_huge_bytes", "Bytes of them in huge pages").add([], local.huge_bytes);
    let mut opens = families.counter("forebay_mount_local_opens_total", "Files opened for reading, by who serves them");
    for (how, name) in [("passed", "passed"), ("direct", "direct"), ("cached", "served")] {
        opens = opens.add([("how", how)], count(&local.handles, name));
    }
    families
        .counter(
            "forebay_mount_local_waits_total",
            "Opens that waited for a file to be materialised, by how that ended",
        )
        .add([("result", "came")], count(&local.opens, "waited"))
        .add([("result", "late")], count(&local.opens, "in_vain"));
    let mut refused = families.counter("forebay_mount_local_refused_total", "Files that were not taken, by the reason");
    for why in ["room", "size", "cooling"] {
        refused = refused.add([("why", why)], count(&local.refused, why));
    }
    refused.add([("why", "kernel")], local.refused_by_kernel);
    let fills = &local.fills;
    families
        .counter("forebay_mount_local_fills_total", "Files that were fetched to be materialised, by how that ended")
        .add([("result", "done")], fills.done)
        .add([("result", "changed")], fills.changed)
        .add([("result", "cancelled")], fills.cancelled)
        .add([("result", "no_room")], fills.no_room)
        .add([("result", "corrupt")], fills.corrupt)
        .add([("result", "failed")], fills.failed);
    families.counter("forebay_mount_local_fill_bytes_total", "Bytes of those that are whole").add([], fills.bytes);
    families
        .counter("forebay_mount_local_fill_seconds_total", "Time that it took to fetch those that are whole")
        .add([], fills.seconds_sum);
    families
        .counter("forebay_mount_local_evictions_total", "Materialised files that had to go for others")
        .add([], local.evictions);
    families
        .counter("forebay_mount_local_corrupt_sectors_total", "Sectors of them that were not as they were fetched")
        .add([], local.corrupt_sectors);
    families
        .counter("forebay_mount_local_checked_bytes_total", "Bytes of them that were checked again")
        .add([], local.checked_bytes);
    families
        .counter(
            "forebay_mount_local_splits_total",
            "Writers that got an inode of their own while readers had the old one",
        )
        .add([], local.splits);
}

fn of_client(client: &Client, families: &mut Families) {
    families
        .counter("forebay_client_read_bytes_total", "Bytes that a client's reads got, by where they came from")
        .add([("source", "local_memory")], client.local_memory)
        .add([("source", "buffered")], client.buffered)
        .add([("source", "worker_memory")], client.worker_memory)
        .add([("source", "worker_disk")], client.worker_disk)
        .add([("source", "origin")], client.origin);
    families
        .counter("forebay_client_prefetched_bytes_total", "Bytes asked for ahead of a reader")
        .add([], client.prefetched);
    families
        .counter("forebay_client_failovers_total", "Requests that went to another worker than the first choice")
        .add([], client.failovers);
    families.counter("forebay_client_outages_total", "Times when no worker could be reached").add([], client.outages);
    families
        .gauge("forebay_client_waiting_requests", "Requests that wait for a worker, since none can be reached")
        .add([], client.waiting_for_workers as f64);
    families
        .counter(
            "forebay_client_direct_requests_total",
            "Requests that went to the origin, since no worker could be reached",
        )
        .add([], client.direct_requests);
    families
        .counter("forebay_client_corrupt_sectors_total", "Sectors that did not arrive as their worker's checksums say")
        .add([], client.corrupt_sectors);
    families.counter("forebay_client_failed_reads_total", "Reads that failed").add([], client.failed_reads);
    families
        .counter("forebay_client_uploads_total", "Files and parts of files that a client took to the origin")
        .add([], client.uploads);
    families.counter("forebay_client_uploaded_bytes_total", "Bytes of those").add([], client.uploaded);
    families
        .counter("forebay_client_changes_total", "Changes of the namespace that a client made, uploads aside")
        .add([], client.changes);
    let calls = [("data", &client.data), ("metadata", &client.metadata)];
    for (kind, calls) in calls {
        families
            .histogram("forebay_client_call_duration_seconds", "Time from a request to a worker until its answer")
            .record([("kind", kind)], &calls.latency);
        families
            .counter("forebay_client_failed_calls_total", "Requests that no worker answered")
            .add([("kind", kind)], calls.failures);
        families
            .counter("forebay_client_received_bytes_total", "Bytes that came with the answers of workers")
            .add([("kind", kind)], calls.bytes_received);
    }
}

fn of_rdma(rdma: &Rdma, families: &mut Families) {
    for listener in &rdma.listeners {
        let card = [("card", &*listener.card)];
        families
            .counter("forebay_rdma_sent_bytes_total", "Bytes of replies sent over RDMA")
            .add(card, listener.bytes_sent);
        families
            .counter("forebay_rdma_request_bytes_total", "Bytes of requests that arrived over RDMA")
            .add(card, listener.bytes_received);
        families.counter("forebay_rdma_requests_total", "Requests that arrived over RDMA").add(card, listener.requests);
        families.counter("forebay_rdma_replies_total", "Replies sent over RDMA").add(card, listener.replies);
        families
            .histogram(
                "forebay_rdma_reply_duration_seconds",
                "Time from a request's arrival over RDMA until its reply was given to the card",
            )
            .record(card, &listener.latency);
        families.gauge("forebay_rdma_connections", "Connections over RDMA").add(card, listener.connections);
    }
    let cards = rdma.cards.iter().map(|card| (&card.card, card.registered_bytes));
    let listening = rdma.listeners.iter().map(|listener| (&listener.card, listener.registered_bytes));
    for (card, bytes) in cards.chain(listening) {
        families.gauge("forebay_rdma_registered_bytes", "Memory that a card may access").add([("card", card)], bytes);
    }
    if let Some(paths) = &rdma.paths {
        for (transport, traffic) in [("rdma", &paths.rdma), ("tcp", &paths.tcp)] {
            families
                .counter("forebay_client_path_received_bytes_total", "Bytes received from workers, by transport")
                .add([("transport", transport)], traffic.bytes_received);
            families
                .histogram("forebay_client_path_call_duration_seconds", "Time from call to answer, by transport")
                .record([("transport", transport)], &traffic.latency);
        }
        families
            .counter("forebay_client_path_switches_total", "Workers' paths that went from one transport to the other")
            .add([("to", "tcp")], paths.fell_back)
            .add([("to", "rdma")], paths.failed_back);
    }
    for worker in rdma.workers.iter().take(MAX_WORKERS) {
        for (transport, is_rdma) in [("rdma", true), ("tcp", false)] {
            let up = worker.data.iter().filter(|path| path.rdma == is_rdma && path.up).count();
            families
                .gauge("forebay_client_paths_up", "Paths of data to a worker that are used, by transport")
                .add([("worker", &worker.worker), ("transport", transport)], up);
        }
    }
}

fn of_window(window: &Window, families: &mut Families) {
    if let (Some(reads), Some(bytes)) = (window.reads, window.bytes) {
        families
            .counter("forebay_client_window_reads_total", "Reads of bytes where workers on the same host have them")
            .add([], reads);
        families.counter("forebay_client_window_bytes_total", "Bytes of those, which were not copied").add([], bytes);
        families
            .gauge("forebay_client_windows_open", "Workers on the same host whose memory is seen")
            .add([], window.workers.iter().filter(|worker| worker.state == "open").count());
    }
    if let (Some(connections), Some(pinned)) = (window.connections, window.pinned_bytes) {
        families
            .gauge("forebay_worker_window_connections", "Clients on the same host that see a worker's memory")
            .add([], connections);
        families
            .gauge("forebay_worker_window_pinned_bytes", "Memory that has to stay as it is because they look at it")
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
        .counter("forebay_worker_zero_copy_copied_total", "Sends that the kernel was asked not to copy, and copied")
        .add([], copied);
    families
        .gauge("forebay_worker_zero_copy_lost_bytes", "Memory that is lost because the kernel never let go of it")
        .add([], lost_bytes);
}

fn of_worker(worker: &Worker, families: &mut Families) {
    let mut requests = families.counter("forebay_worker_requests_total", "Requests answered, well or badly");
    for (operation, count) in &worker.requests {
        requests = requests.add([("operation", operation)], *count);
    }
    families.counter("forebay_worker_failed_requests_total", "Requests that failed").add([], worker.failures);
    families
        .counter("forebay_worker_served_bytes_total", "Bytes that a worker had, by where it had them from")
        .add([("source", "memory")], worker.bytes_memory)
        .add([("source", "disk")], worker.bytes_disk)
        .add([("source", "origin")], worker.bytes_origin)
        .add([("source", "peer")], worker.bytes_peers);
    families
        .counter("forebay_worker_adopted_bytes_total", "Bytes taken over from workers that leave")
        .add([], worker.bytes_adopted);
    families.counter("forebay_worker_freed_blocks_total", "Blocks dropped on request").add([], worker.blocks_freed);
    families.counter("forebay_worker_freed_bytes_total", "Bytes dropped on request").add([], worker.bytes_freed);
    families
        .counter("forebay_worker_uploaded_bytes_total", "Bytes of files that a worker took to origins")
        .add([], worker.bytes_uploaded);
    families.gauge("forebay_worker_fetches", "Fetches under way").add([], worker.fetches);
}

fn of_store(store: &Store, families: &mut Families) {
    let disks: Vec<(String, _)> = store.disks.iter().map(|disk| (disk.dir.display().to_string(), disk)).collect();
    let Store { blocks, memory, disk_queue_bytes, disk_write_skipped, .. } = store;
    families.gauge("forebay_store_blocks", "Blocks of which something is held").add([], *blocks);
    families
        .gauge("forebay_store_disk_queue_bytes", "Bytes that wait to be written to disk")
        .add([], *disk_queue_bytes);
    families
        .counter("forebay_store_disk_writes_skipped_total", "Runs that left memory without having reached a disk")
        .add([], *disk_write_skipped);
    families.counter("forebay_store_memory_waits_total", "Requests for memory that had to wait").add([], memory.waits);
    families
        .counter("forebay_store_memory_failures_total", "Requests for memory that gave up")
        .add([], memory.failures);
    let tiers = [("memory", "", memory.capacity, memory.used, memory.runs_evicted, memory.corrupt_sectors)];
    let disk_tiers = disks
        .iter()
        .map(|(dir, disk)| ("disk", &**dir, disk.capacity, disk.used, disk.runs_evicted, disk.corrupt_sectors));
    for (tier, dir, capacity, used, evicted, corrupt) in tiers.into_iter().chain(disk_tiers) {
        let labels = [("tier", tier), ("dir", dir)];
        families.gauge("forebay_store_capacity_bytes", "Bytes that a tier may hold").add(labels, capacity);
        families.gauge("forebay_store_used_bytes", "Bytes that a tier holds").add(labels, used);
        families.counter("forebay_store_evictions_total", "Runs that a tier evicted").add(labels, evicted);
        families
            .counter("forebay_store_corrupt_sectors_total", "Sectors that were not as they were written")
            .add(labels, corrupt);
    }
    for (dir, disk) in &disks {
        let dir = [("dir", &**dir)];
        families.counter("forebay_store_disk_read_bytes_total", "Bytes read from a disk").add(dir, disk.bytes_read);
        families
            .counter("forebay_store_disk_written_bytes_total", "Bytes written to a disk")
            .add(dir, disk.bytes_written);
        families
            .counter("forebay_store_disk_errors_total", "Reads and writes that the kernel failed")
            .add([dir[0], ("direction", "read")], disk.read_errors)
            .add([dir[0], ("direction", "write")], disk.write_errors);
        families
            .gauge("forebay_store_disk_degraded", "Whether a disk is not written to because it failed")
            .add(dir, disk.degraded);
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
        .counter("forebay_origin_retries_total", "Requests to origins that followed a failed one")
        .add([], counts.retries);
    families
        .counter("forebay_origin_errors_total", "Operations on origins that failed in the end")
        .add([], counts.errors);
    for of in &counts.operations {
        let mut requests = families
            .counter("forebay_origin_requests_total", "Requests to origins, by what they ask for and how they ended");
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
