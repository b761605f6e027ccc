//! What targets share: a runtime, memory, and folders that take no disk.

use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use forebay_memory::{Pool, PoolOptions};
use forebay_types::ByteSize;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

thread_local! {
    static RUNTIME: Runtime = runtime();
}

/// Threads that wait for files.
const THREADS: usize = 8;

/// Its threads are there from the beginning, and stay: what one holds that starts or ends while LeakSanitizer looks is taken for a leak.
fn runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(THREADS).thread_keep_alive(Duration::from_secs(24 * 3600));
    let runtime = builder.build().expect("a runtime needs two descriptors");
    let all = Arc::new(Barrier::new(THREADS));
    let each = (0..THREADS).map(|_| {
        runtime.spawn_blocking({
            let all = Arc::clone(&all);
            move || all.wait().is_leader()
        })
    });
    let each: Vec<_> = each.collect();
    runtime.block_on(async {
        for thread in each {
            thread.await.expect("it only waits");
        }
    });
    runtime
}

/// Runs `work` on this thread's runtime.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(work))
}

/// A pool of this size.
pub(crate) fn pool(size: ByteSize) -> Pool {
    Pool::new(PoolOptions { huge_pages: false, ..PoolOptions::fixed(size) }).expect("address space is there")
}

/// A new and empty folder, in memory where the system has such a place.
pub(crate) fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let at = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("forebay-fuzz-").tempdir_in(at).expect("a folder can be made")
}
