//! The backend that stores materialised files: the trait, and one suite of tests for all that implement it (`conformance`).
//!
//! All of it blocks, so it is called where that is allowed. A file is in one of three places: nowhere, a [`Part`], or under its
//! [`Name`], whole and with its [`Record`]; a crash at any moment leaves it in one of them.

use std::io;
use std::os::fd::OwnedFd;
use std::time::SystemTime;

use serde::Serialize;

use crate::name::Name;
use crate::record::Record;

/// What a backend stores files on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendKind {
    /// Memory, in huge pages. Reads may have any alignment, also with `O_DIRECT`.
    Memory,
    /// A directory. Reads with `O_DIRECT` must be aligned as its file system wants it.
    Directory,
}

/// Stores whole files by name.
pub(crate) trait FileBackend: Send + Sync + 'static {
    fn kind(&self) -> BackendKind;

    /// Bytes that could be written now.
    fn free(&self) -> io::Result<u64>;

    /// A new file, with all of its room where the backend can set that aside. `ENOSPC` where there is too little.
    fn begin(&self, name: Name) -> io::Result<Box<dyn Part>>;

    /// A descriptor for reading. No process can make one for writing of it.
    fn open(&self, name: Name) -> io::Result<OwnedFd>;

    /// Its bytes, as the backend has them: from the disk, past the page cache.
    fn view(&self, name: Name) -> io::Result<Box<dyn View>>;

    /// What is written down of it; `None` where that cannot be read as it was written.
    fn record(&self, name: Name) -> io::Result<Option<Record>>;

    /// It was in use until now.
    fn used(&self, name: Name);

    /// Takes its name away. Its bytes stay as they are while it is open or mapped.
    fn remove(&self, name: Name) -> io::Result<()>;

    /// What a process before left here whole, that which was used last first; everything else is removed.
    fn found(&self) -> io::Result<Vec<Found>>;
}

/// A file that is not whole yet. Dropped, it is gone.
pub(crate) trait Part: Send {
    /// Writes some of it.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// What was written, as the backend has it.
    fn view(&mut self) -> io::Result<&mut dyn View>;

    /// Gives it its name. Fails where it has holes, or another length than its name says.
    fn publish(self: Box<Self>, record: &Record) -> io::Result<()>;
}

/// Bytes of a file.
pub(crate) trait View: Send {
    /// The `length` bytes at `offset`, which is a multiple of a sector's size.
    fn at(&mut self, offset: u64, length: usize) -> io::Result<&[u8]>;
}

/// A file that a process before left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) name: Name,
    /// When it was last in use.
    pub(crate) used: SystemTime,
}
