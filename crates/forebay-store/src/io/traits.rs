//! The interface to the kernel.
//!
//! [`DiskIo`] has two implementations, io_uring and a pool of threads, and a fake that fails on demand. All of them own
//! the memory of an operation until the operation has *ended*, whatever becomes of the future that waits for it
//! (invariant 3), and all take a bounded number of operations at a time: the next one waits for its turn. A disk that hangs
//! is an error to whoever waits for it ([`is_silent`]).

use std::fs::File;
use std::io;
use std::sync::Arc;

use forebay_memory::SpanMut;
use futures::future::BoxFuture;

use super::watch::Watch;
use super::write_buffer::WriteBuffer;

/// Reads and writes one slab file.
///
/// An operation that has begun goes on when its future is dropped, or its caller is told that the disk is silent; its
/// memory, and what its [`WriteBuffer`] holds, are let go when it has ended. Offsets, lengths and addresses are multiples
/// of 4 KiB, as `O_DIRECT` wants them.
pub(crate) trait DiskIo: Send + Sync + 'static {
    /// Fills `into` from `offset`. Its end beyond the end of the file is an error, of kind `UnexpectedEof`.
    fn read_at(&self, offset: u64, into: SpanMut) -> BoxFuture<'static, io::Result<SpanMut>>;

    /// Writes all of `from` at `offset`.
    fn write_at(&self, offset: u64, from: WriteBuffer) -> BoxFuture<'static, io::Result<()>>;

    /// Reads from the beginning of the file, a page or more, to find out whether the disk answers: also one that is out,
    /// and not from the page cache where its file system can do without.
    fn probe(&self, into: SpanMut) -> BoxFuture<'static, io::Result<SpanMut>> {
        self.read_at(0, into)
    }

    /// Whether the disk answers.
    fn watch(&self) -> &Arc<Watch>;
}

/// Why an operation is not waited for any more. It may still be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the disk does not answer")]
struct Silence;

/// What whoever waits for a disk that hangs is told.
pub(super) fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, Silence)
}

/// Whether the disk said nothing, rather than that something is wrong.
pub(crate) fn is_silent(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Silence>())
}

/// The descriptors of one slab file: they differ when reads go through the page cache and writes past it.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) read: Arc<File>,
    pub(crate) write: Arc<File>,
}
