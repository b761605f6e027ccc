//! Which process a value was made in.
//!
//! After `fork(2)` the child has its parent's memory and descriptors, and of its threads only the one that forked. Whatever the parent's
//! other threads were doing stays half done in the child for ever, locks included. And what the child has is not its own: a byte that it
//! sends on its parent's connection, or a lease that it gives back, breaks reads of the parent.
//!
//! So the child leaves all of it alone. [`generation`] is another number in the child from the first moment on: a handler that the C
//! library calls between `fork` and its return counts it up, whoever forks, and does nothing else. A value [`OfProcess`] is only shown to
//! the process that made it, and only dropped there. In a child it is forgotten: its memory stays allocated, which costs nothing that
//! the fork did not copy.
//!
//! One thing of the parent's does concern others while a child has it: a worker on this host takes the end of a reader's socket as the end
//! of its leases, and the socket ends when the last process closes it. [`close_inherited`] closes those.

use std::ffi::OsStr;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::{SocketAddrUnix, getpeername};

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The number of this process among those that forked from one another: another one in a child than in its parent.
#[must_use]
pub fn generation() -> u64 {
    watch();
    GENERATION.load(Ordering::Relaxed)
}

/// Has the C library tell of forks. What was made before the first call is told apart all the same: it was made by one that called this.
fn watch() {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded, and does only what is safe in a forked child of a
        // process with threads: it counts up an atomic.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if refused != 0 {
            tracing::warn!(errno = refused, "forks are not noticed: use no session in a forked process");
        }
    });
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// A value that only the process that made it uses and drops.
#[derive(Debug)]
pub struct OfProcess<T> {
    generation: u64,
    value: ManuallyDrop<T>,
}

impl<T> OfProcess<T> {
    /// Of this process.
    pub fn new(value: T) -> Self {
        Self { generation: generation(), value: ManuallyDrop::new(value) }
    }

    /// The value; `None` in a process that was forked from the one that made it.
    pub fn get(&self) -> Option<&T> {
        self.is_ours().then(|| &*self.value)
    }

    /// The value, to be changed; `None` in a process that was forked from the one that made it.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        if self.is_ours() { Some(&mut *self.value) } else { None }
    }

    /// Whether this process made it.
    pub fn is_ours(&self) -> bool {
        self.generation == GENERATION.load(Ordering::Relaxed)
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: it is dropped nowhere else, and not used after this.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// In a child, right after the fork: closes the sockets over which its parent reads the memory of workers on this host. They are those
/// whose other end lies in one of `directories` ([`Session::windows_dir`](crate::Session::windows_dir)). Its random numbers are no
/// longer those of its parent, either.
pub fn close_inherited(directories: &[PathBuf]) {
    if rand::rng().reseed().is_err() {
        tracing::warn!(
            "the system gives no random numbers: this process draws the same as the one that it was forked from"
        );
    }
    if directories.is_empty() {
        return;
    }
    for descriptor in open_descriptors() {
        // SAFETY: it was open a moment ago and is used for one question, to which a closed one has an answer, too.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        if is_below(borrowed, directories) {
            // SAFETY: the code that opened it runs in the parent only; what this process has of it is forgotten and never used again.
            unsafe { rustix::io::close(descriptor) };
        }
    }
}

/// All of them, taken down before any is looked at: reading the directory takes one itself.
fn open_descriptors() -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn is_below(socket: BorrowedFd<'_>, directories: &[PathBuf]) -> bool {
    let Ok(Some(peer)) = getpeername(socket) else { return false };
    let Ok(peer) = SocketAddrUnix::try_from(peer) else { return false };
    let Some(path) = peer.path() else { return false };
    let parent = Path::new(OsStr::from_bytes(path.to_bytes())).parent();
    parent.is_some_and(|parent| directories.iter().any(|directory| directory == parent))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    use super::*;

    /// What `check` says in a child, which ends without running anything of this program's.
    fn in_forked_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls `check` and ends: it takes no lock that another thread may hold, but for those of `malloc`, which the C
        // library has in order.
        match unsafe { libc::fork() } {
            0 => {
                let held = catch_unwind(AssertUnwindSafe(check)).unwrap_or(false);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!held)) }
            }
            child => {
                let mut status = 0;
                // SAFETY: the child is ours, and `status` is ours to write to.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
            }
        }
    }

    #[test]
    fn a_forked_child_neither_sees_nor_drops_what_is_its_parents() {
        let inner = Rc::new(());
        let value = OfProcess::new(Rc::clone(&inner));
        assert!(value.get().is_some());
        let before = generation();
        let is_left_alone = in_forked_child(|| {
            let is_hidden = generation() != before && value.get().is_none();
            // SAFETY: read as a move; the parent's copy is in another process, and this one ends with the test.
            drop(unsafe { std::ptr::read(&value) });
            is_hidden && Rc::strong_count(&inner) == 2
        });
        assert!(is_left_alone);
        assert_eq!((generation(), Rc::strong_count(&inner)), (before, 2));
        drop(value);
        assert_eq!(Rc::strong_count(&inner), 1);
    }

    #[test]
    fn a_child_closes_the_sockets_of_its_parents_leases_and_no_others() {
        let ours = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let connected = |directory: &Path| {
            let path = directory.join("worker.sock");
            let listener = UnixListener::bind(&path).unwrap();
            (UnixStream::connect(&path).unwrap(), listener)
        };
        let (lease, _worker) = connected(ours.path());
        let (foreign, _server) = connected(other.path());
        let is_open = |socket: &UnixStream| {
            // SAFETY: only asks.
            unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_GETFD) != -1 }
        };
        let directories = [ours.path().to_owned()];
        assert!(in_forked_child(|| {
            close_inherited(&directories);
            !is_open(&lease) && is_open(&foreign)
        }));
        assert!(is_open(&lease) && is_open(&foreign));
    }
}
