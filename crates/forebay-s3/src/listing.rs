//! Listings: the keys of a bucket in their order, a page at a time, from directories whose names come in any order.
//!
//! An origin tells the names of a directory in an order of its own, and a listing of S3 is in the order of keys. So a
//! directory is read to its end for a page, and of its names only the smallest are kept that the page can need
//! ([`Smallest`]): memory is bound by the page and not by the directory. If it turns out that its names do come in the
//! order of keys (`order.rs`), the pages that follow are read from where they begin. Directories are walked depth first,
//! in the order of their keys; those whose own key has the delimiter in it are a common prefix, and not entered.
//!
//! A directory is the common prefix `name/`, and no object. One that is empty is the object `name/`, of no bytes, as a
//! marker that some client put there: the namespace does not tell markers from directories that keys below imply, and
//! an empty directory has one.

mod order;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use forebay_types::{Attr, DirEntry, Failure, FailureKind, FsPath};

use self::order::{Learning, ends_of};
pub(crate) use self::order::{Order, Orders};

/// Keys of a page, at most: as Amazon has it.
pub(crate) const MAX_KEYS: usize = 1000;
/// Begins each token, so that a token of another server does not pass for ours.
const TOKEN: &str = "f1-";

/// Where names come from.
pub(crate) trait Names: Sync {
    /// A page of the directory `path` from `token` on, and where the next one begins.
    fn page(
        &self,
        path: &FsPath,
        token: Option<String>,
    ) -> impl Future<Output = Result<(Vec<DirEntry>, Option<String>), Failure>> + Send;

    /// Whether what is in `path` may be seen.
    fn shows(&self, path: &FsPath) -> bool;

    /// The order of its names, if it is known to have one.
    fn order(&self, path: &FsPath) -> Option<Arc<Order>>;

    /// It was read from its beginning to its end, and has this one.
    fn has_order(&self, path: &FsPath, order: Option<Order>);
}

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query {
    /// Keys begin with it.
    pub(crate) prefix: String,
    /// Keys that have it after the prefix are told as one common prefix, up to its end. Not empty.
    pub(crate) delimiter: Option<String>,
    /// Only what comes after this.
    pub(crate) after: String,
    /// How many, at most.
    pub(crate) max: usize,
}

/// What is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    /// An object.
    Object(String, Attr),
    /// A common prefix, with the delimiter that ends it.
    Prefix(String),
}

/// A page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) listed: Vec<Listed>,
    /// More follows.
    pub(crate) is_truncated: bool,
}

impl Listed {
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Object(key, _) | Self::Prefix(key) => key,
        }
    }
}

impl Page {
    /// The last key, after which the next page begins; `None` on the last page.
    pub(crate) fn next(&self) -> Option<&str> {
        self.listed.last().filter(|_| self.is_truncated).map(Listed::key)
    }
}

/// The token of a page that begins after `key`.
pub(crate) fn token(key: &str) -> String {
    let hex: String = key.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("{TOKEN}{hex}")
}

/// The key after which the page of `token` begins; `None` if it is none of ours.
pub(crate) fn key_of_token(token: &str) -> Option<String> {
    let hex = token.strip_prefix(TOKEN)?;
    if hex.len() % 2 != 0 || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).ok();
    let bytes: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(digits).collect();
    String::from_utf8(bytes?).ok()
}

/// A name of a directory, as a key, or the common prefix that it is told as.
struct Child {
    key: String,
    what: What,
}

/// What a key is.
enum What {
    Object(Attr),
    /// To be entered. Its key ends in `/`.
    Directory(FsPath),
    /// Of one name or more.
    Prefix,
}

/// The smallest of what is offered, so many at most, and each key once.
struct Smallest {
    kept: BTreeMap<String, What>,
    most: usize,
    /// Some were not kept.
    left_out: bool,
}

impl Smallest {
    fn of(most: usize) -> Self {
        Self { kept: BTreeMap::new(), most, left_out: false }
    }

    fn offer(&mut self, child: Child) {
        self.kept.insert(child.key, child.what);
        if self.kept.len() > self.most {
            self.kept.pop_last();
            self.left_out = true;
        }
    }
}

/// A directory that is being walked.
struct Frame {
    path: FsPath,
    /// What its names come after in keys: empty, or with a `/` at its end.
    prefix: String,
    /// Its names begin with it.
    stem: String,
    /// Read and not yet listed, in order.
    children: VecDeque<Child>,
    /// The key of the last one that was read, if there are more.
    more_after: Option<String>,
}

