//! Renaming: a copy at the origin, and the removal of what was copied.
//!
//! An object store cannot rename. A file that is renamed is, for a moment, there under both names, and never under none; what it
//! replaces is replaced at once. A directory is copied whole before anything of it is removed: where a copy fails, what was
//! copied is removed again and nothing has changed. Either way the data never leaves the origin. Names that the kernel knows
//! keep their inodes.
//!
//! Under two mounts of one origin, two names are of one object. Workers refuse to copy a file to itself. Of directories nobody says
//! which they are: it shows in what a change of the one has done to the other.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use forebay_locks::Mutex;
use forebay_staging::{Draft, Held};
use forebay_types::{Attr, Failure, FailureKind, FileId, FileVersion, FsPath};
use futures::stream::{self, StreamExt, TryStreamExt};
use tracing::{info, warn};

use crate::failures::impossible_name;
use crate::filesystem::FileSystem;
use crate::inode::{Inode, Known, version_id};

/// Copies and removals of one directory that are under way at once.
const AT_ONCE: usize = 16;
/// Files that a directory which is renamed may have, at any depth: each takes some 50 bytes of memory while it is.
const MAX_NAMES: usize = 1_000_000;
/// Names asked for at a time.
const PAGE: u32 = 1000;

/// The inodes below a directory that the kernel holds, or will, by their names.
type Moving = HashMap<FsPath, Arc<Inode>>;

impl FileSystem {
    /// Renames. What `to` leads to is replaced, unless `keep_existing`.
    pub(crate) async fn rename(
        &self,
        (from_parent, from_name): (u64, &[u8]),
        (to_parent, to_name): (u64, &[u8]),
        keep_existing: bool,
    ) -> Result<(), Failure> {
        let from = self.new_name(from_parent, from_name).await?;
        let to = self.new_name(to_parent, to_name).await?;
        if from == to {
            return Ok(());
        }
        let draft = self.inodes.local(&from).filter(|inode| inode.draft().is_some());
        let known = match &draft {
            Some(_) => None,
            // Asked anew: the inode that the kernel has is moved along, and must be of what is copied.
            None => match self.find(&from, true).await? {
                Some(known) => Some(known),
                None => return Err(Failure::new(FailureKind::NotFound, format!("{from} is not there"))),
            },
        };
        let is_taken = || self.inodes.local(&to).is_some_and(|inode| inode.draft().is_some());
        if keep_existing && (is_taken() || self.find(&to, true).await?.is_some()) {
            return Err(Failure::new(FailureKind::Exists, format!("{to} exists")));
        }
        match known {
            Some(known) if known.attr.version().is_none() => self.rename_directory(&from, &to).await,
            known => self.rename_file(&from, &to, known.as_ref()).await,
        }
    }

    /// `known`: what `from` was just before, if it was not being written here.
    async fn rename_file(&self, from: &FsPath, to: &FsPath, known: Option<&Known>) -> Result<(), Failure> {
        let mut is_another = false;
        loop {
            let inode = match self.inodes.local(from) {
                Some(inode) => Some(inode),
                None => self.held_file(from).await,
            };
            let _turn = match &inode {
                Some(inode) => Some(inode.turn.lock().await),
                None => None,
            };
            if inode.as_ref().is_some_and(|inode| self.inodes.replaced_by(from, inode).is_some()) {
                is_another = true;
                continue;
            }
            let renamed = self.rename_inode(inode.as_ref(), (from, to), known).await;
            if is_another {
                // The kernel has the one that it was.
                self.forget_name(to);
            }
            return renamed;
        }
    }

