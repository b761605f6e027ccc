//! Attributes and listings: asked for once for everyone, and believed for as long as the policies say.
//!
//! What is cached says when it was asked, so an answer tells how much longer it may be believed and staleness does not
//! add up from cache to cache. A question that comes while the origin is being asked waits for that answer, unless it was asked so long
//! ago that the answer would not be believed at the time of the question: a slow origin does not make answers older than they may be.
//! Absence is cached like presence. A listing teaches the attributes of every name in it, which is why a name's attributes are
//! asked of the worker that owns its directory.
//!
//! It also says under which scope it was asked: when mounts or policies have changed since, it is asked again. The same when the
//! name has changed since ([`crate::invalidation_log`]). So an answer that was under way during a change is not believed after it
//! either. What a change made of a name is remembered as if it had been asked for ([`changing`]).
//!
//! Whoever insists is told what the origin says now, and so is everybody where nothing is believed: such questions share a request
//! that begins after they came ([`crate::coalescing`]).
//!
//! Where many names of one directory are asked for, its pages are listed instead ([`ahead`]).

mod ahead;
mod changing;

use std::future::ready;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_origin::ListPage;
use forebay_transport::Flags;
#[cfg(test)]
use forebay_transport::message::ListReply;
use forebay_transport::message::{PageOfNames, StatReply};
use forebay_types::{Attr, DirEntry, Failure, FailureKind, FsPath, Tenure};
use futures::FutureExt;
use moka::Expiry;
use moka::future::Cache;
use moka::ops::compute::Op;

use self::ahead::Ahead;
pub(crate) use self::changing::Changing;
use crate::coalescing::Coalescing;
use crate::invalidation_log::InvalidationLog;
use crate::namespace::Resolved;
use crate::scope::{Scope, Scopes};
use crate::weight::names;

/// Names in one page of a listing at most: what S3 gives at once.
const MAX_PAGE: u32 = 1000;

/// How metadata is cached.
#[derive(Clone, Copy, Debug)]
pub struct MetadataOptions {
    /// How long an answer is believed where no policy says otherwise; zero asks the origin each time.
    pub ttl: Duration,
    /// How many names are remembered, in attributes and in listings each.
    pub entries: u64,
}

#[derive(Clone)]
struct Known<T> {
    answer: T,
    asked: Instant,
    /// How long it is believed from then on.
    ttl: Duration,
    /// The number of the scope that it was asked under.
    scope: u64,
}

impl<T> Known<T> {
    fn valid_for(&self) -> Duration {
        self.valid_from(Instant::now())
    }

    fn valid_from(&self, now: Instant) -> Duration {
        self.ttl.saturating_sub(now.saturating_duration_since(self.asked))
    }

    /// Whether it may answer a question of `then`, however long the origin took.
    fn answers(&self, then: Instant) -> bool {
        then.saturating_duration_since(self.asked) <= self.ttl
    }

    /// Whether it replaces `other`: what was asked first may be answered last.
    fn is_later(&self, other: &Self) -> bool {
        self.asked > other.asked && self.scope >= other.scope
    }
}

type KnownAttr = Known<Result<Attr, Failure>>;
type KnownPage = Arc<Known<Page>>;
type PageKey = (FsPath, Option<String>, u32);

/// A page of a directory, and what it is on the wire once somebody asked for it: a thousand names take longer to encode than to
/// send.
struct Page {
    names: ListPage,
    encoded: OnceLock<PageOfNames>,
}

impl Page {
    fn encoded(&self) -> &PageOfNames {
        self.encoded.get_or_init(|| PageOfNames::encode(&self.names.entries, self.names.next.as_deref()))
    }
}

/// An entry goes when it is not believed any more.
struct WhenStale;

impl Expiry<FsPath, KnownAttr> for WhenStale {
    fn expire_after_create(&self, _: &FsPath, known: &KnownAttr, _: Instant) -> Option<Duration> {
        Some(known.valid_for())
    }

    fn expire_after_update(&self, _: &FsPath, known: &KnownAttr, _: Instant, _: Option<Duration>) -> Option<Duration> {
        Some(known.valid_for())
    }
}

impl Expiry<PageKey, KnownPage> for WhenStale {
    fn expire_after_create(&self, _: &PageKey, known: &KnownPage, _: Instant) -> Option<Duration> {
        Some(known.valid_for())
    }

    fn expire_after_update(&self, _: &PageKey, known: &KnownPage, _: Instant, _: Option<Duration>) -> Option<Duration> {
        Some(known.valid_for())
    }
}

