//! The staged file and its record on disk: made, written down, and removed, by one at a time.
//!
//! The lock `disk` is held while the disk works, and `state` only for as long as it takes to make the record. So
//! records come to the disk in the order in which they became true, and no thread waits for the disk to learn a file's
//! size.
//!
//! `written_down` tells what is on disk, or will be as soon as `disk` is free. If that must be otherwise, the next holder writes
//! it down.

use std::sync::Arc;

use forebay_locks::MutexGuard;
use forebay_types::Failure;

use crate::error::failed;
use crate::shared::DraftInner;
use crate::state::{StagedFile, WrittenDown};

/// How a draft is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum As {
    /// Where it belongs, and what is gone.
    Roughly,
    /// Where each byte is: nothing is being changed.
    Exactly,
    /// As it is written down already; not at all if it is not.
    Before,
}

impl DraftInner {
    /// The staged file, made if there is none, and written down if it is not. The caller holds `io`, so that the file
    /// is not cut meanwhile.
    pub(crate) fn staged_file(&self) -> Result<Arc<StagedFile>, Failure> {
        let locked = self.disk.lock();
        let (made, size) = {
            let state = self.state.lock();
            (state.file.clone(), state.content.size())
        };
        let staged = match made {
            Some(staged) => staged,
            None => self.make_staged_file(size)?,
        };
        if self.state.lock().written_down == WrittenDown::Not {
            self.write_record(&locked, As::Roughly, false)?;
        }
        Ok(staged)
    }

    fn make_staged_file(&self, size: u64) -> Result<Arc<StagedFile>, Failure> {
        let journal = &self.shared.journal;
        let made = journal.create().and_then(|(id, file)| {
            // So that its length is the file's, whatever is written down.
            if size > 0 {
                file.set_len(size)?;
            }
            Ok((id, file))
        });
        let (id, file) = made.map_err(failed("create a file in", journal.dir()))?;
        let staged = Arc::new(StagedFile { id, file });
        let unlinked = {
            let mut state = self.state.lock();
            state.file = Some(Arc::clone(&staged));
            state.unlinked
        };
        if unlinked {
            journal.remove(&staged.id);
        }
        Ok(staged)
    }

    /// Writes down what is known. `durable`: it outlives the machine.
    pub(crate) fn write_down(&self, how: As, durable: bool) -> Result<(), Failure> {
        self.write_record(&self.disk.lock(), how, durable)
    }

    /// The same, where others can go on meanwhile; what cannot be written down is only told of.
    pub(crate) async fn write_down_elsewhere(self: &Arc<Self>, how: As) {
        let inner = Arc::clone(self);
        let written_down = self.shared.blocking(move || inner.write_down(how, false)).await;
        self.warn(written_down.flatten());
    }

    /// As [`DraftInner::write_down`], with `disk` locked.
    pub(crate) fn write_record(&self, _locked: &MutexGuard<'_, ()>, how: As, durable: bool) -> Result<(), Failure> {
        let (staged, record, before) = {
            let mut state = self.state.lock();
            let exact = match (how, state.written_down) {
                (As::Before, WrittenDown::Not) => return Ok(()),
                (As::Before, before) => before == WrittenDown::Exactly,
                (how, _) => how == As::Exactly,
            };
            let Some(staged) = state.file.clone().filter(|_| !state.unlinked) else { return Ok(()) };
            let record = state.record(&self.shared.owner, self.shared.process, exact);
            let now = if exact { WrittenDown::Exactly } else { WrittenDown::Roughly };
            (staged, record, std::mem::replace(&mut state.written_down, now))
        };
        let written = self.shared.journal.write(&staged.id, &record, durable);
        written.map_err(|error| {
            let mut state = self.state.lock();
            if !state.unlinked && state.file.as_ref().is_some_and(|file| Arc::ptr_eq(file, &staged)) {
                // The one before is still there.
                state.written_down = before;
            }
            failed("write the record of", &self.shared.journal.data(&staged.id))(error).into()
        })
    }

    /// The origin has what was written down: nothing needs to be, or what was written since.
    pub(crate) async fn settle_record(self: &Arc<Self>) {
        if self.state.lock().written_down == WrittenDown::Not {
            return;
        }
        let inner = Arc::clone(self);
        let settled = self.shared.blocking(move || -> Result<(), Failure> {
            let locked = inner.disk.lock();
            let forgotten = {
                let mut state = inner.state.lock();
                // What was written down is about the version before.
                if state.dirty {
                    None
                } else {
                    state.written_down = WrittenDown::Not;
                    state.file.clone()
                }
            };
            match forgotten {
                Some(staged) => inner.shared.journal.remove_record(&staged.id),
                None => inner.write_record(&locked, As::Roughly, false)?,
            }
            Ok(())
        });
        self.warn(settled.await.flatten());
    }

    /// Removes the staged file and its record. It is not written down any more: its state says why.
    pub(crate) fn remove_staged(&self, staged: &StagedFile) {
        let _locked = self.disk.lock();
        self.shared.journal.remove(&staged.id);
    }

    /// What cannot be written down is not known after a crash; nothing else is lost.
    pub(crate) fn warn(&self, written_down: Result<(), Failure>) {
        if let Err(failure) = written_down {
            tracing::warn!(%failure, "a file that is being written is not written down");
        }
    }
}