    /// The same, of the file that is `inode` here, with its turn held.
    async fn rename_inode(
        &self,
        inode: Option<&Arc<Inode>>,
        (from, to): (&FsPath, &FsPath),
        known: Option<&Known>,
    ) -> Result<(), Failure> {
        // From the sync to the new name nothing of it reaches the origin: it would go to the old one.
        let draft = inode.and_then(|inode| inode.draft());
        let _renaming = match &draft {
            Some(_) => Some(self.renaming.read().await),
            None => None,
        };
        let held = match &draft {
            Some(draft) => Some(draft.hold().await),
            None => None,
        };
        if let Some(held) = &held {
            held.sync().await?;
        }
        let replaced = match self.inodes.local(to) {
            Some(replaced) => Some(replaced),
            None => self.held_file(to).await,
        };
        let replaced_draft = replaced.as_ref().and_then(|replaced| replaced.draft());
        let _replaced_held = match &replaced_draft {
            Some(draft) => Some(draft.hold().await),
            None => None,
        };
        let asked = Instant::now();
        let attr = self.client.copy(from, to).await?;
        if let Some(replaced) = replaced {
            self.detach(to, &replaced);
        }
        // It was there all the while if it is there now. If another writer has replaced it, it is not known what was copied: that is
        // no base of what is written here, and theirs is not removed.
        let now = self.find(from, true).await;
        let is_same = |now: &Known| match (inode, known) {
            (Some(inode), _) if draft.is_some() => stands_for(inode, &now.attr),
            (_, Some(known)) => version_id(&now.attr) == version_id(&known.attr),
            (Some(inode), None) => inode.is_of(&now.attr),
            (None, None) => true,
        };
        let is_left = match &now {
            Ok(Some(now)) => is_same(now),
            Ok(None) => draft.is_none(),
            Err(_) => false,
        };
        if !is_left {
            self.forget_name(to);
            return Err(now.err().unwrap_or_else(|| replaced_meanwhile(from, to)));
        }
        let is_copied = match inode {
            Some(inode) if draft.is_none() => {
                known.is_none_or(|known| inode.is_meant_by(known))
                    && inode.known().attr.size() == attr.size()
                    && matches!(&now, Ok(Some(now)) if inode.is_of(&now.attr))
            }
            _ => true,
        };
        let is_moved = match inode {
            Some(inode) if is_copied => {
                self.inode_moved(inode, draft.as_ref(), (from, to), (Some(attr), asked), || true)
            }
            _ => false,
        };
        // Another writer has replaced it: the kernel looks it up again, and does not find the pages of another version.
        if let Some(inode) = inode.filter(|_| !is_moved) {
            self.inodes.unname(from, inode);
            self.forget_name(to);
        }
        drop(held);
        let removed = self.client.remove(from).await;
        removed.map_err(|failure| failure.context(format!("{from} was copied to {to} and is still there")))
    }

    /// Whether the origin has at `path` the version that `inode` stands for. It was there all the while if it was before.
    async fn is_at_origin(&self, inode: &Inode, path: &FsPath) -> bool {
        matches!(self.find(path, true).await, Ok(Some(known)) if stands_for(inode, &known.attr))
    }

    /// An inode is called otherwise now. `draft`: what is being written of it, which the caller holds. `attr`: what the origin has
    /// under the new name, if it has anything. False: it has lost its name, another draft was begun, or `is_meant` says no; nothing
    /// has changed.
    fn inode_moved(
        &self,
        inode: &Arc<Inode>,
        draft: Option<&Arc<Draft>>,
        (from, to): (&FsPath, &FsPath),
        (attr, asked): (Option<Attr>, Instant),
        is_meant: impl FnOnce() -> bool,
    ) -> bool {
        let before = version_id(&inode.known().attr);
        let known = attr.clone().map(|attr| Known::new(attr, asked, self.negative_ttl));
        let is_same = || inode.draft().as_ref().map(Arc::as_ptr) == draft.map(Arc::as_ptr);
        if !self.inodes.rename(inode, (from, to), known, || is_same() && is_meant()) {
            return false;
        }
        // It is held: until it knows its name, nothing of it reaches the origin.
        if let Some(draft) = draft {
            draft.renamed(to.clone(), attr);
        }
        // Its name is in what a version is called. Handles that pass through to the old one go on: the bytes are the same.
        self.forget_copy(before);
        self.inodes.let_go(inode);
        true
    }

