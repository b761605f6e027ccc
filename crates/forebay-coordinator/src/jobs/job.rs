//! The course of a job: a state machine without I/O and without a clock.
//!
//! [`Job::next`] says what to ask the cache, [`Job::answer`] takes what came of it. A load walks its path two or three times: to
//! count (not with `partial_listing`), to load, and to audit, that is to have the workers check what they hold. What an audit finds
//! missing is reported. With `verify`, and where blocks came to have other owners meanwhile, it is loaded again and audited again. With
//! `to_clients` mounts are asked in the end to keep it. A job holds a few pages of listings and a window of items, however many files
//! there are; [`Job::record`] is what a successor needs to go on.
//!
//! Files that fail do not end a job: everything else is tried first.

mod blocks;
mod passes;
mod questions;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use forebay_types::{BlockLayout, Failure, FailureKind, FileVersion, MAX_BLOCK_SIZE};

pub use questions::{Answer, Question, QuestionId, Step};

use super::bandwidth::Bucket;
use super::counts::{Counts, FileCounts};
use super::delivery::Delivery;
use super::rate::Rate;
use super::record::{JobRecord, Ledger};
use super::report::JobReport;
use super::retry::{Patience, Retry};
use super::spec::{JobSpec, LoadSpec};
use super::state::JobState;
use super::walk::{Ask, Place, Walk};
use super::window::{Stage, Window};

/// How much a job takes, and how it is cut.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Items between the first that is not done and the last that was begun; what a successor may have to do again.
    pub items: usize,
    /// Requests for blocks that are under way.
    pub blocks: usize,
    /// Entries of a page of a listing.
    pub page: u32,
    /// Files in one request to free.
    pub batch: usize,
    /// Bytes in a block.
    pub block_size: u32,
    /// How often a job is written down.
    pub checkpoint: Duration,
    /// Audits of a job with `verify`. The last one only reports.
    pub audits: u32,
    /// What is tried again.
    pub retry: Retry,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            items: 1024,
            blocks: 64,
            page: 1000,
            batch: 2000,
            block_size: MAX_BLOCK_SIZE,
            checkpoint: Duration::from_secs(5),
            audits: 3,
            retry: Retry::default(),
        }
    }
}

/// What an answer is for.
#[derive(Clone, Debug)]
enum Asker {
    Walk(Ask),
    Block(Block),
    /// The present version of an item's file.
    Version(u64),
    /// Items that are freed.
    Batch(Vec<u64>),
    /// What is cached of files that are gone.
    Gone,
    /// What mounts keep.
    Clients,
}

/// A block that is asked for.
#[derive(Clone, Copy, Debug)]
struct Block {
    item: u64,
    index: u64,
    purpose: Purpose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Peek,
    Load,
    Check,
    /// Load what an audit found missing: so many bytes.
    Repair(u32),
    /// Load a block of a file that is newer than the load, and check it after that.
    CatchUp,
    /// The check after that.
    Recheck,
}

#[derive(Debug)]
struct Pending {
    asker: Asker,
    question: Question,
    attempt: u32,
}

/// A job under way.
#[derive(Debug)]
pub struct Job {
    /// As of the last item that settled, but for the ledgers.
    record: JobRecord,
    limits: Limits,
    /// Everything that happened. The settled ledger is in the record.
    live: Ledger,
    walk: Walk,
    place: Place,
    walk_ended: bool,
    window: Window,
    /// Items with blocks that no worker was asked for.
    open: VecDeque<u64>,
    /// Blocks that are to be asked for before those.
    urgent: VecDeque<Block>,
    /// Items whose file is another version by now: which one is to be asked.
    versions: VecDeque<u64>,
    /// Items that wait to be freed together.
    batch: Vec<u64>,
    pending: HashMap<QuestionId, Pending, foldhash::fast::FixedState>,
    /// Questions that are to be asked again, and when.
    later: BinaryHeap<Reverse<(Instant, QuestionId)>>,
    asked: u64,
    patience: Patience,
    bucket: Option<Bucket>,
    rate: Rate,
    checkpoint_at: Instant,
    is_writing: bool,
    stopping: bool,
    fatal: Option<Failure>,
    /// Of the cache, when it was last looked at.
    placement: Option<u64>,
    /// Blocks came to have other owners while the job ran, or may have while no coordinator ran it.
    has_moved: bool,
    /// Mounts were asked to keep what was loaded.
    is_ordered: bool,
    /// Workers were asked to free what they hold of files that are gone.
    is_swept: bool,
    /// They held something.
    was_cached: bool,
    /// Nothing is at the path itself that is to be freed.
    nothing_there: bool,
}

