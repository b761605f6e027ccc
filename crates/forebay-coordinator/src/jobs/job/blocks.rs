//! From block to block of the files in the window.

use std::time::Instant;

use forebay_types::{Attr, BlockKey, Failure, FailureKind, FileKind};

use super::{Block, Job, Purpose, Question, layout_of, one_file, stage_of};
use crate::cache::{HeldBytes, Loaded};
use crate::jobs::counts::{Counts, FileCounts};
use crate::jobs::state::Pass;
use crate::jobs::window::{FileWork, Stage};

/// How often a file that changes while it is loaded is started anew.
const MAX_RESTARTS: u8 = 3;

impl Job {
    /// The next block to ask for, or when there may be one.
    pub(super) fn next_block(&mut self, now: Instant) -> (Option<(Block, Question)>, Option<Instant>) {
        let under_way = self.pending.len() - self.later.len();
        if under_way >= self.limits.blocks || self.pending.len() >= self.limits.items + self.limits.blocks {
            return (None, None);
        }
        loop {
            let Some(block) = self.choose_block() else { return (None, None) };
            let Some(work) = self.window.work(block.item) else {
                self.drop_block();
                continue;
            };
            let length = work.layout.block_len(block.index);
            let loads = matches!(block.purpose, Purpose::Load | Purpose::Repair(_) | Purpose::CatchUp);
            if let Some(bucket) = self.bucket.as_mut().filter(|_| loads) {
                if let Err(at) = bucket.ready(now) {
                    return (None, Some(at));
                }
                bucket.take(length);
            }
            let key = BlockKey { file: work.file, index: block.index };
            let (version, replicas) = (work.version.clone(), work.replicas);
            let question = if loads {
                Question::Load { version, block: key, replicas }
            } else {
                let check = block.purpose != Purpose::Peek;
                Question::Coverage { version, block: key, replicas, check }
            };
            self.take_block(block);
            return (Some((block, question)), None);
        }
    }

    pub(super) fn loaded(&mut self, now: Instant, block: Block, loaded: Loaded) {
        let Some(work) = self.window.work(block.item) else { return };
        work.outstanding -= 1;
        let length = u64::from(work.layout.block_len(block.index));
        if let Some(bucket) = &mut self.bucket {
            bucket.give_back(length.saturating_sub(loaded.fetched));
        }
        let mut counts = Counts { fetched: loaded.fetched, held: loaded.held, ..Counts::default() };
        match block.purpose {
            Purpose::Repair(missing) => {
                work.is_repaired = true;
                let bytes = u64::from(missing);
                counts.repaired.bytes = bytes;
                counts.repaired_now.bytes = bytes;
                counts.audited.bytes = length;
            }
            Purpose::CatchUp => {
                work.outstanding += 1;
                self.urgent.push_back(Block { purpose: Purpose::Recheck, ..block });
            }
            // What an audit loads anew counts when it is checked.
            _ if self.record.pass == Pass::Work => counts.done.bytes = length,
            _ => {}
        }
        self.count(block.item, &counts);
        if block.purpose != Purpose::CatchUp {
            self.rate.add(now, FileCounts { files: 0, bytes: length });
        }
        self.file_moved(block.item);
    }

    pub(super) fn held(&mut self, now: Instant, block: Block, held: HeldBytes) {
        let audits = self.limits.audits;
        let (repairs, round) = match (self.load(), self.record.pass) {
            (Some(load), Pass::Audit(round)) => (load.verify || self.has_moved, round),
            _ => (false, 0),
        };
        let started_nanos = (self.record.started.unwrap_or_default() as i64).saturating_mul(1_000_000);
        let is_known = match self.window.work(block.item) {
            Some(work) => block.purpose != Purpose::Peek && self.live.has_failed(&work.path),
            None => return,
        };
        let Some(work) = self.window.work(block.item) else { return };
        let length = work.layout.block_len(block.index);
        let missing = length - u32::try_from(held.0).unwrap_or(u32::MAX).min(length);
        if stage_of(block.purpose) != work.stage {
            // A look that is no longer of interest.
            work.outstanding -= 1;
            return self.file_moved(block.item);
        }
        let is_recent = work.modified_nanos >= started_nanos;
        let catches_up = held.0 == 0 && block.purpose == Purpose::Check && is_recent;
        if block.purpose == Purpose::Peek {
            work.outstanding -= 1;
            if missing > 0 {
                self.start_with(block.item, Stage::Load);
            }
        } else if missing == 0 || is_known {
            work.outstanding -= 1;
            let audited = FileCounts { files: 0, bytes: u64::from(length - missing) };
            self.count(block.item, &Counts { audited, ..Counts::default() });
            self.rate.add(now, audited);
        } else if repairs && round + 1 < audits {
            self.urgent.push_back(Block { purpose: Purpose::Repair(missing), ..block });
        } else if catches_up {
            self.urgent.push_back(Block { purpose: Purpose::CatchUp, ..block });
        } else {
            work.outstanding -= 1;
            work.is_missing = true;
            let audited = FileCounts { files: 0, bytes: u64::from(length - missing) };
            let missing = FileCounts { files: 0, bytes: u64::from(missing) };
            self.count(block.item, &Counts { audited, missing, ..Counts::default() });
        }
        self.file_moved(block.item);
    }

