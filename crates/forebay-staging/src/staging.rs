//! A staging directory in use: opens it, starts the tasks behind its drafts, makes drafts, and ends it all.

use std::sync::Arc;

use forebay_types::{ByteSize, Failure, FsPath};
use tokio::runtime::Handle;
use tokio_util::sync::DropGuard;

use crate::content::Content;
use crate::draft::Draft;
use crate::error::StagingError;
use crate::journal::Journal;
use crate::options::StagingOptions;
use crate::report::StagingReport;
use crate::schedule::Schedule;
use crate::shared::{DraftInner, StagingShared};
use crate::{Base, MAX_PART, Remote, reclaim, recover, uploader};

/// The smallest part that S3 takes anywhere but at the end of a file.
const MIN_PART: ByteSize = ByteSize::mib(5);
/// The files that a process is writing. Clones are the same; background work ends with the last.
#[derive(Clone, Debug)]
pub struct Staging {
    shared: Arc<StagingShared>,
    _open: Arc<DropGuard>,
}

impl Staging {
    /// Opens a staging directory. What dead processes left in it is looked through in the background: uploads that will
    /// never be completed are aborted.
    ///
    /// # Errors
    /// [`StagingError`] when the options make no sense, or the directory takes no files.
    pub fn open(options: StagingOptions, remote: Arc<dyn Remote>, runtime: Handle) -> Result<Self, StagingError> {
        if !(MIN_PART..=ByteSize::bytes(u64::from(MAX_PART))).contains(&options.part_size) {
            return Err(StagingError::PartSize(options.part_size));
        }
        if options.memory.as_u64() < u64::from(MAX_PART) {
            return Err(StagingError::Memory(options.memory));
        }
        let schedule = Schedule::new(options.part_size.as_u64());
        if options.size.as_u64() < schedule.largest() {
            return Err(StagingError::Size { given: options.size, least: ByteSize::bytes(schedule.largest()) });
        }
        Self::open_scheduled(options, schedule, remote, runtime)
    }

    /// As [`Staging::open`], with parts of any sizes.
    pub(crate) fn open_scheduled(
        options: StagingOptions,
        schedule: Schedule,
        remote: Arc<dyn Remote>,
        runtime: Handle,
    ) -> Result<Self, StagingError> {
        let journal = Journal::open(&options.dir)?;
        Ok(Self::open_on(journal, options, schedule, remote, runtime))
    }

    /// As [`Staging::open`], in a directory that is open.
    pub(crate) fn open_on(
        journal: Journal,
        options: StagingOptions,
        schedule: Schedule,
        remote: Arc<dyn Remote>,
        runtime: Handle,
    ) -> Self {
        let shared = Arc::new(StagingShared::new(options, schedule, journal, remote, runtime, None));
        shared.spawn(uploader::run(Arc::clone(&shared)));
        shared.spawn(reclaim::run(Arc::clone(&shared)));
        shared.spawn(recover::run(Arc::clone(&shared)));
        let open = Arc::new(shared.closing.clone().drop_guard());
        Self { shared, _open: open }
    }

    /// A new and empty file. It is dirty: to sync it makes an empty file at the origin.
    ///
    /// # Errors
    /// `Unavailable` when the mount is being closed.
    pub fn create(&self, path: FsPath) -> Result<Arc<Draft>, Failure> {
        self.draft(path, Content::new(0), None)
    }

    /// A file that begins as `base`. It is clean.
    ///
    /// # Errors
    /// `TooLarge` for a base that all parts together do not hold; `Unavailable` when the mount is being closed.
    pub fn revise(&self, path: FsPath, base: Arc<dyn Base>) -> Result<Arc<Draft>, Failure> {
        let size = base.version().size;
        let most = self.shared.schedule.max_size();
        if size > most {
            return Err(crate::error::too_large(&path, most));
        }
        self.draft(path, Content::new(size), Some(base))
    }

    pub(crate) fn shared(&self) -> &Arc<StagingShared> {
        &self.shared
    }

    fn draft(&self, path: FsPath, content: Content, base: Option<Arc<dyn Base>>) -> Result<Arc<Draft>, Failure> {
        if self.shared.closing.is_cancelled() {
            return Err(crate::error::closing());
        }
        Ok(Arc::new(Draft::new(DraftInner::new(&self.shared, path, content, base))))
    }

    /// Stops background work and waits for what is under way. Dirty drafts stay staged and are written down; nothing
    /// can be synced any more.
    pub async fn close(&self) {
        self.shared.closing.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        for draft in self.shared.drafts() {
            draft.write_down_unsynced();
        }
    }

    /// What the directory holds at most, in bytes, once all that is under way has arrived at the origin: what its file system has left,
    /// and its options allow, but for files that could not be uploaded. `None` when the file system does not say. Asks it, which may
    /// take as long as the disk does.
    pub async fn holds(&self) -> Option<u64> {
        let shared = Arc::clone(&self.shared);
        let look = move || {
            let found = rustix::fs::statvfs(shared.journal.dir()).ok().filter(|found| found.f_blocks > 0)?;
            let (size, used, _) = shared.room.occupancy();
            Some(at_most(size, used, shared.kept().1, found.f_bavail.saturating_mul(found.f_frsize)))
        };
        self.shared.blocking(look).await.ok().flatten()
    }

    /// What the directory must hold so that a file of any size goes through it: its largest part.
    #[must_use]
    pub fn least(&self) -> u64 {
        self.shared.schedule.largest()
    }

    /// What is staged and under way, in numbers.
    #[must_use]
    pub fn report(&self) -> StagingReport {
        StagingReport::of(&self.shared)
    }
}

/// `used` of the `size` bytes of room are taken, `kept` of them for ever, and the file system has `available` bytes left.
fn at_most(size: u64, used: u64, kept: u64, available: u64) -> u64 {
    size.min(available.saturating_add(used)).saturating_sub(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_its_way_is_no_loss_of_room_and_what_cannot_be_uploaded_is() {
        // Of 100, on a disk with enough room, and on one that has less than is allowed.
        assert_eq!((at_most(100, 0, 0, 1000), at_most(100, 60, 0, 1000), at_most(100, 60, 50, 1000)), (100, 100, 50));
        assert_eq!((at_most(100, 60, 0, 10), at_most(100, 60, 60, 10), at_most(100, 0, 0, 0)), (70, 10, 0));
    }
}
