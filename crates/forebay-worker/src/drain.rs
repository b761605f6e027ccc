//! Handing over what is cached before a worker leaves.
//!
//! The worker walks its store and has the new owner of each run adopt it: the new owner pulls the bytes, so it decides how
//! much it takes at once and nothing is pushed into a cache that is full. Reads go on being answered all the time, and what
//! is evicted on the way is no failure. A pass over the store may miss what came while it was under way, so passes follow
//! one another until one found nothing that its new owner lacked, or all was taken twice over: then new owners evict what they take. What was done is state apart from what does it.

use std::sync::Arc;
use std::time::Duration;

use forebay_store::{HeldRun, Store};
use forebay_types::{BlockKey, ByteSize, Failure, FailureKind, SectorRange};
use futures::stream::{self, StreamExt};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Blocks that are looked at together.
const PAGE: usize = 256;
/// Passes at most: a cache that fills as fast as it is handed over would be walked for ever.
const MAX_PASSES: u32 = 16;

/// The workers that take over what a worker has.
#[async_trait::async_trait]
pub trait DrainTargets: Send + Sync + 'static {
    /// Has the new owner of a block take a part of it from this worker. `block_length` is as much as this worker knows of the
    /// block's length: where the last of the sectors ends.
    ///
    /// # Errors
    /// When there is no new owner, or it does not do it. [`FailureKind::NotCached`]: this worker does not have it any more.
    async fn adopt(&self, key: BlockKey, sectors: SectorRange, block_length: u32) -> Result<AdoptOutcome, Failure>;
}

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdoptOutcome {
    /// The new owner took so many bytes.
    Adopted(u32),
    /// It had all of it.
    Held,
}

/// How a drain goes about it.
#[derive(Clone, Copy, Debug)]
pub struct DrainOptions {
    /// Runs that are handed over at once.
    pub at_once: usize,
    /// Bytes a second, at most.
    pub bandwidth: Option<ByteSize>,
}

impl Default for DrainOptions {
    fn default() -> Self {
        Self { at_once: 8, bandwidth: None }
    }
}

/// Whether a worker can be stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainVerdict {
    /// Not yet.
    #[default]
    Running,
    /// Every run was offered: its new owner has it, or had it and evicted it again.
    Complete,
    /// The last pass could hand nothing over, some of it failed, and nothing was skipped; or the cache fills as fast as it
    /// is handed over. Draining again later may help.
    Stuck,
    /// It was told to stop.
    Stopped,
}

impl DrainVerdict {
    /// Its name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Stuck => "stuck",
            Self::Stopped => "stopped",
        }
    }
}

/// How far a drain is. Runs and bytes are those of the pass under way, the rest is of all passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DrainProgress {
    /// Which pass is under way, from 1.
    pub pass: u32,
    /// Runs that were held when the pass began.
    pub runs_total: u64,
    /// Runs that were dealt with.
    pub runs_done: u64,
    /// Bytes that were held when the pass began.
    pub bytes_total: u64,
    /// Bytes that were held when the first pass began.
    pub bytes_at_first: u64,
    /// Bytes in the runs that were dealt with.
    pub bytes_done: u64,
    /// Runs that were adopted, all passes together.
    pub runs_adopted: u64,
    /// Bytes that were, all passes together.
    pub bytes_adopted: u64,
    /// Runs that the new owner had already, in this pass.
    pub runs_held: u64,
    /// Runs that were evicted before they could be handed over, in this pass.
    pub runs_skipped: u64,
    /// Runs that could not be handed over, in this pass.
    pub runs_failed: u64,
    /// Runs that were adopted, in this pass.
    pub runs_adopted_in_pass: u64,
    /// Whether it is over, and how it ended.
    pub verdict: DrainVerdict,
}

