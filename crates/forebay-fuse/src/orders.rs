//! What somebody asks to be materialised, however often it is read: `forebay fs local add`, and jobs for clients.
//!
//! An order is a file or a directory with all below it. It is walked by the mount itself, and each of its files is asked for and
//! waited for, a few at a time: the order of a million files takes no more memory than that of one. How far it is can be asked at
//! any time, also for a while after it has ended. One that is cancelled looks for no further files; those that it asked for come.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_local::{Listed, Local, NotTaken, Verdict, Why};
use forebay_types::{Failure, FileVersion, FsPath};
use futures::future::{BoxFuture, FutureExt as _, ready};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::filesystem::FileSystem;
use crate::serving::Shared;

/// Orders that have ended and are remembered, the latest.
const REMEMBERED: usize = 256;
/// Orders that are under way at once: each asks for a few files at a time.
const UNDER_WAY: usize = 1024;
/// Files that are named of those that did not come.
const NAMED: usize = 10;

/// How far an order is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OrderProgress {
    /// Files that were found so far.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that are there whole.
    pub ready: u64,
    /// Their bytes.
    pub ready_bytes: u64,
    /// Files that there is no room for.
    pub no_room: u64,
    /// Files that could not be had for another reason.
    pub failed: u64,
    /// The first of both, with the reason.
    pub first: Vec<(String, String)>,
    /// Why the walk itself ended early, if it did.
    pub error: Option<String>,
    /// Whether nothing more will come.
    pub ended: bool,
}

/// The orders of a mount.
#[derive(Default)]
pub(crate) struct Orders {
    latest: AtomicU64,
    remembered: Mutex<VecDeque<(u64, Arc<Order>)>>,
}

/// One order.
#[derive(Default)]
pub(crate) struct Order {
    progress: Mutex<OrderProgress>,
    cancelled: CancellationToken,
}

/// A materialised file, as it is listed.
#[derive(Clone, Debug, Serialize)]
pub struct Kept {
    /// The file.
    #[serde(flatten)]
    pub file: Listed,
    /// Where the mount shows it; bytes that are no text are replaced. `None`: not known before somebody opens it, as after a
    /// restart.
    pub shown: Option<String>,
}

/// The materialised files of a mount, for people and jobs. Clones are the same.
#[derive(Clone)]
pub struct LocalFiles {
    shared: Arc<Shared>,
}

impl LocalFiles {
    /// Those of a mount; `None` when it was told to have none.
    pub(crate) fn of(shared: &Arc<Shared>) -> Option<Self> {
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
        let order = Arc::new(Order::default());
        let Some(materialised) = &self.shared.files.materialised else { return 0 };
        let number = materialised.orders().remember(&order);
        if order.has_ended() {
            return number;
        }
        let (shared, ended) = (Arc::clone(&self.shared), self.shared.ended.clone());
        let task = async move {
            let carried_out = order.cancelled.run_until_cancelled(shared.files.carry_out(&path, why, &order));
            if let Some(None) = ended.run_until_cancelled(carried_out).await {
                order.give_up("it was withdrawn");
            }
        };
        self.shared.tasks.spawn_on(task, &self.shared.runtime);
        number
    }

    /// Ends an order: what it asked for already comes and stays, and nothing else is looked for.
    pub fn cancel(&self, number: u64) {
        let order = self.shared.files.materialised.as_ref().and_then(|materialised| materialised.orders().get(number));
        if let Some(order) = order {
            order.cancelled.cancel();
        }
    }

    /// How far an order is; `None` when it is not remembered.
    #[must_use]
    pub fn progress(&self, number: u64) -> Option<OrderProgress> {
        let orders = self.shared.files.materialised.as_ref()?.orders();
        orders.get(number).map(|order| order.progress.lock().clone())
    }

    /// Drops `path`, and all below it; how many files there were.
    ///
    /// # Errors
    /// When nobody can say what is below it.
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

impl Orders {
    fn remember(&self, order: &Arc<Order>) -> u64 {
        let number = self.latest.fetch_add(1, Ordering::Relaxed) + 1;
        let mut remembered = self.remembered.lock();
        let ended = remembered.iter().filter(|(_, order)| order.has_ended()).count();
        if remembered.len() - ended >= UNDER_WAY {
            order.give_up("too many orders are under way: name a directory above them, or wait until some have ended");
        }
        if ended >= REMEMBERED
            && let Some(oldest) = remembered.iter().position(|(_, order)| order.has_ended())
        {
            remembered.remove(oldest);
        }
        remembered.push_back((number, Arc::clone(order)));
        number
    }

