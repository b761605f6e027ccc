//! A page of a directory, as a client keeps it.
//!
//! Workers are asked for each listing: what they say may have changed. Mostly it has not, and then the same thousand
//! names would be decoded again, their versions hashed and their paths put together. So a client keeps a few pages,
//! each with the bytes that said it, and an answer with the same bytes is that page ([`Pages::read`]). Nothing is
//! believed for longer because of it.
//!
//! What follows from a name (its path, the id of its version) is worked out when somebody asks for it, and once.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use forebay_transport::message::{ListReply, PageOfNames};
use forebay_types::{DirEntry, Failure, FileId, FsPath};
use moka::sync::Cache;

/// Names of pages that are kept: some 500 bytes each.
const NAMES: u64 = 20_000;
/// A page that nobody lists for so long goes, when another one comes.
const IDLE: Duration = Duration::from_secs(300);

/// One page of a directory. The same page is the same object for as long as a client keeps it.
#[derive(Debug)]
pub struct Page {
    directory: FsPath,
    names: Vec<ListedName>,
    next: Option<String>,
    /// The places of files, in the order of their paths below the origin.
    sorted: OnceLock<Box<[u32]>>,
}

/// A name, and what follows from it.
#[derive(Debug)]
pub struct ListedName {
    entry: DirEntry,
    path: OnceLock<Option<FsPath>>,
    id: OnceLock<Option<FileId>>,
    number: OnceLock<u64>,
}

/// A page, and how long it may be believed.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The page.
    pub page: Arc<Page>,
    /// From when it was asked for.
    pub valid_for: Duration,
}

impl Page {
    /// These names of `directory`; `next` says where the next page starts, if there is one.
    #[must_use]
    pub fn new(directory: FsPath, entries: Vec<DirEntry>, next: Option<String>) -> Self {
        let names = entries.into_iter().map(ListedName::new).collect();
        Self { directory, names, next, sorted: OnceLock::new() }
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &FsPath {
        &self.directory
    }

    /// The names.
    #[must_use]
    pub fn names(&self) -> &[ListedName] {
        &self.names
    }

    /// Where the next page starts; `None` after the last.
    #[must_use]
    pub fn next(&self) -> Option<&str> {
        self.next.as_deref()
    }

    /// The page as a reply says it.
    #[must_use]
    pub fn reply(&self, valid_for: Duration) -> ListReply {
        let entries = self.names.iter().map(|name| name.entry.clone()).collect();
        ListReply { entries, next: self.next.clone(), valid_for }
    }

    /// The place of the file with this path below its origin.
    pub(crate) fn find(&self, path: &[u8]) -> Option<usize> {
        let sorted = self.sorted.get_or_init(|| {
            // A page has some thousand names at most.
            let is_file = |at: &u32| self.file_path(*at).is_some();
            let mut places: Vec<u32> = (0..self.names.len() as u32).filter(is_file).collect();
            places.sort_by_key(|at| self.file_path(*at));
            places.into()
        });
        let at = sorted.binary_search_by(|at| self.file_path(*at).cmp(&Some(path))).ok()?;
        Some(sorted[at] as usize)
    }

    fn file_path(&self, at: u32) -> Option<&[u8]> {
        Some(&self.names[at as usize].entry.attr.version()?.path)
    }
}

impl ListedName {
    /// This one.
    #[must_use]
    pub fn new(entry: DirEntry) -> Self {
        Self { entry, path: OnceLock::new(), id: OnceLock::new(), number: OnceLock::new() }
    }

    /// The name and what it is.
    #[must_use]
    pub fn entry(&self) -> &DirEntry {
        &self.entry
    }

    /// Its path in `directory`, which is the page's; `None` for a name that no file can have.
    pub fn path_in(&self, directory: &FsPath) -> Option<&FsPath> {
        let join = || {
            directory
                .join(&self.entry.name)
                .inspect_err(|error| tracing::debug!(%error, "a name is left out of a listing"))
                .ok()
        };
        self.path.get_or_init(join).as_ref()
    }

    /// The id of its version, if it is a file.
    pub fn version_id(&self) -> Option<FileId> {
        *self.id.get_or_init(|| self.entry.attr.version().map(|version| version.id()))
    }

    /// A number that follows from path and version, and that only who shows the name can tell: `tell` is asked once.
    pub fn number(&self, tell: impl FnOnce() -> u64) -> u64 {
        *self.number.get_or_init(tell)
    }

