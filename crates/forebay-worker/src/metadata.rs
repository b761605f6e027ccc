//! Attributes and listings: asked for once for everyone, and believed for a configured time.
//!
//! What is cached says when it was asked, so an answer tells how much longer it may be believed and staleness does not
//! add up from cache to cache. Absence is cached like presence. A listing teaches the attributes of every name in it,
//! which is why a name's attributes are asked of the worker that owns its directory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_origin::ListPage;
use forebay_transport::message::{ListReply, StatReply};
use forebay_types::{Attr, DirEntry, Failure, FailureKind, FsPath};
use moka::future::Cache;

use crate::namespace::{Namespace, Resolved};

/// Names in one page of a listing at most: what S3 gives at once.
const MAX_PAGE: u32 = 1000;

/// How metadata is cached.
#[derive(Clone, Copy, Debug)]
pub struct MetadataOptions {
    /// How long an answer is believed; zero asks the origin each time.
    pub ttl: Duration,
    /// How many names are remembered, in attributes and in listings each.
    pub entries: u64,
}

#[derive(Clone)]
struct Known<T> {
    answer: T,
    asked: Instant,
}

impl<T> Known<T> {
    fn valid_for(&self, ttl: Duration) -> Duration {
        ttl.saturating_sub(self.asked.elapsed())
    }
}

type KnownAttr = Known<Result<Attr, Failure>>;
type KnownPage = Arc<Known<ListPage>>;

pub(crate) struct Metadata {
    namespace: Namespace,
    ttl: Duration,
    attrs: Cache<FsPath, KnownAttr>,
    pages: Cache<(FsPath, Option<String>, u32), KnownPage>,
}

impl Metadata {
    pub(crate) fn new(namespace: Namespace, options: MetadataOptions) -> Self {
        let MetadataOptions { ttl, entries } = options;
        let attrs = Cache::builder().max_capacity(entries).time_to_live(ttl).build();
        let weigh = |_: &(FsPath, Option<String>, u32), page: &KnownPage| {
            u32::try_from(page.answer.entries.len()).unwrap_or(u32::MAX).max(1)
        };
        let pages = Cache::builder().max_capacity(entries).weigher(weigh).time_to_live(ttl).build();
        Self { namespace, ttl, attrs, pages }
    }

    /// What `path` is. With `revalidate`, as the origin says now.
    pub(crate) async fn stat(&self, path: &FsPath, revalidate: bool) -> Result<StatReply, Failure> {
        let known = if self.ttl.is_zero() {
            self.ask(path).await?
        } else if revalidate {
            let known = self.ask(path).await?;
            self.attrs.insert(path.clone(), known.clone()).await;
            // A directory that has changed has a listing that has changed.
            self.pages.invalidate_all();
            known
        } else {
            let ask = self.ask(path);
            self.attrs.try_get_with_by_ref(path, ask).await.map_err(|failure: Arc<Failure>| (*failure).clone())?
        };
        let valid_for = known.valid_for(self.ttl);
        Ok(StatReply { attr: known.answer?, valid_for })
    }

    /// Asks the origin. Answers about the name are remembered, good or bad; failures to answer are not.
    async fn ask(&self, path: &FsPath) -> Result<KnownAttr, Failure> {
        let asked = Instant::now();
        let answer = match self.namespace.resolve(path) {
            Resolved::Origin(origin, below) => origin.stat(below).await,
            Resolved::Virtual => Ok(Attr::directory()),
            Resolved::Nothing => Err(not_found(path)),
        };
        match answer {
            Err(failure) if matches!(failure.kind(), FailureKind::NotFound | FailureKind::NotADirectory) => {
                // A path above a mount exists, whatever its origin says.
                let answer =
                    if self.namespace.names_below(path).is_empty() { Err(failure) } else { Ok(Attr::directory()) };
                Ok(Known { answer, asked })
            }
            answer => Ok(Known { answer: Ok(answer?), asked }),
        }
    }

    /// One page of the directory `path`.
    pub(crate) async fn list(&self, path: &FsPath, token: Option<String>, max: u32) -> Result<ListReply, Failure> {
        let max = max.clamp(1, MAX_PAGE);
        let known = if self.ttl.is_zero() {
            self.ask_page(path, token.as_deref(), max).await?
        } else {
            let key = (path.clone(), token.clone(), max);
            let ask = self.ask_page(path, token.as_deref(), max);
            self.pages.try_get_with(key, ask).await.map_err(|failure: Arc<Failure>| (*failure).clone())?
        };
        let ListPage { entries, next } = known.answer.clone();
        Ok(ListReply { entries, next, valid_for: known.valid_for(self.ttl) })
    }

