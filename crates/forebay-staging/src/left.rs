//! What lies in a staging directory, and what people do about it: with the mount or without.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_types::{Attr, ByteSize, Failure, FailureKind, FsPath};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::Remote;
use crate::content::Content;
use crate::draft::Draft;
use crate::error::{StagingError, failed};
use crate::journal::Journal;
use crate::options::StagingOptions;
use crate::record::Record;
use crate::schedule::Schedule;
use crate::shared::{DraftInner, OnProgress, StagingShared};
use crate::staged_file::As;
use crate::state::{Begun, StagedFile, Upload, WrittenDown};

/// A file in a staging directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// How to name it.
    pub id: String,
    /// Where it belongs.
    pub path: FsPath,
    /// How long the file is.
    pub size: u64,
    /// What it takes of the disk.
    pub bytes: u64,
    /// When it was opened.
    pub since: SystemTime,
    /// What became of it.
    pub state: StagedState,
    /// The mount that wrote it: its mountpoint.
    pub owner: String,
    /// Where its bytes are.
    pub file: PathBuf,
    /// Why [`retry`] would refuse it.
    pub obstacle: Option<String>,
}

/// What became of a staged file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StagedState {
    /// A process works with it.
    Open {
        /// Which one.
        pid: u32,
    },
    /// It could not be uploaded.
    Failed {
        /// Why.
        reason: String,
    },
    /// The process that wrote it is gone.
    Unfinished,
}

/// How [`retry`] goes about it.
pub struct RetryOptions {
    /// Most bytes of parts that are being sent at once.
    pub memory: ByteSize,
    /// Is told how many bytes have arrived, each time that some have.
    pub on_progress: Option<OnProgress>,
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self { memory: ByteSize::mib(128), on_progress: None }
    }
}

/// What lies in a staging directory, the oldest first; nothing when there is no such directory. Works without a mount.
///
/// # Errors
/// [`StagingError::NotOurs`] when it is another user's; [`StagingError::Io`] when it cannot be read.
pub fn staged(dir: &Path) -> Result<Vec<Staged>, StagingError> {
    let journal = Journal::at(dir);
    journal.check()?;
    let ids = journal.ids().map_err(failed("read", dir))?;
    let mut all: Vec<Staged> = ids.into_iter().filter_map(|id| describe(&journal, id)).collect();
    all.sort_by(|a, b| (a.since, &a.id).cmp(&(b.since, &b.id)));
    Ok(all)
}

fn describe(journal: &Journal, id: String) -> Option<Staged> {
    use std::os::unix::fs::MetadataExt;
    let file = journal.data(&id);
    let metadata = std::fs::symlink_metadata(&file).ok();
    let (length, bytes) = metadata.map_or((0, 0), |metadata| (metadata.len(), metadata.blocks() * 512));
    let read = journal.read(&id).and_then(|record| record.fs_path().map(|path| (record, path)));
    let (record, path) = match read {
        Ok(read) => read,
        // It was removed while we were looking.
        Err(_) if !journal.has(&id) => return None,
        Err(reason) => {
            let reason = format!("its record cannot be read: {reason}");
            let (owner, obstacle) = (String::new(), Some(reason.clone()));
            let (path, state) = (FsPath::root(), StagedState::Failed { reason });
            return Some(Staged { id, path, size: length, bytes, since: UNIX_EPOCH, state, owner, file, obstacle });
        }
    };
    let state = if journal.is_claimed(&id) {
        StagedState::Open { pid: record.process.pid }
    } else if let Some(reason) = record.error.clone() {
        StagedState::Failed { reason }
    } else {
        StagedState::Unfinished
    };
    let obstacle = match &state {
        StagedState::Open { pid } => Some(in_use(*pid)),
        _ => refusal(&record, &file, length),
    };
    let since = UNIX_EPOCH + Duration::from_millis(record.since);
    let size = if record.exact { record.size.max(length) } else { length };
    Some(Staged { id, path, size, bytes, since, state, owner: record.owner, file, obstacle })
}

fn in_use(pid: u32) -> String {
    format!("process {pid} works with it")
}

/// Why a file, of which `length` bytes are there, cannot be put together any more.
fn refusal(record: &Record, file: &Path, length: u64) -> Option<String> {
    let file = file.display();
    if !record.exact && record.base.is_some() {
        return Some(format!(
            "its process ended before it was written down which bytes it had changed of the file that was there: what it \
             wrote is in {file}, with zeros elsewhere"
        ));
    }
    // A draft's file is as long as it: what is missing was lost by the disk.
    (record.exact && length < record.size).then(|| {
        format!("its bytes end at {length}, and its record tells of {}: what is left of it is in {file}", record.size)
    })
}