impl DrainProgress {
    fn begin_pass(&mut self, runs: u64, bytes: u64) {
        let Self { pass, bytes_at_first, runs_adopted, bytes_adopted, .. } = *self;
        *self = Self {
            pass: pass + 1,
            runs_total: runs,
            bytes_total: bytes,
            bytes_at_first: if pass == 0 { bytes } else { bytes_at_first },
            runs_adopted,
            bytes_adopted,
            ..Self::default()
        };
    }

    fn note(&mut self, length: u32, outcome: &Result<AdoptOutcome, Failure>) {
        self.runs_done += 1;
        self.bytes_done += u64::from(length);
        match outcome {
            Ok(AdoptOutcome::Adopted(bytes)) => {
                self.runs_adopted += 1;
                self.runs_adopted_in_pass += 1;
                self.bytes_adopted += u64::from(*bytes);
            }
            Ok(AdoptOutcome::Held) => self.runs_held += 1,
            Err(failure) if failure.kind() == FailureKind::NotCached => self.runs_skipped += 1,
            Err(_) => self.runs_failed += 1,
        }
    }

    fn end_pass(&mut self) {
        self.verdict = match (self.runs_adopted_in_pass, self.runs_failed) {
            (0, 0) => DrainVerdict::Complete,
            // What was elsewhere in the store by the time of its turn is offered again.
            (0, _) if self.runs_skipped > 0 && self.pass < MAX_PASSES => DrainVerdict::Running,
            (0, _) => DrainVerdict::Stuck,
            // What was handed over before and is lacking again was evicted there: new owners with less room than there is to
            // hold would take and evict for ever.
            (_, 0) if self.bytes_adopted >= 2 * self.bytes_at_first || self.pass >= MAX_PASSES => {
                DrainVerdict::Complete
            }
            _ if self.pass >= MAX_PASSES => DrainVerdict::Stuck,
            _ => DrainVerdict::Running,
        };
    }
}

/// Spreads bytes over time. Pure.
struct Pace {
    bytes_per_second: Option<u64>,
    /// When what was noted so far will have had its time.
    due: Instant,
}

impl Pace {
    /// How long to wait after these bytes.
    fn after(&mut self, bytes: u32, now: Instant) -> Duration {
        let Some(rate) = self.bytes_per_second else { return Duration::ZERO };
        self.due = self.due.max(now) + Duration::from_secs_f64(f64::from(bytes) / rate.max(1) as f64);
        self.due - now
    }
}

/// Hands over what `store` holds, in passes, until there is nothing left to hand over, it is stuck, or `stop` says so. Tells
/// `progress` after each run.
pub(crate) async fn drain(
    store: &Store,
    targets: &Arc<dyn DrainTargets>,
    options: DrainOptions,
    progress: &watch::Sender<DrainProgress>,
    stop: &CancellationToken,
) -> DrainProgress {
    progress.send_replace(DrainProgress::default());
    let bytes_per_second = options.bandwidth.map(ByteSize::as_u64);
    let pace = &forebay_locks::Mutex::new(Pace { bytes_per_second, due: Instant::now() });
    while progress.borrow().verdict == DrainVerdict::Running {
        let (runs, bytes) = count(store).await;
        progress.send_modify(|progress| progress.begin_pass(runs, bytes));
        let handed_over = runs_of(store).map(|(key, run)| async move {
            let outcome = targets.adopt(key, run.sectors, run.end).await;
            if let Err(failure) = &outcome
                && failure.kind() != FailureKind::NotCached
            {
                tracing::debug!(block = %key, %failure, "a run was not adopted");
            }
            let wait = match outcome {
                Ok(AdoptOutcome::Adopted(bytes)) => pace.lock().after(bytes, Instant::now()),
                _ => Duration::ZERO,
            };
            progress.send_modify(|progress| progress.note(run.length(), &outcome));
            tokio::time::sleep(wait).await;
        });
        let pass = handed_over.buffer_unordered(options.at_once.max(1)).for_each(|()| async {});
        tokio::select! {
            () = stop.cancelled() => {
                progress.send_modify(|progress| progress.verdict = DrainVerdict::Stopped);
            }
            () = pass => progress.send_modify(DrainProgress::end_pass),
        }
    }
    *progress.borrow()
}