impl Frame {
    /// These are to be listed. Whether there are any.
    fn take(&mut self, smallest: Smallest) -> bool {
        let left_out = smallest.left_out;
        self.children = smallest.kept.into_iter().map(|(key, what)| Child { key, what }).collect();
        self.more_after = self.children.back().filter(|_| left_out).map(|child| child.key.clone());
        !self.children.is_empty()
    }
}

/// The page of the bucket at `root` that `query` asks for.
///
/// # Errors
/// Whatever keeps directories from being read. One that is not there has no names.
pub(crate) async fn list(names: &impl Names, root: &FsPath, query: &Query) -> Result<Page, Failure> {
    let (prefix, stem) = query
        .prefix
        .rsplit_once('/')
        .map_or(("", &*query.prefix), |(_, stem)| (&query.prefix[..query.prefix.len() - stem.len()], stem));
    let base = match prefix.strip_suffix('/') {
        None => Some(root.clone()),
        Some(below) => crate::bucket::place(root, below).filter(|place| !place.is_directory).map(|place| place.path),
    };
    // No key begins like this.
    let Some(base) = base else { return Ok(Page::default()) };
    if query.max == 0 || !names.shows(&base) {
        return Ok(Page::default());
    }
    let mut walk = Walk { names, query, listed: Vec::new() };
    let first = walk.enter(base, prefix.to_owned(), stem.to_owned()).await?;
    walk.run(first).await?;
    let is_truncated = walk.listed.len() > query.max;
    walk.listed.truncate(query.max);
    Ok(Page { listed: walk.listed, is_truncated })
}

struct Walk<'a, N> {
    names: &'a N,
    query: &'a Query,
    /// One more than the page has, if there is one.
    listed: Vec<Listed>,
}

