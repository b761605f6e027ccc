//! What the columns count, of one report: pure, from its fields to numbers. `None` is what the process does not count.

use forebay_metrics::LatencySnapshot;

use forebay_node::report::{Listener, OriginCounts, OriginOperation, Paths, Report, S3, Striping};

fn all<'a>(latencies: impl IntoIterator<Item = &'a LatencySnapshot>) -> LatencySnapshot {
    latencies.into_iter().fold(LatencySnapshot::default(), |sum, latency| sum.and(latency))
}

/// Memory for blocks that is in use: a worker's, or what a client fetched.
pub(super) fn buffers(report: &Report) -> Option<f64> {
    let worker = report.parts().filter_map(|part| Some(part.store.as_ref()?.memory.used));
    let client = report.buffers.iter().map(|buffers| buffers.used);
    worker.chain(client).reduce(|sum, used| sum + used).map(|used| used as f64)
}

pub(super) fn fuse(report: &Report) -> Option<LatencySnapshot> {
    Some(all(report.fuse.as_ref()?.operations.values()))
}

/// A mount's questions, or those that a worker answered.
pub(super) fn meta(report: &Report) -> Option<LatencySnapshot> {
    if let Some(client) = &report.client {
        return Some(client.metadata.latency.clone());
    }
    report.worker.as_ref()?;
    Some(all(["stat", "list"].iter().filter_map(|operation| report.requests.get(*operation))))
}

/// Bytes read: those that were here already, and all. Here is the memory of this process for a mount, with the disks of its worker
/// for one that has all to itself, and memory and disks for a worker.
///
/// What was fetched ahead was here when it was read, and is not counted once more as what was fetched: a mount counts both.
pub(super) fn read(report: &Report) -> Option<(f64, f64)> {
    let (hit, all) = match (&report.client, &report.worker) {
        (Some(client), _) => {
            let here = client.local_memory + client.buffered;
            let waited_for = client.worker_memory + client.worker_disk;
            match &report.fuse {
                _ if is_alone(report) => (here + waited_for, here + waited_for + client.origin),
                Some(fuse) => (here, fuse.read_bytes),
                None => (here, here + waited_for + client.origin),
            }
        }
        (None, Some(worker)) => {
            let hit = worker.bytes_memory + worker.bytes_disk;
            (hit, hit + worker.bytes_origin + worker.bytes_peers)
        }
        (None, None) => return None,
    };
    Some((hit as f64, all as f64))
}

/// Whether a mount's worker is in its own process, and the only one.
fn is_alone(report: &Report) -> bool {
    report.node.is_some() && report.cluster.as_ref().is_some_and(|cluster| cluster.members.len() == 1)
}

/// Files opened for reading: those that the kernel reads by itself, and all.
pub(super) fn passed(report: &Report) -> Option<(f64, f64)> {
    let handles = &report.local.as_ref()?.handles;
    let of = |name: &str| handles.get(name).copied().unwrap_or(0);
    Some((of("passed") as f64, (of("passed") + of("direct") + of("served")) as f64))
}

pub(super) fn evicted(report: &Report) -> Option<f64> {
    let stores = report.parts().filter_map(|part| part.store.as_ref());
    let of =
        stores.map(|store| store.memory.runs_evicted + store.disks.iter().map(|disk| disk.runs_evicted).sum::<u64>());
    let client = report.buffers.iter().map(|buffers| buffers.runs_evicted);
    of.chain(client).reduce(|sum, evicted| sum + evicted).map(|evicted| evicted as f64)
}

pub(super) fn remote(report: &Report) -> Option<LatencySnapshot> {
    Some(report.client.as_ref()?.data.latency.clone())
}

/// A part that listens, sends; one that does not cannot.
fn listening(report: &Report) -> Vec<&Listener> {
    report.parts().filter_map(|part| part.rdma.as_ref()).flat_map(|rdma| &rdma.listeners).collect()
}

pub(super) fn listeners(report: &Report, of: impl Fn(&Listener) -> u64) -> Option<f64> {
    listening(report).into_iter().map(of).reduce(|sum, count| sum + count).map(|count| count as f64)
}

pub(super) fn rdma_write(report: &Report) -> Option<LatencySnapshot> {
    let listeners = listening(report);
    (!listeners.is_empty()).then(|| all(listeners.iter().map(|listener| &listener.latency)))
}