/// Clones are the same: a page that is listed ahead has one to itself.
#[derive(Clone)]
pub(crate) struct Metadata {
    scopes: Arc<Scopes>,
    invalidations: Arc<InvalidationLog>,
    attrs: Cache<FsPath, KnownAttr>,
    pages: Cache<PageKey, KnownPage>,
    /// Requests that are made whatever is known.
    attrs_now: Coalescing<FsPath, Result<KnownAttr, Failure>>,
    pages_now: Coalescing<PageKey, Result<KnownPage, Failure>>,
    ahead: Ahead,
}

impl Metadata {
    pub(crate) fn new(scopes: Arc<Scopes>, entries: u64) -> Self {
        let weigh = |path: &FsPath, known: &KnownAttr| {
            let path = path.as_bytes().len();
            // A version has the path once more.
            names(1, path + known.answer.as_ref().map_or_else(|failure| failure.message().len(), |_| path))
        };
        let attrs = Cache::builder().max_capacity(entries).weigher(weigh).expire_after(WhenStale).build();
        let weigh = |(path, token, _): &PageKey, page: &KnownPage| {
            let ListPage { entries, next } = &page.answer.names;
            let tokens = [token, next].into_iter().flatten().map(String::len).sum::<usize>();
            names(entries.len(), path.as_bytes().len() + tokens)
        };
        let pages = Cache::builder().max_capacity(entries).weigher(weigh).expire_after(WhenStale).build();
        let (invalidations, ahead) = (Arc::new(InvalidationLog::new()), Ahead::new());
        let (attrs_now, pages_now) = (Coalescing::new(), Coalescing::new());
        Self { scopes, invalidations, attrs, pages, attrs_now, pages_now, ahead }
    }

    /// Ends what is listed ahead of questions, and waits until it has ended.
    pub(crate) async fn close(&self) {
        self.ahead.close().await;
    }

    /// What `path` is. With `revalidate`, as the origin says now.
    pub(crate) async fn stat(&self, path: &FsPath, revalidate: bool) -> Result<StatReply, Failure> {
        let scope = self.scopes.current();
        let rules = scope.of_name(path);
        let known = match revalidate || rules.believes_nothing() {
            true => self.ask_now(path).await?,
            false => self.known(&scope, path).await?,
        };
        let valid_for = known.valid_for();
        Ok(StatReply { attr: Attr { replicas: rules.replicas, ..known.answer? }, valid_for })
    }

    /// What is known of `path`, without waiting. Not for a request that wants to know what the origin says now.
    pub(crate) fn try_stat(&self, path: &FsPath, flags: Flags) -> Option<StatReply> {
        let scope = self.scopes.current();
        let rules = scope.of_name(path);
        if flags.contains(Flags::REVALIDATE) || rules.believes_nothing() {
            return None;
        }
        let known = self.attrs.get(path).now_or_never()??;
        let now = Instant::now();
        let valid_for = known.valid_from(now);
        let is_known = known.scope == scope.number && self.invalidations.believes_name(path, known.asked, now);
        let attr = known.answer.ok().filter(|_| is_known && !valid_for.is_zero())?;
        Some(StatReply { attr: Attr { replicas: rules.replicas, ..attr }, valid_for })
    }

    /// What is known of `path`, or else what the origin says, which is asked once for everyone.
    async fn known(&self, scope: &Arc<Scope>, path: &FsPath) -> Result<KnownAttr, Failure> {
        let began = Instant::now();
        for _ in 0..2 {
            let known = self.attrs.try_get_with_by_ref(path, self.find(scope, path)).await;
            let known = known.map_err(|failure: Arc<Failure>| (*failure).clone())?;
            if !known.answers(began) {
                // The cache has dropped it: it is not believed any more.
                continue;
            }
            if known.scope == scope.number && self.invalidations.believes_name(path, known.asked, Instant::now()) {
                return Ok(known);
            }
            self.attrs.invalidate(path).await;
        }
        // It changes while it is being asked for.
        self.ask(scope, path).await
    }

    /// What a page of its directory tells of a name that is not known, if it is time for one; otherwise what the origin says.
    async fn find(&self, scope: &Arc<Scope>, path: &FsPath) -> Result<KnownAttr, Failure> {
        let list = |directory: FsPath, token| {
            let (metadata, scope) = (self.clone(), Arc::clone(scope));
            async move {
                let page = metadata.known_page(&scope, &(directory, token, MAX_PAGE)).await?;
                Ok(page.answer.names.next.clone())
            }
        };
        if self.ahead.wait_for_page(scope, &self.invalidations, path, list).await
            && let Some(known) = self.attrs.get(path).await
            && known.scope == scope.number
            && self.invalidations.believes_name(path, known.asked, Instant::now())
        {
            return Ok(known);
        }
        let known = self.ask(scope, path).await?;
        let later = self.attrs.get(path).await.filter(|later| later.is_later(&known));
        Ok(later.unwrap_or(known))
    }