    fn get(&self, number: u64) -> Option<Arc<Order>> {
        let remembered = self.remembered.lock();
        remembered.iter().find(|(known, _)| *known == number).map(|(_, order)| Arc::clone(order))
    }
}

impl Order {
    fn found(&self, size: u64) {
        let mut progress = self.progress.lock();
        progress.files += 1;
        progress.bytes += size;
    }

    fn came(&self, path: &FsPath, size: u64, outcome: Result<(), NotTaken>) {
        let mut progress = self.progress.lock();
        let Err(reason) = outcome else {
            (progress.ready, progress.ready_bytes) = (progress.ready + 1, progress.ready_bytes + size);
            return;
        };
        match reason {
            NotTaken::NoRoom => progress.no_room += 1,
            _ => progress.failed += 1,
        }
        if progress.first.len() < NAMED {
            progress.first.push((path.to_string(), reason.to_string()));
        }
    }

    fn end(&self, walked: Result<(), Failure>) {
        let mut progress = self.progress.lock();
        (progress.ended, progress.error) = (true, walked.err().map(|failure| failure.to_string()));
    }

    fn give_up(&self, why: &str) {
        let mut progress = self.progress.lock();
        (progress.ended, progress.error) = (true, Some(why.to_owned()));
    }

    fn has_ended(&self) -> bool {
        self.progress.lock().ended
    }
}

impl FileSystem {
    async fn carry_out(&self, path: &FsPath, why: Why, order: &Order) {
        let Some(materialised) = &self.materialised else { return order.end(Ok(())) };
        let visit = |path: FsPath, version: FileVersion| {
            let files = materialised.files();
            materialised.named(version.id(), || path.clone());
            let come = async move {
                order.found(version.size);
                order.came(&path, version.size, take(files, &version, why).await);
            };
            come.boxed()
        };
        let walked = self.each_file(path, &visit).await;
        order.end(walked);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_orders_that_have_ended_are_remembered_and_all_that_have_not() {
        let orders = Orders::default();
        let under_way = orders.remember(&Arc::default());
        let ended = |_| {
            let order = Arc::default();
            let number = orders.remember(&order);
            order.end(Ok(()));
            number
        };
        let numbers: Vec<u64> = (0..REMEMBERED + 3).map(ended).collect();
        assert!(orders.get(numbers[2]).is_none() && orders.get(numbers[3]).is_some());
        assert!(orders.get(under_way).is_some() && orders.get(0).is_none());
    }

    #[test]
    fn an_order_beyond_those_that_may_be_under_way_is_refused() {
        let orders = Orders::default();
        let all: Vec<Arc<Order>> = (0..UNDER_WAY).map(|_| Arc::default()).collect();
        for order in &all {
            orders.remember(order);
        }
        let one_more = Arc::default();
        let number = orders.remember(&one_more);
        assert!(orders.get(number).unwrap().progress.lock().error.as_ref().unwrap().contains("too many"));
        assert!(all.iter().all(|order| !order.has_ended()));
        all[7].end(Ok(()));
        let next = Arc::default();
        orders.remember(&next);
        assert!(!next.has_ended());
    }

    #[test]
    fn an_order_names_the_first_of_what_did_not_come() {
        let (order, path) = (Order::default(), FsPath::new(b"/a".as_slice()).unwrap());
        for _ in 0..NAMED + 5 {
            order.found(7);
            order.came(&path, 7, Err(NotTaken::NoRoom));
        }
        order.found(7);
        order.came(&path, 7, Ok(()));
        order.end(Ok(()));
        let progress = order.progress.lock();
        assert_eq!((progress.files, progress.no_room, progress.ready, progress.ready_bytes), (16, 15, 1, 7));
        assert_eq!((progress.first.len(), progress.ended), (NAMED, true));
    }
}
