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

    /// One that the process before this one had open for writing, and has given with what was written by these processes, if they are
    /// known.
    pub(crate) fn writing_on(inode: Arc<Inode>, revision: u64, processes: Vec<u32>) -> Self {
        let writers = Some(Arc::new(Writers::known(processes)));
        Self { writers, ..Self::for_reading(inode, None, revision, None) }
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

/// How much a handle reads before it is told of for the first time; after that, with each quarter more.
const TOLD_FIRST: u64 = 128 << 10;
/// A read of so many bytes may be a fault, around which the kernel reads as far as it reads ahead: 128 KiB and more.
const LARGE: u64 = 64 << 10;
/// With so many of them at places that do not follow each other it is looked whether they are.
const FAULTS: u64 = 2;
/// The kernel reads ahead by several requests at once, and the threads that take them may note them in another order.
const SLACK: u64 = 1 << 20;

/// What a handle read that we serve. Counted without any read-modify-write: what two reads at once lose of it does not matter.
#[derive(Debug, Default)]
pub(crate) struct ReadThrough {
    bytes: AtomicU64,
    sequential: AtomicU64,
    /// Where the last read ended.
    end: AtomicU64,
    /// How far the file was read from its start without a gap.
    reached: AtomicU64,
    /// Large reads that began elsewhere.
    jumps: AtomicU64,
    /// With how many bytes it is told of what was read; 0: never, since it is read past the page cache.
    told_at: AtomicU64,
}

impl ReadThrough {
    /// Of a handle that is read through the page cache.
    pub(crate) fn buffered() -> Self {
        Self { told_at: AtomicU64::new(TOLD_FIRST), ..Self::default() }
    }

    /// Notes a read. What has been read by now, where that is to be told.
    #[inline]
    pub(crate) fn note(&self, offset: u64, length: u64) -> Option<forebay_materialise::Reading> {
        let add = |counter: &AtomicU64, more| counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        add(&self.bytes, length);
        if self.end.load(Ordering::Relaxed) == offset {
            add(&self.sequential, length);
        } else if length >= LARGE {
            add(&self.jumps, 1);
        }
        let end = offset + length;
        self.end.store(end, Ordering::Relaxed);
        let reached = self.reached.load(Ordering::Relaxed);
        if offset <= reached.saturating_add(SLACK) && end > reached {
            self.reached.store(end, Ordering::Relaxed);
        }
        let (bytes, told_at) = (self.bytes.load(Ordering::Relaxed), self.told_at.load(Ordering::Relaxed));
        if told_at == 0 || bytes < told_at {
            return None;
        }
        self.told_at.store(bytes + (bytes / 4).max(TOLD_FIRST), Ordering::Relaxed);
        Some(self.total())
    }

    /// It as the next process is told of it.
    pub(crate) fn so_far(&self) -> ReadSoFar {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ReadSoFar { bytes: count(&self.bytes), sequential: count(&self.sequential), end: count(&self.end) }
    }

    /// What was read in another process.
    pub(crate) fn after(so_far: ReadSoFar) -> Self {
        let ReadSoFar { bytes, sequential, end } = so_far;
        let [bytes, sequential, end] = [bytes, sequential, end].map(AtomicU64::new);
        Self { bytes, sequential, end, ..Self::default() }
    }

    /// Whether some of it may have been faults of a mapping.
    pub(crate) fn may_be_faults(&self) -> bool {
        self.jumps.load(Ordering::Relaxed) >= FAULTS
    }

    /// All of them.
    pub(crate) fn total(&self) -> forebay_materialise::Reading {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        forebay_materialise::Reading {
            bytes: count(&self.bytes),
            sequential: count(&self.sequential),
            from_start: count(&self.reached),
            is_mapped: false,
        }
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
            assert_eq!(read.note(at * 10, 10), None);
        }
        assert_eq!(read.note(7, 10), None);
        let expected = forebay_materialise::Reading { bytes: 50, sequential: 40, from_start: 40, is_mapped: false };
        assert_eq!(read.total(), expected);
    }

    #[test]
    fn what_is_read_through_the_page_cache_is_told_of_now_and_then_and_large_jumps_are_counted() {
        let read = ReadThrough::buffered();
        let told = (0..1 << 14).filter(|at| read.note(at << 16, 1 << 16).is_some()).count();
        assert!((20..60).contains(&told), "{told} times for a GiB");
        assert_eq!((read.total().sequential, read.total().from_start), (1 << 30, 1 << 30));
        let _ = read.note(5 << 24, 1 << 16);
        for at in [9, 3, 7] {
            let _ = read.note(at << 24, 4096);
        }
        assert!(!read.may_be_faults(), "small reads are none");
        let _ = read.note(11 << 24, 1 << 16);
        assert!(read.may_be_faults());
        // Large reads at random places, cut by the kernel, are no reader from the start, and requests out of order are one.
        let (random, swapped) = (ReadThrough::buffered(), ReadThrough::buffered());
        for (at, part) in [3, 8, 1, 6].into_iter().flat_map(|at| (0..8).map(move |part| (at, part))) {
            let _ = random.note((at << 22) + (part << 19), 1 << 19);
        }
        for part in [1, 0, 3, 2] {
            let _ = swapped.note(part << 17, 1 << 17);
        }
        assert_eq!((random.total().from_start, swapped.total().from_start), (0, 1 << 19));
        let direct = ReadThrough::default();
        assert!((0..1 << 14).all(|at| direct.note(at << 16, 1 << 16).is_none()));
    }
}
