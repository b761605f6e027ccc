//! Who lends the memory that files take: the worker in the same process, whose cache they share.
//!
//! Without a lender the size of the backend is all that bounds files. With one, a fill asks for room before it writes, and what goes
//! gives it back. The lender may also want room back that is in use; the index decides then which files go.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::time::Instant;

use forebay_types::{BlockKey, BlockLayout, FileId, SectorChecksums};

/// Lends room for files in memory. All numbers are bytes.
#[async_trait::async_trait]
pub trait Lender: Debug + Send + Sync + 'static {
    /// Lends so much more, or nothing. It may wait until there is room, which it makes where it `may_evict` what it has itself; else it
    /// lends what is spare.
    async fn lend(&self, bytes: u64, may_evict: bool) -> bool;

    /// So much of what was lent is free again.
    fn give_back(&self, bytes: u64);

    /// So much is in use in all that no file accounts for: programs have files mapped that are gone.
    fn lingers(&self, bytes: u64);

    /// A file is gone: so much is free again, but for what lingers in all by now.
    fn is_gone(&self, bytes: u64, lingering: u64) {
        self.lingers(lingering);
        self.give_back(bytes);
    }

    /// These bytes are in a file too, which is not whole yet: the lender may give up its own copy first of all.
    fn is_doubled(&self, key: BlockKey);

    /// A file is whole: `file` leads to its bytes, which were checked against these checksums and stay as they are until
    /// [`Lender::leaves`]. May take a while.
    fn is_whole(&self, id: FileId, layout: BlockLayout, file: OwnedFd, checksums: &SectorChecksums);

    /// The file is not to be used any more. It may be removed as soon as this returns; what was mapped of it stays.
    fn leaves(&self, id: FileId);

    /// Files that are whole, of which the lender has read bytes since the last call that are not what they were. Asked about once a
    /// second.
    fn found_wrong(&self) -> Vec<FileId>;

    /// What is wanted back, if anything. Asked about once a second.
    fn wanted_back(&self, now: Instant) -> Option<WantedBack>;

    /// No file takes room any more: all is given back, whatever was said of it, and nothing is lent from now on.
    fn end(&self);
}

/// Room that a lender wants back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedBack {
    /// How much of it.
    pub bytes: u64,
    /// Files that were used since then stay.
    pub unused_since: Instant,
}
