//! Listings, a page of names at a time.

use std::collections::VecDeque;

use forebay_client::Client;
use forebay_types::{Attr, DirEntry, FileVersion, FsPath, VersionTag};
use tokio::sync::Mutex;
use tokio_util::task::AbortOnDropHandle;

use crate::error::Error;

/// Names asked for at a time.
const PAGE: u32 = 1000;
/// Directories whose first names are asked for before the walk gets there: an origin may be far away.
const AHEAD: usize = 16;

/// A name and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path in the namespace: any bytes.
    pub path: Vec<u8>,
    /// The version of a file; none for a directory.
    pub version: Option<FileVersion>,
    /// Last modification, nanoseconds since 1970; 0 where the origin knows none.
    pub modified_nanos: i64,
    /// How many workers hold each of its blocks.
    pub replicas: u8,
    /// Whether it may be changed here.
    pub writable: bool,
}

impl Entry {
    pub(crate) fn new(path: &FsPath, attr: Attr) -> Self {
        let (modified_nanos, replicas, writable) = (attr.modified_nanos, attr.replicas, attr.writable);
        Self { path: path.as_bytes().to_owned(), version: attr.version().cloned(), modified_nanos, replicas, writable }
    }

    /// The entity tag that the origin gave it, quotes included.
    #[must_use]
    pub fn etag(&self) -> Option<&str> {
        match &self.version.as_ref()?.tag {
            VersionTag::Etag(etag) => Some(etag),
            VersionTag::Modified { .. } => None,
        }
    }
}

/// The names of one directory.
pub(crate) struct Listing {
    directory: FsPath,
    next: Option<String>,
    is_over: bool,
}

impl Listing {
    pub(crate) fn new(directory: FsPath) -> Self {
        Self { directory, next: None, is_over: false }
    }

    /// The next page; none after the last.
    ///
    /// # Errors
    /// Whatever keeps the workers from saying.
    pub(crate) async fn next_page(&mut self, client: &Client) -> Result<Option<Vec<Entry>>, Error> {
        if self.is_over {
            return Ok(None);
        }
        // Given up in the middle, the same page is asked for again.
        let reply = client.list(&self.directory, self.next.clone(), PAGE, false).await;
        let reply = reply.map_err(|failure| Error::from(failure).about(self.directory.as_bytes()))?;
        self.is_over = reply.next.is_none();
        self.next = reply.next;
        let entry = |DirEntry { name, attr }: DirEntry| {
            let path = self.directory.join(&name).map_err(|error| Error::from(error).about(&name))?;
            Ok(Entry::new(&path, attr))
        };
        reply.entries.into_iter().map(entry).collect::<Result<_, Error>>().map(Some)
    }
}

/// What of a tree is wanted. What has nothing of it is not listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Within {
    /// How many levels of names: 1 are those in the directory itself.
    pub depth: Option<usize>,
    /// How the paths of what is wanted begin.
    pub prefix: Vec<u8>,
}

impl Within {
    fn has(&self, path: &[u8]) -> bool {
        path.starts_with(&self.prefix)
    }

    /// Whether the directory `path`, which is a name of this level, is to be listed.
    fn enters(&self, path: &[u8], level: usize) -> bool {
        let leads_there = || self.prefix.strip_prefix(path).is_some_and(|rest| rest.starts_with(b"/"));
        self.depth.is_none_or(|depth| level < depth) && (self.has(path) || leads_there())
    }
}

/// Everything below a path, the names in a directory right behind its own. Memory is bounded by some pages for each level of depth.
pub struct Walk {
    client: Client,
    within: Within,
    state: Mutex<State>,
}

struct State {
    first: Option<FsPath>,
    /// Directories that are gone through, the deepest last.
    levels: Vec<Level>,
}

/// A page, or what kept it from coming, and the listing that goes on after it.
type First = (Listing, Result<Option<Vec<Entry>>, Error>);

/// A directory that is gone through.
struct Level {
    listing: Listing,
    /// Its first page, where that was asked for before.
    first: Option<AbortOnDropHandle<First>>,
    /// The page that it is at.
    page: std::vec::IntoIter<Entry>,
    /// The directories of that page which will be gone through, in their order: the first page of some is asked for.
    ahead: VecDeque<AbortOnDropHandle<First>>,
    /// Those behind them.
    coming: VecDeque<FsPath>,
}

impl Level {
    fn new(directory: FsPath, first: Option<AbortOnDropHandle<First>>) -> Self {
        let (ahead, coming) = (VecDeque::new(), VecDeque::new());
        Self { listing: Listing::new(directory), first, page: Vec::new().into_iter(), ahead, coming }
    }

