//! Reading directories: what workers list, and after it what was created here and is not at the origin yet.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_client::ListedName;
use forebay_handover::{DirectoryHandle as HandedDirectory, Record};
use forebay_types::{Attr, Failure, FailureKind, FsPath};

use crate::described::Described;
use crate::failures::{not_open, too_many_open};
use crate::filesystem::FileSystem;
use crate::handle::{DirectoryHandle, Names};
use crate::inode::{Inode, Known};
use crate::listing::{At, ENOUGH, Listing, SentAttributes};
use crate::virtual_files::VirtualFile;

/// A directory may have pages without names, but not so many in a row.
const MAX_EMPTY_PAGES: u32 = 1000;
/// Where the names start: before them come `.` and `..`.
const FIRST_NAME: u64 = 2;

/// One name of a directory.
pub(crate) struct Listed<'a> {
    pub(crate) name: &'a [u8],
    /// Where reading goes on after this name.
    pub(crate) next: u64,
    pub(crate) inode: Described,
}

/// Lookups that an answer counts. The kernel has them from the moment it is sent; of one that never is they are given back.
pub(crate) struct Lookups<F: FnMut(u64)> {
    inos: Vec<u64>,
    give_back: F,
}

impl<F: FnMut(u64)> Lookups<F> {
    /// None yet. `give_back` forgets one of an inode.
    pub(crate) fn new(give_back: F) -> Self {
        Self { inos: Vec::new(), give_back }
    }

    /// One more, of this inode.
    pub(crate) fn push(&mut self, ino: u64) {
        self.inos.push(ino);
    }

    /// The answer is sent: they are the kernel's.
    pub(crate) fn sent(mut self) {
        self.inos.clear();
    }
}

impl<F: FnMut(u64)> Drop for Lookups<F> {
    fn drop(&mut self) {
        self.inos.drain(..).for_each(&mut self.give_back);
    }
}

impl FileSystem {
    /// A handle on the directory `ino`.
    pub(crate) fn open_directory(&self, ino: u64) -> Result<u64, Failure> {
        let inode = self.inode(ino)?;
        if inode.known().attr.version().is_some() {
            return Err(Failure::new(FailureKind::NotADirectory, format!("{} is a file", inode.path())));
        }
        let (ino, opened) = (inode.ino, Arc::new(DirectoryHandle::new(inode)));
        let handle = self.directories.insert(opened).ok_or_else(too_many_open)?;
        let directory = || HandedDirectory { inode: 0, page: None, marks: Vec::new(), created: Vec::new() };
        self.journal.append(|| Record::Directory { handle, ino, directory: directory() });
        Ok(handle)
    }

