//! Makes room for writers that wait: lets go of staged bytes.
//!
//! First of those that the origin has as a file: of drafts that are synced, least recently used first, then of parts of
//! others that were not touched since they were synced. They are read from the base from then on. If that is not
//! enough, of those that the origin has in parts of uploads under way: they cannot be read until the file is synced, so
//! the tags of their parts are written down first.
//!
//! More is let go of than is missing, a sixteenth of the whole, so that a writer does not wait for each write, and what
//! is written down is not written anew for each part.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::edit::punch;
use crate::shared::{DraftInner, StagingShared};
use crate::staged_file::As;
use crate::state::{DraftState, StagedFile, Upload, WrittenDown};

/// What part of the room is made free at once.
const SHARE: u64 = 16;

/// Runs until the mount is closed.
pub(crate) async fn run(shared: Arc<StagingShared>) {
    loop {
        tokio::select! {
            () = shared.closing.cancelled() => return,
            () = shared.room.pressed() => {}
        }
        // Parts need not be quiet any more.
        shared.wake.notify_one();
        let relieved = Arc::clone(&shared);
        if let Err(failure) = shared.blocking(move || relieve(&relieved)).await {
            tracing::warn!(%failure, "no room could be made for writers");
        }
    }
}

/// Makes room, if a writer waits for some and there is something to let go of.
fn relieve(shared: &StagingShared) {
    let mut missing = shared.room.missing();
    if missing == 0 || shared.forget_kept() >= missing {
        return;
    }
    let goal = missing.max(shared.room.occupancy().0 / SHARE);
    let mut drafts = shared.drafts();
    drafts.sort_by_cached_key(|draft| {
        let state = draft.state.lock();
        (state.dirty, state.used)
    });
    let mut freed = 0;
    for draft in &drafts {
        if freed < goal {
            freed += draft.let_go_to_base(goal - freed);
        }
    }
    missing = shared.room.missing();
    for draft in &drafts {
        if missing > 0 && freed < goal {
            freed += draft.let_go_of_parts(goal - freed);
        }
    }
    shared.counts.let_go.fetch_add(freed, Ordering::Relaxed);
}

impl DraftInner {
    /// Lets go of about `wanted` staged bytes that the base has. Returns how many went.
    fn let_go_to_base(&self, wanted: u64) -> u64 {
        let _io = self.io.write();
        let (ranges, file) = {
            let mut state = self.state.lock();
            // A sync may be reading the whole file.
            if state.base.is_none() || state.unlinked || state.left.is_some() || state.syncing || state.is_lent {
                return 0;
            }
            let ranges = state.untouched(wanted);
            ranges.iter().for_each(|range| state.content.let_go_to_base(range.clone()));
            (ranges, state.file.clone())
        };
        self.free(file.as_deref(), &ranges)
    }

    /// Lets go of about `wanted` staged bytes that have gone to the origin in parts. Returns how many went.
    fn let_go_of_parts(&self, wanted: u64) -> u64 {
        let _io = self.io.write();
        let (ranges, file, exact) = {
            let mut state = self.state.lock();
            // Of what another process works with, or may, the bytes are where the record says.
            if state.unlinked || state.left.is_some() || state.is_lent {
                return 0;
            }
            // An upload that is being given up is about to take its parts with it.
            if matches!(&state.upload, Upload::Begun(upload) if upload.given_up.is_cancelled()) {
                return 0;
            }
            let ranges = state.arrived(wanted);
            if ranges.is_empty() {
                return 0;
            }
            ranges.iter().for_each(|range| state.content.let_go(range.clone()));
            (ranges, state.file.clone(), state.written_down == WrittenDown::Exactly)
        };
        // `io` is held exclusively: nothing is changed meanwhile, and no thread reads what may stay after all.
        if let Err(failure) = self.write_down(if exact { As::Exactly } else { As::Roughly }, false) {
            tracing::warn!(%failure, "bytes that were uploaded are not let go of");
            let mut state = self.state.lock();
            for range in ranges {
                state.content.write(range);
            }
            return 0;
        }
        self.free(file.as_deref(), &ranges)
    }

    /// Frees the disk of bytes that were let go of.
    fn free(&self, staged: Option<&StagedFile>, ranges: &[Range<u64>]) -> u64 {
        let mut freed = 0;
        for range in ranges {
            freed += range.end - range.start;
            if let Some(staged) = staged
                && let Err(error) = punch(&staged.file, range)
            {
                let path = self.shared.journal.data(&staged.id);
                tracing::warn!(path = %path.display(), %error, "the disk keeps bytes that were let go of");
            }
        }
        self.shared.room.give(freed);
        freed
    }
}

impl DraftState {
    /// Staged bytes that the base has, too: about `wanted` of them.
    fn untouched(&self, wanted: u64) -> Vec<Range<u64>> {
        let (mut found, mut ranges) = (0, Vec::new());
        let schedule = self.parts.schedule();
        for run in self.content.staged_within(0..self.content.base_limit()) {
            for number in schedule.touched(&run) {
                if found >= wanted {
                    return ranges;
                }
                if self.parts.is_untouched(number) {
                    let whole = schedule.range(number);
                    let range = run.start.max(whole.start)..run.end.min(whole.end);
                    found += range.end - range.start;
                    ranges.push(range);
                }
            }
        }
        ranges
    }

    /// Staged bytes that have gone to the origin in whole parts: about `wanted` of them.
    fn arrived(&self, wanted: u64) -> Vec<Range<u64>> {
        let (mut found, mut ranges) = (0, Vec::new());
        for (_, whole) in self.parts.arrived() {
            if found >= wanted {
                break;
            }
            for range in self.content.staged_within(whole) {
                found += range.end - range.start;
                ranges.push(range);
            }
        }
        ranges
    }
}
