//! A sync: makes the file at the origin what it is here.
//!
//! A sync aims at what was written before it began, and at the size that the file had then, or the smallest since: a
//! file that is cut meanwhile is not made long again. It puts a file that has no more than the first part, and
//! otherwise sends the parts that have not arrived and completes the upload. Writers go on meanwhile, and dirty the
//! file again.
//!
//! One that fails forgets nothing: the next goes on where it stopped. Only an upload that is not there any more is
//! begun anew, once, and that needs all bytes here.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_types::{Attr, Failure, FailureKind, FsPath};
use tokio::task::{JoinError, JoinSet};

use crate::Base;
use crate::error::{closing, failed};
use crate::parts::Target;
use crate::send::Trouble;
use crate::shared::DraftInner;
use crate::staged_file::As;
use crate::state::{Begun, DraftState, Upload, WrittenDown, modified};

/// What a sync does next.
enum Step {
    /// The file is not wanted any more.
    Stop,
    Put {
        path: FsPath,
        generation: u64,
    },
    Begin,
    /// Something is under way in the background that this waits for.
    Wait,
    Send,
    Complete {
        upload: Arc<Begun>,
        tags: Vec<String>,
        /// The generation at which the size was decided.
        sized: u64,
    },
}

/// A sync that is under way.
struct Syncing<'a>(&'a Arc<DraftInner>);

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        let is_dropped = {
            let mut state = self.0.state.lock();
            state.syncing = false;
            state.dropped
        };
        if is_dropped {
            self.0.dropped();
        }
        self.0.shared.heat(self.0);
        self.0.shared.room.look_again();
    }
}

/// A draft that nothing but this takes to the origin for now.
pub struct Held {
    inner: Arc<DraftInner>,
    _serial: tokio::sync::OwnedMutexGuard<()>,
}

impl Held {
    pub(crate) async fn new(inner: &Arc<DraftInner>) -> Self {
        let serial = Arc::clone(&inner.serial).lock_owned().await;
        inner.state.lock().syncing = true;
        Self { inner: Arc::clone(inner), _serial: serial }
    }

    /// The same, if no sync is under way at this moment.
    pub(crate) fn try_new(inner: &Arc<DraftInner>) -> Option<Self> {
        let serial = Arc::clone(&inner.serial).try_lock_owned().ok()?;
        inner.state.lock().syncing = true;
        Some(Self { inner: Arc::clone(inner), _serial: serial })
    }

    /// As [`Draft::sync`](crate::Draft::sync).
    ///
    /// # Errors
    /// Those of a sync.
    pub async fn sync(&self) -> Result<Option<Attr>, Failure> {
        let synced = self.inner.sync_now().await;
        self.inner.state.lock().syncing = true;
        synced
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Before the next sync has its turn.
        drop(Syncing(&self.inner));
    }
}

impl DraftInner {
    /// Syncs; `finish`: the last writer is gone.
    pub(crate) async fn sync(self: &Arc<Self>, finish: bool) -> Result<Option<Attr>, Failure> {
        {
            let state = self.state.lock();
            let is_clean = !state.dirty && !state.syncing && state.left.is_none();
            let is_closing = self.shared.closing.is_cancelled();
            if is_clean && (!finish || state.file.is_none() || is_closing) {
                return Ok(state.attr.clone().filter(|_| !state.unlinked));
            }
            if is_closing {
                return Err(closing());
            }
        }
        let inner = Arc::clone(self);
        // A task of its own: the caller may go away, and what has begun goes on.
        let syncing = self.shared.spawn(async move {
            let _serial = inner.serial.lock().await;
            let synced = inner.sync_now().await;
            let ending = Arc::clone(&inner);
            match &synced {
                Ok(_) if finish => inner.shared.blocking(move || ending.retire()).await?,
                Err(failure) if finish => {
                    let failure = failure.clone();
                    // No part goes early between the two.
                    inner.state.lock().syncing = true;
                    let _syncing = Syncing(&inner);
                    inner.abort_needless_upload().await;
                    inner.shared.blocking(move || ending.leave(failure)).await?;
                }
                _ => {}
            }
            synced
        });
        syncing.await.unwrap_or_else(|error| Err(ended(&error)))
    }

    async fn sync_now(self: &Arc<Self>) -> Result<Option<Attr>, Failure> {
        let (mut target, _syncing, is_vague) = {
            let mut state = self.state.lock();
            if let Some(failure) = &state.left {
                return Err(failure.clone());
            }
            if state.unlinked || !state.dirty {
                return Ok(state.attr.clone().filter(|_| !state.unlinked));
            }
            state.syncing = true;
            state.content.mark();
            // Without a base, the staged file tells all.
            let is_vague = state.content.base_limit() > 0 && state.written_down == WrittenDown::Roughly;
            let target = Target { generation: state.parts.generation(), size: state.content.size() };
            drop(state);
            (target, Syncing(self), is_vague)
        };
        if is_vague {
            self.write_down_elsewhere(As::Exactly).await;
        }
        let mut anew = true;
        loop {
            match self.carry(&mut target).await {
                Ok(attr) => return Ok(attr),
                Err(_) if self.unlinked.is_cancelled() => return Ok(None),
                Err(Trouble::UploadGone(failure)) if anew => {
                    anew = false;
                    if let Err(failure) = self.forget_upload(&failure) {
                        return Err(self.failed(failure).await);
                    }
                }
                Err(trouble) => return Err(self.failed(trouble.failure()).await),
            }
        }
    }

