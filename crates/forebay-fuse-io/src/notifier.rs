//! Telling the kernel what it did not ask.
//!
//! The kernel takes locks for it that a request may hold which waits for us. So it is never done by a thread that serves
//! requests, and over a descriptor of its own.

use std::io;
use std::sync::Arc;

use crate::channel::descriptor::Descriptor;
use crate::protocol::notify::Notification;
use crate::protocol::request::Malformed;

/// Tells the kernel of changes. Each call may wait for requests that are under way.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<Descriptor>);

impl Notifier {
    pub(crate) fn new(descriptor: Descriptor) -> Self {
        Self(Arc::new(descriptor))
    }

    /// `name` in directory `parent` shall be looked up again.
    ///
    /// # Errors
    /// `ENOENT` when the kernel does not know of it, `ENODEV` or `ENOTCONN` after the mount's end, `EINVAL` for what is no name.
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        let flags = 0;
        self.tell(&Notification::inval_entry(parent, name, flags).map_err(no_name)?)
    }

    /// The attributes of inode `ino` shall be asked for again, and the pages of `length` bytes from `offset` on be dropped: those
    /// to the end if `length` is 0, none if `offset` is negative.
    ///
    /// # Errors
    /// The same.
    pub fn inval_inode(&self, ino: u64, offset: i64, length: i64) -> io::Result<()> {
        self.tell(&Notification::inval_inode(ino, offset, length))
    }

    /// `name` in directory `parent`, which led to inode `child`, is gone.
    ///
    /// # Errors
    /// The same.
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> io::Result<()> {
        self.tell(&Notification::delete(parent, child, name).map_err(no_name)?)
    }

    /// What another process was handed out and has not answered shall be handed out again, to be answered here.
    ///
    /// # Errors
    /// `EINVAL` from a kernel before Linux 6.9: there such requests fail when the descriptor that they came from is closed.
    pub fn resend(&self) -> io::Result<()> {
        self.tell(&Notification::resend())
    }

    fn tell(&self, notification: &Notification) -> io::Result<()> {
        self.0.write(notification)
    }
}

fn no_name(malformed: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, malformed)
}
