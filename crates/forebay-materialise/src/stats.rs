//! What materialised files do, in numbers: what `.stats.json` shows and metrics are made of.
//!
//! Bytes that the kernel reads from them are in no number: only the kernel knows of such reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::backend::BackendKind;

/// The upper ends of the histogram of how long fills took, in seconds; one more bucket has the rest.
pub const FILL_SECONDS: [f64; 10] = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0];

/// The numbers at one moment. What counts up has counted since the mount was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LocalStats {
    /// Whether files are materialised.
    pub on: bool,
    /// Why not, though they were asked for.
    pub why_off: Option<String>,
    /// What stores them.
    pub backend: Option<BackendKind>,
    /// The most bytes that they may take.
    pub capacity_bytes: u64,
    /// Bytes that are in huge pages; at most what the machine has in such pages. Memory only.
    pub huge_bytes: u64,
    /// How many files there are.
    pub files: Files,
    /// The room that they take.
    pub bytes: Bytes,
    /// What was answered to opens.
    pub opens: Opens,
    /// Why files were not taken, though there was reason to.
    pub refused: Refused,
    /// How fills ended.
    pub fills: Fills,
    /// Files that had to go for others.
    pub evictions: u64,
    /// Sectors that were not what their checksums say: in what was just written, at rest, or after a restart.
    pub corrupt_sectors: u64,
    /// Bytes that were checked again at rest.
    pub checked_bytes: u64,
}

/// Files by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Files {
    /// Waiting for their turn, or for room.
    pub queued: u64,
    /// Being filled.
    pub filling: u64,
    /// Whole and checked.
    pub ready: u64,
    /// Of them, those that are open.
    pub pinned: u64,
    /// Found in the directory, and not yet checked.
    pub unchecked: u64,
    /// Gone, but for the handles that have them open.
    pub leaving: u64,
    /// Failed, and left alone for a while.
    pub cooling: u64,
}

/// Room by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// Of whole and checked files.
    pub ready: u64,
    /// Set aside for those that are being filled.
    pub filling: u64,
    /// Of files found in the directory and not yet checked.
    pub unchecked: u64,
    /// Of files that are still open, or that are just being removed.
    pub leaving: u64,
    /// Of files that are gone, where programs still have them mapped.
    pub lingering: u64,
}

/// Opens by answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Opens {
    /// The file was there.
    pub ready: u64,
    /// The open waited and the file came.
    pub waited: u64,
    /// The open waited, and the file did not come in time.
    pub in_vain: u64,
    /// The file was not there.
    pub no: u64,
}

/// Refusals by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// What is there is worth more.
    pub room: u64,
    /// Too long, or empty.
    pub size: u64,
    /// It failed a moment ago.
    pub cooling: u64,
}

/// Fills by end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Fills {
    /// Whole and checked.
    pub done: u64,
    /// The origin has another version.
    pub changed: u64,
    /// The file was not wanted any more.
    pub cancelled: u64,
    /// No room, against what was reckoned.
    pub no_room: u64,
    /// Arrived corrupt twice.
    pub corrupt: u64,
    /// For another reason.
    pub failed: u64,
    /// Bytes of those that were done.
    pub bytes: u64,
    /// How many of those that were done took no longer than this: the buckets of [`FILL_SECONDS`], and one for the rest.
    pub seconds: [u64; FILL_SECONDS.len() + 1],
    /// How long those that were done took, together.
    pub seconds_sum: f64,
}

/// What counts up outside the core.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) waited: AtomicU64,
    pub(crate) in_vain: AtomicU64,
    pub(crate) done: AtomicU64,
    pub(crate) changed: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) no_room: AtomicU64,
    pub(crate) corrupt: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) micros: AtomicU64,
    pub(crate) seconds: [AtomicU64; FILL_SECONDS.len() + 1],
    pub(crate) corrupt_sectors: AtomicU64,
    pub(crate) checked_bytes: AtomicU64,
}

impl Counts {
    pub(crate) fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }

    /// A fill of so many bytes was done.
    pub(crate) fn filled(&self, bytes: u64, took: Duration) {
        Self::add(&self.done, 1);
        Self::add(&self.bytes, bytes);
        Self::add(&self.micros, u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        let bucket = FILL_SECONDS.iter().position(|end| took.as_secs_f64() <= *end);
        Self::add(&self.seconds[bucket.unwrap_or(FILL_SECONDS.len())], 1);
    }

    /// Adds these to what the core knows.
    pub(crate) fn report(&self, stats: &mut LocalStats) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        stats.opens.waited = count(&self.waited);
        stats.opens.in_vain = count(&self.in_vain);
        stats.fills = Fills {
            done: count(&self.done),
            changed: count(&self.changed),
            cancelled: count(&self.cancelled),
            no_room: count(&self.no_room),
            corrupt: count(&self.corrupt),
            failed: count(&self.failed),
            bytes: count(&self.bytes),
            seconds: std::array::from_fn(|at| count(&self.seconds[at])),
            seconds_sum: Duration::from_micros(count(&self.micros)).as_secs_f64(),
        };
        stats.corrupt_sectors = count(&self.corrupt_sectors);
        stats.checked_bytes = count(&self.checked_bytes);
    }
}