    /// That number, if it was told.
    pub(crate) fn known_number(&self) -> Option<u64> {
        self.number.get().copied()
    }
}

type Key = (FsPath, Option<String>, u32);

/// The pages that a client keeps.
pub(crate) struct Pages(Cache<Key, Kept>);

#[derive(Clone)]
struct Kept {
    said: PageOfNames,
    page: Arc<Page>,
}

impl Pages {
    pub(crate) fn new() -> Self {
        let weigh = |_: &Key, kept: &Kept| u32::try_from(kept.page.names.len()).unwrap_or(u32::MAX).max(1);
        Self(Cache::builder().max_capacity(NAMES).weigher(weigh).time_to_idle(IDLE).build())
    }

    /// What the body of a reply says of the page of `directory` that starts at `token`, of at most `max` names.
    ///
    /// # Errors
    /// When it says nothing that makes sense.
    pub(crate) fn read(
        &self,
        directory: &FsPath,
        token: Option<String>,
        max: u32,
        body: &Bytes,
    ) -> Result<Listed, Failure> {
        let key = (directory.clone(), token, max);
        if let Some(Kept { said, page }) = self.0.get(&key)
            && let Some(valid_for) = said.is_said_by(body)
        {
            return Ok(Listed { page, valid_for });
        }
        let (said, ListReply { entries, next, valid_for }) = PageOfNames::read(body)?;
        let page = Arc::new(Page::new(directory.clone(), entries, next));
        // What came may lie in a larger buffer.
        let kept = Kept { said: said.copied(), page: Arc::clone(&page) };
        self.0.insert(key, kept);
        Ok(Listed { page, valid_for })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::{Attr, FileVersion, VersionTag};

    fn entry(name: &str, etag: &str) -> DirEntry {
        let tag = VersionTag::Etag(etag.into());
        let path = format!("d/{name}").into_bytes().into();
        let attr = Attr::file(FileVersion { origin: "s3://b".into(), path, size: 9, tag });
        DirEntry { name: name.as_bytes().into(), attr }
    }

    fn body(entries: Vec<DirEntry>, valid_for: u64) -> Bytes {
        ListReply { entries, next: Some("t".into()), valid_for: Duration::from_secs(valid_for) }.encode()
    }

    #[test]
    fn the_same_names_are_the_same_page_and_are_believed_for_as_long_as_the_last_answer_says() {
        let (pages, directory) = (Pages::new(), FsPath::new("/s3/d").unwrap());
        let read =
            |token: Option<&str>, body: &Bytes| pages.read(&directory, token.map(str::to_owned), 1000, body).unwrap();
        let first = read(None, &body(vec![entry("a", "1"), entry("b", "1")], 60));
        let again = read(None, &body(vec![entry("a", "1"), entry("b", "1")], 5));
        assert!(Arc::ptr_eq(&first.page, &again.page));
        assert_eq!((first.valid_for, again.valid_for), (Duration::from_secs(60), Duration::from_secs(5)));
        assert_eq!(again.page.next(), Some("t"));
        let elsewhere = read(Some("t"), &body(vec![entry("a", "1"), entry("b", "1")], 5));
        assert!(!Arc::ptr_eq(&first.page, &elsewhere.page));
        let replaced = read(None, &body(vec![entry("a", "1"), entry("b", "2")], 60));
        assert_ne!(replaced.page.names()[1].version_id(), first.page.names()[1].version_id());
        assert_eq!(replaced.page.names()[0].version_id(), first.page.names()[0].version_id());
        assert!(pages.read(&directory, None, 1000, &Bytes::from_static(b"\xff")).is_err());
    }

    #[test]
    fn a_file_is_found_by_its_path_in_whatever_order_a_page_is() {
        let directory = DirEntry { name: b"c".as_slice().into(), attr: Attr::directory() };
        let entries = vec![entry("z", "1"), directory, entry("a", "1"), entry("m", "1")];
        let page = Page::new(FsPath::new("/s3/d").unwrap(), entries, None);
        let found = ["d/a", "d/m", "d/z", "d/c", "d/b"].map(|path| page.find(path.as_bytes()));
        assert_eq!(found, [Some(2), Some(3), Some(0), None, None]);
    }

    #[test]
    fn what_follows_from_a_name_is_worked_out_once() {
        let directory = FsPath::new("/s3/d").unwrap();
        let page = Page::new(directory.clone(), vec![entry("a", "1"), entry("..", "1")], None);
        let [name, odd] = page.names() else { panic!() };
        assert_eq!((name.number(|| 7), name.number(|| 8)), (7, 7));
        assert_eq!(name.path_in(&directory), Some(&FsPath::new("/s3/d/a").unwrap()));
        assert_eq!(odd.path_in(&directory), None);
        assert_eq!(name.version_id(), name.entry().attr.version().map(FileVersion::id));
    }
}
