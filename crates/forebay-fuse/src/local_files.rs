//! The materialised files of a mount, for people and jobs: what there is, and what is to come and to go.
//!
//! To have files materialised is a request ([`crate::materialise_requests`]), which a task of the mount carries out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_materialise::{Listed, Local, NotTaken, Verdict, Why};
use forebay_types::{Failure, FileVersion, FsPath};
use futures::future::{BoxFuture, FutureExt as _, ready};
use serde::Serialize;

use crate::filesystem::FileSystem;
use crate::materialise_requests::{MaterialiseProgress, MaterialiseRequest};
use crate::serving::MountShared;

/// A materialised file, as it is listed.
#[derive(Clone, Debug, Serialize)]
pub struct Kept {
    /// The file.
    #[serde(flatten)]
    pub file: Listed,
    /// Where the mount shows it; bytes that are no text are replaced. `None`: not known before a program opens it, as
    /// after a restart.
    pub shown: Option<String>,
}

/// The materialised files of a mount, for people and jobs. Clones are the same.
#[derive(Clone)]
pub struct LocalFiles {
    shared: Arc<MountShared>,
}

impl LocalFiles {
    /// Those of a mount; `None` when it was told to have none.
    pub(crate) fn of(shared: &Arc<MountShared>) -> Option<Self> {
        shared.files.materialised.as_ref().map(|_| Self { shared: Arc::clone(shared) })
    }

    fn local(&self) -> Option<&Local> {
        self.shared.files.materialised.as_ref().map(|materialised| materialised.files())
    }

    /// Why none are taken; `None`: they are.
    #[must_use]
    pub fn why_off(&self) -> Option<String> {
        self.local().filter(|local| !local.is_on()).and_then(|local| local.stats().why_off)
    }

    /// The room that there is for them, in bytes; 0 while none are taken.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.local().filter(|local| local.is_on()).map_or(0, |local| local.stats().capacity_bytes)
    }

    /// Has `path`, and all below it, materialised. The number to ask for it by; where too many are under way it has ended, with
    /// that as its error.
    #[must_use]
    pub fn add(&self, path: FsPath, why: Why) -> u64 {
        let request = Arc::new(MaterialiseRequest::default());
        let Some(materialised) = &self.shared.files.materialised else { return 0 };
        let number = materialised.requests().remember(&request);
        if request.has_ended() {
            return number;
        }
        let (shared, ended) = (Arc::clone(&self.shared), self.shared.ended.clone());
        let task = async move {
            let carried_out = request.run_until_cancelled(shared.files.carry_out(&path, why, &request));
            if let Some(None) = ended.run_until_cancelled(carried_out).await {
                request.give_up("it was withdrawn");
            }
        };
        self.shared.aside.spawn_on(task, &self.shared.runtime);
        number
    }

    /// Ends a request: what it asked for already comes and stays, and nothing else is looked for.
    pub fn cancel(&self, number: u64) {
        let request =
            self.shared.files.materialised.as_ref().and_then(|materialised| materialised.requests().get(number));
        if let Some(request) = request {
            request.cancel();
        }
    }

    /// How far a request is; `None` when it is not remembered.
    #[must_use]
    pub fn progress(&self, number: u64) -> Option<MaterialiseProgress> {
        let requests = self.shared.files.materialised.as_ref()?.requests();
        requests.get(number).map(|request| request.progress())
    }

    /// Drops `path`, and all below it; how many files there were.
    ///
    /// # Errors
    /// When it cannot be found out what is below `path`.
    pub async fn release(&self, path: &FsPath) -> Result<u64, Failure> {
        let Some(local) = self.local() else { return Ok(0) };
        let dropped = AtomicU64::new(0);
        let visit = |_: FsPath, version: FileVersion| {
            dropped.fetch_add(u64::from(local.drop_file(version.id())), Ordering::Relaxed);
            ready(()).boxed()
        };
        self.shared.files.each_file(path, &visit).await?;
        Ok(dropped.load(Ordering::Relaxed))
    }

    /// Drops all; how many there were.
    #[must_use]
    pub fn release_all(&self) -> u64 {
        self.local().map_or(0, |local| local.drop_all() as u64)
    }

    /// Those that there are.
    #[must_use]
    pub fn list(&self) -> Vec<Kept> {
        let Some(materialised) = &self.shared.files.materialised else { return Vec::new() };
        let listed = materialised.files().list().into_iter();
        listed.map(|file| Kept { shown: materialised.name_of(&file.key).map(|path| path.to_string()), file }).collect()
    }
}

impl FileSystem {
    async fn carry_out(&self, path: &FsPath, why: Why, request: &MaterialiseRequest) {
        let Some(materialised) = &self.materialised else { return request.end(Ok(())) };
        let visit = |path: FsPath, version: FileVersion| {
            let files = materialised.files();
            materialised.named(version.id(), || path.clone());
            let come = async move {
                request.found(version.size);
                request.came(&path, version.size, take(files, &version, why).await);
            };
            come.boxed()
        };
        let walked = self.each_file(path, &visit).await;
        request.end(walked);
    }

    /// Visits `path`, or the files below it.
    async fn each_file<'a>(&self, path: &FsPath, visit: &Visit<'a>) -> Result<(), Failure> {
        let attr = self.client.stat(path, true).await?.attr;
        if let Some(version) = attr.version() {
            visit(path.clone(), version.clone()).await;
            return Ok(());
        }
        let visited = self.walk(path, |path, attr| {
            let visited = attr.version().map(|version| visit(path, version.clone()));
            async move {
                if let Some(visited) = visited {
                    visited.await;
                }
                Ok(())
            }
        });
        visited.await.map(drop)
    }
}

/// What is done with a file.
type Visit<'a> = dyn Fn(FsPath, FileVersion) -> BoxFuture<'a, ()> + Send + Sync + 'a;

async fn take(local: &Local, version: &FileVersion, why: Why) -> Result<(), NotTaken> {
    match local.want(version.id(), version, why)? {
        Verdict::Ready(_) => Ok(()),
        Verdict::Waiting(waiting) => waiting.done().await.map(drop),
        Verdict::No => Err(NotTaken::Off),
    }
}
