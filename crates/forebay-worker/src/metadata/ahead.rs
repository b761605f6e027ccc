//! Listing ahead: pages of directories of which many unknown names are asked for ([`crate::list_ahead`]).
//!
//! A task of its own lists a page, and goes on when no request waits for it any more. Requests wait for a moment only:
//! where to list is slow, or stuck, to ask about one name may well be quick. A page that comes later than that is still
//! learned, unless the worker is closed: that ends what is being listed.
//!
//! A directory that cannot be listed, or not in a time that its names would be believed for much longer than, is given
//! up for a while: its names can still be asked about one by one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use forebay_types::{Failure, FsPath};
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::invalidation_log::InvalidationLog;
use crate::list_ahead::{Advice, ListAhead, PATIENCE, Page, Token};
use crate::namespace::Resolved;
use crate::scope::Scope;

/// Directories of which unknown names are counted: a few hundred bytes each.
const COUNTED: u64 = 4096;

/// What is listed ahead of questions. Clones are the same.
#[derive(Clone)]
pub(super) struct Ahead {
    directories: Cache<FsPath, Arc<Directory>>,
    listers: Listers,
}

/// A directory of which unknown names are counted.
struct Directory {
    list_ahead: Mutex<ListAhead>,
    /// Tells the requests that wait that its page is here, or will not come.
    ended: Notify,
}

/// The tasks that list.
#[derive(Clone, Default)]
struct Listers {
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl Ahead {
    pub(super) fn new() -> Self {
        let weigh = |path: &FsPath, _: &Arc<Directory>| crate::weight::names(1, path.as_bytes().len());
        let directories = Cache::builder().max_capacity(COUNTED).weigher(weigh);
        let directories = directories.eviction_policy(EvictionPolicy::lru());
        Self { directories: directories.build(), listers: Listers::default() }
    }

    /// Waits for the page that may tell of a name that is not known, if it is time for one; whether it came, or will not. `list`
    /// lists the page of a directory that begins at a token, learns the names in it and says where the next one begins.
    pub(super) async fn wait_for_page<L>(
        &self,
        scope: &Arc<Scope>,
        invalidations: &InvalidationLog,
        path: &FsPath,
        list: impl FnOnce(FsPath, Token) -> L,
    ) -> bool
    where
        L: Future<Output = Result<Token, Failure>> + Send + 'static,
    {
        let parent = path.parent();
        let is_paged = match (scope.namespace.resolve(path), scope.namespace.resolve(&parent)) {
            (Resolved::Origin(origin, below), Resolved::Origin(..)) => !below.is_empty() && is_paged(origin.url()),
            _ => false,
        };
        if !is_paged {
            return false;
        }
        let (now, ttl) = (Instant::now(), scope.of_name(&parent).ttl);
        let directory = self.directories.get_with_by_ref(&parent, || {
            Arc::new(Directory { list_ahead: Mutex::new(ListAhead::new(now, scope.number)), ended: Notify::new() })
        });
        let (page, patience, ended) = {
            let mut list_ahead = directory.list_ahead.lock();
            list_ahead.renew(now, scope.number, ttl, |began| invalidations.believes_listing(&parent, began, now));
            let (page, patience) = match list_ahead.note(now) {
                Advice::Ask => return false,
                Advice::Wait(patience) => (None, patience),
                Advice::List(page) => (Some(page), PATIENCE),
            };
            // It hears of the end from here on, also of one that comes before it is waited for.
            (page, patience, directory.ended.notified())
        };
        // Not under the lock: a runtime that shuts down drops what is spawned at once, and a listing that is dropped takes it.
        if let Some(page) = page {
            let listing = Listing { directory: Arc::clone(&directory), page, next: None };
            let listed = list(parent.clone(), listing.page.token.clone());
            self.listers.spawn(listing.carry_out(parent, ttl, listed));
        }
        tokio::time::timeout(patience, ended).await.is_ok()
    }

    /// Ends what is being listed, and waits until it has ended.
    pub(super) async fn close(&self) {
        self.listers.close().await;
    }
}

impl Listers {
    fn spawn(&self, listing: impl Future<Output = ()> + Send + 'static) {
        let closing = self.closing.clone();
        self.tasks.spawn(async move { closing.run_until_cancelled_owned(listing).await });
    }

    /// Ends them, and waits until they have.
    async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// A page that is being listed. However that ends, the requests that wait hear of it.
struct Listing {
    directory: Arc<Directory>,
    page: Page,
    /// Where the next one starts, once this one is known; nothing gives the directory up.
    next: Option<Token>,
}

impl Listing {
    /// Waits until it is `listed`, and keeps what came of it.
    async fn carry_out(mut self, path: FsPath, ttl: Duration, listed: impl Future<Output = Result<Token, Failure>>) {
        let asked = tokio::time::Instant::now();
        match listed.await {
            Ok(next) if asked.elapsed() <= ttl / 2 => self.next = Some(next),
            Ok(_) => {
                tracing::debug!(directory = %path, took = ?asked.elapsed(), "listing takes too long for its names' ttl");
            }
            Err(failure) => tracing::debug!(
                directory = %path, %failure, "names are asked about one by one: their directory cannot be listed"
            ),
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        let mut list_ahead = self.directory.list_ahead.lock();
        match self.next.take() {
            Some(next) => list_ahead.listed(&self.page, next, Instant::now()),
            None => list_ahead.give_up(&self.page, Instant::now()),
        }
        // Under the lock, so that a request that is to wait for the next page is not woken by this one.
        self.directory.ended.notify_waiters();
    }
}

/// Whether a page of an origin's directory costs about what a question for one name does. A directory on disk is gone through
/// whole for each page, one over WebDAV comes whole, and a name on disk costs next to nothing.
pub(super) fn is_paged(url: &str) -> bool {
    !["file:", "http:", "https:"].iter().any(|scheme| url.starts_with(scheme))
}
