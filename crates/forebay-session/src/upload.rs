//! Taking a file that is written from its beginning to its end to the origin: in one request if it is small, else in parts, several of
//! which are under way at once.
//!
//! All uploads of a session share `write.memory`: a part that finds none waits for others to arrive, and so does who writes it. Beside
//! that, each file holds the one part that is being filled. The origin shows nothing of a file before it is complete. What is given up is
//! aborted, in the background if need be, so that nothing of it takes room at the origin.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use forebay_client::Client;
use forebay_config::{Config, WriteMode};
use forebay_staging::Schedule;
use forebay_types::{Attr, Failure, FailureKind, FsPath};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinSet};

use crate::parts::Parts;
use crate::runtime::runtime;

/// What memory is counted in.
const UNIT: u64 = 32 << 10;

/// How a session writes.
pub(crate) struct Writing {
    schedule: Arc<Schedule>,
    memory: Arc<Semaphore>,
    is_off: bool,
}

impl Writing {
    pub(crate) fn new(config: &Config) -> Self {
        let units = usize::try_from(config.write_memory.as_u64() / UNIT).unwrap_or(usize::MAX);
        Self {
            schedule: Arc::new(Schedule::new(config.write_part_size.as_u64())),
            memory: Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))),
            is_off: config.write_mode == WriteMode::None,
        }
    }

    /// Whether there is writing at all.
    ///
    /// # Errors
    /// `ReadOnly`, as a mount with the same setting.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.is_off {
            true => {
                Err(Failure::new(FailureKind::ReadOnly, "this client takes no changes: its `write.mode` is `none`"))
            }
            false => Ok(()),
        }
    }

    /// The right to have `length` bytes, at most one part of them, under way.
    async fn memory(&self, length: usize) -> Option<OwnedSemaphorePermit> {
        // `write.memory` is no less than the largest part, which has far fewer units than a u32.
        let units = (length as u64).div_ceil(UNIT) as u32;
        // Never closed.
        Arc::clone(&self.memory).acquire_many_owned(units).await.ok()
    }
}

/// A file that is being written.
pub(crate) struct Upload {
    client: Client,
    path: FsPath,
    writing: Arc<Writing>,
    parts: Parts,
    /// There is to be nothing of its name.
    only_new: bool,
    /// Once it has a part that is not its last.
    begun: Option<Begun>,
}

impl Upload {
    /// `only_new`: there is to be nothing of its name. For what is sent in one request the origin's word counts, where it gives one; else
    /// the origin is asked just before the file is there.
    pub(crate) fn new(client: Client, path: FsPath, writing: Arc<Writing>, only_new: bool) -> Self {
        let parts = Parts::new(Arc::clone(&writing.schedule));
        Self { client, path, writing, parts, only_new, begun: None }
    }

    /// Adds `bytes` at the end. Waits for memory, and not for the origin. If the future is dropped, the upload has to be, too.
    ///
    /// # Errors
    /// `TooLarge` beyond 10,000 parts; what kept this or an earlier part from arriving.
    pub(crate) async fn write(&mut self, mut bytes: Bytes) -> Result<(), Failure> {
        if !self.parts.have_room(bytes.len()) {
            let most = self.writing.schedule.max_size();
            let message = format!("{}: a file has at most {most} bytes; choose a larger `write.part_size`", self.path);
            return Err(Failure::new(FailureKind::TooLarge, message));
        }
        while let Some((number, part)) = self.parts.take(&mut bytes) {
            self.send(number, part).await?;
        }
        Ok(())
    }

    /// Completes the file: the origin has it, whole.
    ///
    /// # Errors
    /// What kept it from that. The origin has what it had before, unless the answer was lost.
    pub(crate) async fn finish(mut self) -> Result<Attr, Failure> {
        let ((number, rest), size) = (self.parts.rest(), self.parts.size());
        let attr = if self.begun.is_none() {
            let _memory = self.writing.memory(rest.len()).await;
            self.put(rest).await?
        } else {
            self.send(number, rest).await?;
            let mut begun = self.begun.take().ok_or_else(|| fault(&self.path))?;
            begun.arrive().await?;
            // Parts are completed whatever is there, and they took their time: nobody else's file is to go for them.
            if self.only_new {
                self.check_new().await?;
            }
            begun.complete(size).await?
        };
        match attr.version() {
            Some(version) if version.size == size => Ok(attr),
            _ => {
                let message = format!("{}: {size} bytes were uploaded, and the origin says it has others", self.path);
                Err(Failure::new(FailureKind::Internal, message))
            }
        }
    }

