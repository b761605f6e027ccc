//! What dead processes left in a staging directory, when it is opened: uploads that are not needed are aborted, and
//! what holds nothing is removed. What holds something waits for `forebay fs staged`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_types::Failure;

use crate::error::failed;
use crate::record::Record;
use crate::shared::StagingShared;
use crate::state::StagedFile;

/// Looks through the directory, once.
pub(crate) async fn run(shared: Arc<StagingShared>) {
    let dir = shared.journal.dir().to_owned();
    if let Err(failure) = look_through(&shared).await {
        tracing::warn!(dir = %dir.display(), %failure, "what dead processes left staged is not cleared up");
    }
}

async fn look_through(shared: &Arc<StagingShared>) -> Result<(), Failure> {
    let journal = shared.journal.clone();
    let found = move || journal.sweep().and_then(|()| journal.ids()).map_err(failed("read", journal.dir()));
    for id in shared.blocking(found).await?? {
        let (finding, name) = (Arc::clone(shared), id.clone());
        let Some((staged, record)) = shared.blocking(move || abandoned(&finding, &name)).await? else { continue };
        let closed = tokio::select! {
            () = clear_up(shared, staged, record) => false,
            () = shared.closing.cancelled() => true,
        };
        if closed {
            break;
        }
    }
    Ok(())
}

/// A draft of a process that is gone, locked. `None` when it is in use, or cannot be read: people may still want to see
/// that.
fn abandoned(shared: &StagingShared, id: &str) -> Option<(StagedFile, Record)> {
    let file = shared.journal.claim(id, false).ok()??;
    let record = shared.journal.read(id).ok()?;
    // One that failed may be retried by the process that left it, and goes on with its upload then.
    let is_free = record.error.is_none() || !record.process.is_alive();
    is_free.then(|| (StagedFile { id: id.to_owned(), file }, record))
}

async fn clear_up(shared: &Arc<StagingShared>, staged: StagedFile, mut record: Record) {
    let is_empty = staged.file.metadata().is_ok_and(|metadata| metadata.len() == 0);
    let holds_nothing = is_empty && record.base.is_none() && record.error.is_none();
    if let Some(upload) = record.upload.take_if(|_| record.gone.is_empty())
        && let Ok(path) = upload.fs_path()
    {
        if let Err(failure) = shared.remote.abort(&path, &upload.name).await {
            tracing::warn!(%path, %failure, "an upload that a dead process left cannot be aborted");
            return;
        }
        shared.counts.aborted.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = shared.journal.write(&staged.id, &record, false) {
            tracing::warn!(%path, %error, "it is not written down that an upload was aborted");
        }
    }
    if holds_nothing {
        shared.journal.remove(&staged.id);
    }
    let _ = staged.file.unlock();
}
