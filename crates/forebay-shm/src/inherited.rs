//! Sockets that a forked child closes.
//!
//! A worker takes the end of a client's socket as the end of its leases, and a socket ends when the last process closes it. So a child of
//! a client, which knows nothing of the leases, would keep them after its parent's death. Programs that may fork have the C library call
//! the three functions here (`pthread_atfork`), and the child closes them before anything else happens in it.
//!
//! There, only what a signal's handler may do is safe: a table of atomics says which they are. A thread that opens or closes such a socket
//! says so for as long as that takes, which is a few system calls that do not wait, and a fork waits for it: otherwise the child could have
//! one that is not in the table, or close another file in its place. A socket that finds no place in the table is the child's, too.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// Sockets to workers on this host: some for each client.
const PLACES: usize = 1024;
const NONE: RawFd = -1;
/// How often a fork gives way to a thread that has its turn. It may have interrupted that very thread.
const MAX_TURNS: u32 = 100_000;

static OPEN: [AtomicI32; PLACES] = [const { AtomicI32::new(NONE) }; PLACES];
/// Who changes the table: nobody, a thread, or the thread of this number, which forks.
static CHANGED_BY: AtomicI32 = AtomicI32::new(NOBODY);
const NOBODY: i32 = 0;
const A_THREAD: i32 = -1;

/// In the thread that forks, before it does.
pub fn before_fork() {
    for _ in 0..MAX_TURNS {
        if CHANGED_BY.compare_exchange(NOBODY, this_thread(), Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        std::thread::yield_now();
    }
}

/// After the fork, in the parent's thread that did so.
pub fn after_fork_in_parent() {
    let _ = CHANGED_BY.compare_exchange(this_thread(), NOBODY, Ordering::Release, Ordering::Relaxed);
}

/// After the fork, in the child: closes its parent's sockets.
pub fn after_fork_in_child() {
    for place in &OPEN {
        let fd = place.swap(NONE, Ordering::Relaxed);
        if fd != NONE {
            // SAFETY: it was open in the parent at the fork, so it is here, and what owns it is the parent's and never used here.
            unsafe { libc::close(fd) };
        }
    }
    // Whoever changed something is not in this process.
    CHANGED_BY.store(NOBODY, Ordering::Release);
}

fn this_thread() -> i32 {
    // SAFETY: asks the kernel for a number.
    unsafe { libc::gettid() }
}

/// Right to change the table.
struct Change;

impl Change {
    fn begin() -> Self {
        while CHANGED_BY.compare_exchange(NOBODY, A_THREAD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::thread::yield_now();
        }
        Self
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        CHANGED_BY.store(NOBODY, Ordering::Release);
    }
}

/// An open descriptor, which a forked child may close first of all.
#[derive(Debug)]
pub(crate) struct Descriptor {
    fd: ManuallyDrop<OwnedFd>,
    place: Option<usize>,
}

impl Descriptor {
    /// What `open` opens, without waiting. A forked child closes it.
    pub(crate) fn closed_in_children(open: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<Self> {
        let _change = Change::begin();
        let fd = open()?;
        let takes = |place: &AtomicI32| {
            place.compare_exchange(NONE, fd.as_raw_fd(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let place = OPEN.iter().position(takes);
        Ok(Self { fd: ManuallyDrop::new(fd), place })
    }

    /// Another one of the same open file, closed in children as this one is.
    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        let duplicate = || -> io::Result<OwnedFd> { Ok(rustix::io::fcntl_dupfd_cloexec(self, 0)?) };
        match self.place {
            Some(_) => Self::closed_in_children(duplicate),
            None => duplicate().map(Self::from),
        }
    }
}

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Self {
        Self { fd: ManuallyDrop::new(fd), place: None }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let _change = self.place.map(|place| {
            let change = Change::begin();
            OPEN[place].store(NONE, Ordering::Relaxed);
            change
        });
        // SAFETY: it is dropped nowhere else, and not used after this.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use rustix::fs::MemfdFlags;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn is_open(fd: &impl AsRawFd) -> bool {
        // SAFETY: only asks.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) != -1 }
    }

    /// What `check` says in a child, which ends without running anything of this program's.
    fn in_forked_child(check: impl FnOnce() -> bool) -> bool {
        before_fork();
        // SAFETY: the child makes system calls and ends.
        match unsafe { libc::fork() } {
            0 => {
                after_fork_in_child();
                let held = check();
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!held)) }
            }
            child => {
                after_fork_in_parent();
                let mut status = 0;
                // SAFETY: the child is ours, and `status` is ours to write to.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
            }
        }
    }

    #[test]
    fn a_child_closes_the_sockets_of_its_parents_leases_and_no_others() {
        let (theirs, foreign) = pair();
        let lease = Descriptor::closed_in_children(|| Ok(theirs)).unwrap();
        let second = lease.duplicate().unwrap();
        let other = Descriptor::from(foreign).duplicate().unwrap();
        assert!(in_forked_child(|| !is_open(&lease) && !is_open(&second) && is_open(&other)));
        assert!(is_open(&lease) && is_open(&second) && is_open(&other));
        assert!(lease.place.is_some() && lease.place != second.place && other.place.is_none());
    }

    #[test]
    fn forks_beside_threads_that_open_and_close_leave_nothing_of_theirs_in_a_child() {
        const NAME: &str = "forebay-closed-in-children";
        let open = || -> io::Result<OwnedFd> { Ok(rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC)?) };
        let is_ours = |entry: io::Result<std::fs::DirEntry>| {
            let file = entry.and_then(|entry| std::fs::read_link(entry.path()));
            file.is_ok_and(|file| file.to_string_lossy().contains(NAME))
        };
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        drop(Descriptor::closed_in_children(open).unwrap());
                    }
                });
            }
            let outcomes: Vec<_> = (0..50)
                .map(|_| in_forked_child(|| !std::fs::read_dir("/proc/self/fd").unwrap().any(is_ours)))
                .collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(outcomes.iter().all(|is_closed| *is_closed), "{outcomes:?}");
        });
    }
}