    /// All of it, in one request.
    async fn put(&self, bytes: Bytes) -> Result<Attr, Failure> {
        if !self.only_new {
            return self.client.put(&self.path, bytes).await;
        }
        match self.client.create(&self.path, bytes.clone()).await {
            // Nobody promises it, or the worker is of a release that does not know it: that it is not there now has to do. What else is
            // wrong with a file is so when it is put, too.
            Err(failure) if matches!(failure.kind(), FailureKind::Unsupported | FailureKind::InvalidArgument) => {
                self.check_new().await?;
                self.client.put(&self.path, bytes).await
            }
            created => created,
        }
    }

    /// That the origin has nothing of its name by now.
    ///
    /// # Errors
    /// `Exists`, and what keeps the origin from saying.
    async fn check_new(&self) -> Result<(), Failure> {
        match self.client.stat(&self.path, true).await {
            Ok(_) => Err(Failure::new(FailureKind::Exists, format!("{} is there already", self.path))),
            Err(failure) if failure.kind() == FailureKind::NotFound => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Gives the file up: nothing of it stays at the origin.
    ///
    /// # Errors
    /// When that could not be told to the origin, where parts may take room now.
    pub(crate) async fn abort(mut self) -> Result<(), Failure> {
        match self.begun.take() {
            Some(begun) => begun.abort().await,
            None => Ok(()),
        }
    }

    async fn send(&mut self, number: u32, part: Bytes) -> Result<(), Failure> {
        if self.begun.is_none() {
            let name = self.client.begin_upload(&self.path).await?;
            self.begun = Some(Begun::new(self.client.clone(), self.path.clone(), name));
        }
        let memory = self.writing.memory(part.len()).await;
        let begun = self.begun.as_mut().ok_or_else(|| fault(&self.path))?;
        begun.note_arrived()?;
        begun.send(number, part, memory);
        Ok(())
    }
}

/// An upload in parts that the origin knows of. Dropped before it is complete, it is aborted.
struct Begun {
    client: Client,
    path: FsPath,
    name: String,
    sending: JoinSet<Result<(u32, String), Failure>>,
    /// Of the parts that have arrived.
    tags: BTreeMap<u32, String>,
    is_over: bool,
}

impl Begun {
    fn new(client: Client, path: FsPath, name: String) -> Self {
        Self { client, path, name, sending: JoinSet::new(), tags: BTreeMap::new(), is_over: false }
    }

    fn send(&mut self, number: u32, part: Bytes, memory: Option<OwnedSemaphorePermit>) {
        let (client, path, name) = (self.client.clone(), self.path.clone(), self.name.clone());
        self.sending.spawn(async move {
            let _memory = memory;
            Ok((number, client.upload_part(&path, &name, number, part).await?))
        });
    }

    /// Writes down the parts that have arrived by now.
    fn note_arrived(&mut self) -> Result<(), Failure> {
        while let Some(sent) = self.sending.try_join_next() {
            self.note(sent)?;
        }
        Ok(())
    }

    fn note(&mut self, sent: Result<Result<(u32, String), Failure>, JoinError>) -> Result<(), Failure> {
        let (number, tag) = sent.unwrap_or_else(|error| {
            Err(Failure::new(FailureKind::Internal, format!("{}: the upload of a part ended: {error}", self.path)))
        })?;
        self.tags.insert(number, tag);
        Ok(())
    }

    /// Waits for the parts that are under way.
    async fn arrive(&mut self) -> Result<(), Failure> {
        while let Some(sent) = self.sending.join_next().await {
            self.note(sent)?;
        }
        Ok(())
    }

    /// All parts have arrived.
    async fn complete(mut self, size: u64) -> Result<Attr, Failure> {
        let tags: Vec<String> = std::mem::take(&mut self.tags).into_values().collect();
        let attr = self.client.complete_upload(&self.path, &self.name, size, &tags).await?;
        self.is_over = true;
        Ok(attr)
    }

    async fn abort(mut self) -> Result<(), Failure> {
        self.sending.shutdown().await;
        self.client.abort_upload(&self.path, &self.name).await?;
        self.is_over = true;
        Ok(())
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.sending.abort_all();
        let (client, path, name) = (self.client.clone(), self.path.clone(), std::mem::take(&mut self.name));
        let Ok(runtime) = runtime() else { return };
        runtime.spawn(async move {
            if let Err(failure) = client.abort_upload(&path, &name).await {
                tracing::warn!(%path, %failure, "an upload cannot be aborted; its parts stay at the origin");
            }
        });
    }
}

fn fault(path: &FsPath) -> Failure {
    Failure::new(FailureKind::Internal, format!("{path}: its upload is not there"))
}
