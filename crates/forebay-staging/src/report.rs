//! What is staged and under way, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::shared::StagingShared;

/// What a [`Staging`](crate::Staging) counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StagingReport {
    /// Files.
    pub drafts: DraftCounts,
    /// Room in the staging directory.
    pub space: SpaceCounts,
    /// The way to the origin.
    pub uploads: UploadCounts,
}

/// Files that are being written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DraftCounts {
    /// Those that are open.
    pub open: usize,
    /// Those of them that have something that the origin does not have.
    pub dirty: usize,
    /// Those that could not be uploaded, and lie in the directory since.
    pub failed: usize,
}

/// Room in the staging directory, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SpaceCounts {
    /// What there is.
    pub size: u64,
    /// What is taken.
    pub used: u64,
    /// What files take that could not be uploaded.
    pub failed: u64,
    /// What was let go of to make room.
    pub let_go: u64,
    /// How many writers wait for room.
    pub writers_waiting: usize,
}

/// What goes to the origin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UploadCounts {
    /// Parts that are on their way.
    pub parts_in_flight: u64,
    /// Their bytes.
    pub bytes_in_flight: u64,
    /// Uploads in parts that were begun.
    pub begun: u64,
    /// Those that were completed.
    pub completed: u64,
    /// Those that were given up.
    pub aborted: u64,
    /// Files that went whole.
    pub puts: u64,
    /// Parts that arrived.
    pub parts: u64,
    /// Bytes that arrived, in parts and whole.
    pub bytes: u64,
    /// Syncs that failed.
    pub failures: u64,
}

impl StagingReport {
    pub(crate) fn of(shared: &StagingShared) -> Self {
        let drafts = shared.drafts();
        let dirty = drafts.iter().filter(|draft| draft.is_dirty()).count();
        shared.forget_kept();
        let (size, used, writers_waiting) = shared.room.occupancy();
        let (failed, failed_bytes) = shared.kept();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &shared.counts;
        Self {
            drafts: DraftCounts { open: drafts.len(), dirty, failed },
            space: SpaceCounts { size, used, failed: failed_bytes, let_go: count(&counts.let_go), writers_waiting },
            uploads: UploadCounts {
                parts_in_flight: count(&counts.parts_in_flight),
                bytes_in_flight: count(&counts.bytes_in_flight),
                begun: count(&counts.begun),
                completed: count(&counts.completed),
                aborted: count(&counts.aborted),
                puts: count(&counts.puts),
                parts: count(&counts.parts),
                bytes: count(&counts.bytes),
                failures: count(&counts.failures),
            },
        }
    }

    /// Files that were written and are not at the origin.
    #[must_use]
    pub fn not_uploaded(&self) -> usize {
        self.drafts.dirty + self.drafts.failed
    }
}