    /// What the origin says of a name now.
    async fn ask_now(&self, path: &FsPath) -> Result<KnownAttr, Failure> {
        let (metadata, asked_for) = (self.clone(), path.clone());
        let request = async move {
            // As it is when the request begins: no question that shares it came later.
            let scope = metadata.scopes.current();
            match scope.of_name(&asked_for).believes_nothing() {
                true => metadata.ask(&scope, &asked_for).await,
                false => metadata.ask_again(&scope, &asked_for).await,
            }
        };
        self.attrs_now.ask(path.clone(), request).await
    }

    /// Asks the origin whatever is known. What turns out to have changed has changed in its directory's listing, too.
    async fn ask_again(&self, scope: &Scope, path: &FsPath) -> Result<KnownAttr, Failure> {
        let before = self.attrs.get(path).await;
        let known = self.ask(scope, path).await?;
        if before.is_some_and(|before| before.answer != known.answer) {
            self.invalidate(path, known.asked);
        }
        if known.answer.as_ref().is_ok_and(|attr| attr.version().is_none()) {
            // Its attributes do not tell whether its names are the same.
            self.invalidations.listing_changed(path, known.asked);
        }
        self.remember(path.clone(), known.clone()).await;
        Ok(known)
    }

    /// Remembers what is known of a name, unless something later is.
    async fn remember(&self, path: FsPath, known: KnownAttr) {
        let keep_later = |before: Option<moka::Entry<FsPath, KnownAttr>>| {
            let is_late = before.is_some_and(|before| before.value().is_later(&known));
            ready(if is_late { Op::Nop } else { Op::Put(known) })
        };
        self.attrs.entry(path).and_compute_with(keep_later).await;
    }

    /// Asks the origin. Answers about the name are remembered, good or bad; failures to answer are not.
    async fn ask(&self, scope: &Scope, path: &FsPath) -> Result<KnownAttr, Failure> {
        let asked = Instant::now();
        let answer = match scope.namespace.resolve(path) {
            Resolved::Origin(origin, below) => origin.stat(below).await,
            Resolved::Virtual => Ok(Attr::directory()),
            Resolved::Nothing => Err(scope.namespace.nothing_at(path)),
        };
        let answer = match answer {
            Err(failure) if matches!(failure.kind(), FailureKind::NotFound | FailureKind::NotADirectory) => {
                // A path above a mount exists, whatever its origin says.
                if scope.namespace.names_below(path).is_empty() { Err(failure) } else { Ok(Attr::directory()) }
            }
            answer => Ok(answer?),
        };
        let answer = answer.map(|attr| Attr { writable: scope.is_writable(path), ..attr });
        let ttl = scope.of_name(path).believed(&answer);
        Ok(Known { answer, asked, ttl, scope: scope.number })
    }

    /// The answer, on the wire, to a question for one page of the directory `path`. With `revalidate`, as the origin says now; the
    /// first page asked for so makes the others be asked for again, too.
    pub(crate) async fn list_encoded(
        &self,
        path: &FsPath,
        token: Option<String>,
        max: u32,
        revalidate: bool,
    ) -> Result<Bytes, Failure> {
        let known = self.page(path, token, max, revalidate).await?;
        Ok(known.answer.encoded().for_so_long(known.valid_for()))
    }

    /// The same as it is read from there.
    #[cfg(test)]
    pub(crate) async fn list(
        &self,
        path: &FsPath,
        token: Option<String>,
        max: u32,
        revalidate: bool,
    ) -> Result<ListReply, Failure> {
        ListReply::decode(&self.list_encoded(path, token, max, revalidate).await?)
    }

    async fn page(
        &self,
        path: &FsPath,
        token: Option<String>,
        max: u32,
        revalidate: bool,
    ) -> Result<KnownPage, Failure> {
        let max = max.clamp(1, MAX_PAGE);
        let scope = self.scopes.current();
        let rules = scope.of_name(path);
        let key = (path.clone(), token, max);
        match revalidate || rules.believes_nothing() {
            true => self.ask_page_now(key).await,
            false => self.known_page(&scope, &key).await,
        }
    }

