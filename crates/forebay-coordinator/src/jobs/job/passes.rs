//! From item to item, and from pass to pass.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Instant;

use forebay_transport::message::FreeReply;
use forebay_types::{Failure, FailureKind, FileVersion, FsPath};

use super::{Asker, Job, Question, Step, layout_of, one_file};
use crate::jobs::counts::{Counts, FileCounts};
use crate::jobs::delivery::Delivery;
use crate::jobs::rate::Rate;
use crate::jobs::record::MAX_FAILED;
use crate::jobs::spec::JobSpec;
use crate::jobs::state::{JobState, Pass};
use crate::jobs::walk::{Found, Item, Next, Place, Walk};
use crate::jobs::window::{FileWork, Slot, Stage};

impl Job {
    /// The next question of the pass, or the next pass.
    pub(super) fn advance(&mut self, now: Instant) -> Step {
        if self.record.pass == Pass::Clients {
            return self.have_it_kept();
        }
        loop {
            if let Some(item) = self.versions.pop_front()
                && let Some(path) = self.window.work(item).map(|work| work.path.clone())
            {
                return self.ask(Asker::Version(item), Question::Stat { path, fresh: true });
            }
            let (block, ready_at) = self.next_block(now);
            if let Some((block, question)) = block {
                return self.ask(Asker::Block(block), question);
            }
            if self.batch.len() >= self.limits.batch || (!self.batch.is_empty() && self.must_flush()) {
                return self.free_batch();
            }
            let mut waits = false;
            if !self.walk_ended && self.window.len() < self.limits.items {
                match self.walk.next() {
                    Next::Item(item) => {
                        self.begin(now, item);
                        continue;
                    }
                    Next::Ask(ask) => return self.ask_for_walk(ask),
                    Next::Wait => waits = true,
                    Next::Fatal(failure) => {
                        self.fatal = Some(failure);
                        return self.next(now);
                    }
                    Next::End => {
                        self.walk_ended = true;
                        self.walk_is_over();
                        continue;
                    }
                }
            }
            if self.walk_ended && self.window.is_empty() && !waits {
                return self.next_pass(now);
            }
            let retry_at = self.later.peek().map(|Reverse((at, _))| *at);
            let checkpoint_at = (!self.is_writing).then_some(self.checkpoint_at);
            return Step::Wait([ready_at, retry_at, checkpoint_at].into_iter().flatten().min());
        }
    }

    /// What was asked to be freed together was freed.
    pub(super) fn freed(&mut self, now: Instant, items: &[u64], reply: FreeReply) {
        let mut sum = FileCounts::default();
        for (at, item) in items.iter().enumerate() {
            let Some(work) = self.window.work(*item) else { continue };
            let done = one_file(&work.version);
            // Bytes are known for all together; the first stands for them.
            let freed = if at == 0 { reply.bytes } else { 0 };
            self.count(*item, &Counts { done, freed, ..Counts::default() });
            sum.add(done);
            self.finish(*item);
        }
        self.rate.add(now, sum);
    }

    /// The item is done, well or badly.
    pub(super) fn finish(&mut self, item: u64) {
        if let Some(slot) = self.window.get(item) {
            slot.work = None;
        }
    }

    /// The item is given up.
    pub(super) fn give_up(&mut self, item: u64, failure: Failure) {
        let Some(slot) = self.window.get(item) else { return };
        if let Some(work) = slot.work.take()
            // An audit of what has failed fails, too, and that is no other file.
            && !(matches!(self.record.pass, Pass::Audit(_)) && self.live.has_failed(&work.path))
        {
            self.live.fail(&work.path, &failure);
            slot.failure = Some((work.path, failure));
        }
    }