    /// Goes on to the next page; false after the last. `enters` says which directories will be gone through. Given up in the middle, it
    /// can be asked for again.
    async fn turn_page(&mut self, client: &Client, enters: impl Fn(&Entry) -> bool) -> Result<bool, Error> {
        let page = match &mut self.first {
            None => self.listing.next_page(client).await?,
            Some(first) => {
                let asked = first.await;
                self.first = None;
                match asked {
                    Ok((listing, page)) => {
                        self.listing = listing;
                        page?
                    }
                    // It ended without an answer, and is asked again.
                    Err(_) => self.listing.next_page(client).await?,
                }
            }
        };
        let Some(page) = page else { return Ok(false) };
        let coming = page.iter().filter(|entry| enters(entry)).map(|entry| FsPath::new(&entry.path));
        self.coming = coming.collect::<Result<_, _>>()?;
        self.page = page.into_iter();
        Ok(true)
    }

    /// Asks for the first pages of those that come next.
    fn look_ahead(&mut self, client: &Client) {
        while self.ahead.len() < AHEAD {
            let Some(directory) = self.coming.pop_front() else { break };
            let client = client.clone();
            self.ahead.push_back(AbortOnDropHandle::new(tokio::spawn(async move {
                let mut listing = Listing::new(directory);
                let page = listing.next_page(&client).await;
                (listing, page)
            })));
        }
    }

    /// The directory of this entry, which is the next one that is gone through.
    fn enter(&mut self, entry: &Entry) -> Result<Self, Error> {
        let first = self.ahead.pop_front();
        if first.is_none() {
            self.coming.pop_front();
        }
        Ok(Self::new(FsPath::new(&entry.path)?, first))
    }
}

impl Walk {
    pub(crate) fn new(client: Client, path: FsPath, within: Within) -> Self {
        Self { client, within, state: Mutex::new(State { first: Some(path), levels: Vec::new() }) }
    }

    /// Some more names, directories before what is in them; none after the last. Of a file, itself; a directory is not among what is
    /// below it. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// What keeps a directory from being listed. The walk cannot go on after that.
    pub async fn next_page(&self) -> Result<Option<Vec<Entry>>, Error> {
        let mut locked = self.state.lock().await;
        let state = &mut *locked;
        if let Some(path) = state.first.clone() {
            let reply = self.client.stat(&path, false).await;
            let attr = reply.map_err(|failure| Error::from(failure).about(path.as_bytes()))?.attr;
            state.first = None;
            if attr.version().is_some() {
                return Ok(self.within.has(path.as_bytes()).then(|| vec![Entry::new(&path, attr)]));
            }
            state.levels.push(Level::new(path, None));
        }
        let mut found = Vec::new();
        loop {
            let depth = state.levels.len();
            let enters = |entry: &Entry| entry.version.is_none() && self.within.enters(&entry.path, depth);
            let Some((level, above)) = state.levels.split_last_mut() else { break };
            let Some(entry) = level.page.next() else {
                if !found.is_empty() {
                    break;
                }
                if let Some(above) = above.last_mut() {
                    above.look_ahead(&self.client);
                }
                match level.turn_page(&self.client, enters).await {
                    Ok(true) => {}
                    Ok(false) => drop(state.levels.pop()),
                    // A directory that went away since it was listed has nothing in it. What is beside it is there all the same.
                    Err(error) if depth > 1 && error.is_of_no_name() => drop(state.levels.pop()),
                    Err(error) => return Err(error),
                }
                continue;
            };
            let below = enters(&entry).then(|| level.enter(&entry)).transpose()?;
            if self.within.has(&entry.path) {
                found.push(entry);
            }
            state.levels.extend(below);
        }
        Ok(Some(found).filter(|found| !found.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_leads_to_something_wanted_is_entered() {
        let all = Within::default();
        assert!(all.has(b"/a") && all.enters(b"/a", 1) && all.enters(b"/a/b", 1000));
        let shallow = Within { depth: Some(2), ..Within::default() };
        assert!(shallow.enters(b"/a", 1) && !shallow.enters(b"/a/b", 2));
        let begun = Within { prefix: b"/logs/2026-".to_vec(), ..Within::default() };
        assert!(begun.has(b"/logs/2026-01") && !begun.has(b"/logs/2025") && !begun.has(b"/logs"));
        for (directory, is_entered) in
            [("/logs", true), ("/log", false), ("/logs/2026-", true), ("/logs/2026-01/x", true), ("/logs/2025-", false)]
        {
            assert_eq!(begun.enters(directory.as_bytes(), 1), is_entered, "{directory}");
        }
    }
}
