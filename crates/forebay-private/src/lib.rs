//! Directories, files and sockets of this user alone.
//!
//! What a cache keeps on disk is what its readers may read, and what it hands on as the origin's. Whoever else could
//! read it would read the origin; whoever could write it, or put something in its place, could have the cache serve it.
//! So:
//!
//! 1. *Nothing is followed.* The last component of a path is no symbolic link, and a file is opened from its
//!    directory's descriptor. What is looked at is what was opened, and never what a path leads to by then.
//! 2. *The owner is the user that we run as.* Also for root: who owns a file may change it while root reads it.
//! 3. *Modes are 0700 and 0600.* What is wider is made so, since earlier versions left it to the umask; but a directory
//!    only if all that it holds is ours, for otherwise it is one that others use, too.
//! 4. *A file is a regular one with one name.* A second name is a way to it that no directory closes.
//! 5. *Who connects to a socket is asked of the kernel.* It is this user or root.
//!
//! Directories above the one that is opened are the operator's: who may rename them can have another one found at the
//! next start, which is refused then unless it is ours.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod directory;
mod error;
mod file;
mod socket;
#[cfg(test)]
mod tests;

pub use directory::PrivateDirectory;
pub use error::{NotOurs, PrivateError, our_user};
pub use file::{Opening, open_file};
pub use socket::{PrivateListener, may_talk, nobody, socket_address, socket_of};
