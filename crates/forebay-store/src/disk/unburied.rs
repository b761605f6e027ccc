//! Extents that are still to be buried: they say on disk that they hold what was removed, and are given to nobody before they say
//! otherwise. Pure.
//!
//! On a disk that hangs they wait until it answers again. One whose header could not be written is tried again after a while, for as
//! long as it takes: it may be a bad page, or a file system that takes no writes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::geometry::Slot;
use super::space::DiskExtent;

/// How long those rest whose headers could not be written.
const REST: Duration = Duration::from_secs(30);

/// What is still to be buried on one disk.
#[derive(Debug, Default)]
pub(super) struct Unburied {
    /// As its disk does not answer.
    silent: Vec<Arc<DiskExtent>>,
    /// As its disk said that it could not.
    failed: Vec<Arc<DiskExtent>>,
    /// Those that have failed, until they are buried: also while they are tried again.
    failing: HashSet<Slot>,
    /// When those that have failed are tried again.
    again_at: Option<Instant>,
}

impl Unburied {
    /// The disk did not answer.
    pub(super) fn silent(&mut self, extent: Arc<DiskExtent>) {
        self.silent.push(extent);
    }

    /// The disk said that it could not; whether it had not said so of this one before.
    pub(super) fn failed(&mut self, extent: Arc<DiskExtent>, now: Instant) -> bool {
        let is_first = self.failing.insert(extent.slot());
        self.failed.push(extent);
        self.again_at.get_or_insert(now + REST);
        is_first
    }

    /// It is buried.
    pub(super) fn buried(&mut self, slot: Slot) {
        self.failing.remove(&slot);
    }

    /// Those to be buried now, as the disk answers.
    pub(super) fn take(&mut self, now: Instant) -> Vec<Arc<DiskExtent>> {
        let mut taken = std::mem::take(&mut self.silent);
        if self.again_at.is_some_and(|at| at <= now) {
            self.again_at = None;
            taken.append(&mut self.failed);
        }
        taken
    }

    /// How many there are, but for those that are being tried.
    pub(super) fn len(&self) -> usize {
        self.silent.len() + self.failed.len()
    }
}
