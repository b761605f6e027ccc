//! What a handle of the kernel's stands for: an open file, or an open directory. The table of them is in [`crate::handles`].
//!
//! A handle on a file remembers what the inode was when it was opened ([`crate::inode`]), so that a read need not ask; and what was
//! read through it, from which is decided which files are materialised.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_client::OpenFile;
use forebay_handover::{FileHandle as HandedFile, ReadSoFar, Reads};
use forebay_types::FileId;
use tokio::sync::Mutex;

use crate::inode::{Inode, version_id};
use crate::listing::Listing;
use crate::writers::Writers;

/// An open file.
#[derive(Clone)]
pub(crate) struct FileHandle {
    pub(crate) inode: Arc<Inode>,
    /// What it reads, while the inode is at the revision of when it was opened. `None` when it was being written then.
    pub(crate) file: Option<Arc<OpenFile>>,
    /// That of the inode when it was opened.
    pub(crate) revision: u64,
    /// The processes that write through it; `None` for a handle that only reads.
    pub(crate) writers: Option<Arc<Writers>>,
    /// What was read through it, where that may make its file worth materialising.
    pub(crate) read: Option<Arc<ReadThrough>>,
    /// A process had it open for writing that died: what was written is not known.
    pub(crate) is_lost: bool,
}

impl FileHandle {
    /// A handle for reading `file`, as the inode was at `revision`.
    pub(crate) fn for_reading(
        inode: Arc<Inode>,
        file: Option<Arc<OpenFile>>,
        revision: u64,
        read: Option<Arc<ReadThrough>>,
    ) -> Self {
        Self { inode, file, revision, writers: None, read, is_lost: false }
    }

    /// One that a process had open for writing that died.
    pub(crate) fn lost(inode: Arc<Inode>, revision: u64) -> Self {
        Self { is_lost: true, ..Self::for_reading(inode, None, revision, None) }
    }

    /// It as another process is told of it, whose list has its inode at `place`.
    pub(crate) fn handed(&self, place: u32) -> HandedFile {
        let of_inode = version_id(&self.inode.known().attr);
        let reads = match &self.file {
            _ if self.is_lost || self.writers.is_some() => Reads::Lost,
            None => Reads::WhatItsInodeIs,
            Some(open) if of_inode == Some(open.id()) => Reads::ItsInodesVersion,
            Some(open) => Reads::Version(open.version().clone()),
        };
        let read = self.read.as_ref().map(|read| read.so_far());
        HandedFile { inode: place, revision: self.revision, reads, read }
    }

    /// The version that was read through it, its size, and how it was read, where that was noted.
    pub(crate) fn was_read(&self) -> Option<(FileId, u64, forebay_materialise::Reading)> {
        let (file, read) = self.file.as_ref().zip(self.read.as_ref())?;
        Some((file.id(), file.version().size, read.total()))
    }

    /// A handle for writing, opened by this thread.
    pub(crate) fn for_writing(inode: Arc<Inode>, thread: u32) -> Self {
        let revision = inode.revision();
        let writers = Some(Arc::new(Writers::of(thread)));
        Self { inode, file: None, revision, writers, read: None, is_lost: false }
    }
}

/// What a handle read that we serve. Counted without any read-modify-write: what two reads at once lose of it does not matter.
#[derive(Debug, Default)]
pub(crate) struct ReadThrough {
    bytes: AtomicU64,
    sequential: AtomicU64,
    /// Where the last read ended.
    end: AtomicU64,
}

impl ReadThrough {
    /// Notes a read.
    pub(crate) fn note(&self, offset: u64, length: u64) {
        let add = |counter: &AtomicU64| counter.store(counter.load(Ordering::Relaxed) + length, Ordering::Relaxed);
        add(&self.bytes);
        if self.end.load(Ordering::Relaxed) == offset {
            add(&self.sequential);
        }
        self.end.store(offset + length, Ordering::Relaxed);
    }

    /// It as the next process is told of it.
    pub(crate) fn so_far(&self) -> ReadSoFar {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ReadSoFar { bytes: count(&self.bytes), sequential: count(&self.sequential), end: count(&self.end) }
    }

    /// What was read in another process.
    pub(crate) fn after(so_far: ReadSoFar) -> Self {
        let ReadSoFar { bytes, sequential, end } = so_far;
        Self { bytes: AtomicU64::new(bytes), sequential: AtomicU64::new(sequential), end: AtomicU64::new(end) }
    }

    /// All of them.
    pub(crate) fn total(&self) -> forebay_materialise::Reading {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        forebay_materialise::Reading { bytes: count(&self.bytes), sequential: count(&self.sequential) }
    }
}

/// An open directory.
pub(crate) struct DirectoryHandle {
    pub(crate) inode: Arc<Inode>,
    pub(crate) names: Mutex<Names>,
}

impl DirectoryHandle {
    /// A handle on `inode`, of which nothing was read yet.
    pub(crate) fn new(inode: Arc<Inode>) -> Self {
        Self { inode, names: Mutex::default() }
    }
}

/// Where a directory is being read.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) listing: Listing,
    /// Names of files that were created here and are not at the origin yet. They come after those that are.
    pub(crate) created: Vec<Box<[u8]>>,
    /// How many changes of the listing are noted in the journal.
    pub(crate) noted: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_from_the_start_is_sequential_and_one_that_jumps_is_not() {
        let read = ReadThrough::default();
        for at in 0..4 {
            read.note(at * 10, 10);
        }
        read.note(7, 10);
        assert_eq!(read.total(), forebay_materialise::Reading { bytes: 50, sequential: 40 });
    }
}