    /// An inode goes along with its directory, of which the origin had `attr` when that was copied, and has `made` by now; or the one that
    /// has its name since. `held`: the drafts below the directory that are held.
    async fn move_along(
        &self,
        mut inode: Arc<Inode>,
        held: &[Arc<Draft>],
        (from, to): (&FsPath, &FsPath),
        (attr, made): (&Attr, &Attr),
        asked: Instant,
    ) -> Result<(), Failure> {
        loop {
            inode = self.inodes.replaced_by(from, &inode).unwrap_or(inode);
            if !goes_along(&inode, attr) {
                return Ok(());
            }
            let draft = inode.draft();
            let begun = draft.as_ref().filter(|draft| !held.iter().any(|held| Arc::ptr_eq(held, draft)));
            let _held = match begun {
                Some(draft) => Some(hold_whole(draft).await?),
                None => None,
            };
            let is_meant = || goes_along(&inode, attr);
            // Otherwise it was begun to be written just now, or what was written has arrived.
            if self.inode_moved(&inode, draft.as_ref(), (from, to), (Some(made.clone()), asked), is_meant) {
                return Ok(());
            }
        }
    }

    /// Files that were created below a directory while it was copied, and are not at the origin yet, go along: closed later, they
    /// would make the old one again.
    async fn move_created(&self, from: &FsPath, to: &FsPath, asked: Instant) -> Result<(), Failure> {
        for (path, inode) in self.inodes.local_below(from) {
            let Some(draft) = inode.draft().filter(|draft| draft.is_new()) else { continue };
            let _held = hold_whole(&draft).await?;
            // One that was uploaded meanwhile is under the old name, and stays there. One that was removed has none.
            let target = within(&path, from, to)?;
            self.inode_moved(&inode, Some(&draft), (&path, &target), (None, asked), || draft.is_new());
        }
        Ok(())
    }