impl<N: Names> Walk<'_, N> {
    async fn run(&mut self, first: Option<Frame>) -> Result<(), Failure> {
        let mut frames = Vec::from_iter(first);
        while let Some(mut frame) = frames.pop() {
            if self.listed.len() > self.query.max {
                return Ok(());
            }
            // All that is left in it is told already.
            if self.is_told(&frame.prefix) {
                continue;
            }
            let Some(Child { key, what }) = frame.children.pop_front() else {
                if let Some(after) = frame.more_after.take()
                    && self.read(&mut frame, after).await?
                {
                    frames.push(frame);
                }
                continue;
            };
            frames.push(frame);
            match what {
                _ if self.is_told(&key) => {}
                What::Object(attr) => self.listed.push(Listed::Object(key, attr)),
                What::Prefix => self.listed.push(Listed::Prefix(key)),
                What::Directory(path) if self.names.shows(&path) => {
                    frames.extend(self.enter(path, key, String::new()).await?);
                }
                What::Directory(_) => {}
            }
        }
        Ok(())
    }

    /// Whether the common prefix of a key is what was listed last.
    fn is_told(&self, key: &str) -> bool {
        matches!(self.listed.last(), Some(Listed::Prefix(prefix)) if key.starts_with(&**prefix))
    }

    /// The common prefix that a key is told as; `None` where it is told itself.
    fn common_prefix<'k>(&self, key: &'k str) -> Option<&'k str> {
        let delimiter = self.query.delimiter.as_deref()?;
        let at = key.strip_prefix(&*self.query.prefix)?.find(delimiter)?;
        key.get(..self.query.prefix.len() + at + delimiter.len())
    }

    /// Begins a directory. `None`: there is nothing in it. Where it is empty, it is listed itself.
    async fn enter(&mut self, path: FsPath, prefix: String, stem: String) -> Result<Option<Frame>, Failure> {
        let mut frame = Frame { path, prefix, stem, children: VecDeque::new(), more_after: None };
        if self.read(&mut frame, String::new()).await? {
            return Ok(Some(frame));
        }
        Ok(None)
    }

    /// Reads the names of a directory that come after `from`, as keys. Whether there are any to be listed.
    async fn read(&mut self, frame: &mut Frame, from: String) -> Result<bool, Failure> {
        if let Some(order) = self.names.order(&frame.path)
            && let Some(smallest) = self.read_in_order(frame, &from, &order).await
        {
            return Ok(frame.take(smallest));
        }
        let (mut smallest, mut learning) = (Smallest::of(self.query.max + 1), Learning::default());
        let (mut token, mut is_empty) = (None, true);
        loop {
            let (entries, next) = match self.names.page(&frame.path, token.clone()).await {
                // It has gone since, or was never there.
                Err(failure) if matches!(failure.kind(), FailureKind::NotFound | FailureKind::NotADirectory) => {
                    return Ok(false);
                }
                page => page?,
            };
            is_empty &= entries.is_empty();
            learning.page(token, &entries);
            self.offer(frame, entries, &from, &mut smallest);
            match next {
                Some(next) => token = Some(next),
                None => break,
            }
        }
        self.names.has_order(&frame.path, learning.learned());
        let is_marker = is_empty && !frame.prefix.is_empty() && frame.stem.is_empty() && from.is_empty();
        if is_marker && frame.prefix > self.query.after {
            self.listed.push(Listed::Object(frame.prefix.clone(), Attr::directory()));
        }
        Ok(frame.take(smallest))
    }

    /// The same of a directory whose names come in the order of keys: from where the first of them can be to where there are
    /// enough. `None`: it is not so any more, or cannot be read; then it is read from its beginning, which says why.
    async fn read_in_order(&self, frame: &Frame, from: &str, order: &Order) -> Option<Smallest> {
        let (mut smallest, least) = (Smallest::of(self.query.max + 1), self.least(frame, from));
        let mut token = order.page_of(&least);
        // What the names of the next page are to come after.
        let mut before: Option<Vec<u8>> = None;
        let mut may_begin_anywhere = token.is_none();
        loop {
            let (entries, next) = self.names.page(&frame.path, token).await.ok()?;
            if let Some((first, last)) = ends_of(&entries) {
                let begins_late = !may_begin_anywhere && first > least;
                if begins_late || before.is_some_and(|before| first <= before) {
                    return None;
                }
                // None of these begins with it, nor does any that follows.
                if first.as_slice() > frame.stem.as_bytes() && !first.starts_with(frame.stem.as_bytes()) {
                    return Some(smallest);
                }
                // One page further than need be: an object store's file `a` comes as late as it takes to know that there is no
                // directory `a/`, and so may come behind `a-b`, on the next page.
                if smallest.kept.len() >= smallest.most {
                    smallest.left_out = true;
                    return Some(smallest);
                }
                (before, may_begin_anywhere) = (Some(last), true);
            }
            self.offer(frame, entries, from, &mut smallest);
            match next {
                // Nothing at all is another matter.
                None => return before.is_some().then_some(smallest),
                Some(next) => token = Some(next),
            }
        }
    }

    /// No name whose key within the directory is less is listed by a read from `from` on.
    fn least(&self, frame: &Frame, from: &str) -> Vec<u8> {
        fn within<'k>(key: &'k str, frame: &Frame) -> &'k str {
            key.strip_prefix(&*frame.prefix).unwrap_or_default()
        }
        // A directory that the page begins in is entered.
        let after = within(&self.query.after, frame).split_inclusive('/').next().unwrap_or_default();
        let least = after.max(within(from, frame)).max(&frame.stem);
        least.as_bytes().to_vec()
    }

    fn offer(&self, frame: &Frame, entries: Vec<DirEntry>, from: &str, smallest: &mut Smallest) {
        let children = entries.into_iter().filter_map(|entry| self.child(frame, entry, from));
        children.for_each(|child| smallest.offer(child));
    }

    /// A name as a key or a common prefix, if the page may list it or what is below it, and it comes after `from`.
    fn child(&self, frame: &Frame, entry: DirEntry, from: &str) -> Option<Child> {
        // Keys are text: what is none cannot be asked for either.
        let name = std::str::from_utf8(&entry.name).ok().filter(|name| name.starts_with(&frame.stem))?;
        let is_directory = entry.attr.version().is_none();
        let key = format!("{}{name}{}", frame.prefix, if is_directory { "/" } else { "" });
        let after = &self.query.after;
        // The page begins within it: what comes after is seen only inside, also whether anything does.
        let leads_on = is_directory && after.starts_with(&key);
        let prefix = self.common_prefix(&key);
        if prefix.is_some_and(|prefix| prefix == after) || (key <= *after && !leads_on) {
            return None;
        }
        let child = match prefix {
            Some(prefix) if !leads_on => Child { key: prefix.to_owned(), what: What::Prefix },
            _ if is_directory => Child { what: What::Directory(frame.path.join(&entry.name).ok()?), key },
            _ => Child { key, what: What::Object(entry.attr) },
        };
        (*child.key > *from).then_some(child)
    }
}

#[cfg(test)]
mod tests;