    async fn carry(self: &Arc<Self>, target: &mut Target) -> Result<Option<Attr>, Trouble> {
        loop {
            let mut settled = pin!(self.settled.notified());
            settled.as_mut().enable();
            match self.step(target) {
                Step::Stop => return Ok(None),
                Step::Put { path, generation } => match self.put(&path, target.size, generation).await {
                    Err(Trouble::Cut) => {}
                    put => return put,
                },
                Step::Begin => self.begin().await.map_err(Trouble::Other)?,
                Step::Wait => settled.await,
                Step::Send => self.send_all(*target).await?,
                Step::Complete { upload, tags, sized } => {
                    return self.complete(&upload, &tags, target.size, sized).await;
                }
            }
        }
    }

    fn step(&self, target: &mut Target) -> Step {
        let mut state = self.state.lock();
        let state = &mut *state;
        target.size = target.size.min(state.content.lowest());
        if state.unlinked {
            return Step::Stop;
        }
        if target.size <= state.parts.schedule().first() && state.content.gone() == 0 {
            self.shared.give_up_upload(state);
            return Step::Put { path: state.path.clone(), generation: state.parts.generation() };
        }
        match &state.upload {
            Upload::None => Step::Begin,
            Upload::Beginning(_) => Step::Wait,
            Upload::Begun(upload) => {
                if let Some(tags) = state.parts.tags(*target) {
                    Step::Complete { upload: Arc::clone(upload), tags, sized: state.parts.generation() }
                } else if state.parts.next_unsent(1, *target).is_some() {
                    Step::Send
                } else {
                    Step::Wait
                }
            }
        }
    }

    /// Sends all parts that have not arrived, as many at once as there is memory for.
    async fn send_all(self: &Arc<Self>, target: Target) -> Result<(), Trouble> {
        let (mut sends, mut from, mut trouble) = (JoinSet::new(), 1, None);
        while trouble.is_none() {
            let next = self.state.lock().parts.next_unsent(from, target);
            let Some((number, range)) = next else { break };
            from = number + 1;
            let mut memory = pin!(self.shared.memory(range.end - range.start));
            let memory = loop {
                tokio::select! {
                    memory = &mut memory => break memory,
                    Some(sent) = sends.join_next() => {
                        trouble = flat(sent).err();
                        if trouble.is_some() {
                            break None;
                        }
                    }
                }
            };
            if let Some(sending) = memory.and_then(|memory| self.start(number, Some(target.size), memory)) {
                sends.spawn_on(self.shared.tasks.track_future(sending.send()), &self.shared.runtime);
            }
        }
        // Those under way may arrive, and need not go again with the next try.
        while let Some(sent) = sends.join_next().await {
            trouble = trouble.or(flat(sent).err());
        }
        trouble.map_or(Ok(()), Err)
    }

    async fn put(self: &Arc<Self>, path: &FsPath, size: u64, generation: u64) -> Result<Option<Attr>, Trouble> {
        let _memory = self.shared.memory(size).await;
        let bytes = self.bytes_to_send(0..size).await.map_err(Trouble::Other)?;
        if self.state.lock().content.lowest() < size {
            // What was cut off before it was read would be zeros.
            return Err(Trouble::Cut);
        }
        // Also when the file is not wanted any more: what was sent may arrive, and the waiters must know when.
        let attr = self.shared.remote.put(path, bytes).await.map_err(Trouble::Other)?;
        self.shared.counts.puts.fetch_add(1, Ordering::Relaxed);
        self.shared.arrived(size);
        self.synced(path, attr, size, Some(generation), generation).await
    }

    async fn complete(
        self: &Arc<Self>,
        upload: &Begun,
        tags: &[String],
        size: u64,
        sized: u64,
    ) -> Result<Option<Attr>, Trouble> {
        let completed = self.shared.remote.complete(&upload.path, &upload.name, size, tags).await;
        let attr = completed.map_err(|failure| match failure.kind() {
            // A send that was given up may have overtaken another, so that a part is not what its tag says.
            FailureKind::NotFound | FailureKind::Corrupt | FailureKind::InvalidArgument => Trouble::UploadGone(failure),
            _ => Trouble::Other(failure),
        })?;
        self.shared.counts.completed.fetch_add(1, Ordering::Relaxed);
        self.synced(&upload.path, attr, size, None, sized).await
    }