/// Uploads a staged file, and removes it from the staging directory.
///
/// # Errors
/// `NotFound` for an id that is not there; `NotPermitted` for a file that a process works with, of which it is not known
/// what was changed, or of which bytes are missing; what the origin says: the file stays staged then.
pub async fn retry(dir: &Path, id: &str, remote: Arc<dyn Remote>, options: RetryOptions) -> Result<Attr, Failure> {
    let (journal, name) = (Journal::at(dir), id.to_owned());
    let (staged, record) = blocking(move || take_over(&journal, &name)).await?;
    let data = Journal::at(dir).data(id);
    let length = staged.file.metadata().map_err(failed("look at", &data))?.len();
    if let Some(reason) = refusal(&record, &data, length) {
        return Err(Failure::new(FailureKind::NotPermitted, format!("{id} cannot be retried: {reason}")));
    }
    let unreadable = |reason: String| Failure::new(FailureKind::Corrupt, format!("{id} cannot be retried: {reason}"));
    let path = record.fs_path().map_err(unreadable)?;
    let base = record.base_version().map_err(unreadable)?;
    let schedule = Schedule::of_steps(&record.schedule).ok_or_else(|| unreadable("its parts make no sense".into()))?;
    let content = content_of(&record, length);
    // What is beyond the last part would be left out, and then be gone.
    if content.size() > schedule.max_size() {
        return Err(unreadable(format!("its parts hold less than its {} bytes", content.size())));
    }
    let staging = StagingOptions {
        dir: dir.to_owned(),
        size: ByteSize::bytes(u64::MAX),
        part_size: ByteSize::bytes(schedule.first()),
        memory: ByteSize::bytes(options.memory.as_u64().max(schedule.largest())),
        timeout: Duration::ZERO,
        quiet: Duration::ZERO,
        owner: record.owner.clone(),
    };
    let journal = Journal::at(dir);
    let shared =
        StagingShared::new(staging, schedule, journal, Arc::clone(&remote), Handle::current(), options.on_progress);
    let shared = Arc::new(shared);
    shared.room.take_anyway(content.staged());
    let base = base.map(|version| remote.open(version));
    let inner = DraftInner::new(&shared, path, content, base);
    restore(&inner, record, staged);
    // By this process now.
    inner.warn(inner.write_down(As::Before, false));
    let done = Draft::new(inner).finish().await;
    shared.closing.cancel();
    shared.tasks.close();
    shared.tasks.wait().await;
    done?.ok_or_else(|| Failure::new(FailureKind::Internal, format!("{id} was not uploaded")))
}

/// Where the bytes are, as the record says; the length of the staged file tells the rest.
fn content_of(record: &Record, length: u64) -> Content {
    let rough = [(0, length)];
    if record.exact {
        let size = record.size.max(length);
        Content::restored(size, record.base_limit, &record.staged, &record.zeros, &record.gone)
    } else {
        Content::restored(length, 0, &rough, &[], &record.gone)
    }
}

/// Makes a draft what the record says. That it is this process's by now is for the caller to write down.
pub(crate) fn restore(inner: &Arc<DraftInner>, record: Record, staged: StagedFile) {
    let mut guard = inner.state.lock();
    let state = &mut *guard;
    state.dirty = true;
    state.since = UNIX_EPOCH + Duration::from_millis(record.since);
    state.error = record.error.clone();
    state.file = Some(Arc::new(staged));
    if let Some(upload) = record.upload
        && let Ok(path) = upload.fs_path()
    {
        let schedule = state.parts.schedule().clone();
        for (number, length, tag) in upload.parts.into_iter().filter(|(number, ..)| *number > 0) {
            // Of a part that is still staged, a rough record does not tell whether it was changed after it was sent.
            if record.exact || state.content.gone_within(schedule.range(number)) > 0 {
                state.parts.restore(number, length, tag, Instant::now());
            }
        }
        let begun = Begun { path, name: upload.name, given_up: CancellationToken::new() };
        state.upload = Upload::Begun(Arc::new(begun));
        if record.path_hex != upload.path_hex {
            inner.shared.give_up_upload(state);
        }
    }
    state.written_down = if record.exact { WrittenDown::Exactly } else { WrittenDown::Roughly };
}

/// Removes a staged file, and aborts its upload where there is a way to the origin.
///
/// # Errors
/// `NotFound` for an id that is not there; `NotPermitted` for a file that a process works with; what the origin says to
/// the abortion: the file stays staged then, and can be dropped without a `remote`.
pub async fn drop_staged(dir: &Path, id: &str, remote: Option<Arc<dyn Remote>>) -> Result<(), Failure> {
    let (journal, name) = (Journal::at(dir), id.to_owned());
    let (staged, upload) = blocking(move || {
        let staged = claim(&journal, &name)?;
        Ok((staged, journal.read(&name).ok().and_then(|record| record.upload)))
    })
    .await?;
    if let (Some(remote), Some(upload)) = (remote, upload)
        && let Ok(path) = upload.fs_path()
    {
        remote.abort(&path, &upload.name).await.map_err(|failure| failure.context(format_args!("cannot drop {id}")))?;
    }
    Journal::at(dir).remove(id);
    let _ = staged.file.unlock();
    Ok(())
}

fn claim(journal: &Journal, id: &str) -> Result<StagedFile, Failure> {
    let data = journal.data(id);
    match journal.claim(id, true).map_err(failed("open", &data))? {
        Some(file) => Ok(StagedFile { id: id.to_owned(), file }),
        None => {
            let pid = journal.read(id).map_or(0, |record| record.process.pid);
            Err(Failure::new(FailureKind::NotPermitted, format!("{id} is in use: {}", in_use(pid))))
        }
    }
}

fn take_over(journal: &Journal, id: &str) -> Result<(StagedFile, Record), Failure> {
    let staged = claim(journal, id)?;
    let record = journal
        .read(id)
        .map_err(|reason| Failure::new(FailureKind::Corrupt, format!("the record of {id} cannot be read: {reason}")))?;
    Ok((staged, record))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Failure> + Send + 'static) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Failure::new(FailureKind::Internal, format!("a task ended: {error}"))))
}