    /// The page as it is known, or else as the origin says, which is asked once for everyone.
    async fn known_page(&self, scope: &Scope, key: &PageKey) -> Result<KnownPage, Failure> {
        let began = Instant::now();
        for _ in 0..2 {
            let known = self.pages.try_get_with_by_ref(key, self.ask_page(scope, key)).await;
            let known = known.map_err(|failure: Arc<Failure>| (*failure).clone())?;
            if !known.answers(began) {
                continue;
            }
            if known.scope == scope.number && self.invalidations.believes_listing(&key.0, known.asked, Instant::now()) {
                return Ok(known);
            }
            self.pages.invalidate(key).await;
        }
        self.ask_page(scope, key).await
    }

    /// The page as the origin says now.
    async fn ask_page_now(&self, key: PageKey) -> Result<KnownPage, Failure> {
        let (metadata, asked_for) = (self.clone(), key.clone());
        self.pages_now.ask(key, async move { metadata.ask_page_again(&asked_for).await }).await
    }

    /// Asks the origin whatever is known. The first page makes the others be asked for again, too.
    async fn ask_page_again(&self, key: &PageKey) -> Result<KnownPage, Failure> {
        let scope = self.scopes.current();
        let known = self.ask_page(&scope, key).await?;
        let (path, token, _) = key;
        if scope.of_name(path).believes_nothing() {
            return Ok(known);
        }
        if token.is_none() {
            self.invalidations.listing_changed(path, known.asked);
        }
        self.pages.insert(key.clone(), Arc::clone(&known)).await;
        Ok(known)
    }

    async fn ask_page(&self, scope: &Scope, (path, token, max): &PageKey) -> Result<KnownPage, Failure> {
        let token = token.as_deref();
        let asked = Instant::now();
        let names = scope.namespace.names_below(path);
        let mut page = match scope.namespace.resolve(path) {
            Resolved::Origin(origin, below) => match origin.list(below, token, *max as usize).await {
                Err(failure) if failure.kind() == FailureKind::NotFound && !names.is_empty() => {
                    ListPage { entries: Vec::new(), next: None }
                }
                page => page?,
            },
            Resolved::Virtual => ListPage { entries: Vec::new(), next: None },
            Resolved::Nothing => return Err(scope.namespace.nothing_at(path)),
        };
        // Mounts shadow what the origin has under their names, and show on the first page.
        page.entries.retain(|entry| !names.contains(&*entry.name));
        if token.is_none() {
            let shadow = |name: &&[u8]| DirEntry { name: (*name).into(), attr: Attr::directory() };
            page.entries.splice(0..0, names.iter().map(shadow));
        }
        let writable = scope.is_writable(path);
        for entry in &mut page.entries {
            let Ok(child) = path.join(&entry.name) else { continue };
            let rules = scope.of_name(&child);
            entry.attr.replicas = rules.replicas;
            entry.attr.writable = if names.contains(&*entry.name) { scope.is_writable(&child) } else { writable };
            if rules.believes_nothing() || !self.invalidations.believes_name(&child, asked, Instant::now()) {
                continue;
            }
            let answer = Ok(entry.attr.clone());
            let ttl = rules.believed(&answer);
            self.remember(child, Known { answer, asked, ttl, scope: scope.number }).await;
        }
        let answer = Page { names: page, encoded: OnceLock::new() };
        Ok(Arc::new(Known { answer, asked, ttl: scope.of_name(path).ttl, scope: scope.number }))
    }

    /// A name is known to have changed, or is to be asked for again: it, its place in its directory, and what is in it if it is
    /// a directory.
    pub(crate) fn forget(&self, path: &FsPath) {
        let now = Instant::now();
        self.invalidate(path, now);
        self.invalidations.listing_changed(path, now);
    }

    /// The scope has changed, or so much else that nothing is to be believed any more.
    pub(crate) fn forget_all(&self) {
        self.invalidations.everything_changed(Instant::now());
        self.attrs.invalidate_all();
        self.pages.invalidate_all();
    }

    /// The worker hears of changes during `tenure`: what it knows now it may not have heard of.
    pub(crate) fn own_during(&self, tenure: &Arc<Tenure>) {
        self.invalidations.hears_during(tenure, Instant::now());
        self.attrs.invalidate_all();
        self.pages.invalidate_all();
    }

    /// The name is not what it was before `at`, in its directory's listing either.
    fn invalidate(&self, path: &FsPath, at: Instant) {
        self.invalidations.name_changed(path, at);
        self.invalidations.listing_changed(&path.parent(), at);
    }
}

#[cfg(test)]
mod tests;