impl Job {
    /// A job from its record: a new one, or one that another coordinator left.
    pub fn new(record: JobRecord, mut limits: Limits, now: Instant) -> Self {
        // Nothing at all would wait for ever.
        limits.items = limits.items.max(1);
        limits.blocks = limits.blocks.max(1);
        limits.batch = limits.batch.max(1);
        limits.page = limits.page.max(1);
        if matches!(record.spec, JobSpec::Free(_)) {
            // One batch under way while the next gathers.
            limits.items = limits.items.max(2 * limits.batch);
        }
        let walk = Walk::resume(record.spec.path(), record.spec.index_file(), &record.cursor);
        let (walk, place, fatal) = match walk {
            Ok((walk, place)) => (walk, place, None),
            Err(failure) => {
                let walk = Walk::new(record.spec.path(), record.spec.index_file());
                (walk, Place::start(), Some(failure))
            }
        };
        let bandwidth = match &record.spec {
            JobSpec::Load(load) => load.bandwidth,
            JobSpec::Free(_) => None,
        };
        Self {
            live: record.ledger.clone(),
            has_moved: record.started.is_some(),
            placement: None,
            stopping: record.stop_asked,
            record,
            limits,
            walk,
            place,
            walk_ended: false,
            window: Window::default(),
            open: VecDeque::new(),
            urgent: VecDeque::new(),
            versions: VecDeque::new(),
            batch: Vec::new(),
            pending: HashMap::default(),
            later: BinaryHeap::new(),
            asked: 0,
            patience: Patience::default(),
            bucket: bandwidth.map(|bandwidth| Bucket::new(bandwidth, now)),
            rate: Rate::new(now),
            checkpoint_at: now + limits.checkpoint,
            is_writing: false,
            fatal,
            is_ordered: false,
            is_swept: false,
            was_cached: false,
            nothing_there: false,
        }
    }

    /// It runs, here, since `wall` (milliseconds since 1970).
    pub fn start(&mut self, coordinator: &str, wall: u64) {
        if !self.record.state.is_final() {
            self.record.state = JobState::Running;
        }
        coordinator.clone_into(&mut self.record.coordinator);
        self.record.started.get_or_insert(wall);
    }

    /// The cache's `placement` is this now. What an audit misses after a change was
    /// not evicted: it is loaded where it is looked for.
    pub fn placed(&mut self, placement: u64) {
        let before = self.placement.replace(placement);
        self.has_moved |= before.is_some_and(|before| before != placement);
    }

    /// Ends it at the next step. What is under way is given up.
    pub fn stop(&mut self) {
        self.record.stop_asked = true;
        self.stopping = true;
    }

    /// Whether it is to end.
    #[must_use]
    pub fn stop_asked(&self) -> bool {
        self.stopping
    }