    pub(super) fn block_failed(&mut self, block: Block, failure: Failure) {
        if let Some(bucket) = &mut self.bucket
            && matches!(block.purpose, Purpose::Load | Purpose::Repair(_) | Purpose::CatchUp)
            && let Some(work) = self.window.work(block.item)
        {
            bucket.give_back(u64::from(work.layout.block_len(block.index)));
        }
        let Some(work) = self.window.work(block.item) else { return };
        work.outstanding -= 1;
        match block.purpose {
            // What is not known to be there is loaded.
            Purpose::Peek if work.stage == Stage::Peek => self.start_with(block.item, Stage::Load),
            Purpose::Peek => {}
            _ => {
                work.failure.get_or_insert(failure);
            }
        }
        self.file_moved(block.item);
    }

    /// The file has this version now: it is loaded from its start.
    pub(super) fn restart(&mut self, item: u64, attr: &Attr) {
        let FileKind::File(version) = &attr.kind else {
            let message = "the file was replaced by a directory while it was loaded";
            return self.give_up(item, Failure::new(FailureKind::IsADirectory, message));
        };
        let layout = layout_of(version, self.limits.block_size);
        let Some(slot) = self.window.get(item) else { return };
        let Some(work) = &mut slot.work else { return };
        (work.file, work.version, work.layout) = (version.id(), version.clone(), layout);
        (work.failure, work.modified_nanos) = (None, attr.modified_nanos);
        (work.outstanding, work.is_missing, work.is_repaired) = (0, false, false);
        work.restarts += 1;
        let Counts { fetched, held, unread_replicas, .. } = slot.counts;
        let stays = Counts { fetched, held, unread_replicas, ..Counts::default() };
        let taken_back = std::mem::replace(&mut slot.counts, stays);
        self.live.counts.sub(&taken_back);
        self.live.counts.add(&stays);
        self.count(item, &Counts { seen: one_file(version), changed: 1, ..Counts::default() });
        if version.size == 0 {
            self.count(item, &Counts { done: one_file(version), ..Counts::default() });
            return self.finish(item);
        }
        self.start_with(item, Stage::Load);
    }

    /// The first block in line; it stays there.
    fn choose_block(&mut self) -> Option<Block> {
        if let Some(block) = self.urgent.front() {
            return Some(*block);
        }
        while let Some(item) = self.open.front().copied() {
            match self.window.work(item) {
                Some(work) if work.failure.is_none() && work.next < work.layout.blocks() => {
                    let purpose = match work.stage {
                        Stage::Peek => Purpose::Peek,
                        Stage::Load => Purpose::Load,
                        Stage::Check => Purpose::Check,
                    };
                    return Some(Block { item, index: work.next, purpose });
                }
                _ => self.open.pop_front(),
            };
        }
        None
    }

    /// The block that was chosen is asked for.
    fn take_block(&mut self, block: Block) {
        if self.urgent.front().is_some() {
            self.urgent.pop_front();
        } else if let Some(work) = self.window.work(block.item) {
            work.next += 1;
            work.outstanding += 1;
        }
    }

    /// The block that was chosen is of no more interest.
    fn drop_block(&mut self) {
        if self.urgent.pop_front().is_none() {
            self.open.pop_front();
        }
    }

    fn start_with(&mut self, item: u64, stage: Stage) {
        if let Some(work) = self.window.work(item) {
            (work.stage, work.next) = (stage, 0);
            if !self.open.contains(&item) {
                self.open.push_front(item);
            }
        }
    }

    /// Something of the file came back: it may be done.
    fn file_moved(&mut self, item: u64) {
        let pass = self.record.pass;
        let Some(work) = self.window.work(item) else { return };
        if work.outstanding > 0 {
            return;
        }
        if let Some(failure) = work.failure.clone() {
            if failure.kind() == FailureKind::VersionChanged && work.restarts < MAX_RESTARTS {
                work.outstanding += 1;
                return self.versions.push_back(item);
            }
            return self.give_up(item, failure);
        }
        if work.next < work.layout.blocks() {
            return;
        }
        if work.stage == Stage::Load && matches!(pass, Pass::Audit(_)) {
            // It changed while it was audited, and is loaded anew: now it is checked.
            return self.start_with(item, Stage::Check);
        }
        let counts = done_with(work, pass);
        let missing = work.is_missing.then(|| work.path.clone());
        self.count(item, &counts);
        if let Some(path) = missing {
            self.live.is_missing(&path);
            if let Some(slot) = self.window.get(item) {
                slot.missing = Some(path);
            }
        }
        self.finish(item);
    }
}

/// What a file adds to the ledgers at its end.
fn done_with(work: &FileWork, pass: Pass) -> Counts {
    let one = FileCounts { files: 1, bytes: 0 };
    let mut counts = Counts::default();
    match (pass, work.stage) {
        (Pass::Audit(_), _) => {
            counts.audited = one;
            if work.is_missing {
                counts.missing = one;
            }
            if work.is_repaired {
                (counts.repaired, counts.repaired_now) = (one, one);
            }
        }
        (_, Stage::Peek) => counts.skipped = one_file(&work.version),
        _ => counts.done = one,
    }
    counts
}