/// What the store holds, run by run. Memory for a page of blocks, whatever the store's size.
fn runs_of(store: &Store) -> impl stream::Stream<Item = (BlockKey, HeldRun)> + '_ {
    let pages = stream::unfold(None, move |last: Option<BlockKey>| async move {
        // Walking a large store leaves room for others.
        tokio::task::yield_now().await;
        let page = store.held(last.as_ref(), PAGE);
        let last = page.last()?.key;
        Some((page, Some(last)))
    });
    pages.flat_map(|page| {
        let runs = page.into_iter().flat_map(|block| block.runs.into_iter().map(move |run| (block.key, run)));
        stream::iter(runs)
    })
}

async fn count(store: &Store) -> (u64, u64) {
    let add = |(runs, bytes), (_, run): (BlockKey, HeldRun)| async move { (runs + 1, bytes + u64::from(run.length())) };
    runs_of(store).fold((0, 0), add).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_is_complete_when_a_pass_hands_nothing_over_and_nothing_fails() {
        let mut progress = DrainProgress::default();
        progress.begin_pass(3, 300);
        progress.note(100, &Ok(AdoptOutcome::Adopted(80)));
        progress.note(100, &Err(Failure::new(FailureKind::NotCached, "gone")));
        progress.note(100, &Err(Failure::new(FailureKind::Unavailable, "down")));
        progress.end_pass();
        assert_eq!(progress.verdict, DrainVerdict::Running, "what failed is tried again while there is progress");
        progress.begin_pass(2, 200);
        progress.note(100, &Err(Failure::new(FailureKind::NotCached, "evicted, or on its way to disk")));
        progress.note(100, &Err(Failure::new(FailureKind::Unavailable, "down")));
        progress.end_pass();
        assert_eq!(progress.verdict, DrainVerdict::Running, "what was skipped is offered again");
        progress.begin_pass(2, 200);
        progress.note(100, &Ok(AdoptOutcome::Held));
        progress.note(100, &Err(Failure::new(FailureKind::Unavailable, "down")));
        progress.end_pass();
        assert_eq!(progress.verdict, DrainVerdict::Stuck);
        progress.begin_pass(2, 200);
        (0..2).for_each(|_| progress.note(100, &Ok(AdoptOutcome::Held)));
        progress.end_pass();
        assert_eq!((progress.verdict, progress.pass, progress.bytes_adopted), (DrainVerdict::Complete, 4, 80));
        assert_eq!((progress.runs_done, progress.bytes_done, progress.runs_held), (2, 200, 2));
    }

    #[test]
    fn a_drain_ends_when_new_owners_evict_what_they_take() {
        let mut progress = DrainProgress::default();
        for pass in 1..=2 {
            progress.begin_pass(2, 200);
            (0..2).for_each(|_| progress.note(100, &Ok(AdoptOutcome::Adopted(100))));
            progress.end_pass();
            let expected = if pass == 1 { DrainVerdict::Running } else { DrainVerdict::Complete };
            assert_eq!(progress.verdict, expected);
        }
    }

    #[test]
    fn bytes_are_spread_over_time() {
        let now = Instant::now();
        let mut pace = Pace { bytes_per_second: Some(1000), due: now };
        assert_eq!(pace.after(500, now), Duration::from_millis(500));
        assert_eq!(pace.after(500, now), Duration::from_secs(1), "those at once share the rate");
        let later = now + Duration::from_secs(5);
        assert_eq!(pace.after(100, later), Duration::from_millis(100), "what was not used is not saved up");
        assert_eq!(Pace { bytes_per_second: None, due: now }.after(u32::MAX, now), Duration::ZERO);
    }
}
