//! Which origin is behind which path.
//!
//! Mounts are bound to paths of one tree; the longest one that leads to a path decides. A directory that exists only
//! because a mount lies below it is *virtual*.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_origin::Origin;
use forebay_types::{AccessList, Failure, FailureKind, FsPath};

/// The mounts.
#[derive(Clone, Default)]
pub struct Namespace {
    /// The longest paths first.
    mounts: Vec<Mount>,
    /// There may be others, which are not known yet.
    lacks: bool,
    /// See [`Namespace::guarded`].
    is_guarded: bool,
}

/// An origin at a path.
#[derive(Clone)]
pub(crate) struct Mount {
    pub(crate) at: FsPath,
    pub(crate) origin: Arc<dyn Origin>,
    /// Which clients may use it. `None`: all whose role may.
    pub(crate) list: Option<Arc<AccessList>>,
}

/// Why mounts do not make a namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceError {
    /// Two mounts at one path.
    #[error("two mounts are bound to `{0}`; give each origin a path of its own")]
    Twice(String),
}

/// What is behind a path.
pub(crate) enum Resolved<'a> {
    /// An origin, and the path below it.
    Origin(&'a Arc<dyn Origin>, &'a [u8]),
    /// A directory that is there because mounts lie below it.
    Virtual,
    /// Nothing.
    Nothing,
}

impl Namespace {
    /// A namespace of these mounts.
    ///
    /// # Errors
    /// [`NamespaceError::Twice`].
    pub fn new(mounts: impl IntoIterator<Item = (FsPath, Arc<dyn Origin>)>) -> Result<Self, NamespaceError> {
        let mut mounts: Vec<_> = mounts.into_iter().map(|(at, origin)| Mount { at, origin, list: None }).collect();
        mounts.sort_by(|Mount { at: a, .. }, Mount { at: b, .. }| {
            b.as_bytes().len().cmp(&a.as_bytes().len()).then_with(|| a.cmp(b))
        });
        match mounts.windows(2).find(|pair| pair[0].at == pair[1].at) {
            Some(pair) => Err(NamespaceError::Twice(pair[0].at.to_string())),
            None => Ok(Self { mounts, lacks: false, is_guarded: false }),
        }
    }

    /// The same mounts, of which those at these paths are for the clients that a list names. Then it is
    /// [guarded](Self::guarded).
    #[must_use]
    pub fn with_access(mut self, lists: impl IntoIterator<Item = (FsPath, AccessList)>) -> Self {
        for (at, list) in lists {
            if let Some(mount) = self.mounts.iter_mut().find(|mount| mount.at == at) {
                mount.list = Some(Arc::new(list));
                self.is_guarded = true;
            }
        }
        self
    }

    /// The same mounts. Of what is cached, nothing is shown before it is known which of them it is of: what a restart
    /// has found may be of one that was removed, or that not everybody may read.
    #[must_use]
    pub fn guarded(self) -> Self {
        Self { is_guarded: true, ..self }
    }

    pub(crate) fn is_guarded(&self) -> bool {
        self.is_guarded
    }

    /// Whether there may be mounts that are not known yet.
    pub(crate) fn lacks(&self) -> bool {
        self.lacks
    }

