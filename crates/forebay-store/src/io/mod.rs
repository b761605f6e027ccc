//! The seam to the kernel: reading and writing a slab file.
//!
//! [`DiskIo`] has two implementations, io_uring and a pool of threads, and a fake that fails on demand. All of them own
//! the memory of an operation until the operation has *ended*, whatever becomes of the future that waits for it
//! (invariant 3), and all take a bounded number of operations at a time: the next one waits for its turn.

#[cfg(test)]
mod conformance;
#[cfg(test)]
pub(crate) mod fake;
mod front;
#[cfg(feature = "simulation")]
pub(crate) mod medium;
mod threads;
mod uring;
mod write_buffer;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use forebay_memory::SpanMut;
use futures::future::BoxFuture;

use crate::{IoBackend, StoreError};
pub(crate) use write_buffer::{Page, WriteBuffer};

/// Reads and writes one slab file.
///
/// An operation that has begun goes on when its future is dropped; its memory, and what its [`WriteBuffer`] holds,
/// are let go when it has ended. Offsets, lengths and addresses are multiples of 4 KiB, as `O_DIRECT` wants them.
pub(crate) trait DiskIo: Send + Sync + 'static {
    /// Fills `into` from `offset`. Its end beyond the end of the file is an error, of kind `UnexpectedEof`.
    fn read_at(&self, offset: u64, into: SpanMut) -> BoxFuture<'static, io::Result<SpanMut>>;

    /// Writes all of `from` at `offset`.
    fn write_at(&self, offset: u64, from: WriteBuffer) -> BoxFuture<'static, io::Result<()>>;
}

/// The descriptors of one slab file: they differ when reads go through the page cache and writes past it.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) read: Arc<File>,
    pub(crate) write: Arc<File>,
}

/// Starts what reads and writes these files of a slab directory.
pub(crate) fn start(backend: IoBackend, files: Files, dir: &Path) -> Result<Arc<dyn DiskIo>, StoreError> {
    let threads = |files| {
        threads::start(files).map_err(|error| StoreError::Io {
            action: "start the I/O threads of",
            path: dir.to_owned(),
            error,
        })
    };
    match backend {
        IoBackend::Threads => Ok(Arc::new(threads(files)?)),
        IoBackend::Uring => match uring::start(files) {
            Ok(io) => Ok(Arc::new(io)),
            Err(error) => Err(StoreError::NoUring { error }),
        },
        IoBackend::Auto => match uring::start(files.clone()) {
            Ok(io) => Ok(Arc::new(io)),
            Err(error) => {
                tracing::info!(dir = %dir.display(), %error, "the kernel refuses io_uring, using threads for disk I/O");
                Ok(Arc::new(threads(files)?))
            }
        },
    }
}

fn gone() -> io::Error {
    io::Error::other("the disk I/O threads have stopped")
}
