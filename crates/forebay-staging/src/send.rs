//! Sending a part: beginning the upload that it belongs to, and forgetting one that is gone.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_types::{Failure, FailureKind};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::parts::Due;
use crate::shared::DraftInner;
use crate::staged_file::As;
use crate::state::{Begun, Upload};

/// Why something did not arrive.
pub(crate) enum Trouble {
    /// The upload is not there any more: all must be sent anew.
    UploadGone(Failure),
    /// The file was cut before its bytes were read.
    Cut,
    Other(Failure),
}

impl Trouble {
    /// A failure of the origin about an upload.
    pub(crate) fn of_upload(failure: Failure) -> Self {
        if failure.kind() == FailureKind::NotFound { Self::UploadGone(failure) } else { Self::Other(failure) }
    }

    pub(crate) fn failure(self) -> Failure {
        match self {
            Self::UploadGone(failure) | Self::Other(failure) => failure,
            Self::Cut => Failure::new(FailureKind::Internal, "a file was cut while it was uploaded"),
        }
    }
}

/// What of a draft may go early.
pub(crate) enum Next {
    /// Its upload is to be begun.
    Begin,
    /// A part of so many bytes.
    Part(u32, u64),
    At(Instant),
    Never,
}

/// A part that is on its way. Dropped before it arrived, it did not.
pub(crate) struct Sending {
    inner: Arc<DraftInner>,
    upload: Arc<Begun>,
    number: u32,
    range: Range<u64>,
    generation: u64,
    tag: Option<String>,
    _memory: OwnedSemaphorePermit,
}

impl DraftInner {
    /// What may go early.
    pub(crate) fn next_early(&self, now: Instant) -> Next {
        // A writer waits for room: what can go should go.
        let quiet = if self.shared.room.missing() > 0 { std::time::Duration::ZERO } else { self.shared.quiet };
        let mut state = self.state.lock();
        let state = &mut *state;
        // A file of one part is put when it is synced.
        let is_small = state.content.size() <= state.parts.schedule().first();
        if state.syncing || state.unlinked || state.left.is_some() || is_small {
            return Next::Never;
        }
        if let Some((until, _)) = state.rest.filter(|(until, _)| *until > now) {
            return Next::At(until);
        }
        match (state.parts.due(now, quiet, |range| state.content.is_staged(range)), &state.upload) {
            (Due::Never, _) | (Due::Part(..), Upload::Beginning(_)) => Next::Never,
            (Due::At(then), _) => Next::At(then),
            (Due::Part(..), Upload::None) => Next::Begin,
            (Due::Part(number, range), Upload::Begun(_)) => Next::Part(number, range.end - range.start),
        }
    }

    /// Takes a part to be sent. `None` when it cannot go now: it is under way, there is no upload, a sync took over.
    /// `size`: the file's size, for a sync that asks for the part; `None`: the part goes early.
    pub(crate) fn start(
        self: &Arc<Self>,
        number: u32,
        size: Option<u64>,
        memory: OwnedSemaphorePermit,
    ) -> Option<Sending> {
        let mut state = self.state.lock();
        let Upload::Begun(upload) = &state.upload else { return None };
        let upload = Arc::clone(upload);
        let whole = state.parts.schedule().range(number);
        let range = whole.start..whole.end.min(size.unwrap_or(whole.end));
        let early = size.is_none();
        if early && (state.syncing || state.unlinked || !state.content.is_staged(&range)) {
            return None;
        }
        let generation = state.parts.start(number, Instant::now())?;
        let counts = &self.shared.counts;
        counts.parts_in_flight.fetch_add(1, Ordering::Relaxed);
        counts.bytes_in_flight.fetch_add(range.end - range.start, Ordering::Relaxed);
        Some(Sending { inner: Arc::clone(self), upload, number, range, generation, tag: None, _memory: memory })
    }

    /// Begins an upload, if there is none.
    pub(crate) async fn begin(self: &Arc<Self>) -> Result<(), Failure> {
        let (mut beginning, path) = {
            let mut state = self.state.lock();
            if !matches!(state.upload, Upload::None) || state.unlinked {
                return Ok(());
            }
            state.beginnings += 1;
            state.upload = Upload::Beginning(state.beginnings);
            (Beginning { inner: self, number: state.beginnings, begun: None }, state.path.clone())
        };
        let name = self.shared.remote.begin(&path).await?;
        self.shared.counts.begun.fetch_add(1, Ordering::Relaxed);
        beginning.begun = Some(Arc::new(Begun { path, name, given_up: CancellationToken::new() }));
        Ok(())
    }