/// A part that has paths to workers, receives.
fn rdma_paths(report: &Report) -> Vec<&Paths> {
    report.parts().filter_map(|part| part.rdma.as_ref()?.paths.as_ref()).collect()
}

pub(super) fn rdma_received(report: &Report) -> Option<f64> {
    let received = rdma_paths(report).into_iter().map(|paths| paths.rdma.bytes_received);
    received.reduce(|sum, bytes| sum + bytes).map(|bytes| bytes as f64)
}

pub(super) fn rdma_read(report: &Report) -> Option<LatencySnapshot> {
    let paths = rdma_paths(report);
    (!paths.is_empty()).then(|| all(paths.iter().map(|paths| &paths.rdma.latency)))
}

/// Reads that are divided among several cards.
pub(super) fn striping(report: &Report, of: impl Fn(&Striping) -> u64) -> Option<f64> {
    let counts = rdma_paths(report).into_iter().map(|paths| of(&paths.striping));
    counts.reduce(|sum, count| sum + count).map(|count| count as f64)
}

/// Reads of workers' memory that their processors know nothing of.
pub(super) fn one_sided(report: &Report) -> Option<f64> {
    let reading = report.parts().filter_map(|part| part.rdma.as_ref()).filter(|rdma| rdma.paths.is_some());
    let counts = reading.map(|rdma| rdma.cards.iter().map(|card| card.one_sided_reads).sum::<u64>());
    counts.reduce(|sum, count| sum + count).map(|count| count as f64)
}

/// Bytes from origins: as a worker in the process received them, or else as the client's reads caused them.
pub(super) fn received(report: &Report) -> Option<f64> {
    counted(report, |counts| counts.bytes).or_else(|| Some(report.client.as_ref()?.origin as f64))
}

pub(super) fn sent(report: &Report) -> Option<f64> {
    counted(report, |counts| counts.uploaded)
}

pub(super) fn retries(report: &Report) -> Option<f64> {
    counted(report, |counts| counts.retries)
}

/// What the S3 endpoints of a process count.
pub(super) fn s3(report: &Report, of: impl Fn(&S3) -> u64) -> Option<f64> {
    let counts = report.parts().filter_map(|part| part.s3.as_ref()).map(of);
    counts.reduce(|sum, count| sum + count).map(|count| count as f64)
}

/// Answers of this class.
pub(super) fn answers(endpoint: &S3, class: &str) -> u64 {
    endpoint.answers.get(class).copied().unwrap_or(0)
}

pub(super) fn s3_requests(report: &Report) -> Option<LatencySnapshot> {
    let endpoints = report.parts().filter_map(|part| part.s3.as_ref());
    endpoints.map(|endpoint| all(endpoint.operations.values())).reduce(|sum, latency| sum.and(&latency))
}

/// What the origins of a worker in the process count.
fn counted(report: &Report, of: impl Fn(&OriginCounts) -> u64) -> Option<f64> {
    let workers: Vec<_> = report.parts().filter(|part| part.worker.is_some()).collect();
    let counted = workers.iter().flat_map(|part| &part.origins).map(|origin| of(&origin.counts)).sum::<u64>();
    (!workers.is_empty()).then_some(counted as f64)
}

fn origins(report: &Report, of: impl Fn(&OriginOperation) -> LatencySnapshot) -> Option<LatencySnapshot> {
    let workers: Vec<_> = report.parts().filter(|part| part.worker.is_some()).collect();
    let operations = workers.iter().flat_map(|part| &part.origins).flat_map(|origin| &origin.counts.operations);
    let latency = operations.map(of).fold(LatencySnapshot::default(), |sum, latency| sum.and(&latency));
    (!workers.is_empty()).then_some(latency)
}

fn of_operation(report: &Report, names: &[&str]) -> Option<LatencySnapshot> {
    let is_one = |of: &OriginOperation| names.contains(&&*of.operation);
    origins(report, |of| if is_one(of) { of.latency.clone() } else { LatencySnapshot::default() })
}

pub(super) fn gets(report: &Report) -> Option<LatencySnapshot> {
    of_operation(report, &["read"])
}

pub(super) fn puts(report: &Report) -> Option<LatencySnapshot> {
    of_operation(report, &["put", "part"])
}

pub(super) fn removals(report: &Report) -> Option<LatencySnapshot> {
    of_operation(report, &["remove"])
}

pub(super) fn lists(report: &Report) -> Option<LatencySnapshot> {
    of_operation(report, &["stat", "list"])
}