    fn begin(&mut self, now: Instant, item: Item) {
        let pass = self.record.pass;
        let mut counts = Counts::default();
        match item.found {
            Found::Directory => counts.directories = 1,
            Found::Failed(failure) => {
                let is_freed_path = self.load().is_none() && item.path == *self.record.spec.path();
                // Files that are gone may be cached all the same.
                let may_be_gone = is_freed_path && failure.kind() == FailureKind::NotFound;
                self.nothing_there |= may_be_gone;
                let is_news = match pass {
                    Pass::Count | Pass::Clients => false,
                    Pass::Work if may_be_gone => false,
                    Pass::Work => true,
                    Pass::Audit(_) => !self.live.has_failed(&item.path),
                };
                let mut slot = Slot::new(item.place, counts);
                if is_news {
                    self.live.fail(&item.path, &failure);
                    slot.failure = Some((item.path, failure));
                }
                self.window.push(slot);
                return self.settle();
            }
            Found::File { version, modified_nanos, replicas } => {
                counts.seen = one_file(&version);
                let metadata_only = self.load().is_some_and(|load| load.metadata_only);
                let stage = match (pass, self.load()) {
                    (Pass::Count | Pass::Clients, _) => None,
                    (Pass::Work, Some(load)) if load.metadata_only => None,
                    (Pass::Work, Some(load)) if load.skip_if_exists => Some(Stage::Peek),
                    (Pass::Work, _) => Some(Stage::Load),
                    (Pass::Audit(_), _) => Some(Stage::Check),
                };
                // An empty file has no blocks: nothing to load and nothing to check.
                let frees = pass == Pass::Work && self.load().is_none();
                if let Some(stage) = stage.filter(|_| version.size > 0 || frees) {
                    return self.work_on(item.place, item.path, version, modified_nanos, replicas, stage);
                }
                let without_bytes = FileCounts { files: 1, bytes: 0 };
                match pass {
                    Pass::Count | Pass::Clients => {}
                    Pass::Work => counts.done = without_bytes,
                    Pass::Audit(_) => counts.audited = without_bytes,
                }
                if pass == Pass::Count || metadata_only {
                    self.rate.add(now, without_bytes);
                }
            }
        }
        self.live.counts.add(&counts);
        self.window.push(Slot::new(item.place, counts));
        self.settle();
    }

    fn work_on(
        &mut self,
        place: Place,
        path: FsPath,
        version: FileVersion,
        modified_nanos: i64,
        replicas: u8,
        stage: Stage,
    ) {
        let asked = self.load().and_then(|load| load.replicas);
        let is_beyond = self.record.pass == Pass::Work && asked.is_some_and(|asked| asked > replicas.max(1));
        let unread_replicas = u64::from(is_beyond);
        let counts = Counts { seen: one_file(&version), unread_replicas, ..Counts::default() };
        let replicas = asked.unwrap_or(replicas).max(1);
        let work = FileWork {
            path,
            file: version.id(),
            layout: layout_of(&version, self.limits.block_size),
            version,
            modified_nanos,
            replicas,
            stage,
            next: 0,
            outstanding: 0,
            restarts: 0,
            failure: None,
            is_missing: false,
            is_repaired: false,
        };
        self.live.counts.add(&counts);
        let slot = Slot { work: Some(Box::new(work)), ..Slot::new(place, counts) };
        let number = self.window.push(slot);
        if self.load().is_some() { self.open.push_back(number) } else { self.batch.push(number) }
    }

    /// Nothing will join the batch before it is sent.
    fn must_flush(&self) -> bool {
        self.walk_ended || self.window.len() >= self.limits.items
    }

    fn free_batch(&mut self) -> Step {
        let items = std::mem::take(&mut self.batch);
        let window = &mut self.window;
        let file = |item: &u64| window.work(*item).map(|work| (work.file, work.layout.blocks()));
        let files: Arc<[_]> = items.iter().filter_map(file).collect();
        self.ask(Asker::Batch(items), Question::Free { files })
    }

    fn walk_is_over(&mut self) {
        if matches!(self.record.pass, Pass::Count | Pass::Work) {
            self.record.total = Some(self.live.counts.seen);
        }
    }

    fn next_pass(&mut self, now: Instant) -> Step {
        let repaired = self.live.counts.repaired_now.files > 0;
        let next = match self.record.pass {
            Pass::Count => Some(Pass::Work),
            Pass::Work => self.is_audited().then_some(Pass::Audit(0)),
            Pass::Audit(round) => repaired.then_some(Pass::Audit(round + 1)),
            Pass::Clients => None,
        };
        let Some(pass) = next else {
            if self.is_swept_in_the_end() {
                return self.sweep();
            }
            return if self.is_for_clients() { self.next_is_clients(now) } else { self.conclude() };
        };
        if matches!(self.record.pass, Pass::Audit(_)) {
            self.has_moved = false;
        }
        self.record.pass = pass;
        (self.walk, self.walk_ended) = (Walk::new(self.record.spec.path(), self.record.spec.index_file()), false);
        self.place = Place::start();
        self.live.next_pass();
        self.record.ledger = self.live.clone();
        self.rate = Rate::new(now);
        self.checkpoint_at = now;
        self.next(now)
    }