    pub(crate) fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    /// The mount that leads to `path`, and the path below it.
    pub(crate) fn mount_of<'a>(&'a self, path: &'a FsPath) -> Option<(&'a Mount, &'a [u8])> {
        self.mounts.iter().find_map(|mount| Some((mount, path.relative_to(&mount.at)?)))
    }

    /// The same mounts, of which it is not known yet whether they are all. Of a path that none of them leads to, it
    /// cannot be said that there is nothing.
    #[must_use]
    pub fn and_others(self) -> Self {
        Self { lacks: true, ..self }
    }

    /// Why there is no answer about a path that no mount leads to.
    pub(crate) fn nothing_at(&self, path: &FsPath) -> Failure {
        if self.lacks {
            let message = format!("{path}: this worker has not been told yet what is mounted");
            return Failure::new(FailureKind::NotReady, message);
        }
        Failure::new(FailureKind::NotFound, format!("no mount leads to {path}"))
    }

    pub(crate) fn resolve<'a>(&'a self, path: &'a FsPath) -> Resolved<'a> {
        if let Some((mount, below)) = self.mount_of(path) {
            return Resolved::Origin(&mount.origin, below);
        }
        // What is in such a directory is known when all mounts are.
        if self.leads_to_mounts(path) && !self.lacks { Resolved::Virtual } else { Resolved::Nothing }
    }

    /// Whether `path` is a mount's, or leads to one.
    pub(crate) fn leads_to_mounts(&self, path: &FsPath) -> bool {
        path.is_root() || self.mounts.iter().any(|mount| mount.at.relative_to(path).is_some())
    }

    /// The names in the directory `path` that lead to mounts.
    pub(crate) fn names_below(&self, path: &FsPath) -> BTreeSet<&[u8]> {
        let first_name = |below: &'_ [u8]| below.iter().position(|byte| *byte == b'/').unwrap_or(below.len());
        self.mounts
            .iter()
            .filter_map(|mount| mount.at.relative_to(path))
            .filter(|below| !below.is_empty())
            .map(|below| &below[..first_name(below)])
            .collect()
    }

    /// The origins, each with the path that it is bound to.
    pub(crate) fn origins(&self) -> impl Iterator<Item = (&FsPath, &Arc<dyn Origin>)> {
        self.mounts.iter().map(|mount| (&mount.at, &mount.origin))
    }

    /// Why there is nothing to read a file of an origin from that no mount is on.
    pub(crate) fn no_mount_on(&self, url: &str) -> Failure {
        if self.lacks {
            let message = format!("this worker has not been told yet that {url} is mounted");
            return Failure::new(FailureKind::NotReady, message);
        }
        // Another worker may have learned of the mount already.
        Failure::new(FailureKind::Unavailable, format!("no mount of this worker is on {url}"))
    }

    /// The origin with this URL.
    pub(crate) fn origin(&self, url: &str) -> Option<&Arc<dyn Origin>> {
        self.mounts.iter().map(|mount| &mount.origin).find(|origin| &**origin.url() == url)
    }

    /// Every path at which `path` of the origin with this URL shows.
    pub(crate) fn paths_of<'a>(&'a self, url: &'a str, path: &'a [u8]) -> impl Iterator<Item = FsPath> + 'a {
        let shows = move |at: &FsPath| {
            let slash: &[u8] = if at.is_root() { b"" } else { b"/" };
            FsPath::new([at.as_bytes(), slash, path].concat()).ok()
        };
        self.mounts.iter().filter(move |mount| &**mount.origin.url() == url).filter_map(move |mount| shows(&mount.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_origin::FakeOrigin;

    fn path(text: &str) -> FsPath {
        FsPath::new(text).unwrap()
    }

    fn namespace(mounts: &[(&str, &str)]) -> Namespace {
        let origin = |url: &str| Arc::new(FakeOrigin::new(url)) as Arc<dyn Origin>;
        Namespace::new(mounts.iter().map(|(at, url)| (path(at), origin(url)))).unwrap()
    }

    fn resolved(namespace: &Namespace, text: &str) -> String {
        match namespace.resolve(&path(text)) {
            Resolved::Origin(origin, below) => format!("{} {}", origin.url(), String::from_utf8_lossy(below)),
            Resolved::Virtual => "virtual".into(),
            Resolved::Nothing => "nothing".into(),
        }
    }

    #[test]
    fn the_longest_mount_decides() {
        let namespace = namespace(&[("/", "fake://a"), ("/data/s3", "fake://b")]);
        assert_eq!(resolved(&namespace, "/data/x"), "fake://a data/x");
        assert_eq!(resolved(&namespace, "/data/s3"), "fake://b ");
        assert_eq!(resolved(&namespace, "/data/s3/k"), "fake://b k");
        assert_eq!(resolved(&namespace, "/data/s3x"), "fake://a data/s3x");
        assert_eq!(namespace.names_below(&path("/data")), BTreeSet::from([&b"s3"[..]]));
        assert_eq!(namespace.paths_of("fake://b", b"k").collect::<Vec<_>>(), [path("/data/s3/k")]);
        assert_eq!(namespace.paths_of("fake://a", b"k").collect::<Vec<_>>(), [path("/k")]);
    }

    #[test]
    fn directories_above_a_mount_are_virtual() {
        let namespace = namespace(&[("/data/s3", "fake://b")]);
        assert_eq!(resolved(&namespace, "/"), "virtual");
        assert_eq!(resolved(&namespace, "/data"), "virtual");
        assert_eq!(resolved(&namespace, "/other"), "nothing");
        assert_eq!(resolved(&Namespace::default(), "/"), "virtual");
    }

    #[test]
    fn who_does_not_know_all_mounts_says_of_nothing_that_it_is_not_there() {
        let some = namespace(&[("/s3", "fake://a")]);
        assert_eq!(some.nothing_at(&path("/x")).kind(), FailureKind::NotFound);
        let some = some.and_others();
        assert_eq!(resolved(&some, "/s3/k"), "fake://a k");
        assert_eq!((resolved(&some, "/"), resolved(&some, "/x")), ("nothing".into(), "nothing".into()));
        assert_eq!(some.nothing_at(&path("/x")).kind(), FailureKind::NotReady);
    }

    #[test]
    fn two_mounts_at_one_path_are_refused() {
        let origin = Arc::new(FakeOrigin::new("fake://a")) as Arc<dyn Origin>;
        assert!(Namespace::new([(path("/a"), Arc::clone(&origin)), (path("/a/"), origin)]).is_err());
    }
}