    /// Tells `take` the names from position `offset` on, until it says that it has no room for the last one it was
    /// told. With `hold`, the kernel holds each inode that was taken once more.
    pub(crate) async fn read_directory(
        &self,
        handle: u64,
        offset: u64,
        hold: bool,
        mut take: impl FnMut(Listed<'_>) -> bool + Send,
    ) -> Result<(), Failure> {
        let Some(directory) = self.directories.with(handle, Arc::clone) else { return Err(not_open()) };
        let mut names = directory.names.lock().await;
        let read = self.read_names(&directory, &mut names, offset, hold, &mut take).await;
        if names.noted != names.listing.changes() {
            names.noted = names.listing.changes();
            self.journal.append(|| {
                let (page, marks) = names.listing.handed();
                Record::Listed { handle, page, marks, created: names.created.clone() }
            });
        }
        read
    }

    async fn read_names(
        &self,
        directory: &DirectoryHandle,
        names: &mut Names,
        offset: u64,
        hold: bool,
        take: &mut (impl FnMut(Listed<'_>) -> bool + Send),
    ) -> Result<(), Failure> {
        let path = directory.inode.path();
        if offset == 0 {
            names.listing.rewind();
            names.created = self.created_in(&path);
        }
        let Names { listing, created, .. } = names;
        let began = Instant::now();
        let tells = hold && offset == 0;
        let told = *directory.inode.attributes_sent.lock();
        let mut is_known = tells && told.is_some_and(|told| told.is_enough(began));
        let mut believed: Option<Instant> = None;
        let mut position = offset;
        while position < FIRST_NAME {
            let (name, ino): (&[u8], u64) = match position {
                0 => (b".", directory.inode.ino),
                _ => (b"..", self.inodes.directory(&path.parent())),
            };
            position += 1;
            if !take(Listed { name, next: position, inode: Described::new(ino, &Attr::directory()) }) {
                return Ok(());
            }
        }
        let end = loop {
            let (listed, is_there, fresh_until) = match self.fill(&path, listing, position - FIRST_NAME).await {
                // What was taken is not lost: the kernel comes back for the rest, and gets the failure then.
                Err(_) if position > offset => return Ok(()),
                Err(failure) => return Err(failure),
                // It may have been renamed since.
                Ok(At::Names { directory, names, fresh_until }) => (names, *directory == path, fresh_until),
                Ok(At::End(end)) => break end,
                Ok(At::Unlisted { .. }) => return Ok(()),
            };
            let now = Instant::now();
            believed = Some(believed.map_or(fresh_until, |before| before.min(fresh_until)));
            for listed in listed {
                if is_known && position - FIRST_NAME >= ENOUGH {
                    return Ok(());
                }
                position += 1;
                let name = &listed.entry().name;
                created.retain(|created| created != name);
                let described = match is_there {
                    true => self.describe_listed(&path, listed, (fresh_until, now), hold),
                    false => {
                        self.describe_listed(&path, &ListedName::new(listed.entry().clone()), (fresh_until, now), hold)
                    }
                };
                let Some(inode) = described else { continue };
                let ino = inode.ino;
                // What the kernel let go of meanwhile it does not believe either.
                is_known = is_known && self.is_held_twice(ino);
                if !take(Listed { name, next: position, inode }) {
                    if hold {
                        self.inodes.forget(ino, 1);
                    }
                    if tells {
                        *directory.inode.attributes_sent.lock() =
                            believed.map(|until| SentAttributes::new(began, until));
                    }
                    return Ok(());
                }
            }
        };
        if tells && !is_known {
            *directory.inode.attributes_sent.lock() = believed.map(|until| SentAttributes::new(began, until));
        }
        let passed = usize::try_from(position - FIRST_NAME - end).unwrap_or(usize::MAX);
        for name in created.iter().skip(passed) {
            position += 1;
            let Some(inode) = path.join(name).ok().and_then(|path| self.inodes.local(&path)) else { continue };
            if hold {
                self.inodes.hold(&inode);
            }
            let described = self.describe(&inode, Instant::now());
            if !take(Listed { name, next: position, inode: described }) {
                if hold {
                    self.inodes.forget(inode.ino, 1);
                }
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether the kernel held an inode before this answer, which holds it once.
    fn is_held_twice(&self, ino: u64) -> bool {
        self.inodes.get(ino).is_some_and(|inode| inode.lookups.load(Ordering::Relaxed) > 1)
    }

    /// The names of files in `directory` that are not at the origin yet.
    fn created_in(&self, directory: &FsPath) -> Vec<Box<[u8]>> {
        let local = self.inodes.local_below(directory);
        let is_created = |path: &FsPath, inode: &Inode| {
            path.parent() == *directory && inode.draft().is_some_and(|draft| draft.is_new())
        };
        local.iter().filter(|(path, inode)| is_created(path, inode)).map(|(path, _)| path.name().into()).collect()
    }

    /// The directory is closed.
    pub(crate) fn release_directory(&self, handle: u64) {
        // Before its slot is another one's.
        self.journal.append(|| Record::DirectoryClosed { handle });
        self.directories.remove(handle);
    }

    /// Lists until there are names at `position`, or none.
    async fn fill<'a>(&self, path: &FsPath, listing: &'a mut Listing, position: u64) -> Result<At<'a>, Failure> {
        for _ in 0..MAX_EMPTY_PAGES {
            let At::Unlisted { start, token } = listing.at(position) else { return Ok(listing.at(position)) };
            let asked = Instant::now();
            let listed = self.client.list_page(path, token, self.list_page, false).await?;
            let fresh_until = Known::new(Attr::directory(), asked, listed.valid_for).fresh_until;
            listing.listed(start, listed.page, fresh_until);
        }
        Err(Failure::new(FailureKind::Internal, format!("{path}: {MAX_EMPTY_PAGES} pages without a name")))
    }

    /// What a name of the directory `parent` is, which may be believed until `fresh_until`. `None` for a name that no file can have:
    /// the kernel would fail the whole listing for it; and for one that is hidden by a file of ours.
    fn describe_listed(
        &self,
        parent: &FsPath,
        listed: &ListedName,
        (fresh_until, now): (Instant, Instant),
        hold: bool,
    ) -> Option<Described> {
        let attr = &listed.entry().attr;
        if parent.is_root() && VirtualFile::named(&listed.entry().name).is_some() {
            return None;
        }
        let path = listed.path_in(parent)?;
        // Hashes, which take longer than all else here, and are the same each time.
        let version = listed.version_id();
        let number = || listed.number(|| self.inodes.number(path, version.as_ref()));
        if hold {
            // A page may have been listed a while ago, and then it covers no open.
            let known = Known { attr: attr.clone(), asked: fresh_until.min(now), fresh_until };
            let inode = self.inodes.remember_numbered(path, version, number, known);
            return Some(self.describe(&inode, now));
        }
        if let Some(inode) = self.inodes.local(path) {
            return Some(self.describe(&inode, now));
        }
        Some(Described::new(number(), attr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_of_an_answer_that_is_never_sent_are_given_back() {
        let mut given = Vec::new();
        let mut lookups = Lookups::new(|ino| given.push(ino));
        lookups.push(7);
        lookups.push(8);
        drop(lookups);
        let mut lookups = Lookups::new(|ino| given.push(ino));
        lookups.push(9);
        lookups.sent();
        assert_eq!(given, [7, 8]);
    }
}