    /// Begins an upload because a part may go early; what goes wrong is tried again.
    pub(crate) async fn begin_early(self: Arc<Self>) {
        if let Err(failure) = self.begin().await {
            self.rest(&failure);
        }
        self.shared.heat(&self);
    }

    fn rest(&self, failure: &Failure) {
        let mut state = self.state.lock();
        state.rest(Instant::now());
        tracing::debug!(path = %state.path, %failure, "a part could not be uploaded early");
    }

    /// The upload is not there any more; what is needed is here.
    pub(crate) fn forget_upload(&self, failure: &Failure) -> Result<(), Failure> {
        let mut state = self.state.lock();
        if state.content.gone() > 0 {
            let message = format!("its upload is gone, and with it bytes that were let go of to make room: {failure}");
            return Err(Failure::new(FailureKind::Unavailable, message));
        }
        self.shared.give_up_upload(&mut state);
        Ok(())
    }

    /// An early part found that its upload is not there any more.
    fn upload_gone(&self, upload: &Arc<Begun>, failure: &Failure) {
        let is_current = {
            let mut state = self.state.lock();
            state.rest(Instant::now());
            // A sync that is under way finds out by itself.
            !state.syncing && matches!(&state.upload, Upload::Begun(begun) if Arc::ptr_eq(begun, upload))
        };
        if is_current && let Err(failure) = self.forget_upload(failure) {
            tracing::warn!(%failure, "a file that is being written cannot be uploaded");
        }
    }
}

/// An upload that is being begun.
struct Beginning<'a> {
    inner: &'a Arc<DraftInner>,
    number: u64,
    begun: Option<Arc<Begun>>,
}

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        let shared = &self.inner.shared;
        let mut state = self.inner.state.lock();
        let is_wanted = matches!(state.upload, Upload::Beginning(number) if number == self.number);
        match self.begun.take() {
            Some(begun) if is_wanted => {
                state.upload = Upload::Begun(begun);
                drop(state);
                self.inner.warn(self.inner.write_down(As::Before, false));
            }
            Some(begun) => {
                drop(state);
                shared.abort(begun.path.clone(), begun.name.clone());
            }
            None if is_wanted => state.upload = Upload::None,
            None => {}
        }
        self.inner.settled.notify_waiters();
    }
}

impl Sending {
    /// Sends it for a sync.
    pub(crate) async fn send(mut self) -> Result<(), Trouble> {
        let bytes = self.inner.bytes_to_send(self.range.clone()).await.map_err(Trouble::Other)?;
        let (shared, upload) = (Arc::clone(&self.inner.shared), Arc::clone(&self.upload));
        let part = shared.remote.part(&upload.path, &upload.name, self.number, bytes);
        let sent = tokio::select! {
            sent = part => sent.map_err(Trouble::of_upload),
            () = upload.given_up.cancelled() => {
                Err(Trouble::UploadGone(Failure::new(FailureKind::Unavailable, "the upload was given up")))
            }
        };
        self.tag = Some(sent?);
        Ok(())
    }

    /// Sends it before a sync asks for it; what goes wrong is tried again.
    pub(crate) async fn send_early(self) {
        let (inner, upload) = (Arc::clone(&self.inner), Arc::clone(&self.upload));
        let closing = inner.shared.closing.clone();
        let sent = tokio::select! {
            sent = self.send() => sent,
            () = closing.cancelled() => return,
        };
        match sent {
            Ok(()) => inner.state.lock().rest = None,
            Err(_) if upload.given_up.is_cancelled() => {}
            Err(Trouble::UploadGone(failure)) => inner.upload_gone(&upload, &failure),
            Err(trouble) => inner.rest(&trouble.failure()),
        }
        inner.shared.heat(&inner);
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let (shared, length) = (&self.inner.shared, self.range.end - self.range.start);
        shared.counts.parts_in_flight.fetch_sub(1, Ordering::Relaxed);
        shared.counts.bytes_in_flight.fetch_sub(length, Ordering::Relaxed);
        if self.tag.is_some() {
            shared.counts.parts.fetch_add(1, Ordering::Relaxed);
            shared.arrived(length);
        }
        let mut state = self.inner.state.lock();
        // What another upload has is another matter.
        let is_ours = matches!(&state.upload, Upload::Begun(upload) if Arc::ptr_eq(upload, &self.upload));
        match self.tag.take() {
            Some(tag) if is_ours => state.parts.sent(self.number, self.generation, length, tag),
            None if is_ours => state.parts.failed(self.number),
            _ => {}
        }
        drop(state);
        self.inner.settled.notify_waiters();
        shared.room.look_again();
    }
}