    async fn ask_page(&self, path: &FsPath, token: Option<&str>, max: u32) -> Result<KnownPage, Failure> {
        let asked = Instant::now();
        let names = self.namespace.names_below(path);
        let mut page = match self.namespace.resolve(path) {
            Resolved::Origin(origin, below) => match origin.list(below, token, max as usize).await {
                Err(failure) if failure.kind() == FailureKind::NotFound && !names.is_empty() => {
                    ListPage { entries: Vec::new(), next: None }
                }
                page => page?,
            },
            Resolved::Virtual => ListPage { entries: Vec::new(), next: None },
            Resolved::Nothing => return Err(not_found(path)),
        };
        // Mounts shadow what the origin has under their names, and show on the first page.
        page.entries.retain(|entry| !names.contains(&*entry.name));
        if token.is_none() {
            let shadow = |name: &&[u8]| DirEntry { name: (*name).into(), attr: Attr::directory() };
            page.entries.splice(0..0, names.iter().map(shadow));
        }
        if !self.ttl.is_zero() {
            for entry in &page.entries {
                if let Ok(child) = path.join(&entry.name) {
                    self.attrs.insert(child, Known { answer: Ok(entry.attr.clone()), asked }).await;
                }
            }
        }
        Ok(Arc::new(Known { answer: page, asked }))
    }

    /// The object behind these paths is known to have changed.
    pub(crate) async fn forget(&self, paths: impl IntoIterator<Item = FsPath>) {
        for path in paths {
            self.attrs.invalidate(&path).await;
        }
        self.pages.invalidate_all();
    }
}

fn not_found(path: &FsPath) -> Failure {
    Failure::new(FailureKind::NotFound, format!("no mount leads to {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_origin::{FakeOrigin, Origin};

    fn path(text: &str) -> FsPath {
        FsPath::new(text).unwrap()
    }

    fn metadata(ttl: Duration) -> (Arc<FakeOrigin>, Metadata) {
        let origin = Arc::new(FakeOrigin::new("fake://bucket"));
        let mount = (path("/data/s3"), Arc::clone(&origin) as Arc<dyn Origin>);
        let namespace = Namespace::new([mount]).unwrap();
        (origin, Metadata::new(namespace, MetadataOptions { ttl, entries: 1000 }))
    }

    const TTL: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn many_who_ask_at_once_are_one_question_to_the_origin() {
        let (origin, metadata) = metadata(TTL);
        origin.put("a", b"abc".as_slice());
        let metadata = Arc::new(metadata);
        let asks = (0..50).map(|_| {
            let metadata = Arc::clone(&metadata);
            tokio::spawn(async move { metadata.stat(&path("/data/s3/a"), false).await.unwrap().attr.size() })
        });
        for ask in asks.collect::<Vec<_>>() {
            assert_eq!(ask.await.unwrap(), 3);
        }
        assert_eq!(origin.counts().stats, 1);
    }

    #[tokio::test]
    async fn absence_is_remembered_until_someone_insists() {
        let (origin, metadata) = metadata(TTL);
        let kind = |reply: Result<StatReply, Failure>| reply.unwrap_err().kind();
        assert_eq!(kind(metadata.stat(&path("/data/s3/a"), false).await), FailureKind::NotFound);
        origin.put("a", b"abc".as_slice());
        assert_eq!(kind(metadata.stat(&path("/data/s3/a"), false).await), FailureKind::NotFound);
        assert_eq!(metadata.stat(&path("/data/s3/a"), true).await.unwrap().attr.size(), 3);
        assert_eq!(metadata.stat(&path("/data/s3/a"), false).await.unwrap().attr.size(), 3);
    }

    #[tokio::test]
    async fn a_ttl_of_zero_always_asks_and_is_never_believed() {
        let (origin, metadata) = metadata(Duration::ZERO);
        for size in 1..4 {
            origin.put("a", vec![0; size]);
            let reply = metadata.stat(&path("/data/s3/a"), false).await.unwrap();
            assert_eq!((reply.attr.size(), reply.valid_for), (size as u64, Duration::ZERO));
        }
    }

    #[tokio::test]
    async fn a_listing_teaches_the_attributes_of_its_names() {
        let (origin, metadata) = metadata(TTL);
        for name in ["d/a", "d/b", "d/c"] {
            origin.put(name, b"x".as_slice());
        }
        let page = metadata.list(&path("/data/s3/d"), None, 2).await.unwrap();
        assert_eq!(page.entries.len(), 2);
        let rest = metadata.list(&path("/data/s3/d"), page.next, 2).await.unwrap();
        assert_eq!((rest.entries.len(), rest.next), (1, None));
        for name in ["a", "b", "c"] {
            metadata.stat(&path("/data/s3/d").join(name.as_bytes()).unwrap(), false).await.unwrap();
        }
        assert_eq!(origin.counts().stats, 0);
    }

    #[tokio::test]
    async fn directories_above_mounts_are_there() {
        let (_origin, metadata) = metadata(TTL);
        for directory in ["/", "/data", "/data/s3"] {
            assert_eq!(metadata.stat(&path(directory), false).await.unwrap().attr, Attr::directory(), "{directory}");
        }
        let page = metadata.list(&path("/"), None, 10).await.unwrap();
        assert_eq!(page.entries.iter().map(|entry| &*entry.name).collect::<Vec<_>>(), [b"data"]);
        assert!(metadata.stat(&path("/nothing"), false).await.is_err());
        assert!(metadata.list(&path("/nothing"), None, 10).await.is_err());
    }
}