    async fn rename_directory(&self, from: &FsPath, to: &FsPath) -> Result<(), Failure> {
        if to.relative_to(from).is_some() {
            return Err(Failure::new(FailureKind::InvalidArgument, format!("{to} is inside of {from}")));
        }
        // Only an empty one may be replaced, and files that are not at the origin yet fill it, too.
        if self.inodes.local_below(to).iter().any(|(path, inode)| path != to && inode.draft().is_some()) {
            return Err(Failure::new(FailureKind::NotEmpty, format!("{to} has files in it that are being written")));
        }
        let _renaming = self.renaming.write().await;
        let drafts: Vec<_> = self.inodes.local_below(from).iter().filter_map(|(_, inode)| inode.draft()).collect();
        let mut writing = Vec::with_capacity(drafts.len());
        for draft in &drafts {
            let held = draft.hold().await;
            held.sync().await?;
            writing.push(held);
        }
        match self.client.remove_directory(to).await {
            Err(failure) if failure.kind() == FailureKind::NotFound => {}
            Err(failure) => return Err(failure),
            Ok(()) => {
                if self.find(from, true).await?.is_none() {
                    self.make_directory_again(from).await?;
                    let message = format!("{from} and {to} are one directory");
                    return Err(Failure::new(FailureKind::InvalidArgument, message));
                }
            }
        }
        self.detach_directory(to);
        // Also those that a writer is about to look up. What a name leads to whatever its number comes last, and counts.
        let local = self.inodes.local_below(from).into_iter().map(|(_, inode)| inode);
        let known = self.inodes.held_below(from).into_iter().chain(local).filter(|inode| !inode.is_removed());
        let held: Moving = known.map(|inode| (inode.path(), inode)).collect();
        let moved = Mutex::new(Vec::new());
        // What was copied, and what it was copied to. Nothing else is removed, even if another writer put it there
        // meanwhile.
        let (copied_files, made_files) = (Mutex::new(HashSet::new()), Mutex::new(HashSet::new()));
        let asked = Instant::now();
        let copied = self.walk(from, |path, attr| {
            let target = within(&path, from, to);
            let (held, moved) = (held.get(&path).cloned(), &moved);
            let (copied_files, made_files) = (&copied_files, &made_files);
            async move {
                let target = target?;
                let made = match attr.version() {
                    None => self.make_directory_again(&target).await?,
                    Some(version) => {
                        if copied_files.lock().len() >= MAX_NAMES {
                            let message = format!("{path}: more than {MAX_NAMES} files are not renamed at once");
                            return Err(Failure::new(FailureKind::OutOfResources, message));
                        }
                        let made = self.client.copy(&path, &target).await?;
                        copied_files.lock().insert(version.id());
                        made_files.lock().extend(made.version().map(FileVersion::id));
                        let below = path.relative_to(from).unwrap_or_default();
                        if made.version().is_some_and(|made| is_beside(made, version, below)) {
                            let message = format!("{to} is inside of {from}, by the name of another mount");
                            return Err(Failure::new(FailureKind::InvalidArgument, message));
                        }
                        made
                    }
                };
                let Some(inode) = held else { return Ok(()) };
                // The pages of an inode that stands for another version are not those of the copy.
                let is_copied = stands_for(&inode, &attr)
                    && made.size() == attr.size()
                    && (attr.version().is_none() || self.is_at_origin(&inode, &path).await);
                match is_copied {
                    true => moved.lock().push((inode, path, target, (attr, made))),
                    false if inode.draft().is_some() => return Err(replaced_meanwhile(&path, &target)),
                    false => {}
                }
                Ok(())
            }
        });
        let count = match copied.await {
            Ok(count) => count,
            Err(failure) => {
                if let Err(left) = self.remove_tree(to, &made_files.into_inner()).await {
                    warn!(path = %to, failure = %left, "a part of a directory that could not be renamed is left behind");
                }
                return Err(failure);
            }
        };
        for (inode, path, target, (attr, made)) in moved.into_inner() {
            self.move_along(inode, &drafts, (&path, &target), (&attr, &made), asked).await?;
        }
        self.move_created(from, to, asked).await?;
        // Held inodes whose name the walk did not meet are gone, or replaced by others that the kernel does not hold yet.
        for inode in self.inodes.held_below(from) {
            self.forget_name(&inode.path());
        }
        info!(%from, %to, names = count, "renamed a directory");
        drop(writing);
        let removed = self.remove_tree(from, &copied_files.into_inner()).await;
        removed.map_err(|failure| failure.context(format!("{from} was copied to {to} and is still there in part")))
    }

    /// Makes a directory, or leaves the one that is there.
    async fn make_directory_again(&self, path: &FsPath) -> Result<Attr, Failure> {
        match self.client.make_directory(path).await {
            Err(failure) if failure.kind() == FailureKind::Exists => Ok(self.client.stat(path, false).await?.attr),
            made => made,
        }
    }

    /// Visits `root` and all below it, directories before what is in them; how many there were. Memory is bounded by the depth.
    pub(crate) async fn walk<F>(&self, root: &FsPath, visit: impl Fn(FsPath, Attr) -> F) -> Result<u64, Failure>
    where
        F: Future<Output = Result<(), Failure>>,
    {
        let mut count = 1;
        visit(root.clone(), Attr::directory()).await?;
        let mut stack: Vec<(FsPath, Option<String>)> = vec![(root.clone(), None)];
        while let Some((directory, token)) = stack.pop() {
            let page = self.client.list(&directory, token, PAGE, true).await?;
            if page.next.is_some() {
                stack.push((directory.clone(), page.next));
            }
            let mut names = Vec::with_capacity(page.entries.len());
            for entry in page.entries {
                let path = directory.join(&entry.name).map_err(impossible_name)?;
                if entry.attr.version().is_none() {
                    stack.push((path.clone(), None));
                }
                names.push((path, entry.attr));
            }
            count += names.len() as u64;
            stream::iter(names.into_iter().map(|(path, attr)| Ok(visit(path, attr))))
                .try_for_each_concurrent(AT_ONCE, |visit| visit)
                .await?;
        }
        Ok(count)
    }

