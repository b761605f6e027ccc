//! What is known of the cache behind a mount of ours, beside whatever fills and empties it: how much its workers hold, what they had
//! to fetch from the origin meanwhile, where what is written goes, and what of it did not arrive.

use std::path::{Path, PathBuf};

use forebay_benchmark::posix::run::{Cache, CacheError, CachedFiles, Capacity, Room, Stop, Takes, device_of};
use forebay_config::Loaded;
use forebay_types::FsPath;
use serde_json::Value;
use tokio::runtime::Handle;

use super::cache::in_namespace;
use super::unfinished::{self, Unfinished};
use super::workers::Workers;
use forebay_node::state::{Role, RunState};

/// What stays of a tier whatever comes: eviction starts above its high watermark, and goes on to the low one.
const STAYS: f64 = 0.8;

/// The cache behind a mount, and its workers. It waits: not for a thread of the runtime.
pub(super) struct Mounted {
    inner: Box<dyn Cache>,
    mountpoint: PathBuf,
    /// What is measured, in the namespace.
    path: FsPath,
    /// Whether its worker, and so its origin, is on this machine for certain.
    is_here: bool,
    /// Where it stages what is written, and how much it does.
    staging: Option<(PathBuf, u64)>,
    unfinished: Option<Unfinished>,
    workers: Option<Workers>,
}

impl Mounted {
    /// `inner`, which fills and empties the cache of the mount at `mountpoint`, of which `place` is measured, with what the workers
    /// say that `state` names.
    pub(super) fn new(
        inner: Box<dyn Cache>,
        (mountpoint, place): (PathBuf, &Path),
        state: Option<&RunState>,
        loaded: &Loaded,
        runtime: &Handle,
    ) -> Self {
        let most = loaded.config.write_staging_size.as_u64();
        Self {
            inner,
            path: in_namespace(&mountpoint, place).unwrap_or_else(|_| FsPath::root()),
            mountpoint,
            is_here: state.is_some_and(|state| state.role == Role::Up),
            unfinished: state.and_then(Unfinished::of),
            staging: state.and_then(|state| Some((state.staging.clone()?, most))),
            workers: state.and_then(|state| Workers::of(state, loaded.clone(), runtime)),
        }
    }

    /// What a worker says of the origin of what is measured.
    fn origin(&self) -> Option<Value> {
        let counters = self.workers.as_ref()?.counters()?;
        counters.iter().find_map(|counters| origin_of(counters, &self.path)).cloned()
    }
}

/// Where an origin is that is a directory.
fn directory_of(origin: &Value) -> Option<&Path> {
    origin["url"].as_str()?.strip_prefix("file://").map(Path::new)
}

impl Cache for Mounted {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn cannot_empty(&self) -> Option<String> {
        self.inner.cannot_empty()
    }

    fn rooms(&self, _directory: &Path) -> Vec<Room> {
        let told = self.origin();
        let url = told.as_ref().and_then(|origin| origin["url"].as_str());
        let here = told.as_ref().and_then(directory_of);
        // One on another machine is on another file system, whatever this one has by that name.
        let device = here.filter(|_| self.is_here).and_then(device_of);
        let origin = Room {
            place: url.map_or_else(|| "its origin".to_owned(), |url| format!("the origin {url}")),
            free: told.as_ref().and_then(|origin| origin.pointer("/room/free")?.as_u64()),
            device,
            takes: if here.is_some() { Takes::AllAndParts } else { Takes::All },
        };
        let staging = self.staging.iter().map(|(directory, most)| {
            let found = rustix::fs::statvfs(directory).ok();
            Room {
                place: format!("{}, where what is written is staged", directory.display()),
                free: found.map(|found| found.f_bavail.saturating_mul(found.f_frsize)),
                device: device_of(directory),
                takes: Takes::Largest(*most),
            }
        });
        std::iter::once(origin).chain(staging).collect()
    }

    fn cold_is_memory(&self) -> Option<String> {
        let told = self.origin()?;
        let in_memory = told.pointer("/room/in_memory")?.as_bool()?;
        in_memory.then(|| format!("the origin {} is in memory", told["url"].as_str().unwrap_or_default()))
    }

    fn capacity(&self) -> Option<Capacity> {
        capacity(&self.workers.as_ref()?.counters()?)
    }

    fn received(&self, directory: &Path) -> Option<u64> {
        let path = in_namespace(&self.mountpoint, directory).ok()?;
        received(&self.workers.as_ref()?.counters()?, &path)
    }

