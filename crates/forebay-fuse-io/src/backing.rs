//! Files that the kernel reads and writes by itself in place of ours.
//!
//! One is registered by [`Backings::open`], and an answer to an open names it ([`crate::Opened::backing`]). All opens of an inode
//! must name the same [`Backing`], also if the file is the same: the kernel compares registrations, and answers `EIO` otherwise.
//! It must live until the last of them was released.
//!
//! The descriptor is not one that a thread waits on, and is let go when the mount ends: a backing that is dropped later was ended
//! by the kernel already.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay_locks::RwLock;
use tracing::debug;

use crate::channel::descriptor::Descriptor;

/// Where files are registered. Clones register at the same mount. By default there is none, as after its end.
#[derive(Clone, Default)]
pub struct Backings(Arc<RwLock<Option<Descriptor>>>);

/// A file that the kernel may be told to use in place of ours. Ended when it is dropped.
pub struct Backing {
    id: u32,
    backings: Backings,
}

impl Backings {
    pub(crate) fn new(descriptor: Descriptor) -> Self {
        Self(Arc::new(RwLock::new(Some(descriptor))))
    }

    /// Registers `file`, which need not stay open: the kernel holds it.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN; `EOPNOTSUPP`, `ENOTTY` or `EINVAL` where files cannot be passed through, or not this one;
    /// `ENODEV` after the mount's end.
    pub fn open(&self, file: BorrowedFd<'_>) -> io::Result<Backing> {
        let descriptor = self.0.read();
        let descriptor = descriptor.as_ref().ok_or(rustix::io::Errno::NODEV)?;
        Ok(Backing { id: descriptor.open_backing(file)?, backings: self.clone() })
    }

    /// A file that another process has registered as `id` on this connection.
    #[must_use]
    pub fn adopt(&self, id: u32) -> Backing {
        Backing { id, backings: self.clone() }
    }

    /// There is no mount any more, or it is another process's: nothing is registered from now on, and what is registered is not
    /// ended from here.
    pub fn end(&self) {
        *self.0.write() = None;
    }
}

impl fmt::Debug for Backings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Backings(..)")
    }
}

impl Backing {
    /// What the kernel calls it.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Some(descriptor) = &*self.backings.0.read()
            && let Err(error) = descriptor.close_backing(self.id)
        {
            debug!(id = self.id, %error, "a backing file was not ended");
        }
    }
}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Backing").field(&self.id).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn after_the_end_nothing_is_registered_and_nothing_breaks() {
        let file = tempfile::tempfile().unwrap();
        let backings = Backings::new(Descriptor::new(file.try_clone().unwrap().into()));
        // A plain file has no such command.
        assert_eq!(backings.open(file.as_fd()).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        let backing = Backing { id: 1, backings: backings.clone() };
        backings.end();
        assert_eq!(backings.open(file.as_fd()).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        drop(backing);
    }
}
