//! Writing, cutting, zeroing: what changes a draft.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use forebay_locks::MutexGuard;
use forebay_types::Failure;
use rustix::fs::FallocateFlags;

use crate::error::{failed, let_go, no_room, too_large};
use crate::room::Reserved;
use crate::shared::DraftInner;
use crate::staged_file::As;
use crate::state::{DraftState, Upload, WrittenDown};

/// Up to this many bytes are written where they come from: a copy into the page cache, faster than handing them over.
const AT_ONCE: usize = 1 << 20;
/// What is written over bytes that cannot be punched out.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl DraftInner {
    /// Writes, waiting for room.
    pub(crate) async fn write(self: &Arc<Self>, offset: u64, data: Bytes) -> Result<(), Failure> {
        if data.len() > AT_ONCE {
            // In one piece, so that a part that was let go of can be written as a whole.
            let (inner, copy) = (Arc::clone(self), data.clone());
            if let Some(done) = self.shared.blocking(move || inner.write_now(offset, &copy, None)).await? {
                return done;
            }
        } else if let Some(done) = self.write_now(offset, &data, None) {
            return done;
        }
        // For all of it, whatever is staged now: it may be let go of before it is this one's turn.
        let room = &self.shared.room;
        let Some(reserved) = room.take(data.len() as u64, self.shared.timeout).await else {
            let path = self.state.lock().path.clone();
            return Err(no_room(&path, room.occupancy().0, self.shared.kept()));
        };
        // With room there is always an answer.
        self.write_now(offset, &data, Some(reserved)).unwrap_or(Ok(()))
    }

    /// Writes if there is room, which may have been `reserved`.
    pub(crate) fn write_now(
        self: &Arc<Self>,
        offset: u64,
        data: &[u8],
        reserved: Option<Reserved<'_>>,
    ) -> Option<Result<(), Failure>> {
        let Some(end) = offset.checked_add(data.len() as u64) else {
            let state = self.state.lock();
            return Some(Err(too_large(&state.path, state.parts.schedule().max_size())));
        };
        let range = offset..end;
        if range.is_empty() {
            return Some(Ok(()));
        }
        let _io = self.io.read();
        let (file, reserved) = {
            let state = self.state.lock();
            if let Err(failure) = state.check_change(&range) {
                return Some(Err(failure));
            }
            let reserved = match reserved {
                Some(reserved) => reserved,
                None => self.shared.room.try_take(state.content.unstaged(range.clone()))?,
            };
            (state.file_at_hand(), reserved)
        };
        let file = match file.map_or_else(|| self.staged_file(), Ok) {
            Ok(file) => file,
            Err(failure) => return Some(Err(failure)),
        };
        if let Err(error) = file.file.write_all_at(data, offset) {
            let path = self.shared.journal.data(&file.id);
            return Some(Err(failed("write", &path)(error).into()));
        }
        Some(self.note_write(range, reserved))
    }

    /// Notes that bytes were written.
    fn note_write(self: &Arc<Self>, range: Range<u64>, reserved: Reserved<'_>) -> Result<(), Failure> {
        let mut state = self.state.lock();
        let (size, gone) = (state.content.size(), state.content.gone());
        // No more than was reserved: nothing was let go of meanwhile, for that takes `io` alone.
        reserved.spend(state.content.write(range.clone()));
        let more = state.parts.write(range, Instant::now());
        let first = state.parts.schedule().first();
        if more || (size <= first && state.content.size() > first) {
            self.shared.heat(self);
        }
        let rough = state.content.gone() != gone;
        self.written_down_after(state, rough)
    }

    /// Notes a change, and lets go of what is known before it is written down.
    fn written_down_after(&self, mut state: MutexGuard<'_, DraftState>, rough: bool) -> Result<(), Failure> {
        let must_be_written_down = state.changed(rough);
        drop(state);
        if must_be_written_down { self.write_down(As::Roughly, false) } else { Ok(()) }
    }

    /// Cuts the file, or grows it.
    pub(crate) async fn truncate(self: &Arc<Self>, size: u64) -> Result<(), Failure> {
        let inner = Arc::clone(self);
        self.shared.blocking(move || inner.truncate_now(size)).await?
    }

    fn truncate_now(&self, size: u64) -> Result<(), Failure> {
        // No other thread changes the file meanwhile, so that `state` need not be held while the disk works.
        let _io = self.io.write();
        let before = {
            let state = self.state.lock();
            let before = state.content.size();
            state.check_change(&(size..size))?;
            let cut = state.parts.schedule().range(state.parts.schedule().part_at(size));
            if cut.start < size && size < before && state.content.gone_within(cut.clone()) > 0 {
                return Err(let_go(&state.path, &cut));
            }
            if size == before {
                return Ok(());
            }
            before
        };
        let file = self.staged_file()?;
        let path = self.shared.journal.data(&file.id);
        // No record is written until the cut is noted.
        let disk = self.disk.lock();
        let is_exact = self.state.lock().written_down == WrittenDown::Exactly;
        if size < before && is_exact {
            // If the process ended in between, such a record would have bytes as staged that are cut off, and uploaded as zeros.
            self.write_record(&disk, As::Roughly, false)?;
        }
        file.file.set_len(size).map_err(failed("cut", &path))?;
        let mut state = self.state.lock();
        drop(disk);
        let (gone, had_base) = (state.content.gone(), state.content.base_limit() > 0);
        self.shared.room.give(state.content.truncate(size));
        state.parts.resize(before, size, Instant::now());
        if size == 0 && !state.syncing && matches!(state.upload, Upload::Begun(_)) {
            self.shared.give_up_upload(&mut state);
        }
        let lost_base = had_base && state.content.base_limit() == 0;
        let rough = state.content.gone() != gone || lost_base;
        self.written_down_after(state, rough)
    }

    /// Makes zeros.
    pub(crate) async fn zero(self: &Arc<Self>, range: Range<u64>) -> Result<(), Failure> {
        let inner = Arc::clone(self);
        self.shared.blocking(move || inner.zero_now(range)).await?
    }

    fn zero_now(&self, range: Range<u64>) -> Result<(), Failure> {
        let _io = self.io.write();
        let (range, staged) = {
            let state = self.state.lock();
            let end = range.end.min(state.content.size());
            let range = range.start.min(end)..end;
            state.check_change(&range)?;
            if range.is_empty() {
                return Ok(());
            }
            let staged = state.content.unstaged(range.clone()) < range.end - range.start;
            (range, staged)
        };
        let file = self.staged_file()?;
        if staged {
            let path = self.shared.journal.data(&file.id);
            punch(&file.file, &range).map_err(failed("punch a hole in", &path))?;
        }
        let mut state = self.state.lock();
        let gone = state.content.gone();
        self.shared.room.give(state.content.zero(range.clone()));
        state.parts.zero(range, Instant::now());
        let rough = state.content.gone() != gone;
        self.written_down_after(state, rough)
    }

    /// Lets go of staged bytes: all of them, when the origin has the file.
    pub(crate) fn retire(&self) {
        let _io = self.io.write();
        let mut state = self.state.lock();
        // Dirty: it is being written again. Unlinked: the staged file is all there is. Never synced: what is staged is nowhere else.
        let is_all_there_is = state.attr.is_none() && state.content.staged() > 0;
        if state.dirty || state.unlinked || is_all_there_is {
            return;
        }
        let Some(staged) = state.file.take() else { return };
        let bytes = state.content.staged();
        state.content.rest_on_base();
        state.written_down = WrittenDown::Not;
        drop(state);
        self.remove_staged(&staged);
        let _ = staged.file.unlock();
        self.shared.room.give(bytes);
    }
}

/// Makes zeros of bytes of a file, and frees the disk of them where its file system can.
pub(crate) fn punch(file: &File, range: &Range<u64>) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, range.start, range.end - range.start) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP) => {
            let mut at = range.start;
            while at < range.end {
                let length = (range.end - at).min(ZEROS.len() as u64);
                // At most the length of the array.
                file.write_all_at(&ZEROS[..length as usize], at)?;
                at += length;
            }
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}