    /// Whether what is cached of files that are gone is still to be freed: those are in no listing. (An index file names what is
    /// meant, and nothing else.)
    fn is_swept_in_the_end(&self) -> bool {
        let is_asked = self.is_swept && self.pending.is_empty();
        matches!(&self.record.spec, JobSpec::Free(free) if !free.index_file) && !is_asked
    }

    /// Asks once; a successor of this coordinator asks again, and finds less.
    fn sweep(&mut self) -> Step {
        if std::mem::replace(&mut self.is_swept, true) {
            let retry_at = self.later.peek().map(|Reverse((at, _))| *at);
            let checkpoint_at = (!self.is_writing).then_some(self.checkpoint_at);
            return Step::Wait([retry_at, checkpoint_at].into_iter().flatten().min());
        }
        let path = self.record.spec.path().clone();
        self.ask(Asker::Gone, Question::FreeBelow { path })
    }

    /// What was cached of files that are gone was freed.
    pub(super) fn swept(&mut self, FreeReply { blocks, bytes }: FreeReply) {
        self.was_cached |= blocks > 0;
        self.live.counts.freed = self.live.counts.freed.saturating_add(bytes);
    }

    /// Whether mounts are to be asked to keep what was loaded.
    fn is_for_clients(&self) -> bool {
        self.load().is_some_and(|load| load.to_clients) && self.live.counts.seen.files > 0
    }

    fn next_is_clients(&mut self, now: Instant) -> Step {
        self.record.pass = Pass::Clients;
        self.record.ledger = self.live.clone();
        self.checkpoint_at = now;
        self.next(now)
    }

    /// Asks once; a successor of this coordinator asks again, which changes nothing for a mount that keeps it already.
    fn have_it_kept(&mut self) -> Step {
        if std::mem::replace(&mut self.is_ordered, true) {
            if self.pending.is_empty() {
                return self.conclude();
            }
            let retry_at = self.later.peek().map(|Reverse((at, _))| *at);
            let checkpoint_at = (!self.is_writing).then_some(self.checkpoint_at);
            return Step::Wait([retry_at, checkpoint_at].into_iter().flatten().min());
        }
        let path = self.record.spec.path().clone();
        self.ask(Asker::Clients, Question::Deliver { path })
    }

    /// Mounts keep what they can. What they do not keep fails the job, and so does a mount that went away: it is not
    /// known what that mount keeps.
    pub(super) fn delivered(&mut self, delivery: Delivery) {
        let all = self.record.spec.path().clone();
        let failure = |message: String| Failure::new(FailureKind::Unavailable, message);
        for missing in &delivery.missing {
            let path = FsPath::new(&missing.path).unwrap_or_else(|_| all.clone());
            let message = format!("{} does not keep it: {}", missing.mount, missing.reason);
            self.live.fail(&path, &failure(message));
        }
        let unnamed = delivery.unnamed();
        if unnamed > 0 {
            self.live.fail_below(&all, &failure("mounts do not keep more files below it".to_owned()), unnamed);
        }
        for mount in &delivery.gone {
            self.live.fail(&all, &failure(format!("{mount} went away before all mounts had done what they could")));
        }
        self.live.delivery = Some(delivery);
    }

    /// Whether the workers shall check what was loaded.
    fn is_audited(&self) -> bool {
        let loads_bytes = self.load().is_some_and(|load| !load.metadata_only);
        loads_bytes && self.live.counts.seen.files > 0 && self.live.failures.count < MAX_FAILED as u64
    }

    fn conclude(&mut self) -> Step {
        let counts = &self.live.counts;
        if self.live.failures.count == 0 && counts.seen.files == 0 && !self.was_cached {
            let path = self.record.spec.path().clone();
            let what = match (self.nothing_there, self.record.spec.index_file()) {
                (true, _) => "is not there, and nothing of it is cached",
                (false, true) => "names no files",
                (false, false) => "has no files in it",
            };
            self.live.fail(&path, &Failure::new(FailureKind::NotFound, format!("{path} {what}")));
        }
        self.end(if self.live.failures.count == 0 { JobState::Succeeded } else { JobState::Failed })
    }
}
