//! What becomes of an inode's name: the inode gets another one, loses its own, or is begun to be written, from when on its name
//! leads to it whatever its number, until what was written is at the origin under that name.
//!
//! Each of these looks at what the inode is, and changes what its name leads to by that. In between, none of the others may come:
//! what has lost its name would get it back, and what is written would go to a name that the file no longer has. So all of them
//! take one lock, the first of the table's. Nothing is waited for while it is held, and no reader takes it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_staging::Draft;
use forebay_types::{Attr, Failure, FsPath};

use super::{InodeTable, unreserved};
use crate::inode::{Inode, Known};

impl InodeTable {
    /// `inode`, which was at `from`, is at `to` from now on, as `known` says; unless it has lost its name, or `is_meant` says no.
    /// Whether it is.
    pub(crate) fn rename(
        &self,
        inode: &Arc<Inode>,
        (from, to): (&FsPath, &FsPath),
        known: Option<Known>,
        is_meant: impl FnOnce() -> bool,
    ) -> bool {
        let _naming = self.naming.lock();
        if inode.is_removed() || !is_meant() {
            return false;
        }
        self.unname(from, inode);
        inode.moved(to.clone(), known);
        self.note(inode);
        self.name(to, inode);
        true
    }

    /// `path` no longer leads to `inode`, which has no name then. False: it was renamed meanwhile, and keeps that name.
    pub(crate) fn remove(&self, path: &FsPath, inode: &Arc<Inode>) -> bool {
        let _naming = self.naming.lock();
        if inode.path() != *path {
            return false;
        }
        inode.remove();
        self.note(inode);
        self.unname(path, inode);
        true
    }

    /// As [`Inode::begin_writing`]; if it has a name, that leads to it from now on.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn begin_writing(
        &self,
        inode: &Arc<Inode>,
        make: impl FnOnce(&FsPath, &Attr) -> Result<Arc<Draft>, Failure>,
    ) -> Result<Option<Arc<Draft>>, Failure> {
        let _naming = self.naming.lock();
        let draft = inode.begin_writing(make)?;
        if draft.is_some() {
            self.note(inode);
            if !inode.is_removed() {
                self.name(&inode.path(), inode);
            }
        }
        Ok(draft)
    }

    /// What was written to `inode` is at the origin: it stands for what is `known` of that ([`Inode::settle`]), if `is_there` says that
    /// this is what there is under the name that it has by now. Otherwise it was renamed meanwhile, and stands for what that has made.
    /// Whether it stands for `known`.
    pub(crate) fn settle(
        &self,
        inode: &Inode,
        known: Option<Known>,
        is_there: impl FnOnce(&FsPath, &Attr) -> bool,
    ) -> bool {
        let _naming = self.naming.lock();
        let path = inode.path();
        let known = known.filter(|known| is_there(&path, &known.attr));
        let is_known = known.is_some();
        inode.settle(known);
        self.note(inode);
        is_known
    }

    /// The inode that `path` leads to by now, if `inode`, which was there, has lost its name to it.
    pub(crate) fn replaced_by(&self, path: &FsPath, inode: &Arc<Inode>) -> Option<Arc<Inode>> {
        let _naming = self.naming.lock();
        self.local(path).filter(|now| inode.is_removed() && !Arc::ptr_eq(now, inode))
    }

    /// What was written to `inode` could not be uploaded ([`Inode::lose`]): its name does not lead to it any more.
    pub(crate) fn lose(&self, inode: &Arc<Inode>) {
        let _naming = self.naming.lock();
        inode.lose();
        self.note(inode);
        self.unname(&inode.path(), inode);
    }

    /// The name of an inode that cannot be written leads from now on to one that can, and that the kernel does not hold yet.
    pub(crate) fn supersede(&self, inode: &Inode) -> Arc<Inode> {
        let _naming = self.naming.lock();
        self.make_successor(inode)
    }

    /// The same, unless it has lost its name, which may lead to another one. Whether it had it.
    pub(crate) fn supersede_named(&self, inode: &Inode) -> bool {
        let _naming = self.naming.lock();
        if inode.is_removed() {
            return false;
        }
        self.make_successor(inode);
        true
    }

    /// As [`InodeTable::supersede`], with the lock held.
    fn make_successor(&self, inode: &Inode) -> Arc<Inode> {
        let path = inode.path();
        let mut awaited = self.awaited.lock();
        let until = awaited.add(&path, Instant::now());
        self.is_any_awaited.store(true, Ordering::Release);
        drop(awaited);
        let successor = Arc::new(inode.successor(unreserved(rand::random())));
        successor.keep(until);
        inode.remove();
        self.note(inode);
        self.note(&successor);
        self.name(&path, &successor);
        successor
    }
}