    fn warm(&mut self, files: &CachedFiles, stop: &Stop, tell: &mut dyn FnMut(&str)) -> Result<(), CacheError> {
        self.inner.warm(files, stop, tell)
    }

    fn empty(&mut self, files: &CachedFiles, stop: &Stop, tell: &mut dyn FnMut(&str)) -> Result<(), CacheError> {
        self.inner.empty(files, stop, tell)
    }

    fn release(&mut self, files: &CachedFiles, stop: &Stop) -> Result<(), CacheError> {
        self.inner.release(files, stop)
    }

    fn not_arrived(&self, directory: &Path, stop: &Stop) -> Option<String> {
        self.unfinished.as_ref()?.reason_below(&in_namespace(&self.mountpoint, directory).ok()?, stop)
    }

    fn discard(&mut self, directory: &Path, stop: &Stop) -> Vec<String> {
        let (Some(unfinished), Ok(below)) = (&self.unfinished, in_namespace(&self.mountpoint, directory)) else {
            return Vec::new();
        };
        let mut left = unfinished.drop_below(&below, self.workers.as_ref(), stop);
        let origin = self.origin();
        if let Some(root) = origin.as_ref().and_then(directory_of).filter(|_| self.is_here) {
            left.extend(unfinished::uploads_of(root, stop));
        }
        left
    }
}

/// What the workers hold together. What is on disk may be in memory as well, so that the larger of both counts.
fn capacity(workers: &[Value]) -> Option<Capacity> {
    let of_worker = |counters: &Value| {
        let memory = counters.pointer("/store/memory/capacity")?.as_u64()?;
        let disks = counters.pointer("/store/disks")?.as_array()?;
        Some(memory.max(disks.iter().filter_map(|disk| disk["capacity"].as_u64()).sum()))
    };
    let total = workers.iter().map(of_worker).sum::<Option<u64>>()?;
    Some(Capacity { usable: (total as f64 * STAYS) as u64, total })
}

/// Bytes from the origin that `path` is of, to all workers.
fn received(workers: &[Value], path: &FsPath) -> Option<u64> {
    let of_worker = |counters: &Value| origin_of(counters, path)?.pointer("/counts/bytes")?.as_u64();
    workers.iter().map(of_worker).sum()
}

/// What a worker says of the origin that `path` is of: the one that is mounted nearest above it.
fn origin_of<'a>(counters: &'a Value, path: &FsPath) -> Option<&'a Value> {
    let is_above = |origin: &&Value| {
        let at = origin["path"].as_str().and_then(|at| FsPath::new(at).ok());
        at.is_some_and(|at| path.relative_to(&at).is_some())
    };
    let above = counters["origins"].as_array()?.iter().filter(is_above);
    above.max_by_key(|origin| origin["path"].as_str().map_or(0, str::len))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(memory: u64, disks: &[u64], received: u64) -> Value {
        let disks: Vec<_> = disks.iter().map(|capacity| serde_json::json!({ "capacity": capacity })).collect();
        serde_json::json!({
            "store": { "memory": { "capacity": memory }, "disks": disks },
            "origins": [
                { "path": "/", "counts": { "bytes": 7 } },
                { "path": "/s3", "counts": { "bytes": received } },
                { "path": "/s3-old", "counts": { "bytes": 1000 } },
            ],
        })
    }

    #[test]
    fn workers_hold_the_larger_of_memory_and_disks_less_what_eviction_keeps_free() {
        let workers = [worker(1000, &[], 0), worker(100, &[2000, 2000], 0)];
        assert_eq!(capacity(&workers), Some(Capacity { usable: 4000, total: 5000 }));
        assert_eq!(capacity(&[Value::Null]), None);
    }

    #[test]
    fn what_came_from_the_origin_of_a_path_is_that_of_its_mount_and_of_all_workers() {
        let workers = [worker(1, &[], 10), worker(1, &[], 20)];
        let of = |path: &str| received(&workers, &FsPath::new(path).unwrap());
        assert_eq!((of("/s3/bench"), of("/other"), of("/s3-old/x")), (Some(30), Some(14), Some(2000)));
        let partly = [worker(1, &[], 10), serde_json::json!({})];
        assert_eq!(received(&partly, &FsPath::new("/s3").unwrap()), None, "half of it is not known");
    }
}