    /// The origin has the file: it is the base from now on.
    async fn synced(
        self: &Arc<Self>,
        path: &FsPath,
        attr: Attr,
        size: u64,
        put: Option<u64>,
        sized: u64,
    ) -> Result<Option<Attr>, Trouble> {
        let Some(version) = attr.version().filter(|version| version.size == size) else {
            let has = match attr.version() {
                Some(version) => format!("{} bytes", version.size),
                None => "a directory".to_owned(),
            };
            let message = format!("{size} bytes were uploaded, and the origin says it has {has}");
            return Err(Trouble::Other(Failure::new(FailureKind::Internal, message)));
        };
        let base = self.shared.remote.open(version.clone());
        if !self.rests_on(path, base, &attr, size, put, sized) {
            return Ok(None);
        }
        self.settle_record().await;
        Ok(Some(attr))
    }

    /// What is known now that the origin has the file. False when the file is not wanted any more.
    fn rests_on(
        &self,
        path: &FsPath,
        base: Arc<dyn Base>,
        attr: &Attr,
        size: u64,
        put: Option<u64>,
        sized: u64,
    ) -> bool {
        let mut state = self.state.lock();
        if state.unlinked {
            return false;
        }
        state.upload = Upload::None;
        state.base = Some(base);
        state.content.synced(size);
        let now = state.content.size();
        let changed = state.parts.settle(put, sized, now);
        state.dirty = changed || now != size || *path != state.path;
        state.attr = Some(attr.clone());
        (state.new, state.error, state.rest) = (false, None, None);
        if !state.dirty {
            state.modified = modified(attr).unwrap_or(state.modified);
        }
        true
    }

    /// A sync has failed.
    async fn failed(self: &Arc<Self>, failure: Failure) -> Failure {
        self.shared.counts.failures.fetch_add(1, Ordering::Relaxed);
        let failure = self.note_failure(failure);
        self.write_down_elsewhere(As::Exactly).await;
        failure
    }

    fn note_failure(&self, failure: Failure) -> Failure {
        let mut state = self.state.lock();
        let mut failure = failure.context(format_args!("cannot upload {}", state.path));
        if let (FailureKind::VersionChanged, Some(staged)) = (failure.kind(), &state.file) {
            let data = self.shared.journal.data(&staged.id);
            let why = "somebody else replaced the file at the origin while it was being changed here";
            let message = format!("{failure}: {why}; what was written is in {}", data.display());
            failure = Failure::new(failure.kind(), message);
        }
        state.error = Some(failure.to_string());
        failure
    }

    /// Aborts the upload of a draft that is about to be left, so that nothing of it takes room at the origin; unless that has bytes
    /// which were let go of here. One that cannot be aborted stays written down, for `forebay fs staged`.
    async fn abort_needless_upload(&self) {
        let upload = {
            let state = self.state.lock();
            let has_the_only_copy = state.content.gone() > 0 || state.unlinked || state.left.is_some();
            match &state.upload {
                Upload::Begun(upload) if !has_the_only_copy => {
                    // Before the lock goes: from now on nothing is let go of because this upload has it.
                    upload.given_up.cancel();
                    Arc::clone(upload)
                }
                _ => return,
            }
        };
        match self.shared.remote.abort(&upload.path, &upload.name).await {
            Ok(()) => {
                let mut state = self.state.lock();
                if matches!(&state.upload, Upload::Begun(begun) if Arc::ptr_eq(begun, &upload)) {
                    state.upload = Upload::None;
                    state.parts.forget_sent();
                    self.shared.counts.aborted.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(failure) => {
                tracing::warn!(path = %upload.path, %failure, "an upload cannot be aborted; its parts stay at the origin");
            }
        }
    }

    /// Leaves a draft that could not be uploaded in the staging directory, for `forebay fs staged`.
    fn leave(&self, failure: Failure) {
        let left = {
            let _io = self.io.write();
            let is_over = |state: &DraftState| state.left.is_some() || state.unlinked;
            if is_over(&self.state.lock()) {
                return;
            }
            let file = self.staged_file();
            let mut state = self.state.lock();
            if is_over(&state) {
                return;
            }
            state.left = Some(failure);
            file
        };
        let left = left.and_then(|staged| {
            let path = self.shared.journal.data(&staged.id);
            self.shared.journal.sync(&staged.file).map_err(failed("sync", &path))?;
            self.write_down(As::Exactly, true)?;
            // From here on any process may retry or drop it.
            let _ = staged.file.unlock();
            Ok(())
        });
        if let Err(failure) = left {
            tracing::error!(%failure, "a file that could not be uploaded is not safe in the staging directory");
        }
    }
}

fn flat(sent: Result<Result<(), Trouble>, JoinError>) -> Result<(), Trouble> {
    sent.unwrap_or_else(|error| Err(Trouble::Other(ended(&error))))
}

fn ended(error: &JoinError) -> Failure {
    Failure::new(FailureKind::Internal, format!("an upload ended: {error}"))
}
