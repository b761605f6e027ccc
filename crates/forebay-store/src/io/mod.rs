//! Reading and writing a slab file. The interface is [`DiskIo`] (`traits.rs`), and here is the choice between its
//! implementations, io_uring and a pool of threads. `front.rs` is what they share, `liveness.rs` judges whether the disk
//! answers, and `watch.rs` tells it and those who wait.

#[cfg(test)]
mod conformance;
mod ending;
#[cfg(test)]
pub(crate) mod fake;
mod front;
mod liveness;
#[cfg(feature = "simulation")]
pub(crate) mod medium;
mod threads;
mod traits;
mod uring;
mod watch;
mod write_buffer;

use std::path::Path;
use std::sync::Arc;

use crate::{IoBackend, StoreError};
pub(crate) use traits::{DiskIo, Files, is_silent};
#[cfg(test)]
pub(crate) use watch::Watch;
pub(crate) use watch::{Limits, WatchStats};
pub(crate) use write_buffer::{Page, WriteBuffer};

/// Starts what reads and writes these files of a slab directory.
pub(crate) fn start(
    backend: IoBackend,
    files: Files,
    dir: &Path,
    limits: Limits,
) -> Result<Arc<dyn DiskIo>, StoreError> {
    let threads = |files| {
        threads::start(files, dir, limits).map_err(|error| StoreError::io("start the I/O threads of", dir, error))
    };
    match backend {
        IoBackend::Threads => Ok(Arc::new(threads(files)?)),
        IoBackend::Uring => match uring::start(files, dir, limits) {
            Ok(io) => Ok(Arc::new(io)),
            Err(error) => Err(StoreError::NoUring { error }),
        },
        IoBackend::Auto => match uring::start(files.clone(), dir, limits) {
            Ok(io) => Ok(Arc::new(io)),
            Err(error) => {
                tracing::info!(dir = %dir.display(), %error, "the kernel refuses io_uring, using threads for disk I/O");
                Ok(Arc::new(threads(files)?))
            }
        },
    }
}