    /// Whether it has.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.record.state.is_final()
    }

    /// What to do now.
    pub fn next(&mut self, now: Instant) -> Step {
        if self.record.state.is_final() {
            return Step::Ended;
        }
        if self.stopping {
            return self.end(JobState::Stopped);
        }
        if let Some(failure) = self.fatal.take() {
            let path = self.record.spec.path().clone();
            self.live.fail(&path, &failure);
            return self.end(JobState::Failed);
        }
        if now >= self.checkpoint_at && !self.is_writing {
            self.is_writing = true;
            return Step::Checkpoint;
        }
        if let Some(Reverse((at, id))) = self.later.peek().copied()
            && at <= now
        {
            self.later.pop();
            if let Some(pending) = self.pending.get(&id) {
                return Step::Ask(id, pending.question.clone());
            }
        }
        self.advance(now)
    }

    /// What came of a question.
    pub fn answer(&mut self, now: Instant, id: QuestionId, answer: Result<Answer, Failure>) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        match &answer {
            Ok(_) => self.patience.succeeded(),
            Err(failure) => {
                let again = self.patience.again(&self.limits.retry, failure, pending.attempt, id.0, now);
                if let Some(at) = again {
                    pending.attempt += 1;
                    self.later.push(Reverse((at, id)));
                    return;
                }
            }
        }
        if let Some(Pending { asker, .. }) = self.pending.remove(&id) {
            self.deliver(now, asker, answer);
        }
        self.settle();
    }

    /// How far mounts are with keeping what was loaded.
    pub fn delivering(&mut self, delivery: &Delivery) {
        self.live.delivery = Some(delivery.clone());
    }

    /// The record was written down, or could not be; the next time comes.
    pub fn written(&mut self, now: Instant) {
        self.is_writing = false;
        self.checkpoint_at = now + self.limits.checkpoint;
    }

    /// What a successor needs, as of `wall`. At the end, everything.
    pub fn record(&mut self, wall: u64) -> JobRecord {
        self.record.updated = wall;
        if self.record.state.is_final() {
            self.record.finished.get_or_insert(wall);
        } else {
            self.record.cursor = self.place.cursor();
        }
        self.record.clone()
    }

    /// What people see: everything that happened, and the speed.
    #[must_use]
    pub fn report(&self, now: Instant, wall: u64) -> JobReport {
        let record = JobRecord { ledger: self.live.clone(), updated: wall, ..self.record.clone() };
        JobReport::of(&record, Some(self.rate.speed(now)))
    }

    fn load(&self) -> Option<&LoadSpec> {
        match &self.record.spec {
            JobSpec::Load(load) => Some(load),
            JobSpec::Free(_) => None,
        }
    }

    fn ask(&mut self, asker: Asker, question: Question) -> Step {
        self.asked += 1;
        let id = QuestionId(self.asked);
        self.pending.insert(id, Pending { asker, question: question.clone(), attempt: 1 });
        Step::Ask(id, question)
    }

    fn ask_for_walk(&mut self, ask: Ask) -> Step {
        let question = match ask.clone() {
            Ask::Index(path) => Question::Stat { path, fresh: true },
            Ask::Read { version, offset, length } => Question::Read { version, offset, length },
            Ask::Stat { path, .. } => Question::Stat { path, fresh: false },
            Ask::List { directory, token } => Question::List { path: directory, token, max: self.limits.page },
        };
        self.ask(Asker::Walk(ask), question)
    }

    fn deliver(&mut self, now: Instant, asker: Asker, answer: Result<Answer, Failure>) {
        match asker {
            Asker::Walk(ask) => self.deliver_to_walk(&ask, answer),
            Asker::Block(block) => match answer {
                Ok(Answer::Loaded(loaded)) => self.loaded(now, block, loaded),
                Ok(Answer::Held(held)) => self.held(now, block, held),
                other => self.block_failed(block, failure_of(other)),
            },
            Asker::Version(item) => match answer {
                Ok(Answer::Attributes(attr)) => self.restart(item, &attr),
                other => self.give_up(item, failure_of(other)),
            },
            Asker::Batch(items) => match answer {
                Ok(Answer::Freed(freed)) => self.freed(now, &items, freed),
                other => {
                    let failure = failure_of(other);
                    items.into_iter().for_each(|item| self.give_up(item, failure.clone()));
                }
            },
            Asker::Gone => match answer {
                Ok(Answer::Freed(freed)) => self.swept(freed),
                other => {
                    let (path, failure) = (self.record.spec.path().clone(), failure_of(other));
                    self.live.fail(&path, &failure);
                }
            },
            Asker::Clients => match answer {
                Ok(Answer::Delivered(delivery)) => self.delivered(delivery),
                other => self.fatal = Some(failure_of(other)),
            },
        }
    }

    fn deliver_to_walk(&mut self, ask: &Ask, answer: Result<Answer, Failure>) {
        match (ask, answer) {
            (Ask::Index(_), Ok(Answer::Attributes(attr))) => {
                self.walk.index_is(Ok(attr));
                self.pin_index();
            }
            (Ask::Index(_), other) => self.walk.index_is(Err(failure_of(other))),
            (Ask::Read { .. }, Ok(Answer::Bytes(bytes))) => self.walk.read(Ok(bytes)),
            (Ask::Read { .. }, other) => self.walk.read(Err(failure_of(other))),
            (Ask::Stat { end, .. }, Ok(Answer::Attributes(attr))) => self.walk.attributes(*end, Ok(attr)),
            (Ask::Stat { end, .. }, other) => self.walk.attributes(*end, Err(failure_of(other))),
            (Ask::List { .. }, Ok(Answer::Listed(reply))) => self.walk.listed(Ok(reply)),
            (Ask::List { .. }, other) => self.walk.listed(Err(failure_of(other))),
        }
    }

    /// All passes walk the same index file.
    fn pin_index(&mut self) {
        let Some(version) = self.walk.index_version().map(|version| version.id().to_string()) else { return };
        let pinned = self.record.index.get_or_insert_with(|| version.clone());
        if *pinned != version {
            let message = "the index file was replaced while the job ran: submit the job again";
            self.fatal = Some(Failure::new(FailureKind::VersionChanged, message));
        }
    }

    /// Adds to the live ledger and to the item's.
    fn count(&mut self, item: u64, counts: &Counts) {
        self.live.counts.add(counts);
        if let Some(slot) = self.window.get(item) {
            slot.counts.add(counts);
        }
    }

    /// Takes over what is done from the front of the window.
    fn settle(&mut self) {
        while let Some(slot) = self.window.settle() {
            self.record.ledger.counts.add(&slot.counts);
            if let Some((path, failure)) = &slot.failure {
                self.record.ledger.fail(path, failure);
            }
            if let Some(path) = &slot.missing {
                self.record.ledger.is_missing(path);
            }
            self.place = slot.place;
        }
    }

    fn end(&mut self, state: JobState) -> Step {
        debug_assert!(self.record.state.may_become(state), "{state:?} after {:?}", self.record.state);
        self.record.state = state;
        // The job does not go on from here: the report tells all that happened.
        self.record.ledger = self.live.clone();
        self.pending.clear();
        self.later.clear();
        self.urgent.clear();
        self.open.clear();
        self.versions.clear();
        Step::Ended
    }
}

/// The failure; an answer to another question is one, too.
fn failure_of(answer: Result<Answer, Failure>) -> Failure {
    match answer {
        Err(failure) => failure,
        Ok(_) => Failure::new(FailureKind::Internal, "the cache answered another question"),
    }
}

fn layout_of(version: &FileVersion, block_size: u32) -> BlockLayout {
    BlockLayout::new(version.size, block_size)
}

fn one_file(version: &FileVersion) -> FileCounts {
    FileCounts { files: 1, bytes: version.size }
}

fn stage_of(purpose: Purpose) -> Stage {
    match purpose {
        Purpose::Peek => Stage::Peek,
        Purpose::Load => Stage::Load,
        Purpose::Check | Purpose::Repair(_) | Purpose::CatchUp | Purpose::Recheck => Stage::Check,
    }
}

#[cfg(test)]
mod tests;