    /// Removes a directory with those of its files that are among `known`.
    ///
    /// # Errors
    /// `NotEmpty` when there are others; those it leaves.
    async fn remove_tree(&self, root: &FsPath, known: &HashSet<FileId>) -> Result<(), Failure> {
        // With the directories that were found in it the last time.
        let mut stack: Vec<(FsPath, Vec<FsPath>)> = vec![(root.clone(), Vec::new())];
        while let Some((directory, before)) = stack.last().cloned() {
            let page = match self.client.list(&directory, None, PAGE, true).await {
                Ok(page) => page,
                // One that was there only because of its files.
                Err(failure) if failure.kind() == FailureKind::NotFound => {
                    stack.pop();
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let (mut files, mut below) = (Vec::new(), Vec::new());
            for entry in page.entries {
                let path = directory.join(&entry.name).map_err(impossible_name)?;
                match entry.attr.version() {
                    None => below.push(path),
                    Some(version) if known.contains(&version.id()) => files.push(path),
                    Some(_) => {
                        let message = format!("{path} was written while its directory was being renamed");
                        return Err(Failure::new(FailureKind::NotEmpty, message));
                    }
                }
            }
            let is_empty = files.is_empty() && below.is_empty() && page.next.is_none();
            stream::iter(files)
                .map(|path| async move { self.client.remove(&path).await })
                .buffer_unordered(AT_ONCE)
                .try_collect::<Vec<()>>()
                .await?;
            if !is_empty && !below.is_empty() && below == before {
                // They were removed, and are there again.
                return Err(Failure::new(FailureKind::NotEmpty, format!("{directory} is filled while it is removed")));
            }
            if let Some((_, found)) = stack.last_mut() {
                found.clone_from(&below);
            }
            if is_empty {
                match self.client.remove_directory(&directory).await {
                    Err(failure) if failure.kind() != FailureKind::NotFound => return Err(failure),
                    _ => drop(stack.pop()),
                }
            } else {
                stack.extend(below.into_iter().map(|path| (path, Vec::new())));
            }
        }
        Ok(())
    }
}

fn replaced_meanwhile(from: &FsPath, to: &FsPath) -> Failure {
    let message = format!("{from} was replaced or removed by another writer while it was copied to {to}");
    Failure::new(FailureKind::VersionChanged, message)
}

/// Whether an inode is of `attr`, which the origin has; what is being written, whether that is what it rests on.
fn stands_for(inode: &Inode, attr: &Attr) -> bool {
    match inode.draft() {
        Some(draft) => attr.version().is_some_and(|version| draft.rests_on(version)),
        None => inode.is_of(attr),
    }
}

/// Whether an inode goes along with its directory, of which the origin had `attr` when that was copied. One that was written since
/// stays where it was written to. One that was removed or superseded since has no name, and must get none: what is written to it
/// is never uploaded.
fn goes_along(inode: &Inode, attr: &Attr) -> bool {
    !inode.is_removed() && stands_for(inode, attr)
}

/// Holds what was opened for writing while its directory was copied. Another name gives its upload up: a file with bytes that only
/// the upload has is put together under the old name, and stays there.
async fn hold_whole(draft: &Draft) -> Result<Held, Failure> {
    let held = draft.hold().await;
    if draft.rests_on_its_upload() {
        held.sync().await?;
    }
    Ok(held)
}

/// Whether `made` is in the directory that `source` is `below`, or in one in it.
fn is_beside(made: &FileVersion, source: &FileVersion, below: &[u8]) -> bool {
    let directory = source.path.strip_suffix(below);
    made.origin == source.origin && directory.is_some_and(|directory| made.path.starts_with(directory))
}

/// Where `path`, which is `from` or below it, is to be when `from` is `to`.
fn within(path: &FsPath, from: &FsPath, to: &FsPath) -> Result<FsPath, Failure> {
    match path.relative_to(from) {
        Some([]) => Ok(to.clone()),
        Some(rest) => FsPath::new([to.as_bytes(), b"/", rest].concat()).map_err(impossible_name),
        None => Err(Failure::new(FailureKind::Internal, format!("{path} is not in {from}"))),
    }
}

#[cfg(test)]
mod tests;
